"""The symbols of a model: names and smallest values of its inputs' symbolic sizes, and the sizes that users give.

A declared dimension is a number, a name (`seq`), an expression of names ("past + seq", as exporters write sums) or
unnamed. An unnamed dimension gets a name from its input and axis (`x_2`); the exported file leaves it unnamed.

A symbol is at least 1, since rules are proved for sizes from 1. A dimension along which Concat extends an input (a
key-value cache) is at least 0, since the first call of such a model passes an empty cache.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph.dims import MAX_NUMBER, Dim, least, parse, symbol, symbols_of
from rlflow.graph.ir import Interface, TensorType
from rlflow.graph.shapes import type_proto

MAX_NAME = 200  # characters; longer names are never parsed as expressions
LONGEST_NAME = 1000  # characters of a symbol's name, which the text of every size that depends on the symbol contains


class Symbols:
    """The symbolic sizes of a model's inputs.

    Args:
      inputs: declared inputs of the model.
      nodes: nodes of the model; an axis along which a Concat extends an input may be empty.
      bound: symbol → size, for symbols that are replaced by a number.

    Attributes:
      least: unbound symbol → its smallest value, 0 or 1.
      bindings: bound symbol → its size.
    """

    def __init__(
        self, inputs: Iterable[onnx.ValueInfoProto], nodes: Iterable[onnx.NodeProto], bound: Mapping[str, int]
    ):
        inputs = [value for value in inputs if value.type.HasField("tensor_type")]
        self.bindings = dict(bound)
        self._named: dict[str, Dim | int] = {}
        self._unnamed: dict[tuple[str, int], Dim | int] = {}
        written = _written(inputs)
        plain = {name for name in written if name.isidentifier()}
        self.least: dict[str, int] = {}
        may_be_empty = _appended_to(inputs, nodes)
        axes = [(value.name, axis, dim) for value in inputs for axis, dim in enumerate(_dims(value))]
        empty = {dim.dim_param for name, axis, dim in axes if (name, axis) in may_be_empty}
        for name in sorted(plain):
            self._add(name, name in empty)
        for name, axis, dim in axes:
            if dim.HasField("dim_value") or dim.dim_param in plain:
                continue
            if not dim.dim_param:
                self._unnamed[name, axis] = self._add(unnamed(name, axis, written), (name, axis) in may_be_empty)
            elif dim.dim_param not in self._named:
                size = None if dim.dim_param in bound else self._expression(dim.dim_param)
                if size is None:
                    self._add(dim.dim_param, dim.dim_param in empty)
                else:
                    self._named[dim.dim_param] = size

    def _expression(self, text: str) -> Dim | int | None:
        """Return the size that a dimension text means as an expression; None if the whole text is one symbol's name.

        A name that appears only in expressions ("8*height") becomes a symbol if the expression is then always at least
        1. Therefore "batch-size" is the name of a symbol. An expression of known symbols must be at least 0; for
        example "past + seq" may be 0.
        """
        new: list[str] = []

        def named(name: str) -> Dim | int:
            if name not in self._named:
                new.append(name)
            return self._named[name] if name in self._named else symbol(name)

        size = parse(text, named) if len(text) <= MAX_NAME else None
        if type(size) is int:
            return size if abs(size) < MAX_NUMBER else None
        if size is None or least(size) < (1 if new else 0):
            return None
        for name in new:
            self._add(name, False)
        return parse(text, named)

    def _add(self, name: str, may_be_empty: bool) -> Dim | int:
        if len(name) > LONGEST_NAME:
            raise RLFlowError(f"the name of a size, {name[:20]}…, is longer than {LONGEST_NAME} characters")
        if name in self.bindings:
            self._named[name] = self.bindings[name]
        else:
            self.least[name] = 0 if may_be_empty else 1
            self._named[name] = symbol(name, self.least[name])
        return self._named[name]

    def shape_of(self, value: onnx.ValueInfoProto) -> tuple:
        """Return the sizes of the axes of an input, each an int or a Dim."""
        return tuple([self._size(value.name, axis, dim) for axis, dim in enumerate(_dims(value))])

    def _size(self, name: str, axis: int, dim):
        if dim.HasField("dim_value"):
            return dim.dim_value
        return self._named[dim.dim_param] if dim.dim_param else self._unnamed[name, axis]


def declared_shapes(interface: Interface) -> Iterator[tuple[onnx.ValueInfoProto, tuple]]:
    """Yield each input that is a tensor, with the sizes of its axes: numbers, or Dims of the interface's symbols."""
    named = {name: symbol(name, smallest) for name, smallest in interface.symbols.items()} | dict(interface.bindings)
    inputs = [value for value in interface.inputs if value.type.HasField("tensor_type")]
    written = _written(inputs)
    for value in inputs:
        sizes: list[Dim | int] = []
        for axis, dim in enumerate(_dims(value)):
            name = dim.dim_param or unnamed(value.name, axis, written)
            if dim.HasField("dim_value"):
                sizes.append(dim.dim_value)
            else:
                sizes.append(named[name] if name in named else parse(name, named.__getitem__))
        yield value, tuple(sizes)


