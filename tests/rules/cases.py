"""Cases of the rules: where each rule fires, and look-alikes that it must refuse, with the reason."""

from tests.rules.algebra_cases import ALGEBRA
from tests.rules.channels_cases import CHANNELS
from tests.rules.dimensions_cases import DIMENSIONS
from tests.rules.fused_cases import ATTENTION, DIGITS, EPSILON, FUSED
from tests.rules.generated_cases import GENERATED
from tests.rules.instances import Case, case
from tests.rules.memory_cases import MEMORY
from tests.rules.shape_cases import OPEN_SIZES, SHAPE_ARITHMETIC
from tests.rules.upsampling_cases import RESIZES, UPSAMPLING
from tests.rules.winograd_cases import WINOGRAD

S2 = dict(strides=[2, 2])
P1 = dict(pads=[1, 1, 1, 1])
G2 = dict(group=2)
SAME = dict(auto_pad="SAME_UPPER")
K2 = dict(kernel_shape=[2, 2])
K3 = dict(kernel_shape=[3, 3])
BN = dict(s="=6", b="=6", m="=6", v="+6", e=1e-3)
BN2 = dict(t="=3", c="=3", n="=3", w="+3")

CONCAT = [
    case("concat-of-one", x="2x3", i=1),
    case("concat-of-one", x="2x3:int64", i=-2),
    case("concat-concat", l=["2x1"], m=["2x2", "2x3"], r=["2x4"], i=1),
    case("concat-concat", l=[], m=["2x2", "2x3", "2x1"], r=[], i=-1, opset=11),
    case("concat-concat", l=[], m=["1x3:int64"], r=["4x3:int64"], i=0, opset=4),
    case("concat-of-split", x="2x7", s=[2, 1, 4], i=1, a={}),
    case("concat-of-split", x="2x7x2", s=[3, 4], i=1, a={}, opset=9),
    case("split-of-concat", x="2x3", z="2x4", s=[3, 4], i=1, a={}),
    case("split-of-concat", x="3x2", z="@x", s=[3, 3], i=-2, a={}, opset=11),
    case("split-of-concat", "the parts have other sizes", x="2x3", z="2x4", s=[4, 3], i=1, a={}),
    case("split-of-concat", "the parts have other sizes", x="2x3", z="2x4", s=[3, 2, 2], i=1, a={}),
    case("split-of-concat", "a part is constant", x="2x3", z="=2x4", s=[3, 4], i=1, a={}),
    case("split-of-concat", "a shape or an axis is not known", x="2x3", z="2x4", s="2:int64", i=1, a={}),
    case("split-split-first", x="9x2", s=[5, 4], t=[2, 3], i=0),
    case("split-split-first", x="2x9", s=[5, 4], t=[2, 3], i=-1, opset=9),
    case("split-split-first", "sizes are not constant", x="2x9", s=[5, 4], t="2:int64", i=1),
    case("split-split-first", "Split does not fit", x="2x9", s=[5, 2, 2], t=[2, 3], i=1),
    case("split-split-first", "Split does not fit", x="2x9", s=[5, 4], t=[2, 2, 1], i=1),
    case("split-split-second", x="9x2", s=[5, 4], t=[1, 3], i=0),
    case("split-split-second", x="2x1x9", s=[5, 4], t=[1, 3], i=-1, opset=11),
    case("split-split-second", "sizes are not constant", x="2x9", s="2:int64", t=[1, 3], i=1),
    case("split-split-second", "Split does not fit", x="2x9", s=[3, 4, 2], t=[1, 3], i=1),
    case("relu-concat", x="2x3", y="2x4", l=["2x1"], r=["2x2", "2x2"], i=1),
    case("relu-concat", x="2x3x2", y="2x1x2", l=[], r=[], i=-2),
    case("concat-relu", x="2x3", y="2x4", i=1),
    case("concat-relu", x="2x3", y="@x", i=-2),
    case("relu-split", x="2x7", s=[3, 4], i=1, a={}),
    case("relu-split", x="2x7x2", s=[3, 4], i=-2, a={}, opset=9),
    case("relu-split", "sizes are not constant", x="2x7", s="2:int64", i=1, a={}),
    case("relu-split", "Split does not fit", x="2x7", s=[3, 2, 2], i=1, a={}),
    case("concat-batchnorm", x="2x6x4x4", y="2x3x4x4", **BN, **BN2),
    case("concat-batchnorm", x="2x6", y="2x3", **BN, **BN2, opset=9),
    case("concat-batchnorm", "a statistic is not constant", x="2x6x4", y="2x3x4", **BN, **BN2 | dict(c="3")),
    *(
        each
        for name in ("mul-of-concat", "add-of-concat")
        for each in (
            case(name, x="2x3x4x4", y="2x2x4x4", c="=5x1x1"),
            case(name, x="2x3", y="2x4", c="=1x7", opset=10),
            case(name, "one operand is not constant", x="2x3", y="2x4", c="1x7"),
            case(name, "one operand is not constant", x="=2x3", y="2x4", c="=1x7"),
            case(name, "not one number per channel", x="2x3x4", y="2x2x4", c="=1x1x4"),
            case(name, "not one number per channel", x="2x3x4", y="2x2x4", c="=1x1x1x1"),
        )
    ),
    case("concat-averagepool", x="1x2x6x6", y="1x3x6x6", a=K2 | S2),
    case("concat-averagepool", x="1x2x7", y="1x3x7", a=dict(kernel_shape=[3], pads=[1, 1], count_include_pad=1)),
    case("concat-averagepool", x="1x2x7x7", y="@x", a=K2 | S2 | dict(ceil_mode=1), opset=11),
    case("concat-averagepool", "Concat does not fit", x="1x2x6x6", y="1x2x7x7", a=K2 | S2),
    case("concat-averagepool-inverse", x="1x2x6x6", y="1x3x6x6", a=K3 | S2 | P1),
    case("concat-averagepool-inverse", x="1x2x6x6x4", y="1x3x6x6x4", a=dict(kernel_shape=[3, 2, 1]), opset=9),
    case("concat-maxpool", x="1x2x6x6", y="1x3x6x6", a=K2 | S2),
    case("concat-maxpool", x="1x2x7", y="1x3x7", a=dict(kernel_shape=[3], dilations=[2], pads=[1, 0])),
    case("concat-maxpool", "Concat does not fit", x="1x2x6x6", y="1x2x7x7", a=K2 | S2),
    case("concat-maxpool-inverse", x="1x2x6x6", y="1x3x6x6", a=K3 | P1),
    case("concat-maxpool-inverse", x="1x2x7x7", y="1x3x7x7", a=K3 | S2 | SAME),
]

CONV_BN = dict(x="1x4x5x5", w="=6x4x3x3") | BN
CONV_BN_1D = dict(x="2x4x5", w="=6x2x3") | BN
CONV_MERGE = dict(x="1x4x5x5", w="=6x4x3x3", u="=2x4x3x3")
GROUPED = dict(x="1x4x5x5", w="=6x2x3x3", u="=2x2x3x3", a=G2)
CONV_MERGE_B = CONV_MERGE | dict(b="=6", c="=2")
ENLARGE = dict(x="1x4x5x5", w="=6x4x1x1", u="=2x4x3x3")
ENLARGE_B = ENLARGE | dict(b="=6", c="=2")
P0111 = dict(p=(0, 0, 0, 0), q=(1, 1, 1, 1))
POOLED = dict(x="1x4x6x6", w="=6x4x1x1")
POOLED_B = POOLED | dict(b="=6")

CONVOLUTION = [
    case("conv-batchnorm", **CONV_BN, a=P1),
    case("conv-batchnorm", **CONV_BN_1D, a=G2, opset=9),
    case("conv-batchnorm", x="1x2x3x4x5", w="=6x2x2x2x2", **BN, a=dict(dilations=[1, 2, 1])),
    case("conv-batchnorm", "a weight or statistic is not constant", **CONV_BN | dict(w="6x4x3x3"), a={}),
    case("conv-batchnorm", "a weight or statistic is not constant", **CONV_BN | dict(m="6"), a={}),
    case("conv-bias-batchnorm", **CONV_BN, c="=6", a=S2),
    case("conv-bias-batchnorm", **CONV_BN_1D, c="=6", a=G2 | dict(pads=[2, 1]), opset=9),
    case("conv-bias-batchnorm", "a weight or statistic is not constant", **CONV_BN, c="6", a={}),
    case("conv-mul", x="1x4x5x5", w="=6x4x3x3", k="=6x1x1", a=S2 | P1),
    case("conv-mul", x="2x4x5", w="=6x2x3", k="=1x6x1", a=G2, opset=7),
    case("conv-mul", x="1x4x5x5", w="=6x4x3x3", k="=", a=SAME),
    case("conv-mul", x="6x4x5x6", w="=6x4x1x1", k="=1", a={}),
    case("conv-mul", x="1x4x5x5", w="=1x4x3x3", k="=1x1x1x1", a={}),
    case("conv-mul", "weight or factor is not constant", x="1x4x5x5", w="=6x4x3x3", k="6x1x1", a={}),
    case("conv-mul", "weight or factor is not constant", x="1x4x5x5", w="6x4x3x3", k="=6x1x1", a={}),
    *(
        case("conv-mul", "the factor varies along more than the channels", x="6x4x6x6", w="=6x4x1x1", k=k, a={})
        for k in ("=6", "=6x1", "=6x1x1x1", "=1x6x6x1", "=1x1x6x1x1")
    ),
    case("conv-mul", "the factor varies along more than the channels", x="1x4x5x5", w="=1x4x3x3", k="=6x1x1", a={}),
    case("conv-bias-mul", x="1x4x5x5", w="=6x4x3x3", c="=6", k="=6x1x1", a=S2 | P1),
    case("conv-bias-mul", x="2x4x5", w="=6x2x3", c="=6", k="=", a=G2, opset=7),
    case("conv-bias-mul", "weight, bias or factor is not", x="1x4x5x5", w="=6x4x3x3", c="6", k="=6x1x1", a={}),
    case("conv-bias-mul", "the factor varies along more", x="1x4x5x5", w="=6x4x3x3", c="=6", k="=3", a={}),
    case("conv-add", x="1x4x5x5", w="=6x4x3x3", k="=6x1x1", a=S2 | P1),
    case("conv-add", x="2x4x5", w="=6x2x3", k="=1x6x1", a=G2, opset=7),
    case("conv-add", x="1x4x5x5", w="=1x4x3x3", k="=", a={}),
    case("conv-add", "weight or summand is not constant", x="1x4x5x5", w="=6x4x3x3", k="6x1x1", a={}),
    case("conv-add", "the summand is not one number per channel", x="1x4x5x5", w="=6x4x3x3", k="=", a={}),
    case("conv-add", "the summand is not one number per channel", x="1x4x6x6", w="=6x4x1x1", k="=6", a={}),
    case("conv-add", "the summand is not one number per channel", x="1x4x6x6", w="=6x4x1x1", k="=6x6x1", a={}),
    case("conv-bias-add", x="1x4x5x5", w="=6x4x3x3", c="=6", k="=6x1x1", a=S2 | P1),
    case("conv-bias-add", x="2x4x5", w="=6x2x3", c="=6", k="=1", a=G2, opset=7),
    case("conv-bias-add", "weight, bias or summand is not", x="1x4x5x5", w="=6x4x3x3", c="=6", k="6x1x1", a={}),
    case("conv-bias-add", "the summand varies along more", x="1x4x6x6", w="=6x4x1x1", c="=6", k="=6x1x6", a={}),
    case("batchnorm-mul", x="2x6x4x4", **BN, k="=6x1x1"),
    case("batchnorm-mul", x="2x6", **BN, k="=6", opset=9),
    case("batchnorm-mul", x="2x6x3", **BN, k="="),
    case("batchnorm-mul", "a statistic or the factor is not constant", x="2x6x4x4", **BN, k="6x1x1"),
    case("batchnorm-mul", "the factor varies along more than the channels", x="2x6x6", **BN, k="=6"),
    case("batchnorm-mul", "the factor varies along more than the channels", x="6x6", **BN, k="=6x1"),
    case("batchnorm-mul", "the factor varies along more than the channels", x="2x6", **BN, k="=1x1x6"),
    case("batchnorm-add", x="2x6x4x4", **BN, k="=1x6x1x1"),
    case("batchnorm-add", x="2x6", **BN, k="=1x6", opset=9),
    case("batchnorm-add", x="2x6x3", **BN, k="=1x1"),
    case("batchnorm-add", "a statistic or the summand is not constant", x="2x6x4x4", **BN | dict(s="6"), k="=6x1x1"),
    case("batchnorm-add", "the summand varies along more than the channels", x="2x6x6", **BN, k="=6x6"),
    case("mul-add-as-batchnorm", x="2x6x4x4", k="=6x1x1", c="=1x6x1x1"),
    case("mul-add-as-batchnorm", x="2x6x3", k="=6x1", c="=6x1", opset=9),
    case("mul-add-as-batchnorm", x="1x1x3", k="=", c="=1"),
    case("mul-add-as-batchnorm", "factor or summand is not constant", x="2x6x4x4", k="6x1x1", c="=6x1x1"),
    case("mul-add-as-batchnorm", "the input has no channels", x="2x6", k="=6", c="=6"),
    case("mul-add-as-batchnorm", "the input has no channels", x="2x6x3:int64", k="=6x1:int64", c="=6x1:int64"),
    *(
        case("mul-add-as-batchnorm", "factor and summand are not one number", x="6x6x6", k=k, c=c)
        for k, c in (("=", "=6x1"), ("=6x1", "=6"), ("=6x1x1", "=6x1"), ("=6x1", "=1x1x6x1"))
    ),
    case("mul-add-as-batchnorm", "BatchNormalization needs a newer opset", x="2x6x3", k="=6x1", c="=6x1", opset=8),
    case("batchnorm-as-mul-add", x="2x6x4x4", **BN),
    case("batchnorm-as-mul-add", x="2x6", **BN, opset=9),
    case("batchnorm-as-mul-add", x="2x6x3", **BN | dict(e=None), opset=15),
    case("batchnorm-as-mul-add", "a statistic is not constant", x="2x6x4x4", **BN | dict(v="6")),
    case("batchnorm-as-mul-add", "the input has no channels", x="5", **dict.fromkeys("sbmv", "+1"), e=1e-5),
    case("batchnorm-as-mul-add", "Div does not fit", x="2x6x4", **BN | dict.fromkeys("sb", "=6:float32"), opset=15),
    case("concat-conv-merge", **CONV_MERGE, l=["1x1x5x5"], r=["1x2x5x5"], a=P1),
    case("concat-conv-merge", x="2x3x5", w="=6x3x2", u="@w", l=[], r=[], a={}, opset=7),
    case("concat-conv-merge", "a weight is not constant", **CONV_MERGE | dict(u="2x4x3x3"), l=[], r=[], a={}),
    case("concat-conv-merge", "the kernels have different", **CONV_MERGE | dict(u="=2x4x1x1"), l=[], r=[], a=SAME),
    case("concat-conv-merge", "the convolutions are grouped", **GROUPED, l=[], r=[]),
    case("concat-conv-bias-merge", **CONV_MERGE_B, l=["1x1x5x5"], r=["1x2x5x5"], a=P1),
    case("concat-conv-bias-merge", x="2x3x5", w="=6x3x2", u="@w", b="=6", c="@b", l=[], r=[], a={}, opset=7),
    case("concat-conv-bias-merge", "a weight is not constant", **CONV_MERGE_B | dict(c="2"), l=[], r=[], a={}),
    case("concat-conv-bias-merge", "the kernels have", **CONV_MERGE_B | dict(u="=2x4x1x1"), l=[], r=[], a=SAME),
    case("concat-conv-bias-merge", "the convolutions are grouped", **GROUPED, b="=6", c="=2", l=[], r=[]),
    case("conv-merge", **CONV_MERGE, a=S2 | P1),
    case("conv-merge", x="2x3x5", w="=6x3x2", u="@w", a=dict(dilations=[2]), opset=9),
    case("conv-merge", **CONV_MERGE, a=SAME | S2),
    case("conv-merge", **CONV_MERGE, a=dict(kernel_shape=[3, 3], group=1, auto_pad="NOTSET", pads=[0, 0, 0, 0])),
    case("conv-merge", "a weight is not constant", **CONV_MERGE | dict(w="6x4x3x3"), a={}),
    case("conv-merge", "the kernels have different shapes", **CONV_MERGE | dict(u="=2x4x3x1"), a={}),
    case("conv-merge", "the convolutions are grouped", **GROUPED),
    case("conv-bias-merge", **CONV_MERGE_B, a=S2 | P1),
    case("conv-bias-merge", x="2x3x5", w="=6x3x2", u="@w", b="=6", c="=6", a=dict(dilations=[2]), opset=9),
    case("conv-bias-merge", "a weight is not constant", **CONV_MERGE_B | dict(b="6"), a={}),
    case("conv-bias-merge", "the kernels have different shapes", **CONV_MERGE_B | dict(u="=2x4x3x1"), a={}),
    case("conv-bias-merge", "the convolutions are grouped", **GROUPED, b="=6", c="=2"),
    case("conv-enlarge-without-bias", **ENLARGE, **P0111, a={}),
    case("conv-enlarge-without-bias", **ENLARGE, p=None, q=(1, 1, 1, 1), a=dict(auto_pad="NOTSET", strides=[1, 1])),
    case("conv-enlarge-without-bias", **ENLARGE, p=(1, 0, 0, 2), q=(2, 1, 1, 3), a=S2, opset=7),
    case("conv-enlarge-without-bias", x="1x4x5x5", w="=6x2x1x1", u="=2x2x3x3", **P0111, a=G2),
    case("conv-enlarge-without-bias", "a weight is not constant", **ENLARGE | dict(w="6x4x1x1"), **P0111, a={}),
    case("conv-enlarge-without-bias", "not a 1×1 beside a 3×3", **ENLARGE | dict(w="=6x4x1x3"), **P0111, a={}),
    case("conv-enlarge-without-bias", "the paddings do not differ", **ENLARGE, p=(0, 0, 0, 0), q=(1, 1, 1, 2), a={}),
    case("conv-enlarge-without-bias", "automatic padding or", **ENLARGE, **P0111, a=dict(dilations=[2, 2])),
    case("conv-enlarge", **ENLARGE_B, **P0111, a={}),
    case("conv-enlarge", **ENLARGE_B, p=(1, 0, 0, 2), q=(2, 1, 1, 3), a=S2, opset=7),
    case("conv-enlarge", x="1x4x5x5", w="=6x2x1x1", u="=2x2x3x3", b="=6", c="=2", **P0111, a=G2),
    case("conv-enlarge", "a weight is not constant", **ENLARGE_B | dict(c="2"), **P0111, a={}),
    case("conv-enlarge", "not a 1×1 beside a 3×3", **ENLARGE_B | dict(u="=2x4x5x5"), **P0111, a={}),
    case("conv-enlarge", "the paddings do not differ", **ENLARGE_B, p=(0, 0, 0, 0), q=(2, 2, 2, 2), a={}),
    case("conv-enlarge", "automatic padding or dilation", **ENLARGE_B, **P0111, a=dict(dilations=[1, 2])),
]  # fmt: skip

