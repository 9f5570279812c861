"""The features of a kernel from which its latency is predicted: numbers that depend on no name, weight or id.

`describe` says what a kernel does: its kind, its work, and how it walks through memory. ONNX Runtime makes equal
kernels of different operators: of a convolution with a normalisation that folds into it and of the folded convolution,
of a product with a bias and of a Gemm. Such operators have equal descriptions. Otherwise the errors of predictions
would decide between equal graphs.

`features` adds the machine (`rlflow.costs.speeds`). The prediction is relative to `baseline_ps`, a roofline with the
machine's own constants, so most of what differs between machines is not left to the regression.
"""

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from rlflow.costs.analytic import MOVES, PICKS, flops
from rlflow.costs.kernels import Kernel, Operand, Operator, read_kernel
from rlflow.costs.speeds import Speeds
from rlflow.graph.ir import TensorType

CONVOLUTIONS = frozenset(("Conv", "FusedConv", "ConvTranspose", "ConvInteger", "QLinearConv"))
PRODUCTS = frozenset(("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "MatMulInteger", "QLinearMatMul"))
POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))
REORDERS = frozenset(("ReorderInput", "ReorderOutput"))
BORDERS = frozenset(("QuantizeLinear", "DequantizeLinear"))
# Activations that the kernel of a convolution or product can also compute: with little and with much work per element.
LIGHT = frozenset(("Relu", "LeakyRelu", "Clip", "HardSigmoid"))
HEAVY = frozenset(("Sigmoid", "Tanh", "Elu", "HardSwish", "Gelu", "QuickGelu", "Erf"))
# The operators of a group without convolution and product, sorted → the one operator that computes the same.
SAME = {
    ("Mul", "Sigmoid"): "QuickGelu", ("Mul", "Mul", "Sigmoid"): "QuickGelu",
    ("Add", "Div", "Erf", "Mul", "Mul"): "Gelu", ("Add", "Add", "Div", "Erf", "Mul", "Mul"): "BiasGelu",
    ("Add", "Gelu"): "BiasGelu",
    ("Add", "Add", "Div", "Mul", "Pow", "ReduceMean", "ReduceMean", "Sqrt", "Sub"): "LayerNormalization",
    ("Add", "LayerNormalization"): "SkipLayerNormalization",
    ("Add", "Add", "Add", "Div", "Mul", "Pow", "ReduceMean", "ReduceMean", "Sqrt", "Sub"): "SkipLayerNormalization",
    ("Sum",): "Add",
}  # fmt: skip
# Operators that ONNX Runtime also makes by fusing several operators → FLOPs per element of the result.
PER_ELEMENT = {"QuickGelu": 2, "Gelu": 2, "BiasGelu": 3, "LayerNormalization": 8, "SkipLayerNormalization": 9}
# Operators that compute a transcendental function or run through their input several times.
LONG = HEAVY | {
    "BiasGelu", "Exp", "Log", "Pow", "Softmax", "LogSoftmax", "Softplus", "Sin", "Cos", "Sqrt", "Selu", "Mish",
    "Softsign",
}  # fmt: skip
ROWS = frozenset(("LayerNormalization", "SkipLayerNormalization"))  # kinds that work along the last axis
# Names of the features of a kernel without the machine, computed by `describe`, `_convolution`, `_product`, `_epilogue`
# and `_steps`. A feature "odd …" is 1 if the number is no multiple of 8.
NUMBERS = (
    "flops", "bytes", "weights", "written", "working set", "intensity", "operands", "results", "itemsize",
    "rank", "run", "outer", "axis", "spread", "effort", "in blocks", "sum", "activation", "bias", "rows", "columns",
    "inner", "batch", "window", "width", "stride", "dilation", "groups", "odd rows", "odd inner", "transposed",
    "constant",
)  # fmt: skip
MACHINE = ("threads", "vector bits", "compute share", "launch share", "baseline")


class Description(NamedTuple):
    """What a kernel does, without the machine.

    Attributes:
      kind: the kind of the kernel, such as "Conv spatial", "product" or "Softmax".
      flops: number of floating-point operations.
      moved: bytes that are read and written, weights included.
      numbers: NUMBERS → value; sizes are binary logarithms.
    """

    kind: str
    flops: int
    moved: int
    numbers: Mapping[str, float]


