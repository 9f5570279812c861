"""Define what every operator computes. These definitions are the axioms of all proofs.

An operator is a function `f(m, a, *inputs)`. `m` is the algebra, `a` holds the Attributes, and each input is a Tensor,
or None if it is absent. The function returns a Tensor, or a list of Tensors for several outputs. A tensor is a shape
and a function from an index to a number; `at=lambda i: …` gives the element at index i. The table OPERATORS lists all
operators. Elementwise operators, attention and the fused operators of com.microsoft are defined here; layout.py and
reductions.py define all other operators. Optional inputs of attention for masks and past keys have no definition, so
no proof covers them.

One definition serves three algebras: plain numbers (rlflow.proving.numbers), formal numbers (rlflow.proving.formal) and
symbols (rlflow.proving.symbolic). These are the main methods of an algebra:

    m.total(sizes, body), m.greatest(sizes, body, inside)   sum and maximum of body(k) over all indices k
    m.place_of_greatest(size, body, last)        first or last k below the size with the largest body(k)
    m.inside(pairs, value)     value() if 0 ≤ position < size for every (position, size), else 0
    m.choose(c, a, b)          the integer a if c, else b
    m.broadcast_size(a, b)     the common size of two sizes: they are equal, or one of them is 1
    m.broadcast_index(size, whole, k)   the index that broadcasting from `size` to `whole` maps k to
    m.number(n)  m.quotient(a, b)  m.larger(a, b)  m.apply("exp", a)     numbers
    m.nearest(place, rounding, k, size, factor)   the position that a nearest Resize reads
    m.between(place, k, size, factor)   the two positions and the weight of a linear Resize
    m.position(shape, index), m.index(position, shape)   the position in row-major order, and back
    m.reshaped(shape, wanted, allowzero)         the shape that Reshape makes of `wanted`, with 0 and -1 filled in
    m.require(c)               a requirement c of the operator on its inputs
    m.windows(a, sizes, kernel)   opaque windows of a convolution or pool, or None to compute the window positions

The integers and numbers of an algebra have +, -, *, // and comparisons. `if` on a comparison is allowed everywhere.

Numbers are real. The definitions ignore rounding, overflow and NaN, so a proof covers finite inputs and computations
without overflow. A softmax has no value where a mask of -inf hides a whole row. A rule that removes a guard against
this (`guard-of-softmax`) therefore has the condition that there is no mask or that the mask is `finite`.
"""

from collections.abc import Callable
from dataclasses import replace

from onnx import TensorProto

from rlflow.proving import layout, reductions
from rlflow.proving.layout import renamed, transpose
from rlflow.proving.reductions import conv, gemm, layer_normalization, matmul, rms_normalization, softmax
from rlflow.proving.tensors import Attributes, Tensor, pointwise, require_not_enlarging


def variadic(f: Callable) -> Callable:
    """Make an elementwise operator on any number of inputs.

    Args:
      f: `f(m, p, q)` combines two elements; it is applied from the first input to the last.
    """

    def apply(m, a, *tensors):
        def all_of(first, *rest):
            for other in rest:
                first = f(m, first, other)
            return first

        return pointwise(m, all_of, *tensors)

    return apply


def unary(f: Callable) -> Callable:
    """Make an elementwise operator on one input from `f(m, a, e)`, a function of algebra, attributes and element."""
    return lambda m, a, x, *others: pointwise(m, lambda e: f(m, a, e), x)


def function(name: str) -> Callable:
    """Make an elementwise operator on one input from a function that `m.apply` computes, such as "exp"."""
    return unary(lambda m, a, e: m.apply(name, e))


def smaller(m, a, b):
    return -m.larger(-a, -b)


def half(m):
    return m.quotient(m.number(1), m.number(2))


def sigmoid(m, e):
    return m.quotient(m.number(1), m.number(1) + m.apply("exp", -e))


def tanh(m, e):
    return m.number(2) * sigmoid(m, m.number(2) * e) - m.number(1)


def gelu(m, e, approximate=b"none"):
    if approximate == b"tanh":
        cubic = e + m.number(0.044715) * e * e * e
        return half(m) * e * (m.number(1) + tanh(m, m.number(0.7978845608028654) * cubic))
    return half(m) * e * (m.number(1) + m.apply("erf", m.quotient(e, m.number(1.4142135623730951))))


def hard_sigmoid(m, e, slope, offset):
    return smaller(m, m.larger(m.number(slope) * e + m.number(offset), m.number(0)), m.number(1))


def leaky(m, e, slope):
    """Return LeakyRelu of the element `e`, with factor `slope` for negative elements."""
    return m.larger(e, m.number(0)) + m.number(slope) * smaller(m, e, m.number(0))