for name in ("conv-averagepool", "conv-averagepool-inverse"):
    CONVOLUTION += [
        case(name, **POOLED, a={}, p=K2 | S2),
        case(name, **POOLED, a={}, p=K3 | P1 | dict(count_include_pad=1)),
        case(name, x="1x4x7x7", w="=6x2x1x1", a=G2, p=K2 | S2 | dict(ceil_mode=1), opset=11),
        case(name, x="2x4x7", w="=6x4x1", a={}, p=dict(kernel_shape=[3], strides=[2], pads=[1, 1]), opset=7),
        case(name, "the kernel is not 1×1", **POOLED | dict(w="=6x4x3x3"), a=SAME, p=K2),
        case(name, "the kernel is not 1×1", **POOLED | dict(w="6x4x1x1"), a={}, p=K2),
        *(case(name, "the convolution strides or pads", **POOLED, a=a, p=K2) for a in (S2, P1, SAME | S2)),
        case(name, "automatic padding", **POOLED, a={}, p=K3 | SAME),
    ]
for name in ("conv-bias-averagepool", "conv-bias-averagepool-inverse"):
    CONVOLUTION += [
        case(name, **POOLED_B, a={}, p=K2 | S2),
        case(name, **POOLED_B, a={}, p=K3 | P1),
        case(name, x="2x4x7", w="=6x2x1", b="=6", a=G2, p=dict(kernel_shape=[3], count_include_pad=1), opset=7),
        case(name, "the kernel is not 1×1", **POOLED_B | dict(w="=6x4x3x3"), a=SAME, p=K2),
        case(name, "the kernel is not 1×1", **POOLED_B | dict(b="6"), a={}, p=K2),
        *(case(name, "the convolution strides or pads", **POOLED_B, a=a, p=K2) for a in (S2, P1, SAME | S2)),
        *(
            case(name, "automatic padding, ceiling or dilation", **POOLED_B, a={}, p=K2 | p)
            for p in (SAME, dict(ceil_mode=1), dict(dilations=[2, 2]))
        ),
        case(name, "the average counts padding", **POOLED_B, a={}, p=K3 | P1 | dict(count_include_pad=1)),
        case(name, "the padding is as wide as a window", **POOLED_B, a={}, p=K2 | dict(pads=[2, 0, 0, 0])),
    ]
for name in ("conv-globalaveragepool", "conv-globalaveragepool-inverse"):
    CONVOLUTION += [
        case(name, **POOLED_B, a={}),
        case(name, x="2x4x7", w="=6x2x1", b="=6", a=G2, opset=7),
        case(name, "the kernel is not 1×1", **POOLED_B | dict(w="=6x4x3x3"), a=SAME),
        case(name, "the convolution strides or pads", **POOLED_B, a=P1),
        case(name, "the convolution strides or pads", **POOLED_B, a=S2),
    ]

ELEMENTWISE = [
    case("identity", x="2x3"),
    case("identity", x=":int64", opset=1),
    case("dropout", x="2x3", a={}),
    case("dropout", x="2x3", a=dict(ratio=0.9), opset=7),
    case("relu-relu", x="2x3"),
    case("relu-relu", x="2x3:int64", opset=14),
    case("neg-neg", x="2x3"),
    case("neg-neg", x=":int64", opset=6),
    case("sum-of-two", x="2x3", y="2x3"),
    case("sum-of-two", x="2x1", y="@x"),
    case("sum-of-two", x="2x1", y="4x1x3", opset=8),
    case("add-zero", x="2x3"),
    case("add-zero", x="", opset=7),
    case("add-zero", x="2x3:int64", dtype="int64"),
    case("mul-one", x="2x3"),
    case("mul-one", x="2x3:int64", dtype="int64", opset=7),
    case("square", x="2x3"),
    case("square", x="", opset=7),
    case("square", "the base is not a float", x="2x3:int64", dtype="int64"),
    case("square-inverse", x="2x3"),
    case("square-inverse", x="", opset=7),
    case("square-inverse", "the base is not a float", x="2x3:int64"),
    case("div-by-constant", x="2x3", c="+3"),
    case("div-by-constant", x="3", c="+2x1", opset=7),
    case("div-by-constant", x="3", c=0.0),
    case("div-by-constant", "the divisor is not constant", x="2x3", c="2x3"),
    case("div-by-constant", "the divisor is not constant", x="=2x3", c="2x3"),
    case("div-by-constant", "integers do not divide exactly", x="2x3:int64", c="+3:int64"),
    case("sub-constant", x="2x3", c="=3"),
    case("sub-constant", x="3", c="=2x1", opset=7),
    case("sub-constant", "what is subtracted is not constant", x="2x3", c="3"),
    case("sub-constant", "only floats are negated safely", x="2x3:uint32", c="=3:uint32"),
    case("add-constants", x="2x3", c="=3", d="=2x1"),
    case("add-constants", x="1:int64", c="=3:int64", d="=2x1:int64", opset=7),
    case("add-constants", "one of the two is not constant", x="2x3", c="=3", d="2x1"),
    case("mul-constants", x="2x3", c="=3", d="=2x1"),
    case("mul-constants", x=":int64", c="=3:int64", d="=2x1x1:int64", opset=7),
    case("mul-constants", "one of the two is not constant", x="2x3", c="3", d="=2x1"),
    case("mul-constant-outward", x="2x3", k=0.5, y="4x2x1"),
    case("mul-constant-outward", x="2x3:int32", k="=:int32", y="@x", opset=7),
    case("mul-constant-outward", "the inner factor is not a number", x="2x3", k="=3", y="2x3"),
    case("mul-constant-outward", "the inner factor is not a number", x="2x3", k="", y="2x3"),
    case("mul-constant-outward", "another factor is constant too", x="2x3", k=0.5, y="=3"),
    case("add-constant-outward", x="2x3", c="=3", y="4x2x1"),
    case("add-constant-outward", x="2x3", c="=3", y="@x", opset=7),
    case("add-constant-outward", "the inner summand is not constant", x="2x3", c="3", y="2x3"),
    case("add-constant-outward", "another summand is constant too", x="2x3", c="=3", y="=3"),
    case("mul-distributes", x="2x3", c="=3", d="=2x1"),
    case("mul-distributes", x="3:int64", c="=2x1:int64", d="=4x1x1:int64", opset=7),
    case("mul-distributes", "summand or factor is not constant", x="2x3", c="3", d="=2x1"),
    case("mul-factored", x="2x3", y="2x3", d="=3"),
    case("mul-factored", x="3:int64", y="@x", d="=2x1:int64", opset=7),
    case("mul-factored", "the common factor is not constant", x="2x3", y="2x3", d="3"),
    case("mul-factored", "the summands have different shapes", x="2x3", y="3", d="=3"),
    case("mul-factored", "the summands have different shapes", x="3", y="1", d="=3"),
]  # fmt: skip
for name in ("relu-maxpool", "relu-maxpool-inverse"):
    ELEMENTWISE += [
        case(name, x="1x2x6x6", a=K2 | S2),
        case(name, x="1x2x7x7", a=K3 | P1, opset=6),
        case(name, x="1x2x6x6", a=K3 | S2 | dict(ceil_mode=1)),
        case(name, x="1x2x7x7", a=K3 | S2 | SAME, opset=8),
        case(name, "a dilated window may", x="1x1x3", a=dict(kernel_shape=[2], dilations=[4], pads=[1, 1])),
        case(name, "the padding is as wide as a window", x="1x1x3", a=dict(kernel_shape=[1], pads=[1, 0])),
        case(name, "the last window may lie outside", x="1x1x2", a=dict(kernel_shape=[1], strides=[2], ceil_mode=1)),
        case(name, "the last window may lie outside", x="1x1x4x4", a=K2 | S2 | dict(pads=[0, 0, 1, 1], ceil_mode=1)),
    ]  # fmt: skip

LAYER_NORM = dict(x="2x3x8", r=[-1], q=[-1], e=EPSILON, g="8", b="=8")
FUSION = [
    case("layer-normalization", **LAYER_NORM),
    case("layer-normalization", DIGITS, **LAYER_NORM | dict(e=1e-5)),
    case("layer-normalization", **LAYER_NORM | dict(r=[2], q=[-1], e="+1"), dtype="float32"),
    case("layer-normalization", **LAYER_NORM | dict(x="8", r=[0], q="@r", g="@b"), opset=18),
    case("layer-normalization", "axes or epsilon are not constant", **LAYER_NORM | dict(e="1")),
    case("layer-normalization", "the mean is not over the last axis", **LAYER_NORM | dict(x="2x8x8", r=[1], q=[1])),
    case("layer-normalization", "the mean is not over the last axis", **LAYER_NORM | dict(r=[1, 2])),
    case("layer-normalization", "the mean is not over the last axis", **LAYER_NORM | dict(x="2x8x8", q=[1])),
    case("layer-normalization", "scale and offset are not one number", **LAYER_NORM | dict(g="1")),
    case("layer-normalization", "scale and offset are not one number", **LAYER_NORM | dict(b="=3x8")),
    case("layer-normalization", "a number is not known in advance", **LAYER_NORM | dict(e="+8")),
    case("layer-normalization", "the result would be", **LAYER_NORM | dict(e="+1x1x1x1"), dtype="float32"),
    case("gelu", x="2x3"),
    case("gelu", x=""),
    case("gelu", "Gelu needs a newer opset", x="2x3", opset=19),
]

