"""Random models whose sizes are symbols.

A model is drawn with primes as sizes, which no other axis has, and with motifs of shape arithmetic. The axes of inputs
with these sizes then get names. A name stays if the model runs in ONNX Runtime at all sizes of the comparison.
"""

from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

import numpy as np
import onnx

from benchmarks.random_models.random_model import drawn, random_values
from benchmarks.random_models.sketch import Sketch
from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.symbols import Symbols

TYPICAL = {"batch": 7, "seq": 11, "past": 13}
SIZES = 3  # at which a model is compared: the typical one and others
LARGEST_SIZE = 18
LEAST = 0.5  # of the other sizes are the least there are


class OpenModel(NamedTuple):
    """A model with one to three symbols, and the sizes (symbol → size) at which it runs, the typical ones first."""

    model: onnx.ModelProto
    sizes: tuple[dict[str, int], ...]


def random_open_model(seed: int) -> OpenModel:
    """Return the model and the sizes that belong to a seed."""
    for attempt in count():
        rng = np.random.default_rng([seed, attempt])
        names = sorted(rng.choice(list(TYPICAL), int(rng.integers(1, 4)), replace=False))
        model = drawn(Sketch([seed, attempt], {str(name): TYPICAL[name] for name in names}))
        typical = {str(name): TYPICAL[name] for name in names}
        # One size that is neither typical nor least: an axis of 11 or 1, which broadcasts, is no symbol.
        other = {name: int(rng.integers(2, TYPICAL[name])) for name in typical}
        sizes = [typical, other, *({name: _size(rng) for name in typical} for _ in range(SIZES - 2))]
        opened = _opened(model, sizes)
        if opened is not None:
            return opened


def _size(rng: np.random.Generator) -> int:
    """Return a random size that is at least the least one."""
    return 0 if rng.random() < LEAST else int(rng.integers(2, LARGEST_SIZE + 1))


def _opened(model: onnx.ModelProto, sizes: list[dict[str, int]]) -> OpenModel | None:
    """Return the model with as many symbols as it runs with, or None if it runs with no symbol."""
    kept: set[str] = set()
    result = None
    for names in (set(sizes[0]), *({name} for name in sizes[0])):
        if names <= kept:
            continue
        tried = _tried(model, [{name: each[name] for name in sizes[0] if name in kept | names} for each in sizes])
        if tried is not None:
            result, kept = tried, kept | names
    return result


def _tried(model: onnx.ModelProto, sizes: list[dict[str, int]]) -> OpenModel | None:
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    del opened.graph.value_info[:]
    named = {size: name for name, size in sizes[0].items()}
    for value in opened.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value in named:
                dim.dim_param = named[dim.dim_value]  # which takes the place of the number
    for value in opened.graph.output:
        value.type.tensor_type.ClearField("shape")
    least = Symbols(opened.graph.input, opened.graph.node, {}).least
    if least.keys() != sizes[0].keys():
        return None
    sizes = [{name: max(size, least[name]) for name, size in each.items()} for each in sizes]
    try:
        running = session(opened, 1, optimise=False)
        results = [run(running, random_values(opened, k, each)) for k, each in enumerate(sizes)]
    except RLFlowError:
        return None
    if not all(np.isfinite(a).all() for values in results for a in values if a.dtype.kind == "f"):
        return None
    for value, arrays in zip(opened.graph.output, zip(*results, strict=True), strict=True):
        if not _declare(value, [a.shape for a in arrays], sizes):
            return None
    return OpenModel(opened, tuple(sizes))


def _declare(value: onnx.ValueInfoProto, shapes: list[tuple[int, ...]], sizes: list[Mapping[str, int]]) -> bool:
    """Declare the shape of an output that has these shapes at these sizes; return False if its rank varies."""
    if len(set(map(len, shapes))) > 1:
        return False
    shape = value.type.tensor_type.shape
    shape.SetInParent()
    for axis_sizes in zip(*shapes, strict=True):
        dim = shape.dim.add()
        name = next((name for name in sizes[0] if axis_sizes == tuple(each[name] for each in sizes)), None)
        if name is not None:
            dim.dim_param = name
        elif len(set(axis_sizes)) == 1:
            dim.dim_value = axis_sizes[0]
    return True
