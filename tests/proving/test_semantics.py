"""Compare every axiom of rlflow.proving.semantics with ONNX's reference implementation, on small shapes.

Windows, Pad and the operators of com.microsoft are compared with ONNX Runtime: the latter have no reference
implementation, and for the former the reference implementation differs in some cases.
"""

import itertools
import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from rlflow.proving.decisions import Budget
from rlflow.proving.integers import Reshapes
from rlflow.proving.numbers import REAL, Invalid, Numbers
from rlflow.proving.semantics import OPERATORS, STANDARD, Attributes, outputs_of
from rlflow.proving.tensors import Tensor
from tests.suite import at_night, each_of

OPSET, OPSETS = 23, {"DFT": 17}  # of operators whose attributes are inputs later, the last opset before
SMALL = [(), (1,), (3,), (2, 3), (2, 1, 3), (2, 1, 3, 2)]
BY_RUNTIME = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "Pad", "Resize")
EXACT, SINGLE = 1e-6, 2e-5  # tolerances of float64 and float32


def model_of(op: str, arrays: list, attributes: dict, n_outputs: int) -> tuple[onnx.ModelProto, dict]:
    """Return a model of one operator and the inputs to feed it; None marks an absent input."""
    domain = "com.microsoft" if op not in STANDARD else ""
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    outputs = [f"o{k}" for k in range(n_outputs)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if n}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    result = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    opsets = [helper.make_opsetid("", OPSETS.get(op, OPSET)), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph([node], "one", inputs, result), opset_imports=opsets, ir_version=10
    ), feeds


def authority(op: str, arrays: list, attributes: dict, n_outputs: int = 1) -> tuple[list[np.ndarray], float]:
    """Run the operator in its implementation.

    Returns:
      the outputs and the tolerance of the comparison.
    """
    if op in STANDARD and op not in BY_RUNTIME:
        model, feeds = model_of(op, arrays, attributes, n_outputs)
        return ReferenceEvaluator(model).run(None, feeds), EXACT
    single = [a.astype(np.float32) if a is not None and a.dtype.kind == "f" else a for a in arrays]
    model, feeds = model_of(op, single, attributes, n_outputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds), SINGLE


class Waves(Numbers):
    """The algebra of floats with the elements of the Fourier matrix, which axioms leave unknown."""

    def element(self, name: str, index: tuple) -> float:
        assert name == "wave"
        position, k, size, part = index
        angle = 2 * math.pi * position * k / size
        return -math.sin(angle) if part else math.cos(angle)


def defined(op: str, arrays: list, attributes: dict) -> list[np.ndarray]:
    """Return the outputs that the axiom defines."""
    known = {k: v.encode() if isinstance(v, str) else v for k, v in attributes.items()}
    tensors = [as_tensor(a) for a in arrays]
    return [as_array(t) for t in outputs_of(Waves(float, REAL), op, Attributes(known), tensors)]


def as_tensor(array: np.ndarray | None) -> Tensor | None:
    if array is None:
        return None
    whole = array.dtype.kind == "i"
    scales = array.dtype == np.float32 and np.array_equal(array, np.round(array))  # the scales of a Resize
    content = tuple(map(int, array.reshape(-1))) if whole or scales else None
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return Tensor(array.shape, lambda i: int(array[i]) if whole else float(array[i]), dtype, content)


def as_array(tensor: Tensor) -> np.ndarray:
    made = np.empty(tensor.shape)
    for index in itertools.product(*map(range, tensor.shape)):
        made[index] = tensor.at(index)
    return made


def numbers(*shape: int, positive: bool = False) -> np.ndarray:
    """Return distinct multiples of 1/4, so that sums and products of a few are exact."""
    count = int(np.prod(shape))
    order = np.random.default_rng(count).permutation(count) + 1
    return (order / 4 * (1 if positive else np.where(order % 2, 1, -1))).reshape(shape)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def agrees(op: str, arrays: list, attributes: dict, n_outputs: int = 1) -> bool:
    """Assert that axiom and implementation agree; return False if both refuse the inputs."""
    shown = f"{op} {attributes} {[a.shape for a in arrays if a is not None]}"
    try:
        wanted, tolerance = authority(op, arrays, attributes, n_outputs)
    except Exception:  # implementations raise exceptions of any type
        with pytest.raises(Invalid):
            defined(op, arrays, attributes)
        return False
    result = defined(op, arrays, attributes)
    assert [f.shape for f in result] == [w.shape for w in wanted], shown
    for f, w in zip(result, wanted, strict=True):
        np.testing.assert_allclose(f, w.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=shown)
    return True