LAYOUT = [
    case("transpose-transpose", x="2x3x4", p=(1, 2, 0), q=(0, 2, 1)),
    case("transpose-transpose", x="2x3x4x1", p=None, q=(1, 2, 3, 0), opset=1),
    case("transpose-nothing", x="2x3:int64", p=(0, 1)),
    case("transpose-nothing", x="4", p=None),
    case("transpose-nothing", "the permutation moves an axis", x="2x2", p=None),
    case("reshape-reshape", x="2x3x4", s=[6, 4], t=[3, -1]),
    case("reshape-reshape", x="2x3x4", s=[0, -1], t=[24], opset=5),
    case("reshape-reshape", x="", s=[1, 1], t=[1]),
    case("reshape-reshape", "the second shape copies a size", x="2x3x4", s=[6, 4], t=[0, -1]),
    case("reshape-reshape", "a shape or an axis is not known", x="2x3x4", s=[6, 4], t="2:int64"),
    case("reshape-nothing", x="2x3", s=[2, 3]),
    case("reshape-nothing", x="2x1x3:int64", s=[0, -1, 3], opset=5),
    case("reshape-nothing", x="nx2x3", s=[-1, 2, 3]),
    case("reshape-nothing", "empty tensors have no free size", x="0x3", s=[0, 3]),
    case("reshape-nothing", "the shape changes", x="2x3", s=[3, 2]),
    case("reshape-nothing", "the shape changes", x="2x3", s=[1, 2, 3]),
    case("flatten-as-reshape", x="2x3x4"),
    case("flatten-as-reshape", x="5:float32", opset=9),
    case("flatten-as-reshape", "empty tensors have no free size", x="0x3x4"),
    case("squeeze-unsqueeze", x="2x3", s=[0, 2], t=[0, 2]),
    case("squeeze-unsqueeze", x="", s=[-1], t=[-1]),
    case("squeeze-unsqueeze", "other axes are removed than were added", x="1x3", s=[0], t=[1]),
    case("unsqueeze-squeeze", x="1x3x1x2", s=[0, 2], t=[0, 2]),
    case("unsqueeze-squeeze", x="3x1", s=[-1], t=[-1]),
    case("unsqueeze-squeeze", "other axes are added than were removed", x="1x1x3", s=[0], t=[2]),
    case("relu-transpose", x="2x3x4", p=(1, 2, 0)),
    case("relu-transpose", x="2x3x4", p=None, opset=6),
    case("relu-transpose-inverse", x="2x3x4", p=(1, 2, 0)),
    case("relu-transpose-inverse", x="2x3", p=None, opset=6),
    case("relu-reshape", x="2x3x4", s=[0, -1]),
    case("relu-reshape", x="2x3", s=[3, 2], opset=6),
    case("relu-reshape-inverse", x="2x3x4", s=[0, -1]),
    case("relu-reshape-inverse", "the shape", x="2x3", s="2:int64", opset=6),
    case("relu-reshape-inverse", x="2x3", s=[3, 2], opset=6),
    case("add-transpose", x="2x3x4", y="2x3x4", p=(1, 2, 0)),
    case("add-transpose", x="3x4:int64", y="@x", p=None, opset=7),
    case("add-transpose", "the summands have different shapes", x="2x3x3", y="2x3x1", p=(1, 2, 0)),
    case("transpose-split", x="2x3x4", s=[1, 2], i=1, p=(1, 2, 0)),
    case("transpose-split", x="2x3x4", s=[1, 3], i=-1, p=(1, 2, 0), opset=9),
    case("transpose-split", x="2x3x4", s=[1, 1], i=0, p=None),
    case("transpose-split", "sizes are not constant", x="2x3x4", s="2:int64", i=1, p=(1, 2, 0)),
    case("transpose-split", "Split does not fit", x="2x3x4", s=[1, 1, 2], i=2, p=(1, 2, 0)),
    case("transpose-of-stacked", x="2x3x4x5", s=[6, 4, 5], t=[2, 3, 5, 4]),
    case("transpose-of-stacked", x="2x3x4x5", s=[-1, 4, 5], t=[2, 3, 5, -1]),
    case("transpose-of-stacked", "not matrices", x="2x3x4x4", s=[6, 2, 8], t=[2, 3, 4, 4]),
    case("transpose-of-stacked", "not matrices", x="2x3x4", s=[6, 2, 2], t=[6, 4]),
    case("transpose-of-stacked", x="nx3x4x5", s=[-1, 4, 5], t=[-1, 3, 5, 4]),
]

MATMUL = [
    case("matmul-merge", x="2x3x4", w="=4x5", u="=4x2"),
    case("matmul-merge", x="3x4", w="=4x5", u="@w", opset=9),
    case("matmul-merge", x="3x4:int64", w="=4x5:int64", u="=4x1:int64"),
    case("matmul-merge", "a weight is not constant", x="2x3x4", w="=4x5", u="4x2"),
    case("matmul-merge", "the weights are not matrices", x="2x3x4", w="=4x5", u="=2x4x2"),
    case("matmul-merge", "the weights are not matrices", x="2x3x4", w="=4x5", u="=4"),
    case("matmul-merge", "the weights are not matrices", x="4", w="=4x5", u="=4x2"),
    case("matmul-add-merge", x="2x3x4", w="=4x5", u="=4x2", b="=5", c="=2"),
    case("matmul-add-merge", x="3x4", w="=4x5", u="@w", b="=5", c="@b", opset=9),
    case("matmul-add-merge", "a weight is not constant", x="2x3x4", w="=4x5", u="=4x2", b="=5", c="2"),
    case("matmul-add-merge", "the weights are not matrices", x="4", w="=4x5", u="=4x2", b="=5", c="=2"),
    case("matmul-add-merge", "a bias is not one number", x="2x3x4", w="=4x5", u="=4x2", b="=1", c="=2"),
    case("matmul-add-merge", "a bias is not one number", x="2x3x4", w="=4x5", u="=4x2", b="=5", c="=3x2"),
    case("gemm-merge", x="3x4", w="=4x5", u="=4x2", b="=5", c="=2", a={}),
    case("gemm-merge", x="4x3", w="=5x4", u="=2x4", b="=5", c="=2", a=dict(transA=1, transB=1, alpha=0.5, beta=2.0)),
    case("gemm-merge", x="3x4", w="=4x4", u="@w", b="=4", c="=4", a=dict(beta=0.5), opset=7),
    case("gemm-merge", "a weight is not constant", x="3x4", w="4x5", u="=4x2", b="=5", c="=2", a={}),
    case("gemm-merge", "a bias is not one number", x="3x4", w="=4x5", u="=4x2", b="=1x5", c="=2", a={}),
    case("gemm-merge", "a bias is not one number", x="3x4", w="=5x4", u="=2x4", b="=5", c="=1", a=dict(transB=1)),
    case("matmul-add-as-gemm", x="3x4", w="4x5", b="=5"),
    case("matmul-add-as-gemm", x="3x4", w="=4x5", b="=1x5", opset=7),
    case("matmul-add-as-gemm", "not a product of matrices", x="2x3x4", w="4x5", b="=5"),
    case("matmul-add-as-gemm", "not a product of matrices", x="4", w="4x5", b="=5"),
    case("matmul-add-as-gemm", "the summand is not one number per column", x="3x4", w="4x5", b="=3x1"),
    case("matmul-add-as-gemm", "the summand is not one number per column", x="3x4", w="4x1", b="=5"),
    case("matmul-add-as-gemm", "the summand is not one number per column", x="3x4", w="4x5", b="=1x1x5"),
    case("matmul-add-as-gemm", "ONNX Runtime has no Gemm", x="3x4:int64", w="4x5:int64", b="=5:int64"),
    case("matmul-add-as-gemm-inverse", x="3x4", w="4x5", b="5"),
    case("matmul-add-as-gemm-inverse", x="3x4", w="=4x5", b="3x1"),
    case("matmul-add-as-gemm-inverse", x="3x4", w="=4x5", b="", opset=7),
    case("matmul-add-as-gemm-inverse", "ONNX Runtime has no Gemm", x="3x4:int64", w="4x5:int64", b="5:int64"),
    case("matmul-associates", x="2x3x4", w="=4x5", u="=5x2"),
    case("matmul-associates", x="4", w="=4x5", u="=5x2", opset=7),
    case("matmul-associates", "a weight is not constant", x="2x3x4", w="=4x5", u="5x2"),
    case("matmul-associates", "the weights are not matrices", x="3x4", w="=4x5", u="=2x5x2"),
    case("matmul-associates", "the weights are not matrices", x="3x4", w="=4x5", u="=5"),
    case("mul-into-weight", x="2x3x4", w="=4x5", k="=5"),
    case("mul-into-weight", x="3x4", w="=2x4x5", k="=", opset=7),
    case("mul-into-weight", x="4", w="=4x5", k="=1"),
    case("mul-into-weight", x="3x4", w="=4", k="="),
    case("mul-into-weight", x="3x4", w="=4", k="=1"),
    case("mul-into-weight", "weight or factor is not constant", x="3x4", w="=4x5", k="5"),
    case("mul-into-weight", "weight or factor is not constant", x="3x4", w="4x5", k="=5"),
    case("mul-into-weight", "the factor is not one number", x="3x4", w="=4x5", k="=3x1"),
    case("mul-into-weight", "the factor is not one number", x="3x4", w="=3x4x5", k="=3x1x1"),
    case("mul-into-weight", "the factor is not one number", x="3x4", w="=4x1", k="=5"),
    case("mul-into-weight", "the result would be", x="4", w="=4", k="=1"),
    case("mul-through-matmul", x="2x3x4", y="4x5", k="="),
    case("mul-through-matmul", x="3x3", y="@x", k="=1", opset=7),
    case("mul-through-matmul", "the factor is not one number", x="3x4", y="4x5", k="=5"),
    case("mul-through-matmul", "the factor is not one number", x="3x4", y="4x5", k=""),
    case("mul-through-matmul", "a side is constant", x="3x4", y="=4x5", k="="),
    case("mul-through-matmul", "the result would be", x="4", y="4", k="=1"),
    case("mul-through-matmul-inverse", x="2x3x4", y="4x5", k="="),
    case("mul-through-matmul-inverse", x="4", y="4x5", k="=1", opset=7),
    case("mul-through-matmul-inverse", "the factor is not one number", x="3x4", y="4x5", k="=4"),
    case("mul-through-matmul-inverse", "the factor is not one number", x="1x4", y="4x5", k="=1x1x1"),
    case("mul-through-matmul-inverse", "a side is constant", x="3x4", y="=4x5", k="="),
    case("mul-through-matmul-inverse", "the result would be", x="4", y="4", k="=1"),
    case("mul-through-transpose", x="2x3x4", p=(1, 2, 0), k="="),
    case("mul-through-transpose", x="2x3:int64", p=None, k="=1:int64", opset=7),
    case("mul-through-transpose", "the factor is not one number", x="3x3", p=None, k="=3"),
    case("mul-through-transpose", "the factor is not one number", x="3x3", p=None, k="=1x1x1"),
    case("mul-through-transpose", "Transpose does not fit its inputs", x="", p=(), k="=1"),
    case("mul-through-transpose-inverse", x="2x3x4", p=(1, 2, 0), k="="),
    case("mul-through-transpose-inverse", x="2x3:int64", p=None, k="=1:int64", opset=7),
    case("mul-through-transpose-inverse", "the factor is not one number", x="3x3", p=None, k="=3"),
    case("mul-through-reshape", x="2x3x4", s=[0, -1], k="="),
    case("mul-through-reshape", x="2x3:int64", s=[6], k="=1:int64", opset=7),
    case("mul-through-reshape", "the factor is not one number", x="2x3", s=[3, 2], k="=2"),
    case("mul-through-reshape", "the result would be", x="1", s=[], k="=1"),
    case("mul-through-reshape-inverse", x="2x3x4", s=[0, -1], k="="),
    case("mul-through-reshape-inverse", x="2x3:int64", s=[6], k="=1:int64", opset=7),
    case("mul-through-reshape-inverse", "the factor is not one number", x="2x3", s=[3, 2], k="=3"),
    case("mul-through-reshape-inverse", "the result would be", x="", s=[], k="=1"),
    case("add-into-gemm", x="3x4", w="4x5", b="=5", k="=5", a={}),
    case("add-into-gemm", x="4x3", w="=5x4", b="=1", k="=5", a=dict(transA=1, transB=1), opset=7),
    case("add-into-gemm", "bias or summand is not constant", x="3x4", w="4x5", b="=5", k="5", a={}),
    case("add-into-gemm", "the Gemm scales its parts", x="3x4", w="4x5", b="=5", k="=5", a=dict(beta=2.0)),
    case("add-into-gemm", "the Gemm scales its parts", x="3x4", w="4x5", b="=5", k="=5", a=dict(alpha=2.0)),
    case("add-into-gemm", "bias or summand is not one number per", x="3x4", w="4x5", b="=5", k="=3x1", a={}),
    case("add-into-gemm", "bias or summand is not one number per", x="3x4", w="4x5", b="=3x1", k="=5", a={}),
    case("add-into-gemm", "Gemm does not fit its inputs", x="3x4", w="4x1", b="=1", k="=5", a={}),
]  # fmt: skip


# -- the input side of convolutions, transposed ones, chains ----------------------------------------

