"""Test the stages as functions on a run folder, without a command line."""

import pytest

from controllers.stages import acting
from controllers.stages import learn as stages
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.optimisation.anytime import BestSoFar
from rlflow.optimisation.candidates import Candidate
from rlflow.runs.folder import RunFolder
from rlflow.search.descents import greedy
from tests.commands import ROOT

OPTIONS = ("world_model.name=edits", "controller.name=random", "eval.seeds=[0]")


def opened(folder, *options) -> RunFolder:
    return RunFolder.open(folder, "tiny_squeezenet1_1", [ROOT / "tests" / "tiny.yaml"], OPTIONS + options)


def test_a_stage_stores_its_result_and_the_next_stage_requires_that_result(tmp_path):
    run = opened(tmp_path / "run")
    with pytest.raises(RLFlowError, match="no finished 'collect'"):
        stages.train_world_model(run)
    with pytest.raises(RLFlowError, match="no finished 'train-wm'"):
        stages.train_controller(run)
    collected = stages.collect(run)
    assert collected == read_json(run.path / "collect.json") and collected["episodes"] == run.config.collect.episodes
    assert stages.collect(run)["new_interactions"] == 0
    trained = stages.train_world_model(run)
    assert trained["interactions"] == collected["interactions"]
    with pytest.raises(RLFlowError, match="no finished 'train-controller'"):
        stages.evaluate(run)
    assert stages.train_controller(run)["controller"] == "random"
    outcome = stages.evaluate(run)
    assert list(outcome["candidates"]) == ["greedy", "untrained", "controller", "random"]
    assert all(candidate["equal"] for candidate in outcome["candidates"].values())
    assert set(acting.evaluate_world_model(run)) == {"held-out random", "random-1"}


def test_an_untrained_result_is_not_delivered_as_learnt(tmp_path):
    """Training does not change random play, so the untrained controller finds the same result as the trained one."""
    outcome = stages.learn(opened(tmp_path / "run", "eval.greedy_steps=0"))["eval"]
    candidates = outcome["candidates"]
    assert candidates["controller"]["objective"] < outcome["original"]["objective"]
    assert candidates["controller"]["same_as"] == "untrained" and outcome["delivered"] != "controller"
    assert candidates[outcome["delivered"]]["objective"] == min(one["objective"] for one in candidates.values())


def test_the_better_of_a_search_and_a_control_with_one_name_competes(tmp_path):
    """If a search and a control have one name, the better of the two competes.

    Either may be better: the search batches equal rewrites, the control applies them one at a time.
    """
    run = opened(tmp_path / "run", "eval.greedy_steps=1")
    better = greedy(run.task.initial, 2)
    result = BestSoFar(run.task, tmp_path / "best-so-far.json")
    result.offer(Candidate("greedy", better.state, better.actions, 0, 0.0))
    result.offer(Candidate("random", run.task.initial, [], 0, 0.0))
    candidates = stages.learn(run, result)["eval"]["candidates"]
    assert list(candidates) == ["greedy", "random", "untrained", "controller"]
    assert candidates["greedy"]["objective"] == better.state.objective < greedy(run.task.initial, 1).state.objective
    assert candidates["random"]["interactions"] > 0


def test_learn_gives_the_same_result_as_the_stages_one_by_one(tmp_path):
    one_by_one, at_once = opened(tmp_path / "one"), opened(tmp_path / "all")
    for stage in (stages.collect, stages.train_world_model, stages.train_controller):
        stage(one_by_one)
    outcome, results = stages.evaluate(one_by_one), stages.learn(at_once)
    assert list(results) == ["collect", "train-wm", "train-controller", "eval"]
    assert results["eval"]["actions"] == outcome["actions"] and results["eval"]["delivered"] == outcome["delivered"]
