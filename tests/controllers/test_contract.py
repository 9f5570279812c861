"""Test the contract that every registered step-by-step controller keeps."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from controllers import CONTROLLERS
from controllers.base import Controller, LatentShapes, StopReason
from controllers.cma_es import CMAESConfig
from controllers.planner import PlannerConfig
from controllers.ppo import PPOConfig
from controllers.random import RandomConfig
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.task import Observes
from tests.suite import at_night, slow
from tests.toys.latent import Identity, Memoryless, Sacrifice, Stopless, latent_spaces, make, vector
from worldmodel.boards import BOARDS, tag_of

SMALL = {
    "random": RandomConfig(dreams=8),
    "cma-es": CMAESConfig(generations=at_night(6, 4), popsize=at_night(6, 4), dreams=2, sigma0=0.5, evaluate_every=2),
    "planner": PlannerConfig(steps=600),
    "ppo": PPOConfig(
        updates=4, envs=8, steps=8, minibatches=2, hidden=16, embedding=4, evaluate_every=2, evaluation_dreams=8
    ),
}


LEARNT_IN_STEPS = ("cma-es", "ppo")
# See tests/tasks/test_stages.py, tests/controllers/topoformer and egrl.
ONE_SHOT = {"linear-scores", "topoformer", "egrl"}
REAL_ONLY = {"xrlflow": Observes.CANDIDATES, "astar": Observes.STATES}  # See test_xrlflow.py and test_astar.py.


@pytest.fixture(scope="module", params=list(SMALL))
def name(request):
    return request.param


def build(name, task=Identity, seed=0):
    return make(CONTROLLERS.get(name), SMALL[name], task, seed)


def observations(task=Identity, n=64):
    return vector(task)(n).reset(seed=7)[0]


def saved(folder):
    return (folder / "controller.npz").read_bytes(), (folder / "controller.json").read_bytes()


class Whole(NamedTuple):
    """An uninterrupted training on the identity task with seed 0."""

    controller: Controller
    folder: Path
    results: dict
    logged: list
    progressed: list


@pytest.fixture(scope="module")
def whole(name, tmp_path_factory) -> Whole:
    """Return the training of a controller, which is shared by all tests that only read it."""
    controller, folder, logged, progressed = build(name), tmp_path_factory.mktemp(name), [], []
    results = controller.train(
        vector(Identity),
        0,
        folder,
        lambda step, scalars: logged.append((step, scalars)),
        lambda *x: progressed.append(x),
    )
    return Whole(controller, folder, results, logged, progressed)


def test_registered_names_match_their_controllers(name):
    controller = CONTROLLERS.get(name)
    assert controller.name == name
    assert controller.Config is type(SMALL[name])


def test_every_controller_declares_its_kind_of_observation():
    observed = {name: CONTROLLERS.get(name).Config.observes for name in CONTROLLERS}
    others = dict.fromkeys(ONE_SHOT, Observes.GRAPH) | REAL_ONLY
    assert observed == dict.fromkeys(SMALL, Observes.LATENT) | others


@pytest.mark.nightly
def test_a_controller_learns_and_acts_validly_without_a_stop_action(name, tmp_path):
    """The environment raises an error for each invalid action, and NO-OP is invalid here."""
    controller = build(name, Stopless)
    controller.train(vector(Stopless), 0, tmp_path)
    observation = observations(Stopless)
    for greedy in (True, False):
        actions = controller.act(observation, greedy=greedy, rng=np.random.default_rng(1))
        assert (actions[:, 1] < np.take_along_axis(observation["counts"], actions[:, :1], axis=1)[:, 0]).all()
    with pytest.raises(RLFlowError, match="is not the controller's: stop True, not False"):
        controller.open(vector(Identity), 4)


def test_the_error_for_an_unknown_controller_names_the_nearest_one():
    with pytest.raises(RLFlowError, match="unknown controller 'cma_es'; did you mean 'cma-es'"):
        CONTROLLERS.get("cma_es")


def test_actions_are_valid_batched_integers_and_a_function_of_the_generator(name):
    controller, observation = build(name), observations()
    for greedy in (True, False):
        actions = controller.act(observation, greedy=greedy, rng=np.random.default_rng(1))
        assert actions.shape == (64, 2)
        assert actions.dtype == np.int64
        row = np.arange(64)
        assert (actions >= 0).all() and (actions[:, 1] < observation["counts"][row, actions[:, 0]]).all()
        again = controller.act(observation, greedy=greedy, rng=np.random.default_rng(1))
        np.testing.assert_array_equal(actions, again)
    sampled = [controller.act(observation, greedy=False) for _ in range(2)]
    assert (sampled[0] != sampled[1]).any()


@pytest.mark.parametrize("name", ["cma-es", *slow(*sorted(SMALL.keys() - {"cma-es"}))], indirect=True)
def test_a_world_model_without_a_hidden_state_is_accepted(name, tmp_path):
    controller = build(name, Memoryless)
    controller.train(vector(Memoryless), 0, tmp_path)
    assert controller.act(observations(Memoryless)).shape == (64, 2)


def test_training_ends_with_a_typed_reason_and_reports_on_its_way(whole):
    _, _, results, logged, progressed = whole
    assert isinstance(results["stop_reason"], StopReason)
    assert set(results) - {"dreamt_steps"} == {"stop_reason", "detail", "best_return", "iterations", "env_steps"}
    json.dumps(results, allow_nan=False)
    assert logged[-1][0] == results["env_steps"] > 0
    assert all(np.isfinite(value) for _, scalars in logged for value in scalars.values())
    assert progressed[-1][0] == progressed[-1][1]
    names = {name for _, scalars in logged for name in scalars}
    assert names >= BOARDS["train-controller"].first.keys()
    assert all(tag_of("train-controller", name) for name in names)  # Each name belongs to a declared curve.


@pytest.mark.parametrize("name", ["random", "planner", "cma-es", *slow("ppo")], indirect=True)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(name, whole, tmp_path):
    """Check both claims; for controllers that learn in steps, the kill test already checks the first."""
    if name not in LEARNT_IN_STEPS:
        build(name).train(vector(Identity), 0, tmp_path / "same")
        assert saved(tmp_path / "same") == saved(whole.folder)
    build(name).train(vector(Identity), 1, tmp_path / "other")
    assert saved(tmp_path / "other") != saved(whole.folder)


def test_a_loaded_controller_acts_as_the_saved_one(name, whole):
    controller, folder, *_ = whole
    loaded, observation = build(name, seed=5), observations()
    loaded.load(folder)
    for greedy in (True, False):
        actions = [c.act(observation, greedy, np.random.default_rng(2)) for c in (controller, loaded)]
        np.testing.assert_array_equal(*actions)


@pytest.mark.parametrize("name", [LEARNT_IN_STEPS[0], *slow(*LEARNT_IN_STEPS[1:])], indirect=True)
def test_a_killed_and_resumed_training_ends_with_the_same_bytes(name, whole, tmp_path):
    def kill(done, total):
        if done == total // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(name).train(vector(Identity), 0, tmp_path / "killed", progress=kill)
    assert saved(tmp_path / "killed") != saved(whole.folder)
    resumed = build(name).train(vector(Identity), 0, tmp_path / "killed")
    assert saved(tmp_path / "killed") == saved(whole.folder)
    assert resumed == whole.results
    # The training is already complete.
    assert build(name).train(vector(Identity), 0, tmp_path / "killed") == whole.results


def test_a_training_with_other_options_or_another_seed_is_not_continued(name, whole):
    with pytest.raises(RLFlowError, match="other options .seed 0, not 1"):
        build(name).train(vector(Identity), 1, whole.folder)


def test_a_checkpoint_of_another_shape_or_controller_is_refused(name, tmp_path):
    build(name).save(tmp_path)
    with pytest.raises(RLFlowError, match="another shape: z 11, not 2; n_xfer_ids 5, not 4; locations 6, not 4"):
        build(name, Sacrifice).load(tmp_path)
    other = "random" if name != "random" else "ppo"
    with pytest.raises(RLFlowError, match=f"holds the controller '{name}', not '{other}'"):
        build(other).load(tmp_path)


def test_a_checkpoint_of_other_match_classes_or_of_other_usual_rewards_is_refused(name, tmp_path):
    match_classes, usual_rewards = [0, 0, 2], [1.0, 2.0, 3.0]

    def built(*table):
        return CONTROLLERS.get(name)(SMALL[name], *latent_spaces(2, 3, 4, 3, *table))

    built(match_classes, usual_rewards).save(tmp_path)
    built(match_classes, usual_rewards).load(tmp_path)
    for other in (([0, 1, 2], usual_rewards), (match_classes, [1.0, 2.0, 3.5])):
        with pytest.raises(RLFlowError, match="another shape: table"):
            built(*other).load(tmp_path)


def test_networks_of_another_size_are_refused(tmp_path):
    build("ppo").save(tmp_path)
    with pytest.raises(RLFlowError, match=r"another shape: .*learner/class_head/w \(16, 5\), not \(128, 5\)"):
        make(CONTROLLERS.get("ppo"), PPOConfig(), Identity).load(tmp_path)


def test_a_missing_checkpoint_is_one_clear_line(name, tmp_path):
    with pytest.raises(RLFlowError, match="cannot read .*controller.json"):
        build(name).load(tmp_path)


def test_a_description_of_another_form_is_one_clear_line(name, tmp_path):
    build(name).save(tmp_path)
    whole = read_json(tmp_path / "controller.json")
    others = [[], 3, None, "ppo", {}, {key: value for key, value in whole.items() if key != "shapes"}]
    others += [whole | {key: wrong} for key in ("controller", "shapes", "config") for wrong in ([], None, 3)]
    for other in [*others, whole | {"training_seed": "7"}]:
        write_json(tmp_path / "controller.json", other)
        for use in (build(name).load, build(name).saved, lambda folder: build(name).resume(folder, 0)):
            with pytest.raises(RLFlowError, match="controller.json does not describe a controller$"):
                use(tmp_path)


def test_an_environment_that_does_not_fit_is_refused(name, tmp_path):
    with pytest.raises(RLFlowError, match="the environment is not the controller's: z 2, not 11"):
        build(name).train(vector(Sacrifice), 0, tmp_path)
    with pytest.raises(RLFlowError, match="autoreset_mode SAME_STEP"):
        build(name).train(vector(Identity, AutoresetMode.NEXT_STEP), 0, tmp_path)


def test_an_observation_without_its_batch_is_refused(name):
    single = {key: value[0] for key, value in observations().items()}
    with pytest.raises(RLFlowError, match=r"batched observations: z of shape \(B, \*\(11,\)\), got \(11,\)"):
        build(name).act(single)


def test_counts_without_no_op_are_refused(name):
    observation = observations()
    observation["counts"][5, -1] = 0
    with pytest.raises(RLFlowError, match="counts must give NO-OP"):
        build(name).act(observation)


def test_spaces_that_are_not_latent_are_refused():
    observation, action = latent_spaces(3, 4, 5)
    with pytest.raises(RLFlowError, match="a controller needs the observation Dict"):
        LatentShapes.of(observation["z"], action)
    with pytest.raises(RLFlowError, match="a controller needs the observation Dict"):
        LatentShapes.of(latent_spaces(3, 5, 5)[0], action)


def test_an_unimplemented_method_names_its_required_signature():
    controller = Controller(None, *latent_spaces(3, 4, 5))
    for call, signature in (
        (lambda: controller.act({}), "act.observation, greedy=True, rng=None. -> int64"),
        (lambda: controller.train(None, 0, ""), "train.make_env, seed, folder, log=None, progress=None. -> dict"),
        (controller.arrays, "arrays.. -> "),
        (lambda: controller.restore({}), "restore"),
    ):
        with pytest.raises(NotImplementedError, match=signature):
            call()
