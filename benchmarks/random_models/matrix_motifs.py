"""Motifs of matrix products: MatMul, Gemm, and the operators FusedMatMul and FusedGemm of ONNX Runtime."""


from benchmarks.random_models.join_motifs import concat, split
from benchmarks.random_models.motifs import commuted, one, reduced, transpose, without_double
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def matmul(s: Sketch, x: Tensor, w: Tensor) -> Tensor:
    if 0 in x.shape and len(w.shape) == 1:
        raise Misfit  # ONNX Runtime refuses some of these products, and leaves the result of others uninitialised
    return s.op("MatMul", x, w, bound=max(1, x.shape[-1]) * x.bound * w.bound)


def columns(s: Sketch, x: Tensor) -> Tensor:
    """Return a weight that x can be multiplied by from the right, mostly of shape [last size of x, 1 to 5]."""
    if not x.shape:
        raise Misfit
    inner, size = x.shape[-1], s.pick([1, 2, 3, 4, 5])
    if len(x.shape) > 2 and s.chance(0.1):
        return s.weight((x.shape[-3], inner, size), inner, x.dtype)
    return s.weight((inner,) if s.chance(0.04) else (inner, size), inner, x.dtype)


def biased(s: Sketch, y: Tensor) -> Tensor:
    size = y.shape[-1:]
    shape = s.pick([size] * 6 + [(), (1, *size), (1,), y.shape])
    return commuted(s, "Add", y, s.weight(shape, dtype=y.dtype))


def scaled(s: Sketch, y: Tensor) -> Tensor:
    shape = s.pick([(), (), (1,), y.shape[-1:], (1, 1), y.shape[-2:-1] + (1,)])
    return commuted(s, "Mul", y, s.weight(shape, dtype=y.dtype))


def factor(s: Sketch) -> Tensor:
    """Return an existing tensor or a new input as the left operand of a product, mostly of rank 2 or 3."""
    return s.number(low=1, high=4) if s.chance(0.4) else s.real(rank=s.pick([2, 2, 3]))


def linear(s: Sketch) -> None:
    x = factor(s)
    y = matmul(s, x, columns(s, x))
    for _ in range(s.pick([0, 1, 1, 2])):
        y = s.pick([biased, biased, scaled])(s, y)
    if y.dtype.kind == "f" and s.chance(0.3):
        s.op("Relu", y)


def linear_siblings(s: Sketch) -> None:
    x, with_bias = factor(s), s.chance(0.6)
    w = columns(s, x)
    for k in range(s.pick([2, 2, 3])):
        y = matmul(s, x, w if k == 0 or s.chance(0.1) else columns(s, x))
        if with_bias:
            biased(s, y)


def matmul_chain(s: Sketch) -> None:
    x = factor(s)
    y = matmul(s, x, columns(s, x))
    if s.chance(0.15):
        y = s.op("Identity", y)
    matmul(s, y, columns(s, y))


def gemm(s: Sketch, x: Tensor, attributes: dict) -> Tensor:
    rows, inner = reversed(x.shape) if attributes.get("transA") else x.shape
    size = s.pick([1, 2, 3, 4, 5])
    w = s.weight((size, inner) if attributes.get("transB") else (inner, size), inner)
    bias = s.pick([(size,)] * 6 + [(), (1, size), (rows, 1), (rows, size), (1,)])
    if s.opset >= 11 and s.chance(0.1):
        return s.op("Gemm", x, w, bound=2 * (1 + inner) * x.bound * w.bound, **attributes)
    return s.op("Gemm", x, w, s.weight(bias), bound=2 * (inner * x.bound * w.bound + 2), **attributes)


def gemms(s: Sketch) -> None:
    x = s.real(rank=2)
    attributes = {"transA": 1} if s.chance(0.2) else {}
    attributes |= {"transB": s.pick([0, 1])} if s.chance(0.6) else {}
    attributes |= {"alpha": s.pick([0.5, 1.0]), "beta": s.pick([2.0, 1.0])} if s.chance(0.3) else {}
    for _ in range(s.pick([1, 1, 2, 3])):
        y = gemm(s, x, attributes)
        if s.chance(0.4):
            biased(s, y)


# -- sums and joins of products --------------------------------------------------------------------


def same_rows(s: Sketch) -> Tensor:
    """Return an existing floating-point tensor or a new input of rank 2 or, less often, 3."""
    return s.real(rank=s.pick([2, 2, 3]))


