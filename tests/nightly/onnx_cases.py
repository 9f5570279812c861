"""The backend tests of the onnx package: loading of models and data, runs in ONNX Runtime, comparison of values.

A value is an array, a list of values (an ONNX sequence), or None (an empty optional). Data types that NumPy lacks
come from ml_dtypes, as in `onnx.numpy_helper`.
"""

import ctypes
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.random_numbers import RANDOM_OPS

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
ONNX_FOLDER = Path(onnx.__file__).parent.parent
# Data types that ONNX Runtime exchanges with NumPy; values of other data types are copied byte by byte.
SHARED = {getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)} | {
    TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.STRING,
}  # fmt: skip


class Case(NamedTuple):
    """A backend test.

    Attributes:
        kind: one of KINDS.
        name: name of the test.
        model: the model.
        data_sets: pairs (inputs, expected outputs).
        rtol, atol: relative and absolute tolerance of the test.
    """

    kind: str
    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[list, list]]
    rtol: float
    atol: float

    @property
    def random(self) -> bool:
        """True if an operator of the model draws random numbers."""
        return any(node.op_type in RANDOM_OPS or _trains(node) for node in _all_nodes(self.model))


class Difference(Exception):
    """Raised if two values differ that should be equal; the message describes the difference."""


def _trains(node: onnx.NodeProto) -> bool:
    return node.op_type == "Dropout" and len(node.input) > 2


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph, of its subgraphs and of the model's functions."""
    stack = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            stack += [inner for graph in (attribute.g, *attribute.graphs) for inner in graph.node]


# -- loading ---------------------------------------------------------------------------------------


def load_cases(kinds: Iterable[str] = KINDS) -> Iterator[Case]:
    """Yield the backend tests of some kinds, sorted by name within a kind.

    Tests whose model is not part of the onnx package are left out.

    Args:
        kinds: some of KINDS.
    """
    for kind in kinds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # node tests compute their data as they are loaded
            tests = load_model_tests(kind=kind)
        for test in sorted(tests, key=lambda test: test.name):
            if test.model is not None:
                model, data_sets = test.model, test.data_sets
            elif test.model_dir is not None:
                model, data_sets = _from_folder(Path(test.model_dir))
            elif (ONNX_FOLDER / test.url).exists():
                model, data_sets = _light(ONNX_FOLDER / test.url)
            else:
                continue
            data_sets = [tuple([_value(v) for v in values] for values in data_set) for data_set in data_sets]
            yield Case(kind, test.name, model, data_sets, test.rtol, test.atol)


def _from_folder(folder: Path) -> tuple[onnx.ModelProto, list]:
    model = onnx.load(folder / "model.onnx")
    sides = ("input", model.graph.input), ("output", model.graph.output)
    return model, [
        tuple(
            [_read(data / f"{side}_{k}.pb", value.type) for k, value in enumerate(values)
             if (data / f"{side}_{k}.pb").exists()]
            for side, values in sides
        )
        for data in sorted(folder.glob("test_data_set*"))
    ]  # fmt: skip


def _light(path: Path) -> tuple[onnx.ModelProto, list]:
    """Return a light model (a network of the ONNX model zoo with constant weights) and its only data set.

    The inputs are generated in the way in which the onnx package generated them for the expected outputs.
    """
    model = onnx.load(path)
    initialised = {tensor.name for tensor in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in model.graph.input if v.name not in initialised]
    expected = sorted(path.parent.glob(f"{path.stem}_output_*.pb"))
    outputs = [_read(file, value.type) for file, value in zip(expected, model.graph.output, strict=True)]
    return model, [(inputs, outputs)]


def _read(path: Path, kind: onnx.TypeProto):
    proto = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}.get(
        kind.WhichOneof("value"), onnx.TensorProto
    )
    return proto.FromString(path.read_bytes())


def _value(value):
    match value:
        case onnx.SequenceProto():
            return numpy_helper.to_list(value)
        case onnx.OptionalProto():
            return numpy_helper.to_optional(value)
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case list() | tuple():
            return [_value(item) for item in value]
    return None if value is None else np.asarray(value)


