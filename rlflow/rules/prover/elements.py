"""Operators that make one number of one number from each input."""

from collections.abc import Callable
from dataclasses import replace

from onnx import TensorProto

from rlflow.rules.prover.tensors import Tensor, pointwise


def folded(f: Callable) -> Callable:
    """An operator of any number of inputs from one of two."""

    def apply(m, a, *tensors):
        def all_of(first, *rest):
            for other in rest:
                first = f(m, first, other)
            return first

        return pointwise(m, all_of, *tensors)

    return apply


def unary(f: Callable) -> Callable:
    """An operator on single numbers; `f(m, a, x)` with its attributes."""
    return lambda m, a, x, *others: pointwise(m, lambda e: f(m, a, e), x)


def function(name: str) -> Callable:
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
    return m.larger(e, m.number(0)) + m.number(slope) * smaller(m, e, m.number(0))


def clip(m, a, x, low=None, high=None):
    for bound, f in ((low, m.larger), (high, lambda p, q: smaller(m, p, q))):
        if bound is not None:
            m.require(bound.rank == 0)
            x = pointwise(m, f, x, bound)
    return x


def divide(m, a, x, y):
    if x.floats:
        return pointwise(m, m.quotient, x, y)
    return pointwise(m, lambda p, q: m.apply("integer quotient", p, q), x, y)


def power(m, a, x, y):
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


# (from, to) of onnx.TensorProto: every number of the first type is one of the second.
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
    """A number that the other type has stays; of others it is a function of the number and that type only."""
    to, source = a("to"), x.origin or x.dtype
    if to == source or (source, to) in WIDENING:
        return Tensor(x.shape, x.at, to, origin=source)
    return Tensor(x.shape, lambda i: m.apply(f"cast to {to}", x.at(i)), to)


def where(m, a, condition, x, y):
    def one(c, p, q):
        chosen = m.number(c) if isinstance(c, int) else m.apply("flag", c)  # 1 or 0
        return chosen * p + (m.number(1) - chosen) * q

    return replace(pointwise(m, one, condition, x, y), dtype=x.dtype)


def truth(name: str) -> Callable:
    """A question to two numbers, of which proofs know only that equal ones have equal answers."""

    def apply(m, a, x, y):
        return replace(pointwise(m, lambda p, q: m.apply(name, p, q), x, y), dtype=TensorProto.BOOL)

    return apply


def never(m, a, x):
    """Of no real number; see rlflow.rules.prover.semantics."""
    return Tensor(x.shape, lambda i: 0, TensorProto.BOOL)


# -- activations of fused operators ----------------------------------------------------------------


def activated(m, kind: bytes | None, parameters: list, x: Tensor) -> Tensor:
    """What the attribute `activation` of com.microsoft's FusedConv and FusedGemm says."""
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
