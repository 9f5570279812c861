"""Typical sizes: the numeric sizes at which a model with symbolic sizes is estimated, measured and run.

The model itself stays valid for all sizes. The user gives one or several sizes of a symbol (`seq`), or the sizes of all
axes of an input. Other sizes have defaults: 1 for a batch, 224 for the height and width of an image, and 128 otherwise.
A batch is an axis that is named so (`batch`, `batch_size`, `bs`), or the first axis of an input without such an axis.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say_once
from rlflow.graph.dims import Dim, at, multiple, symbols_of
from rlflow.graph.ir import Graph, Interface
from rlflow.graph.limits import check_types
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.symbols import check_shapes, declared_shapes

MAX_LISTED = 12  # largest number of default sizes in a message
MAX_COMBINATIONS = 16  # largest number of combinations of sizes; a result is estimated and measured at each combination
BATCH, SIDE, LENGTH = 1, 224, 128  # default sizes: a batch; height and width of an image; other axes
BATCH_NAME = re.compile(r"batch|^bsz?$", re.IGNORECASE)  # a name of a batch axis

Shapes = Mapping[str, int | Sequence[int]]
Sizes = dict[str, int]  # symbol → size


def load_at(
    source: Path | str | onnx.ModelProto, shapes: Shapes | None = None, fix: bool = False, bodies: bool = True,
    keep: Sequence[str] = (),
) -> tuple[Graph, tuple[Sizes, ...]]:
    """Return the graph of a model, and the sizes of its symbols at which it is estimated and measured.

    Args:
      source: path of an ONNX file, or a ModelProto with its external data loaded.
      shapes: sizes that the user gave: symbol → size or sizes; input name → sizes of its axes.
      fix: True to replace the symbols in `shapes` by their sizes in the graph.
      bodies: see `load_graph`.
      keep: names of protected tensors and nodes, as in `load_graph`.

    Returns:
      (the graph, one dictionary symbol → size for each combination of sizes), see `typical_sizes`.

    Raises:
      RLFlowError: the model is invalid or does not fit `shapes`; `fix` is True and a symbol has several sizes; or a
        tensor is too large at these sizes.
    """
    shapes = shapes or {}
    graph = load_graph(source, shapes if fix else {}, bodies, keep)
    if fix:
        _check_fixed(graph.interface, shapes)
    result = typical_sizes(graph.interface, shapes)
    for sizes in result:
        _check_memory(graph, sizes)
    return graph, result


def typical_sizes(interface: Interface, shapes: Shapes | None = None) -> tuple[Sizes, ...]:
    """Return a dictionary symbol → size for each combination of the given sizes; ({},) for a model without symbols.

    Symbols without a given size get a default size, and a message to the user states these defaults.

    Args:
      interface: inputs and symbols of the model.
      shapes: symbol → size or sizes; input → sizes of its axes. A name that is both denotes the input.

    Raises:
      RLFlowError: a name is unknown, sizes contradict the inputs or each other, or there are more than MAX_COMBINATIONS
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
    if count > MAX_COMBINATIONS:
        words = " × ".join(f"{len(sizes)} of {name}" for name, sizes in several.items())
        raise RLFlowError(
            f"--shape names {count} combinations of sizes ({words}); give at most {MAX_COMBINATIONS}"
        )
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
    """Return input name → shape at the given sizes of the symbols.

    Args:
      interface: inputs of the model.
      sizes: symbol → size.
    """
    return {value.name: tuple([at(size, sizes) for size in axes]) for value, axes in declared_shapes(interface)}


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes (symbol → size) as text, such as "batch = 2, seq = 7"; "" for a model without symbols."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _check_memory(graph: Graph, sizes: Sizes) -> None:
    """Raise RLFlowError if a tensor is too large or has a negative size when the symbols have the given sizes."""
    types = graph.at(sizes).types
    try:
        check_types({name: types[tensor] for tensor, name in graph.interface.names.items() if tensor in types})
    except RLFlowError as error:
        raise RLFlowError(f"at {sizes_text(sizes)} {error}; name other sizes by --shape") from error


