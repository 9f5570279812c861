"""Typical sizes: at which a model with symbolic sizes is estimated, measured and run; it stays open to all others.

Somebody names them by symbol (`seq`), one or several, or by input (all its axes); the rest has a default: a batch of 1,
images of 224 × 224, 128 of all else. Whoever needs numbers in place of symbols asks here.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.common.progress import say_once
from rlflow.graph.dims import at, symbols_of
from rlflow.graph.model import Graph, Interface
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.symbols import Symbols, check_shapes

MOST = 16  # combinations of sizes, at each of which a result is estimated and measured
BATCH, SIDE, LENGTH = 1, 224, 128  # where nobody says anything: first axes; heights and widths of images; all else

Shapes = Mapping[str, int | Sequence[int]]
Sizes = dict[str, int]  # symbol → size


def load_at(
    source: Path | str | onnx.ModelProto, shapes: Shapes | None = None, fix: bool = False
) -> tuple[Graph, tuple[Sizes, ...]]:
    """The graph of a model, and its typical sizes.

    Args:
      source: see `load_graph`.  shapes: see `typical_sizes`.
      fix: whether these sizes are frozen: no symbol is left of those that they name.

    Raises RLFlowError as `load_graph` and `typical_sizes` do, and where `fix` has not one size to freeze of each name.
    """
    shapes = shapes or {}
    graph = load_graph(source, shapes if fix else {})
    if fix:
        _check_fixed(graph.interface, shapes)
    return graph, typical_sizes(graph.interface, shapes)


def typical_sizes(interface: Interface, shapes: Shapes | None = None) -> tuple[Sizes, ...]:
    """The sizes of all symbols, once for each combination of those that were named; a model without symbols: ({},).

    Says on the console which sizes are nobody's choice.

    Args:
      shapes: symbol → its size, or several; input → the sizes of its axes. A name that is both is an input.

    Raises:
      RLFlowError: a name is neither, sizes do not fit the inputs or each other, or they have more than MOST
        combinations.
    """
    inputs = {value.name for value in interface.inputs}
    single, several = {}, {}
    for name, sizes in (shapes or {}).items():
        if name in inputs or isinstance(sizes, int):
            single[name] = sizes
        else:
            several[name] = tuple(dict.fromkeys(sizes))
    count = math.prod(map(len, several.values()))
    if count > MOST:
        words = " × ".join(f"{len(sizes)} of {name}" for name, sizes in several.items())
        raise RLFlowError(f"--shape names {count} combinations of sizes ({words}); {MOST} at most are measured")
    defaults = _defaults(interface)
    result = {}
    for combination in product(*several.values()):
        named = check_shapes(interface.inputs, single | dict(zip(several, combination, strict=True)))
        named = _solved(interface, named) | named
        sizes = {name: named.get(name, default) for name, default in defaults.items()}
        _check_sums(interface, named, sizes)
        result[tuple(sizes.values())] = sizes
    _say_assumed({name: default for name, default in defaults.items() if name not in named})
    return tuple(result.values())


def input_shapes(
    interface: Interface | Sequence[onnx.ValueInfoProto], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Input name → the sizes of its axes, as `random_inputs` takes them, where the symbols have these sizes.

    interface: or the declarations of its inputs, where nothing is bound.
    """
    if isinstance(interface, Interface):
        inputs, bindings = interface.inputs, interface.bindings
    else:
        inputs, bindings = interface, {}
    symbols = Symbols(inputs, (), bindings)
    return {value.name: tuple([at(size, sizes) for size in symbols.shape_of(value)]) for value in _tensors(inputs)}


def inputs_at(interface: Interface, typical: Sequence[Sizes]) -> dict[str, dict[str, tuple[int, ...]]]:
    """What the typical sizes are called, by the symbols in which they differ ("" without symbols) → `input_shapes`."""
    first, *others = typical
    named = [name for name in first if any(sizes[name] != first[name] for sizes in others)] or list(first)
    return {", ".join(f"{name} = {sizes[name]}" for name in named): input_shapes(interface, sizes) for sizes in typical}


def _check_fixed(interface: Interface, shapes: Shapes) -> None:
    """Raises RLFlowError unless `load_graph` has bound what was to be fixed.

    Args:
      interface: what is left open by it.  shapes: what it was given.
    """
    for name in shapes:
        if name in interface.symbols:
            sizes = ",".join(map(str, shapes[name]))
            raise RLFlowError(f"--fix freezes one size of each: --shape {name}=SIZE, not {name}={sizes}")
    if interface.symbols and not shapes:
        example = " ".join(f"--shape {shlex.quote(f'{name}={size}')}" for name, size in _defaults(interface).items())
        raise RLFlowError(f"--fix freezes the sizes that --shape names; say which, for example {example}")


def _defaults(interface: Interface) -> Sizes:
    """Symbol → its size where nobody says anything, by the first axis that has it."""
    symbols, result = Symbols(interface.inputs, (), interface.bindings), {}
    for value in _tensors(interface.inputs):
        axes = symbols.shape_of(value)
        is_image = len(axes) == 4 and value.type.tensor_type.elem_type in _FLOATS
        is_image = is_image and all(symbols_of(size) for size in axes[2:])
        for axis, size in enumerate(axes):
            wanted = BATCH if axis == 0 else SIDE if is_image and axis > 1 else LENGTH
            result = _multiple(size, wanted) | result
    # What may be empty is the length of a cache, whatever its axis.
    return {name: result.get(name, LENGTH) if least else LENGTH for name, least in interface.symbols.items()}


def _multiple(size, wanted: int) -> Sizes:
    """The symbol that a size is a multiple of, with which it is `wanted` or not much less; {} for other sizes."""
    names = symbols_of(size)
    if len(names) != 1:
        return {}
    (name,) = names
    times = at(size, {name: 1})
    return {name: max(wanted // times, 1)} if times > 0 and at(size, {name: 2}) == 2 * times else {}


def _solved(interface: Interface, named: Sizes) -> Sizes:
    """The sizes of symbols that stand only in multiples ("8*height") which were named."""
    symbols, result = Symbols(interface.inputs, (), interface.bindings), {}
    for value in _tensors(interface.inputs):
        for dim, size in zip(value.type.tensor_type.shape.dim, symbols.shape_of(value), strict=True):
            if dim.dim_param in named:
                result |= _multiple(size, named[dim.dim_param])
    return result


_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def _check_sums(interface: Interface, named: Sizes, sizes: Sizes) -> None:
    """Raises RLFlowError where a size that is made of others (`past + seq`) was named, and is not what they make."""
    symbols = Symbols(interface.inputs, (), interface.bindings)
    for value in _tensors(interface.inputs):
        for dim, size in zip(value.type.tensor_type.shape.dim, symbols.shape_of(value), strict=True):
            wanted = named.get(dim.dim_param) if dim.dim_param else None
            if wanted is not None and at(size, sizes) != wanted:
                made = ", ".join(f"{name} = {number}" for name, number in sizes.items())
                raise RLFlowError(f"'{dim.dim_param}' of input '{value.name}' is {wanted} by --shape, but {made}")


def _tensors(inputs: Sequence[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
    return [value for value in inputs if value.type.HasField("tensor_type")]


def _say_assumed(sizes: Sizes) -> None:
    if sizes:
        listed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        say_once(f"sizes that nobody named: {listed} (--shape {shlex.quote(next(reversed(sizes)))}=...)")
