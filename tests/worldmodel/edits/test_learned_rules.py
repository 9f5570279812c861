"""Test the learned rules: their patterns, signatures and effects, for matches that were seen, for matches that were
not, and for patterns that occur without a match."""

import json
from collections import Counter

import numpy as np
import pytest

from tests.toys.systems import fitted, onnx_model, played, random_episodes, said, task_of
from worldmodel.edits import learned_rules
from worldmodel.edits.learned_rules import Effect, complete_effect

UNSHARED = """
abs-neg: the sign does not matter
  Abs(y) => Abs(Neg(y))
  if unshared(y) else "others read it"

abs-of-neg: the sign does not matter
  Abs(Neg(x)) => Abs(x)
"""
SIZES = """
neg-apart: two signs
  Neg(Add(x, y)) => Add(Neg(x), Neg(y))
  if size(x) < 20 else "too large"

neg-common: one sign
  Add(Neg(x), Neg(y)) => Neg(Add(x, y))
"""


def patterns_of(model, xfer_id: int):
    return [known for known in model.groundings.rules.patterns if known.pattern.xfer_id == xfer_id]


def test_a_rule_that_requires_a_single_consumer_is_learnt():
    """The rule applies only while a tensor has a single consumer; its pattern alone is present in other states, too."""
    lines = "a = Relu(x)\nb = Abs(a)\nc = Neg(a)\nd = Abs(c)\ne = Relu(z)\nf = Abs(e)"
    task = task_of(onnx_model(lines, {"x": (2, 8), "z": (2, 8)}, "b d f"), UNSHARED)
    assert task.initial.counts.tolist()[0] >= 1
    model = fitted(random_episodes(task, 60, 8), task)
    assert any(known.single_consumers for known in patterns_of(model, 0)) and not any(
        known.single_consumers for known in patterns_of(model, 1)
    )
    predicted = said(model, random_episodes(task, 30, 8, seed=1))
    assert predicted.exact == 1 and len(np.unique(predicted.real_counts[:, 0])) > 1


def test_a_rule_with_a_condition_on_sizes_is_learnt():
    lines = "\n".join(
        f"a{k} = Add(x{k}, x{k})\nb{k} = Abs(x{k})\nc{k} = Add(a{k}, b{k})\nd{k} = Neg(c{k})" for k in range(3)
    )
    task = task_of(onnx_model(lines, {"x0": (2, 8), "x1": (4, 8), "x2": (3, 5)}, "d0 d1 d2"), SIZES)
    model = fitted(random_episodes(task, 60, 8), task)
    assert any(known.refuted for known in patterns_of(model, 0)) and not any(
        known.refuted for known in patterns_of(model, 1)
    )
    predicted = said(model, random_episodes(task, 30, 8, seed=1))
    assert task.initial.counts[0] == 4  # The rule matches two of the three sums, with x and y in either order.
    assert predicted.exact == 1


# -- analogy ---------------------------------------------------------------------------------------

MERGE = """
conv-relu-apart: the sign first
  Conv(Neg(x), w, **a) => Neg(Conv(x, w, **a))

neg-neg: signs cancel
  Neg(Neg(x)) => x
"""


def test_the_rewrite_of_a_convolution_of_another_size_is_predicted_by_analogy():
    """The rule was rewritten on 4 → 6 channels alone. The model predicts the rewrite of 3 → 5 channels with another
    kernel and image, and stays exact in the later steps."""
    lines = "a = Neg(x)\nb = Conv(a, w)\nc = Neg(b)\nd = Neg(y)\ne = Conv(d, v)\nf = Neg(e)"
    shapes = {"x": (1, 4, 8, 8), "y": (1, 3, 6, 6)}
    task = task_of(onnx_model(lines, shapes, "c f", {"w": (6, 4, 3, 3), "v": (5, 3, 1, 1)}), MERGE)
    types = task.initial.graph.types
    small = [types[task.initial.table.location(0, k).bindings["x"]].shape[1] for k in range(2)].index(4)
    model = fitted([played(task, [(0, small), (1, 0)])] * 2, task)
    other = played(task, [(0, 1 - small), (1, 0)])
    predicted = said(model, [other])
    first = predicted.uncertainty[:2].tolist()
    assert first[0] == 0.25 and first[1] in (0.0, 0.25) and predicted.exact == 1
    both = said(model, [played(task, [(0, 0), (0, 0), (1, 0), (1, 0)])])
    assert both.exact == 1 and set(both.uncertainty.tolist()) == {0.0, 0.25}