UNARY = ("Identity", "Relu", "Neg", "Abs", "Exp", "Erf", "Sin", "Tanh", "Sigmoid", "HardSwish", "Dropout")
POSITIVE = ("Sqrt", "Log", "Reciprocal")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2")


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
        yield "Elu", [numbers(2, 3)], {"alpha": alpha}
        yield "HardSigmoid", [numbers(3, 5)], {"alpha": alpha, "beta": 0.5}
    for approximate in ("none", "tanh"):
        yield "Gelu", [numbers(2, 3)], {"approximate": approximate}
    for low, high in itertools.product((None, -0.5), (None, 0.75)):
        bounds = [None if b is None else np.asarray(b) for b in (low, high)]
        yield "Clip", [numbers(3, 3), *(bounds if high is not None else bounds[:1])], {}
    for array in (numbers(2, 3), ints(-3, 0, 200), np.asarray([True, False]), numbers(3).astype(np.float32) / 3):
        for to in (
            TensorProto.FLOAT,
            TensorProto.FLOAT16,
            TensorProto.DOUBLE,
            TensorProto.INT32,
            TensorProto.INT64,
            TensorProto.BOOL,
        ):
            yield "Cast", [array], {"to": to}
    for a, b in itertools.product(SMALL, SMALL):
        yield "Equal", [np.round(numbers(*a)), np.round(numbers(*b))], {}
        yield "And", [numbers(*a) > 0, numbers(*b) > 1], {}
    for shape in SMALL:
        yield "Where", [np.asarray([True, False, True]), numbers(*shape), numbers(3, 1)], {}
    yield from layout()
    yield from sums()
    yield from windows()
    yield from transposed_windows()
    yield from attentions()
    yield from fused()


def layout():
    for rank in range(1, 5):
        x = numbers(*range(2, 2 + rank))
        yield "Shape", [x], {}
        for start, end in itertools.product((0, 1, -1, -9), (1, -1, 9)):
            yield "Shape", [x], {"start": start, "end": end}
        for perm in itertools.permutations(range(rank)):
            yield "Transpose", [x], {"perm": perm}
        for axis in range(rank + 1):
            yield "Flatten", [x], {"axis": axis}
        for axis in range(-rank, rank):
            yield "Concat", [x, x + 1, x + 2], {"axis": axis}
            yield "Unsqueeze", [x, ints(axis)], {}
            size = x.shape[axis]
            yield "Split", [x, ints(1, size - 1)], {"axis": axis}
            for start, end, step in itertools.product((-9, -1, 0, 1, 9), (-9, -1, 1, 9), (1, 2, -1, -2)):
                if (
                    start >= -size or step > 0
                ):  # Otherwise ONNX's reference starts before the axis, unlike ONNX's text.
                    yield "Slice", [x, ints(start), ints(end), ints(axis), ints(step)], {}
    for wanted in ((6, 4), (0, -1), (-1,), (4, 0, -1), (2, 3, 4, 1), (3, -1, 2)):
        yield "Reshape", [numbers(2, 3, 4), ints(*wanted)], {}
    for axes in ((0,), (2,), (0, 2), (-2,)):
        yield "Squeeze", [numbers(1, 3, 1), ints(*axes)], {}
    yield "Unsqueeze", [numbers(2, 3), ints(0, 2)], {}
    yield "Expand", [numbers(2, 1), ints(3, 1, 4)], {}
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    yield "Resize", [numbers(2, 3, 1, 1), None, None, ints(2, 3, 4, 5)], nearest
    yield from resizes()
    yield "IsNaN", [numbers(2, 3)], {}
    for pads in ((0, 1, 2, 0), (1, 0, 0, 2)):
        yield "Pad", [numbers(2, 3), ints(*pads)], {}
        yield "Pad", [numbers(2, 3), ints(*pads), np.asarray(1.5)], {}
    for pads, axes in itertools.product(((0, 1), (-1, 2), (1, -1)), (0, 1, -1)):
        yield "Pad", [numbers(3, 2), ints(*pads), np.asarray(0.5), ints(axes)], {}
        yield "Pad", [numbers(3, 2), ints(*pads, 0, 0), None, ints(axes, axes + 1)], {}
    for mode in ("constant", "edge", "reflect", "wrap"):
        yield "Pad", [numbers(3, 2), ints(0, 0, 0, 0)], {"mode": mode}
        yield "Pad", [numbers(3, 4), ints(1, 3, 2, 2)], {"mode": mode}
        yield "Pad", [numbers(3, 4), ints(-1, 2, 1, -1)], {"mode": mode}
    for begin, end in itertools.product((-4, -3, 0, 2, 3, 9), repeat=2):
        for mode in ("edge", "reflect", "wrap"):
            yield "Pad", [numbers(4), ints(begin, end)], {"mode": mode}
    for shape, repeats in (((2,), (3,)), ((2, 3), (2, 1)), ((2, 3), (1, 3))):
        yield "Tile", [numbers(*shape), ints(*repeats)], {}
    for axis, indices in itertools.product((0, 1, 2, -1), (1, -1, [1, 0], [-2, 1, 1], [[0, -1], [1, 0]], 3, [0, -4])):
        yield "Gather", [numbers(2, 3, 2), np.asarray(indices, np.int64)], {"axis": axis}
    for n, (channels, height, width) in itertools.product((1, 2, 3), ((4, 2, 4), (9, 6, 3), (2, 4, 4))):
        yield "SpaceToDepth", [numbers(2, channels, height, width)], {"blocksize": n}
        for mode in ("DCR", "CRD"):
            yield "DepthToSpace", [numbers(2, channels, height, width)], {"blocksize": n, "mode": mode}