def sum_of_products(s: Sketch) -> None:
    """Draw x v + x w, x v + y v or x v + y w; v and w are weights or inputs. A few draws subtract."""
    x = same_rows(s)
    y = s.like(x)
    weights = [columns(s, x) if s.chance(0.5) else s.input((x.shape[-1], s.pick([2, 3]))) for _ in range(2)]
    if s.chance(0.9):
        weights[1] = s.like(weights[0]) if not weights[0].constant else s.weight(weights[0].shape, x.shape[-1])
    pairs = s.pick(
        [[(x, weights[0]), (x, weights[1])], [(x, weights[0]), (y, weights[0])], [(x, weights[0]), (y, weights[1])]]
    )
    commuted(s, "Add" if s.chance(0.9) else "Sub", *(matmul(s, *pair) for pair in pairs))


def joined_products(s: Sketch) -> None:
    """Draw a Concat of x y and x z along columns, or of x w and y w along rows; seldom along the first axis instead."""
    x = same_rows(s)
    if s.chance(0.5):
        y, z = (s.input((x.shape[-1], s.pick([2, 3]))) if s.chance(0.5) else columns(s, x) for _ in range(2))
        products, axis = [matmul(s, x, y), matmul(s, x, z)], len(x.shape) - 1
    else:
        w = columns(s, x)
        products, axis = [matmul(s, x, w), matmul(s, s.like(x), w)], int(s.rng.integers(len(x.shape) - 1))
    concat(s, axis if s.chance(0.9) else 0, *products)


def products_of_joins(s: Sketch) -> None:
    """Draw Concat(x, y) w or Concat(x, y) Concat(z, w), with Concat mostly along the last axis of x and y."""
    x = same_rows(s)
    features = len(x.shape) - 1
    axis = features if s.chance(0.7) else int(s.rng.integers(len(x.shape)))
    joined = concat(s, axis, x, s.like(x))
    if s.chance(0.5):
        matmul(s, joined, columns(s, joined))
    else:
        first = x.shape[-1] if s.chance(0.85) else 1
        rows, size = [first, joined.shape[-1] - first], s.pick([1, 2, 3])
        matmul(s, joined, concat(s, features - 1, *(s.input((*x.shape[:-2], n, size)) for n in rows)))


def weight_times(s: Sketch) -> None:
    """Draw products with a weight as left operand.

    The right operand is a sum, a Concat or a scaled tensor, or a Split of the product follows, or two weights multiply
    one tensor.
    """
    x = same_rows(s)
    rank, rows = len(x.shape), x.shape[-2]
    w = s.weight((s.pick([2, 3]), rows) if s.chance(0.6) else (*[1] * (rank - 2), 2, rows), rows)
    match s.pick(["sum", "join", "factor", "split", "two"]):
        case "sum":
            matmul(s, w, commuted(s, "Add", x, s.weight(s.pick([x.shape, (*[1] * (rank - 1), x.shape[-1])]))))
        case "join":
            other = s.weight((*x.shape[:-1], s.pick([1, 2])))
            matmul(s, w, concat(s, rank - 1, *((x, other) if s.chance(0.2) else (other, x))))
        case "factor":
            matmul(s, w, commuted(s, "Mul", x, s.weight(s.pick([(), (1,), (1, 1), x.shape[-1:]]))))
        case "split":
            split(s, matmul(s, w, x), rank - s.pick([2, 2, 2, 1]), 2)
        case "two":
            matmul(s, w, x)
            matmul(s, s.weight((*w.shape[:-2], s.pick([1, 2]), rows), rows), x)


def products_of_parts(s: Sketch) -> None:
    """Draw a Split of rows into two parts, then products of both parts with mostly the same weight."""
    x = s.input((4, 3)) if s.chance(0.5) else same_rows(s)
    w = columns(s, x)
    axis = int(s.rng.integers(len(x.shape) - 1))
    for part in split(s, x, axis, 2):
        matmul(s, part, w if s.chance(0.9) else columns(s, part))


def exchanged(s: Sketch, x: Tensor) -> Tensor:
    """Draw a Transpose that exchanges the last two axes, or seldom one with a random permutation."""
    rank = len(x.shape)
    return transpose(s, x, [*range(rank - 2), rank - 1, rank - 2] if s.chance(0.9) else s.permutation(rank))


