"""Cases of the rules about ONNX Runtime's own operators. Most of these operators have kernels for float32 only."""

from functools import partial

from tests.rules.instances import case

single = partial(case, dtype="float32")
NO_KERNEL = "the installed ONNX Runtime has no com.microsoft"
DIGITS = "float32 cannot hold the attribute exactly"
EPSILON = 2.0**-17  # float32 can represent this number.

FUSED = [
    case("fused-matmul-second", x="2x3", y="4x3", p=None),
    case("fused-matmul-second", x="5x2x3", y="1x4x3", p=(0, 2, 1), opset=9),
    case("fused-matmul-second", "there is nothing to add up", x="5x2x0", y="5x4x0", p=(0, 2, 1)),
    case("fused-matmul-second", "more than the last two axes", x="5x2x3", y="3x5x4", p=(1, 0, 2)),
    case("fused-matmul-second", "more than the last two axes", x="3", y="3", p=None),
    case("fused-matmul-second", NO_KERNEL, x="2x3:float16", y="4x3:float16", p=None),
    case("fused-matmul-second-inverse", x="2x3", y="4x3"),
    case("fused-matmul-second-inverse", x="5x2x3", y="1x4x3", opset=9),
    case("fused-matmul-second-inverse", "a vector has no transpose", x="2x3", y="3"),
    case("fused-matmul-first", x="3x2", y="3x4", p=None),
    case("fused-matmul-first", x="5x3x2", y="3x4", p=(0, 2, 1), opset=9),
    case("fused-matmul-first", "more than the last two axes", x="3x5x2", y="5x2x3", p=(1, 0, 2)),
    case("fused-matmul-first", "a vector has no transpose", x="3x3", y="3", p=(1, 0)),
    case("fused-matmul-first-inverse", x="3x2", y="3x4"),
    case("fused-matmul-first-inverse", x="5x3x2", y="1x3x4"),
    case("fused-matmul-first-inverse", "a vector has no transpose", x="3", y="3x4"),
    *(
        each
        for name in ("fused-matmul-mul", "fused-matmul-div")
        for each in (
            single(name, x="2x3", y="3x4", k="+"),
            single(name, x="5x2x3", y="3x4", k=0.7, opset=9),
            case(name, DIGITS, x="2x3", y="3x4", k=0.7),
            single(name, "a number is not known in advance", x="2x3", y="3x4", k="2x4"),
        )
    ),
    single("fused-matmul-div", "an expression of the rule has no value", x="2x3", y="3x4", k=0.0),
    case("fused-matmul-apart", x="2x3", y="3x4", f=0.5),
    single("fused-matmul-apart", x="5x2x3", y="5x3x4", f=-1.25),
    single("fused-matmul-of-mul", x="2x3", y="3x4", k=0.7),
    single("fused-matmul-of-mul", x="5x2x3", y="3x4", k="+1", opset=9),
    case("fused-matmul-of-mul", DIGITS, x="2x3", y="3x4", k=0.7),
    single("fused-matmul-of-mul", "the factor adds axes", x="2x3", y="3x4", k="=1x1x1"),
    single("fused-matmul-of-roots", x="2x3", y="3x4", f=0.7, g=0.5),
    single("fused-matmul-of-roots", x="5x2x3", y="3x4", f="+1", g="+1x1", opset=9),
    case("fused-matmul-of-roots", DIGITS, x="2x3", y="3x4", f=0.7, g=0.5),
    single("fused-matmul-of-roots", "a factor adds axes", x="2x3", y="3x4", f="=1x1x1", g=0.5),
    single("fused-matmul-of-roots", "a number is not known in advance", x="2x3", y="3x4", f="=3", g=0.5),
    single("fused-matmul-again", x="2x3", y="3x4", k=0.7, f=0.5, i=0, j=0),
    single("fused-matmul-again", x="5x3x2", y="5x4x3", k="+1x1", f=1.5, i=1, j=1),
    case("fused-matmul-again", DIGITS, x="2x3", y="3x4", k=0.7, f=0.5, i=0, j=0),
    single("fused-matmul-again", "the factor adds axes", x="2x3", y="3x4", k="=1x1x1", f=0.5, i=0, j=0),
    single("gemm-as-fused-matmul", x="2x3", w="3x4", c="=4", f=1.0, i=0, j=0),
    single("gemm-as-fused-matmul", x="3x2", w="4x3", c="2x1", f=0.5, i=1, j=1, opset=9),
    single("gemm-as-fused-matmul-inverse", x="2x3", w="3x4", c="=4", f=1.0, i=0, j=0),
    single("gemm-as-fused-matmul-inverse", x="3x2", w="4x3", c="2x1", f=0.5, i=1, j=1),
    single("gemm-as-fused-matmul-inverse", "the operands are not matrices", x="5x2x3", w="3x4", c="4", f=1.0, i=0, j=0),
    single("gemm-as-fused-matmul-inverse", "Gemm does not fit", x="2x3", w="3x4", c="1x2x4", f=1.0, i=0, j=0),
    *(
        each
        for name in ("fused-gemm-relu", "fused-gemm-tanh")
        for each in (
            single(name, x="2x3", w="=4x3", c=["=4"], a=dict(transB=1)),
            single(name, x="3x2", w="3x4", c=[], a=dict(transA=1, alpha=0.5), opset=11),
            case(name, NO_KERNEL, x="2x3", w="3x4", c=["4"], a={}),
            single(f"{name}-inverse", x="2x3", w="=4x3", c=["=4"], a=dict(transB=1)),
            single(f"{name}-inverse", x="3x2", w="3x4", c=[], a=dict(transA=1, alpha=0.5), opset=11),
            single(f"{name}-inverse", "the activation has parameters", x="2x3", w="3x4", c=["4"],
                a=dict(activation_alpha=0.5)),
        )
    ),
    single("fused-conv", x="1x4x5x5", w="=6x4x3x3", b=["=6"], a=dict(pads=[1, 1, 1, 1])),
    single("fused-conv", x="2x4x5", w="6x2x3", b=[], a=dict(group=2, strides=[2]), opset=7),
    case("fused-conv", NO_KERNEL, x="1x4x5x5", w="=6x4x3x3", b=["=6"], a={}),
    single("fused-conv-inverse", x="1x4x5x5", w="=6x4x3x3", b=["=6"], a=dict(pads=[1, 1, 1, 1])),
    single("fused-conv-inverse", x="2x4x5x5", w="6x2x3x3", b=[], a=dict(group=2, auto_pad="SAME_UPPER"), opset=7),
    single("fused-conv-inverse", "the activation has parameters", x="1x4x5x5", w="6x4x3x3", b=[],
        a=dict(activation_params=[0.5])),
    single("fused-conv-inverse", "there is a summand", x="1x4x5x5", w="6x4x3x3", b=["6", "1x6x3x3"], a={}),
    single("fused-conv-clip", x="1x4x5x5", w="=6x4x3x3", b=["=6"], l=-0.5, h=0.5, a=dict(pads=[1, 1, 1, 1])),
    single("fused-conv-clip", x="2x4x5x5", w="6x2x3x3", b=[], l=-1.0, h="+", a=dict(group=2), opset=11),
    single("fused-conv-clip", "a number is not known in advance", x="1x4x5x5", w="6x4x3x3", b=[], l=-0.5, h="", a={}),
    *(
        each
        for name in ("bias-gelu", "bias-gelu-inverse", "bias-gelu-inside", "bias-gelu-standard",
            "bias-gelu-standard-inverse")
        for each in (
            single(name, x="2x3", b="=3"),
            single(name, x="2x1x3", b="3", opset=20 if "standard" in name else 9),
            single(name, "the offset is not one number per feature", x="2x3", b="1"),
        )
    ),
    single("bias-gelu", "the offset is not one number per feature", x="2x3", b="2x3"),
    case("bias-gelu", NO_KERNEL, x="2x3", b="=3"),
    single("bias-gelu-standard-inverse", "Gelu needs a newer opset", x="2x3", b="=3", opset=19),
    single("slice-of-bias-gelu", x="2x5x3", b="=3", s=[1], e=[3], t=[1]),
    single("slice-of-bias-gelu", x="5x3", b="3", s=[-2], e=[9], t=[-2], opset=13),
    single("slice-of-bias-gelu", "the features are cut", x="5x3", b="3", s=[1], e=[2], t=[1]),
    single("slice-of-quick-gelu", x="2x5", f=1.25, s=[1], e=[3], t=[1]),
    single("slice-of-quick-gelu", x="5x4x2", f=None, s=[1, 0], e=[3, 1], t=[0, -1], opset=10),
    single("slice-of-fused-matmul-rows", x="2x5x4", y="4x3", f=0.5, j=None, s=[1], e=[3], t=[1]),
    single("slice-of-fused-matmul-rows", x="5x4", y="3x4", f=None, j=1, s=[1], e=[3], t=[-2], opset=10),
    single("slice-of-fused-matmul-rows", "the rows alone", x="5x4", y="4x3", f=0.5, j=None, s=[1], e=[3], t=[1]),
    single("quick-gelu", x="2x3", k=1.702),
    single("quick-gelu", x="1", k="+", opset=9),
    single("quick-gelu", "a number is not known in advance", x="2x3", k="2x3"),
    single("quick-gelu-apart", x="2x3", f=1.25),
    single("quick-gelu-apart", x="4", f=None, opset=9),
    *(each for name in ("silu", "silu-inverse") for each in (single(name, x="2x3"), single(name, x="4", opset=9))),
]  # fmt: skip