def resizes():
    x, y = numbers(1, 2, 3, 2), numbers(2, 1, 3)
    places = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")
    for place, rounding in itertools.product(places, ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")):
        a = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
        yield "Resize", [x, None, np.float32([1, 1, 2, 2])], a
        yield "Resize", [x, None, None, ints(1, 2, 9, 2)], a
        yield "Resize", [y, None, np.float32([1, 1, 4])], a
    for place in places:
        a = {"mode": "linear", "coordinate_transformation_mode": place}
        yield "Resize", [x, None, np.float32([1, 1, 2, 3])], a
        yield "Resize", [x, None, None, ints(1, 2, 12, 2)], a


def sums():
    shapes = [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((2, 2, 3), (3, 4)),
        ((2, 1, 2, 3), (3, 3, 2)),
    ]
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
    for equation, *shapes in (
        ("ab,bc->ac", (2, 3), (3, 4)), ("abc,adc->adb", (2, 3, 4), (2, 2, 4)), ("ab,b->ba", (2, 3), (3,)),
        ("ab,cb", (2, 3), (4, 3)), ("ab->b", (2, 3)), ("a, ab, bc -> c", (2,), (2, 3), (3, 2)),
    ):  # fmt: skip
        yield "Einsum", [numbers(*shape) for shape in shapes], {"equation": equation}
    for axis, keep, last in itertools.product((0, 1, -1), (0, 1), (0, 1)):
        for array in (numbers(2, 3), np.zeros((2, 3))):
            yield "ArgMax", [array], {"axis": axis, "keepdims": keep, "select_last_index": last}
    for op, axis in itertools.product(("Softmax", "LogSoftmax"), (0, 1, -1)):
        yield op, [numbers(2, 3)], {"axis": axis}
    for shape in ((2, 3, 2), (2, 3, 2, 2)):
        yield "GlobalAveragePool", [numbers(*shape)], {}
        yield "GlobalMaxPool", [numbers(*shape)], {}
    for shape in ((2, 3), (2, 3, 2), (1, 3, 2, 2)):
        statistics = [numbers(3), numbers(3) + 1, numbers(3), numbers(3, positive=True)]
        yield "BatchNormalization", [numbers(*shape), *statistics], {"epsilon": 0.25}
    for shape, groups in (((2, 3, 4), 3), ((2, 4, 3), 2), ((1, 4, 2, 3), 2)):
        arrays = [numbers(*shape), numbers(shape[1]), numbers(shape[1]) + 1]
        yield "InstanceNormalization", arrays, {"epsilon": 0.25}
        yield "GroupNormalization", arrays, {"epsilon": 0.25, "num_groups": groups}
    for axis in (-1, 1, 2):
        shape = (2, 3, 4)[axis:]
        yield (
            "LayerNormalization",
            [numbers(2, 3, 4), numbers(*shape), numbers(*shape)],
            {"axis": axis, "epsilon": 0.25},
        )
        yield "RMSNormalization", [numbers(2, 3, 4), numbers(*shape)], {"axis": axis, "epsilon": 0.25}
    yield "LayerNormalization", [numbers(2, 4), numbers(4)], {}
    yield "RMSNormalization", [numbers(2, 4), numbers(4)], {}


AUTOMATIC = ("SAME_UPPER", "SAME_LOWER", "VALID")


def windows():
    for kernel, stride, dilation, pads in itertools.product((1, 2, 3), (1, 2), (1, 2), ((0, 0), (1, 0), (1, 1))):
        a = {"strides": [stride], "dilations": [dilation], "pads": list(pads)}
        yield "Conv", [numbers(2, 4, 6), numbers(4, 2, kernel), numbers(4)], a | {"group": 2}
    for automatic, kernel, stride in itertools.product(AUTOMATIC, (1, 2, 3), (1, 2, 3)):
        yield "Conv", [numbers(1, 2, 5, 4), numbers(3, 2, kernel, 2)], {"auto_pad": automatic, "strides": [stride, 1]}
    yield "Conv", [numbers(1, 2, 5), numbers(3, 2, 2)], {"auto_pad": "SAME_UPPER", "dilations": [2]}
    paddings = [{"pads": pads} for pads in ([0, 0], [1, 0], [0, 1], [1, 1])] + [
        {"auto_pad": kind} for kind in AUTOMATIC
    ]
    lines = itertools.product(paddings, (3, 5, 6), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1))
    for padding, size, kernel, stride, dilation, ceil in lines:
        if size > (kernel - 1) * dilation and ("pads" in padding or kernel >= stride):
            a = padding | {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation], "ceil_mode": ceil}
            if "SAME" not in padding.get("auto_pad", "") or size > (kernel - 1) * dilation + 1:
                yield "MaxPool", [numbers(1, 1, size)], a
                for counted in (0, 1):
                    yield "AveragePool", [numbers(1, 1, size)], a | {"count_include_pad": counted}
    for automatic, ceil in itertools.product(AUTOMATIC, (0, 1)):
        a = {"auto_pad": automatic, "kernel_shape": [2, 3], "strides": [2, 1], "ceil_mode": ceil}
        yield "MaxPool", [numbers(1, 2, 5, 4)], a
        yield "AveragePool", [numbers(1, 2, 5, 4)], a


