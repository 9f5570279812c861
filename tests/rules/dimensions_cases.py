"""Cases of the rules about convolutions and poolings over one axis or three axes."""

from tests.rules.instances import case

SAME = dict(auto_pad="SAME_UPPER")
ONES = (1,) * 6



def window(rule: str, reason: str | None = None, /, opset: int = 20, **values):
    """Return the case of a convolution or pool; attributes that are not given have their defaults."""
    absent = dict.fromkeys(("s", "p", "d", "g", "c")) | dict(a={}, b=[])
    return case(rule, reason, opset=opset, **absent | values)


DIMENSIONS = [
    window("conv-of-rows", x="2x4x9", w="=6x4x3", b=["=6"], p=(2, 1), s=(2,)),
    window("conv-of-rows", x="1x4x9", w="=4x1x3", g=4, d=(3,), opset=11),
    window("conv-of-rows", x="nx4xl", w="=6x2x2", b=["6"], g=2, a=dict(auto_pad="NOTSET")),
    window("conv-of-rows", "not a convolution over one axis", x="1x4x5x5", w="=6x4x1x3"),
    window("conv-of-rows", "not a convolution over one axis", x="1x4x9", w="6x4x3"),
    window("conv-of-rows", "automatic padding", x="1x4x9", w="=6x4x3", b=["=6"], a=SAME),
    window("convtranspose-of-rows", x="2x4x5", w="=4x3x4", b=["=3"], s=(3,), p=(1, 2), a=dict(output_padding=[1])),
    window("convtranspose-of-rows", x="nx4xl", w="=4x1x3", d=(2,), opset=11),
    window("convtranspose-of-rows", "not a convolution over one axis", x="1x4x5x5", w="=4x6x1x3"),
    window("convtranspose-of-rows", "not a convolution over one axis", x="1x4x9", w="4x6x3"),
    *(
        window("convtranspose-of-rows", "automatic padding or", x="1x4x9", w="=4x6x3", a=a)
        for a in (SAME, dict(output_shape=[11]))
    ),
    *(window("convtranspose-by-phases", x="2x4x5", w="=4x3x4", b="=3", s=(n,), p=p)
      for n, p in ((2, (1, 1)), (3, (1, 2)), (2, None), (3, (0, 3)))),
    window("convtranspose-by-phases", x="1x4x5", w="=4x3x6", b="=3", s=(3,), p=(2, 0), opset=11),
    window("convtranspose-by-phases", "not a convolution over one axis", x="1x4x5x5", w="=4x6x4x4", b="=6", s=(2, 2)),
    window("convtranspose-by-phases", "not a convolution over one axis", x="1x4x9", w="4x6x4", b="=6", s=(2,)),
    window("convtranspose-by-phases", "no gaps, or windows", x="1x4x9", w="=4x6x3", b="=6"),
    window("convtranspose-by-phases", "no gaps, or windows", x="1x4x9", w="=4x6x2", b="=6", s=(2,)),
    *(
        window("convtranspose-by-phases", reason, x="1x4x9", w="=4x6x4", b="=6", s=(2,), a=a)
        for reason, a in (
            ("automatic padding or", SAME),
            ("automatic padding or", dict(output_padding=[1])),
            ("groups or dilation", dict(dilations=[2])),
        )
    ),
    window("convtranspose-by-phases", "empty tensors", x="0x4x9", w="=4x6x4", b="=6", s=(2,)),
    *(
        each
        for kind in ("maxpool", "averagepool")
        for each in (
            window(f"{kind}-of-rows", x="2x4x9", k=[3], s=(2,), p=(1, 2)),
            window(f"{kind}-of-rows", x="nx4xl", k=[2], a=dict(auto_pad="NOTSET"), opset=11),
            window(f"{kind}-of-rows", "not a pool over one axis", x="2x4x9x9", k=[3, 3]),
            window(f"{kind}-of-rows", "automatic padding, ceiling", x="2x4x9", k=[3], a=SAME),
            window(f"{kind}-of-rows", "automatic padding, ceiling", x="2x4x9", k=[2], s=(2,), a=dict(ceil_mode=1)),
        )
    ),
    window("averagepool-of-rows", x="2x4x9", k=[3], p=(1, 2), c=1),
    window("conv-of-slices", x="2x2x4x3x5", w="=3x2x3x3x2", b=["=3"], p=(1, 1, 0, 2, 0, 1)),
    window("conv-of-slices", x="1x4x3x5x4", w="=4x4x3x1x2", opset=11),
    window("conv-of-slices", x="1x2xdx4x3", w="=3x2x3x3x3", b=["3"], p=ONES, a=dict(strides=[1, 1, 1])),
    window("conv-of-slices", x="nx2xdxhxv", w="=3x2x3x3x3", p=ONES),
    window("conv-of-slices", "not a kernel of three depths", x="1x2x4x4x4", w="=3x2x2x3x3"),
    window("conv-of-slices", "not a kernel of three depths", x="1x2x4x4x4", w="=3x2x3x1x1"),
    *(
        window("conv-of-slices", "the convolution strides or dilates", x="1x2x5x4x4", w="=3x2x3x3x3", a=a)
        for a in (dict(strides=[2, 1, 1]), dict(dilations=[2, 1, 1]))
    ),
    window("conv-of-stacks", x="2x2x4x3x5", w="=3x2x2x3x2", b=["=3"], p=(1, 0, 1) * 2),
    window("conv-of-stacks", x="1x3x5x4x4", w="=4x3x5x1x2", opset=11),
    window("conv-of-stacks", "the paddings at both ends differ", x="1x2x4x4x4", w="=3x2x2x3x3", p=(1, 1, 1, 0, 1, 1)),
    window("conv-of-stacks", "the kernel has one depth", x="1x2x4x4x4", w="=3x2x1x3x3"),
    window("conv-of-stacks", "the kernel has one depth", x="1x2x4x4x4", w="=3x2x3x1x1"),
    *(
        window("conv-of-stacks", "the convolution strides or dilates", x="1x2x5x4x4", w="=3x2x3x3x3", a=a)
        for a in (dict(strides=[2, 1, 1]), dict(dilations=[2, 1, 1]))
    ),
    window("conv-of-frames", x="2x2x4x3x5", w="=3x2x1x3x2", b=["=3"], p=(0, 1, 0, 0, 0, 1), s=(1, 2, 1)),
    window("conv-of-frames", x="nx4x3x5x4", w="=4x4x1x1x2", opset=11),
    window("conv-of-frames", x="nx2xdxhxv", w="=3x2x1x3x3", p=(0, 1, 1) * 2),
    window("conv-of-frames", "the kernel has several depths", x="1x2x4x4x4", w="=3x2x2x3x3"),
    window("conv-of-frames", "the kernel has several depths", x="1x2x4x4x4", w="=3x2x1x1x1"),
    window("conv-of-frames", "depths are padded or left out", x="1x2x4x4x4", w="=3x2x1x3x3", s=(2, 1, 1)),
    window("conv-of-frames", "depths are padded or left out", x="1x2x4x4x4", w="=3x2x1x3x3", p=ONES),
    window("conv-of-depths", x="2x2x4x3x5", w="=3x2x3x1x1", b=["=3"], p=(1, 0, 0, 2, 0, 0), s=(2, 1, 1)),
    window("conv-of-depths", x="nx4x5x2xl", w="=4x4x2x1x1", opset=11),
    window("conv-of-depths", x="nx2xdxhxv", w="=3x2x3x1x1", p=(1, 0, 0) * 2),
    window("conv-of-depths", "the kernel is not over the depths", x="1x2x4x4x4", w="=3x2x3x1x3"),
    window("conv-of-depths", "the kernel is not over the depths", x="1x2x4x4x4", w="=3x2x1x1x1"),
    window("conv-of-depths", "rows or columns are", x="1x2x4x4x4", w="=3x2x3x1x1", s=(1, 1, 2)),
    window("conv-of-depths", "rows or columns are", x="1x2x4x4x4", w="=3x2x3x1x1", p=ONES),
    *(
        each
        for name, kernel in (
            ("conv-of-slices", "3x3x3"),
            ("conv-of-stacks", "2x3x3"),
            ("conv-of-frames", "1x3x3"),
            ("conv-of-depths", "3x1x1"),
        )
        for each in (
            window(name, "not a convolution over three axes", x="1x2x5x5", w="=3x2x3x3"),
            window(name, "not a convolution over three axes", x="1x2x4x4x4", w=f"3x2x{kernel}"),
            window(name, "automatic padding", x="1x2x4x4x4", w=f"=3x2x{kernel}", a=SAME),
            window(name, "automatic padding", x="1x2x4x4x4", w=f"=3x1x{kernel}", a=dict(group=2)),
            window(name, "empty tensors have no free size", x="0x2x4x4x4", w=f"=3x2x{kernel}"),
        )
    ),
    *(
        each
        for op in ("relu", "sigmoid", "tanh", "erf", "gelu", "sin", "leakyrelu", "elu")
        for each in (
            case(f"{op}-of-squeeze", x="2x1x3", s=[1], a={} if op not in ("leakyrelu", "elu") else dict(alpha=0.3)),
            case(f"{op}-of-squeeze", x="1x3x1", s=[0, -1], a={}, opset=20 if op == "gelu" else 12),
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
    case("batchnormalization-of-squeeze", x="2x3x1x4", s=[2], c="=3", b="=3", m="=3", v="+3", e=1e-3),
    case("batchnormalization-of-squeeze", x="2x3x1", s=[-1], c="=3", b="3", m="=3", v="+3", e=None, opset=11),
    case("batchnormalization-of-squeeze", "an axis before", x="2x1x3x4", s=[1], c="=3", b="=3", m="=3", v="+3", e=1e-3),
    case("concat-of-squeeze", x="2x3x1x4", y="2x2x1x4", s=[2], i=1),
    case("concat-of-squeeze", x="1x2x1x4", y="1x2x1x3", s=[0, 2], i=-1),
    case("slice-of-squeeze", x="2x3x1x4", s=[2], b=[1, 0], e=[3, 1], t=[2, 0], d=[]),
    case("slice-of-squeeze", x="3x5x1x4", s=[2], b=[4, 0], e=[-6, 2], t=[-2, 2], d=[[-1, 1]], opset=11),
    case("slice-of-squeeze", "not an image of one row", x="2x3x4x1", s=[3], b=[1], e=[3], t=[1], d=[]),
    case("split-of-squeeze", x="2x4x1x3", s=[2], t=[1, 3], i=1),
    case("split-of-squeeze", x="1x5x4", s=[0], t=[1, 3], i=-1, opset=11),
]
