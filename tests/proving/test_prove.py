"""Test the prover: it proves true rules, refutes false ones, and has a proof of every shipped rule's present text."""

import pytest

from rlflow.proving.prove import prove, prove_rule
from rlflow.rules.language import families, load_rules, parse
from rlflow.rules.proofs import load_proofs, proof_of, store_proofs, text_hash
from tests.proving.test_mutations import MUTATIONS, mutated
from tests.suite import at_night, slow

TRUE = ["relu-relu", "concat-of-split", "conv-batchnorm", "matmul-associates", "transpose-nothing"]
TRUE += slow("gelu", "softmax")
# These texts are wrong, but the planner requires equal shapes, and then both sides are equal.
EQUAL_ALL_THE_SAME = {
    ("split-split-second", "[*value(t), value(s)[0]]"),
    ("squeeze-unsqueeze", "if len(value(s)) == len(value(t))"),
}


def shipped(name: str):
    """Return the shipped rule with this name."""
    rules = load_rules(families())
    return rules[rules.index(name)]


@pytest.mark.parametrize("name", TRUE)
def test_a_true_rule_is_proved_for_all_shapes(name):
    assert prove_rule(shipped(name)).proof == "all-shapes"


BORDERS = [  # limits of the definitions: a backward step, an invalid flag, more than two groups
    ("slice-nothing", "k == 1", "k <= 1"),
    ("softmax-apart", "[i], keepdims=1)))", "[i], keepdims=2)))"),
    *slow(("conv-groups-by-two", ", group=g // 2", "")),
]
QUICK = {"batchnorm-as-mul-add", "gelu", "softmax-of-transpose"}
FALSE = [mutation for mutation in MUTATIONS[::4] if mutation[0] in at_night({name for name, *_ in MUTATIONS}, QUICK)]


@pytest.mark.parametrize("name, old, new", [*FALSE, *BORDERS], ids=lambda text: text[:30])
def test_a_false_rule_is_not_proved(name, old, new):
    rules = mutated(name, old, new)
    proof = prove_rule(rules[rules.index(name)])
    assert (proof.proof == "all-shapes") == ((name, new) in EQUAL_ALL_THE_SAME), proof


@pytest.mark.parametrize(
    "text",
    [
        "Identity(x) => Neg(x)",
        "y1, y2 = Split(Concat(x, z, axis=i), s, axis=i)\n    => y1 = z\n       y2 = x\n"
        "  if value(s) == (dim(x, i), dim(z, i))",
        "Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=compose(q, p))",
        "MatMul(x, y) => MatMul(y, x)",
        "Mul(Add(x, c), d) => Add(Mul(x, d), c)",
    ],
)
def test_a_false_rule_is_refuted_by_numbers(text):
    (rule,) = parse(f"false: wrong\n  {text}\n", "changed")
    proof = prove_rule(rule)
    assert proof.proof == "refuted" and " left " in proof.how and " right " in proof.how, proof


@pytest.mark.parametrize(
    "text",
    [
        "Add(x, y) => Add(Add(x, y), Sub(Log(x), Log(x)))",
        "Add(x, y) => Sub(Add(Add(x, y), Sqrt(x)), Sqrt(x))",
        "Log(Mul(x, y)) => Add(Log(x), Log(y))",
        "Mul(x, y) => Mul(Mul(x, y), Div(y, y))",
    ],
)
def test_the_right_side_takes_no_logarithm_root_or_inverse_that_may_be_undefined(text):
    (rule,) = parse(f"false: undefined for some numbers\n  {text}\n", "changed")
    assert prove_rule(rule).proof in ("unproved", "refuted")


@pytest.mark.parametrize(
    "text",
    [
        'Pad(x, p, mode="edge") => Pad(x, p, mode="wrap")',
        'Pad(x, p, mode="reflect") => Pad(x, p)',
        'Pad(Pad(x, p, mode="wrap"), q, mode="wrap")\n'
        '    => Pad(x, [value(p)[k] + value(q)[k] for k in range(2 * rank(x))], mode="wrap")\n'
        "  if min(value(p)) >= 0 and min(value(q)) >= 0",
    ],
)
def test_a_false_rule_about_the_modes_of_pad_is_refuted(text):
    (rule,) = parse(f"false: another mode\n  {text}\n", "changed")
    assert prove_rule(rule).proof == "refuted"


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_a_true_rule_about_a_mode_of_pad_is_proved(mode):
    rule = f'Pad(Relu(x), p, mode="{mode}") => Relu(Pad(x, p, mode="{mode}"))'
    (rule,) = parse(f"true: elements one by one\n  {rule}\n", "changed")
    assert prove_rule(rule).proof == "all-shapes"


def test_a_rule_that_never_fires_is_not_proved():
    (rule,) = parse("never: no case\n  Relu(x) => Neg(x)\n  if rank(x) < 0\n", "changed")
    assert prove_rule(rule).proof == "unproved"


def test_an_operator_without_definition_is_not_proved():
    (rule,) = parse("strange: unknown\n  Relu(x) => Strange(x)\n", "changed")
    assert prove_rule(rule).proof == "unproved"


def test_a_changed_rule_has_no_proof(tmp_path):
    rule = shipped("identity")
    store_proofs([rule], prove([rule]), tmp_path / "proofs.json")
    known = load_proofs(tmp_path / "proofs.json")
    assert proof_of(rule, known)["proof"] == "all-shapes"
    (other,) = parse("identity: a copy that nobody needs\n  Identity(x) => Relu(x)\n", "changed")
    assert text_hash(other) != text_hash(rule) and proof_of(other, known) is None


def test_no_rule_is_shipped_without_a_proof():
    proofs = load_proofs()
    result = {rule.name: proof_of(rule, proofs) for rule in load_rules(families())}
    assert not [name for name, record in result.items() if record is None]
    assert {record["proof"] for record in result.values()} == {"all-shapes", "bounded"}
    assert sum(record["proof"] == "all-shapes" for record in result.values()) >= 0.7 * len(result)