SKIP = dict(x="2x3x8", y="2x3x8", g="8", b="=8", e=1e-3)
RMS = dict(x="2x3x8", r=[-1], e=EPSILON, g="=8")
AFFINE = dict(x="2x3x8", r=[-1], q=[2], e=EPSILON, g="8", b="=8")
FUSED += [
    single("layer-normalization-of-sum", x="2x3x8", y="2x3x8", g=["8", "=8"], a=dict(epsilon=1e-3)),
    case("layer-normalization-of-sum", x="3x8", y="@x", g=["3x8"], a=dict(axis=0), opset=17),
    case("layer-normalization-of-sum", "the summands have different shapes", x="2x3x8", y="8", g=["8"], a={}),
    single("skip-layer-normalization", **SKIP, i=-1),
    single("skip-layer-normalization", **SKIP | dict(e=1e-12), i=-1, opset=17),
    single("skip-layer-normalization", "the sum is not one of two sequences", **SKIP | dict(y="3x8"), i=-1),
    single("skip-layer-normalization", "the sum is not one of two sequences", **SKIP | dict(x="3x8", y="3x8"), i=-1),
    single("skip-layer-normalization", "scale and offset are not one number", **SKIP | dict(g="1"), i=-1),
    single("skip-layer-normalization", "more than the last axis", **SKIP | dict(x="2x8x8", y="2x8x8"), i=1),
    single("skip-layer-normalization-inverse", **SKIP),
    single("skip-layer-normalization-inverse", **SKIP | dict(e=1e-12), opset=17),
    single("skip-layer-normalization-inverse", "scale and offset are not one number", **SKIP | dict(g="1")),
    single("skip-layer-normalization-inverse", "the sum is not one of two sequences", **SKIP | dict(y="1x3x8")),
    single("skip-layer-normalization-inverse", "LayerNormalization needs a newer opset", **SKIP, opset=16),
    single("skip-layer-normalization-bias", **SKIP, c="=8"),
    single("skip-layer-normalization-bias", **SKIP | dict(y="1x3x8"), c="8", opset=9),
    single("skip-layer-normalization-bias", "the summand is not one number per feature", **SKIP, c="3x8"),
    single("skip-layer-normalization-bias-inverse", **SKIP, c="=8"),
    single("skip-layer-normalization-bias-inverse", **SKIP | dict(y="3x8"), c="8", opset=9),
    single("skip-layer-normalization-bias-inverse", "the summand is not one number per feature", **SKIP, c="3x8"),
    case("skip-layer-normalization", NO_KERNEL, **SKIP, i=-1),
    case("layer-normalization-reciprocal", **AFFINE),
    case("layer-normalization-reciprocal", **AFFINE | dict(x="8", r=[0], q="@r", g="@b"), opset=18),
    case("layer-normalization-reciprocal", "axes or epsilon are not constant", **AFFINE | dict(e="1")),
    case("layer-normalization-reciprocal", "the mean is not over the last axis", **AFFINE | dict(x="2x8x8", q=[1])),
    case("layer-normalization-reciprocal", "scale and offset are not one number", **AFFINE | dict(g="1")),
    case("layer-normalization-affine", **AFFINE),
    case("layer-normalization-affine", **AFFINE | dict(x="8", r=[0], q="@r", g="@b"), opset=18),
    case("layer-normalization-affine", "axes or epsilon are not constant", **AFFINE | dict(e="1")),
    case("layer-normalization-affine", "the mean is not over the last axis", **AFFINE | dict(x="2x8x8", q=[1])),
    case("layer-normalization-affine", "scale and offset are not one number", **AFFINE | dict(g="1")),
    *(
        each
        for name in ("rms-normalization", "rms-normalization-div")
        for each in (
            case(name, **RMS, opset=23),
            case(name, DIGITS, **RMS | dict(e=1e-5), opset=23),
            single(name, **RMS | dict(x="8", r=[0], g="8"), opset=24),
            case(name, "RMSNormalization needs a newer opset", **RMS, opset=22),
            case(name, "axes or epsilon are not constant", **RMS | dict(e="1"), opset=23),
            case(name, "the mean is not over the last axis", **RMS | dict(r=[1, 2]), opset=23),
            case(name, "the scale is not one number per feature", **RMS | dict(g="=3x8"), opset=23),
        )
    ),
    case("rms-normalization-apart", x="2x3x8", g="=8", i=-1, e=1e-3, opset=23),
    case("rms-normalization-apart", x="2x8", g="8", i=1, e=None, opset=23),
    case("rms-normalization-apart", "a tensor of this data type cannot hold 1e-12", x="2x8", g="8", i=1, e=1e-12,
        opset=23, dtype="float16"),
    case("rms-normalization-apart", "more than the last axis is normalised", x="2x3x8", g="3x8", i=1, e=1e-3, opset=23),
]  # fmt: skip

