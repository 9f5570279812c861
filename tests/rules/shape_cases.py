"""Cases of the rules of shape arithmetic: where each rule fires, and look-alikes that it must refuse."""

from tests.rules.instances import Case, Known, case

CONSTANT_LIST = "the list is a constant"
NOT_KNOWN = "a shape or an axis is not known"


def slices(rule: str, name: str, reason: str) -> list[Case]:
    """Return cases of a Slice with one computed operand."""
    given = dict(s=[1], e=[3]) | (dict(t=[1]) if name == "t" else {}) | (dict(t=[1], d=[2]) if name == "d" else {})
    rest = {"s": [], "e": [], "t": []}.get(name)
    values = dict(x="4x6", **given) | ({"r": rest} if rest is not None else {})
    further = {"s": dict(r=[[0]]), "e": dict(r=[[1], [1]]), "t": dict(r=[[2]]), "d": dict(x="2x8")}[name]
    return [
        case(rule, **values | {name: Known(given[name])}),
        case(rule, **values | further | {name: Known(given[name])}),
        case(rule, reason, **values),
        case(rule, NOT_KNOWN, **values | {name: "1:int64"}),
    ]


def listed(rule: str, x: str, other: str, name: str, held: list, reason: str, **rest) -> list[Case]:
    """Return cases of an operator whose second operand is a computed list."""
    values = {"x": x, name: Known(held)} | rest
    return [
        case(rule, **values), case(rule, **values | dict(x=other)),
        case(rule, reason, **values | {name: held}),
        case(rule, NOT_KNOWN, **values | {name: f"{len(held)}:int64"}),
    ]  # fmt: skip


def numbers(rule: str) -> list[Case]:
    return [
        case(rule, x="nx3", k=Known(0.5)),
        case(rule, x="2x3", k=Known(2.0), dtype="float32"),
        case(rule, "the number is a constant", x="2x3", k=0.5),
        case(rule, "the number is not a float", x="2x3:int64", k=Known(2)),
        case(rule, "a number is not known in advance", x="2x3", k=""),
    ]


def pairs(rule: str, kind: str = "", wide: str = "x", small: str = "y") -> list[Case]:
    """Return cases of an Expand that another operator makes superfluous."""
    of = f":{kind}" if kind else ""
    return [
        case(rule, **{wide: f"1x3{of}", small: f"2x3{of}", "s": [2, 3]}),
        case(rule, **{wide: f"3{of}", small: f"nx3{of}", "s": Known(["n", 1])}),
        case(rule, "the result would be", **{wide: f"1x3{of}", small: f"3{of}", "s": [2, 3]}),
    ]


PRODUCT = dict(x="2x3x4x5", y="2x3x5x6")
SCORES = PRODUCT | dict(c="2x1x4x6:bool")

