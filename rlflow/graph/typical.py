"""Typical sizes: at which a model with symbolic sizes is estimated, measured and run; it stays open to all others.

Somebody names them by symbol (`seq`), one or several, or by input (all its axes); the rest has a default: a batch of 1,
images of 224 × 224, 128 of all else. Whoever needs numbers in place of symbols asks here.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say_once
from rlflow.graph.dims import Dim, at, symbols_of
from rlflow.graph.ir import Graph, Interface
from rlflow.graph.limits import check_types
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.symbols import Symbols, check_shapes

LISTED = 12  # of the sizes that nobody named, how many are said
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

    Raises RLFlowError as `load_graph` and `typical_sizes` do, where `fix` has not one size to freeze of each name, and
    where a tensor is too large at these sizes.
    """
    shapes = shapes or {}
    graph = load_graph(source, shapes if fix else {})
    if fix:
        _check_fixed(graph.interface, shapes)
    result = typical_sizes(graph.interface, shapes)
    for sizes in result:
        _check_memory(graph, sizes)
    return graph, result


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


def input_shapes(interface: Interface, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Input name → the sizes of its axes, as `random_inputs` takes them, where the symbols have these sizes."""
    return {value.name: tuple([at(size, sizes) for size in axes]) for value, axes in _tensors(interface)}


def sizes_text(sizes: Mapping[str, int]) -> str:
    """ "batch = 2, seq = 7"; empty for a model without symbols."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _check_memory(graph: Graph, sizes: Sizes) -> None:
    """Raises RLFlowError where a tensor is as large as in no model with fixed sizes, or smaller than nothing."""
    types = graph.at(sizes).types
    try:
        check_types({name: types[tensor] for tensor, name in graph.interface.names.items() if tensor in types})
    except RLFlowError as error:
        raise RLFlowError(f"at {sizes_text(sizes)} {error}; name other sizes by --shape") from error


def inputs_at(interface: Interface, typical: Sequence[Sizes]) -> dict[str, dict[str, tuple[int, ...]]]:
    """What the typical sizes are called, by the symbols in which they differ ("" without symbols) → `input_shapes`."""
    first, *others = typical
    named = [name for name in first if any(sizes[name] != first[name] for sizes in others)] or list(first)
    return {
        sizes_text({name: sizes[name] for name in named}): input_shapes(interface, sizes) for sizes in typical
    }


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
    result: Sizes = {}
    for value, axes in _tensors(interface):
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
    result: Sizes = {}
    for _, written, size in _named_axes(interface, named):
        result |= _multiple(size, named[written])
    return result


_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def _check_sums(interface: Interface, named: Sizes, sizes: Sizes) -> None:
    """Raises RLFlowError where a size that is made of others (`past + seq`) was named, and is not what they make."""
    for port, written, size in _named_axes(interface, named):
        if at(size, sizes) != named[written]:
            made = f"{named[written]} by --shape, but {sizes_text(sizes)}"
            raise RLFlowError(f"'{written}' of input '{port}' is {made}")


def _named_axes(interface: Interface, named: Sizes) -> Iterator[tuple[str, str, Dim | int]]:
    """(input, what the file calls its size, the size) of each axis whose size was named."""
    for value, axes in _tensors(interface):
        for dim, size in zip(value.type.tensor_type.shape.dim, axes, strict=True):
            if dim.dim_param in named:
                yield value.name, dim.dim_param, size


def _tensors(interface: Interface) -> Iterator[tuple[onnx.ValueInfoProto, tuple]]:
    """The inputs that are tensors, and the sizes of their axes, int or Dim."""
    symbols = Symbols(interface.inputs, (), interface.bindings)
    for value in interface.inputs:
        if value.type.HasField("tensor_type"):
            yield value, symbols.shape_of(value)


def _say_assumed(sizes: Sizes) -> None:
    if sizes:
        more = f" and {len(sizes) - LISTED} others" if len(sizes) > LISTED else ""
        said = sizes_text(dict(islice(sizes.items(), LISTED))) + more
        say_once(f"sizes that nobody named: {said} (--shape {shlex.quote(next(reversed(sizes)))}=...)")