def transposed_windows():
    for kernel, stride, dilation, pads in itertools.product((1, 2, 3), (1, 2, 3), (1, 2), ((0, 0), (1, 0), (0, 1))):
        a = {"strides": [stride], "dilations": [dilation], "pads": list(pads)}
        yield "ConvTranspose", [numbers(2, 4, 3), numbers(4, 3, kernel), numbers(6)], a | {"group": 2}
        yield "ConvTranspose", [numbers(1, 2, 3), numbers(2, 1, kernel)], a | {"output_padding": [1]}
    for automatic, kernel, stride, more in itertools.product(AUTOMATIC, (1, 2, 3, 4), (1, 2, 3), (0, 1)):
        a = {"auto_pad": automatic, "strides": [stride, 1], "output_padding": [more, 0]}
        yield "ConvTranspose", [numbers(1, 2, 3, 2), numbers(2, 1, kernel, 2)], a
    for automatic, wanted in itertools.product(("NOTSET", *AUTOMATIC), (3, 4, 5, 6)):
        yield (
            "ConvTranspose",
            [numbers(1, 1, 3), numbers(1, 2, 2)],
            {"auto_pad": automatic, "strides": [2], "output_shape": [wanted]},
        )


def attentions():
    q, k, v = numbers(2, 4, 3, 2) / 8, numbers(2, 2, 5, 2) / 8, numbers(2, 2, 5, 3) / 8
    for scale in ({}, {"scale": 0.25}):
        yield "Attention", [q, k, v], scale
        yield "Attention", [q[:, :2].copy(), k, v], scale
        for heads in (1, 2, 3):
            arrays = [numbers(2, 3, 4) / 8, numbers(2, 5, 4) / 8, numbers(2, 5, 6) / 8]
            yield "MultiHeadAttention", arrays, scale | {"num_heads": heads}