IMAGE = dict(x="2x4x6x6")
POINT = dict(w="=6x4x1x1")
UNPADDED = [dict(a=a) for a in (P1, SAME)]
CONVOLUTION += [
    case("conv-bias-out", **POOLED_B, a=S2),
    case("conv-bias-out", x="2x4x7", w="=6x2x3", b="=6", a=G2 | dict(pads=[1, 0]), opset=7),
    case("conv-bias-out", "the bias is not constant", **POOLED_B | dict(b="6"), a={}),
    case("conv-of-mul", **IMAGE, w="=6x4x3x3", k="=4x1x1", b=[], a=P1),
    case("conv-of-mul", **IMAGE, w="=6x4x3x3", k="=", b=["=6"], a=S2, opset=7),
    case("conv-of-mul", "weight or factor is not constant", **IMAGE, **POINT, k="4x1x1", b=[], a={}),
    case("conv-of-mul", "the factor varies along more", **IMAGE, **POINT, k="=6", b=[], a={}),
    case("conv-of-mul", "the convolution is grouped", **IMAGE, w="=6x2x1x1", k="=4x1x1", b=[], a=G2),
    *(
        each
        for name, extra in (("conv-of-add", {}), ("conv-bias-of-add", dict(b="=6")))
        for each in (
            case(name, **IMAGE, w="=6x4x3x3", c="=4x1x1", **extra, a=S2),
            case(name, x="2x4x7", w="=6x4x3", c="=1x1x1", **extra, a=dict(dilations=[2]), opset=11),
            case(name, "weight", **IMAGE, **POINT, c="4x1x1", **extra, a={}),
            case(name, "the summand varies along more", **IMAGE, **POINT, c="=6x1", **extra, a={}),
            case(name, "the convolution is grouped", **IMAGE, w="=6x2x1x1", c="=4x1x1", **extra, a=G2),
            *(case(name, "the convolution pads", **IMAGE, w="=6x4x3x3", c="=4x1x1", **extra, **a) for a in UNPADDED),
        )
    ),
    *(
        each
        for name, extra in (("convtranspose-batchnorm", {}), ("convtranspose-bias-batchnorm", dict(c="=6")))
        for each in (
            case(name, **IMAGE, w="=4x6x3x3", **BN, **extra, a=S2 | dict(output_padding=[1, 0])),
            case(name, x="2x4x5", w="=4x6x2", **BN, **extra, a=dict(pads=[1, 0]), opset=9),
            case(name, "a weight or statistic is not", **IMAGE, w="=4x6x3x3", **BN | dict(m="6"), **extra, a={}),
            case(name, "the convolution is grouped", **IMAGE, w="=4x3x3x3", **BN, **extra, a=G2),
        )
    ),
    *(
        each
        for name, word in (("convtranspose-mul", "factor"), ("convtranspose-add", "summand"))
        for each in (
            case(name, **IMAGE, w="=4x6x3x3", k="=6x1x1", a=S2),
            case(name, x="2x4x5", w="=4x6x2", k="=6x1", a=dict(strides=[2]), opset=11),
            case(name, f"weight or {word} is not constant", **IMAGE, w="=4x6x3x3", k="6x1x1", a={}),
            case(name, "the convolution is grouped", **IMAGE, w="=4x3x3x3", k="=6x1x1", a=G2),
            case(name, f"the {word} is not one number", **IMAGE, w="=4x6x1x1", k="=6", a={}),
        )
    ),
    case("conv-conv-pointwise", **IMAGE, w="=6x4x3x3", u="=5x6x1x1", a=S2 | P1),
    case("conv-conv-pointwise", x="2x4x7", w="=6x4x3", u="=5x6x1", a=dict(dilations=[2]), opset=9),
    case("conv-conv-pointwise", "a weight is not constant", **IMAGE, w="=6x4x3x3", u="5x6x1x1", a={}),
    case("conv-conv-pointwise", "the second kernel is not 1×1", **IMAGE, w="=6x4x3x3", u="=5x6x1x2", a={}),
    case("conv-conv-pointwise", "the first convolution is grouped", **IMAGE, w="=6x2x3x3", u="=5x6x1x1", a=G2),
    case("conv-bias-conv-pointwise", **IMAGE, w="=6x4x3x3", u="=5x6x1x1", b="=6", c="=5", a=S2 | P1),
    case("conv-bias-conv-pointwise", x="2x4x7", w="=6x4x3", u="=5x6x1", b="=6", c="=5", a={}, opset=9),
    case("conv-bias-conv-pointwise", "a weight is not", **IMAGE, w="=6x4x3x3", u="=5x6x1x1", b="6", c="=5", a={}),
    case("conv-bias-conv-pointwise", "the second kernel", **IMAGE, w="=6x4x3x3", u="=5x6x2x1", b="=6", c="=5", a={}),
    case("conv-bias-conv-pointwise", "the first", **IMAGE, w="=6x2x3x3", u="=5x6x1x1", b="=6", c="=5", a=G2),
    case("pointwise-conv", **IMAGE, **POINT, u="=5x6x3x3", c=[], a=P1 | S2),
    case("pointwise-conv", **IMAGE, **POINT, u="=5x6x2x3", c=["=5"], a=SAME, opset=9),
    case("pointwise-conv", "a weight is not constant", **IMAGE, **POINT, u="5x6x3x3", c=[], a={}),
    case("pointwise-conv", "the first kernel is not 1×1", **IMAGE, w="=6x4x2x1", u="=5x6x1x1", c=[], a={}),
    case("pointwise-conv", "the first kernel is not 1×1", x="2x4x7", w="=6x4x1", u="=5x6x3", c=[], a={}),
    case("pointwise-conv", "the second convolution is grouped", **IMAGE, **POINT, u="=4x3x3x3", c=[], a=G2),
    case("conv-of-concat", x="2x3x5x5", y="2x1x5x5", w="=6x4x3x3", a=S2 | P1),
    case("conv-of-concat", x="2x3x5", y="@x", w="=2x6x1", a={}, opset=9),
    case("conv-of-concat", "the weight is not constant", x="2x3x5", y="@x", w="2x6x1", a={}),
    case("conv-of-concat", "the convolution is grouped", x="2x2x5", y="@x", w="=2x2x1", a=G2),
    *(
        each
        for name, extra in (("conv-sum-as-concat", {}), ("conv-bias-sum-as-concat", dict(b="=6", c="=6")))
        for each in (
            case(name, x="2x3x5x5", y="2x1x5x5", w="=6x3x3x3", u="=6x1x3x3", **extra, a=S2 | P1),
            case(name, x="2x3x5", y="@x", w="=6x3x2", u="=6x3x2", **extra, a={}, opset=9),
            case(name, "a weight is not", x="2x3x5", y="@x", w="=6x3x1", u="6x3x1", **extra, a={}),
            case(name, "the kernels have", x="2x3x5", y="@x", w="=6x3x1", u="=6x3x2", **extra, a=SAME),
            case(name, "the inputs have", x="2x3x5", y="1x3x5", w="=6x3x1", u="=6x3x1", **extra, a={}),
            case(name, "the convolutions are grouped", x="2x4x5", y="2x4x5", w="=6x2x1", u="=6x2x1", **extra, a=G2),
        )
    ),
    *(
        each
        for name, extra in (("conv-sum", {}), ("conv-bias-sum", dict(b="=6", c="=6")))
        for each in (
            case(name, x="2x4x5x5", w="=6x4x3x3", u="=6x4x3x3", **extra, a=S2 | P1),
            case(name, x="2x4x5", w="=6x2x2", u="=6x2x2", **extra, a=G2, opset=9),
            case(name, "a weight is not", x="2x3x5", w="=6x3x1", u="6x3x1", **extra, a={}),
            case(name, "the kernels have", x="2x3x5", w="=6x3x1", u="=6x3x2", **extra, a=SAME),
        )
    ),
    case("conv-of-strided", **IMAGE, **POINT, b=[], s=(2, 3), a={}),
    case("conv-of-strided", x="1x4x7", w="=6x2x1", b=["=6"], s=(2,), a=G2, opset=10),
    case("conv-of-strided", "not a 1×1 kernel that strides", **IMAGE, **POINT, b=[], s=(1, 1), a={}),
    case("conv-of-strided", "not a 1×1 kernel that strides", **IMAGE, w="=6x4x2x1", b=[], s=(2, 2), a={}),
    case("conv-of-strided", "Slice needs a newer opset", **IMAGE, **POINT, b=[], s=(2, 2), a={}, opset=9),
    *(case("conv-of-strided", "the convolution pads", **IMAGE, **POINT, b=[], s=(2, 2), **a) for a in UNPADDED),
    case("conv-as-matmul", **IMAGE, **POINT),
    case("conv-as-matmul", x="1x4x7", w="=6x4x1", opset=9),
    case("conv-as-matmul", "the kernel is not 1×1", **IMAGE, w="=6x4x2x1"),
    case("conv-as-matmul", "empty tensors", x="0x4x7", w="=6x4x1"),
    case("conv-as-gemm", x="2x4x1x1", **POINT, b="=6"),
    case("conv-as-gemm", x="1x4x1", w="=6x4x1", b="=6", opset=9),
    case("conv-as-gemm", "not a 1×1 kernel on a single place", x="2x4x2x1", **POINT, b="=6"),
    case("conv-as-gemm", "empty tensors", x="0x4x1x1", **POINT, b="=6"),
    case("gemm-as-conv", x="3x4", w="=6x4", b="=6", dtype="float32"),
    case("gemm-as-conv", x="1x1", w="=1x1", b="=1", opset=9, dtype="float32"),
    case("gemm-as-conv", "weight or bias is not constant", x="3x4", w="=6x4", b="=1"),
    case("gemm-as-conv", "ONNX Runtime convolves floats", x="3x4:int64", w="=6x4:int64", b="=6:int64"),
    case("conv-of-blocks", x="2x3x8x6", w="=4x3x3x2", b=["=4"], s=(2, 2), p=(0, 2, 0, 0), a={}),
    case("conv-of-blocks", x="1x3x6x9", w="=4x3x5x3", b=[], s=(3, 3), p=None, a={}, opset=9),
    case("conv-of-blocks", "not an image, or", x="2x3x8x6", w="=4x3x3x3", b=[], s=(2, 1), p=None, a={}),
    case("conv-of-blocks", "not an image, or", x="2x3x8", w="=4x3x3", b=[], s=(2,), p=None, a={}),
    case("conv-of-blocks", "image or padding", x="2x3x7x6", w="=4x3x3x3", b=[], s=(2, 2), p=None, a={}),
    case("conv-of-blocks", "image or padding", x="2x3x8x6", w="=4x3x3x3", b=[], s=(2, 2), p=(1, 1, 1, 1), a={}),
    case("conv-of-blocks", "groups", x="2x4x8x6", w="=4x2x3x3", b=[], s=(2, 2), p=None, a=G2),
    case("conv-of-blocks", "groups", x="2x4x8x6", w="=4x4x3x3", b=[], s=(2, 2), p=None, a=dict(dilations=[1, 2])),
]  # fmt: skip

SHUFFLED = [0, 3, 1, 4, 2, 5]
GROUPS = [
    case("conv-groups-by-two", x="1x8x5x5", w="=12x2x3x3", b=["=12"], g=4, a=P1),
    case("conv-groups-by-two", x="2x6x5", w="=6x1x2", b=[], g=6, a={}, opset=9),
    case("conv-groups-by-two", "the weight is not constant", x="2x6x5", w="6x1x2", b=[], g=6, a={}),
    case("conv-groups-by-two", "the groups are no pairs", x="2x6x5", w="=6x2x2", b=[], g=3, a={}),
    *(
        each
        for name, extra in (("conv-groups-apart", {}), ("conv-bias-groups-apart", dict(b="=6")))
        for each in (
            case(name, x="1x4x5x5", w="=6x2x3x3", **extra, a=P1),
            case(name, x="2x6x5", w="=6x3x2", **extra, a={}, opset=9),
            case(name, "", x="2x6x5", w="6x3x2", **extra, a={}),
        )
    ),
    *(
        each
        for name, extra in (("concat-conv-as-groups", {}), ("concat-conv-bias-as-groups", dict(b="=6", c="=6")))
        for each in (
            case(name, x="1x4x5x5", y="1x4x5x5", w="=6x2x3x3", u="=6x2x3x3", g=2, **extra, a=P1),
            case(name, x="2x3x5", y="@x", w="=6x3x2", u="=6x3x2", g=None, **extra, a={}, opset=9),
            case(name, "a weight is not", x="2x3x5", y="@x", w="=6x3x2", u="6x3x2", g=1, **extra, a={}),
            case(name, "the kernels have", x="2x3x5", y="@x", w="=6x3x2", u="=6x3x1", g=1, **extra, a=SAME),
            case(name, "the inputs have", x="2x3x6", y="2x3x5", w="=6x3x1", u="=6x3x1", g=1, **extra,
                a=dict(strides=[2])),
        )
    ),
    case("shuffle-as-gather", x="2x6x3x4", r=[2, 2, 3, 3, 4], p=(0, 2, 1, 3, 4), s=[2, 6, 3, 4]),
    case("shuffle-as-gather", x="1x6x5", r=[0, 3, -1, 5], p=(0, 2, 1, 3), s=[-1, 6, 5], opset=9),
    case("shuffle-as-gather", "not the channels alone change", x="1x6x5", r=[1, 3, 2, 5], p=(0, 2, 3, 1), s=[1, 6, 5]),
    case("shuffle-as-gather", "not the channels alone are", x="1x6x6", r=[1, 3, 6, 2], p=(0, 2, 1, 3), s=[1, 6, 6]),
    case("shuffle-as-gather", "the shape does not", x="1x6x5", r=[1, 3, 2, 5], p=(0, 2, 1, 3), s=[1, 5, 6]),
    case("shuffle-as-gather", "the shape does not", x="1x4x5", r=[1, 2, 2, 5], p=(0, 2, 1, 3), s=[0, 4, 5]),
    case("split-of-gather", x="2x4x3", i=[3, 1, 0, 2], s=[1, 3], k=1),
    case("split-of-gather", x="5x2", i=[4, 4, -1], s=[2, 1], k=-2, opset=9),
    case("split-of-gather", "not a list that is known", x="5x2", i="3:int64", s=[2, 1], k=0),
    case("split-of-gather", "not two parts", x="5x2", i=[1, 0, 2], s=[1, 1, 1], k=0),
    case("split-of-gather", "not a list that is known", x="5x3x2", i=1, s=[1, 1], k=1),
    case("gather-gather", x="5x4", i=[3, 1, 1], j=[2, 0], k=0),
    case("gather-gather", x="2x5x4", i=[3, 1], j=[-1], k=-2),
    case("gather-gather", "not a list that is known", x="5x4", i=[3, 1], j="2:int64", k=0),
    *(
        each
        for name, extra in (("gather-of-conv", {}), ("gather-of-conv-bias", dict(b="=6")))
        for each in (
            case(name, x="1x4x5x5", w="=6x4x3x3", i=SHUFFLED, **extra, a=P1),
            case(name, x="2x4x5", w="=6x4x1", i=[5, 5, 0], **extra, a={}, opset=7),
            case(name, "weight", x="2x4x5", w="6x4x1", i=[5, 5, 0], **extra, a={}),
            case(name, "the convolution is grouped", x="2x4x5", w="=6x2x1", i=[5, 5, 0], **extra, a=G2),
        )
    ),
    *(
        each
        for name, extra in (("depthwise-conv-of-gather", {}), ("depthwise-conv-bias-of-gather", dict(b="=6")))
        for each in (
            case(name, x="1x6x5x5", w="=6x1x3x3", i=SHUFFLED, **extra, g=6, a=P1),
            case(name, x="2x6x5", w="=6x1x2", i=SHUFFLED, **extra, g=6, a={}, opset=7),
            case(name, "weight", x="2x6x5", w="6x1x2", i=SHUFFLED, **extra, g=6, a={}),
            case(name, "not an order of all channels", x="2x6x5", w="=6x1x2", i=[0, 0, 1, 2, 3, 4], **extra, g=6, a={}),
            case(name, "not one kernel per channel", x="2x6x5", w="=6x2x2", i=SHUFFLED, **extra, g=3, a={}),
        )
    ),
    case("conv-of-gather", x="1x6x5x5", w="=4x6x3x3", i=SHUFFLED, b=["=4"], a=P1),
    case("conv-of-gather", x="1x3x5", w="=4x3x1", i=[2, 0, 1], b=[], a={}, opset=7),
    case("conv-of-gather", "the weight is not constant", x="1x3x5", w="4x3x1", i=[2, 0, 1], b=[], a={}),
    case("conv-of-gather", "not an order of all channels", x="1x3x5", w="=4x3x1", i=[2, 0, 0], b=[], a={}),
    case("conv-of-gather", "not an order of all channels", x="1x4x5", w="=4x3x1", i=[2, 0, 1], b=[], a={}),
    case("conv-of-gather", "the convolution is grouped", x="1x4x5", w="=4x2x1", i=[3, 2, 0, 1], b=[], a=G2),
]  # fmt: skip