def elu(m, e, slope):
    """Return Elu of the element `e`: slope · (exp(e) - 1) for negative elements."""
    return m.larger(e, m.number(0)) + m.number(slope) * (m.apply("exp", smaller(m, e, m.number(0))) - m.number(1))


def clip(m, a, x, low=None, high=None):
    for bound, f in ((low, m.larger), (high, lambda p, q: smaller(m, p, q))):
        if bound is not None:
            m.require(bound.rank == 0)
            x = pointwise(m, f, x, bound)
    return x


def divide(m, a, x, y):
    """Define Div. Integer tensors use the function "integer quotient", which rounds towards 0 as ONNX does."""
    if x.floats:
        return pointwise(m, m.quotient, x, y)
    return pointwise(m, lambda p, q: m.apply("integer quotient", p, q), x, y)


def power(m, a, x, y):
    """Define Pow. For floats, an integer exponent gives a product and ±1/2 a square root; else use "power"."""
    def one(base, exponent):
        known = m.known(exponent)
        if not x.floats or known is None:
            return m.apply("power", base, exponent)
        if known == 0.5:
            return m.apply("sqrt", base)
        if known == -0.5:
            return m.quotient(m.number(1), m.apply("sqrt", base))
        if known != int(known):
            return m.apply("power", base, exponent)
        result = m.number(1)
        for _ in range(abs(int(known))):
            result = result * base
        return result if known >= 0 else m.quotient(m.number(1), result)

    return pointwise(m, one, x, y)


# (from, to) pairs of onnx.TensorProto types: the second type can hold every value of the first.
WIDENING = frozenset(
    (narrow, wide)
    for wide, narrows in {
        TensorProto.DOUBLE: "FLOAT FLOAT16 BFLOAT16 INT32 UINT32 INT16 UINT16 INT8 UINT8 BOOL",
        TensorProto.FLOAT: "FLOAT16 BFLOAT16 INT16 UINT16 INT8 UINT8 BOOL",
        TensorProto.FLOAT16: "INT8 UINT8 BOOL",
        TensorProto.INT64: "INT32 UINT32 INT16 UINT16 INT8 UINT8 BOOL",
        TensorProto.INT32: "INT16 UINT16 INT8 UINT8 BOOL",
    }.items()
    for narrow in map(TensorProto.DataType.Value, narrows.split())
)


def cast(m, a, x):
    """Define Cast. If the target type holds all values of the source type, elements stay; else use "cast to …"."""
    to, source = a("to"), x.origin or x.dtype
    if to == source or (source, to) in WIDENING:
        return Tensor(x.shape, x.at, to, origin=source)
    return Tensor(x.shape, lambda i: m.apply(f"cast to {to}", x.at(i)), to)


def where(m, a, condition, x, y):
    """Define Where as chosen · x + (1 - chosen) · y, where `chosen` is 1 if the condition holds, else 0."""
    def one(c, p, q):
        chosen = m.number(c) if isinstance(c, int) else m.apply("flag", c)  # 1 or 0
        return chosen * p + (m.number(1) - chosen) * q

    return replace(pointwise(m, one, condition, x, y), dtype=x.dtype)


def truth(name: str) -> Callable:
    """Make an elementwise operator with a boolean result from the function `name` of two elements.

    Proofs know one property of the function: equal arguments give equal results.
    """

    def apply(m, a, x, y):
        return replace(pointwise(m, lambda p, q: m.apply(name, p, q), x, y), dtype=TensorProto.BOOL)

    return apply


def never(m, a, x):
    """Define IsNaN, which is False everywhere, because elements are real numbers."""
    return Tensor(x.shape, lambda i: 0, TensorProto.BOOL)


# -- activations of fused operators ----------------------------------------------------------------


def activated(m, kind: bytes | None, parameters: list, x: Tensor) -> Tensor:
    """Apply the activation of com.microsoft's FusedConv and FusedGemm.

    Args:
      m: the algebra.
      kind: the attribute `activation`; None for no activation.
      parameters: the parameters of the activation, in the order of ONNX Runtime.
      x: the tensor before the activation.
    """
    one = {
        None: lambda e: e,
        b"Relu": lambda e: m.larger(e, m.number(0)),
        b"Tanh": lambda e: tanh(m, e),
        b"Sigmoid": lambda e: sigmoid(m, e),
        b"LeakyRelu": lambda e: leaky(m, e, *parameters),
        b"HardSigmoid": lambda e: hard_sigmoid(m, e, *parameters),
        b"Clip": lambda e: smaller(m, m.larger(e, m.number(parameters[0])), m.number(parameters[1])),
    }[kind]
    return pointwise(m, one, x)


def permuted(m, x: Tensor, *perm: int) -> Tensor:
    """Return the transposed tensor: its axis k is axis `perm[k]` of x."""
    return transpose(m, Attributes({"perm": perm}), x)