def described(signature: str) -> Description | None:
    """Return the description of the kernel with this signature; None if it is not known what the kernel does.

    That holds for kernels with a subgraph or with a tensor of unknown shape, for stored timings of other things, and
    for damaged signatures, which may come from an imported file.

    Args:
      signature: the text under which a timing is stored (`rlflow.costs.signatures.signature_text`).
    """
    try:
        kernel = read_kernel(signature)
        return None if kernel is None or kernel.has_subgraph else describe(kernel)
    except Exception:  # A damaged signature may hold anything instead of a shape or an attribute.
        return None


def describe(kernel: Kernel) -> Description:
    """Return the description of a kernel; equal kernels of different operators have equal descriptions."""
    main = _main(kernel)
    kind, walk = _kind_and_walk(kernel, main)
    varying, constants, outputs = kernel.external
    # An operator that folds into a weight leaves no operand. The constants of an activation that is written as several
    # operators do not count, because the single operator that computes the same has no such constants.
    if kind.startswith(("Conv", "product")):
        right = main.inputs[_right(main)]
        weights, work = [right] if right.constant else [], _work(main)
    elif kind in PER_ELEMENT or kind == "Split":
        size = sum(one.kind.size for one in outputs)
        weights, work = [one for one in constants if one.kind.size >= size], PER_ELEMENT.get(kind, 0) * size
    else:
        weights, work = constants, sum(_flops(op) for op in kernel.operators)
    read, written, held = (sum(one.kind.nbytes for one in some) for some in (varying, outputs, weights))
    if main.op in PICKS:
        read = min(read, written)
    in_blocks = kernel.in_blocks and main.op in CONVOLUTIONS | POOLS  # other kernels work alike in both layouts
    numbers = dict.fromkeys(NUMBERS, 0.0) | walk
    numbers |= {
        "flops": _log(work), "bytes": _log(read), "weights": _log(held), "written": _log(written),
        "working set": _log(read + written + held), "intensity": _log(work) - _log(read + written + held),
        "operands": len(varying), "results": len(outputs),
        "itemsize": outputs[0].kind.nbytes / max(outputs[0].kind.size, 1) if outputs else 0,
        "rank": len(outputs[0].kind.shape) if outputs else 0, "in blocks": float(in_blocks),
    }  # fmt: skip
    return Description(kind, work, read + written + held, numbers)


def baseline_ps(what: Description, speeds: Speeds) -> float:
    """Return the roofline of a kernel with the constants of a machine, in picoseconds."""
    flop = speeds.convolution if what.kind.startswith("Conv") else speeds.product
    return max(what.flops * flop, what.moved * speeds.byte(what.moved)) + speeds.launch


def features(what: Description, speeds: Speeds, threads: int, kinds: Sequence[str]) -> np.ndarray:
    """Return float64 [F], the features of a kernel on a machine: NUMBERS, MACHINE, and a one-hot code of the kind.

    Args:
      what: the kernel.
      speeds: the constants of the machine.
      threads: threads of ONNX Runtime.
      kinds: the kinds of the one-hot code; a kernel of another kind has only zeros there.
    """
    base = baseline_ps(what, speeds)
    flop = speeds.convolution if what.kind.startswith("Conv") else speeds.product
    machine = (
        math.log2(threads),
        math.log2(speeds.vector_bits),
        what.flops * flop / base,
        speeds.launch / base,
        _log(base),
    )
    places = [float(what.kind == kind) for kind in kinds]
    return np.array([*(what.numbers[name] for name in NUMBERS), *machine, *places], np.float64)


def feature_names(kinds: Sequence[str]) -> list[str]:
    """Return the names of the features, in the order of `features`."""
    return [*NUMBERS, *MACHINE, *(f"is {kind}" for kind in kinds)]


# -- what a kernel does ----------------------------------------------------------------------------


def _main(kernel: Kernel) -> Operator:
    """Return the operator that determines the kernel: a convolution, product or pool, else the one with most FLOPs."""
    for ops in (CONVOLUTIONS, PRODUCTS, POOLS):
        for operator in kernel.operators:
            if operator.op in ops and operator.domain in ("", "com.microsoft"):
                return operator
    return max(kernel.operators, key=lambda op: (op.op not in BORDERS, _flops(op)))