def transposed_products(s: Sketch) -> None:
    """Draw a Transpose of a product, a product of two Transposes, or a ReduceMean of a product."""
    x = same_rows(s)
    y = s.input((*x.shape[:-2], x.shape[-1], s.pick([2, 3])))
    match s.pick(["after", "before", "mean"]):
        case "after":
            exchanged(s, matmul(s, x, y))
        case "before":
            left, right = exchanged(s, y), exchanged(s, x)
            matmul(s, left, right)
        case "mean":
            z = matmul(s, x, columns(s, x))
            reduced(s, "ReduceMean", z, [int(s.rng.integers(len(z.shape)))], keepdims=1)


def features_first(s: Sketch) -> None:
    """Draw a factor or a summand per feature, or a Transpose, before a Gemm or MatMul."""
    x = s.real(rank=2) if s.chance(0.6) else same_rows(s)
    if s.chance(0.25):
        y = exchanged(s, x)
    else:
        operand = s.weight(s.pick([x.shape[-1:]] * 4 + [(), x.shape[-2:-1] + (1,)]))
        y = commuted(s, s.pick(["Mul", "Mul", "Add"]), x, operand)
    if len(y.shape) == 2 and s.chance(0.7):
        gemm(s, y, {"transB": 1} if s.chance(0.4) else {"transA": 1} if s.chance(0.15) else {})
    else:
        matmul(s, y, columns(s, y))


def features_last(s: Sketch) -> None:
    """Draw a Gemm, then a factor (mostly one number or one per column) or an activation."""
    x = s.real(rank=2)
    y = gemm(s, x, {"transB": 1} if s.chance(0.4) else {})
    kind = s.pick(["Mul", "Mul", "Tanh", "Tanh", "Relu", "Sigmoid"])
    scaled(s, y) if kind == "Mul" else one(s, kind, y)


# -- ONNX Runtime's own ----------------------------------------------------------------------------


def fused_matmul(s: Sketch, x: Tensor, y: Tensor, factor: float, **attributes) -> Tensor:
    inner = x.shape[-2 if attributes.get("transA") else -1]
    written = {"alpha": factor} if factor != 1 or s.chance(0.5) else {}
    bound = factor * max(1, inner) * x.bound * y.bound
    return s.op("com.microsoft.FusedMatMul", x, y, bound=bound, **written, **attributes)


def fused_matmuls(s: Sketch) -> None:
    """Draw FusedMatMul with a random factor and transposed operands, perhaps with a factor before and a bias after."""
    x = same_rows(s)
    across = [name for name in ("transA", "transB") if s.chance(0.35)]
    inner, size = x.shape[-2 if "transA" in across else -1], s.pick([2, 3])
    shape = (size, inner) if "transB" in across else (inner, size)
    y = s.input(shape) if s.chance(0.6) else s.weight(shape, inner)
    if s.chance(0.35):
        y = commuted(s, "Mul", y, s.weight(s.pick([(), (), (1,), (1, 1), (1, 1, 1), y.shape[-1:]])))
    z = fused_matmul(s, x, y, s.pick([1, 0.5, 0.25, 1.5]), **{name: 1 for name in across})
    if s.chance(0.4):
        biased(s, z)


def fused_gemm(s: Sketch) -> None:
    """Draw FusedGemm with an activation; some of the activations occur in no rule."""
    without_double(s)
    x, size = s.real(rank=2), s.pick([1, 2, 3])
    across = s.chance(0.4)
    w = s.weight((size, x.shape[1]) if across else (x.shape[1], size), x.shape[1])
    alpha = s.pick([1.0, 1.0, 0.5])
    attributes = {"transB": 1} if across else {}
    attributes |= {"alpha": alpha} if alpha != 1 else {}
    attributes |= s.pick([{"activation": kind} for kind in ("Relu", "Relu", "Tanh", "Tanh", "Sigmoid")] + [
        {"activation": "LeakyRelu", "activation_alpha": 0.25}])  # fmt: skip
    operands = [x, w] + ([s.weight((size,))] if s.chance(0.8) else [])
    s.op("com.microsoft.FusedGemm", *operands, bound=max(1, x.shape[1] * x.bound * w.bound + 2), **attributes)


MATRIX_MOTIFS = {  # motif → relative frequency
    linear: 4, linear_siblings: 3, matmul_chain: 2, gemms: 3,
    sum_of_products: 1.5, joined_products: 1.2, products_of_joins: 1.2, weight_times: 2.5, products_of_parts: 1,
    transposed_products: 1.2, features_first: 1.5, features_last: 1.5, fused_matmuls: 1.5, fused_gemm: 0.8,
}  # fmt: skip
