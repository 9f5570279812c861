"""Test the environment whose action is one number: its mask allows exactly the valid actions."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rlflow  # noqa: F401 (registers the environment)
from rlflow.common.errors import RLFlowError
from rlflow.env.flat import FlatActions
from rlflow.env.step import INVALID_REWARD, StepEnv
from tests.suite import slow
from tests.toys.tiny import tiny_task

NAME = "rlflow/GraphRewriteFlat-v0"


def flat(model: str, locations: int = 8, **options):
    return gymnasium.make(NAME, model=model, cost="analytic", max_locations=locations, **options)


def test_gymnasiums_checker_accepts_the_flat_environment():
    check_env(flat("tiny_squeezenet1_1", max_steps=5).unwrapped, skip_render_check=True)
    check_env(FlatActions(StepEnv(tiny_task("tiny_squeezenet1_1", 4), max_steps=5)), skip_render_check=True)


@pytest.mark.parametrize("model", ["tiny_squeezenet1_1", *slow("tiny_bert_base", "tiny_resnet18")])
@pytest.mark.parametrize("moves, locations", [("single", 3), ("single", 40), ("batched", 8)])
def test_the_mask_allows_each_valid_choice_once_and_nothing_else(model, moves, locations):
    env, rng = flat(model, locations, moves=moves, max_steps=8), np.random.default_rng(0)
    mask_of, pair_of, action_of = map(env.get_wrapper_attr, ("action_masks", "pair_of", "action_of"))
    env.reset(seed=0)
    done = False
    while not done:
        mask, state = mask_of(), env.unwrapped.state
        assert mask.shape == (env.action_space.n,) and mask.dtype == bool
        allowed = [pair_of(action) for action in np.flatnonzero(mask)]
        assert allowed == [tuple(pair) for pair in state.valid_actions() if pair[1] < locations]
        assert [action_of(*pair) for pair in allowed] == np.flatnonzero(mask).tolist()
        for action in rng.choice(np.flatnonzero(mask), 4):  # Play four actions from the same state.
            saved = env.unwrapped.save_state()
            *_, info = env.unwrapped.step(pair_of(action))
            assert info["valid"]
            env.unwrapped.restore_state(saved)
        action = rng.choice(np.flatnonzero(mask)[:-1])
        expected = state.apply(*pair_of(action)).hash
        _, reward, terminated, truncated, info = env.step(action)
        assert env.unwrapped.state.hash == expected and info["valid"] and reward != INVALID_REWARD
        done = terminated or truncated


def test_an_action_outside_the_mask_changes_nothing_and_the_last_action_ends_the_episode():
    env = flat("tiny_squeezenet1_1")
    env.reset(seed=0)
    before, mask = env.unwrapped.state, env.get_wrapper_attr("action_masks")()
    for action in np.random.default_rng(0).choice(np.flatnonzero(~mask), 10):
        _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["valid"]) == (INVALID_REWARD, False, False)
        assert env.unwrapped.state is before
    assert env.step(env.action_space.n - 1)[2]


def test_choices_that_the_padding_forbids_are_masked():
    task = tiny_task("tiny_squeezenet1_1", 8)
    arrays = task.initial.arrays()
    inner = StepEnv(task, max_nodes=len(arrays.ops), max_edges=len(arrays.senders))
    env, roomy = FlatActions(inner), FlatActions(StepEnv(task))
    env.reset()
    allowed = np.flatnonzero(env.action_masks())
    assert 0 < len(allowed) < roomy.action_masks().sum()
    for action in allowed:
        env.reset()
        assert env.step(action)[4]["valid"]


def test_too_many_actions_are_refused_with_the_option_that_lowers_them():
    with pytest.raises(RLFlowError, match="Lower max_locations"):
        flat("tiny_squeezenet1_1", 3000)