HEADS = dict(a="2x3x8", b="2x4x8", c="2x4x8", s=[2, 3, 2, 4], t=[0, 0, 2, 4], u=[2, 4, 2, -1], o=[2, 3, 8], i=-1)
APART = dict(a="2x3x8", b="2x4x8", c="2x4x6", n=2, f=0.5)
FOUR = dict(q="2x3x4x8", k="2x3x8x5", v="2x3x5x8", i=-1)
ATTENTION = [
    *(
        each
        for name, scale in (
            ("attention", {}), ("attention-scaled", dict(f=0.5)),
        )
        for each in (
            single(name, **HEADS, **scale),
            single(name, **HEADS | dict(b="2x3x8", c="2x3x6", t=[2, 3, 2, 4], u=[0, 0, 2, -1], o=[0, 0, -1], i=3),
                **scale, opset=13),
            case(name, NO_KERNEL, **HEADS, **scale),
            single(name, "the inputs are not batch, places", **HEADS | dict(a="2x24", s=[2, 3, 2, 4]), **scale),
            single(name, "the batches differ", **HEADS | dict(b="1x4x8"), **scale),
            single(name, "the features are not taken apart", **HEADS | dict(a="2x4x6"), **scale),
            single(name, "the softmax is not over the places", **HEADS | dict(i=2), **scale),
        )
    ),
    *(
        each
        for name, rest in (
            ("heads-of-gathers", dict(i=0, j=1, k=2)), ("heads-of-slices", {}), ("heads-of-split", {})
        )
        for each in (
            case(name, x="2x5x24", s=[2, 5, 3, 2, 4], **rest),
            case(name, x="1x5x12", s=[0, 0, 3, 1, -1], **rest, opset=13),
            case(name, "not queries, keys and values", x="2x5x24", s=[2, 5, 4, 3, 2], **rest)
                if name != "heads-of-split" else
            case(name, "not queries, keys and values", x="2x15x8", s=[2, 5, 3, 2, 4], **rest),
            case(name, "not queries, keys and values", x="2x5x3x8", s=[2, 5, 3, 2, 4], **rest),
        )
    ),
    case("heads-of-gathers", "not the three parts in their order", x="2x5x24", s=[2, 5, 3, 2, 4], i=0, j=1, k=1),
    case("heads-of-gathers", "not the three parts in", x="2x5x24", s=[2, 5, 3, 2, 4], i=0, j=1, k="2:int64"),
    single("attention-scaled", "ONNX Runtime reads a scale of 0", **HEADS, f=0.0),
    single("attention-apart", "ONNX Runtime reads a scale of 0", **APART | dict(f=0.0)),
    single("attention-apart", **APART),
    single("attention-apart", **APART | dict(a="1x1x8", b="1x4x8", c="1x4x8"), opset=13),
    single("attention-apart", "the inputs are not batch, places", **APART | dict(b="2x2x4x4", c="2x2x4x4")),
    *(
        each
        for name in ("attention-standard-mul", "attention-standard-div")
        for each in (
            single(name, **FOUR, f="+", opset=23),
            single(name, **FOUR | dict(v="2x3x5x6", i=3), f=0.4, opset=24),
            single(name, "the scale has no root", **FOUR, f=-0.5, opset=23),
            case(name, "ONNX takes the root of the scale in float32", **FOUR, f=0.5, opset=23),
            single(name, "Attention needs a newer opset", **FOUR, f=0.5, opset=22),
            single(name, "the inputs are not batch, heads", **FOUR | dict(q="3x4x8"), f=0.5, opset=23),
            single(name, "batches or heads differ", **FOUR | dict(k="2x1x8x5"), f=0.5, opset=23),
            single(name, "the softmax is not over the places", **FOUR | dict(i=2), f=0.5, opset=23),
        )
    ),
    single("attention-standard-apart", q="2x3x4x8", k="2x3x5x8", v="2x3x5x8", f=0.5, opset=23),
    single("attention-standard-apart", q="1x3x4x8", k="1x3x5x8", v="1x3x5x2", f=0.5, opset=24),
    case("attention-standard-apart", "ONNX takes the root of the scale in float32", q="2x3x4x8", k="2x3x5x8",
        v="2x3x5x8", f=0.5, opset=23),
    single("attention-standard-apart", "heads share a key", q="2x4x4x8", k="2x2x5x8", v="2x2x5x8", f=0.5, opset=23),
]  # fmt: skip
