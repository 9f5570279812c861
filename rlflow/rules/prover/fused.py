"""Attention, and the operators of com.microsoft that ONNX Runtime's CPU provider has kernels for.

What is not defined here is required away or has no definition: masks, past keys, transposed batches.
"""

from rlflow.rules.prover.elements import activated, gelu, sigmoid
from rlflow.rules.prover.layout import renamed, transpose
from rlflow.rules.prover.sums import gemm, layer_normalization, matmul, rms_normalization, softmax
from rlflow.rules.prover.tensors import Attributes, Tensor, only_as, pointwise
from rlflow.rules.prover.windows import conv


def turned(m, x: Tensor, *perm: int) -> Tensor:
    return transpose(m, Attributes({"perm": perm}), x)


def scaled_products(m, q: Tensor, k: Tensor, v: Tensor, scale) -> Tensor:
    """softmax(q kᵀ · scale) v over batch and head; `scale` None is 1/√(the size of a head)."""
    if scale is None:
        scale = m.quotient(m.number(1), m.apply("sqrt", m.number(q.shape[3])))
    scores = pointwise(m, lambda e: e * m.number(scale), matmul(m, None, q, turned(m, k, 0, 1, 3, 2)))
    return matmul(m, None, softmax(m, Attributes({"axis": -1}), scores), v)


def attention(m, a, q, k, v):
    """Of inputs (batch, heads, positions, features) without a mask; several heads of q may share one of k and v."""
    m.require(q.rank == 4 and k.rank == 4 and v.rank == 4)
    m.require(not a("is_causal", 0) and not a("softcap", 0.0))
    m.require(a("left_window_size", -1) == -1 and a("right_window_size", -1) == -1)
    for one, other in ((q.shape[0], k.shape[0]), (q.shape[0], v.shape[0]), (k.shape[1], v.shape[1])):
        m.require(one == other)
    m.require(k.shape[2] == v.shape[2])
    m.require(q.shape[3] == k.shape[3])
    sharing = q.shape[1] // k.shape[1]
    m.require(q.shape[1] == sharing * k.shape[1])
    shared = lambda t: Tensor(  # noqa: E731
        (t.shape[0], q.shape[1], *t.shape[2:]), lambda i: t.at((i[0], i[1] // sharing, *i[2:])), t.dtype
    )
    return scaled_products(m, q, shared(k), shared(v), a("scale"))


def multi_head_attention(m, a, q, k, v):
    """Of inputs (batch, positions, heads · features), without bias or mask."""
    m.require(q.rank == 3 and k.rank == 3 and v.rank == 3)
    m.require(not a("unidirectional", 0))
    for one, other in ((q.shape[0], k.shape[0]), (q.shape[0], v.shape[0]), (q.shape[2], k.shape[2])):
        m.require(one == other)
    m.require(k.shape[1] == v.shape[1])
    heads = a("num_heads")
    for t in (q, v):
        m.require(t.shape[2] == (t.shape[2] // heads) * heads)
    apart = lambda t: turned(m, renamed(m, t, (*t.shape[:2], heads, t.shape[2] // heads)), 0, 2, 1, 3)  # noqa: E731
    result = turned(m, scaled_products(m, apart(q), apart(k), apart(v), a("scale")), 0, 2, 1, 3)
    return renamed(m, result, (*q.shape[:2], v.shape[2]))


def fused_matmul(m, a, x, y):
    """A vector is not transposed. On the left of a vector ONNX Runtime asks for a square and does not transpose it."""
    m.require(not a("transBatchA", 0) and not a("transBatchB", 0))
    flip = lambda t: turned(m, t, *range(t.rank - 2), t.rank - 1, t.rank - 2)  # noqa: E731
    if a("transA", 0) and x.rank > 1:
        m.require(y.rank > 1 or x.shape[-1] == x.shape[-2])
        x = flip(x) if y.rank > 1 else x
    y = flip(y) if a("transB", 0) and y.rank > 1 else y
    return pointwise(m, lambda e: m.number(a("alpha", 1.0)) * e, matmul(m, a, x, y))


def fused_conv(m, a, x, w, bias=None, summand=None):
    result = conv(m, a, x, w, bias)
    if summand is not None:
        m.require(summand.rank == result.rank)
        for size, other in zip(summand.shape, result.shape, strict=True):
            m.require(size == other)
        result = pointwise(m, lambda p, q: p + q, result, summand)
    return activated(m, a("activation"), list(a("activation_params") or ()), result)


def fused_gemm(m, a, x, y, c=None):
    parameters = [a(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return activated(m, a("activation"), [p for p in parameters if p is not None], gemm(m, a, x, y, c))


def bias_gelu(m, a, x, bias):
    m.require(bias.rank == 1 and x.rank > 0)
    m.require(bias.shape[0] == x.shape[-1])
    return pointwise(m, lambda p, q: gelu(m, p + q), x, bias)


def fast_gelu(m, a, x, bias=None):
    if bias is None:
        return pointwise(m, lambda e: gelu(m, e, b"tanh"), x)
    m.require(bias.rank == 1 and x.rank > 0)
    m.require(bias.shape[0] == x.shape[-1])
    return pointwise(m, lambda p, q: gelu(m, p + q, b"tanh"), x, bias)


def quick_gelu(m, a, x):
    return pointwise(m, lambda e: e * sigmoid(m, m.number(a("alpha", 1.702)) * e), x)


def skipped(m, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    """x + skip + bias; the skip may be broadcast along the batch, the bias is one number per feature."""
    m.require(x.rank == 3 and skip.rank in (2, 3))
    only_as(m, skip, x)
    m.require(skip.shape[-1] == x.shape[-1])
    m.require(skip.shape[-2] == x.shape[-2])
    result = pointwise(m, lambda p, q: p + q, x, skip)
    if bias is None:
        return result
    per_feature(m, bias, x)
    return pointwise(m, lambda p, q: p + q, result, bias)


def per_feature(m, t: Tensor, x: Tensor) -> None:
    m.require(t.rank == 1)
    m.require(t.shape[0] == x.shape[-1])


def skip_layer_normalization(m, a, x, skip, scale, offset=None, bias=None):
    """The first output only."""
    for t in (scale, offset):
        if t is not None:
            per_feature(m, t, x)
    epsilon = Attributes({"epsilon": a("epsilon", 1e-12)})
    return layer_normalization(m, epsilon, skipped(m, x, skip, bias), scale, offset)


def skip_rms_normalization(m, a, x, skip, scale, bias=None):
    """The first output only."""
    per_feature(m, scale, x)
    return rms_normalization(m, Attributes({"epsilon": a("epsilon", 1e-12)}), skipped(m, x, skip, bias), scale)