SHAPE_ARITHMETIC = [
    case("reshape-to-known", x="nx6", s=Known(["n", 2, 3])),
    case("reshape-to-known", x="2xnx6", s=Known([-1, 6])),
    case("reshape-to-known", x="nx6", s=Known([0, 2, -1]), opset=15),
    case("reshape-to-known", "the shape is a constant", x="nx6", s=[0, 2, 3]),
    case("reshape-to-known", "n, m would have to be known", x="6xnxm", s=Known([2, 3, "n", "m"])),
    case("reshape-without-zeros", x="2x6", s=[3, 4]),
    case("reshape-without-zeros", x="nx6", s=Known(["n", -1, 3]), opset=14),
    case("reshape-without-zeros", NOT_KNOWN, x="2x6", s="2:int64"),
    case("reshape-without-zeros", "a size is 0", x="0x6", s=[0, 3]),
    *listed("expand-of-known", "1x3", "nx3", "s", [1, 3], CONSTANT_LIST),
    case("expand-of-known", x="nx1", s=Known([4, "n", 5])),
    case("expand-of-known", "n would have to be known", x="1x3", s=Known(["n", 3])),
    *listed("tile-of-known", "2x3", "nx1", "s", [1, 2], CONSTANT_LIST),
    *listed("squeeze-of-known", "1x3x1", "1xnx1", "s", [0, 2], CONSTANT_LIST),
    *listed("unsqueeze-of-known", "2x3", "nx1", "s", [0, 2], CONSTANT_LIST),
    *listed("pad-by-known", "2x3", "nx3", "p", [0, 1, 0, 2], "the widths are constants", c=[], a={}),
    *slices("slice-from-known", "s", "the starts are constants"),
    *slices("slice-to-known", "e", "the ends are constants"),
    *slices("slice-along-known", "t", "the axes are constants"),
    *slices("slice-by-known", "d", "the steps are constants"),
    case("slice-to-known", "n would have to be known", x="4x6", s=[0], e=Known(["n"]), r=[]),
    case("gather-known-place", x="2x3", i=Known(1), k=1),
    case("gather-known-place", x="nx3", i=Known(-1), k=0),
    case("gather-known-place", "the place is a constant", x="2x3", i=1, k=1),
    case("gather-known-place", "not one place", x="2x3", i=Known([1]), k=1),
    *listed("gather-known-places", "2x3", "nx4", "i", [1, 0], "the places are constants", k=1),
    case("gather-known-places", "not a list of places", x="2x3", i=Known(1), k=1),
    *listed("split-in-two-known", "2x7", "nx7", "s", [3, 4], "the sizes are constants", i=1),
    *listed("split-in-three-known", "2x7", "nx7", "s", [3, 1, 3], "the sizes are constants", i=1),
    *(
        each for op in ("reducesum", "reducemean", "reducemax")
        for each in listed(f"{op}-along-known", "2x3x4", "nx3x4", "r", [1, 2], "the axes are constants", a={})
    ),
    *(each for op in ("add", "sub", "mul", "div", "pow") for each in numbers(f"{op}-of-known-number")),
    *(each for op in ("sub", "div", "pow") for each in numbers(f"{op}-of-known-first")),
    *(
        each for op in ("relu", "sigmoid", "tanh", "erf", "gelu")
        for each in (case(f"shape-of-{op}", x="nx3", a={}), case(f"shape-of-{op}", x="2x3", a=dict(start=1)))
    ),
    case("shape-of-cast", x="nx3", b=dict(to=1), a={}), case("shape-of-cast", x="2x3:int64", b=dict(to=11), a={}),
    case("shape-of-softmax", x="nx3", b={}, a={}), case("shape-of-softmax", x="2x3", b=dict(axis=0), a=dict(end=1)),
    case("shape-of-layernorm", x="nx3", g="=3", b="=3", i=-1, c={}, a={}),
    case("shape-of-layernorm", x="2x3x4", g="=4", b="=1", i=1, c=dict(epsilon=0.25), a=dict(start=-2)),
    case("shape-of-layernorm", "scale and offset are not of one axis", x="2x3x4", g="=3x4", b="=4", i=1, c={}, a={}),
    *(
        each for op in ("add", "mul", "sub", "div")
        for each in (
            case(f"shape-of-{op}", x="nx3", y="+3", a={}), case(f"shape-of-{op}", x="2x3", y="+2x1", a=dict(end=1)),
            case(f"shape-of-{op}", "the operand does not have the shape", x="1x3", y="+2x1", a={}),
        )
    ),
    *(
        each for op in ("sub", "div")
        for each in (
            case(f"shape-of-{op}-second", x="3", y="nx3", a={}), case(f"shape-of-{op}-second", x="", y="2x1", a={}),
            case(f"shape-of-{op}-second", "the operand does not have the shape", x="1x3", y="2x1", a={}),
        )
    ),
    case("shape-of-reshape", x="nx6", s=Known(["n", 2, 3])), case("shape-of-reshape", x="2x6", s=[3, 4]),
    case("shape-of-reshape", "a size is copied or left open", x="2x6", s=[3, -1]),
    case("place-of-concat-first", x="1", r=["2", "1"], i=0, a=[0]),
    case("place-of-concat-first", x="1", r=[], i=0, a=[-1]),
    case("place-of-concat-first", "not the first of a list", x="1", r=["1"], i=1, a=[0]),
    case("place-of-concat-second", x="1", y="1", r=["n"], i=1, a=[0]),
    case("place-of-concat-second", x="1:int64", y="1:int64", r=[], i=Known(1), a=[0]),
    case("place-of-concat-second", "not the second of a list", x="2", y="1", r=[], i=1, a=[0]),
    *pairs("add-of-expand"), *pairs("mul-of-expand"), *pairs("and-of-expand", "bool"),
    *pairs("sub-of-expand-first"), *pairs("div-of-expand-first"),
    *pairs("sub-of-expand-second", wide="y", small="x"), *pairs("div-of-expand-second", wide="y", small="x"),
    case("where-of-expanded-condition", c="1x3:bool", s=[2, 3], x="2x3", y="3"),
    case("where-of-expanded-condition", c="3:bool", s=Known(["n", 1]), x="nx1", y=""),
    case("where-of-expanded-condition", "the result would be", c="1x3:bool", s=[2, 3], x="", y="3"),
    case("where-of-expand-first", c="2x3:bool", s=[2, 3], x="1x3", y="3"),
    case("where-of-expand-first", c="3:bool", s=Known(["n", 3]), x="1", y="nx1"),
    case("where-of-expand-second", c="2x3:bool", s=[2, 3], x="3", y="1x3"),
    case("where-of-expand-second", c="3:bool", s=Known(["n", 3]), x="nx1", y="1"),
    case("expand-of-expand", x="1x3", s=[2, 3], t=[2, 3]),
    case("expand-of-expand", x="1x3", s=[1, 3], t=[4, 2, 3]),
    case("transpose-of-computed-stack", x="2x3x4x5", s=[6, 4, 5], t=Known([2, 3, 5, 4])),
    case("transpose-of-computed-stack", x="nx3x4x5", s=[-1, 4, 5], t=Known(["n", 3, 5, 4])),
    case("transpose-of-computed-stack", x="2x3xnx5", s=Known([6, "n", 5]), t=Known([2, 3, 5, "n"])),
    case("transpose-of-computed-stack", "no shape is computed", x="nx3x4x5", s=[-1, 4, 5], t=[-1, 3, 5, 4]),
    case("transpose-of-computed-stack", "not matrices", x="2x3x4x4", s=[6, 2, 8], t=Known([2, 3, 4, 4])),
    case("guard-of-softmax", **PRODUCT, i=-1),
    case("guard-of-softmax", x="1x3xnx5", y="2x1x5x6", i=3, opset=13),
    case("guard-of-softmax", "not the scores of an attention", x="4x5", y="5x6", i=-1),
    case("guard-of-masked-softmax", **SCORES, h=0.0, l=-1e30, i=-1),
    case("guard-of-masked-softmax", **SCORES | dict(c="=1x1x4x6:bool"), h=0.0, l=-1e30, i=3, opset=13),
    case("guard-of-masked-softmax", **SCORES, h=[0.0], l=[-1e30], i=-1, dtype="float32"),
    case("guard-of-masked-softmax", "not the scores", **SCORES | dict(c="4x6:bool"), h=0.0, l=-1e30, i=-1),
    case("guard-of-masked-softmax", "not the scores", **SCORES, h=0.0, l="=1x6", i=-1),
    case("guard-of-masked-softmax", "the mask is not of finite numbers", **SCORES, h=0.0, l=float("-inf"), i=-1),
    case("guard-of-masked-softmax", "the mask is not of finite numbers", **SCORES, h=float("nan"), l=0.0, i=-1),
    case("guard-of-masked-softmax", "the mask is not of finite numbers", **SCORES, h=0.0, l="", i=-1),
    case("guard-of-stored-mask", **PRODUCT, m="=1x1x4x6", i=-1),
    case("guard-of-stored-mask", **PRODUCT, m="=2x3x1x6", i=3, opset=13),
    case("guard-of-stored-mask", "not the scores", **PRODUCT, m="=4x6", i=-1),
    case("guard-of-stored-mask", "the mask is not of finite numbers", **PRODUCT, m="1x1x4x6", i=-1),
    case("mask-nothing", x="2x3", c=Known([True, True, True]), y="3"),
    case("mask-nothing", x="nx3", c=Known([True]), y="", opset=9),
    case("mask-nothing", "something is masked", x="2x2", c=Known([True, False]), y="2"),
    case("where-all", c=Known([True, True, True]), x="nx3", y="3"),
    case("where-all", c=Known([True]), x="2x3", y=""),
    case("where-all", "the second is chosen somewhere", c=Known([True, False]), x="2x2", y="2"),
    case("where-none", c=Known([False, False, False]), x="3", y="nx3"),
    case("where-none", c=Known([False]), x="", y="2x3"),
    case("where-none", "the first is chosen somewhere", c=Known([True, False]), x="2", y="2x2"),
    case("equal-shape", x="2x3", a={}), case("equal-shape", x="nx3", a=dict(start=1, end=2)),
    case("equal-cast", x="2x3", t=1, a={}), case("equal-cast", x="nx3", t=7, a={}),
    case("equal-gather", x="2x3", i=[1, 0], k=1), case("equal-gather", x="nx3", i=2, k=-1),
    case("equal-unsqueeze", x="2x3", y=[0, 2]), case("equal-unsqueeze", x="nx3", y=[-1]),
    case("equal-squeeze", x="1x3x1", y=[0, 2]), case("equal-squeeze", x="nx1", y=[-1]),
    case("equal-expand", x="1x3", y=[2, 3]), case("equal-expand", x="3", y=Known(["n", 3])),
    case("equal-equal", x="2x3", y="3"), case("equal-equal", x="nx3:int64", y=[1, 2, 3]),
    case("equal-and", x="2x3:bool", y="3:bool"), case("equal-and", x="nx3:bool", y="1:bool"),
    case("equal-where", c="2x3:bool", x="3", y=""), case("equal-where", c="nx1:bool", x="nx3", y="=3"),
    case("equal-concat-of-two", x="2x3", y="2x1", i=1), case("equal-concat-of-two", x="nx3", y="=2x3", i=0),
    case("equal-concat-of-three", x="2x3", y="2x1", z="2x1", i=1),
    case("equal-concat-of-three", x="n", y="n", z="=2", i=-1),
    case("equal-concat-of-four", x="2x3", y="2x1", z="2x1", w="2x2", i=1),
    case("equal-concat-of-four", x="n", y="n", z="=2", w="=1", i=0),
]  # fmt: skip

# An operator of the model may broadcast a size of 1 at run time; an operator that a rule makes must fit for every size.
OPEN_SIZES = [
    case("concat-of-sums", w="nx4", x="nx4", y="nx4", z="nx4", i=0),
    case("concat-of-sums", "whether 1 = n would have to be known", w="nx4", x="1x4", y="nx4", z="nx4", i=1),
]
