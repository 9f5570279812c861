"""Check the checks of the rules: a rule that is broken on purpose must fail its own cases.

Each line breaks the text of one shipped rule: it drops a condition, loses a factor, or swaps operands or axes.
"""

from rlflow.common.errors import RLFlowError
from rlflow.rules.language import RULES_FOLDER, load_rules, parse
from rlflow.rules.rule import RuleSet
from tests.rules.cases import CASES
from tests.rules.instances import check
from tests.suite import at_night, check_each

FAMILY_OF = {rule.name: rule.family for rule in load_rules()}
MUTATIONS = [
    # (rule, text inside the rule, its replacement)
    ("conv-batchnorm", "Sub(b, Mul(m, k))", "Sub(b, m)"),
    ("conv-batchnorm", "Div(s, Sqrt(Add(v, full(e, v))))", "Div(s, Add(v, full(e, v)))"),
    ("conv-batchnorm", "Reshape(k, [-1] + [1] * (rank(w) - 1))", "Reshape(k, [1, -1] + [1] * (rank(w) - 2))"),
    ("conv-bias-batchnorm", "Sub(c, m)", "Sub(m, c)"),
    ("conv-mul", 'if per_output_channel(k, w) else "the factor varies along more than the channels"', "if rank(w) > 0"),
    ("conv-bias-mul", "Mul(c, Reshape(k, [-1]))", "c"),
    ("conv-add", " and size(k) == dim(w, 0)", ""),
    ("batchnorm-mul", "Mul(b, Reshape(k, [-1]))", "b"),
    ("batchnorm-as-mul-add", "Sub(b, Mul(m, k))", "Add(b, Mul(m, k))"),
    ("mul-add-as-batchnorm", "epsilon=0.0", "epsilon=0.1"),
    ("low-rank-branch", "MatMul(u, v)", "u"),
    ("gemm-gemm", "Gemm(w, u, transA=i, transB=j)", "Gemm(w, u, transA=j, transB=i)"),
    ("einsum-as-matmul", "perm=positions(l[2], [*s, *c[:-1], *r, *c[-1:]])", "perm=range(len(l[2]))"),
    ("zero-filters-with-bias", "full(1, b, p)", "full(0, b, p)"),
    ("zero-filters-with-bias", "full(1 / p, b)", "full(1, b)"),
    ("zero-columns-bias-gelu", "Mul(Gather(b, zeros(w, 1), axis=0), 0.0)", "Gather(b, zeros(w, 1), axis=0)"),
    ("zero-columns-of-gemm", "let l = 1 if j else 0", "let l = 1 if i else 0"),
    ("concat-conv-merge", 'if attributes(a, "group", 1) == 1 else "the convolutions are grouped"', "if rank(x) > 0"),
    ("conv-merge", 'if attributes(a, "group", 1) == 1 else "the convolutions are grouped"', "if rank(x) > 0"),
    ("conv-merge", "Concat(w, u, axis=0)", "Concat(u, w, axis=0)"),
    ("conv-bias-merge", "[dim(w, 0), dim(u, 0)]", "[dim(u, 0), dim(w, 0)]"),
    ("conv-enlarge", "[0, 0, 1, 1, 0, 0, 1, 1]", "[0, 0, 2, 2, 0, 0, 0, 0]"),
    ("conv-enlarge", 'if q == tuple(i + 1 for i in p) else "the paddings do not differ by one"', "if rank(x) > 0"),
    ("conv-averagepool", ' and attributes(a, "pads") is None and', " and"),
    ("conv-bias-averagepool", ' or attributes(p, "count_include_pad", 0) == 0', " or True"),
    ("concat-batchnorm", "Concat(m, n, axis=0)", "Concat(n, m, axis=0)"),
    ("split-of-concat", "y1 = x\n       y2 = z", "y1 = z\n       y2 = x"),
    ("split-split-second", "[value(s)[0], *value(t)]", "[*value(t), value(s)[0]]"),
    ("relu-split", "y3, y4 = Split(Relu(x)", "y4, y3 = Split(Relu(x)"),
    ("mul-factored", "Mul(Add(x, y), d)", "Add(x, y)"),
    ("mul-distributes", "Mul(c, d)", "c"),
    ("div-by-constant", 'if is_float(c) else "integers do not divide exactly"', "if rank(c) > -1"),
    ("relu-maxpool", 'if attributes(a, "dilations") is None else', "if True else"),
    ("layer-normalization", "and value(q) in ((-1,), (rank(x) - 1,)) else", "else"),
    ("layer-normalization", "epsilon=scalar(e)", "epsilon=0.001"),
    ("gelu", "Gelu(x)", 'Gelu(x, approximate="tanh")'),
    ("transpose-transpose", "compose(p, q)", "compose(q, p)"),
    ("transpose-split", "inverse(p)[i]", "p[i]"),
    ("reshape-reshape", "if 0 not in value(t)", "if len(value(t)) > -1"),
    ("squeeze-unsqueeze", "if value(s) == value(t)", "if len(value(s)) == len(value(t))"),
    ("matmul-merge", "Concat(w, u, axis=1)", "Concat(u, w, axis=1)"),
    ("gemm-merge", 'let k = 0 if attributes(a, "transB", 0) else 1', "let k = 1"),
    ("conv-of-add", ' and attributes(a, "auto_pad") is None', ""),
    ("conv-of-mul", "[1, -1] + [1]", "[-1, 1] + [1]"),
    ("convtranspose-batchnorm", "[1, -1] + [1]", "[-1, 1] + [1]"),
    ("conv-bias-conv-pointwise", "Add(c, MatMul(Reshape(u, [dim(u, 0), -1]), b))", "Add(c, b)"),
    ("conv-of-concat", "[n], [n + dim(y, 1)], [1]", "[0], [dim(y, 1)], [1]"),
    ("conv-of-blocks", "perm=(0, 3, 5, 1, 2, 4)", "perm=(0, 1, 3, 5, 2, 4)"),
    ("conv-groups-by-two", "[0, 0, 0, i] + zeros + [0, 0, 0, 0] + zeros",
        "[0, 0, 0, 0] + zeros + [0, 0, 0, i] + zeros"),
    ("concat-conv-as-groups", "Concat(w, u, axis=0)", "Concat(u, w, axis=0)"),
    ("conv-of-gather", "inverse(value(i))", "value(i)"),
    ("pad-averagepool", "if c == 1 or max(q) == 0 else", "if rank(x) > 0 else"),
    ("pad-maxpool", "max(value(p)) < min(k) and", "True and"),
    ("depthwise-conv-of-slice", "axes(t, rank(x)) == (1,) and value(s) == (0,) and", ""),
    ("maxpool-joined", "[s[0], t[1]]", "[t[0], s[1]]"),
    ("averagepool-add", 'attributes(a, "pads") is None and', "True and"),
    ("slice-of-matmul-rows", "(rank(x) - 2,)", "(rank(x) - 1,)"),
    ("slice-of-concat-second", "value(e)[0] - dim(x, i)", "value(e)[0]"),
    ("slice-of-softmax", "if i not in axes(t, rank(x)) else", "if rank(x) > 0 else"),
    ("softmax-of-transpose", "axis=p[i]", "axis=i"),
    ("transpose-of-softmax", "inverse(p)[i]", "p[i]"),
    ("matmul-of-transposes", "MatMul(y, x)", "MatMul(x, y)"),
    ("gemm-of-mul", "[1, -1] if t else [-1, 1]", "[-1, 1] if t else [1, -1]"),
    ("mean-as-sum", "full(1 / prod(", "full(prod("),
    ("clip-clip", "scalar(a) <= scalar(d) and scalar(c) <= scalar(b) and", ""),
    ("softmax", " and axes(q, rank(x)) == axes(r, rank(x))", ""),
    ("gelu-tanh", 'Gelu(x, approximate="tanh")', "Gelu(x)"),
    ("mul-into-weight", "or shape(k) == shape(w)[1:] and rank(w) == 2", "or shape(k)[0] == dim(w, 0)"),
    ("reshape-without-zeros", 'if 0 not in value(s) else "a size is 0"', "if len(value(s)) > 0"),
    ("reshape-to-known", 'if not constant(s) else "the shape is a constant"', "if rank(x) > 0"),
    ("transpose-of-stacked", "perm=(0, 1, 3, 2)", "perm=(1, 0, 3, 2)"),
    ("gather-known-place", "value(i)[0]", "0"),
    ("where-of-expand-first", "Where(c, x, y)", "Where(c, y, x)"),
    ("where-all", "if all(value(c))", "if len(value(c)) > 0"),
    ("where-none", "if not any(value(c))", "if len(value(c)) > 0"),
    ("conv-as-winograd-4", "[7 * k, 28 * k]", "[8 * k, 27 * k]"),
    ("conv-as-winograd-4", "(0, 4, -4, -1, 1, 0)", "(0, 4, -4, 1, 1, 0)"),
    ("conv-as-winograd-2", "pads=[0, p[1], 0, p[3] + 1]", "pads=[0, p[3], 0, p[1] + 1]"),
    ("add-into-gemm", 'if attributes(a, "beta") is None and attributes(a, "alpha") is None', "if rank(x) == 2"),
]  # fmt: skip


def mutated(rule: str, old: str, new: str) -> RuleSet:
    """Return the shipped rules of one family, with a text replaced inside the named rule."""
    family = FAMILY_OF[rule]
    text = (RULES_FOLDER / f"{family}.rules").read_text()
    start = text.index(f"\n{rule}:")
    stop = text.find("\n\n", start) if "\n\n" in text[start:] else len(text)
    block = text[start:stop]
    assert old in block, f"'{old}' does not occur in {rule}"
    return RuleSet(tuple(parse(text[:start] + block.replace(old, new) + text[stop:], family)))


def is_caught(mutation: tuple[str, str, str]) -> None:
    rule, old, new = mutation
    rules = mutated(rule, old, new)
    for case in CASES:
        if case.rule in (rule, f"{rule}-inverse"):
            try:
                check(case, rules)
            except (AssertionError, RLFlowError):
                return  # one case suffices
    raise AssertionError("no case fails")


def test_a_broken_rule_is_caught():
    check_each(is_caught, MUTATIONS[:: at_night(1, 3)])
