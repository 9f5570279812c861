"""Motifs of attention in three forms: as exporters write it, as ONNX's Attention, and as ONNX Runtime's operators."""

import numpy as np

from benchmarks.random_models.matrix_motifs import fused_matmul, matmul
from benchmarks.random_models.motifs import commuted, reshape, scalar, transpose, without_double
from benchmarks.random_models.sketch import Misfit, Sketch, Tensor


def attention(s: Sketch) -> None:
    """Draw x yᵀ with optional scalings of x and of the product, and an optional Softmax."""
    x = s.real(low=2, high=4)
    inner = s.like(x)
    y = s.op("Transpose", inner, perm=[*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2])
    factors = [(), (), (1,), (1, 1), x.shape[-1:]]
    if s.chance(0.5):
        x = commuted(s, "Mul", x, s.weight(s.pick(factors)))
    z = matmul(s, x, y)
    if s.chance(0.6):
        z = commuted(s, "Mul", z, s.weight(s.pick(factors[:4])))
    if s.chance(0.4):
        s.op("Softmax", z, axis=-1, bound=1)


def scores(s: Sketch, q: Tensor, k: Tensor) -> Tensor:
    """Draw Softmax(c q k + m) and return its tensor.

    The scaling by c is a Mul, a Div, part of FusedMatMul, a Mul of q and one of k, or missing. The mask m is mostly
    missing.

    Args:
        s: the sketch.
        q: queries [batch, heads, length, features].
        k: transposed keys [batch, heads, features, positions].
    """
    form = s.pick(["Mul", "Mul", "Div", "Div", "inside", "roots", "none", "none"])
    number = s.pick([0.5, 2.0, 1.5])
    if form == "roots":
        q, k = (s.op("Mul", x, scalar(s, x, number), bound=2 * x.bound) for x in (q, k))
    z = fused_matmul(s, q, k, number) if form == "inside" else matmul(s, q, k)
    if form in ("Mul", "Div"):
        z = s.op(form, z, scalar(s, z, number), bound=2 * z.bound)
    if s.chance(0.4):
        batch, positions, length = z.shape[0], z.shape[-1], z.shape[-2]
        z = commuted(s, "Add", z, s.weight(s.pick([(1, 1, 1, positions), (batch, 1, length, positions), (positions,)])))
    return s.op("Softmax", z, axis=s.pick([-1, -1, -1, -1, 3, 2]), bound=1)


def heads(s: Sketch) -> None:
    """Draw multi-head attention of tensors [batch, positions, features], with exporters' Reshapes and Transposes."""
    batch, positions, count, depth = (int(n) for n in s.rng.integers(1, 4, 4))
    sizes = [batch, positions, count, depth]

    def apart(perm: list[int]) -> Tensor:
        shape = (batch, positions, count * depth)
        x = s.find(lambda t: t.dtype == s.float and t.shape == shape, lambda: s.input(shape))
        return transpose(s, reshape(s, x, s.pick([sizes, [0, 0, count, -1], [0, 0, count, depth]])), perm)

    q, k, v = (apart(perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    z = matmul(s, scores(s, q, k), v)
    reshape(s, transpose(s, z, [0, 2, 1, 3]), s.pick([[batch, positions, count * depth], [0, 0, -1]]))


def heads_of_one(s: Sketch) -> None:
    """Draw multi-head attention whose queries, keys and values are stacked, and taken by Gather, Slice or Split."""
    batch, positions, count, depth = (int(n) for n in s.rng.integers(1, 4, 4))
    stack = reshape(s, s.input((batch, positions, 3 * count * depth)), [batch, positions, 3, count, depth])
    stack, form, first = transpose(s, stack, [2, 0, 3, 1, 4]), s.pick(["Gather", "Slice", "Split"]), np.array([0])
    if form == "Gather":
        parts = [s.op("Gather", stack, s.constant(np.array(k)), axis=0, bound=stack.bound) for k in range(3)]
    else:
        if form == "Slice":
            late = [{"starts": first + k, "ends": first + k + 1, "axes": first} for k in range(3)]
            parts = [s.op("Slice", stack, late=one) for one in late]
        else:
            parts = s.op("Split", stack, late={"split": np.array([1, 1, 1])}, outputs=3, axis=0)
        parts = [s.op("Squeeze", part, late={"axes": first}) for part in parts]
    q, k, v = parts
    z = matmul(s, scores(s, q, transpose(s, k, [0, 1, 3, 2])), v)
    reshape(s, transpose(s, z, [0, 2, 1, 3]), [batch, positions, count * depth])


def heads_apart(s: Sketch) -> None:
    """Draw attention of tensors [batch, heads, positions, features]; seldom all heads share one key and value."""
    batch, count, length, positions, depth = (int(n) for n in s.rng.integers(1, 4, 5))
    q = s.real(rank=4) if s.chance(0.5) else s.input((batch, count, length, depth))
    batch, count, length, depth = q.shape
    shared = 1 if s.chance(0.1) else count
    k, v = s.input((batch, shared, depth, positions)), s.input((batch, shared, positions, depth))
    matmul(s, scores(s, q, k), v)


def stacked(s: Sketch) -> None:
    """Draw Reshape, Transpose and Reshape that transpose the last two axes of a tensor of rank 4.

    Some exporters write this form, which merges the first two axes to transpose a tensor of rank 3. A look-alike merges
    the middle two axes instead.
    """
    x = s.real(rank=4, low=1)
    batch, count, rows, columns = x.shape
    one = [batch, count * rows, columns] if s.chance(0.1) else [s.pick([batch * count, -1]), rows, columns]
    y = transpose(s, reshape(s, x, one), [0, 2, 1])
    reshape(s, y, [batch, count, columns, rows])


def whole_attention(s: Sketch) -> None:
    """Draw the operator Attention, with or without a scale, causal or not; seldom all heads share one key and value."""
    if s.opset < 23:
        raise Misfit
    batch, count, length, positions, depth = (int(n) for n in s.rng.integers(1, 4, 5))
    q = s.input((batch, count, length, depth))
    shared = 1 if s.chance(0.1) else count
    k, v = (s.input((batch, shared, positions, depth)) for _ in range(2))
    attributes = {"scale": s.pick([0.5, 1.5])} if s.chance(0.85) else {}
    attributes |= {"is_causal": 1} if s.chance(0.1) else {}
    s.op("Attention", q, k, v, **attributes)


def own_attention(s: Sketch) -> None:
    """Draw ONNX Runtime's MultiHeadAttention; the number of keys is random, as is the number of queries."""
    without_double(s)
    batch, length, positions, count, depth = (int(n) for n in s.rng.integers(1, 4, 5))
    q = s.input((batch, length, count * depth))
    k, v = (s.input((batch, positions, count * depth)) for _ in range(2))
    attributes = {"scale": s.pick([0.5, 1.5])} if s.chance(0.85) else {}
    attributes |= {"unidirectional": 1} if s.chance(0.1) else {}
    s.op("com.microsoft.MultiHeadAttention", q, k, v, num_heads=count, **attributes)


ATTENTION_MOTIFS = {  # motif → relative frequency
    attention: 3, heads: 1.5, heads_of_one: 1, heads_apart: 2, stacked: 0.5, whole_attention: 2, own_attention: 0.8,
}  # fmt: skip
