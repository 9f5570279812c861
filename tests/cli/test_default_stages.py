"""Test the four stages with the default world model and controller: graph networks, a recurrent mixture, and PPO."""

import json

import pytest

from rlflow.common.files import read_json
from rlflow.runs.config import load_config
from tests.commands import in_process
from tests.events import always, tags_of
from worldmodel.graph_mdn.model import GraphMDNWorldModel
from worldmodel.train_and_load import load

pytestmark = pytest.mark.usefixtures("eager")

STAGES = ("collect", "train-wm", "train-controller", "eval")
SHORT = """
cost.name: analytic
workers: 1
collect.episodes: 8
world_model.holdout: 0.4
env.max_steps: 6
iterations.interactions: 24
world_model.graph-mdn:
  {width: 8, latent: 4, hidden: 4, match_steps: 2, node_steps: 2, latent_steps: 2, episode_steps: 2}
controller:
  max_steps: 6
  ppo: {updates: 1, evaluate_every: 1, envs: 4, steps: 4, minibatches: 2, epochs: 1, evaluation_dreams: 2, hidden: 8}
eval: {samples: 1, measure_seconds: 0, seeds: [0]}
"""


@pytest.fixture
def run(tmp_path, capsys):
    """Return the folder of a run after all stages; no option names the world model or the controller."""
    (tmp_path / "short.yaml").write_text(SHORT)
    words = ["--model", "tiny_resnet18", "--config", tmp_path / "short.yaml"]
    for stage in STAGES:
        done = in_process(capsys, stage, "--run", tmp_path / "run", *words)
        assert done.code == 0, done.err
        words = []
    return tmp_path / "run"


def test_ppo_learns_in_the_dream_of_a_graph_mdn_world_model_by_default(run):
    config = load_config()
    assert (config.world_model.name, config.controller.name) == ("graph-mdn", "ppo")
    model = load(run / "world-model")
    assert isinstance(model, GraphMDNWorldModel) and model.config.hidden > 0 and model.config.mixture > 1
    learnt = read_json(run / "train-wm.json")
    assert [one["iteration"] for one in learnt["iterations"]] == [1, 2] and learnt["iterations"][1]["interactions"] > 0
    trained = read_json(run / "train-controller.json")
    assert trained["controller"] == "ppo" and trained["trainings"][0]["env_steps"] > 0
    assert tags_of(run / "tensorboard") >= always()

    outcome = json.loads((run / "eval.json").read_text())
    candidates = outcome["candidates"]
    assert list(candidates) == ["greedy", "untrained", "no-prior", "controller", "random"]
    lowest = min(candidates, key=lambda name: candidates[name]["objective"])  # the first of several equal ones
    assert outcome["delivered"] == lowest and candidates[lowest]["objective"] < outcome["original"]["objective"]
    (row,) = outcome["experiments"]
    for key, name in (("untrained_cost", "untrained"), ("no_prior_cost", "no-prior"), ("greedy_cost", "greedy")):
        assert row[key] == pytest.approx(candidates[name]["estimated_ms"])