def fused():
    shapes = [
        ((2, 3), (3, 4)),
        ((3, 2), (4, 3)),
        ((2, 2, 3), (3, 3)),
        ((2, 3, 3), (2, 3, 3)),
        ((3,), (3, 3)),
        ((3, 3), (3,)),
        ((2, 3), (3,)),
    ]
    for (a, b), left, right in itertools.product(shapes, (0, 1), (0, 1)):
        yield "FusedMatMul", [numbers(*a), numbers(*b)], {"transA": left, "transB": right, "alpha": 0.5}
    for activation, parameters in (
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.25]),
        ("HardSigmoid", [0.5, 0.25]),
    ):
        named = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
        yield "FusedGemm", [numbers(2, 3), numbers(3, 4), numbers(4)], {"activation": activation} | named
        if parameters:
            named = {"activation_params": parameters}
        x, w = numbers(2, 4, 5, 5) / 16, numbers(4, 2, 3, 3) / 16
        yield "FusedConv", [x, w, numbers(4)], {"activation": activation, "group": 2, "pads": [1, 0, 0, 1]} | named
        yield "FusedConv", [x, w, numbers(4), numbers(2, 4, 3, 3)], {"activation": activation, "group": 2} | named
    yield (
        "FusedConv",
        [numbers(1, 1, 4, 4), numbers(2, 1, 3, 3)],
        {"activation": "Clip", "activation_params": [-1.0, 2.0]},
    )
    for size, onesided in itertools.product((1, 4, 5), (0, 1)):
        yield "DFT", [numbers(2, size, 1)], {"axis": 1, "onesided": onesided}
        yield "STFT", [numbers(2, 9, 1), ints(2)[0], numbers(size), ints(size)[0]], {"onesided": onesided}
    yield "STFT", [numbers(2, 9, 1), ints(2)[0], numbers(4), ints(4)[0]], {}
    x, updates = numbers(3, 2), numbers(2, 2)
    for rows in ((0, 2), (1, 1), (-1, 0)):
        indices = np.repeat(ints(*rows)[:, None], 2, 1)
        yield "ScatterElements", [x, indices, updates], {"axis": 0, "reduction": "add"}
        yield "ScatterElements", [x, np.array([[0, 1], [2, 0]]), updates], {"reduction": "add"}
        yield "ScatterND", [x, ints(*rows)[:, None], updates], {"reduction": "add"}
    for shape in ((2, 3), (2, 1, 3)):
        yield "QuickGelu", [numbers(*shape)], {"alpha": 1.5}
        yield "QuickGelu", [numbers(*shape)], {}
        yield "BiasGelu", [numbers(*shape), numbers(3)], {}
        yield "FastGelu", [numbers(*shape), numbers(3)], {}
        yield "FastGelu", [numbers(*shape)], {}
    x, scale = numbers(2, 3, 4), numbers(4)
    for skip, bias in itertools.product(((2, 3, 4), (3, 4), (1, 3, 4), (2, 3, 1), (2, 2, 4), (4,)), (None, scale / 2)):
        arrays = [x, numbers(*skip) / 3, scale]
        yield "SkipLayerNormalization", [*arrays, scale + 1, bias], {"epsilon": 0.25}
        yield "SkipSimplifiedLayerNormalization", [*arrays, bias], {"epsilon": 0.25}
    yield "SkipLayerNormalization", [x, x / 3, scale], {}


CASES = list(cases())


@each_of(sorted(OPERATORS))
def test_every_axiom_agrees_with_onnx(op):
    mine = [(arrays, attributes) for name, arrays, attributes in CASES if name == op][:: at_night(1, 3)]
    assert sum(agrees(op, arrays, attributes, 2 if op == "Split" else 1) for arrays, attributes in mine) > 0


def test_an_index_comes_back_only_from_the_sizes_to_which_it_was_converted():
    integers = Reshapes([], Budget(1000))
    a, b, c, d, p, q, i, j = map(integers.symbol, "abcdpqij")
    there = integers.index(integers.position((a, b), (i, j)), (c, d))
    for sizes, is_back in (((c, d), True), ((p, q), False)):
        back = integers.index(integers.position(sizes, there), (a, b))
        assert [integers.entails(x == y) for x, y in zip(back, (i, j), strict=True)] == [is_back] * 2
