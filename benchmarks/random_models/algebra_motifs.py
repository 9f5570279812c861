"""Motifs of arithmetic that a model does not need: see the rules of rlflow/rules/algebra.rules."""

from math import prod

import numpy as np

from benchmarks.random_models.image_motifs import conv, image, kernel_for, window
from benchmarks.random_models.matrix_motifs import biased, columns, gemm, matmul, same_rows
from benchmarks.random_models.motifs import commuted, one, reduced, without_double
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def with_zeros(s: Sketch, w: Tensor, axis: int) -> Tensor:
    """Return a weight like w in which about half of the rows along an axis are zero; seldom w itself."""
    if w.name not in s.arrays or s.chance(0.1):
        return w
    array = s.arrays[w.name].copy()
    np.moveaxis(array, axis, 0)[s.rng.random(array.shape[axis]) < 0.5] = 0
    return s.constant(array)


def low_rank(s: Sketch) -> None:
    """Draw x w + (x u) v, perhaps with a factor of the second product."""
    x = same_rows(s)
    w = columns(s, x)
    y = matmul(s, x, w)
    z = matmul(s, x, s.weight((x.shape[-1], s.pick([1, 2])), x.shape[-1]))
    z = matmul(s, z, s.weight((z.shape[-1], w.shape[-1] if s.chance(0.9) else 1), z.shape[-1]))
    commuted(s, "Add", y, commuted(s, "Mul", z, s.weight(())) if s.chance(0.2) else z)


def low_rank_convolution(s: Sketch) -> None:
    """Draw a convolution plus a pointwise convolution of a narrower one."""
    x = image(s)
    kernel = kernel_for(s, x)
    attributes = window(s, x, kernel, dilated=True)
    y = conv(s, x, kernel, s.chance(0.5), attributes)
    z = conv(s, x, kernel if s.chance(0.9) else [1] * len(kernel), False, attributes, channels=s.pick([1, 2]))
    commuted(s, "Add", y, conv(s, z, [1] * len(kernel), s.chance(0.1), {}, channels=y.shape[1]))


def two_gemms(s: Sketch) -> None:
    x = s.real(rank=2)
    y = gemm(s, x, {"transB": 1} if s.chance(0.5) else {})
    gemm(s, y, {"transB": 1} if s.chance(0.5) else {})


def shifted_softmax(s: Sketch) -> None:
    """Draw the softmax of x plus or minus a tensor that is mostly the same along the axis."""
    x = s.real(low=1, high=4)
    axis = s.pick(range(len(x.shape)))
    shape = [1 if k == axis and s.chance(0.9) else size for k, size in enumerate(x.shape)]
    shape = shape[axis + 1 :] if s.chance(0.2) else shape
    c = s.weight(shape, dtype=x.dtype) if s.chance(0.5) else s.input(shape)
    y = s.op(s.pick(["Add", "Sub"]), x, c, bound=x.bound + c.bound)
    s.op("Softmax", y, axis=axis - (len(x.shape) if s.chance(0.3) else 0), bound=1)


def table(s: Sketch) -> None:
    """Draw the product of a weight and rows of a table."""
    if s.opset < 11:
        raise Misfit  # earlier indices count from the front alone
    rows = s.weight((s.pick([4, 6]), s.pick([2, 3])))
    chosen = s.input([s.pick([1, 3]) for _ in range(s.pick([0, 1, 1, 2]))], "int64")
    x = s.op("Gather", rows, chosen, bound=rows.bound, **({"axis": 0} if s.chance(0.5) else {}))
    matmul(s, x, s.weight((rows.shape[1], s.pick([2, 3, 18])), rows.shape[1]))