def unnamed(name: str, axis: int, written: set[str]) -> str:
    """Return a symbol's name for the unnamed axis `axis` of the input `name`; the result is not in `written`."""
    result = f"{name}_{axis}"
    while result in written:
        result += "_"
    return result


def _written(inputs: Iterable[onnx.ValueInfoProto]) -> set[str]:
    """Return the texts of all named dimensions (dim_param) in the declarations of inputs."""
    return {dim.dim_param for value in inputs for dim in _dims(value)} - {""}


def _dims(value: onnx.ValueInfoProto):
    return value.type.tensor_type.shape.dim


def _appended_to(inputs: list[onnx.ValueInfoProto], nodes: Iterable[onnx.NodeProto]) -> set[tuple[str, int]]:
    """Return (input name, axis) for each Concat of several tensors that reads an input and joins along the axis."""
    ranks = {value.name: len(_dims(value)) for value in inputs}
    result = set()
    for node in nodes:
        if node.op_type == "Concat" and node.domain in ("", "ai.onnx") and len(node.input) > 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            result |= {(name, axis % ranks[name]) for name in node.input if ranks.get(name)}
    return result


# -- given sizes -----------------------------------------------------------------------------------


def bind_shapes(inputs, shapes: Mapping[str, object]) -> list[onnx.ValueInfoProto]:
    """Return the declared inputs with every dimension replaced by a number.

    Args:
      inputs: ValueInfoProtos.
      shapes: symbol → size, or input → sizes of its axes.

    Raises:
      RLFlowError: `shapes` does not fit the inputs or leaves a size open; the message names the missing sizes.
    """
    inputs = with_ranks(inputs, shapes)
    symbols = Symbols(inputs, (), check_shapes(inputs, shapes))
    _refuse_open_sizes(inputs, symbols)
    return [with_sizes(value, symbols) for value in inputs]


def with_ranks(
    inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, object]
) -> list[onnx.ValueInfoProto]:
    """Return the declared inputs; an input without a declared rank gets the sizes that the user gave for its axes.

    Args:
      inputs: ValueInfoProtos.
      shapes: symbol → size, or input → sizes of its axes.
    """
    result = []
    for value in inputs:
        sizes = shapes.get(value.name)
        if _has_no_rank(value) and isinstance(sizes, Sequence) and all(0 <= size < MAX_NUMBER for size in sizes):
            ranked = onnx.ValueInfoProto()
            ranked.CopyFrom(value)
            ranked.type.CopyFrom(type_proto(TensorType(value.type.tensor_type.elem_type, tuple(sizes))))
            value = ranked
        result.append(value)
    return result


