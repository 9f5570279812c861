"""Inputs that the user gives for a model: read from files, and checked against the model.

A path is one of

    DATA.npz           arrays by input name; the elements of a sequence are NAME.0, NAME.1, …
    a folder           of .npz files, one set each
    a folder           with input_0.pb, input_1.pb, …, a test_data_set of ONNX, or a folder of such folders

The files may come from strangers: no pickle is read, and all files together may unpack to at most MAX_BYTES.
"""

import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph.dims import Dim, at, multiple, symbols_of
from rlflow.graph.drawn_inputs import inputs_of
from rlflow.graph.symbols import Symbols

MAX_BYTES = 1 << 32  # largest number of bytes of all given inputs together
MAX_SETS = 256
PROTOBUF = re.compile(r"input_(\d+)\.pb")
ELEMENT = re.compile(r"(.+)\.(\d+)")  # an element of a sequence in an .npz file


class GivenSet(NamedTuple):
    """Values of all inputs of a model that the user gave.

    Attributes:
      name: the name of the file or folder, for messages.
      arrays: input name → array; a list of arrays for a sequence.
      sizes: symbol of the model → the size that it has in `arrays`.
    """

    name: str
    arrays: dict[str, np.ndarray]
    sizes: Mapping[str, int]


def read_inputs(model: onnx.ModelProto, paths: Sequence[Path | str]) -> tuple[GivenSet, ...]:
    """Read the sets of inputs in files and folders.

    Args:
      model: the model; the contents of its weights are not needed.
      paths: files and folders, see the module.

    Raises:
      RLFlowError: a path cannot be read or holds no inputs, or its inputs do not fit the model.
    """
    sources = [source for path in paths for source in _sources(Path(path))]
    if len(sources) > MAX_SETS:
        raise RLFlowError(f"--inputs names {len(sources)} sets of inputs; pass at most {MAX_SETS}")
    _check_bytes(sources)
    return tuple([checked(model, _read(model, source), source.name) for source in sources])


def checked(model: onnx.ModelProto, values: Mapping[str, object], name: str) -> GivenSet:
    """Return a set of inputs after checking names, types and shapes against the model.

    Args:
      model: the model.
      values: input name → array, or list of arrays for a sequence.
      name: the name of the set, for messages.

    Raises:
      RLFlowError: an input is missing, unknown, or of another type or shape than the model declares.
    """
    ports = {value.name: value for value in inputs_of(model)}
    defaults = {value.name for value in model.graph.input} - ports.keys()
    for key in values:
        if key in defaults:
            raise RLFlowError(f"{name}: input '{key}' has a default in the model, which is kept; leave '{key}' out")
        if key not in ports:
            raise RLFlowError(f"{name}: the model has no input '{key}'; it has {', '.join(ports) or 'none'}")
    missing = [key for key in ports if key not in values]
    if missing:
        raise RLFlowError(f"{name}: the model's input '{missing[0]}' is missing; give all of {', '.join(ports)}")
    arrays = {key: _typed(value.type, values[key], f"{name}: input '{key}'") for key, value in ports.items()}
    return GivenSet(name, arrays, _sizes(model, list(ports.values()), arrays, name))


def sizes_beside(given: Sequence[GivenSet], model: onnx.ModelProto, shapes: Mapping[str, object]) -> dict[str, int]:
    """Return the sizes of the first given set for the symbols that the user did not name; sizes of 0 are left out.

    Args:
      given: the given sets.
      model: the model.
      shapes: symbol → size or sizes, or input → sizes of its axes, as the user named them.
    """
    if not given:
        return {}
    ports = [value for value in inputs_of(model) if value.type.HasField("tensor_type")]
    symbols = Symbols(ports, model.graph.node, {})
    named = set(shapes)
    for value in ports:
        if value.name in shapes:
            named |= {name for size in symbols.shape_of(value) for name in symbols_of(size)}
    return {name: size for name, size in given[0].sizes.items() if name not in named and size > 0}