def inputs_at(interface: Interface, typical: Sequence[Sizes]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of all inputs at each combination of sizes.

    Args:
      interface: inputs of the model.
      typical: the combinations, as `typical_sizes` returns them.

    Returns:
      Text such as "seq = 7" → (input name → shape). The text states the symbols whose sizes differ between
      combinations, or all symbols if there is one combination.
    """
    first, *others = typical
    named = [name for name in first if any(sizes[name] != first[name] for sizes in others)] or list(first)
    return {
        sizes_text({name: sizes[name] for name in named}): input_shapes(interface, sizes) for sizes in typical
    }


def _check_fixed(interface: Interface, shapes: Shapes) -> None:
    """Raise RLFlowError if the user gave --fix without any size, or with several sizes for one symbol."""
    for name in shapes:
        if name in interface.symbols:
            sizes = ",".join(map(str, shapes[name]))
            raise RLFlowError(f"--fix freezes one size of each: --shape {name}=SIZE, not {name}={sizes}")
    if interface.symbols and not shapes:
        example = " ".join(f"--shape {shlex.quote(f'{name}={size}')}" for name, size in _defaults(interface).items())
        raise RLFlowError(f"--fix freezes the sizes that --shape names; say which, for example {example}")


def _defaults(interface: Interface) -> Sizes:
    """Return symbol → default size, which depends on its name, or on the first input axis that contains the symbol."""
    # A symbol that may be 0 is the length of a cache, on any axis.
    result: Sizes = {name: LENGTH for name, least in interface.symbols.items() if least == 0}
    result |= {name: BATCH for name in interface.symbols if BATCH_NAME.search(name)}
    for value, axes in declared_shapes(interface):
        has_batch = any(BATCH_NAME.search(name) for size in axes for name in symbols_of(size))
        is_image = len(axes) == 4 and value.type.tensor_type.elem_type in _FLOATS
        is_image = is_image and all(symbols_of(size) for size in axes[2:])
        for axis, size in enumerate(axes):
            wanted = BATCH if axis == 0 and not has_batch else SIDE if is_image and axis > 1 else LENGTH
            result = _multiple(size, wanted) | result
    return {name: result.get(name, LENGTH) for name in interface.symbols}


def _multiple(size, wanted: int) -> Sizes:
    """Return {s: value} such that the size k·s is as large as possible up to `wanted`, but the value is at least 1.

    For example `8*height` and 224 give {"height": 28}. The result is {} for a size that is no multiple of one symbol.
    """
    found = multiple(size)
    return {found[0]: max(wanted // found[1], 1)} if found else {}


def _solved(interface: Interface, named: Sizes) -> Sizes:
    """Return the sizes of symbols that follow from the given sizes of dimensions such as "8*height".

    `named` maps symbols and texts of dimensions to the sizes that the user gave.
    """
    result: Sizes = {}
    for _, written, size in _named_axes(interface, named):
        result |= _multiple(size, named[written])
    return result


_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def _check_sums(interface: Interface, named: Sizes, sizes: Sizes) -> None:
    """Raise RLFlowError if the given size of an expression such as `past + seq` contradicts its symbols' sizes."""
    for port, written, size in _named_axes(interface, named):
        if at(size, sizes) != named[written]:
            made = f"{named[written]} by --shape, but {sizes_text(sizes)}"
            raise RLFlowError(f"'{written}' of input '{port}' is {made}; give sizes that agree")


def _named_axes(interface: Interface, named: Sizes) -> Iterator[tuple[str, str, Dim | int]]:
    """Yield (input, dimension name in the file, size) for each axis whose dimension name has a given size."""
    for value, axes in declared_shapes(interface):
        for dim, size in zip(value.type.tensor_type.shape.dim, axes, strict=True):
            if dim.dim_param in named:
                yield value.name, dim.dim_param, size


def _say_assumed(sizes: Sizes) -> None:
    if sizes:
        more = f" and {len(sizes) - MAX_LISTED} others" if len(sizes) > MAX_LISTED else ""
        said = sizes_text(dict(islice(sizes.items(), MAX_LISTED))) + more
        say_once(f"default sizes: {said}; set others with --shape {shlex.quote(next(reversed(sizes)))}=SIZE")
