"""Test pruning: rewrites that do not pay are taken back, and the gain of each remaining group is listed."""

import math

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import graph_spread
from rlflow.env.state import Task
from rlflow.optimisation import ablation as module
from rlflow.optimisation.ablation import OTHERS, Rewrites, groups, measure_shares, measured_families, pruned, shares
from rlflow.optimisation.candidates import Candidate, follow
from rlflow.search.descents import greedy
from tests.suite import at_night
from tests.toys.chains import OPS, random_task, toy_task
from tests.toys.tiny import tiny_task

COSTS = {"Relu": 100, "Abs": 90, "Exp": 500, "Tanh": 400, "Neg": 600}
RULES = "Relu(x) => Abs(x)\nExp(x) => Tanh(x)\nExp(x) => Neg(x)\nNeg(x) => Tanh(x)"
ABS, TANH, NEG, NEG_TANH = range(4)


def candidate(task: Task, actions: list[tuple[int, int]]) -> Candidate:
    return Candidate("search", follow(task, actions), actions, 0, 0.0)


def chain(off: int) -> Task:
    return toy_task(["Relu", "Exp"] * 3, RULES, COSTS, off=dict.fromkeys(COSTS, off))


def walk(task: Task, steps: int, seed: int) -> list[tuple[int, int]]:
    """Return random valid actions."""
    rng, state, actions = np.random.default_rng(seed), task.initial, []
    while len(actions) < steps and len(valid := state.valid_actions()[:-1]):
        actions.append(tuple(map(int, valid[rng.integers(len(valid))])))
        state = state.apply(*actions[-1])
    return actions


def left(task: Task, actions, seconds: float = 60.0) -> list[tuple[int, int]]:
    result = pruned(task, candidate(task, actions), seconds)
    assert follow(task, result.actions).hash == result.state.hash
    return result.actions


# Three Relu and three Exp: a group gains 30 or 300; the uncertainty of two groups of three is 3 · off · sqrt(2).
@pytest.mark.parametrize("off, kept", [(6, {ABS, TANH}), (8, {TANH}), (69, {TANH}), (71, set())])
def test_a_group_of_rewrites_stays_if_its_gain_exceeds_its_uncertainty(off, kept):
    actions = left(chain(off), [(ABS, 0), (TANH, 1), (ABS, 1), (TANH, 0), (ABS, 0), (TANH, 0)])
    assert {xfer_id for xfer_id, _ in actions} == kept and len(actions) == 3 * len(kept)


def test_needed_rewrites_stay_and_useless_detours_are_pruned():
    task = chain(1)
    actions = [(NEG, 0), (NEG_TANH, 0), (ABS, 0)]  # the costs change by +100, -200 and -10
    assert left(task, actions) == actions
    assert left(task, [(NEG, 0), (NEG, 0), (NEG_TANH, 0), (ABS, 0)]) == [(ABS, 0)]  # both NEG belong to one group
    task = toy_task(["Relu", "Exp"], RULES, COSTS)
    assert left(task, [(NEG, 0), (ABS, 0)]) == [(ABS, 0)]


@pytest.mark.parametrize("seed", range(at_night(8, 2)))
def test_pruning_raises_the_estimate_by_no_more_than_its_uncertainty(seed):
    task = random_task(seed, length=12)
    rng = np.random.default_rng(seed)
    task.cost.off.update({op: int(rng.integers(0, 8)) for op in OPS})
    actions = walk(task, 15, seed)
    before, kept = follow(task, actions), left(task, actions)
    after = follow(task, kept)
    off = (graph_spread(task.cost, after.graph) - graph_spread(task.cost, before.graph)).ps
    assert len(kept) <= len(actions) and after.objective <= before.objective + off


@pytest.mark.parametrize("off", [0, 8])
def test_removing_any_remaining_group_raises_the_estimate_by_more_than_its_uncertainty(off):
    """Compare with the pruned graph, and with the graph before pruning: a group stays if either rise is certain."""
    seeds, compared = range(at_night(12, 3)), 0
    for seed in seeds:
        task = random_task(seed, length=12)
        rng = np.random.default_rng(seed)
        task.cost.off.update({op: int(rng.integers(0, off + 1)) for op in OPS})
        actions = walk(task, 15, seed)
        kept = left(task, actions)
        rewrites = Rewrites(task, kept)
        for group in groups(rewrites, rewrites.without(())):
            after, rises = rewrites.without(group).state, []
            for before in (follow(task, kept), follow(task, actions)):
                uncertainty = (graph_spread(task.cost, after.graph) - graph_spread(task.cost, before.graph)).ps
                rises.append(after.objective - before.objective - uncertainty)
            assert max(rises) > 0, seed
            compared += 1
    assert compared > len(seeds)


