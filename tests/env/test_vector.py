"""Test vectorised real environments, and the vector environment that Gymnasium makes by name."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec, make_env, make_vector_env
from tests.suite import at_night, slow

SPEC = EnvSpec("tiny_squeezenet1_1", cost="analytic", max_locations=6, max_steps=4)


def walk(env, actions) -> list[tuple]:
    """Return (observation, reward, terminated, truncated) of every step of one environment, which is reset at each
    end."""
    seen = []
    env.reset()
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            env.reset()
    return seen


def played(seed: int, steps: int) -> np.ndarray:
    """Return a random mixture of valid, invalid and NO-OP actions, int64 [steps, 2]."""
    env, rng = make_env(SPEC), np.random.default_rng(seed)
    env.reset()
    actions = []
    for _ in range(steps):
        valid = env.state.valid_actions()
        action = valid[rng.integers(len(valid))] if rng.random() < 0.9 else rng.integers(env.action_space.nvec)
        actions.append(action)
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return np.array(actions)


@pytest.mark.parametrize(
    "n, processes, kind", [(2, False, SyncVectorEnv), *slow((2, True, AsyncVectorEnv), (1, True, SyncVectorEnv))]
)
def test_a_vector_environment_equals_separate_single_environments(n, processes, kind):
    steps = at_night(12, 6)
    single = make_env(SPEC)
    actions = np.stack([played(seed, steps) for seed in range(n)], axis=1)
    expected = [walk(make_env(SPEC), actions[:, copy]) for copy in range(n)]
    first, _ = make_env(SPEC).reset()
    ends = 0
    env = make_vector_env(SPEC, n, processes)
    try:
        assert isinstance(env, kind) and env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        assert env.single_observation_space == single.observation_space
        assert env.observation_space == batch_space(single.observation_space, n)
        assert env.action_space == batch_space(single.action_space, n)
        env.reset()
        for step in range(steps):
            observation, rewards, terminated, truncated, infos = env.step(actions[step])
            assert observation in env.observation_space
            for copy in range(n):
                last, reward, *ended = expected[copy][step]
                assert (rewards[copy], terminated[copy], truncated[copy]) == (reward, *ended)
                for key, array in (first if any(ended) else last).items():
                    assert observation[key].dtype == array.dtype and np.array_equal(observation[key][copy], array), key
                if any(ended):
                    ends += 1
                    assert all(np.array_equal(infos["final_obs"][copy][key], array) for key, array in last.items())
    finally:
        env.close()
    assert ends >= n


def test_the_masks_of_the_batch_say_which_actions_are_valid():
    env = make_vector_env(SPEC, 2, processes=False)
    observation, _ = env.reset()
    moved = np.argwhere(observation["location_masks"][0])[0]
    observation, *_, infos = env.step(np.array([moved, [0, SPEC.max_locations - 1]]))
    # The two copies now have different graphs.
    assert infos["valid"][0] and not np.array_equal(*observation["location_masks"])
    for copy, masks in enumerate(observation["location_masks"]):
        valid = {tuple(action) for action in env.envs[copy].state.valid_actions().tolist()}
        assert {tuple(action) for action in np.argwhere(masks).tolist()} == valid
        assert np.array_equal(observation["xfer_mask"][copy], masks.any(axis=1))
    env.close()


# The code only looks whether Gymnasium is installed.
ASKED = "rlflow, importlib.util; importlib.util.find_spec('gymnasium'); import gymnasium"


@pytest.mark.parametrize(
    "imports", ["gymnasium, rlflow", "rlflow, gymnasium", *slow("rlflow, gymnasium.spaces, gymnasium", ASKED)]
)
def test_the_environment_is_registered_in_either_order_of_imports(imports):
    code = f"import {imports}; print(gymnasium.spec('rlflow/GraphRewrite-v0').entry_point)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "rlflow.env.graph_rewrite:make_by_name\n", "")


def test_gymnasium_makes_the_environment_by_name():
    env = gym.make(
        "rlflow/GraphRewrite-v0", model="tiny_squeezenet1_1", rules=["fusion"], max_steps=3,
        max_locations=6, reward="incremental", render_mode="ansi", cost="analytic",
    )  # fmt: skip
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    bare = env.unwrapped
    assert (bare.max_steps, bare.task.max_locations, bare.render_mode) == (3, 6, "ansi")
    assert {rule.family for rule in bare.task.rules} == {"fusion"}
    assert env.get_wrapper_attr("action_masks")().tolist() == bare.action_masks().tolist()


def test_a_path_or_a_zoo_name_gives_the_same_environment(tmp_path):
    from tests.toys.tiny import tiny_spec

    by_path, _ = make_env(tiny_spec(tmp_path)).reset()
    by_name, _ = make_env(EnvSpec("tiny_resnet18", cost="analytic")).reset()
    assert all(np.array_equal(by_path[key], by_name[key]) for key in by_path)
    with pytest.raises(RLFlowError, match="no such file: tiny_resnet19"):
        gym.make("rlflow/GraphRewrite-v0", model="tiny_resnet19")
