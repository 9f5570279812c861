"""Test the generator: it finds known rules, drops implied ones, and writes the same bytes each time."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.proving.generator import selection
from rlflow.proving.generator.derive import derivable
from rlflow.proving.generator.enumerate import World, enumerate_rules, paying
from rlflow.proving.generator.generalise import generalise
from rlflow.proving.generator.operators import PRIME, Misfit, Node, centred, label, operators, outputs
from rlflow.rules.language import parse
from rlflow.rules.proofs import Proof
from rlflow.rules.rule import RuleSet
from tests.suite import at_night, slow

ROOT = Path(__file__).parents[3]
ADD, MATMUL, RELU, TRANSPOSE = label("Add"), label("MatMul"), label("Relu"), label("Transpose", perm=(1, 0))
CONCAT, SPLIT = label("Concat", axis=1), label("Split", axis=1)
SQUARES = (("a", (2, 2)), ("b", (2, 2)), ("c", (2, 2)))
PRODUCTS = World("products", (*SQUARES, ("d", (2, 2))), (ADD, MATMUL))
CLAMPS = World("clamps", SQUARES[:2], (RELU, TRANSPOSE, CONCAT))
MERGES = World("merges", SQUARES, (MATMUL, CONCAT, SPLIT))


NOTHING = RuleSet(())  # no known rules


def believed(rules, workers):
    """Return a proof of every rule at once; this function replaces the slow prover."""
    return [Proof(rule.name, "all-shapes", "", 0.0, "") for rule in rules]


@pytest.fixture(scope="module", autouse=True)
def credulous():
    """Replace the prover by one that accepts every rule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "prove", believed)
        yield


def enumerated(*arguments, **options):
    """Enumerate rules with no rules known before."""
    return enumerate_rules(*arguments, known=NOTHING, **options)


@pytest.fixture(scope="module")
def reports(credulous):
    """Return the report of each world, by name; "merges", the slowest, at night only."""
    return {world.name: enumerated(3, [world]) for world in (PRODUCTS, CLAMPS, *at_night((MERGES,), ()))}


EXPECTED = [
    ("products", "MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))"),
    ("products", "Add(MatMul(x, y), MatMul(x, z)) => MatMul(x, Add(y, z))"),
    ("products", "Add(MatMul(x, y), MatMul(z, y)) => MatMul(Add(x, z), y)"),
    ("clamps", "Relu(Relu(x)) => Relu(x)"),
    ("clamps", "Relu(Concat(x, y, axis=i)) => Concat(Relu(x), Relu(y), axis=i)"),
    ("clamps", "Concat(Relu(x), Relu(y), axis=i) => Relu(Concat(x, y, axis=i))"),
    ("clamps", "Relu(Transpose(x, perm=p)) => Transpose(Relu(x), perm=p)"),
    *slow(("merges", "y1 = MatMul(x, y) y2 = MatMul(x, z) => y1, y2 = Split(MatMul(x, Concat(y, z, axis=rank(y) - 1)), "
     "[dim(y, -1), dim(z, -1)], axis=rank(x) - 1) if constant(y, z)")),
]  # fmt: skip


@pytest.mark.parametrize("world, equation", EXPECTED, ids=lambda text: text[:40])
def test_known_equalities_are_enumerated(reports, world, equation):
    assert equation in " ".join(reports[world].rules.split())


def test_rules_that_follow_from_other_rules_are_left_out(reports):
    rules = parse(reports["products"].rules, "products")
    assert len({rule.text for rule in rules}) == len(rules)
    # Sums associate; products associate and distribute on both sides, in both directions.
    assert len(rules) == 7
    verdicts = reports["products"].worlds[0]["verdicts"]
    assert verdicts["instance of a rule"] > 5 and verdicts["kept"] == 4


def test_every_enumerated_rule_can_be_parsed(reports):
    for report in reports.values():
        assert report.finished and parse(report.rules, "generated")


