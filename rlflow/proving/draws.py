"""List the options from which the cases of a rule choose: ranks, lists of integers and attributes of operators.

`coverage` describes in words what the cases of a rule cover.
"""

import itertools
import re
from collections.abc import Iterator
from functools import cache

import onnx
from onnx import TensorProto

from rlflow.rules.patterns import Bind, Literal, Op, Output, Star, Var, print_pattern
from rlflow.rules.rule import Rule

MAX_RANK = 4
MAX_SLICED = 2  # axes per Slice
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
# Data types of the tensors in rules that cast.
TYPES = (
    FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8,
    TensorProto.BOOL,
)  # fmt: skip
# Operators with one number per spatial axis in attributes such as `strides`: equal `**a` mean equal ranks.
SAME_RANK = ("Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool")
VARIADIC = ("Concat", "Sum", "Max", "Min")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2")
ANY = tuple(range(MAX_RANK + 1))  # ranks of an input that may have any rank
SOME = ANY[1:]  # ranks of an input with at least one axis
SPATIAL = (3, 4)  # ranks of an image or kernel: one or two spatial axes; more only if a condition asks for them
# (operator, input position) → the ranks that the input may have; ANY for inputs that are not listed.
RANKS: dict[tuple[str, int], tuple[int, ...]] = {
    ("Conv", 0): SPATIAL, ("Conv", 1): SPATIAL, ("Conv", 2): (1,), ("MaxPool", 0): SPATIAL,
    ("FusedConv", 0): SPATIAL, ("FusedConv", 1): SPATIAL, ("FusedConv", 2): (1,), ("FusedConv", 3): SPATIAL,
    ("ConvTranspose", 0): SPATIAL, ("ConvTranspose", 1): SPATIAL, ("ConvTranspose", 2): (1,),
    ("AveragePool", 0): SPATIAL, ("GlobalAveragePool", 0): SPATIAL, ("GlobalMaxPool", 0): SPATIAL,
    ("BatchNormalization", 0): SOME, **{("BatchNormalization", k): (1,) for k in range(1, 5)},
    **{("GroupNormalization", slot): ranks for slot, ranks in enumerate((SPATIAL, (1,), (1,)))},
    ("MatMul", 0): SOME, ("MatMul", 1): SOME, ("FusedMatMul", 0): SOME, ("FusedMatMul", 1): SOME,
    **{(op, slot): ranks for op in ("Gemm", "FusedGemm") for slot, ranks in enumerate(((2,), (2,), (0, 1, 2)))},
    **{(op, 0): SOME for op in (
        "ArgMax", "Concat", "Split", "Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "Squeeze",
        "Flatten", "Gather", "BiasGelu", "FastGelu",
    )},
    ("Resize", 0): SOME, ("Resize", 1): (1,), ("DFT", 0): SOME[1:], ("ScatterElements", 0): SOME,
    ("STFT", 0): (2, 3), ("STFT", 2): (1,),
    ("Unsqueeze", 0): ANY[:-1], ("Clip", 1): (0,), ("Clip", 2): (0,), ("Pad", 2): (0, 1), ("BiasGelu", 1): (1,),
    ("FastGelu", 1): (1,),
    ("Gather", 1): (0, 1, 2), ("SpaceToDepth", 0): (4,), ("DepthToSpace", 0): (4,),
    **{("Attention", k): (4,) for k in range(3)}, **{("MultiHeadAttention", k): (3,) for k in range(3)},
    **{(op, slot): ranks
       for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
       for slot, ranks in enumerate(((3,), (2, 3), (1,), (1,), (1,)))},
}  # fmt: skip
# Inputs that are lists of integers, and the kind of each list.
LISTS: dict[tuple[str, int], str] = {
    ("Resize", 2): "repeats", ("Resize", 3): "repeats",
    ("Reshape", 1): "shape", ("Expand", 1): "sizes", ("Tile", 1): "repeats", ("Split", 1): "parts",
    ("Pad", 1): "pads", ("Pad", 3): "padded axes", ("Squeeze", 1): "axes", ("Unsqueeze", 1): "new axes",
    ("Slice", 1): "starts", ("Slice", 2): "ends", ("Slice", 3): "cut axes", ("Slice", 4): "steps",
    ("Gather", 1): "indices", ("Where", 0): "flags", ("STFT", 1): "count", ("STFT", 3): "count",
    **{(op, 1): "axes" for op in REDUCTIONS},
}  # fmt: skip
# The values of a list of kind "flags": one to three numbers 0 or 1.
FLAGS = tuple(flags for count in (1, 2, 3) for flags in itertools.product((0, 1), repeat=count))
AUTOMATIC = ("pick", (b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID"))
WINDOW = {"strides": ("sizes", 1), "dilations": ("sizes", 1), "pads": ("pads", 0), "auto_pad": AUTOMATIC}
CONV = {"group": ("size", 1), **WINDOW}
GEMM = {"alpha": ("real", 1.0), "beta": ("real", 1.0), "transA": ("pick", (0, 1)), "transB": ("pick", (0, 1))}
ACTIVATION = {"activation": ("pick", (None, b"Relu", b"Tanh", b"Sigmoid"))}


def equations() -> Iterator[bytes]:
    """Yield equations of Einsum for two operands that sum over at most one label, which both operands share.

    The first equations are, up to the names of labels, all with 1 to MAX_LABELS labels in each operand and at most
    MAX_LABELS in the result. Common equations with four labels in an operand or in the result follow.
    """
    for x, count in itertools.product(("a", "ab", "abc"), (1, 2, 3)):
        for shared in (some for n in range(count + 1) for some in itertools.combinations(x, n)):
            own = "xyz"[: count - len(shared)]
            for y in itertools.permutations((*shared, *own)):
                for summed in itertools.chain([()], zip(shared)):
                    left = sorted({*x, *own} - {*summed})
                    if [k for k in y if k in own] == list(own) and len(left) <= MAX_LABELS:
                        yield from (f"{x},{''.join(y)}->{''.join(z)}".encode() for z in itertools.permutations(left))
    # scores and values of attention; channels that are mixed or scaled
    usual = "aecd->acbe aecd->aceb abed->abce abde->abce adbe->acbe aebd->acbe eb->aecd b->abcd"
    yield from (f"abcd,{rest}".encode() for rest in usual.split())
    yield from (b"abc,cde->abde", b"abc,cde->adbe", b"abc,dec->abde")  # features that become heads


MAX_LABELS = 3  # in an operand or in the result
# Attributes that `**a` may bind: (kind of value for `Case.draw`, default or None). A "pick" has a tuple of options
# instead of the default, which is the first option.
REST: dict[str, dict[str, tuple]] = {
    "Conv": CONV,
    "FusedConv": CONV | ACTIVATION,
    "ConvTranspose": CONV | {"output_padding": ("more", 0), "output_shape": ("maybe sizes", None)},
    "MaxPool": {"kernel_shape": ("sizes", None), "ceil_mode": ("pick", (0, 1)), **WINDOW},
    "AveragePool": {"kernel_shape": ("sizes", None), "ceil_mode": ("pick", (0, 1)),
        "count_include_pad": ("pick", (0, 1)),
                    **WINDOW},
    "Gemm": GEMM,
    "FusedGemm": GEMM | ACTIVATION,
    "FusedMatMul": {"alpha": ("real", 1.0), "transA": ("pick", (0, 1)), "transB": ("pick", (0, 1))},
    "BatchNormalization": {"epsilon": ("real", 1e-5)},
    "GroupNormalization": {"num_groups": ("size", None), "epsilon": ("real", 1e-5)},
    "LayerNormalization": {"axis": ("axis", -1), "epsilon": ("real", 1e-5)},
    "RMSNormalization": {"axis": ("axis", -1), "epsilon": ("real", 1e-5)},
    "SkipLayerNormalization": {"epsilon": ("real", 1e-12)},
    "SkipSimplifiedLayerNormalization": {"epsilon": ("real", 1e-12)},
    "Attention": {"scale": ("maybe real", None)},
    "MultiHeadAttention": {"num_heads": ("size", None), "scale": ("maybe real", None)},
    "QuickGelu": {"alpha": ("real", 1.702)},
    "Gelu": {"approximate": ("pick", (b"none", b"tanh"))},
    "Softmax": {"axis": ("axis", -1)},
    "LogSoftmax": {"axis": ("axis", -1)},
    "LeakyRelu": {"alpha": ("real", 0.01)},
    "Elu": {"alpha": ("real", 1.0)},
    "HardSigmoid": {"alpha": ("real", 0.2), "beta": ("real", 0.5)},
    "ScatterElements": {"axis": ("axis", 0), "reduction": ("pick", (b"none", b"add"))},
    "ScatterND": {"reduction": ("pick", (b"none", b"add"))},
    "DFT": {"axis": ("axis", 1), "inverse": ("pick", (0, 1)), "onesided": ("pick", (0, 1))},
    "STFT": {"onesided": ("pick", (1, 0))},
    "Shape": {"start": ("pick", (0, 1, -1)), "end": ("pick", (None, 1, -1))},
    "Resize": {
        "mode": ("pick", (b"nearest", b"linear")),
        "coordinate_transformation_mode": ("pick", (
            b"half_pixel", b"half_pixel_symmetric", b"pytorch_half_pixel", b"asymmetric", b"align_corners",
        )),
        "nearest_mode": ("pick", (b"round_prefer_floor", b"round_prefer_ceil", b"floor", b"ceil")),
    },
    "Concat": {"axis": ("axis", None)},
    "Split": {"axis": ("axis", 0)},
    "Gather": {"axis": ("axis", 0)},
    "Einsum": {"equation": ("equation", None)},
    "ArgMax": {"axis": ("axis", 0), "keepdims": ("pick", (1, 0)), "select_last_index": ("pick", (0, 1))},
    "Flatten": {"axis": ("axis", 1)},
    "Transpose": {"perm": ("perm", None)},
    "Pad": {"mode": ("pick", (b"constant", b"edge", b"reflect", b"wrap"))},
    "Cast": {"to": ("pick", TYPES)},
    "SpaceToDepth": {"blocksize": ("size", None)},
    "DepthToSpace": {"blocksize": ("size", None), "mode": ("pick", (b"DCR", b"CRD"))},
    **{op: {"keepdims": ("pick", (1, 0)), "noop_with_empty_axes": ("pick", (0, 1))} for op in REDUCTIONS},
}  # fmt: skip


# -- ranks and counts ------------------------------------------------------------------------------


@cache
def uses_of(rule: Rule) -> dict[str, list[tuple[str, int]]]:
    """Return variable → the (operator, input position) pairs of the left side that read it; 0 for all Concat inputs."""
    result: dict[str, list] = {}
    for op in rule.ops:
        for slot, pattern in enumerate(op.inputs):
            if isinstance(pattern, Var | Star):
                result.setdefault(pattern.name, []).append((op.op, 0 if op.op == "Concat" else slot))
    return result


@cache
def demanded(rule: Rule) -> tuple[int, ...]:
    """Return the ranks above MAX_RANK that a permutation of the left side or a condition such as `rank(x) == 6` fixes.
    """
    perms = [
        len(value.compute({})) for op in rule.ops for name, value in op.attributes
        if name == "perm" and isinstance(value, Literal)
    ]  # fmt: skip
    asked = re.findall(r"(?:rank|len)\((?:value\(|shape\()?\w+\)+ == (\d+)", rule.text)
    return tuple(sorted({n for n in (*perms, *map(int, asked)) if n > MAX_RANK}))


@cache
def settled(rule: Rule, name: str) -> bool:
    """Return True if conditions, `let` clauses and the right side contain a list of sizes only as `reshaped(x, name)`.

    Here x is an input of the left side that a Reshape by this list reads, so the rule uses only the output shape of the
    Reshape. The proof therefore assumes that the list contains neither 0 nor -1. The other readers of the list on the
    left side are not examined.

    Args:
      rule: the rule.
      name: the variable of the list.
    """
    read = set()
    for op in rule.ops:
        if op.op == "Reshape" and op.inputs[1:] == (Var(name),) and isinstance(op.inputs[0], Var):
            read.add(op.inputs[0].name)
    texts = [*rule.text.split("\n  ")[2:], *(print_pattern(p) for _, p in rule.target)]
    asks_for_shape = rf"reshaped\(({'|'.join(sorted(read)) or ' '}), {name}\)"
    others = re.sub(asks_for_shape, "", "\n".join(texts))
    return re.search(rf"\b{name}\b", others) is None


@cache
def max_rank(rule: Rule) -> int:
    """Return the largest rank in the cases of a rule, reduced by one if more than two tensors may have any rank."""
    uses = uses_of(rule)
    free = [name for name, result in uses.items() if all(use not in RANKS and use not in LISTS for use in result)]
    fixed = {r for result in uses.values() for use in result for r in RANKS.get(use, ANY)}
    return max(fixed & set(ANY), default=MAX_RANK) - (len(free) > 2)


def ranks_of(rule: Rule, uses: list[tuple[str, int]]) -> tuple[int, ...]:
    """Return the ranks that a tensor takes in the cases of a rule.

    Args:
      rule: the rule.
      uses: the (operator, input position) pairs that read the tensor.
    """
    fitting = tuple(r for r in ANY if all(r in RANKS.get(use, ANY) for use in uses))
    most = max_rank(rule)
    beyond = demanded(rule) if all(RANKS.get(use, ANY) in (ANY, SOME, ANY[:-1], SPATIAL) for use in uses) else ()
    return (tuple(r for r in fitting if r <= most) or fitting) + beyond


def max_count(rule: Rule) -> int:
    """Return the largest number of inputs that `*xs` of a variadic operator stands for: 2, or 1 if a rule has several.
    """
    stars = [op for op in rule.ops for i in op.inputs if isinstance(i, Star) and op.op in VARIADIC]
    return 2 if len(stars) < 2 else 1


def counts_of(rule: Rule, op: Op) -> tuple[int, ...]:
    """Return the numbers of inputs that the `*xs` of an operator stands for in the cases of a rule."""
    if op.op in VARIADIC:
        return tuple(range(max_count(rule) + 1))
    if op.domain:
        return (0, 1)
    schema, others = onnx.defs.get_schema(op.op), len(op.inputs) - 1
    return tuple(range(max(schema.min_input - others, 0), schema.max_input - others + 1))


def may_be_absent(op: Op, slot: int) -> bool:
    """Return True if the input at position `slot` is optional in ONNX, so it may be absent before a given input."""
    if op.domain or op.op in VARIADIC:
        return False
    return onnx.defs.get_schema(op.op).inputs[slot].option == onnx.defs.OpSchema.FormalParameterOption.Optional


def part_counts(rule: Rule, op: Op) -> tuple[int, ...]:
    """Return the numbers of parts that a Split has in the cases of a rule."""
    slots = [o.slot for _, o in rule.source if o.op.key == op.key]
    slots += [i.slot for other in rule.ops for i in other.inputs if isinstance(i, Output) and i.op.key == op.key]
    return (1, 2, 3) if None in slots else (1 + max(slots), 2 + max(slots))


# -- lists of axes ---------------------------------------------------------------------------------


def sets_of_axes(rank: int) -> tuple[tuple[int, ...], ...]:
    """Return all ascending sets of axes of a tensor, with the empty set, then each single negative axis and (-1, -2).
    """
    result = [chosen for count in range(rank + 1) for chosen in itertools.combinations(range(rank), count)]
    result += [(k - rank,) for k in range(rank)]
    return (*result, (-1, -2)) if rank > 1 else tuple(result)


def new_axes(rank: int) -> tuple[tuple[int, ...], ...]:
    """Return all sets of one or two axes that Unsqueeze can add to a tensor of this rank.

    Each set occurs twice, with axes that count from 0 and with negative axes.
    """
    result: list[tuple[int, ...]] = []
    for count in (1, 2):
        for chosen in itertools.combinations(range(rank + count), count):
            result += [chosen, tuple(k - rank - count for k in chosen)]
    return tuple(result)


def cut_axes(rank: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the results of `sets_of_axes` that have `count` members."""
    return tuple(axes for axes in sets_of_axes(rank) if len(axes) == count)


# -- in words --------------------------------------------------------------------------------------


def coverage(rule: Rule) -> str:
    """Return in words which ranks, counts and values the cases of a rule cover. Other quantities are symbols."""
    result = [f"ranks to {max_rank(rule)}" + "".join(f" and {n}" for n in demanded(rule)), "sizes from 1"]
    ops = {op.op for op in rule.ops}
    if ops & set(SAME_RANK):
        axes = ["one", "two", *("three" for rank in demanded(rule) if rank == 5)]
        result.append(f"windows along {', '.join(axes[:-1])} or {axes[-1]} axes")
    if any(isinstance(i, Star) and op.op in VARIADIC for op in rule.ops for i in op.inputs):
        result.append(f"`*inputs` to {max_count(rule)}")
    words = {
        "Reshape": f"shapes to {max((MAX_RANK, *demanded(rule)))} sizes",
        "Expand": f"shapes to {MAX_RANK} sizes",
        "Split": "at most three parts, or one more than is named",
        "Slice": f"cuts of at most {MAX_SLICED} axes",
        "Unsqueeze": "at most two new axes",
        "SpaceToDepth": "channels within the blocks",
        "Cast": f"{len(TYPES)} data types",
        "Resize": "whole factors of all axes without a filter",
        "FusedMatMul": "no transposed batches",
        "FusedConv": "activations without parameters",
        "FusedGemm": "activations without parameters",
        "Einsum": f"operands and results of at most {MAX_LABELS} labels, and usual ones of four",
        "ScatterElements": "sums along the first axis",
        "DFT": "real numbers along the axis before the last",
        "STFT": "real numbers with a window",
        "Attention": "no mask",
        "MultiHeadAttention": "no mask and no bias",
    }
    result += [text for op, text in words.items() if op in ops]
    if any(("Gather", 1) in uses and reads_values(rule, name) for name, uses in uses_of(rule).items()):
        result.append("lists of at most three places")
    if any(("Where", 0) in uses and reads_values(rule, name) for name, uses in uses_of(rule).items()):
        result.append("lists of at most three flags")
    if ops & {"MaxPool", "AveragePool"} and _may_pad_by_itself(rule):
        result.append("automatic padding that is not negative")
    kinds = {LISTS.get(use) for uses in uses_of(rule).values() for use in uses}
    if kinds & {"axes", "cut axes", "padded axes"}:
        result.append("axes in ascending order (and the last two turned)")
    return ", ".join(result)


def reads_values(rule: Rule, name: str) -> bool:
    """Return True if the text of a rule contains `value(name)`.

    Args:
      rule: the rule.
      name: the variable of a list of integers.
    """
    return f"value({name})" in rule.text


def _may_pad_by_itself(rule: Rule) -> bool:
    """Return True if a pool of the left side may have the attribute `auto_pad`."""
    pools = [op for op in rule.ops if op.op in ("MaxPool", "AveragePool")]
    return any(
        op.rest is not None or any(n == "auto_pad" and isinstance(v, Bind) for n, v in op.attributes) for op in pools
    )