def _kind_and_walk(kernel: Kernel, main: Operator) -> tuple[str, dict[str, float]]:
    if main.op in CONVOLUTIONS and main.domain in ("", "com.microsoft"):
        kind, walk = _convolution(main)
        return _quantised(kernel, kind), walk | _epilogue(kernel, main)
    if main.op in PRODUCTS and main.domain in ("", "com.microsoft"):
        return _quantised(kernel, "product"), _product(kernel, main) | _epilogue(kernel, main)
    rest = [op for op in kernel.operators if op.op != "Pad"] or [main] if main.op in POOLS else kernel.operators
    names = tuple(sorted(op.op for op in rest if op.op not in BORDERS)) or (main.op,)
    if set(names) == {"Slice"}:
        name = "Slice" if len(names) == 1 else "Split"
    elif main.op == "Resize":
        name = f"Resize {main.attribute('mode', b'nearest').decode(errors='replace')}"
    else:
        name = SAME.get(names) or (names[0] if len(names) == 1 else f"{main.op} and others")
    if main.domain not in ("", "com.microsoft", "com.microsoft.nchwc", "ai.onnx"):
        name = "another domain"
    walk = (
        {"window": _log(prod(main.attribute("kernel_shape", ())))} if main.op in POOLS else _steps(kernel, main, name)
    )
    return _quantised(kernel, name), walk


def _right(main: Operator) -> int:
    """Return the position of the second operand of a convolution or product."""
    return 3 if main.op.startswith("QLinear") else 1  # scales and zero points stand between the operands


def _quantised(kernel: Kernel, kind: str) -> str:
    is_quantised = any(op.op in BORDERS for op in kernel.operators) and kind not in BORDERS
    return f"{kind} quantised" if is_quantised else kind