AROUND = [0, 0, 1, 0, 0, 0, 2, 1]
CROPPED = [0, 0, 1, 0, 0, 0, -1, 0]
WIDER = [0, 1, 1, 0, 0, 0, 0, 0]
K4 = dict(kernel_shape=[4, 4])
BOTH_SIDES = dict(w="=6x4x3x3", b=[])
PADDING = [
    *(
        each
        for name in ("pad-conv", "pad-zero-conv")
        for each in (
            case(name, **IMAGE, **BOTH_SIDES, p=AROUND, q=(1, 0, 0, 1), a=S2),
            case(name, x="1x4x5", w="=6x2x3", b=["=6"], p=[0, 0, 1, 0, 0, 2], q=None, a=G2, opset=9),
            case(name, "the Pad crops", **IMAGE, **BOTH_SIDES, p=CROPPED, q=None, a={}),
            case(name, "the Pad adds channels", **IMAGE, w="=6x5x3x3", b=[], p=WIDER, q=None, a={}),
            case(name, "automatic padding", **IMAGE, **BOTH_SIDES, p=AROUND, q=None, a=SAME),
        )
    ),
    case("conv-pad-out", **IMAGE, **BOTH_SIDES, p=(1, 0, 2, 1), a=S2),
    case("conv-pad-out", x="1x4x5", w="=6x2x3", b=["=6"], p=(0, 2), a=G2, opset=9),
    case("conv-pad-out", "nothing is padded", **IMAGE, **BOTH_SIDES, p=None, a={}),
    case("conv-pad-out", "nothing is padded", **IMAGE, **BOTH_SIDES, p=None, a=SAME),
    case("pad-averagepool", **IMAGE, p=AROUND, q=(1, 0, 0, 1), c=1, k=(4, 4), a=S2),
    case("pad-averagepool", x="1x4x5", p=[0, 0, 1, 0, 0, 1], q=None, c=0, k=(2,), a={}, opset=9),
    case("pad-averagepool", "the Pad crops", **IMAGE, p=CROPPED, q=None, c=0, k=(2, 2), a={}),
    case("pad-averagepool", "the Pad adds channels", **IMAGE, p=WIDER, q=None, c=0, k=(2, 2), a={}),
    case("pad-averagepool", "the pool does not count", **IMAGE, p=AROUND, q=(1, 0, 0, 1), c=0, k=(4, 4), a={}),
    case("pad-averagepool", "the padding is as wide", **IMAGE, p=AROUND, q=None, c=0, k=(2, 2), a={}),
    case("pad-averagepool", "automatic padding or", **IMAGE, p=AROUND, q=None, c=0, k=(4, 4), a=SAME),
    case("pad-averagepool", "automatic padding or", **IMAGE, p=AROUND, q=None, c=0, k=(4, 4), a=dict(ceil_mode=1)),
    case("averagepool-pad-out", **IMAGE, p=(1, 0, 2, 1), a=K4 | S2),
    case("averagepool-pad-out", x="1x4x5", p=(0, 1), a=dict(kernel_shape=[2]), opset=9),
    case("averagepool-pad-out", "nothing is padded", **IMAGE, p=None, a=K4),
    case("averagepool-pad-out", "automatic padding or", **IMAGE, p=(1, 0, 2, 1), a=K4 | dict(ceil_mode=1)),
    case("pad-maxpool", **IMAGE, p=AROUND, k=(3, 3), a=S2),
    case("pad-maxpool", x="1x4x5x5", p=[0, 0, 1, 1, 0, 0, 1, 1], k=(3, 3), a={}, opset=9),
    case("pad-maxpool", "the Pad crops", **IMAGE, p=CROPPED, k=(3, 3), a={}),
    case("pad-maxpool", "the Pad adds channels", **IMAGE, p=WIDER, k=(3, 3), a={}),
    case("pad-maxpool", "a window may hold padding alone", **IMAGE, p=AROUND, k=(2, 2), a={}),
    case("pad-maxpool", "a window may hold padding alone", **IMAGE, p=AROUND, k=(3, 3), a=dict(dilations=[2, 2])),
    case("pad-maxpool", "the pool pads, too", **IMAGE, p=AROUND, k=(3, 3), a=P1),
    case("pad-maxpool", "the pool pads, too", **IMAGE, p=AROUND, k=(3, 3), a=dict(ceil_mode=1)),
    case("pad-pad", x="2x3", p=[1, 0, 0, 2], q=[0, 1, 1, 0]),
    case("pad-pad", x="5", p=[1, 0], q=[0, 0], opset=9),
    case("pad-pad", "a Pad crops", x="5", p=[1, -1], q=[0, 1]),
    case("pad-nothing", x="2x3", p=[0, 0, 0, 0], c=[], m=b"reflect"),
    case("pad-nothing", x="5", p=[0, 0], c=["="], m=None, opset=11),
    case("pad-nothing", "an element is added", x="5", p=[1, 0], c=[], m=None),
    case("pad-nothing", "an element is added", x="5", p=[1, -1], c=[], m=None),
    *(
        each
        for name, extra in (("conv-channels-padded", {}), ("conv-bias-channels-padded", dict(b="=6")))
        for each in (
            case(name, **IMAGE, w="=6x4x3x3", **extra, a=S2 | P1),
            case(name, x="1x3x5", w="=6x3x2", **extra, a={}, opset=9),
            case(name, "weight" if extra else "the weight", x="1x3x5", w="6x3x2", **extra, a={}),
            case(name, "the convolution is grouped", x="1x4x5", w="=6x2x2", **extra, a=G2),
            case(name, "the vectors are whole", x="1x4x5", w="=16x4x1", **{k: "=16" for k in extra}, a={}),
        )
    ),
    case("conv-of-slice", x="2x6x5x5", w="=3x4x3x3", b=["=3"], s=[0], e=[4], t=[1], a=P1),
    case("conv-of-slice", x="2x6x5", w="=3x5x1", b=[], s=[0], e=[-1], t=[1], a={}, opset=9),
    case("conv-of-slice", "the weight is not constant", x="2x6x5", w="3x4x1", b=[], s=[0], e=[4], t=[1], a={}),
    case("conv-of-slice", "not the last channels alone", x="2x6x5", w="=3x4x1", b=[], s=[1], e=[5], t=[1], a={}),
    case("conv-of-slice", "not the last channels alone", x="2x6x5", w="=3x6x1", b=[], s=[0], e=[2], t=[2], a={}),
    case("conv-of-slice", "the convolution is grouped", x="2x6x5", w="=4x2x1", b=[], s=[0], e=[4], t=[1], a=G2),
    *(
        each
        for name, extra in (("depthwise-conv-of-slice", {}), ("depthwise-conv-bias-of-slice", dict(b="=4")))
        for each in (
            case(name, x="2x6x5x5", w="=4x1x3x3", **extra, s=[0], e=[4], t=[1], g=4, a=P1),
            case(name, x="2x5x5", w="=4x1x2", **extra, s=[0], e=[-1], t=[1], g=4, a={}, opset=9),
            case(name, "", x="2x6x5", w="4x1x1", **extra, s=[0], e=[4], t=[1], g=4, a={}),
            case(name, "not the last channels alone", x="2x6x5", w="=4x1x1", **extra, s=[1], e=[5], t=[1], g=4, a={}),
            case(name, "not one kernel per channel", x="2x6x5", w="=4x2x1", **extra, s=[0], e=[4], t=[1], g=2, a={}),
        )
    ),
    case("depthwise-conv-of-relu-slice", x="2x6x5x5", w="=4x1x3x3", s=[0], e=[4], t=[1], g=4, a=P1),
    case("depthwise-conv-of-relu-slice", x="2x5x5", w="=4x1x2", s=[0], e=[-1], t=[1], g=4, a={}, opset=9),
    case("depthwise-conv-of-relu-slice", "the weight is not", x="2x6x5", w="4x1x1", s=[0], e=[4], t=[1], g=4, a={}),
    case("depthwise-conv-of-relu-slice", "not the last", x="2x6x5", w="=4x1x1", s=[1], e=[5], t=[1], g=4, a={}),
    case("depthwise-conv-of-relu-slice", "not one kernel", x="2x6x5", w="=4x2x1", s=[0], e=[4], t=[1], g=2, a={}),
    *(
        each
        for name, extra in (
            ("depthwise-conv-channels-padded", {}), ("depthwise-conv-bias-channels-padded", dict(b="=6"))
        )
        for each in (
            case(name, x="2x6x5x5", w="=6x1x3x3", **extra, g=6, a=S2 | P1),
            case(name, x="1x6x5", w="=6x1x2", **extra, g=6, a={}, opset=9),
            case(name, "weight" if extra else "the weight", x="1x6x5", w="6x1x2", **extra, g=6, a={}),
            case(name, "the vectors are whole", x="1x16x5", w="=16x1x2", **{k: "=16" for k in extra}, g=16, a={}),
            case(name, "not one kernel per channel", x="1x6x5", w="=6x2x2", **extra, g=3, a={}),
        )
    ),
    *(
        each
        for name, extra in (
            ("depthwise-conv-of-conv-padded", {}), ("depthwise-conv-bias-of-conv-padded", dict(c="=6"))
        )
        for each in (
            case(name, **IMAGE, w="=6x4x3x3", b="=6", u="=6x1x3x3", **extra, g=6, a=S2 | P1, d=P1),
            case(name, x="1x3x5", w="=6x3x1", b="=6", u="=6x1x2", **extra, g=6, a={}, d={}, opset=9),
            case(name, "weight or bias", x="1x3x5", w="6x3x1", b="=6", u="=6x1x2", **extra, g=6, a={}, d={}),
            case(name, "the vectors are whole", x="1x3x5", w="=16x3x1", b="=16", u="=16x1x2",
                **{k: "=16" for k in extra}, g=16, a={}, d={}),
            case(name, "not one kernel per", x="1x3x5", w="=6x3x1", b="=6", u="=6x2x2", **extra, g=3, a={}, d={}),
            case(name, "the first convolution is", x="1x4x5", w="=6x2x1", b="=6", u="=6x1x2", **extra, g=6, a=G2, d={}),
        )
    ),
    *(
        each
        for name in ("pad-of-conv-bias", "pad-of-relu-conv-bias")
        for each in (
            case(name, **IMAGE, w="=6x4x3x3", b="=6", p=[0, 0, 0, 0, 0, 2, 0, 0], a=S2 | P1),
            case(name, x="1x3x5", w="=6x3x1", b="=6", p=[0, 0, 0, 0, 1, 0], a={}, opset=9),
            case(name, "weight or bias is not constant", x="1x3x5", w="6x3x1", b="=6", p=[0, 0, 0, 0, 1, 0], a={}),
            case(name, "not channels at the end alone", x="1x3x5", w="=6x3x1", b="=6", p=[0, 0, 1, 0, 2, 0], a={}),
            case(name, "not channels at the end alone", x="1x3x5", w="=6x3x1", b="=6", p=[0, 0, 0, 0, 0, 1], a={}),
            case(name, "the convolution is grouped", x="1x4x5", w="=6x2x1", b="=6", p=[0, 0, 0, 0, 1, 0], a=G2),
        )
    ),
    case("maxpool-of-conv-padded", **IMAGE, w="=6x4x3x3", b="=6", a=P1, p=K3 | S2 | P1),
    case("maxpool-of-conv-padded", x="1x3x5", w="=6x3x2", b="=6", a={}, p=dict(kernel_shape=[2]), opset=9),
    case("maxpool-of-conv-padded", "weight or bias is not constant", **IMAGE, w="6x4x3x3", b="=6", a=P1, p=K3),
    case("maxpool-of-conv-padded", "the vectors are whole", **IMAGE, w="=16x4x3x3", b="=16", a=P1, p=K3),
    case("maxpool-of-conv-padded", "the convolution is grouped", **IMAGE, w="=6x2x3x3", b="=6", a=P1 | G2, p=K3),
    *(
        each
        for pool in ("maxpool", "averagepool")
        for name in (f"{pool}-of-slice", f"{pool}-of-slice-inverse")
        for each in (
            case(name, **IMAGE, s=[1], e=[3], t=[1], a=K3 | S2 | P1),
            case(name, x="1x4x5", s=[0], e=[-1], t=[-2], a=dict(kernel_shape=[2]), opset=10),
            case(name, "not the channels alone are cut", **IMAGE, s=[1], e=[5], t=[2], a=K3),
            case(name, "not the channels alone are cut", **IMAGE, s=[0, 1], e=[1, 3], t=[0, 1], a=K3),
        )
    ),
]  # fmt: skip