def reduced_products(s: Sketch) -> None:
    """Draw the sum of the rows of a product, or the mean of a sum."""
    x = same_rows(s)
    axes = [s.pick(range(len(x.shape) - 1))] if s.chance(0.9) else [len(x.shape) - 1]
    if s.chance(0.5):
        y = matmul(s, x, columns(s, x))
        if len(y.shape) < len(x.shape):
            raise Misfit
        reduced(s, "ReduceSum", y, axes, keepdims=1)
    else:
        reduced(s, "ReduceMean", biased(s, x), axes, keepdims=s.pick([0, 1]))


def largest_place(s: Sketch) -> None:
    """Draw ArgMax of a softmax or a sigmoid of an input. Rounding could change the place for other tensors."""
    without_double(s)
    x = s.input(s.sizes(s.pick([1, 2, 3])))
    if 0 in x.shape or s.opset < 13:
        raise Misfit
    axis = s.pick(range(len(x.shape)))
    kind = s.pick(["Softmax", "Softmax", "LogSoftmax", "Sigmoid", "Relu"])
    inner = {"axis": axis if s.chance(0.9) else 0} if kind.endswith("Softmax") else {}
    y = s.op(kind, x, bound=8, **inner)
    keep = {"keepdims": s.pick([0, 1])} if s.chance(0.6) else {}
    s.op("ArgMax", y, bound=max(x.shape), axis=axis - (len(x.shape) if s.chance(0.3) else 0), **keep)


EQUATIONS = (  # equations and the shapes of their operands
    ("bij,jk->bik", (2, 3, 4), (4, 2)), ("bij,kj->bki", (2, 3, 4), (5, 4)),
    ("bhid,bhjd->bhij", (1, 2, 3, 4), (1, 2, 5, 4)), ("bsnh,btnh->bnst", (1, 3, 2, 4), (1, 5, 2, 4)),
    ("bnst,btnh->bsnh", (1, 2, 3, 5), (1, 5, 2, 4)),
    ("nchw,dc->ndhw", (1, 3, 2, 2), (2, 3)), ("nchw,c->nchw", (2, 3, 2, 2), (3,)), ("i,j->ij", (3,), (4,)),
    ("bsd,dnh->bsnh", (1, 2, 3), (3, 2, 2)),
    ("ij,ij->i", (2, 3), (2, 3)), ("bij,bj->bi", (2, 3, 4), (2, 4)), ("ij,kj", (2, 3), (4, 3)),
)  # fmt: skip


def einsum(s: Sketch) -> None:
    if s.opset < 12:
        raise Misfit
    equation, *shapes = s.pick(EQUATIONS)
    x, y = (s.input(shape) if s.chance(0.6) else s.weight(shape, shape[-1]) for shape in shapes)
    s.op("Einsum", x, y, bound=5 * x.bound * y.bound, equation=equation)


def zero_columns(s: Sketch) -> None:
    """Draw two linear layers with an activation between them, with zeros between them in one of the weights."""
    kind = s.pick(["Relu", "Relu", "Gelu", "com.microsoft.BiasGelu", "Tanh"])
    x, size = s.real(rank=2) if s.chance(0.5) else same_rows(s), s.pick([4, 6])
    if "Gelu" in kind:
        without_double(s)
    if kind == "Gelu" and s.opset < 20 or "Bias" in kind and s.float != np.float32:
        raise Misfit
    first, second = s.pick([(with_zeros, plain), (plain, with_zeros)])
    b, inner, outer = s.weight((size,)), x.shape[-1], s.pick([1, 2, 3])
    if len(x.shape) == 2 and kind == "Relu" and s.chance(0.6):
        i, j = s.pick([0, 1]), s.pick([0, 1])
        w = first(s, s.weight((size, inner) if i else (inner, size), inner), 0 if i else 1)
        u = second(s, s.weight((outer, size) if j else (size, outer), size), 1 if j else 0)
        y = s.op("Gemm", x, w, b, bound=inner * x.bound * w.bound + 2, transB=i)
        s.op("Gemm", s.op("Relu", y), u, s.weight((outer,)), bound=size * y.bound * u.bound + 2, transB=j)
        return
    y = matmul(s, x, first(s, s.weight((inner, size), inner), 1))
    y = s.op(kind, y, b, bound=y.bound + 2) if "Bias" in kind else one(s, kind, commuted(s, "Add", y, b))
    matmul(s, y, second(s, s.weight((size, outer), size), 0))


