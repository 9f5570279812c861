"""Test the contest: contenders differ, the best of them is delivered, and records of rule families persist.

The records of rule families only decide who takes part.
"""

import time

import numpy as np
import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs.database import TimingDatabase
from rlflow.env.state import Task
from rlflow.graph.feeds import Feeds
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation import contest as module
from rlflow.optimisation.anytime import BEST_SO_FAR_FILE, BestSoFar
from rlflow.optimisation.candidates import Candidate, follow
from rlflow.optimisation.contest import Contender, compete, contenders, different, pruned_candidates
from rlflow.rules.language import RuleSet, parse
from tests.toys.chains import toy_task

COSTS = {"Relu": 100, "Abs": 90, "Exp": 500, "Tanh": 400, "Ceil": 100, "Neg": 99}
FAMILIES = {"small": "Ceil(x) => Neg(x)", "middle": "Relu(x) => Abs(x)", "large": "Exp(x) => Tanh(x)"}


@pytest.fixture
def task() -> Task:
    """Return a task of three operators. Rules of three families make one operator each cheaper, by 1, 10 and 100."""
    rules = [parse(f"{family}-rule: a toy\n  {line}", family)[0] for family, line in FAMILIES.items()]
    toy = toy_task(["Ceil", "Relu", "Exp"], "Relu(x) => Abs(x)", dict(COSTS))
    return Task(toy.graph, RuleSet(tuple(rules), "toy"), toy.cost)


def candidate(task: Task, name: str, xfer_ids: list[int]) -> Candidate:
    actions = [(xfer_id, 0) for xfer_id in xfer_ids]
    return Candidate(name, follow(task, actions), actions, 0, 0.0)


def entered(task: Task, measured: dict[str, float]) -> list[Contender]:
    first = candidate(task, "beam", [0, 1, 2])
    return contenders(task, [first, candidate(task, "greedy", [1, 2])], [first], measured)


# -- who competes ----------------------------------------------------------------------------------


def test_contenders_differ_and_the_family_with_the_least_gain_is_left_out_first(task):
    names = [one.candidate.name for one in entered(task, {})]
    # the graph of greedy equals the graph of beam without the family `small`
    assert names == ["beam", "beam-without-small", "beam-without-middle", "beam-without-large"]
    hashes = [one.candidate.state.hash for one in entered(task, {})]
    assert len(set(hashes)) == len(hashes)
    for one in entered(task, {}):
        assert follow(task, one.candidate.actions).hash == one.candidate.state.hash
        families = {task.rules[xfer_id].family for xfer_id, _ in one.candidate.actions}
        assert families == set(FAMILIES) - {one.without}


def test_families_that_slowed_earlier_files_are_left_out_first_and_helpful_ones_last(task):
    left_out = [one.without for one in entered(task, {"large": 1.02, "small": 0.9})[1:]]
    assert left_out == ["large", "middle", "small"]


def test_a_contender_without_an_estimated_gain_does_not_compete(task):
    task.cost.costs.update(Neg=300)  # without the family `large` the file would be slower than the original
    first = candidate(task, "beam", [0, 1, 2])
    costs = [one.candidate.state.objective for one in contenders(task, [first], [first], {})]
    assert max(costs) < task.initial.objective
    assert "beam-without-large" not in [one.candidate.name for one in contenders(task, [first], [first], {})]


def test_an_unpruned_candidate_competes_beside_the_pruned_one(task):
    kept, whole = candidate(task, "beam", [1, 2]), candidate(task, "beam", [0, 1, 2])
    names = [one.candidate.name for one in contenders(task, [kept], [whole], {})]
    assert names[:2] == ["beam", "beam-whole"]


def test_the_cheapest_candidate_by_the_roofline_comes_second():
    """The roofline ranks the graph with the fewest operators first, whatever the timings say."""
    toy = toy_task(["Relu", "Exp", "Ceil", "Exp"], "Relu(x) => Abs(x)\nCeil(Exp(x)) => Tanh(x)\nRelu(x) => Neg(x)",
                   {"Relu": 100, "Abs": 10, "Neg": 20, "Exp": 50, "Ceil": 50, "Tanh": 99})  # fmt: skip
    ranked = [candidate(toy, name, [xfer_id]) for name, xfer_id in (("beam", 0), ("annealing", 2), ("grasp", 1))]
    names = [one.candidate.name for one in contenders(toy, ranked, ranked, {})]
    assert names == ["beam", "grasp", "annealing"]
    names = [one.candidate.name for one in contenders(toy, ranked[::-1], ranked, {})]
    assert names[0] == "grasp" and sorted(names) == ["annealing", "beam", "grasp"]