# -- running ---------------------------------------------------------------------------------------


def outputs_of(model: onnx.ModelProto, inputs: Sequence) -> list:
    """Run a model in ONNX Runtime and return its outputs.

    Args:
        model: the model.
        inputs: values of the inputs, in the model's order.

    Raises:
        RLFlowError: ONNX Runtime does not run the model.
    """
    running = session(model, threads=1)
    feeds = {value.name: given for value, given in zip(running.get_inputs(), inputs, strict=False)}
    declared = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    if all(not kind or kind in SHARED for kind in declared):
        return run(running, feeds)
    try:
        given = {name: _to_runtime(value) for name, value in feeds.items()}
        return [_from_runtime(value) for value in running.run_with_ort_values(None, given)]
    except Exception as error:  # the exception classes of ONNX Runtime are undocumented
        raise RLFlowError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def _to_runtime(array: np.ndarray) -> onnxruntime.OrtValue:
    proto = numpy_helper.from_array(array)
    if proto.data_type in SHARED:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, proto.data_type)
    ctypes.memmove(value.data_ptr(), proto.raw_data, len(proto.raw_data))
    return value


def _from_runtime(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.element_type() in SHARED:
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return numpy_helper.to_array(TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=raw))


# -- comparing -------------------------------------------------------------------------------------


def compare(expected, result, rtol: float, atol: float, values: bool = True) -> None:
    """Raise Difference if two values differ in structure, data type, shape or elements.

    Floating-point elements may differ by atol + rtol × the largest finite element of the tensor. NaN and infinities
    must be at the same indices. Other elements must be equal. If rtol and atol are 0, all bits must be equal.

    Args:
        expected: the expected value.
        result: the value to check.
        rtol: relative tolerance.
        atol: absolute tolerance.
        values: False to ignore the elements.
    """
    if isinstance(expected, list) and isinstance(result, list):
        if len(expected) != len(result):
            raise Difference(f"{len(result)} values, not {len(expected)}")
        for a, b in zip(expected, result, strict=True):
            compare(a, b, rtol, atol, values)
        return
    if expected is None or result is None or isinstance(expected, list) or isinstance(result, list):
        if expected is not result:
            raise Difference(f"{type(result).__name__}, not {type(expected).__name__}")
        return
    expected, result = np.asarray(expected), np.asarray(result)
    if (expected.dtype, expected.shape) != (result.dtype, result.shape):
        raise Difference(f"{result.dtype}{list(result.shape)}, not {expected.dtype}{list(expected.shape)}")
    if values and not _equal(expected, result, rtol, atol):
        raise Difference(_how(expected, result))


def flat(values: list) -> list[np.ndarray]:
    """Return the arrays in a list of values and, recursively, in its sequences; empty optionals are left out."""
    return [a for value in values for a in (flat(value) if isinstance(value, list) else [value]) if a is not None]


def _equal(expected: np.ndarray, result: np.ndarray, rtol: float, atol: float) -> bool:
    if expected.dtype.kind in "OSU":
        return expected.tolist() == result.tolist()
    if not (rtol or atol):
        return expected.tobytes() == result.tobytes()
    if not is_float(expected.dtype):
        return np.array_equal(expected, result)
    a, b = expected.astype(np.float64), result.astype(np.float64)
    finite = np.isfinite(a)
    scale = np.abs(a[finite]).max(initial=0)
    return np.array_equal(a[~finite], b[~finite], equal_nan=True) and bool(
        (np.abs(a[finite] - b[finite]) <= atol + rtol * scale).all()
    )


def is_float(dtype: np.dtype) -> bool:
    """Return True for floating-point types of 16 bits or more; elements of narrower types must be equal."""
    return helper.np_dtype_to_tensor_dtype(dtype) in (
        TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE
    )  # fmt: skip


def _how(expected: np.ndarray, result: np.ndarray) -> str:
    if expected.dtype.kind in "OSUb":
        return "other values"
    with np.errstate(all="ignore"):
        error = np.abs(expected.astype(np.float64) - result.astype(np.float64))
    return f"off by {np.nanmax(error, initial=0):.3g}"