def plain(s: Sketch, w: Tensor, axis: int) -> Tensor:
    return w


def zero_filters(s: Sketch) -> None:
    """Draw two convolutions with Relu between them, with zeros between them in one of the weights."""
    x = image(s)
    kernel, size = kernel_for(s, x), s.pick([9, 12])
    first, second = s.pick([(with_zeros, plain), (plain, with_zeros)])
    w = first(s, s.weight((size, x.shape[1], *kernel), 4), 0)
    bias = [s.weight((size,))] if s.chance(0.5) else []
    bound = w.bound * x.bound * prod(w.shape[1:]) + 2
    y = s.op("Relu", s.op("Conv", x, w, *bias, bound=bound, **window(s, x, kernel, dilated=True)))
    kernel, groups = kernel_for(s, y), 3 if s.chance(0.1) else 1
    u = second(s, s.weight((s.pick([3, 6]), size // groups, *kernel), 4 * size), 1)
    bound = u.bound * y.bound * prod(u.shape[1:])
    s.op("Conv", y, u, bound=bound, **window(s, y, kernel, dilated=True), **({"group": 3} if groups > 1 else {}))


def added_rows(s: Sketch) -> None:
    """Draw a ScatterElements that adds rows of features at indices, which are mostly repeated for each feature."""
    if s.opset < 16:
        raise Misfit
    x = s.real(rank=2, low=1)
    rows, features = x.shape
    count = int(s.rng.integers(1, 6))
    part = features if s.chance(0.8) else int(s.rng.integers(1, features + 1))
    index = s.constant(s.rng.integers(-rows, rows, (count, 1) if s.chance(0.9) else (count, part)))
    wide = s.op("Expand", index, s.constant(np.array([count, part])))
    u = s.input((count, part))
    s.op("ScatterElements", x, wide, u, axis=0, reduction="add", bound=x.bound + count * u.bound)


def spectrum(s: Sketch) -> None:
    """Draw a DFT along the axis before the last, seldom along another or of complex numbers, or an STFT."""
    if s.float != np.float32 or s.opset < 17:
        raise Misfit
    size, batch = int(s.rng.integers(2, 7)), s.pick([1, 2])
    onesided = {"onesided": s.pick([0, 1])}
    if s.opset >= 20 or s.chance(0.3):
        x = s.input((batch, size + int(s.rng.integers(0, 6)), *([1] if s.chance(0.5) else [])))
        window = s.weight((size,)) if s.chance(0.9) else s.input((size,))
        step = s.constant(np.array(s.pick([1, 2, 3])))
        s.op("STFT", x, step, window, s.constant(np.array(size)), bound=2 * size * x.bound, **onesided)
    else:
        parts = 2 if s.chance(0.1) else 1
        x = s.input((*(s.pick([1, 2, 3]) for _ in range(s.pick([1, 2]))), size, parts))
        axis = s.pick([len(x.shape) - 2] * 5 + [-2, -2, 0])
        s.op("DFT", x, axis=axis, bound=size * x.bound, **({"onesided": 0} if parts == 2 else onesided))


ALGEBRA_MOTIFS = {  # motif → relative frequency
    low_rank: 1, two_gemms: 0.8, shifted_softmax: 0.8, table: 0.6, reduced_products: 0.8, largest_place: 0.6, einsum: 1,
    zero_columns: 1.2, added_rows: 0.4, spectrum: 0.5,
}  # fmt: skip
ALGEBRA_IMAGE_MOTIFS = {low_rank_convolution: 0.8, zero_filters: 1.2}
