"""Cases of the rules that reduce arithmetic. A weight with `/0` has rows of zeros (tests.rules.instances)."""

from functools import partial

from tests.rules.instances import case

single = partial(case, dtype="float32")
P1 = dict(pads=[1, 1, 1, 1])
S2 = dict(strides=[2, 2])
G2 = dict(group=2)
LOW = dict(x="2x3x4", w="=4x6", u="=4x2", v="=2x6")
LOW_CONV = dict(x="1x4x5x5", w="=6x4x3x3", u="=2x4x3x3", v="=6x2x1x1", b=[])
GEMMS = dict(x="2x6", w="=5x6", b="=5", u="=4x5", c=["=4"], i=1, j=1)
ZEROS = dict(x="1x4x5x5", w="=12x4x3x3/0", u="=6x12x3x3", c=[])
ZEROS_B = ZEROS | dict(b="=12")
COLUMNS = dict(x="2x3x4", w="=4x6/1", b="=6", u="=6x5")
CHANNELS = dict(x="1x4x5x5", w="=12x4x3x3", u="=6x12x3x3/1", c=[])
ROWS = dict(x="2x3x4", w="=4x6", b="=6", u="=6x5/0")
GEMM_ROWS = dict(x="3x4", w="=6x4", b="=6", u="=5x6/1", c=["5"], i=1, j=1)
FRAMES = dict(x="2x11x1", p=3, w="=5", n=5, o=1)  # The reference implementation reads signals of rank 3.
SCATTER = dict(x="10x4", i="5x1:int64", s=[5, 4], u="5x4")  # Random indices are between -9 and 9.
GEMM_ZEROS = dict(x="3x4", w="=6x4/0", b="=6", u="=5x6", c="=5", i=1, j=1)