POOLING = [
    case("maxpool-apart", **IMAGE, k=(3, 2), s=(2, 1), p=(1, 0, 0, 1)),
    case("maxpool-apart", **IMAGE, k=(2, 2), s=None, p=None, opset=7),
    case("maxpool-apart", "not a window of two directions", **IMAGE, k=(3, 1), s=None, p=None),
    case("maxpool-apart", "not a window of two directions", x="1x2x6", k=(3,), s=None, p=None),
    case("maxpool-joined", **IMAGE, k=(3, 1), s=(2, 1), p=(1, 0, 0, 0), l=(1, 2), t=(1, 3), q=(0, 1, 0, 0)),
    case("maxpool-joined", **IMAGE, k=(3, 1), s=None, p=None, l=(1, 3), t=None, q=None, opset=7),
    case("maxpool-joined", "not a column and a row", **IMAGE, k=(3, 1), s=None, p=None, l=(2, 1), t=None, q=None),
    case("maxpool-joined", "one of them moves", **IMAGE, k=(3, 1), s=None, p=None, l=(1, 3), t=(2, 1), q=None),
    case("maxpool-joined", "one of them moves", **IMAGE, k=(3, 1), s=(1, 2), p=None, l=(1, 3), t=None, q=None),
    case("maxpool-maxpool", **IMAGE, k=(3, 3), p=(1, 1, 1, 1), l=(5, 3), q=(2, 1, 2, 1)),
    case("maxpool-maxpool", x="1x2x6x6", k=(3, 3), p=(1, 1, 1, 1), l=(3, 3), q=(1, 1, 1, 1), opset=9),
    case("maxpool-maxpool", "the windows do not lie", **IMAGE, k=(3, 3), p=(1, 1, 1, 1), l=(3, 3), q=(1, 1, 1, 0)),
    case("maxpool-maxpool", "a window is even", **IMAGE, k=(2, 2), p=(1, 1, 1, 1), l=(3, 3), q=(1, 1, 1, 1)),
    *(
        each
        for name in ("averagepool-as-global", "maxpool-as-global")
        for each in (
            case(name, x="2x3x4x5", k=(4, 5), s=None, dtype="float32"),
            case(name, x="1x3x4x2", k=(4, 2), s=(3, 1), opset=7),
            case(name, "the window is smaller", x="2x3x4x5", k=(4, 4), s=None),
        )
    ),
    *(
        each
        for pool, op, operand, a in (
            ("maxpool", "add", "c", K2 | P1), ("averagepool", "mul", "k", K2 | P1),
            ("averagepool", "add", "c", K2 | S2),
            ("globalaveragepool", "mul", "k", {}), ("globalaveragepool", "add", "c", {}),
        )
        for name in (f"{pool}-{op}", f"{pool}-{op}-inverse")
        for rest in (dict(a=a) if a else {},)
        for each in (
            case(name, x="2x3x6x6", **{operand: "=3x1x1"}, **rest),
            case(name, x="2x3x6x6", **{operand: "="}, **rest, opset=7),
            case(name, "the ", x="2x3x6x6", **{operand: "3x1x1"}, **rest),
            case(name, f"the {'factor' if op == 'mul' else 'summand'} varies along", x="2x3x6x6",
                **{operand: "=2x1x1x1"}, **rest),
        )
    ),
    *(
        case(name, "the pool pads", x="2x3x6x6", c="=3x1x1", a=a)
        for name in ("averagepool-add", "averagepool-add-inverse")
        for a in (K2 | P1, K2 | SAME, K2 | dict(ceil_mode=1))
    ),
    case("maxpool-add", "the summand is not a constant float", x="2x3x6:int8", c="=3x1:int8", a=dict(kernel_shape=[2])),
    *(
        each
        for special, word in (("globalaveragepool", "mean"), ("globalmaxpool", "max"))
        for each in (
            case(f"{special}-as-{word}", x="2x3x4x5"),
            case(f"{special}-as-{word}", x="1x3x4x2", opset=9),
            case(f"{special}-as-{word}", "the input has no places", x="2x3"),
            case(f"{word}-as-{special}", x="2x3x4x5", r=[2, 3], dtype="float32"),
            case(f"{word}-as-{special}", x="2x3x4x2", r=[-1, -2], opset=18, dtype="float32"),
            case(f"{word}-as-{special}", "the input is empty, or not of floats", x="2x3x4:int64", r=[2]),
            case(f"{word}-as-{special}", "the input is empty, or not of floats", x="2x3x0", r=[2]),
            case(f"{word}-as-{special}", f"the {'mean' if word == 'mean' else 'maximum'} is not", x="2x3x4x5",
                r=[1, 2]),
            case(f"{word}-as-{special}", f"the {'mean' if word == 'mean' else 'maximum'} is not", x="2x3x4x5", r=[3]),
        )
    ),
    case("gate-in-blocks", x="2x3x4x5", g="2x3x1x1", dtype="float32"),
    case("gate-in-blocks", x="1x3x2x1", g="1x3x1x1", opset=13, dtype="float32"),
    case("gate-in-blocks", "not one computed number", x="2x3x4x5", g="=2x3x1x1"),
    case("gate-in-blocks", "not one computed number", x="2x3x4x5", g="1x3x1x1"),
    case("gate-in-blocks", "the image is a single place", x="2x3x1x1", g="2x3x1x1"),
    case("mean-as-globalaveragepool-squeeze", x="2x3x4x5", r=[2, 3], dtype="float32"),
    case("mean-as-globalaveragepool-squeeze", x="2x3x4", r=[-1], opset=13, dtype="float32"),
    case("mean-as-globalaveragepool-squeeze", "the input is empty, or not", x="2x3x0", r=[2]),
    case("mean-as-globalaveragepool-squeeze", "the mean is not over all", x="2x3x4x5", r=[3]),
    case("conv-of-sampling", **IMAGE, **POINT, k=(1, 1), s=(2, 3), p={}, b=["=6"], a={}),
    case("conv-of-sampling", x="1x4x5", w="=6x2x1", k=(1,), s=None, p={}, b=[], a=G2, opset=9),
    case("conv-of-sampling", "a window or the kernel is", **IMAGE, **POINT, k=(1, 2), s=(2, 2), p={}, b=[], a={}),
    case("conv-of-sampling", "a window or the kernel is", **IMAGE, w="=6x4x2x1", k=(1, 1), s=(2, 2), p={}, b=[], a={}),
    case("conv-of-sampling", "the pool pads", **IMAGE, **POINT, k=(1, 1), s=(2, 2), p=dict(ceil_mode=1), b=[], a={}),
    *(
        case("conv-of-sampling", "the convolution strides", **IMAGE, **POINT, k=(1, 1), s=(2, 2), p={}, b=[], a=a)
        for a in (S2, P1, SAME)
    ),
]  # fmt: skip

CUTS = dict(s=[1], e=[3])
REDUCTION = [
    *(
        each
        for op in ("reducesum", "reducemean", "reducemax")
        for name in (f"{op}-{op}",)
        for each in (
            case(name, x="2x3x4", r=[2], q=[-2, 0]),
            case(name, x="2x3x4", r=[0], q=[1], opset=9),
            case(name, "an axis is reduced twice", x="2x3x4", r=[1], q=[1, 2]),
            case(name, "an axis is reduced twice", x="2x3x4", r=[-1], q=[2]),
        )
    ),
    case("reducemean-reducemean", "integers do not divide exactly", x="2x3x4:int64", r=[2], q=[0]),
    *(
        each
        for op in ("reducesum", "reducemean")
        for each in (
            case(f"{op}-as-squeeze", x="2x3x4", r=[-1, 0]),
            case(f"{op}-as-squeeze", x="2x3", r=[1], opset=9),
            case(f"{op}-as-squeeze", "the axes are not known", x="", r=[]),
            case(f"{op}-squeeze", x="2x3x4", r=[-1, 0], s=[0, 2]),
            case(f"{op}-squeeze", x="2x3", r=[1], s=[1], opset=9),
            case(f"{op}-squeeze", "other axes are removed", x="2x1x4", r=[0], s=[1]),
            case(f"{op}-squeeze", "other axes are removed", x="2x1x4", r=[0, 1], s=[1]),
            case(f"{op}-of-transpose", x="2x3x4", p=(1, 2, 0), r=[-1, 0]),
            case(f"{op}-of-transpose", x="2x3", p=None, r=[1], opset=9),
            case(f"{op}-of-transpose", "the axes are not known", x="", p=(), r=[]),
        )
    ),
    case("mean-as-sum", x="2x3x4", r=[-1, 0], k=1),
    case("mean-as-sum", x="2x3", r=[1], k=0, opset=9),
    case("mean-as-sum", "integers do not divide exactly", x="2x3:int64", r=[1], k=0),
    case("mean-as-sum", "the axes are not known, or empty", x="2x0", r=[1], k=1),
    case("sum-as-mean", x="2x3x4", r=[-1, 0], k=1, n=8.0),
    case("sum-as-mean", x="2x3", r=[1], k=0, n=3.0, opset=11),
    case("sum-as-mean", "integers do not divide exactly", x="2x3:int64", r=[1], k=0, n="=:int64"),
    case("sum-as-mean", "the divisor is not the number", x="2x3", r=[1], k=0, n=2.0),
    *(
        each
        for name in ("reducesum-of-mul", "reducesum-of-mul-inverse")
        for each in (
            case(name, x="2x3x4", r=[-1, 0], k="=", a=dict(keepdims=0)),
            case(name, x="2x3", r=[1], k="=", a={}, opset=9),
            case(name, "the input is not of floats", x="2x3:int64", r=[1], k="=:int64", a={}),
            case(name, "the factor is not one number", x="2x3", r=[1], k="=1", a={}),
        )
    ),
    case("mean-of-matmul", x="2x3x4", w="=4x5", r=[1]),
    case("mean-of-matmul", x="3x4", w="=4x5", r=[0], opset=9),
    case("mean-of-matmul", "the weight is not a constant matrix", x="2x3x4", w="4x5", r=[1]),
    case("mean-of-matmul", "the weight is not a constant matrix", x="2x3x4", w="=2x4x5", r=[1]),
    case("mean-of-matmul", "the mean is over columns, too", x="2x3x4", w="=4x5", r=[1, -1]),
    case("mean-of-matmul", "integers do not divide", x="2x3x4:int64", w="=4x5:int64", r=[1]),
]  # fmt: skip