DIFFERENCE = """
difference: of two
  Add(Neg(x), y) => Sub(y, x)
"""


def test_a_rewrite_of_a_sum_is_predicted_with_its_operands_exchanged():
    """Only the sum whose first operand is the negated one was ever rewritten."""
    lines = "a = Neg(x)\nb = Add(a, y)\nc = Abs(b)\nd = Neg(u)\ne = Add(v, d)\nf = Abs(e)"
    task = task_of(onnx_model(lines, {"x": (2, 8), "y": (2, 8), "u": (3, 5), "v": (3, 5)}, "c f"), DIFFERENCE)
    types, table = task.initial.graph.types, task.initial.table
    first = [types[table.location(0, k).bindings["x"]].shape for k in range(2)].index((2, 8))
    model = fitted([played(task, [(0, first)])] * 2, task)
    assert len(patterns_of(model, 0)) == 2
    predicted = said(model, [played(task, [(0, 1 - first), (0, 0)])])
    assert predicted.exact == 1 and predicted.uncertainty.max() <= 0.5


def test_new_signatures_are_predicted_exactly_for_rules_without_refuted_matches():
    lines = "\n".join(f"a{k} = Abs(x{k})\nb{k} = Abs(x{k})\nc{k} = Add(a{k}, b{k})\nd{k} = Neg(c{k})" for k in range(2))
    trained = task_of(onnx_model(lines, {"x0": (2, 8), "x1": (3, 5)}, "d0 d1"), SIZES)
    wide = task_of(onnx_model(lines, {"x0": (2, 3), "x1": (2, 2)}, "d0 d1"), SIZES)
    model = fitted(random_episodes(trained, 10, 6), trained)
    predicted = said(model, random_episodes(wide, 10, 6))
    assert predicted.exact == 1 and 0 < predicted.uncertainty.max() <= 0.5


def test_the_most_complete_logged_effect_is_learnt_even_if_it_is_rare():
    """A logged effect lacks a part that no node read. The complete effect is therefore not always the most frequent
    one."""
    one, two = Effect((0,), ((1, (0,), (1,)),), (), ()), Effect((0,), ((1, (0,), (1,)), (1, (0,), (2,))), (), ())
    assert complete_effect(Counter({one: 9, two: 1})) == two
    other = two._replace(removed=())
    assert complete_effect(Counter({two: 1, other: 2})) == other


@pytest.mark.parametrize("rules", [UNSHARED, SIZES, MERGE])
def test_learned_rules_survive_a_json_round_trip(rules):
    lines = "a = Neg(x)\nb = Abs(a)\nc = Neg(x)\nd = Add(a, c)\ne = Neg(d)"
    task = task_of(onnx_model(lines, {"x": (2, 8)}, "b e"), rules)
    learnt = fitted(random_episodes(task, 20, 8), task).groundings.rules
    learnt.symmetric = frozenset({0, 2})
    back = learned_rules.rules_from_json(json.loads(json.dumps(learned_rules.rules_to_json(learnt))))
    assert back.symmetric == learnt.symmetric and back.op_types == learnt.op_types
    assert (
        learned_rules.rules_to_json(back) == learned_rules.rules_to_json(learnt)
        and back.numbers == learnt.numbers
        and back.uses == learnt.uses
    )
    for one, other in zip(learnt.patterns, back.patterns, strict=True):
        assert (one.pattern, one.effects, one.refuted) == (other.pattern, other.effects, other.refuted)
        assert one.single_consumers == other.single_consumers
