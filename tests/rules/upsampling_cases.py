"""Cases of the rules about a Resize by whole factors."""

from functools import partial

from tests.rules.instances import Known, case

# Where ONNX's reference implementation interpolates, its precision is at most float32.
single = partial(case, dtype="float32")
PADS, TWICE = (1, 1, 1, 1), [1.0, 1.0, 2.0, 2.0]
MORE = dict(x="1x2x3x2", w="=3x2x3x3", b=["=3"], p=PADS, s=[1.0, 1.0, 4.0, 4.0])
LINEAR = dict(mode="linear", coordinate_transformation_mode="align_corners")
REPEATED_POINT = dict(x="1x2x3x4", s=[1.0, 1.0, 2.0, 3.0], w="=3x2x1x1", b=["=3"], a={})
POINT = REPEATED_POINT | dict(r=dict(coordinate_transformation_mode="align_corners"))
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
    case("conv-of-repeated-rows", x="1x2x5", w="=3x2x3", b=["=3"], p=(1, 1)),
    case("conv-of-repeated-rows", x="nx3xl", w="=2x3x3", b=[], p=(1, 1), opset=13),
    case("conv-of-repeated-rows", "not a kernel of three places", x="1x2x5", w="3x2x3", b=[], p=(1, 1)),
    case("conv-of-repeated-rows", "not a kernel of three places", x="1x2x5", w="=3x2x5", b=[], p=(1, 1)),
    case("conv-of-repeated-rows", "not a kernel of three places", x="1x2x5", w="=3x2x3", b=[], p=(2, 0)),
    case("conv-of-repeated-more", **MORE),
    case("conv-of-repeated-more", **MORE | dict(x="nx2xhxw", b=["3"], s=[1.0, 1.0, 4.0, 2.0]), opset=13),
    case("conv-of-repeated-more", "not a 3×3 kernel", **MORE | dict(w="3x2x3x3")),
    case("conv-of-repeated-more", "not a 3×3 kernel", **MORE | dict(w="=3x2x1x3", p=(0, 1, 0, 1))),
    case("conv-of-repeated-more", "not a 3×3 kernel", **MORE | dict(p=(2, 1, 0, 1))),
    case("conv-of-repeated-more", "the batch or the channels", **MORE | dict(x="1x1x3x2", s=[1.0, 2.0, 4.0, 4.0])),
    case("conv-of-repeated-more", "the factors are not even", **MORE | dict(s=[1.0, 1.0, 4.0, 3.0])),
    case("conv-of-repeated-more", "the factors are not even", **MORE | dict(s=TWICE)),
    case("conv-of-repeated-volume", x="1x2x2x3x2", w="=3x2x3x3x3", b=["=3"], p=(1,) * 6),
    case("conv-of-repeated-volume", x="nx1x1x2x3", w="=2x1x3x3x3", b=[], p=(1,) * 6, opset=13),
    case("conv-of-repeated-volume", "not a 3×3×3 kernel", x="1x2x2x3x2", w="3x2x3x3x3", b=[], p=(1,) * 6),
    case("conv-of-repeated-volume", "not a 3×3×3 kernel", x="1x2x2x3x2", w="=3x2x3x3x1", b=[], p=(1, 1, 0, 1, 1, 0)),
    case("conv-of-repeated-volume", "not a 3×3×3 kernel", x="1x2x2x3x2", w="=3x2x3x3x3", b=[], p=(1, 1, 2, 1, 1, 0)),
    case("conv-of-joined-repeated", **JOINED),
    case("conv-of-joined-repeated", **JOINED | dict(x="nx2x2x2", l=[], m=["nx4x4x4"]), opset=13),
    case("conv-of-joined-repeated", x="2x1x3x1", l=["2x2x6x2"], m=[], w="=2x3x3x3", b=["2"], p=PADS),
    case("conv-of-joined-repeated", "not a 3×3 kernel", **JOINED | dict(w="3x6x3x3")),
    case("conv-of-joined-repeated", "not a 3×3 kernel", **JOINED | dict(w="=3x6x1x1", p=(0, 0, 0, 0))),
    case("conv-of-joined-repeated", "not a 3×3 kernel", **JOINED | dict(p=(0, 1, 0, 1))),
    case("conv-of-joined-repeated", "the Resize is joined with nothing", **JOINED | dict(l=[], m=[], w="=3x2x3x3")),
    single("conv-of-joined-resized", **JOINED_POINT),
    single("conv-of-joined-resized", **JOINED_POINT | dict(x="nx2x2x2", l=[], m=["nx4x4x4"], r={}), opset=13),
    case("conv-of-joined-resized", "the kernel is not 1×1", **JOINED_POINT | dict(w="=3x6x2x1")),
    case("conv-of-joined-resized", "the kernel is not 1×1", **JOINED_POINT | dict(w="3x6x1x1")),
    *(case("conv-of-joined-resized", "the convolution strides, pads or", **JOINED_POINT | dict(a=a, w=w))
      for w, a in (
          ("=3x6x1x1", dict(strides=[2, 1])), ("=3x6x1x1", dict(pads=[0, 0, 1, 0])), ("=3x2x1x1", dict(group=3)),
      )),
    case("conv-of-joined-resized", "the batch or the channels",
        **JOINED_POINT | dict(x="1x1x2x2", s=[1.0, 2.0, 2.0, 2.0])),
    *(case("conv-of-joined-resized", "a filter", **JOINED_POINT | dict(r=r))
      for r in (dict(antialias=1), dict(axes=[0, 1, 2, 3]))),
    case("conv-of-joined-resized", "the Resize is joined", **JOINED_POINT | dict(l=[], m=[], w="=3x2x1x1")),
    single("conv-of-resized", **POINT),
    single("conv-of-resized", **POINT | dict(x="nx2xhxw", b=[], r={})),
    *(case("conv-of-resized", "a filter", **POINT | dict(r=r)) for r in (dict(antialias=1), dict(axes=[0, 1, 2, 3]))),
    case("pointwise-conv-of-repeated", **REPEATED_POINT),
    case("pointwise-conv-of-repeated",
        **REPEATED_POINT | dict(x="nx4xh", s=[1.0, 1.0, 4.0], w="=3x4x1", b=[], a={})),
    *(
        case(name, reason, **point | more)
        for name, point in (("conv-of-resized", POINT), ("pointwise-conv-of-repeated", REPEATED_POINT))
        for reason, more in (
            ("the kernel is not 1×1", dict(w="=3x2x1x2")), ("the kernel is not 1×1", dict(w="3x2x1x1")),
            ("the convolution strides or pads", dict(a=dict(strides=[2, 2]))),
            ("the convolution strides or pads", dict(a=dict(pads=[1, 0, 0, 0]))),
            ("the batch or the channels", dict(x="1x1x3x4", s=[1.0, 2.0, 2.0, 3.0])),
            ("a scale is not a whole number", dict(s=[1.0, 1.0, 1.5, 2.0])),
            ("the scales are not known", dict(s=Known([1.0, 1.0, 2.0, 2.0]))),
        )
    ),
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
        single("linear-resize-as-products", x="2x3x4x5", s=[1.0, 1.0, 2.0, 3.0],
            r=dict(coordinate_transformation_mode=c))
        for c in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    ),
    single("linear-resize-as-products", x="1x1x1x2", s=TWICE, r=dict(nearest_mode="floor"), opset=13),
    *(
        case("linear-resize-as-products", "not a small image", x=x, s=s, r={})
        for x, s in (
            ("1x2x3x65", TWICE), ("1x2x3", TWICE[1:]), ("1x2x3x4", [1.0, 2.0, 2.0, 2.0]), ("1x2x3x4:int32", TWICE),
        )
    ),
    case("linear-resize-as-products", "whether h < 4 would have to be known", x="1x2xhx4", s=TWICE, r={}),
    *(case("linear-resize-as-products", "a filter", x="1x2x3x4", s=TWICE, r=r)
      for r in (dict(antialias=1), dict(axes=[0, 1, 2, 3]))),
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
    case("resize-by-scales", x="1x2x3x4", s=[1, 2, 6, 12], a={}),
    single("resize-by-scales", x="2x3x2", s=[2, 3, 8], a=LINEAR, opset=13),
    case("resize-by-scales", x="nx2x3x4", s=Known(["n", 2, 6, 8]), a={}),
    case("resize-by-scales", NOT_WHOLE, x="1x2x3x4", s=[1, 2, 6, 6], a={}),
    case("resize-by-scales", "a shape or an axis is not known", x="1x2x3x4", s="4:int64", a={}),
    *(case("resize-by-scales", "not a nearest or a linear", x="1x2x3x4", s=[1, 2, 6, 4], a=a) for a in OTHER),
    *(case("resize-by-scales", "some axes alone", x="1x2x3x4", s=[1, 2, 6, 4], a=a)
      for a in (dict(axes=[0, 1, 2, 3]), dict(keep_aspect_ratio_policy="not_larger"))),
    case("resize-without-roi", x="1x2x3x4", r="=8", s=[TWICE], a={}),
    case("resize-without-roi", x="1x2x3x4", r="=8", s=[None, [1, 2, 6, 6]], a={}),
    single("resize-without-roi", x="nx2xh", r="6", s=[[1.0, 1.0, 3.0]], a=LINEAR, opset=13),
    case("resize-without-roi", "the region is read", x="1x2x3", r="=6", s=[[1.0, 1.0, 2.0]], a=REGION),
    *(case("resize-without-roi", "not a nearest or a linear", x="1x2x3x4", r="=8", s=[TWICE], a=a)
      for a in (*OTHER, dict(axes=[0, 1, 2, 3]))),
    *(case("resize-as-repeated", x="1x2x3x4", s=TWICE, c=c, n=n)
      for c in ("half_pixel", "pytorch_half_pixel") for n in ("round_prefer_floor", "round_prefer_ceil")),
    case("resize-as-repeated", x="nx2xh", s=[1.0, 1.0, 3.0], c="half_pixel", n="round_prefer_ceil", opset=13),
    *(case("resize-as-repeated", "not a form that repeats", x="1x2x3", s=[1.0, 1.0, 2.0], c=c, n=n)
      for c, n in (("asymmetric", "floor"), ("half_pixel", "floor"), ("align_corners", "round_prefer_floor"))),
    case("resize-as-repeated", "nothing is enlarged", x="1x2x3", s=[1.0] * 3, c="half_pixel", n="round_prefer_ceil"),
]  # fmt: skip
