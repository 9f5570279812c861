"""Motifs of activation functions: decomposed as by exporters, as ONNX operators and as operators of ONNX Runtime."""

import numpy as np

from benchmarks.random_models.matrix_motifs import biased
from benchmarks.random_models.motifs import calm, commuted, one, positive, scalar, without_double
from benchmarks.random_models.sketch import Misfit, Sketch


def gelu(s: Sketch) -> None:
    """Draw x (erf(x / √2) + 1) / 2, with the products in one of the orders of exporters; sometimes x is a sum."""
    without_double(s)
    x = s.real()
    x = biased(s, x) if x.shape and s.chance(0.5) else x
    if s.chance(0.65):
        inner = s.op("Div", x, scalar(s, x, s.pick([2**0.5, 2**0.5, 2**0.5, 1.4142, 1.5])), bound=x.bound)
    else:
        inner = commuted(s, "Mul", x, scalar(s, x, s.pick([0.5**0.5, 0.5**0.5, 0.5**0.5, 0.7071])))
    curve = commuted(s, "Add", s.op("Erf", inner, bound=1), scalar(s, x, 1))
    half = scalar(s, x, 0.5 if s.chance(0.9) else 1)
    match s.pick(["last", "first", "inside"]):
        case "last":
            commuted(s, "Mul", commuted(s, "Mul", x, curve), half)
        case "first":
            commuted(s, "Mul", commuted(s, "Mul", x, half), curve)
        case "inside":
            commuted(s, "Mul", x, commuted(s, "Mul", curve, half))


def tanh_gelu(s: Sketch) -> None:
    """Draw the decomposed Tanh approximation of Gelu, 0.5 x (1 + tanh(0.798 (x + 0.0447 x³)))."""
    x = calm(s, s.real(low=1), 4)
    cube = s.op("Pow", x, scalar(s, x, s.pick([3, 3, 3, 2])), bound=x.bound**3)
    summed = commuted(s, "Add", x, commuted(s, "Mul", cube, scalar(s, x, s.pick([0.044715] * 4 + [0.05]))))
    inner = commuted(s, "Mul", summed, scalar(s, x, 0.7978845608028654))
    curve = commuted(s, "Add", s.op("Tanh", inner, bound=1), scalar(s, x, 1))
    commuted(s, "Mul", commuted(s, "Mul", x, scalar(s, x, 0.5)), curve)


def whole_gelu(s: Sketch) -> None:
    """Draw the operator Gelu, with or without approximation, of x or of x plus a constant."""
    if s.opset < 20:
        raise Misfit
    without_double(s)
    x = s.real(low=1)
    x = biased(s, x) if s.chance(0.5) else x
    s.op("Gelu", x, **{"approximate": s.pick(["tanh", "tanh", "none"])} if s.chance(0.6) else {})


def own_gelu(s: Sketch) -> None:
    """Draw the operator BiasGelu or QuickGelu of ONNX Runtime."""
    if s.chance(0.5):
        without_double(s)
        x = s.real(low=1)
        s.op("com.microsoft.BiasGelu", x, s.weight(x.shape[-1:]), bound=x.bound + 2)
    else:
        s.op("com.microsoft.QuickGelu", s.real(), alpha=s.pick([1.0, 1.0, 1.5, 0.5]))


def gated(s: Sketch) -> None:
    x = s.real()
    inner = commuted(s, "Mul", x, scalar(s, x, s.pick([1.702, 1.5]))) if s.chance(0.6) else x
    commuted(s, "Mul", x, s.op("Sigmoid", inner, bound=1))


def hard_curve(s: Sketch) -> None:
    """Draw the operator HardSwish, or HardSigmoid of x, alone or multiplied by x.

    HardSigmoid is one operator or the decomposition Clip(x + 3, 0, 6) / 6.
    """
    without_double(s)
    x = s.real(low=1)
    forms = ["operator", "divided", "multiplied"] + ["whole"] * (s.opset >= 14)
    match s.pick(forms):
        case "whole":
            s.op("HardSwish", x)
            return
        case "operator":
            y = s.op(
                "HardSigmoid", x, alpha=s.pick([1 / 6, 1 / 6, 1 / 6, 0.25]), beta=s.pick([0.5, 0.5, 0.5, 0.25]), bound=1
            )
        case form:
            top = s.pick([6.0, 6.0, 6.0, 5.0])
            late = {"min": np.asarray(0, x.dtype), "max": np.asarray(top, x.dtype)}
            clipped = s.op("Clip", commuted(s, "Add", x, scalar(s, x, 3)), late=late, bound=6)
            sixth = scalar(s, x, 6 if form == "divided" else 1 / 6)
            y = s.op("Div", clipped, sixth, bound=1) if form == "divided" else commuted(s, "Mul", clipped, sixth)
    if s.chance(0.6):
        commuted(s, "Mul", x, y)


def roots(s: Sketch) -> None:
    """Draw Pow of a positive tensor with the exponent 0.5 or, less often, 0.25."""
    y = positive(s, calm(s, s.real(low=1), 8))
    s.op("Pow", y, scalar(s, y, s.pick([0.5, 0.5, 0.5, 0.25])))


def quotients(s: Sketch) -> None:
    """Draw 1 / y as Div or Reciprocal, or 1.5 / y, and mostly multiply the result by x."""
    x = calm(s, s.real(low=1), 64)
    y = positive(s, calm(s, s.like(x), 8))
    match s.pick(["one", "one", "factor", "factor", "number"]):
        case "one":
            inverse = s.op("Div", scalar(s, y, 1), y, bound=2)
        case "number":
            inverse = s.op("Div", scalar(s, y, 1.5), y, bound=3)
        case "factor":
            inverse = s.op("Reciprocal", y, bound=2)
    if s.chance(0.7):
        commuted(s, "Mul", x, inverse)


def softmax(s: Sketch) -> None:
    """Draw a decomposed softmax, with or without subtracting the maximum first."""
    x = s.real(low=1)
    axis = np.array([s.pick([-1, len(x.shape) - 1, 0])])
    if s.chance(0.3):
        x = calm(s, x, 2)
        powers, summed = s.op("Exp", x, bound=8), 8 * x.shape[axis[0]]
    else:
        shifted = s.op("Sub", x, s.op("ReduceMax", x, late={"axes": axis}, keepdims=1))
        powers, summed = s.op("Exp", shifted, bound=1), x.shape[axis[0]]
    s.op("Div", powers, s.op("ReduceSum", powers, late={"axes": axis}, keepdims=1, bound=summed), bound=1)


def logarithm(s: Sketch) -> None:
    """Draw LogSoftmax, Log of Softmax, or Log of Sigmoid."""
    x = calm(s, s.real(low=1), 2)  # otherwise a probability could be rounded to 0, which has no logarithm
    axis = s.pick([-1, len(x.shape) - 1, 0])
    match s.pick(["one", "two", "two", "sigmoid"]):
        case "one":
            s.op("LogSoftmax", x, axis=axis, bound=12)
        case "two":
            s.op("Log", s.op("Softmax", x, axis=axis, bound=1), bound=12)
        case "sigmoid":
            s.op("Log", one(s, "Sigmoid", x), bound=3)


ACTIVATION_MOTIFS = {  # motif → relative frequency
    gelu: 4.5, tanh_gelu: 2, whole_gelu: 1.5, own_gelu: 1, gated: 1, hard_curve: 2.5, roots: 0.7, quotients: 1.2,
    softmax: 1.2, logarithm: 1,
}  # fmt: skip