def test_small_pruned_losses_do_not_add_up_to_a_certain_loss():
    """Each of the rules gains 10 with an uncertainty of 12 from its own kernels; together they gain 40 ± 24."""
    rules = "Relu(x) => Abs(x)\nExp(x) => Tanh(x)\nCeil(x) => Neg(x)\nFloor(x) => Sign(x)"
    before, after = ("Relu", "Exp", "Ceil", "Floor"), ("Abs", "Tanh", "Neg", "Sign")
    costs = dict.fromkeys(before, 100) | dict.fromkeys(after, 90)
    task = toy_task(list(before), rules, costs, off=dict.fromkeys(after, 12))
    kept = left(task, [(0, 0), (1, 0), (2, 0), (3, 0)])
    assert 0 < len(kept) < 4


def test_pruning_by_an_exact_cost_removes_only_rewrites_without_a_gain():
    task = tiny_task("tiny_bert_base")
    best, noisy = greedy(task.initial, 100), walk(task, 10, 0)
    kept = left(task, noisy)
    assert follow(task, kept).objective <= follow(task, noisy).objective and len(kept) < len(noisy)
    assert follow(task, left(task, best.actions)).objective == best.state.objective


def test_pruning_removes_nothing_if_there_is_no_time():
    actions = [(ABS, 0), (TANH, 1)]
    assert left(chain(500), actions, seconds=0) == actions


# -- shares ------------------------------------------------------------------------------------------


def test_the_gain_of_a_group_is_the_rise_in_cost_without_the_group():
    task = chain(2)
    actions = [(ABS, 0), (TANH, 1), (NEG, 0), (NEG_TANH, 0), (ABS, 0)]
    listed = [share for share, _ in shares(task, candidate(task, actions))]
    gains = {share["rule"]: (share["count"], share["gain_ps"], share["off_ps"]) for share in listed}
    # NEG_TANH needs its NEG, so both leave together; two Abs have an uncertainty of 2 each, and so do two Relus.
    assert gains == {"r0": (2, 20, 6), "r1": (1, 100, 3), "r2": (1, 100, 3), "r3": (1, 200, 3)}
    assert [share["gain_ps"] for share in listed] == [200, 100, 100, 20]
    assert all(without.objective - follow(task, actions).objective == share["gain_ps"] for share, without in
               shares(task, candidate(task, actions)))  # fmt: skip


def test_the_smallest_groups_beyond_the_limit_are_listed_as_one(monkeypatch):
    task = chain(2)
    delivered = candidate(task, [(ABS, 0), (TANH, 1), (NEG, 0), (NEG_TANH, 0)])
    monkeypatch.setattr(module, "MAX_GROUPS", 2)
    listed = [(share["rule"], share["count"], share["gain_ps"]) for share, _ in shares(task, delivered)]
    # the group of the other rules includes the NEG that r3 needs
    assert listed == [("r3", 1, 200), (OTHERS, 3, 210)][::-1]


def test_groups_are_measured_until_time_is_up(monkeypatch):
    task, clock = chain(2), [0.0]
    known = shares(task, candidate(task, [(ABS, 0), (TANH, 1), (NEG, 0), (NEG_TANH, 0)]))
    monkeypatch.setattr(module, "time", type("Time", (), {"monotonic": lambda: clock[0]}))
    asked = []

    def measured(without, seconds: float) -> dict:
        asked.append((without, seconds))
        clock[0] += seconds
        return {"ratio": 0.9, "interval": [0.8, 1.0], "verdict": "faster", "sessions": 6}

    measure_shares(known, measured, 3.0, 8.0)
    assert [without for without, _ in asked] == [without for _, without in known][:2]
    assert [seconds for _, seconds in asked] == [3.0, 3.0] and math.isclose(clock[0], 6.0)
    assert [share["measured"] is not None for share, _ in known] == [True, True, False, False]
    assert known[0][0]["measured"] == {"ratio": 0.9, "interval": [0.8, 1.0], "verdict": "faster"}
    assert list(measured_families([share for share, _ in known])) == [("toy", (0.9, 0.8, 1.0))] * 2


def test_a_refused_file_without_a_group_leaves_the_other_groups_measured():
    shares = [{"measured": None, "family": "x"} for _ in range(3)]
    answers = iter([RLFlowError("refused"), {"ratio": 0.9, "interval": [0.8, 1.0], "verdict": "faster", "more": 1}] * 2)

    def measured(state, seconds):
        answer = next(answers)
        if isinstance(answer, RLFlowError):
            raise answer
        return answer

    measure_shares([(share, None) for share in shares], measured, 0.0, math.inf)
    assert [share["measured"] and share["measured"]["ratio"] for share in shares] == [None, 0.9, None]