SLICES = [
    case("slice-nothing", x="2x3", s=[[0], [9], [1]]),
    case("slice-nothing", x="5", s=[[-5], [5], [0], [1]], opset=10),
    case("slice-nothing", "a step is not one", x="5", s=[[4], [-9], [0], [-1]]),
    case("slice-step-one", x="5x2", s=[1], e=[3], t=[0], d=[1]),
    case("slice-step-one", x="5x2", s=[1, 0], e=[3, 1], t=[0, -1], d=[1, 1], opset=10),
    case("slice-step-one", "a step is not one", x="5", s=[0], e=[5], t=[0], d=[2]),
    case("slice-of-gelu", x="2x5", **CUTS, t=[-1]),
    case("slice-of-gelu", x="5x4x2", s=[1, 0], e=[3, 1], t=[0, 2]),
    case("equal-slice", x="5x4", s=[1], e=[3], t=[0]),
    case("equal-slice", x="2x5x4", s=[-3, 0], e=[9, 2], t=[1, 2], opset=9),
    case("slice-slice", x="5x4", s=[1], e=[3], t=[0], f=[-2], g=[4], u=[-1]),
    case("slice-slice", x="2x5x4", s=[1], e=[3], t=[1], f=[0], g=[2], u=[2], opset=9),
    case("slice-slice", "both cut one axis", x="5x4", s=[1], e=[3], t=[0], f=[0], g=[1], u=[-2]),
    case("gather-as-slice", x="2x3x4", i=-2, k=-2),
    case("gather-as-slice", x="5", i=2, k=0, opset=9),
    case("gather-as-slice", "not one place that is known", x="5", i=[2], k=0),
    case("gather-as-slice", "a shape or an axis is not known in advance", x="5", i=":int64", k=0),
    case("slice-as-gather", x="2x3x4", s=[1], e=[2], t=[1], u=[-2]),
    case("slice-as-gather", x="5", s=[4], e=[9], t=[0], u=[0], opset=9),
    case("slice-as-gather", "not the axis that was cut", x="2x1x4", s=[1], e=[2], t=[0], u=[1]),
    case("slice-as-gather", "the place is counted from the end", x="5", s=[-1], e=[9], t=[0], u=[0]),
    *(
        each
        for name in ("slice-of-relu", "slice-of-relu-inverse", "slice-of-tanh", "slice-of-erf", "slice-of-sqrt",
            "slice-of-sigmoid")
        for each in (
            case(name, x="2x5", **CUTS, t=[-1]),
            case(name, x="5x4x2", s=[1, 0], e=[3, 1], t=[0, 2], opset=9),
        )
    ),
    *(
        each
        for op in ("add", "sub", "mul", "div")
        for each in (
            case(f"slice-of-{op}", x="2x5", y="1x5", **CUTS, t=[-1]),
            case(f"slice-of-{op}", x="5x4", y="5x1", **CUTS, t=[0], opset=9),
            case(f"slice-of-{op}", "the operands differ", x="2x5", y="2x1", **CUTS, t=[1]),
            case(f"slice-of-{op}", "the operands differ", x="2x5", y="5", **CUTS, t=[1]),
        )
    ),
    *(
        each
        for op in ("add", "sub", "mul", "div", "pow")
        for each in (
            case(f"slice-of-{op}-wide", x="2x5x4", c="+4", **CUTS, t=[1]),
            case(f"slice-of-{op}-wide", x="5x4", c="+1x4", **CUTS, t=[-2]),
            case(f"slice-of-{op}-wide", "the second operand varies", x="2x5", c="+5", **CUTS, t=[1]),
            case(f"slice-of-{op}-wide", "the second operand varies", x="5", c="+2x1", **CUTS, t=[1]),
        )
    ),
    *(
        each
        for op in ("add", "mul")
        for each in (
            case(f"{op}-of-slices", x="2x5", y="2x5", **CUTS, t=[-1]),
            case(f"{op}-of-slices", x="5x4", y="@x", **CUTS, t=[0], opset=9),
            case(f"{op}-of-slices", "the operands have different shapes", x="2x5", y="2x4", **CUTS, t=[1]),
        )
    ),
    case("slice-of-softmax", x="2x5x4", **CUTS, t=[1], i=-1),
    case("slice-of-softmax", x="5x4", **CUTS, t=[-1], i=0, opset=13),
    case("slice-of-softmax", "the axis of the sum is cut", x="2x5x4", **CUTS, t=[-2], i=1),
    case("slice-of-layernorm", x="2x5x4", g=["4", "=4"], **CUTS, t=[1], i=-1, a={}),
    case("slice-of-layernorm", x="5x2x4", g=["2x4"], **CUTS, t=[0], i=1, a=dict(epsilon=1e-3), opset=17),
    case("slice-of-layernorm", "an axis of the normalisation", x="2x5x4", g=["4"], **CUTS, t=[2], i=-1, a={}),
    case("slice-of-layernorm", "an axis of the normalisation", x="2x5x4", g=["5x4"], **CUTS, t=[1], i=-1, a={}),
    case("slice-of-mean", x="2x5x4", **CUTS, t=[1], r=[-1]),
    case("slice-of-mean", x="5x4", **CUTS, t=[0], r=[1], opset=9),
    case("slice-of-mean", "an axis of the mean is cut", x="2x5x4", **CUTS, t=[1], r=[-1, -2]),
    case("slice-of-matmul-rows", x="2x5x4", y="4x3", **CUTS, t=[1]),
    case("slice-of-matmul-rows", x="5x4", y="4x3", **CUTS, t=[-2], opset=10),
    case("slice-of-matmul-rows", "the rows alone are not cut", x="5x4", y="4x3", **CUTS, t=[1]),
    case("slice-of-matmul-rows", "the rows alone are not cut", x="5x4", y="2x4x3", **CUTS, t=[1]),
    case("slice-of-matmul-rows", "the rows alone are not cut", x="2x5x4", y="4", **CUTS, t=[1]),
    case("slice-of-matmul-columns", x="2x5x4", y="4x3", **CUTS, t=[2]),
    case("slice-of-matmul-columns", x="5x4", y="2x4x3", **CUTS, t=[-1], opset=10),
    case("slice-of-matmul-columns", "the columns alone are not cut", x="5x4", y="4x3", **CUTS, t=[0]),
    case("slice-of-matmul-columns", "the columns alone are not cut", x="4", y="4x3", **CUTS, t=[0]),
    case("slice-of-transpose", x="2x5x4", **CUTS, t=[-1], p=(2, 0, 1)),
    case("slice-of-transpose", x="2x5", s=[1, 0], e=[2, 1], t=[0, 1], p=None, opset=9),
    case("slice-of-transpose", "no axis is named", x="2x5", s=[], e=[], t=[], p=None),
    case("slice-of-reshape", x="2x5x12", r=[2, 5, -1, 4], **CUTS, t=[1]),
    case("slice-of-reshape", x="5x2x3", r=[0, 6], **CUTS, t=[-2], opset=9),
    case("slice-of-reshape", x="2x3x4", r=[-1, 3, 4], s=[1], e=[2], t=[2]),
    case("slice-of-reshape", "the axis that is cut", x="5x2x3", r=[10, 3], **CUTS, t=[0]),
    case("slice-of-reshape", "the axis that is cut", x="2x5x3", r=[5, 2, 3], **CUTS, t=[0]),
    case("slice-of-reshape", "the axis that is cut", x="6x5", r=[2, 3, 5], **CUTS, t=[2]),
    case("slice-of-reshape", "the axis that is cut", x="5x4", r=[5, 2, 2], s=[1, 0], e=[3, 1], t=[0, 1]),
    case("slice-of-reshape", "the ends are not counted", x="5x4", r=[5, 2, 2], s=[-3], e=[4], t=[0]),
    case("slice-of-reshape", "the ends are not counted", x="5x4", r=[5, 2, 2], s=[1], e=[9], t=[0]),
    case("slice-of-reshape", "the ends are not counted", x="5x4", r=[5, 2, 2], s=[2], e=[2], t=[0]),
    case("slice-of-gemm-rows", x="5x4", w="4x3", b=["3"], **CUTS, t=[0], a=dict(alpha=0.5)),
    case("slice-of-gemm-rows", x="5x4", w="=3x4", b=[], **CUTS, t=[-2], a=dict(transB=1), opset=13),
    case("slice-of-gemm-rows", "the rows alone are not cut", x="5x4", w="4x3", b=[], **CUTS, t=[1], a={}),
    case("slice-of-gemm-rows", "the rows alone are not cut", x="5x4", w="4x3", b=["5x3"], **CUTS, t=[0], a={}),
    case("slice-of-concat-first", x="2x5", y="2x4", **CUTS, t=[-1], i=1),
    case("slice-of-concat-first", x="5", y="4", **CUTS, t=[0], i=0, opset=9),
    case("slice-of-concat-first", "not a part of the first", x="2x5", y="2x4", s=[1], e=[6], t=[1], i=1),
    case("slice-of-concat-first", "not a part of the first", x="2x5", y="2x5", **CUTS, t=[1], i=0),
    case("slice-of-concat-first", "not a part of the first", x="5", y="4", s=[0], e=[-1], t=[0], i=0),
    case("slice-of-concat-second", x="2x2", y="2x4", s=[3], e=[5], t=[-1], i=1),
    case("slice-of-concat-second", x="2", y="4", s=[2], e=[99], t=[0], i=0, opset=9),
    case("slice-of-concat-second", "not a part of the second", x="2x2", y="2x4", s=[1], e=[5], t=[1], i=1),
    case("slice-of-concat-second", "not a part of the second", x="2x2", y="2x4", s=[-1], e=[5], t=[1], i=1),
    case("slices-as-split", x="2x5", s=[0], e=[2], t=[1], f=[2], g=[9]),
    case("slices-as-split", x="5x2", s=[0], e=[4], t=[0], f=[4], g=[5], opset=9),
    case("slices-as-split", "not one axis", x="5x2", s=[0, 0], e=[4, 1], t=[0, 1], f=[4, 1], g=[5, 2]),
    case("slices-as-split", "the slices are not the two parts", x="5x2", s=[0], e=[3], t=[0], f=[2], g=[5]),
    case("slices-as-split", "the slices are not the two parts", x="5x2", s=[1], e=[3], t=[0], f=[3], g=[5]),
    case("slices-as-split", "the slices are not the two parts", x="5x2", s=[0], e=[3], t=[0], f=[3], g=[4]),
    case("split-as-slices", x="2x5", s=[2, 3], i=-1),
    case("split-as-slices", x="5x2", s=[1, 4], i=0, opset=9),
    case("split-as-slices", "not two parts", x="2x5", s=[2, 2, 1], i=1),
]  # fmt: skip

# -- moves -------------------------------------------------------------------------------------------

LAYOUT += [
    *(
        each
        for op in ("sigmoid", "tanh")
        for each in (
            *(
                each
                for name in (f"{op}-transpose", f"{op}-transpose-inverse")
                for each in (case(name, x="2x3x4", p=(1, 2, 0)), case(name, x="2x3", p=None, opset=6))
            ),
            *(
                each
                for name in (f"{op}-reshape", f"{op}-reshape-inverse")
                for each in (case(name, x="2x3x4", s=[0, -1]), case(name, x="2x3", s=[3, 2], opset=6))
            ),
        )
    ),
    case("mul-transpose", x="2x3x4", y="2x3x4", p=(1, 2, 0)),
    case("mul-transpose", x="3x4:int64", y="@x", p=None, opset=7),
    case("mul-transpose", "the factors have different shapes", x="2x3x3", y="2x3x1", p=(1, 2, 0)),
    *(
        each
        for op in ("add", "mul")
        for each in (
            case(f"transpose-of-{op}", x="2x3x4", y="2x3x4", p=(1, 2, 0)),
            case(f"transpose-of-{op}", x="3x4:int64", y="@x", p=None, opset=7),
            case(f"transpose-of-{op}", "not two operands of one shape", x="2x3x3", y="2x3x1", p=(1, 2, 0)),
            case(f"transpose-of-{op}", "not two operands of one shape", x="2x3", y="=2x3", p=None),
            *(
                each
                for name in (f"{op}-constant-transpose", f"transpose-of-{op}-constant")
                for each in (
                    case(name, x="2x3x4", c="=1x1", p=(1, 2, 0)),
                    case(name, x="3x3", c="=3", p=None, opset=7),
                    case(name, x="3x3", c="=3x3", p=None),
                    case(name, "the other operand is not", x="3x3", c="3", p=None),
                    case(name, "the other operand is not", x="3x3", c="=3x1x1", p=None),
                )
            ),
        )
    ),
    *(
        each
        for name in ("softmax-of-transpose", "transpose-of-softmax")
        for each in (case(name, x="2x3x4", p=(1, 2, 0), i=-1), case(name, x="2x3", p=None, i=0, opset=13))
    ),
    *(
        each
        for name in ("concat-of-transpose", "transpose-of-concat")
        for each in (
            case(name, x="2x3x4", y="2x3x4", p=(1, 2, 0), i=0), case(name, x="2x2", y="@x", p=None, i=1, opset=9),
        )
    ),
    case("split-of-transpose", x="2x3x4", s=[1, 2], i=0, p=(1, 2, 0)),
    case("split-of-transpose", x="5x2", s=[1, 4], i=-1, p=None, opset=9),
    case("split-of-transpose", "not two sizes that are known", x="5x2", s="2:int64", i=1, p=None),
    case("transpose-as-reshape", x="2x1x3", p=(1, 0, 2)),
    case("transpose-as-reshape", x="1x3", p=None, opset=6),
    case("transpose-as-reshape", "a real axis moves", x="2x1x3", p=(2, 1, 0)),
    case("transpose-as-reshape", "a real axis moves", x="2x3", p=(0, 1)),
    case("transpose-as-reshape", "empty tensors have no", x="1x0", p=None),
    case("squeeze-as-reshape", x="2x1x3x1", s=[1, -1]),
    case("squeeze-as-reshape", x="1", s=[0], opset=9),
    case("squeeze-as-reshape", "the axes are not named", x="1x0", s=[0]),
    case("unsqueeze-as-reshape", x="2x3", s=[-1, 0]),
    case("unsqueeze-as-reshape", x="", s=[0], opset=9),
    case("unsqueeze-as-reshape", "the axes are not named", x="0", s=[0]),
    case("reshape-as-flatten", x="2x3x4", s=[2, -1]),
    case("reshape-as-flatten", x="2x3", s=[0, 3], opset=9),
    case("reshape-as-flatten", "the first axis alone does not stay", x="2x3x4", s=[6, 4]),
    case("reshape-as-flatten", "the first axis alone does not stay", x="6", s=[6, 1]),
    case("expand-nothing", x="2x3", s=[[1, 3]]),
    case("expand-nothing", x="2x3:int64", s=[[2, 3]], opset=8),
    case("tile-nothing", x="2x3", s=[[1, 1]]),
    case("tile-nothing", x="5", s=[[1]], opset=6),
    case("cast-nothing", x="2x3", t=11, a={}),
    case("cast-nothing", x="2x3:int64", t=7, a={}, opset=9),
    case("cast-nothing", "the data type changes", x="2x3", t=1, a={}),
    case("cast-cast", x="2x3:float32", s=11, t=7),
    case("cast-cast", x="2x3:int32", s=7, t=11, opset=9),
    case("cast-cast", "the first cast may lose something", x="2x3:int64", s=6, t=7),
    case("cast-cast", "the first cast may lose something", x="2x3", s=7, t=1),
]  # fmt: skip

