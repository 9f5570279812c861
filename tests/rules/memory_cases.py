"""Cases of the rules that reduce the memory of a model."""

from tests.rules.instances import case

P1 = dict(pads=[1, 1, 1, 1])
S2 = dict(strides=[2, 2])
G2 = dict(group=2)
THREE = dict(l=["1x2x5x5", "1x1x5x5"], x="1x3x5x5", w="=4x6x3x3")
TWO = dict(x="1x2x5x5", y="1x3x5x5", w="=4x5x3x3")
STATISTICS = dict(s="=6", b="=6", m="=6", v="+6", e=1e-3)
HALVES = dict(x="1x3x5x5", w="=8x3x3x3")
DEPTHWISE = dict(x="1x2x5x5", y="1x3x5x5", w="=5x1x3x3", g=5)

MEMORY = [
    *(
        each
        for name in ("conv-of-several", "conv-relu-of-several")
        for each in (
            case(name, **THREE, b=[], a=P1),
            case(name, **THREE, b=["=4"], a=S2 | P1, dtype="float32"),
            case(name, l=["2x1x5", "2x1x5", "2x2x5"], x="2x1x5", w="=3x5x2", b=["=3"], a={}, opset=9),
            case(name, "there are but two parts", **THREE | dict(l=["1x3x5x5"]), b=[], a={}),
            case(name, "the weight is not constant", **THREE | dict(w="4x6x3x3"), b=[], a={}),
            case(name, "the convolution is grouped", **THREE | dict(w="=4x3x3x3"), b=[], a=G2),
        )
    ),
    *(
        each
        for name in ("conv-of-two", "conv-of-two-first", "conv-relu-of-two")
        for each in (
            case(name, **TWO, b=[], a=P1),
            case(name, **TWO, b=["=4"], a=S2, dtype="float32"),
            case(name, x="2x2x5", y="@x", w="=3x4x1", b=["3"], a={}, opset=9),
            case(name, "the weight is not constant", **TWO | dict(w="4x5x3x3"), b=[], a={}),
            case(name, "the convolution is grouped", x="1x2x5", y="@x", w="=4x2x1", b=[], a=G2),
        )
    ),
    *(
        each
        for name, extra in (("depthwise-of-two", {}), ("depthwise-bias-of-two", dict(b="=5")))
        for each in (
            case(name, **DEPTHWISE, **extra, a=P1 | S2),
            case(name, **DEPTHWISE | dict(x="2x2x7", y="2x3x7", w="=5x1x2"), **extra, a={}, opset=10),
            case(name, "weight or bias" if extra else "the weight",
                 **DEPTHWISE | dict(w="5x1x3x3"), **extra, a={}),
            case(name, "not one kernel per channel", x="1x2x5", y="1x3x5", w="=10x1x1", g=5,
                 **({"b": "=10"} if extra else {}), a={}),
        )
    ),
    case("batchnorm-of-several", l=["1x2x4x4", "1x1x4x4"], x="1x3x4x4", **STATISTICS),
    case("batchnorm-of-several", l=["2x2", "2x1"], x="2x3", **STATISTICS, opset=9),
    case("batchnorm-of-several", "there are but two parts", l=["1x3x4x4"], x="1x3x4x4", **STATISTICS),
    case("batchnorm-of-several", "a statistic is not", l=["2x2", "2x1"], x="2x3", **STATISTICS | dict(b="6")),
    case("batchnorm-of-two", x="1x2x4x4", y="1x4x4x4", **STATISTICS),
    case("batchnorm-of-two", x="2x3", y="@x", **STATISTICS, opset=9),
    case("batchnorm-of-two", "a statistic is not", x="1x2x4x4", y="1x4x4x4", **STATISTICS | dict(m="6")),
    case("relu-of-several", l=["2x3", "2x1"], x="2x4", i=1),
    case("relu-of-several", l=["2x3x2", "1x3x2"], x="2x3x2", i=-3),
    case("relu-of-several", "there are but two parts", l=["2x3"], x="2x4", i=1),
    *(
        each
        for name in ("sigmoid-of-two", "hardswish-of-two")
        for each in (case(name, x="2x3", y="2x4", i=1), case(name, x="2x3x2", y="@x", i=-3, opset=14))
    ),
    case("clip-of-two", x="2x3", y="2x4", i=1, c=0.0, d=6.0),
    case("clip-of-two", x="2x3x2", y="@x", i=-2, c=-1.0, d=1.0, opset=12),
    case("pad-of-two", x="1x2x3x3", y="1x1x3x3", p=[0, 0, 1, 0, 0, 0, 1, 2], a={}),
    case("pad-of-two", x="2x2x4", y="@x", p=[0, 0, 1, 1, 0, 2], a=dict(mode="reflect"), opset=12),
    case("pad-of-two", "channels are padded", x="1x2x3x3", y="1x1x3x3", p=[0, 1, 1, 0, 0, 0, 1, 1], a={}),
    case("pad-of-two", "channels are padded", x="1x2x3", y="1x1x3", p=[0, 0, 1, 0, 1, 0], a={}),
    *(
        each
        for name, extra in (("conv-in-halves", {}), ("conv-bias-in-halves", dict(b="=8")))
        for each in (
            case(name, **HALVES, **extra, a=P1 | S2),
            case(name, x="2x3x7", w="=8x3x2", **extra, a={}, opset=9),
            case(name, "weight or bias" if extra else "the weight", **HALVES | dict(w="8x3x3x3"), **extra, a={}),
            case(name, "the channels have no halves", x="1x3x5", w="=9x3x1", **({"b": "=9"} if extra else {}), a={}),
            case(name, "the channels have no halves", x="1x3x5", w="=6x3x1", **({"b": "=6"} if extra else {}), a={}),
            case(name, "the convolution is grouped", x="1x4x5", w="=8x2x1", **extra, a=G2),
        )
    ),
    case("add-associates", x="2x3", y="2x3", z="2x3"),
    case("add-associates", x="2x3", y="@x", z="2x3", opset=9),
    case("add-associates", "the summands have", x="2x3", y="2x3", z="3"),
    case("add-associates", "a summand is constant", x="2x3", y="2x3", z="=2x3"),
]  # fmt: skip
