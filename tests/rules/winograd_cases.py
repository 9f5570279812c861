"""Cases of the rules of the family `winograd`: where each rule fires, and look-alikes that it must refuse."""

from functools import partial

from tests.rules.instances import case

case = partial(case, dtype="float32")
WIDE = dict(x="1x64x5x4", w="=32x64x3x3", b=[], p=[1, 1, 1, 1])
WIDER = dict(x="1x128x4x4", w="=32x128x3x3", b=[], p=[1, 1, 1, 1])
ROW = dict(x="1x96x1x16", w="=96x96x1x3", b=[], p=[0, 1, 0, 1])
WINOGRAD = [
    case("conv-as-winograd-row", **ROW | dict(b=["=96"])),
    case("conv-as-winograd-row", **ROW | dict(x="2x96x3x9", p=[0, 0, 0, 2]), opset=13),
    case("conv-as-winograd-row", **ROW | dict(x="nx96x1xv")),
    case("conv-as-winograd-row", **ROW | dict(x="nx96xhxv", p=[0, 2, 0, 1])),
    case("conv-as-winograd-row", "weight or bias is not constant", **ROW | dict(w="96x96x1x3")),
    case("conv-as-winograd-row", "weight or bias is not constant", **ROW | dict(b=["96"])),
    case("conv-as-winograd-row", "not a kernel of three", **ROW | dict(w="=96x96x3x3", p=[1, 1, 1, 1])),
    case("conv-as-winograd-row", "not a kernel of three", **ROW | dict(x="1x96x16", w="=96x96x3", p=[1, 1])),
    case("conv-as-winograd-row", "rows of zeros are added", **ROW | dict(p=[1, 1, 0, 1])),
    case("conv-as-winograd-row", "the data type is not float32", **ROW, dtype="float16"),
    case("conv-as-winograd-row", "too few channels or positions", **ROW | dict(x="1x96x1x9")),
    *(
        case(f"{name}-into-tiles", x=x, p=[0, 2, 3, 1], s=s, b=[0], e=[7], a=a, opset=opset)
        for name, a in (("relu", {}), ("leakyrelu", {"alpha": 0.1}))
        for x, s, opset in (("1x4x6x2", [1, 6, 1, 8], 20), ("nx4x6x4", [0, 6, 2, -1], 13))
    ),
    case("conv-as-winograd-4", **WIDE | dict(b=["=32"])),
    case("conv-as-winograd-4", **WIDE | dict(x="2x64x6x9", p=[0, 0, 0, 0]), opset=13),
    case("conv-as-winograd-4", **WIDE | dict(x="nx64x5x4", p=[0, 1, 2, 1])),
    case("conv-as-winograd-4", **WIDE | dict(x="nx64xhxv")),
    case("conv-as-winograd-4", **WIDE | dict(x="1x64xhx4", p=[1, 1, 0, 2])),
    # Without padding the convolution needs h ≥ 3, which the symbolic sizes do not express.
    case("conv-as-winograd-4", "the shape that Slice gives", **WIDE | dict(x="1x64xhx4", p=[0, 1, 0, 1])),
    case("conv-as-winograd-2", **WIDER | dict(b=["=32"], p=[0, 1, 2, 1])),
    case("conv-as-winograd-2", **WIDER | dict(x="nx128x5x4"), opset=13),
    case("conv-as-winograd-2", **WIDER | dict(x="1x128xhxv", p=[2, 1, 1, 0]), opset=13),
    case("relu-into-blocks", x="1x4x6x2", s=[1, 4, 3, 4], n=2, e=[5, 7]),
    case("relu-into-blocks", x="nx36x2x3", s=[0, -1, 2, 3], n=3, e=[6, 8], opset=13),
    case("conv-as-winograd-2", "larger tiles save more", **WIDER | dict(x="1x128x17x16")),
    *(
        each
        for name, given in (("conv-as-winograd-4", WIDE), ("conv-as-winograd-2", WIDER))
        for each in (
            case(name, "weight or bias is not constant", **given | dict(w=given["w"][1:])),
            case(name, "weight or bias is not constant", **given | dict(b=["32"])),
            case(name, "not a 3×3 kernel on images", **given | dict(w=given["w"][:-3] + "1x3")),
            case(name, "not a 3×3 kernel on images", **given | dict(x="1x128x9", w="=32x128x3", p=[1, 1])),
            case(name, "the data type is not float32", **given, dtype="float16"),
            case(name, "too few channels or positions", **given | dict(x="1x4x5x4", w="=32x4x3x3")),
            case(name, "too few channels or positions", **given | dict(p=[0, 0, 0, 0])),
        )
    ),
]  # fmt: skip