def test_searches_with_the_same_result_count_once_and_the_best_are_pruned(task, tmp_path):
    task.cost.off.update(Ceil=5)
    best = BestSoFar(task, tmp_path / BEST_SO_FAR_FILE)
    for name in ("descent", "greedy"):
        best.offer(candidate(task, name, [0, 1, 2]))
    best.offer(candidate(task, "beam", [1]))
    result = pruned_candidates(best, 10.0)
    left = {one.name: [xfer_id for xfer_id, _ in one.actions] for one in result}
    assert left == {"descent": [1, 2], "beam": [1]}
    assert [len(one.actions) for one in best.candidates()] == [3, 3, 1]  # the searches' own candidates are unchanged
    assert different([*result, *result]) == result


# -- how they compete ------------------------------------------------------------------------------


@pytest.fixture
def measured(task, tmp_path, monkeypatch):
    """Return a function that runs a contest of `entered` with planted ratios, and lists how many files ran together.

    The ratio of a file is the product of the planted ratios of its operators.
    """
    source = tmp_path / "model.onnx"
    save_graph(task.graph, source)

    def planted(ratios: dict[str, float], noise: float = 0.0, seconds: float = 60.0, seed: int = 0):
        rng, asked = np.random.default_rng(seed), []

        def in_turns(original, candidates, *_):
            asked.append(len(candidates))
            result = []
            for file in candidates:
                ratio = np.prod([ratios.get(op, 1.0) for op in operators(file)])
                result.append(float(ratio * np.exp(noise * rng.normal())))
            return result

        monkeypatch.setattr(module, "ratios_in_turns", in_turns)
        sizes = {"": {}}
        return compete(source, entered(task, {}), sizes, 1, 0, time.monotonic() + seconds, Feeds.of(source)), asked

    return planted


def operators(file) -> list[str]:
    return [node.op_type for node in onnx.load(file).graph.node]


def test_a_family_that_the_estimate_misjudges_is_left_out_by_measurement(measured):
    contest, _ = measured({"Neg": 0.99, "Abs": 1.05, "Tanh": 0.8}, noise=0.002)
    assert contest.ranked[0].name == "beam-without-middle" == contest.table[0]["name"]
    assert contest.table[0]["ratio"] == pytest.approx(0.99 * 0.8, rel=0.01)
    assert contest.families["middle"].low > 1 > contest.families["large"].high
    assert contest.families["large"].ratio == pytest.approx(0.8, rel=0.01)


def test_the_smaller_of_two_finalists_wins_unless_the_other_is_shown_to_be_faster(measured):
    for neg, winner in ((1.0, "beam-without-small"), (0.97, "beam")):
        winners = []
        for seed in range(10):
            contest, _ = measured({"Neg": neg, "Abs": 0.9, "Tanh": 0.8}, noise=0.003, seed=seed)
            winners.append(contest.ranked[0].name)
        assert winners.count(winner) >= 8, winners  # an interval of 95 % misses the true ratio now and then


def test_the_order_stays_if_there_is_no_time_for_a_contest(task, measured):
    contest, asked = measured({"Neg": 2.0}, seconds=0.0)
    assert [one.name for one in contest.ranked] == [one.candidate.name for one in entered(task, {})]
    assert asked == [] and contest.table == [] and contest.families == {}


def test_a_refused_contest_leaves_the_order_unchanged(task, measured, monkeypatch, capsys):
    def refused(*_):
        raise RLFlowError("refused")

    monkeypatch.setattr(module, "halve", refused)
    contest, _ = measured({})
    assert contest.ranked[0].name == "beam" and contest.table == [] and contest.families == {}


# -- what is kept ----------------------------------------------------------------------------------


def test_family_ratios_are_kept_by_machine_and_threads_and_weighted_by_certainty(tmp_path):
    database = TimingDatabase(tmp_path / "costs.sqlite")
    database.keep_family("fused", 1, 1.02, 1.01, 1.03)
    database.keep_family("fused", 1, 0.8, 0.5, 1.3)
    database.keep_family("matmul", 2, 0.9, 0.9, 0.9)
    assert 1.0 < database.families(1)["fused"] < 1.02 and database.families(2) == {"matmul": pytest.approx(0.9)}
    database.clear(threads=1)
    assert database.families(1) == {} and set(database.families(2)) == {"matmul"}
    database.machine = "another"
    assert database.families(2) == {}
    with pytest.raises(RLFlowError, match="nothing is timed into it here"):
        database.keep_family("fused", 1, 1.0, 1.0, 1.0)
