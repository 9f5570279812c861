"""Random models with symbolic input sizes.

First a model is drawn with motifs of shape arithmetic, and some of its sizes are the primes of TYPICAL, which no other
axis has. Then each input axis of such a size becomes a symbol. A symbol is kept if ONNX Runtime can run the model at
several sizes of the symbol and all results are finite.
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

TYPICAL = {"batch": 7, "seq": 11, "past": 13}  # symbol → its typical size
SIZES = 3  # number of assignments of sizes to the symbols at which a model must run; the first has the typical sizes
LARGEST_SIZE = 18  # largest size in the third and later assignments
LEAST = 0.5  # probability of the smallest possible size in the third and later assignments


class OpenModel(NamedTuple):
    """A model with one to three symbols.

    Attributes:
        model: the model.
        sizes: assignments symbol → size at which the model runs; the first has the typical sizes.
    """

    model: onnx.ModelProto
    sizes: tuple[dict[str, int], ...]


def random_open_model(seed: int) -> OpenModel:
    """Return a random model with symbols; equal seeds give equal models."""
    for attempt in count():
        rng = np.random.default_rng([seed, attempt])
        names = sorted(rng.choice(list(TYPICAL), int(rng.integers(1, 4)), replace=False))
        model = drawn(Sketch([seed, attempt], {str(name): TYPICAL[name] for name in names}))
        typical = {str(name): TYPICAL[name] for name in names}
        # The second assignment has neither typical nor smallest sizes. Otherwise an axis that broadcasts, with the size
        # 11 or 1, could pass for a symbol.
        other = {name: int(rng.integers(2, TYPICAL[name])) for name in typical}
        sizes = [typical, other, *({name: _size(rng) for name in typical} for _ in range(SIZES - 2))]
        opened = _opened(model, sizes)
        if opened is not None:
            return opened


def _size(rng: np.random.Generator) -> int:
    """Return a random size from 2 to LARGEST_SIZE, or 0, which stands for the smallest possible size of a symbol."""
    return 0 if rng.random() < LEAST else int(rng.integers(2, LARGEST_SIZE + 1))


def _opened(model: onnx.ModelProto, sizes: list[dict[str, int]]) -> OpenModel | None:
    """Return the model with all symbols, or else with as many symbols as can be added one by one.

    Return None if the model cannot run with any symbol.

    Args:
        model: the model with fixed sizes.
        sizes: assignments symbol → size; the first has the sizes that become symbols.
    """
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
                dim.dim_param = named[dim.dim_value]  # dim_value and dim_param exclude each other
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
    """Declare the shape of an output, and return False if its rank is not the same at all assignments of sizes.

    Each axis is declared as a symbol, as a number, or as unknown if its size is neither constant nor a symbol's size.

    Args:
        value: the output, which is changed.
        shapes: shape of the output at each assignment.
        sizes: assignments symbol → size.
    """
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