@pytest.mark.nightly
def test_the_result_depends_neither_on_the_hash_seed_nor_on_the_number_of_workers(reports, tmp_path):
    code = (
        "from tests.proving.generator.test_enumerate import *\n"
        "selection.prove = believed\n"
        "if __name__ == '__main__': print(enumerated(3, [PRODUCTS, CLAMPS], workers=2).rules, end='')"
    )
    script = tmp_path / "enumerate_twice.py"
    script.write_text(code)
    environment = {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == enumerated(3, [PRODUCTS, CLAMPS]).rules, done.stderr


def test_an_interrupted_enumeration_resumes_to_the_same_result(reports, tmp_path, monkeypatch):
    first = enumerated(3, [CLAMPS], folder=tmp_path, seconds=-1.0)
    assert not first.finished and first.rules == ""
    state = tmp_path / "clamps-3.json"
    assert not json.loads(state.read_text())["finished"]
    monkeypatch.setattr("rlflow.proving.generator.enumerate.now", _ticks())
    halfway = enumerated(3, [CLAMPS], folder=tmp_path, seconds=6.0)
    assert not halfway.finished and 0 < len(json.loads(state.read_text())["kept"]) < 5
    monkeypatch.undo()
    assert enumerated(3, [CLAMPS], folder=tmp_path).rules == reports["clamps"].rules


def _ticks():
    """Return a clock that advances by one second per reading."""
    seconds = iter(range(10**6))
    return lambda: float(next(seconds))


def test_the_checkpoint_of_another_world_is_refused(tmp_path):
    enumerated(2, [CLAMPS], folder=tmp_path, seconds=-1.0)
    other = World("clamps", SQUARES[:2], (RELU, TRANSPOSE))
    with pytest.raises(RLFlowError, match="another world"):
        enumerated(2, [other], folder=tmp_path)


# -- conditions ------------------------------------------------------------------------------------


def test_a_condition_separates_the_cases_in_which_an_equality_holds():
    product = Node(MATMUL, ("a", "b"))
    source = (Node(TRANSPOSE, (product,)),)
    target = (Node(MATMUL, (Node(TRANSPOSE, ("b",)), Node(TRANSPOSE, ("a",)))),)
    pattern = generalise(source, target, dict(SQUARES), ())
    assert pattern.conditions == ("p == (*range(len(p) - 2), len(p) - 1, len(p) - 2)",)


def test_merged_convolutions_are_separated_from_grouped_ones():
    conv, kernels = label("Conv"), label("Concat", axis=0)
    whole = Node(conv, ("a", Node(kernels, ("u", "v"))))
    source = (Node(SPLIT, (whole,)), Node(SPLIT, (whole,), 1))
    target = (Node(conv, ("a", "u")), Node(conv, ("a", "v")))
    pattern = generalise(source, target, {"a": (1, 2, 3, 3), "u": (2, 2, 1, 1), "v": (2, 2, 1, 1)}, ())
    assert 'attributes(a, "group") is None' in pattern.conditions


def test_an_equality_of_the_enumerated_shapes_alone_gives_no_unconditional_rule():
    """Check a product that commutes only because its operands are single numbers."""
    source, target = (Node(MATMUL, ("a", "b")),), (Node(MATMUL, ("b", "a")),)
    assert generalise(source, target, {"a": (1, 1), "b": (1, 1)}, ()) is None or generalise(
        source, target, {"a": (1, 1), "b": (1, 1)}, ()
    ).conditions


def test_a_direction_with_more_operators_needs_weights():
    two, three = Node(MATMUL, ("a", Node(ADD, ("b", "c")))), Node(
        ADD, (Node(MATMUL, ("a", "b")), Node(MATMUL, ("a", "c")))
    )
    assert paying((three,), (two,)) == ()
    assert paying((two,), (three,)) == ("a", "b")
    assert paying((Node(RELU, ("a",)),), (Node(RELU, (Node(RELU, ("a",)),)),)) is None


# -- derivation ------------------------------------------------------------------------------------


def test_an_equality_is_derived_only_from_sufficient_other_equalities():
    def add(*terms):
        return Node(ADD, terms)

    associative = (add(add("a", "b"), "c"), add("a", add("b", "c")))
    goal = add(add("a", "b"), add("c", "d")), add("d", add("c", add("b", "a")))
    assert derivable(*goal, [associative])
    assert not derivable(*goal, [])
    assert not derivable(add("a", "b"), add("a", "a"), [associative])


def test_an_operator_shared_by_two_terms_is_counted_once():
    product = Node(MATMUL, ("a", "b"))
    assert len(operators(Node(ADD, (product, product)))) == 2


# -- arithmetic ------------------------------------------------------------------------------------


def test_evaluated_convolutions_equal_the_convolutions_of_onnx():
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    for attributes in ({}, dict(group=2), dict(pads=(1, 0, 2, 1), strides=(2, 1)), dict(dilations=(2, 1))):
        x, w = rng.integers(-5, 6, (1, 2, 4, 6, 5)), rng.integers(-5, 6, (1, 4, 4 // attributes.get("group", 1), 3, 2))
        node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
        wanted = ReferenceEvaluator(node).run(None, {"x": x[0].astype(np.float64), "w": w[0].astype(np.float64)})[0]
        assert np.array_equal(outputs(label("Conv", **attributes), [x, w])[0][0], wanted)


def test_means_are_exact_and_operands_that_do_not_fit_raise_an_error():
    x = np.arange(6).reshape(1, 2, 3)
    mean = outputs(label("ReduceMean", axis=1), [x])[0]
    assert np.array_equal(centred(mean * 3), [[[3], [12]]]) and abs(mean).max() < PRIME
    with pytest.raises(Misfit):
        outputs(MATMUL, [x, x])
