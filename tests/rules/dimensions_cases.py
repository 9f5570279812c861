"""Cases of the rules about convolutions and poolings over one axis or three axes."""

from tests.rules.instances import case

DIMENSIONS = [
    case("conv-of-rows", x="2x4x9", w="=6x4x3", b=["=6"], a=dict(pads=[2, 1], strides=[2])),
    case("conv-of-rows", x="1x4x9", w="=4x1x3", b=[], a=dict(group=4, dilations=[3]), opset=11),
    case("conv-of-rows", x="nx4xl", w="=6x2x2", b=["6"], a=dict(group=2, auto_pad="NOTSET")),
    case("conv-of-rows", "not a convolution over one axis", x="1x4x5x5", w="=6x4x1x3", b=[], a={}),
    case("conv-of-rows", "not a convolution over one axis", x="1x4x9", w="6x4x3", b=[], a={}),
    case("conv-of-rows", "automatic padding", x="1x4x9", w="=6x4x3", b=["=6"], a=dict(auto_pad="SAME_UPPER")),
    *(
        each
        for op in ("relu", "sigmoid", "tanh", "sin", "leakyrelu", "elu")
        for each in (
            case(f"{op}-of-squeeze", x="2x1x3", s=[1], a={} if op not in ("leakyrelu", "elu") else dict(alpha=0.3)),
            case(f"{op}-of-squeeze", x="1x3x1", s=[0, -1], a={}, opset=12),
        )
    ),
    *(
        each
        for op in ("add", "mul", "sub")
        for each in (
            case(f"{op}-of-squeeze", x="2x4x1x3", s=[2], y="2x4x3"),
            case(f"{op}-of-squeeze", x="2x1x1x3", s=[-2, 1], y="=2x1", opset=12),
            case(f"{op}-of-squeeze", x="2x4x1xl", s=[2], y="1x1xl"),
            case(f"{op}-of-squeeze", "the operands have different numbers", x="2x4x1x3", s=[2], y="4x3"),
            case(f"{op}-of-squeeze", "the operands have different numbers", x="1", s=[0], y=""),
        )
    ),
    *(
        each
        for op in ("add", "mul", "div", "pow")
        for each in (
            case(f"{op}-of-squeeze-number", x="2x4x1x3", s=[2], k="" if op in ("add", "mul") else 2.0),
            case(f"{op}-of-squeeze-number", x="1x3", s=[0], k=3.0, opset=12),
            case(f"{op}-of-squeeze-number", "the other operand is not a number", x="2x4x1x3", s=[2], k="+3"),
        )
    ),
]
