"""Test sb3-contrib's MaskablePPO on all environments, without an adapter."""

import numpy as np
import pytest

from rlflow.env.flat import FlatActions
from rlflow.env.graph_rewrite import GraphRewriteEnv
from tests.toys.tiny import tiny_task
from worldmodel.world_model_options import MDNRNNConfig

pytest.importorskip("torch", reason="torch is not installed (it is no dependency of RLFlow)")
sb3_contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed (it is no dependency of RLFlow)")

STEPS = 2000


def real():
    return GraphRewriteEnv(tiny_task("tiny_squeezenet1_1", 8), max_steps=20)


def flat():
    return FlatActions(real())


def dream():
    from worldmodel.dream import DreamEnv
    from worldmodel.mdn_rnn.model import MDNRNNWorldModel
    from worldmodel.train_and_load import prepare_tensorflow

    prepare_tensorflow(0)
    task = tiny_task("tiny_squeezenet1_1", 8)
    config = MDNRNNConfig(latent=4, hidden=8, encoder_hidden=8, message_passing_steps=1, gaussians=2)
    # An untrained model is enough, because its predictions do not matter here.
    model = MDNRNNWorldModel(task.encoding_spec, config)
    return DreamEnv(model, task.initial, max_steps=20)


@pytest.mark.parametrize("make", [real, flat, dream])
def test_maskable_ppo_trains_and_predicts(make):
    env = make()
    agent = sb3_contrib.MaskablePPO(
        "MultiInputPolicy", env, n_steps=500, batch_size=250, n_epochs=1, seed=0, device="cpu",
        policy_kwargs={"net_arch": [16]},
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in agent.policy.parameters()]
    agent.learn(STEPS)
    assert agent.num_timesteps == STEPS
    assert any(not np.array_equal(a, b.detach()) for a, b in zip(before, agent.policy.parameters(), strict=True))
    assert len(agent.ep_info_buffer) > 0 and all(np.isfinite(episode["r"]) for episode in agent.ep_info_buffer)

    observation, _ = env.reset(seed=1)
    for step in range(20):
        masks = env.action_masks()
        action, _ = agent.predict(observation, action_masks=masks, deterministic=step % 2 == 0)
        assert env.action_space.contains(action)
        if make is flat:
            assert masks[action]
        else:
            xfer_ids = env.action_space.nvec[0]
            assert masks[action[0]] and masks[xfer_ids + action[1]]
        observation, reward, terminated, truncated, info = env.step(action)
        assert np.isfinite(reward) and (info["valid"] or make is not flat)
        if terminated or truncated:
            break
