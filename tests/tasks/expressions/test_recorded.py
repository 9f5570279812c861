"""Test the recorded programs and sequences: each replays to its recorded cost and still computes the same function."""

from collections import Counter

import pytest

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.cost import cost_of
from rlflow.tasks.expressions.evaluate import TOLERANCE, largest_difference, run
from rlflow.tasks.expressions.recorded import recorded_names, recorded_program, recorded_sequences, recorded_sets
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import parse_expression, parse_programs, program_text

SEQUENCES = recorded_sequences("sequences") + recorded_sequences("chains")


def replayed(one):
    """Return (last state, costs of all states) of a recorded sequence."""
    task = ExpressionTask(recorded_program(one.model), rules_of(one.rules), 10_000)
    state, costs = task.initial, [task.initial.objective]
    for rule, index in one.steps:
        state = state.apply(task.number[rule], index)
        costs.append(state.objective)
    return state, costs


@pytest.mark.parametrize("name", recorded_sets())
def test_programs_print_parse_and_evaluate(name):
    for model in recorded_names(name):
        program = recorded_program(model)
        again = list(parse_programs(program_text(program)).values())[-1]
        assert again.expr == program.expr and again.name == program.name
        assert run(program.expr, 0) is not None, model


def test_at_least_a_thousand_sequences_are_recorded_and_none_raises_the_cost():
    assert len(SEQUENCES) >= 1000 and min(one.before - one.after for one in SEQUENCES) >= 0
    assert Counter(one.source for one in SEQUENCES)["rlo"] > 100


def check_replay(sequences):
    for one in sequences:
        state, costs = replayed(one)
        assert (costs[0], costs[-1]) == (one.before, one.after), one.model
        if "(" not in one.model:
            assert largest_difference(recorded_program(one.model).expr, state.expr, seeds=1) < TOLERANCE


def test_sequences_replay_to_their_recorded_costs():
    check_replay(SEQUENCES[::12])


@pytest.mark.nightly
def test_all_sequences_replay_to_their_recorded_costs():
    check_replay(SEQUENCES)


def test_gemm_crosses_its_valley():
    """The recorded path falls from 31,904.4 to 30,501.7 in 108 steps and crosses a peak of 7,512,201.7."""
    known = [one for one in SEQUENCES if one.model == "blas_test/gemm" and one.rules == "ml-no-bind"]
    best = min(known, key=lambda one: one.after)
    costs = replayed(best)[1]
    assert (costs[0], costs[-1], max(costs)) == (319_044_000, 305_017_000, 75_122_017_000) and len(best.steps) == 108


def test_the_recorded_best_costs_sum_to_the_totals_of_the_repository():
    """The best costs of blas_test sum to 520,361.9 without binding rules, and to 484,814.9 with them."""
    before = {name: cost_of(recorded_program(name).expr) for name in recorded_names("blas_test")}
    assert sum(before.values()) == 157_651_065_000
    totals = {}
    for rules in ("ml-no-bind", "ml"):
        best = dict(before)
        for one in SEQUENCES:
            if one.rules == rules and one.model in best:
                best[one.model] = min(best[one.model], one.after)
        totals[rules] = sum(best.values())
    assert totals == {"ml-no-bind": 5_203_619_000, "ml": 4_848_149_000}


@pytest.mark.parametrize("name, reason", [
    ("blas_tes/gemm", "did you mean 'blas_test'"), ("blas_test/gemmm", "did you mean 'gemm'"), ("nothing", "no file"),
])  # fmt: skip
def test_unknown_programs_are_refused(name, reason):
    with pytest.raises(RLFlowError, match=reason):
        recorded_program(name)


def test_a_recorded_expression_is_found_by_its_own_text():
    chain = next(one for one in SEQUENCES if "(" in one.model)
    assert recorded_program(chain.model).expr == parse_expression(chain.model).expr