MATMUL += [
    *(
        each
        for name in ("matmul-chain", "matmul-chain-inverse")
        for each in (
            case(name, x="2x3x4", y="4x5", z="2x5x2"),
            case(name, x="3x4", y="4x5", z="=5x2", opset=7),
            case(name, "an operand is a vector", x="4", y="4x5", z="5x2"),
            case(name, "what is in the middle is constant", x="3x4", y="=4x5", z="5x2"),
        )
    ),
    case("matmul-factored-left", x="2x3x4", y="4x5", z="=4x5"),
    case("matmul-factored-left", x="4", y="4x5", z="@y", opset=7),
    case("matmul-factored-left", "the operands have different shapes", x="3x4", y="4x5", z="2x4x5"),
    case("matmul-factored-right", x="2x3x4", y="2x3x4", z="4x5"),
    case("matmul-factored-right", x="4", y="@x", z="=4x5", opset=7),
    case("matmul-factored-right", "the operands have different shapes", x="3x4", y="1x4", z="4x5"),
    case("matmul-distributes", x="2x3x4", y="2x3x4", z="4x5"),
    case("matmul-distributes", x="4", y="=4", z="=4x5", opset=7),
    case("matmul-distributes", "the summands have different shapes", x="3x4", y="1x4", z="4x5"),
    case("matmul-of-add", x="2x3x4", c="=4", w="=4x5"),
    case("matmul-of-add", x="3x4", c="=4", w="=4x1", opset=7),
    case("matmul-of-add", "weight or summand is not constant", x="3x4", c="4", w="=4x5"),
    case("matmul-of-add", "the summand is not one number", x="3x4", c="=3x1", w="=4x5"),
    case("matmul-of-add", "the summand is not one number", x="3x1", c="=4", w="=4x5"),
    case("matmul-of-mul", x="2x3x4", k="=4", w="=4x5"),
    case("matmul-of-mul", x="4", k="=4", w="=4x1", opset=7),
    case("matmul-of-mul", "weight or factor is not constant", x="3x4", k="4", w="=4x5"),
    case("matmul-of-mul", "the factor is not one number", x="3x4", k="=3x1", w="=4x5"),
    case("matmul-of-mul", "the factor is not one number", x="3x1", k="=4", w="=4x5"),
    case("gemm-of-mul", x="3x4", k="=4", w="=4x5", b=["=5"], t=0, a={}),
    case("gemm-of-mul", x="3x4", k="=4", w="=5x4", b=["=1"], t=1, a=dict(alpha=0.5), opset=7),
    case("gemm-of-mul", "weight or factor is not constant", x="3x4", k="=4", w="4x5", b=[], t=0, a={}),
    case("gemm-of-mul", "the factor is not one number", x="3x4", k="=3x1", w="=4x5", b=[], t=0, a={}),
    case("gemm-mul", x="3x4", k="=5", w="=4x5", b="=5", t=0, a=dict(beta=2.0)),
    case("gemm-mul", x="4x3", k="=5", w="=5x4", b="=3x1", t=1, a=dict(transA=1), opset=7),
    case("gemm-mul", "weight, bias or factor is not constant", x="3x4", k="5", w="=4x5", b="=5", t=0, a={}),
    case("gemm-mul", "the factor is not one number", x="3x4", k="=3x1", w="=4x5", b="=5", t=0, a={}),
    case("gemm-batchnorm", x="3x4", w="=4x6", c="=6", **BN, t=0, p=0.5),
    case("gemm-batchnorm", x="3x4", w="=6x4", c="=6", **BN, t=1, p=None, opset=9),
    case("gemm-batchnorm", "a weight or statistic is not", x="3x4", w="=4x6", c="=6", **BN | dict(s="6"), t=0, p=None),
    case("gemm-batchnorm", "the bias is not one number", x="3x4", w="=4x6", c="=3x1", **BN, t=0, p=None),
    case("matmul-batchnorm", x="3x4", w="=4x6", **BN),
    case("matmul-batchnorm", x="1x1", w="=1x6", **BN, opset=9),
    case("matmul-batchnorm", "a weight or statistic is not constant", x="3x4", w="4x6", **BN),
    case("matmul-batchnorm", "not a product of matrices", x="2x6x4", w="=4x5", **BN),
    case("gemm-scales-folded", x="3x4", w="=4x5", b="=5", p=0.5, q=2.0, a={}),
    case("gemm-scales-folded", x="4x3", w="=5x4", b="=", p=None, q=0.5, a=dict(transA=1, transB=1), opset=7),
    case("gemm-scales-folded", "weight or bias is not constant", x="3x4", w="=4x5", b="5", p=0.5, q=2.0, a={}),
    case("gemm-scales-folded", "nothing is scaled", x="3x4", w="=4x5", b="=5", p=None, q=None, a={}),
    case("matmul-of-concat", x="2x3x4", y="2x3x2", w="=6x5", i=-1),
    case("matmul-of-concat", x="3x4", y="@x", w="=8x5", i=1, opset=9),
    case("matmul-of-concat", "the weight is not a constant matrix", x="3x4", y="3x2", w="6x5", i=1),
    case("matmul-of-concat", "the weight is not a constant matrix", x="3x4", y="3x2", w="=2x6x5", i=1),
    case("matmul-of-concat", "the parts are not joined along the features", x="3x4", y="2x4", w="=4x5", i=0),
    case("matmul-sum-as-concat", x="2x3x4", y="2x3x2", w="=4x5", u="=2x5"),
    case("matmul-sum-as-concat", x="3x4", y="@x", w="=4x5", u="=4x5", opset=9),
    case("matmul-sum-as-concat", "the weights are not", x="3x4", y="3x2", w="=4x5", u="2x5"),
    case("matmul-sum-as-concat", "the weights are not", x="3x4", y="3x2", w="=4x5", u="=2x1"),
    case("matmul-sum-as-concat", "the inputs have", x="3x4", y="1x2", w="=4x5", u="=2x5"),
    *(
        each
        for name in ("concat-of-matmul", "matmul-of-concat-rows")
        for each in (
            case(name, x="2x3x4", y="2x1x4", w="4x5", i=-2),
            case(name, x="3x4", y="@x", w="=4x5", i=0, opset=9),
            case(name, "the p", x="3x4" if "of-m" in name else "3x2", y="3x4" if "of-m" in name else "3x2", w="4x5",
                i=1),
        )
    ),
    case("transpose-of-matmul", x="2x3x4", y="2x4x5", p=(0, 2, 1)),
    case("transpose-of-matmul", x="3x4", y="=4x5", p=None, opset=7),
    case("transpose-of-matmul", "rows and columns alone", x="2x3x4", y="2x4x5", p=(1, 0, 2)),
    case("transpose-of-matmul", "rows and columns alone", x="2x3x4", y="4x5", p=(0, 2, 1)),
    case("matmul-of-transposes", x="2x4x3", y="2x5x4", p=(0, 2, 1)),
    case("matmul-of-transposes", x="4x3", y="5x4", p=None, opset=7),
    case("matmul-of-transposes", "rows and columns alone", x="3x3x3", y="3x3x3", p=(1, 0, 2)),
    case("gemm-of-transpose", x="4x3", w=["4x5", "5"], t=0, a=dict(transB=0)),
    case("gemm-of-transpose", x="3x4", w=["=5x4", "=5"], t=1, a=dict(transB=1), opset=7),
    case("gemm-with-transpose", x="3x4", w="5x4", b=["5"], t=0, a=dict(transA=0)),
    case("gemm-with-transpose", x="4x3", w="4x5", b=["="], t=1, a=dict(transA=1, beta=0.5), opset=7),
    case("gemm-weight-transposed", x="3x4", w="=5x4", b=["5"], a={}),
    case("gemm-weight-transposed", x="4x3", w="=5x4", b=["="], a=dict(transA=1, beta=0.5), opset=7),
    case("gemm-weight-transposed", "the weight is not constant", x="3x4", w="5x4", b=["5"], a={}),
    case("gemm-apart", x="3x4", w="=5x4", b="5"),
    case("gemm-apart", x="3x4", w="=5x4", b="=3x1", opset=7),
    case("gemm-apart", "the weight is not constant", x="3x4", w="5x4", b="5"),
    case("gemm-apart", "ONNX Runtime has no Gemm", x="3x4:int64", w="=5x4:int64", b="5:int64"),
]  # fmt: skip

INT = dict(x="2x3:int64", dtype="int64")
ELEMENTWISE += [
    *(
        each
        for name in ("max-of-several", "min-of-several", "sum-of-several")
        for each in (
            case(name, x="2x3", y="3", r=["2x1", "4x1x1"]),
            case(name, x="2", y="@x", r=["@x"], opset=8),
            case(name, "there are but two", x="2x3", y="3", r=[]),
        )
    ),
    case("sum-of-one", x="2x3"),
    case("sum-of-one", x="", opset=8),
    *(
        each
        for name in ("relu-as-clip", "clip-as-relu")
        for each in (
            case(name, x="2x3"), case(name, x="5:float32", opset=11), case(name, "the input is not of floats", **INT),
        )
    ),
    case("relu-as-clip", x="2x3:float32", opset=9),
    case("clip-clip", x="2x3", a=-1.0, b=0.5, c=0.0, d=6.0),
    case("clip-clip", x="5", a=0.0, b=0.5, c=-1.0, d=0.25, opset=11),
    case("clip-clip", "the input is not of floats", x="2:int64", a="=:int64", b="=:int64", c="=:int64", d="=:int64"),
    case("clip-clip", "the intervals do not meet", x="2x3", a=-1.0, b=0.5, c=0.6, d=6.0),
    case("clip-clip", "the intervals do not meet", x="2x3", a=1.0, b=0.5, c=0.0, d=6.0),
    case("clip-of-relu", x="2x3", b=0.5),
    case("clip-of-relu", x="5", b="=", opset=11),
    case("clip-of-relu", "the input is not of floats", **INT, b="=:int64"),
    case("relu-of-clip", x="2x3", a=0.25, b=0.5),
    case("relu-of-clip", x="5", a=0.0, b="+", opset=11),
    case("relu-of-clip", "the interval reaches below zero", x="2x3", a=-0.25, b=0.5),
    case("relu-of-clip", "the interval reaches below zero", x="2x3", a=0.25, b=-0.5),
    case("pow-as-sqrt", x="2x3"),
    case("pow-as-sqrt", x="", opset=7),
    case("pow-as-sqrt", "the base is not a float", x="2:int64"),
    case("reciprocal", x="2x3"),
    case("reciprocal", x="", opset=7),
    case("reciprocal", "integers have no reciprocal", **INT),
    case("mul-reciprocal", x="2x3", y="3"),
    case("mul-reciprocal", x="", y="2x1", opset=7),
    *(
        each
        for name in ("mul-common-factor", "mul-common-factor-inverse")
        for each in (
            case(name, x="2x3", y="3", z="3"),
            case(name, x="2x1:int64", y="@x", z="2x1:int64", opset=7),
            case(name, "the operands have different shapes", x="2x3", y="3", z="2x1"),
            case(name, "an operand is constant", x="2x3", y="3", z="=3"),
        )
    ),
    *(
        each
        for name in ("sigmoid-as-tanh", "sigmoid-as-tanh-inverse")
        for each in (case(name, x="2x3", dtype="float32"), case(name, x="", opset=11))
    ),
    *(
        each
        for name in ("hard-sigmoid", "hard-sigmoid-scaled")
        for each in (case(name, x="2x3", dtype="float32"), case(name, x="", opset=11, dtype="float32"),
            case(name, DIGITS, x="2x3"))
    ),
    case("hard-sigmoid", "the input is not of floats", **INT),
    *(case(name, x=x, opset=opset, dtype="float32") for name in ("hard-swish", "hard-swish-apart") for x,
        opset in (("2x3", 20), ("", 14))),
    case("hard-swish", x="2x3"),
    case("hard-swish-apart", DIGITS, x="2x3"),
    case("log-softmax", x="2x3", i=0),
    case("log-softmax", x="2x3x4", i=1, opset=13),
    *(
        each
        for name in ("equal-relu", "equal-sigmoid")
        for each in (case(name, x="2x3"), case(name, x="", opset=7))
    ),
]  # fmt: skip

FUSION += [
    *(
        each
        for name in (
            "gelu-erf-outside", "gelu-erf-times", "gelu-erf-inside", "gelu-erf-inside-inverse",
        )
        for each in (case(name, x="2x3"), case(name, x=""))
    ),
    *(
        each
        for name in ("gelu-tanh", "gelu-tanh-inverse")
        for each in (
            case(name, x="2x3", dtype="float32"), case(name, x="", dtype="float32"),
            case(name, "ONNX states its constants in float32", x="2x3"),
        )
    ),
    case("gelu-erf-outside", "Gelu needs a newer opset", x="2x3", opset=19),
    case("gelu-tanh", "Gelu needs a newer opset", x="2x3", opset=19, dtype="float32"),
    case("layer-normalization-squared", **LAYER_NORM),
    case("layer-normalization-squared", **LAYER_NORM | dict(x="8", r=[0], q="@r", g="@b"), opset=18),
    case("layer-normalization-squared", "axes or epsilon are not constant", **LAYER_NORM | dict(e="1")),
    case("layer-normalization-squared", "the mean is not over", **LAYER_NORM | dict(x="2x8x8", q=[1])),
    case("layer-normalization-squared", "scale and offset are not", **LAYER_NORM | dict(g="1")),
    *(
        case("layer-normalization-without-offset", reason,
            **{k: v for k, v in (LAYER_NORM | result).items() if k != "b"}, opset=opset)
        for reason, result, opset in (
            (None, {}, 20), (None, dict(x="8", r=[0], q="@r"), 18),
            ("axes or epsilon are not constant", dict(e="1"), 20),
            ("the mean is not over", dict(x="2x8x8", q=[1]), 20), ("the scale is not one number", dict(g="1"), 20),
        )
    ),
    case("layer-normalization-apart", x="2x3x8", g="8", b="=8", i=-1, e=1e-3),
    case("layer-normalization-apart", x="2x8", g="8", b="8", i=1, e=None, opset=17),
    case("layer-normalization-apart", "more than the last axis", x="2x3x8", g="3x8", b="3x8", i=1, e=1e-3),
    case("softmax", x="2x3x4", r=[-1], q=[2]),
    case("softmax", x="2x3", r=[0], q="@r", opset=13),
    case("softmax", "maximum and sum are not over one axis", x="2x3x4", r=[1, 2], q=[1, 2]),
    case("softmax", "maximum and sum are not over one axis", x="3x3", r=[1], q=[0]),
    case("softmax-plain", x="2x3x4", q=[-1]),
    case("softmax-plain", x="2x3", q=[0], opset=13),
    case("softmax-plain", "the sum is not over one axis", x="2x3x4", q=[1, 2]),
    case("softmax-apart", x="2x3x4", i=-1),
    case("softmax-apart", x="2x3", i=0, opset=13),
    case("softmax-apart", "an empty tensor has no maximum", x="2x0", i=0),
]  # fmt: skip

CASES: list[Case] = [
    *ALGEBRA, *ATTENTION, *CHANNELS, *CONCAT, *CONVOLUTION, *DIMENSIONS, *ELEMENTWISE, *FUSED, *FUSION, *GENERATED,
    *GROUPS, *LAYOUT, *MATMUL, *MEMORY, *OPEN_SIZES, *PADDING, *POOLING, *REDUCTION, *RESIZES, *SHAPE_ARITHMETIC,
    *SLICES, *UPSAMPLING, *WINOGRAD,
]  # fmt: skip
