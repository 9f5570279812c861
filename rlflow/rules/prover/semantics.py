"""What every operator means: the axioms that proofs of rules stand on.

Each operator is defined by an equation on elements: a tensor is a shape and a function from an index to a number,
and `at=lambda i: …` says what stands at index i. The equations are written for an algebra `m`, so that one text
serves numbers (rlflow.rules.prover.numbers) and symbols (rlflow.rules.prover.symbolic). The table OPERATORS names
them all; the equations stand by kind in elements, layout, sums, windows and fused. An algebra has

    m.total(sizes, body), m.greatest(sizes, body, inside)   Σ and max of body(k) over all indices k
    m.inside(pairs, value)     value() if 0 ≤ position < size for every (position, size), else 0
    m.choose(c, a, b)          the integer a if c, else b
    m.wider(a, b)              of two sizes that are equal or one of them 1: the one that is not
    m.met(size, whole, k)      index k of an axis of size `whole`, on one of that size or of size 1
    m.number(n)  m.quotient(a, b)  m.larger(a, b)  m.apply("exp", a)     numbers
    m.position(shape, index), m.index(position, shape)   the position in row-major order, and back
    m.reshaped(shape, wanted, allowzero)         the shape that Reshape makes of `wanted`, with 0 and -1 filled in
    m.require(c)               what the operator asks of its inputs
    m.windows(a, sizes, kernel)   windows that the algebra reads in a way of its own, or None

and its integers and numbers have +, -, *, // and comparisons. `if` on a comparison is allowed everywhere.

Numbers are real: neither rounding nor what floats have beside numbers is part of the meaning. So a proof speaks of
finite inputs, and of runs in which nothing overflows; of others it says nothing, whatever the rule (factors that are
multiplied in another order may overflow where they did not before). In such a run IsNaN is never true, but for what
an infinity among the model's own constants does: a softmax has no value where all of a row is masked by -inf. Hence
a rule that takes a guard away (`guard-of-softmax`) asks, by a condition, that what it guards against cannot be: no
mask, or one of finite numbers only (`finite`), however low. Where a mask holds -inf the guard can fire, and stays.
"""

from collections.abc import Callable

from rlflow.rules.prover import elements, fused, layout, sums, windows
from rlflow.rules.prover.tensors import Attributes, Tensor, pointwise

STANDARD: dict[str, Callable] = {
    "Identity": layout.identity,
    "Dropout": layout.identity,
    "Relu": elements.unary(lambda m, a, e: m.larger(e, m.number(0))),
    "Neg": elements.unary(lambda m, a, e: -e),
    "Abs": elements.unary(lambda m, a, e: m.larger(e, -e)),
    "Reciprocal": elements.unary(lambda m, a, e: m.quotient(m.number(1), e)),
    "Exp": elements.function("exp"),
    "Log": elements.function("log"),
    "Sqrt": elements.function("sqrt"),
    "Erf": elements.function("erf"),
    "Tanh": elements.unary(lambda m, a, e: elements.tanh(m, e)),
    "Sigmoid": elements.unary(lambda m, a, e: elements.sigmoid(m, e)),
    "Gelu": elements.unary(lambda m, a, e: elements.gelu(m, e, a("approximate", b"none"))),
    "LeakyRelu": elements.unary(lambda m, a, e: elements.leaky(m, e, a("alpha", 0.01))),
    "HardSigmoid": elements.unary(lambda m, a, e: elements.hard_sigmoid(m, e, a("alpha", 0.2), a("beta", 0.5))),
    "HardSwish": elements.unary(lambda m, a, e: e * elements.hard_sigmoid(m, e, "1/6", 0.5)),
    "Clip": elements.clip,
    "Cast": elements.cast,
    "Where": elements.where,
    "IsNaN": elements.never,
    "Equal": elements.truth("equal"),
    "And": elements.truth("and"),
    "Add": elements.folded(lambda m, p, q: p + q),
    "Sum": elements.folded(lambda m, p, q: p + q),
    "Sub": elements.folded(lambda m, p, q: p - q),
    "Mul": elements.folded(lambda m, p, q: p * q),
    "Max": elements.folded(lambda m, p, q: m.larger(p, q)),
    "Min": elements.folded(elements.smaller),
    "Div": elements.divide,
    "Pow": elements.power,
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
    "MatMul": sums.matmul,
    "Gemm": sums.gemm,
    "ReduceSum": sums.reduced(lambda m, sizes, body: m.total(sizes, body)),
    "ReduceMean": sums.reduced(sums.mean, sums.integer_mean),
    "ReduceMax": sums.reduced(sums.greatest),
    "ReduceMin": sums.reduced(sums.least),
    "GlobalAveragePool": sums.global_pool(sums.mean),
    "GlobalMaxPool": sums.global_pool(sums.greatest),
    "Softmax": sums.softmax,
    "LogSoftmax": lambda m, a, x: pointwise(m, lambda e: m.apply("log", e), sums.softmax(m, a, x)),
    "BatchNormalization": sums.batch_normalization,
    "LayerNormalization": sums.layer_normalization,
    "RMSNormalization": sums.rms_normalization,
    "Attention": fused.attention,
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "MaxPool": windows.max_pool,
    "AveragePool": windows.average_pool,
}
MICROSOFT: dict[str, Callable] = {  # of the domain com.microsoft
    "Gelu": STANDARD["Gelu"],
    "BiasGelu": fused.bias_gelu,
    "FastGelu": fused.fast_gelu,
    "QuickGelu": fused.quick_gelu,
    "FusedMatMul": fused.fused_matmul,
    "FusedGemm": fused.fused_gemm,
    "FusedConv": fused.fused_conv,
    "SkipLayerNormalization": fused.skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": fused.skip_rms_normalization,
    "MultiHeadAttention": fused.multi_head_attention,
}
OPERATORS: dict[str, Callable] = STANDARD | MICROSOFT


def is_defined(op: str, domain: str) -> bool:
    return op in (MICROSOFT if domain else STANDARD)


def outputs_of(m, op: str, a: Attributes, inputs: list[Tensor | None]) -> list[Tensor]:
    """The outputs of one operator. Raises KeyError for one that has no definition."""
    result = OPERATORS[op](m, a, *inputs)
    return result if isinstance(result, list) else [result]