ALGEBRA = [
    case("low-rank-branch", **LOW),
    case("low-rank-branch", **LOW | dict(x="4", w="=4x1", v="=2x1"), opset=9),
    case("low-rank-branch", **LOW | dict(x="nx4")),
    case("low-rank-branch", "a weight is not constant", **LOW | dict(w="4x6")),
    case("low-rank-branch", "a weight is not constant", **LOW | dict(u="4x2")),
    case("low-rank-branch", "the weights are not matrices", **LOW | dict(w="=4x1")),
    case("low-rank-branch", "the weights are not matrices", **LOW | dict(w="=2x4x6")),
    case("low-rank-convolution", **LOW_CONV, a=P1),
    case("low-rank-convolution", **LOW_CONV | dict(b=["=6"]), a=S2, opset=7),
    case("low-rank-convolution", "a weight is not constant", **LOW_CONV | dict(v="6x2x1x1"), a={}),
    case("low-rank-convolution", "the kernels do not fit", x="1x4x1x1", w="=6x4x1x1", u="=2x4x1x1", v="=1x2x1x1", b=[],
        a={}),
    case("low-rank-convolution", "the convolutions are grouped", **LOW_CONV | dict(w="=6x2x3x3", u="=2x2x3x3"), a=G2),
    case("gemm-gemm", **GEMMS),
    case("gemm-gemm", **GEMMS | dict(w="=6x5", c=[], i=0), opset=11),
    case("gemm-gemm", **GEMMS | dict(u="=5x4", j=0)),
    case("gemm-gemm", "a weight or bias is not constant", **GEMMS | dict(u="4x5")),
    case("gemm-gemm", "a weight or bias is not constant", **GEMMS | dict(c=["4"])),
    case("gemm-gemm", "a bias is not one number per column", **GEMMS | dict(c=["=2x4"])),
    case("gemm-gemm", "a bias is not one number per column", **GEMMS | dict(b="=1x5")),
    case("gemm-gemm", "the one layer would multiply more", **GEMMS | dict(w="=2x6", b="=2", u="=4x2")),
    *(
        each
        for name in ("softmax-of-add", "softmax-of-sub")
        for each in (
            case(name, x="2x3x4", c="2x3x1", i=-1),
            case(name, x="2x3x4", c="4", i=1, opset=13),
            case(name, x="2x3", c="=", i=1),
            case(name, "the summand varies along the axis", x="2x3x4", c="4", i=-1),
            case(name, "the summand varies along the axis", x="2x3x4", c="=3x1", i=1),
            case(name, "the summand varies along the axis", x="2x1", c="2x3", i=0),
        )
    ),
    case("matmul-of-gather", t="=20x2", i="3:int64", w="=2x5"),
    case("matmul-of-gather", t="=20x3", i="2x3:int64", w="=3x3", opset=11),
    case("matmul-of-gather", "table or weight is not constant", t="20x2", i="2:int64", w="=2x5"),
    case("matmul-of-gather", "table or weight is not a matrix", t="=20x2x2", i="2:int64", w="=2x5"),
    case("matmul-of-gather", "table or weight is not a matrix", t="=20x2", i=":int64", w="=2x5"),
    case("matmul-of-gather", "the table would be more than eight", t="=20x2", i="2:int64", w="=2x17"),
    *(
        each
        for name in ("argmax-of-softmax", "argmax-of-logsoftmax")
        for each in (case(name, x="2x3x4", i=1, a={}), case(name, x="nx4", i=-1, a=dict(keepdims=0), opset=13))
    ),
    case("sum-of-matmul", x="2x3x4", w="=4x5", r=[0, 1]),
    case("sum-of-matmul", x="3x4", w="=4x5", r=[-2], opset=11),
    case("sum-of-matmul", "the weight is not a constant matrix", x="2x3x4", w="4x5", r=[1]),
    case("sum-of-matmul", "the sum is over columns, too", x="2x3x4", w="=4x5", r=[1, 2]),
    case("mean-of-add", x="2x3x4", c="=4", r=[1], k=0),
    case("mean-of-add", x="3x4", c="=4", r=[0], k=1, opset=11),
    case("mean-of-add", "the summand is not constant", x="2x3x4", c="4", r=[1], k=0),
    case("mean-of-add", "the summand is not constant", x="2x3x4:int64", c="=4:int64", r=[1], k=0),
    case("mean-of-add", "the summand is not one number per column", x="2x3x4", c="=4", r=[2], k=1),
    case("mean-of-add", "the summand is not one number per column", x="2x3x4", c="=3x4", r=[1], k=1),
    *(
        case("einsum-as-matmul", x=x, y=y, q=q)
        for x, y, q in (
            ("2x3x4", "4x5", "bij,jk->bik"), ("2x3x4", "5x4", "bij,kj->bki"),
            ("2x3x4x5", "2x6x4x5", "bsnh,btnh->bnts"), ("2x4x6x3", "2x3x4x5", "bnts,bsnh->btnh"),
            ("3x4", "2x4x5x6", "d c, b c h w -> b d h w"), ("4", "4", "i,i->"),
            ("4", "2x4x3", "i,jik->kj"), ("2x3", "4x3", "ij,kj"), ("2x3x4:int64", "4x5:int64", "abc,cd->abd"),
        )
    ),
    case("einsum-as-matmul", x="nx3x4", y="nx3x5", q="bij,bik->bkj", opset=12),
    case("einsum-as-matmul", "not the sum over one label", x="2x3", y="2x3", q="ij,ij->"),
    case("einsum-as-matmul", "not the sum over one label", x="2x3", y="3x4", q="ij,jk->k"),
    case("einsum-as-matmul", "not the sum over one label", x="2x3", y="2x3", q="ij,ij->ij"),
    case("einsum-as-matmul", "the labels are not those of rows", x="2x3x4", y="2x4", q="bij,bj->bi"),
    case("einsum-as-matmul", "the labels are not those of rows", x="2x3x4", y="4x5x6", q="abc,cde->abde"),
    case("einsum-as-matmul", "the equation has an ellipsis", x="2x3x4", y="4x5", q="...i,ij->...j"),
    case("einsum-as-layer", x="2x3x4", y="4x5x6", q="abc,cde->abde"),
    case("einsum-as-layer", x="nx3x4", y="=5x6x4", q="abc,dec->adbe", opset=13),
    case("einsum-as-layer", "not the sum over the one label", x="2x3x4", y="2x4x5", q="abc,acd->abd"),
    case("einsum-as-layer", "not the sum over the one label", x="2x3x4x5", y="4x5x6", q="abcd,cde->abe"),
    case("einsum-as-layer", "an operand is a matrix", x="2x3x4", y="4x5", q="abc,cd->abd"),
    case("einsum-as-layer", x="0x3x4", y="4x5x6", q="abc,cde->abde"),
    case("einsum-as-layer", "Reshape does not fit", x="2x3x4", y="4x5x0", q="abc,cde->abde"),
    case("einsum-as-mul", x="2x3x4x5", y="3", q="nchw,c->nchw"),
    case("einsum-as-mul", x="2", y="3", q="i,j->ji"),
    case("einsum-as-mul", x="2x3", y="3x2", q="ij,ji->ji", opset=13),
    case("einsum-as-mul", x="nx3", y="", q="ij,->ij"),
    case("einsum-as-mul", "a label is summed", x="2x3", y="2x3", q="ij,ij->i"),
    case("zero-filters", **ZEROS, a=P1, d=P1),
    case("zero-filters", **ZEROS | dict(c=["=6"], w="=15x4x3x3/0", u="=6x15x3x3"), a=S2, d={}),
    case("zero-filters", x="nx4x5", w="=12x4x3/0", u="=6x12x3", c=[], a={}, d=dict(dilations=[1])),
    case("zero-filters", "a weight is not constant", **ZEROS | dict(u="6x12x3x3"), a={}, d={}),
    case("zero-filters", "too few filters are zero", **ZEROS | dict(w="=12x4x3x3"), a={}, d={}),
    case("zero-filters", "too few filters are zero", **ZEROS | dict(w="=2x4x3x3/0", u="=6x2x3x3"), a={}, d={}),
    case("zero-filters", "the elements of a tensor are not known", **ZEROS | dict(w="12x4x3x3"), a={}, d={}),
    case("zero-filters", "the convolutions are grouped", **ZEROS | dict(x="1x8x5x5"), a=G2, d={}),
    case("zero-filters", "the convolutions are grouped", **ZEROS | dict(u="=6x6x3x3"), a={}, d=G2),
    case("zero-filters-with-bias", **ZEROS_B, a=P1, d=P1),
    case("zero-filters-with-bias", **ZEROS_B | dict(c=["=6"], w="=14x4x3x3/0", b="=14", u="=6x14x3x3"), a=S2, d=P1),
    case("zero-filters-with-bias", x="nx4x5", w="=13x4x3/0", b="=13", u="=6x13x3", c=[], a={}, d={}),
    case("zero-filters-with-bias", "a weight is not constant", **ZEROS_B | dict(b="12"), a={}, d={}),
    case("zero-filters-with-bias", "too few filters", **ZEROS_B | dict(w="=8x4x3x3/0", b="=8", u="=6x8x3x3"), a={},
        d={}),
    case("zero-filters-with-bias", "the convolutions are grouped", **ZEROS_B | dict(u="=6x6x3x3"), a={}, d=G2),
    *(
        each
        for name, first in (("zero-channels", {}), ("zero-channels-with-bias", dict(b="=12")))
        for each in (
            case(name, **CHANNELS | first, a=P1, d=P1),
            case(name, **CHANNELS | first | dict(x="nx4x5x5", c=["=6"]), a=S2, d={}, opset=9),
            case(name, "a weight is not constant", **CHANNELS | first | dict(w="12x4x3x3"), a={}, d={}),
            case(name, "too few channels are zero", **CHANNELS | first | dict(u="=6x12x3x3"), a={}, d={}),
            case(name, "the convolutions are grouped", **CHANNELS | first | dict(x="1x8x5x5"), a=G2, d={}),
        )
    ),
    case("zero-columns-relu", **COLUMNS),
    case("zero-columns-relu", **COLUMNS | dict(x="nx4"), opset=9),
    case("zero-columns-relu", "a weight is not constant", **COLUMNS | dict(u="6x5")),
    case("zero-columns-relu", "the weights are not matrices", **COLUMNS | dict(b="=1")),
    case("zero-columns-relu", "no column is zero", **COLUMNS | dict(w="=4x6")),
    single("zero-columns-gelu", **COLUMNS),
    single("zero-columns-gelu", **COLUMNS | dict(x="nx4")),
    single("zero-columns-gelu", "a weight is not constant", **COLUMNS | dict(b="6")),
    single("zero-columns-gelu", "the weights are not matrices", **COLUMNS | dict(u="=2x6x5")),
    single("zero-columns-gelu", "no column is zero", **COLUMNS | dict(w="=4x1/0", b="=1", u="=1x5")),
    single("zero-columns-bias-gelu", **COLUMNS),
    single("zero-columns-bias-gelu", **COLUMNS | dict(x="5x4"), opset=13),
    single("zero-columns-bias-gelu", "a weight is not constant", **COLUMNS | dict(u="6x5")),
    single("zero-columns-bias-gelu", "the weights are not matrices", **COLUMNS | dict(u="=2x6x5")),
    single("zero-columns-bias-gelu", "no column is zero", **COLUMNS | dict(w="=4x6")),
    case("zero-columns-of-gemm", **GEMM_ZEROS),
    case("zero-columns-of-gemm", **GEMM_ZEROS | dict(w="=4x6/1", i=0), opset=9),
    case("zero-columns-of-gemm", "a weight or bias is not constant", **GEMM_ZEROS | dict(c="5")),
    case("zero-columns-of-gemm", "a bias is not one number per column", **GEMM_ZEROS | dict(c="=3x5")),
    case("zero-columns-of-gemm", "no column is zero", **GEMM_ZEROS | dict(w="=6x4")),
    case("zero-rows-relu", **ROWS),
    case("zero-rows-relu", **ROWS | dict(x="nx4"), opset=9),
    case("zero-rows-relu", "a weight is not constant", **ROWS | dict(w="4x6")),
    case("zero-rows-relu", "the weights are not matrices", **ROWS | dict(b="=1")),
    case("zero-rows-relu", "no row is zero", **ROWS | dict(u="=6x5")),
    single("zero-rows-gelu", **ROWS),
    single("zero-rows-gelu", **ROWS | dict(x="nx4")),
    single("zero-rows-gelu", "a weight is not constant", **ROWS | dict(b="6")),
    single("zero-rows-gelu", "the weights are not matrices", **ROWS | dict(w="=2x4x6")),
    single("zero-rows-gelu", "no row is zero", **ROWS | dict(u="=6x5")),
    case("zero-rows-of-gemm", **GEMM_ROWS),
    case("zero-rows-of-gemm", **GEMM_ROWS | dict(w="=4x6", i=0, c=[]), opset=11),
    case("zero-rows-of-gemm", "a weight is not constant", **GEMM_ROWS | dict(b="6")),
    case("zero-rows-of-gemm", "the bias is not one number per column", **GEMM_ROWS | dict(b="=3x6")),
    case("zero-rows-of-gemm", "no row is zero", **GEMM_ROWS | dict(u="=5x6")),
    single("dft-as-product", x="2x3x5x1", i=2, o=1, opset=17),
    single("dft-as-product", x="2x4x1", i=-2, o=0, opset=18),
    single("dft-as-product", "not real numbers along", x="2x4x2", i=1, o=0, opset=17),
    single("dft-as-product", "not real numbers along", x="2x3x5x1", i=1, o=1, opset=17),
    single("dft-as-product", "the matrix is large", x="1x2049x1", i=1, o=1, opset=17),
    single("dft-as-product", "not floats, or empty tensors", x="0x4x1", i=1, o=1, opset=17),
    single("stft-as-convolution", **FRAMES, opset=17),
    single("stft-as-convolution", **FRAMES | dict(x="1x5x1", o=0)),
    single("stft-as-convolution", "step, window or size is not", **FRAMES | dict(w="5")),
    single("stft-as-convolution", "the signal is not of real", **FRAMES | dict(x="2x11x2", o=0)),
    single("stft-as-convolution", "the matrix is large", **FRAMES | dict(x="1x2049x1", w="=2049", n=2049)),
    single("stft-as-convolution", "the signal may be shorter", **FRAMES | dict(x="0x11x1")),
    case("scatter-of-rows", **SCATTER),
    case("scatter-of-rows", **SCATTER | dict(i="=5x1:int64", x="=10x4"), opset=16),
    case("scatter-of-rows", "not rows with one index each", **SCATTER | dict(i="5x4:int64")),
    case("scatter-of-rows", "not rows with one index each", **SCATTER | dict(x="10x4x2", i="5x1x1:int64", s=[5, 4, 2],
        u="5x4x2")),
    case("scatter-of-rows", "an index is repeated, or a part", **SCATTER | dict(i="1x1:int64")),
    case("scatter-of-rows", "an index is repeated, or a part", **SCATTER | dict(s=[5, 3], u="5x3")),
]  # fmt: skip
