"""Cases of the rules about reductions and normalisations along the channels."""

from tests.rules.fused_cases import EPSILON
from tests.rules.instances import case

WHOLE = dict(x="2x3x4:int32")
NORM = dict(x="2x3x4x5", r=[1], q=[1], e=EPSILON, g="=3x1x1", b="=3x1x1")

CHANNELS = [
    *(
        each
        for name in ("mean-as-product", "sum-as-product")
        for each in (
            case(name, x="2x3x4x5", r=[1], k=1),
            case(name, x="Nx3x4", r=[-2], k=0, opset=13),
            case(name, x="2x3x4x5", r=[2, 1], k=0),
            case(name, x="3x4", r=[0], k=1, opset=11),
            case(name, "the input is empty", **WHOLE, r=[1], k=1),
            case(name, "the input is empty", x="2x3x0", r=[1], k=1),
            case(name, "the axes are not next to one another", x="2x3x4x5x2", r=[1, 3], k=1),
            case(name, "the last axis or several first ones", x="2x3x4", r=[2], k=1),
            case(name, "the last axis or several first ones", x="2x3x4", r=[0, 1], k=1),
            case(f"{name}-shaped", x="Nx3xHxW", r=[1]),
            case(f"{name}-shaped", x="2x3x4x5x6", r=[-4], opset=13),
            case(f"{name}-shaped", "the input is empty", x="2x3x4x5:int32", r=[1]),
        )
    ),
    case("mean-as-product-shaped", "the mean is not over the channels", x="2x3x4x5", r=[2]),
    case("sum-as-product-shaped", "the sum is not over the channels", x="2x3x4", r=[1]),
    case("mean-as-product", "a shape or an axis is not known in advance", x="2x3x4", r="1:int64", k=1),
    case("norm-as-root", x="2x3x4", r=[1], k=1),
    case("norm-as-root", x="2x3", r=[-1, 0], k=0, opset=13),
    case("norm-as-root", "the input is not of floats", **WHOLE, r=[1], k=1),
    case("sum-of-squares-apart", x="2x3x4", r=[1], k=1),
    case("sum-of-squares-apart", x="2x3", r=[], k=0, opset=13),
    case("sum-of-squares-apart", "the input is not of floats", **WHOLE, r=[1], k=1),
    case("max-in-blocks", x="2x8x3", r=[1], k=1),
    case("max-in-blocks", x="Nx6x3x2", r=[-3], k=0, opset=13),
    case("max-in-blocks", "the input is empty", x="2x8x3:int32", r=[1], k=1),
    case("max-in-blocks", "the maximum is not over one axis", x="3x8", r=[1], k=1),
    case("max-in-blocks", "the axis is not divided into blocks", x="2x4x3", r=[1], k=1),
    case("max-in-blocks", "the axis is not divided into blocks", x="2x5x3", r=[1], k=1),
    case("max-of-halves", x="2x5x3", r=[1]),
    case("max-of-halves", x="2x6x3x2", r=[-3], opset=13),
    case("max-of-halves", "the input is empty", x="2x5x3:int32", r=[1]),
    case("max-of-halves", "the maximum is not over one axis", x="2x5x3", r=[1, 2]),
    case("max-of-halves", "there is one place, or four blocks are faster", x="2x1x3", r=[1]),
    case("max-of-halves", "there is one place, or four blocks are faster", x="2x8x3", r=[1]),
    case("max-of-halves", "proved for bounded shapes only", x="Nx5x3", r=[1]),
    *(
        each
        for name in ("reducemax-of-one", "reducesum-of-one", "reducemean-of-one")
        for each in (
            case(name, x="2x1x3", r=[1]),
            case(name, x="1x1", r=[-1, 0], opset=13),
            case(name, "an axis has several places", x="2x1x3", r=[1, 2]),
        )
    ),
    case("log-softmax-apart", x="2x3x4", i=1),
    case("log-softmax-apart", x="2x3", i=-1, opset=13),
    case("log-softmax-apart", "an empty tensor has no maximum", x="2x0", i=0),
    case("group-normalization-apart", x="2x6x3", s="=6", b="6", g=2, e=1e-3, opset=21, dtype="float32"),
    case("group-normalization-apart", "the installed ONNX Runtime has no Instance", x="2x6x3", s="6", b="6", g=2,
        e=EPSILON, opset=21),
    case("group-normalization-apart", x="Nx4xHxW", s="4", b="=4", g=4, e=None, opset=23, dtype="float32"),
    case("group-normalization-apart", "the input is empty", x="2x4x0", s="4", b="4", g=2, e=EPSILON, opset=21),
    case("div-by-fewer", x="2x4x3", y="2x1x3"),
    case("div-by-fewer", x="Nx8x3", y="Nx1x3", opset=13),
    case("div-by-fewer", "the divisor is constant", x="2x4x3", y="+2x1x3"),
    case("div-by-fewer", "the divisors are not far fewer", x="2x3x3", y="2x1x3"),
    case("layer-normalization-of-channels", **NORM),
    case("layer-normalization-of-channels", **NORM | dict(x="Nx3xW", q="@r", g="3x1", b="@g"), opset=18),
    case("layer-normalization-of-channels", "axes or epsilon are not constant", **NORM | dict(e="1")),
    case("layer-normalization-of-channels", "the mean is not over the channels", **NORM | dict(x="2x3x3x5", q=[2])),
    case("layer-normalization-of-channels", "scale and offset are not one number", **NORM | dict(g="=1")),
    case("layer-normalization-of-channels", "LayerNormalization needs a newer opset", **NORM, opset=16),
]  # fmt: skip
