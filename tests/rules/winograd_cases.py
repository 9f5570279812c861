"""Where the rules of the family `winograd` fire, and look-alikes at which they must refuse."""

from functools import partial

from tests.rules.instances import case

case = partial(case, dtype="float32")
WIDE = dict(x="1x64x5x4", w="=32x64x3x3", b=[], p=[1, 1, 1, 1])
WIDER = dict(x="1x128x4x4", w="=32x128x3x3", b=[], p=[1, 1, 1, 1])
WINOGRAD = [
    case("conv-as-winograd-4", **WIDE | dict(b=["=32"])),
    case("conv-as-winograd-4", **WIDE | dict(x="2x64x6x9", p=[0, 0, 0, 0]), opset=13),
    case("conv-as-winograd-4", **WIDE | dict(x="nx64x5x4", p=[0, 1, 2, 1])),
    case("conv-as-winograd-2", **WIDER | dict(b=["=32"], p=[0, 1, 2, 1])),
    case("conv-as-winograd-2", **WIDER | dict(x="nx128x5x4"), opset=13),
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
