"""Every axiom of rlflow.prover.semantics, against ONNX's reference implementation on small shapes and attributes."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from rlflow.prover.numbers import Invalid, floats
from rlflow.prover.semantics import OPERATORS, Attributes, Tensor, outputs_of

OPSET = 22
SMALL = [(), (1,), (3,), (2, 3), (2, 1, 3), (2, 1, 3, 2)]


def reference(op: str, arrays: list, attributes: dict, n_outputs: int = 1) -> list[np.ndarray]:
    """What ONNX says of float64 inputs (None: absent)."""
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    outputs = [f"o{k}" for k in range(n_outputs)]
    node = helper.make_node(op, names, outputs, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True) if n
    ]  # fmt: skip
    found = [helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, None) for n in outputs]
    graph = helper.make_graph([node], "one", inputs, found)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if n}
    if op in ("MaxPool", "GlobalMaxPool") or attributes.get("ceil_mode"):  # where the reference implementation fails or reads beside x
        return run_by_runtime(model, feeds)
    return ReferenceEvaluator(model).run(None, feeds)


def run_by_runtime(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    import onnxruntime

    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: array.astype(np.float32) for name, array in feeds.items()})


def defined(op: str, arrays: list, attributes: dict) -> list[np.ndarray]:
    """What the axiom says."""
    known = {k: v.encode() if isinstance(v, str) else v for k, v in attributes.items()}
    tensors = [as_tensor(a) for a in arrays]
    return [as_array(t) for t in outputs_of(floats(), op, Attributes(known), tensors)]


def as_tensor(array: np.ndarray | None) -> Tensor | None:
    if array is None:
        return None
    content = tuple(array.reshape(-1).tolist()) if array.dtype.kind == "i" else None
    return Tensor(array.shape, lambda i: float(array[i]), array.dtype.kind == "f", content)


def as_array(tensor: Tensor) -> np.ndarray:
    made = np.empty(tensor.shape)
    for index in itertools.product(*map(range, tensor.shape)):
        made[index] = tensor.at(index)
    return made


def numbers(*shape: int, positive: bool = False) -> np.ndarray:
    """Distinct multiples of 1/4, so that sums and products of a few are exact."""
    count = int(np.prod(shape))
    order = np.random.default_rng(count).permutation(count) + 1
    return (order / 4 * (1 if positive else np.where(order % 2, 1, -1))).reshape(shape)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def agrees(op: str, arrays: list, attributes: dict, n_outputs: int = 1) -> bool:
    """Asserts that both say the same; False where the inputs fit in neither opinion."""
    shown = f"{op} {attributes} {[a.shape for a in arrays if a is not None]}"
    try:
        wanted = reference(op, arrays, attributes, n_outputs)
    except Exception:  # the reference implementation raises whatever NumPy does
        with pytest.raises(Invalid):
            defined(op, arrays, attributes)
        return False
    found = defined(op, arrays, attributes)
    assert [f.shape for f in found] == [w.shape for w in wanted], shown
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-6, atol=1e-6, err_msg=shown)
    return True


UNARY = ("Identity", "Relu", "Neg", "Abs", "Exp", "Erf", "Tanh", "Sigmoid", "HardSwish", "Dropout")
POSITIVE = ("Sqrt", "Log", "Reciprocal")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")


def cases():
    for op, shape in itertools.product(UNARY, SMALL):
        yield op, [numbers(*shape)], {}
    for op, shape in itertools.product(POSITIVE, SMALL):
        yield op, [numbers(*shape, positive=True)], {}
    for op, a, b in itertools.product(BINARY, SMALL, SMALL):
        yield op, [numbers(*a), numbers(*b)], {}
    for power in (0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0):
        yield "Pow", [numbers(2, 3, positive=True), np.asarray(power)], {}
    for alpha in (0.01, 0.5):
        yield "LeakyRelu", [numbers(2, 3)], {"alpha": alpha}
        yield "HardSigmoid", [numbers(3, 5)], {"alpha": alpha, "beta": 0.5}
    for approximate in ("none", "tanh"):
        yield "Gelu", [numbers(2, 3)], {"approximate": approximate}
    for low, high in itertools.product((None, -0.5), (None, 0.75)):
        bounds = [None if b is None else np.asarray(b) for b in (low, high)]
        yield "Clip", [numbers(3, 3), *(bounds if high is not None else bounds[:1])], {}
    yield from layout()
    yield from sums()
    yield from windows()


def layout():
    for rank in range(1, 5):
        x = numbers(*range(2, 2 + rank))
        for perm in itertools.permutations(range(rank)):
            yield "Transpose", [x], {"perm": perm}
        for axis in range(rank + 1):
            yield "Flatten", [x], {"axis": axis}
        for axis in range(-rank, rank):
            yield "Concat", [x, x + 1, x + 2], {"axis": axis}
            yield "Unsqueeze", [x, ints(axis)], {}
            size = x.shape[axis]
            yield "Split", [x, ints(1, size - 1)], {"axis": axis}
            for start, end, step in itertools.product((-9, -1, 0, 1), (-1, 1, 9), (1, 2)):
                yield "Slice", [x, ints(start), ints(end), ints(axis), ints(step)], {}
    for wanted in ((6, 4), (0, -1), (-1,), (4, 0, -1), (2, 3, 4, 1), (3, -1, 2)):
        yield "Reshape", [numbers(2, 3, 4), ints(*wanted)], {}
    for axes in ((0,), (2,), (0, 2), (-2,)):
        yield "Squeeze", [numbers(1, 3, 1), ints(*axes)], {}
    yield "Unsqueeze", [numbers(2, 3), ints(0, 2)], {}
    yield "Expand", [numbers(2, 1), ints(3, 1, 4)], {}
    for pads in ((0, 1, 2, 0), (1, 0, 0, 2)):
        yield "Pad", [numbers(2, 3), ints(*pads)], {}
        yield "Pad", [numbers(2, 3), ints(*pads), np.asarray(1.5)], {}


def sums():
    shapes = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((2, 2, 3), (3, 4)), ((2, 1, 2, 3), (3, 3, 2))]
    for a, b in shapes:
        yield "MatMul", [numbers(*a), numbers(*b)], {}
    for a, b in itertools.product((0, 1), repeat=2):
        x, y = numbers(2, 3), numbers(3, 4)
        for bias in ((4,), (2, 1), (1,), ()):
            arrays = [x.T.copy() if a else x, y.T.copy() if b else y, numbers(*bias)]
            yield "Gemm", arrays, {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0}
    for op, keep in itertools.product(REDUCTIONS, (0, 1)):
        for axes in ((0,), (1,), (-1,), (0, 2), (0, 1, 2)):
            yield op, [numbers(2, 3, 4), ints(*axes)], {"keepdims": keep}
        yield op, [numbers(2, 3)], {"keepdims": keep}
    for op, axis in itertools.product(("Softmax", "LogSoftmax"), (0, 1, -1)):
        yield op, [numbers(2, 3)], {"axis": axis}
    for shape in ((2, 3, 2), (2, 3, 2, 2)):
        yield "GlobalAveragePool", [numbers(*shape)], {}
        yield "GlobalMaxPool", [numbers(*shape)], {}
    for shape in ((2, 3), (2, 3, 2), (1, 3, 2, 2)):
        statistics = [numbers(3), numbers(3) + 1, numbers(3), numbers(3, positive=True)]
        yield "BatchNormalization", [numbers(*shape), *statistics], {"epsilon": 0.25}
    for axis in (-1, 1, 2):
        shape = (2, 3, 4)[axis:]
        yield "LayerNormalization", [numbers(2, 3, 4), numbers(*shape), numbers(*shape)], {"axis": axis, "epsilon": 0.25}
    yield "LayerNormalization", [numbers(2, 4), numbers(4)], {}


def windows():
    options = itertools.product((1, 2, 3), (1, 2), (1, 2), ((0, 0), (1, 0), (1, 1)))
    for kernel, stride, dilation, pads in options:
        a = {"strides": [stride], "dilations": [dilation], "pads": list(pads)}
        yield "Conv", [numbers(2, 4, 6), numbers(4, 2, kernel), numbers(4)], a | {"group": 2}
        if max(pads) < kernel:
            yield "MaxPool", [numbers(1, 2, 6)], a | {"kernel_shape": [kernel]}
            for counted in (0, 1):
                yield "AveragePool", [numbers(1, 2, 6)], a | {"kernel_shape": [kernel], "count_include_pad": counted}
    for automatic, kernel, stride in itertools.product(("SAME_UPPER", "SAME_LOWER", "VALID"), (2, 3), (1, 2)):
        a = {"auto_pad": automatic, "strides": [stride, 1]}
        yield "Conv", [numbers(1, 2, 5, 4), numbers(3, 2, kernel, 2)], a
        yield "MaxPool", [numbers(1, 2, 5, 4)], a | {"kernel_shape": [kernel, 2]}
    for size, kernel, stride in itertools.product((4, 5, 6), (2, 3), (2, 3)):
        yield "MaxPool", [numbers(1, 1, size)], {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": 1}
        yield "AveragePool", [numbers(1, 1, size)], {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": 1}


CASES = list(cases())


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_an_axiom_is_what_onnx_says(op):
    mine = [(arrays, attributes) for name, arrays, attributes in CASES if name == op]
    assert sum(agrees(op, arrays, attributes, 2 if op == "Split" else 1) for arrays, attributes in mine) > 0