def _has_no_rank(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def check_shapes(inputs, shapes: Mapping[str, object]) -> dict[str, int]:
    """Check the sizes that the user gave, and return dimension name → size.

    Args:
      inputs: ValueInfoProtos.
      shapes: symbol → size, or input → sizes of its axes.

    Raises:
      RLFlowError: a name is unknown, or a size contradicts a declaration or another size.
    """
    bindings = {name: int(size) for name, size in shapes.items() if isinstance(size, int)}
    shapes = {name: (size,) if isinstance(size, int) else tuple(size) for name, size in shapes.items()}
    for name, sizes in shapes.items():
        if min(sizes, default=0) < 0:
            raise RLFlowError(f"--shape gives '{name}' a negative size")
        if max(sizes, default=0) >= MAX_NUMBER:
            raise RLFlowError(f"--shape gives '{name}' a size that is too large for a tensor: {max(sizes)}")
    names, written = {value.name for value in inputs}, _written(inputs)
    for value in inputs:
        if _has_no_rank(value):
            raise RLFlowError(
                f"input '{value.name}' has no declared rank. Give the sizes of its axes, which the result then "
                f"requires, for example --shape {shlex.quote(f'{value.name}=1x128')} --fix"
            )
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            sizes = shapes[value.name]
            if len(sizes) != len(dims):
                raise RLFlowError(f"input '{value.name}' has {len(dims)} dimensions, --shape gives {len(sizes)}")
            for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
                if dim.HasField("dim_value"):
                    if dim.dim_value != size:
                        raise RLFlowError(
                            f"input '{value.name}' has a fixed size {dim.dim_value}, --shape gives {size}"
                        )
                    continue
                name = dim.dim_param or unnamed(value.name, axis, written)
                if bindings.setdefault(name, size) != size:
                    raise RLFlowError(
                        f"--shape gives dimension '{name}' two sizes, {bindings[name]} and {size}; give it one size"
                    )
    symbols = written | Symbols(inputs, (), {}).least.keys()
    for name in shapes:
        if name not in names and name not in symbols:
            known = ", ".join(sorted({*names, *symbols}))
            raise RLFlowError(
                f"--shape names '{name}', which is neither an input nor a symbolic dimension; there are {known}"
            )
    return bindings


def with_sizes(value: onnx.ValueInfoProto, symbols: Symbols) -> onnx.ValueInfoProto:
    """Return a copy of an input's declaration with its sizes from `symbols`, for ONNX's shape inference.

    A symbolic size appears under the unique name that `symbolic.name_of` gives it.
    """
    sized = onnx.ValueInfoProto()
    sized.CopyFrom(value)
    if value.type.HasField("tensor_type"):
        shape = symbols.shape_of(value)
        sized.type.CopyFrom(type_proto(TensorType(value.type.tensor_type.elem_type, shape)))
    return sized


def _refuse_open_sizes(inputs, symbols: Symbols) -> None:
    """Raise RLFlowError if an input has a symbolic size; the message proposes `--shape` arguments."""
    declared, arguments = [], []
    for value in inputs:
        open_ones = [name for size in symbols.shape_of(value) for name in sorted(symbols_of(size))]
        if not open_ones:
            continue
        dims = value.type.tensor_type.shape.dim
        declared.append(f"'{value.name}' is [{', '.join(str(dim.dim_value or dim.dim_param or '?') for dim in dims)}]")
        if all(dim.HasField("dim_value") or dim.dim_param for dim in dims):
            arguments += [f"--shape {shlex.quote(f'{name}=1')}" for name in open_ones]
        else:
            sizes = "x".join(str(dim.dim_value or 1) for dim in dims)
            arguments.append(f"--shape {shlex.quote(f'{value.name}={sizes}')}")
    if arguments:
        raise RLFlowError(
            f"the model leaves sizes of its inputs open: {', '.join(declared)}; say which it will run with, "
            f"for example {' '.join(dict.fromkeys(arguments))}"
        )
