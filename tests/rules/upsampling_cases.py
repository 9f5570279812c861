"""Cases of the rules about a Resize by whole factors."""

from functools import partial

from tests.rules.instances import case

# ONNX's reference implementation resizes in float32's precision at most where it interpolates.
single = partial(case, dtype="float32")
PADS, TWICE = (1, 1, 1, 1), [1.0, 1.0, 2.0, 2.0]
LINEAR = dict(mode="linear", coordinate_transformation_mode="align_corners")
POINT = dict(x="1x2x3x4", s=[1.0, 1.0, 2.0, 3.0], w="=3x2x1x1", b=["=3"], a={}, r=LINEAR)
JOINED = dict(x="1x2x2x2", l=["1x1x4x4"], m=["1x3x4x4"], w="=3x6x3x3", b=["=3"], p=PADS)
JOINED_POINT = JOINED | dict(s=TWICE, w="=3x6x1x1", a={}, r=dict(nearest_mode="floor"))
del JOINED_POINT["p"]
CUT = dict(x="2x2x3x4", w="=3x2x1x1", b=["=3"], a={}, s=[1], e=[3], t=[3])
NORM = dict(g="3", b="3", m="3", v="+3", a=dict(epsilon=0.5))

UPSAMPLING = [
    case("conv-of-repeated", x="1x2x3x4", w="=3x2x3x3", b=["=3"], p=PADS),
    case("conv-of-repeated", x="2x3x1x2", w="=2x3x3x3", b=[], p=PADS, opset=13),
    case("conv-of-repeated", x="nx2xhxw", w="=3x2x3x3", b=["3"], p=PADS),
    case("conv-of-repeated", "not a 3×3 kernel", x="1x2x3x4", w="3x2x3x3", b=[], p=PADS),
    case("conv-of-repeated", "not a 3×3 kernel", x="1x2x3x4", w="=3x2x3x1", b=[], p=(1, 0, 1, 0)),
    case("conv-of-repeated", "not a 3×3 kernel", x="1x2x3x4", w="=3x2x3x3", b=[], p=(0, 0, 0, 0)),
    case("slice-of-pointwise-conv", **CUT),
    case("slice-of-pointwise-conv", x="nx4x5", w="=6x2x1", b=[], a=dict(group=2), s=[0], e=[9], t=[-1]),
    *(
        case("slice-of-pointwise-conv", reason, **CUT | more)
        for reason, more in (
            ("the kernel is not 1×1", dict(w="=3x2x1x2")), ("the kernel is not 1×1", dict(w="3x2x1x1")),
            ("the convolution strides or pads", dict(a=dict(strides=[1, 2]))),
            ("the convolution strides or pads", dict(a=dict(pads=[0, 1, 0, 0]))),
            ("not one axis of positions", dict(t=[1])),
            ("not one axis of positions", dict(s=[1, 0], e=[3, 2], t=[3, 2])),
            ("the ends are not counted", dict(s=[-2], e=[9])), ("the ends are not counted", dict(s=[2], e=[2])),
        )
    ),
    *(
        each
        for name, more in (
            ("relu", {}), ("leakyrelu", dict(a=dict(alpha=0.5))), ("sigmoid", {}), ("clip", dict(c=["=", "="])),
        )
        for values in (dict(c=[], a={}) | more,)
        for each in (
            case(f"{name}-of-repeated", x="1x2x3x4", s=TWICE, **values),
            case(f"{name}-of-repeated", x="nx2xh", s=[1.0, 1.0, 3.0], **values, opset=13),
            case(f"{name}-of-repeated", "nothing is enlarged", x="2x2x3", s=[1.0, 1.0, 1.0], **values),
        )
    ),
    *(
        each
        for name in ("add-of-two-repeated", "mul-of-two-repeated")
        for each in (
            case(name, x="1x2x3x4", y="1x2x3x4", s=TWICE),
            case(name, x="2x2xh", y="1x1xh", s=[1.0, 1.0, 3.0], opset=13),
            case(name, "nothing is enlarged", x="2x2x3", y="2x2x3", s=[1.0, 1.0, 1.0]),
        )
    ),
    case("batchnorm-of-repeated", x="1x3x2x2", s=TWICE, **NORM),
    case("batchnorm-of-repeated", x="nx3xh", s=[1.0, 1.0, 3.0], **NORM, opset=15),
    case("batchnorm-of-repeated", "no position is enlarged", x="1x3x2x2", s=[1.0] * 4, **NORM),
    case("batchnorm-of-repeated", "no position is enlarged", x="1x1x2x2", s=[1.0, 3.0, 2.0, 2.0], **NORM),
]  # fmt: skip

NOT_WHOLE = "a size is not multiplied by a whole number"
REGION = dict(coordinate_transformation_mode="tf_crop_and_resize")
OTHER = (dict(mode="cubic"), dict(mode="linear", antialias=1), dict(mode="cubic", exclude_outside=1))
RESIZES = [
    *(case("resize-as-repeated", x="1x2x3x4", s=TWICE, c=c, n=n)
      for c in ("half_pixel", "pytorch_half_pixel") for n in ("round_prefer_floor", "round_prefer_ceil")),
    case("resize-as-repeated", x="nx2xh", s=[1.0, 1.0, 3.0], c="half_pixel", n="round_prefer_ceil", opset=13),
    *(case("resize-as-repeated", "not a form that repeats", x="1x2x3", s=[1.0, 1.0, 2.0], c=c, n=n)
      for c, n in (("asymmetric", "floor"), ("half_pixel", "floor"), ("align_corners", "round_prefer_floor"))),
    case("resize-as-repeated", "nothing is enlarged", x="1x2x3", s=[1.0] * 3, c="half_pixel", n="round_prefer_ceil"),
]  # fmt: skip
