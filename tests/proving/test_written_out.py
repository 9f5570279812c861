"""Check the proofs of rules with matrices of numbers, in which sums over known sizes are written out."""

import pytest

from rlflow.proving.prove import prove_rule
from rlflow.rules.language import parse
from tests.proving.test_mutations import mutated

# A product with a matrix and its inverse; x has two rows.
INVERSE = """inverse: nothing changes
  Identity(x) => MatMul(array([[1, 1], [0, 1]], x), MatMul(array([[1, -1], [0, 1]], x), x))
  if shape(x)[:1] == (2,) and rank(x) == 2 else "x has not two rows"
"""
# A product with a matrix of factors per position in blocks of 2 × 2 positions.
BLOCKS = """blocks: a channel per position of a block
  Identity(x) => DepthToSpace(Reshape(z, [0, 4 * dim(x, 1), -1, 0]), blocksize=2)
  let y = Reshape(SpaceToDepth(x, blocksize=2), [0, 4, -1, 0])
  let z = Conv(y, array([[[[{0} if i == k else 0]] for i in range(4)] for k in range(4)], x))
  if rank(x) == 4 and dim(x, 2) > 1 and dim(x, 3) > 1 else "not an image of blocks"
"""


@pytest.mark.parametrize("text", [INVERSE, BLOCKS.format(1)], ids=["inverse", "blocks"])
def test_a_true_rule_is_proved_for_all_shapes(text):
    (rule,) = parse(text, "tried")
    proof = prove_rule(rule)
    assert proof.proof == "all-shapes", proof


@pytest.mark.parametrize("text", [INVERSE.replace("-1", "-2"), BLOCKS.format(2)], ids=["inverse", "blocks"])
def test_a_false_rule_is_refuted_by_numbers(text):
    (rule,) = parse(text, "tried")
    proof = prove_rule(rule)
    assert proof.proof == "refuted" and "left element" in proof.how, proof


@pytest.mark.nightly
@pytest.mark.parametrize(
    "old, new",
    [
        ("((1, 0, -1, 0), (0, 1, 1, 0)", "((1, 0, -1, 0), (0, 1, 2, 0)"),
        ("pads=[p[0], 0, p[2] + 1, 0]", "pads=[p[2], 0, p[0] + 1, 0]"),
    ],
)
def test_a_wrong_transform_is_refuted_by_numbers(old, new):
    rules = mutated("conv-as-winograd-2", old, new)
    proof = prove_rule(rules[rules.index("conv-as-winograd-2")])
    assert proof.proof == "refuted" and "left element" in proof.how, proof