def _convolution(main: Operator) -> tuple[str, dict[str, float]]:
    weight, data, out = main.inputs[_right(main)], main.inputs[0], main.outputs[0]
    group = main.attribute("group", 1)
    (rows, inner, *window), image = weight.kind.shape, out.kind.shape[2:]
    if main.op == "ConvTranspose":
        rows, inner = inner * group, rows // group
    form = "pointwise" if set(window) == {1} else "spatial"
    if group > 1:
        form = "depthwise" if inner == 1 else "grouped"
    strides, dilations = main.attribute("strides", (1,)), main.attribute("dilations", (1,))
    kind = f"{'ConvTranspose' if main.op == 'ConvTranspose' else 'Conv'} {form}"
    return kind, {
        "rows": _log(rows), "inner": _log(inner * prod(window)), "columns": _log(prod(image)),
        "batch": _log(data.kind.shape[0]), "window": _log(prod(window)), "width": _log(image[-1] if image else 1),
        "stride": _log(prod(strides)), "dilation": _log(prod(dilations)), "groups": _log(group),
        "odd rows": float(rows // group % 8 > 0), "odd inner": float(inner % 8 > 0), "constant": float(weight.constant),
    }  # fmt: skip


def _product(kernel: Kernel, main: Operator) -> dict[str, float]:
    left, right = main.inputs[0], main.inputs[_right(main)]
    turned = {op.outputs[0].number for op in kernel.operators if op.op == "Transpose"}
    a = bool(main.attribute("transA", 0)) != (left.number in turned)
    b = bool(main.attribute("transB", 0)) != (right.number in turned)
    shape, out = left.kind.shape, main.outputs[0].kind.shape
    inner = (shape[-2] if main.attribute("transA", 0) and len(shape) > 1 else shape[-1]) if shape else 1
    columns = out[-1] if out and len(right.kind.shape) > 1 else 1
    rows = main.outputs[0].kind.size // max(columns, 1)
    batch = prod(out[:-2]) if len(right.kind.shape) > 2 else 1  # a plain right side multiplies all rows at once
    return {
        "rows": _log(rows // max(batch, 1)), "inner": _log(inner), "columns": _log(columns), "batch": _log(batch),
        "odd rows": float(columns % 8 > 0), "odd inner": float(inner % 8 > 0), "transposed": float(a) + 2 * float(b),
        "constant": float(right.constant),
    }  # fmt: skip


def _epilogue(kernel: Kernel, main: Operator) -> dict[str, float]:
    """Return the features of the operators behind a convolution or product in its kernel: sum, bias and activation."""
    behind = kernel.operators[kernel.operators.index(main) + 1 :]
    names = [op.op for op in behind] + [main.attribute("activation", b"").decode(errors="replace")]
    inside = {one.number for op in kernel.operators for one in op.outputs}
    added = [
        one for op in behind if op.op in ("Add", "Sum") for one in op.inputs
        if one is not None and not one.constant and one.number not in inside
    ]  # fmt: skip
    is_summed = bool(added) or (main.op == "FusedConv" and len(main.inputs) > 3)
    is_biased = len(main.inputs) > 2 and main.op in PRODUCTS or any(op.op == "Add" for op in behind)
    activation = 2.0 if HEAVY.intersection(names) else float(bool(LIGHT.intersection(names)))
    # A convolution adds its bias for free, so only the bias of a product counts.
    return {"sum": float(is_summed), "activation": activation, "bias": float(is_biased and main.op in PRODUCTS)}


def _effort(kernel: Kernel, kind: str) -> int:
    """Return the number of operators with long work for each element; a normalisation counts twice."""
    operators = [kind] if kind in PER_ELEMENT else [op.op for op in kernel.operators]
    return sum((op in LONG) + 2 * op.endswith("Normalization") for op in operators)


def _steps(kernel: Kernel, main: Operator, kind: str) -> dict[str, float]:
    """Return how an operator without a convolution or product walks through memory.

    Returns:
      run: number of consecutive elements that are read and written in the same order.
      axis: length of the axis along which the operator works.
      outer: number of repetitions.
      spread: size of the output relative to the input.
      effort: see `_effort`.
      constant: 1 if an operand is a constant of more than 64 elements.
      Sizes are binary logarithms.
    """
    varying, constants, outputs = kernel.external
    if not outputs or not (varying or constants):
        return {}
    data, out = (varying or constants)[0].kind, max((one.kind for one in outputs), key=lambda kind: kind.size)
    largest = max((one.kind for one in varying or constants), key=lambda kind: kind.size)
    run, axis = (1, largest.shape[-1]) if kind in ROWS else _run_and_axis(main, largest, out, kernel)
    return {
        "run": _log(run), "axis": _log(axis), "outer": _log(max(largest.size, out.size) / max(run * axis, 1)),
        "spread": _log(out.size) - _log(data.size), "effort": float(_effort(kernel, kind)),
        "constant": float(any(one.kind.size > 64 for one in constants)),
    }  # fmt: skip


def _run_and_axis(main: Operator, data: TensorType, out: TensorType, kernel: Kernel) -> tuple[int, int]:
    """Return the values `run` and `axis` of `_steps` as numbers, for the input `data` and the output `out`."""
    shape, made = data.shape, out.shape
    if main.op in REORDERS:
        return prod(shape[2:]), shape[1]
    if main.op == "Transpose":
        perm = main.attribute("perm", tuple(range(len(shape)))[::-1])
        kept = next((k for k in range(len(perm)) if perm[-1 - k] != len(perm) - 1 - k), len(perm))
        return prod(shape[len(shape) - kept :]), prod(made[len(made) - 1 - kept : len(made) - kept])
    axis = main.attribute("axis", None)
    if main.op in ("Concat", "Split", "Softmax", "LogSoftmax", "Gather", "ArgMax", "ArgMin") and shape:
        full = made if main.op == "Concat" else shape
        axis = -1 if axis is None and main.op.endswith("oftmax") else axis or 0
        axis = axis % len(full) if full else 0
        return prod(full[axis + 1 :]), full[axis] if full else 1
    if main.op.endswith("Normalization"):
        start = (
            axis if isinstance(axis, int) else 2 if main.op in ("InstanceNormalization", "GroupNormalization") else -1
        )
        return 1, prod(shape[start:])
    if len(shape) == len(made):
        differ = [k for k in range(len(shape)) if shape[k] != made[k]]
        if differ:  # a reduction, a slice, a padding or an enlargement
            return prod(shape[differ[-1] + 1 :]), prod(shape[k] for k in differ)
    if main.op not in MOVES:  # element-wise: the row that all operands share
        run, shapes = 1, [_aligned(one, len(made)) for one in kernel.external[0] + kernel.external[1]]
        for k in range(1, len(made) + 1):
            sizes = {sizes[-k] for sizes in shapes if prod(sizes) > 1}
            if len(sizes) > 1:
                return run, made[-k]
            run *= made[-k]
        return run, 1
    return out.size, 1


def _aligned(operand: Operand, rank: int) -> tuple[int, ...]:
    shape = operand.kind.shape
    return (*(1,) * (rank - len(shape)), *shape)


def _work(main: Operator) -> int:
    """Return the FLOPs of a convolution or product without its bias.

    Equal kernels then have equal FLOPs, whether the bias is an input of the operator or comes from a folded operator.
    """
    bias = 2 if main.op in ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm") else len(main.inputs)
    return _flops(main._replace(inputs=main.inputs[:bias]))


def _flops(operator: Operator) -> int:
    if not operator.outputs:
        return 0
    inputs = [TensorType(0, (0,)) if one is None else one.kind for one in operator.inputs]
    try:
        return flops(operator, inputs, [one.kind for one in operator.outputs])
    except (IndexError, TypeError):  # an operator of another domain under a known name
        return operator.outputs[0].kind.size


def _log(value: float) -> float:
    return math.log2(1 + value)