# -- files -----------------------------------------------------------------------------------------


def _sources(path: Path) -> Iterator[Path]:
    """Yield the .npz files and the test_data_set folders of a path that the user gave."""
    if path.is_file():
        if path.suffix != ".npz":
            raise RLFlowError(f"--inputs {path} is neither an .npz file nor a folder; write one with numpy.savez")
        yield path
    elif path.is_dir():
        entries = sorted(path.iterdir())
        if any(PROTOBUF.fullmatch(entry.name) for entry in entries):
            yield path
            return
        found = [e for e in entries if e.suffix == ".npz" or (e.is_dir() and (e / "input_0.pb").is_file())]
        if not found:
            raise RLFlowError(f"--inputs {path} holds neither .npz files nor input_0.pb nor folders with input_0.pb")
        yield from found
    else:
        raise RLFlowError(f"--inputs {path}: no such file or folder")


def _protobufs(folder: Path) -> dict[int, Path]:
    """Return number → path of the files input_0.pb, input_1.pb, … in a folder."""
    matches = [(PROTOBUF.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    return {int(match[1]): entry for match, entry in matches if match}


def _check_bytes(sources: Sequence[Path]) -> None:
    """Raise RLFlowError if the unpacked data would have more than MAX_BYTES."""
    total = 0
    for source in sources:
        try:
            if source.is_dir():
                total += sum(path.stat().st_size for path in _protobufs(source).values())
            else:
                with zipfile.ZipFile(source) as archive:
                    total += sum(entry.file_size for entry in archive.infolist())
        except (OSError, zipfile.BadZipFile) as error:
            raise RLFlowError(f"--inputs {source} cannot be read: {first_line(error)}") from error
    if total > MAX_BYTES:
        raise RLFlowError(f"--inputs: {total / 2**30:.1f} GiB of inputs; pass at most {MAX_BYTES / 2**30:.0f} GiB")


UNREADABLE = (  # what damaged files make NumPy, zipfile and protobuf raise
    OSError, ValueError, EOFError, TypeError, KeyError, RuntimeError, MemoryError, DecodeError, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip


def _read(model: onnx.ModelProto, source: Path) -> dict[str, object]:
    try:
        if source.is_dir():
            return _read_protobufs(model, _protobufs(source))
        with np.load(source, allow_pickle=False) as archive:
            values = {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise RLFlowError(f"--inputs {source} cannot be read: {first_line(error)}") from error
    sequences = {value.name for value in inputs_of(model) if value.type.HasField("sequence_type")}
    for key in sorted((k for k in values if ELEMENT.fullmatch(k)), key=lambda k: int(ELEMENT.fullmatch(k)[2])):
        name = ELEMENT.fullmatch(key)[1]
        if name in sequences:
            values.setdefault(name, []).append(values.pop(key))
    return values


def _read_protobufs(model: onnx.ModelProto, files: Mapping[int, Path]) -> dict[str, object]:
    """Read files input_N.pb, where N is the position of an input in the model."""
    ports, result = inputs_of(model), {}
    for position, path in sorted(files.items()):
        if position >= len(ports):
            raise RLFlowError(f"--inputs {path}: the model has {len(ports)} inputs, counted from 0")
        value, content = ports[position], path.read_bytes()
        if value.type.HasField("sequence_type"):
            sequence = onnx.SequenceProto.FromString(content)
            _check_inside(sequence.tensor_values, path)
            result[value.name] = numpy_helper.to_list(sequence)
        elif value.type.HasField("optional_type"):
            optional = onnx.OptionalProto.FromString(content)
            _check_inside([optional.tensor_value, *optional.sequence_value.tensor_values], path)
            result[value.name] = numpy_helper.to_optional(optional)
        else:
            tensor = onnx.TensorProto.FromString(content)
            _check_inside([tensor], path)
            result[value.name] = numpy_helper.to_array(tensor)
    return result


def _check_inside(tensors: Iterable[onnx.TensorProto], path: Path) -> None:
    """Raise RLFlowError if the values of a tensor are stored in another file."""
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors):
        raise RLFlowError(f"--inputs {path} refers to another file; write the values into it")


# -- checks ----------------------------------------------------------------------------------------


def _typed(kind: onnx.TypeProto, value: object, what: str):
    """Return a value as ONNX Runtime takes it; raise RLFlowError if it is not of the declared type.

    Args:
      kind: the declared type.
      value: an array, a list of arrays, or None.
      what: the value in words, for messages.
    """
    form = kind.WhichOneof("value")
    if form == "optional_type":
        return None if value is None else _typed(kind.optional_type.elem_type, value, what)
    if form == "sequence_type":
        if not isinstance(value, list | tuple):
            raise RLFlowError(f"{what} is a sequence; give its elements as NAME.0, NAME.1, … or a list of arrays")
        return [_typed(kind.sequence_type.elem_type, one, what) for one in value]
    if form != "tensor_type":
        raise RLFlowError(f"{what} is not a tensor, and values of its type cannot be given")
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    declared = kind.tensor_type.elem_type
    if declared == onnx.TensorProto.STRING:
        if array.dtype.kind not in "USO":
            raise RLFlowError(f"{what} is {array.dtype}, the model takes strings")
        return _strings(array)
    wanted = helper.tensor_dtype_to_np_dtype(declared)
    if array.dtype != wanted:
        raise RLFlowError(f"{what} is {array.dtype}, the model takes {wanted}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _strings(array: np.ndarray) -> np.ndarray:
    words = [w.decode(errors="replace") if isinstance(w, bytes) else str(w) for w in array.reshape(-1).tolist()]
    return np.array(words, object).reshape(array.shape)


def _sizes(
    model: onnx.ModelProto, ports: Sequence[onnx.ValueInfoProto], arrays: Mapping[str, object], name: str
) -> dict[str, int]:
    """Return symbol → size in the arrays; raise RLFlowError if a shape contradicts the model or another shape."""
    symbols = Symbols(ports, model.graph.node, {})
    axes = [
        (value.name, axis, size, given)
        for value in ports
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
        for axis, (size, given) in enumerate(_paired(value.name, symbols.shape_of(value), arrays[value.name], name))
    ]
    sizes: dict[str, int] = {}
    for _, _, size, given in sorted(axes, key=lambda axis: _is_sum(axis[2])):  # single symbols first
        sizes = _solved(size, given) | sizes
    for port, axis, size, given in axes:
        if all(symbol in sizes for symbol in symbols_of(size)) and at(size, sizes) != given:
            wanted = f"{at(size, sizes)}" + ("" if type(size) is int else f" (= {size})")
            raise RLFlowError(f"{name}: axis {axis} of input '{port}' has size {given}, it must be {wanted}")
    for symbol, least in symbols.least.items():
        if sizes.get(symbol, least) < least:
            raise RLFlowError(f"{name}: '{symbol}' has size {sizes[symbol]}, and rewrites hold for sizes from {least}")
    return {symbol: sizes[symbol] for symbol in symbols.least if symbol in sizes}


def _paired(port: str, declared: Sequence, array: np.ndarray, name: str) -> Iterator[tuple]:
    if len(declared) != array.ndim:
        raise RLFlowError(
            f"{name}: input '{port}' has the shape {list(array.shape)}, the model takes {len(declared)} dimensions"
        )
    return zip(declared, array.shape, strict=True)


def _is_sum(size: Dim | int) -> bool:
    return len(symbols_of(size)) > 1


def _solved(size: Dim | int, given: int) -> dict[str, int]:
    """Return {s: value} if the size k·s of an axis determines its only symbol s."""
    found = multiple(size)
    return {found[0]: given // found[1]} if found and given % found[1] == 0 else {}