def scaled_products(m, q: Tensor, k: Tensor, v: Tensor, scale) -> Tensor:
    """Return softmax(q kᵀ · scale) v for each batch entry and head.

    Args:
      m: the algebra.
      q, k, v: tensors (batch, heads, positions, features).
      scale: the factor of the scores; None for 1/√(features of a head).
    """
    if scale is None:
        scale = m.quotient(m.number(1), m.apply("sqrt", m.number(q.shape[3])))
    scores = pointwise(m, lambda e: e * m.number(scale), matmul(m, None, q, permuted(m, k, 0, 1, 3, 2)))
    return matmul(m, None, softmax(m, Attributes({"axis": -1}), scores), v)


def attention(m, a, q, k, v):
    """Define Attention without mask, causal or windowed masking and softcap.

    The inputs have the shape (batch, heads, positions, features). Several heads of q may share one head of k and v
    (grouped-query attention).
    """
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
    """Define MultiHeadAttention for inputs (batch, positions, heads · features), without bias or mask."""
    m.require(q.rank == 3 and k.rank == 3 and v.rank == 3)
    m.require(not a("unidirectional", 0))
    for one, other in ((q.shape[0], k.shape[0]), (q.shape[0], v.shape[0]), (q.shape[2], k.shape[2])):
        m.require(one == other)
    m.require(k.shape[1] == v.shape[1])
    heads = a("num_heads")
    m.require(heads is not None)
    for t in (q, v):
        m.require(t.shape[2] == (t.shape[2] // heads) * heads)
    apart = lambda t: permuted(m, renamed(m, t, (*t.shape[:2], heads, t.shape[2] // heads)), 0, 2, 1, 3)  # noqa: E731
    result = permuted(m, scaled_products(m, apart(q), apart(k), apart(v), a("scale")), 0, 2, 1, 3)
    return renamed(m, result, (*q.shape[:2], v.shape[2]))


def fused_matmul(m, a, x, y):
    """Define FusedMatMul: alpha · x y, with the last two axes of x or y exchanged if transA or transB is 1.

    A vector is never transposed. If y is a vector, ONNX Runtime requires a square x for transA = 1 and does not
    transpose x.
    """
    m.require(not a("transBatchA", 0) and not a("transBatchB", 0))
    flip = lambda t: permuted(m, t, *range(t.rank - 2), t.rank - 1, t.rank - 2)  # noqa: E731
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
    """Return x + skip + bias.

    Args:
      m: the algebra.
      x: a tensor (batch, positions, features).
      skip: a tensor of the same shape, or with batch size 1 or without the batch axis.
      bias: a tensor (features,), or None.
    """
    m.require(x.rank == 3 and skip.rank in (2, 3))
    require_not_enlarging(m, skip, x)
    m.require(skip.shape[-1] == x.shape[-1])
    m.require(skip.shape[-2] == x.shape[-2])
    result = pointwise(m, lambda p, q: p + q, x, skip)
    if bias is None:
        return result
    per_feature(m, bias, x)
    return pointwise(m, lambda p, q: p + q, result, bias)


def per_feature(m, t: Tensor, x: Tensor) -> None:
    """Require that `t` has rank 1 and the size of the last axis of `x`."""
    m.require(t.rank == 1)
    m.require(t.shape[0] == x.shape[-1])


def skip_layer_normalization(m, a, x, skip, scale, offset=None, bias=None):
    """Define the first output of SkipLayerNormalization: LayerNormalization of x + skip + bias."""
    for t in (scale, offset):
        if t is not None:
            per_feature(m, t, x)
    epsilon = Attributes({"epsilon": a("epsilon", 1e-12)})
    return layer_normalization(m, epsilon, skipped(m, x, skip, bias), scale, offset)


def skip_rms_normalization(m, a, x, skip, scale, bias=None):
    """Define the first output of SkipSimplifiedLayerNormalization: RMSNormalization of x + skip + bias."""
    per_feature(m, scale, x)
    return rms_normalization(m, Attributes({"epsilon": a("epsilon", 1e-12)}), skipped(m, x, skip, bias), scale)


STANDARD: dict[str, Callable] = {
    "Identity": layout.identity,
    "Dropout": layout.identity,
    "Relu": unary(lambda m, a, e: m.larger(e, m.number(0))),
    "Neg": unary(lambda m, a, e: -e),
    "Abs": unary(lambda m, a, e: m.larger(e, -e)),
    "Reciprocal": unary(lambda m, a, e: m.quotient(m.number(1), e)),
    "Exp": function("exp"),
    "Log": function("log"),
    "Sqrt": function("sqrt"),
    "Erf": function("erf"),
    "Sin": function("sin"),
    "Tanh": unary(lambda m, a, e: tanh(m, e)),
    "Sigmoid": unary(lambda m, a, e: sigmoid(m, e)),
    "Gelu": unary(lambda m, a, e: gelu(m, e, a("approximate", b"none"))),
    "LeakyRelu": unary(lambda m, a, e: leaky(m, e, a("alpha", 0.01))),
    "Elu": unary(lambda m, a, e: elu(m, e, a("alpha", 1.0))),
    "HardSigmoid": unary(lambda m, a, e: hard_sigmoid(m, e, a("alpha", 0.2), a("beta", 0.5))),
    "HardSwish": unary(lambda m, a, e: e * hard_sigmoid(m, e, "1/6", 0.5)),
    "Clip": clip,
    "Cast": cast,
    "Where": where,
    "IsNaN": never,
    "Equal": truth("equal"),
    "And": truth("and"),
    "Add": variadic(lambda m, p, q: p + q),
    "Sum": variadic(lambda m, p, q: p + q),
    "Sub": variadic(lambda m, p, q: p - q),
    "Mul": variadic(lambda m, p, q: p * q),
    "Max": variadic(lambda m, p, q: m.larger(p, q)),
    "Min": variadic(smaller),
    "Div": divide,
    "Pow": power,
    "Shape": layout.shape,
    "Transpose": layout.transpose,
    "Reshape": layout.reshape,
    "Flatten": layout.flatten,
    "Squeeze": layout.squeeze,
    "Unsqueeze": layout.unsqueeze,
    "Expand": layout.expand,
    "Resize": layout.resize,
    "Concat": layout.concat,
    "Split": layout.split,
    "Slice": layout.slice_,
    "Pad": layout.pad,
    "Tile": layout.tile,
    "Gather": layout.gather,
    "SpaceToDepth": layout.space_to_depth,
    "DepthToSpace": layout.depth_to_space,
    "MatMul": reductions.matmul,
    "Gemm": reductions.gemm,
    "Einsum": reductions.einsum,
    "ReduceSum": reductions.reduced(lambda m, sizes, body: m.total(sizes, body)),
    "ReduceMean": reductions.reduced(reductions.mean, reductions.integer_mean),
    "ReduceSumSquare": reductions.reduced(reductions.total_of_squares),
    "ReduceL2": reductions.reduced(lambda m, sizes, body: m.apply("sqrt", reductions.total_of_squares(m, sizes, body))),
    "ReduceMax": reductions.reduced(reductions.greatest),
    "ReduceMin": reductions.reduced(reductions.least),
    "ArgMax": reductions.arg_max,
    "DFT": reductions.dft,
    "ScatterElements": reductions.scatter_elements,
    "ScatterND": reductions.scatter_nd,
    "STFT": reductions.stft,
    "GlobalAveragePool": reductions.global_pool(reductions.mean),
    "GlobalMaxPool": reductions.global_pool(reductions.greatest),
    "Softmax": reductions.softmax,
    "LogSoftmax": lambda m, a, x: pointwise(m, lambda e: m.apply("log", e), reductions.softmax(m, a, x)),
    "BatchNormalization": reductions.batch_normalization,
    "InstanceNormalization": reductions.instance_normalization,
    "GroupNormalization": reductions.group_normalization,
    "LayerNormalization": reductions.layer_normalization,
    "RMSNormalization": reductions.rms_normalization,
    "Attention": attention,
    "Conv": reductions.conv,
    "ConvTranspose": reductions.conv_transpose,
    "MaxPool": reductions.max_pool,
    "AveragePool": reductions.average_pool,
}
MICROSOFT: dict[str, Callable] = {  # operators of the domain com.microsoft
    "Gelu": STANDARD["Gelu"],
    "BiasGelu": bias_gelu,
    "FastGelu": fast_gelu,
    "QuickGelu": quick_gelu,
    "FusedMatMul": fused_matmul,
    "FusedGemm": fused_gemm,
    "FusedConv": fused_conv,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_rms_normalization,
    "MultiHeadAttention": multi_head_attention,
}
OPERATORS: dict[str, Callable] = STANDARD | MICROSOFT


def is_defined(op: str, domain: str) -> bool:
    """Return True if the operator of this domain has a definition.

    Args:
      op: the operator's type.
      domain: "" for ONNX's own operators, or "com.microsoft".
    """
    return op in (MICROSOFT if domain else STANDARD)


def outputs_of(m, op: str, a: Attributes, inputs: list[Tensor | None]) -> list[Tensor]:
    """Return the output tensors of one operator.

    Args:
      m: the algebra.
      op: the operator's type.
      a: the attributes of the operator.
      inputs: the input tensors; None for an absent input.

    Raises:
      KeyError: if the operator has no definition.
    """
    result = OPERATORS[op](m, a, *inputs)
    return result if isinstance(result, list) else [result]
