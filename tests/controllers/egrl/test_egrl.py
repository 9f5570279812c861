"""Test EGRL: the equations of its networks, its evolution and its gradients, and that it learns and resumes after a
kill."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from controllers.controller_options import EGRLConfig
from controllers.egrl import agent as agent_module
from controllers.egrl.agent import EGRL
from controllers.egrl.evolution import Population, first_population, next_population
from controllers.egrl.gradients import Sac
from controllers.egrl.networks import Critic, Policy, Seen, initial, split
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.tasks.placement.searches import all_slowest
from tests.commands import in_process
from tests.events import tags_of
from tests.suite import at_night, slow
from tests.tasks.placement.models import TINY_DEVICE, instance, random_workload

TINY = EGRLConfig(
    evaluations=18, hidden=8, output=8, depth=2, heads=2, population=6, boltzmann=0.34, elites=2, critic_width=8,
    batch=4,
)  # fmt: skip
SHAPE = (9, 2, 2)  # operators, kinds of tensors, memories


def problem(seed=0, **options):
    return instance(random_workload(9, seed), **{"sram": 90, **options})


def seen_graph(n=9, seed=0) -> Seen:
    rng = np.random.default_rng(seed)
    links = np.eye(n, dtype=np.float32)
    for k in range(1, n):
        links[k, rng.integers(k)] = 1
    return Seen(rng.random((n, 19)).astype(np.float32), np.maximum(links, links.T))


@pytest.mark.parametrize("depth, pool", [(1, 0.5), (4, 0.8), (4, 0.1)])
def test_renumbered_operators_have_the_same_logits(depth, pool):
    policy, seen = Policy(19, 3, 8, 8, depth, 2, pool, 1.0), seen_graph()
    vector, order = initial(policy.shapes, np.random.default_rng(1)), np.random.default_rng(2).permutation(9)
    logits = policy.logits(vector, seen).numpy()
    other = policy.logits(vector, Seen(seen.features[order], seen.links[order][:, order])).numpy()
    assert logits.shape == (9, 2, 3) and len(vector) == sum(np.prod(shape) for shape in policy.shapes.values())
    np.testing.assert_allclose(other, logits[order], atol=1e-4)
    flat = replace_slowest(policy, 0.0).logits(vector, seen).numpy()
    np.testing.assert_allclose(logits - flat, np.broadcast_to([0, 0, 1.0], logits.shape), atol=1e-5)


def replace_slowest(policy: Policy, slowest: float) -> Policy:
    return policy._replace(slowest=slowest)


def test_attention_mixes_the_neighbours_by_their_softmax():
    """Compare with the equations of a graph attention layer, evaluated for one operator and one head at a time."""
    policy, seen, rng = Policy(19, 3, 8, 8, 1, 2, 0.8, 0.0), seen_graph(), np.random.default_rng(0)
    p = {name: part.numpy() for name, part in split(initial(policy.shapes, rng), policy.shapes).items()}
    x = rng.standard_normal((9, 8)).astype(np.float32)
    h, mixed = (x @ p["down0/w"]).reshape(9, 4, 2), np.zeros((9, 4, 2))
    for i in range(9):
        near = np.flatnonzero(seen.links[i])
        for head in range(2):
            logits = h[i, :, head] @ p["down0/receive"][:, head] + h[near, :, head] @ p["down0/send"][:, head]
            shares = np.exp(np.where(logits > 0, logits, 0.2 * logits))
            mixed[i, :, head] = shares / shares.sum() @ h[near, :, head]
    expected = elu(mixed.reshape(9, 8) + x @ p["down0/skip"] + p["down0/b"])
    np.testing.assert_allclose(policy.attention(p, "down0", x, seen.links), expected, rtol=1e-4, atol=1e-5)


def test_values_follow_the_critics_equations_with_means_over_neighbours():
    """Compare with the critic's equations, evaluated for one action at a time with a dense adjacency matrix."""
    critic, seen, rng = Critic(19, 3, 8), seen_graph(), np.random.default_rng(0)
    vector, actions = initial(critic.shapes, rng), rng.random((5, 9, 6)).astype(np.float32)
    p = {name: part.numpy() for name, part in split(vector, critic.shapes).items()}
    near = seen.links / seen.links.sum(axis=1, keepdims=True)
    for action, value in zip(actions, critic.values(vector, seen, actions).numpy(), strict=True):
        x = elu(seen.features @ p["features"] + action @ p["actions"] + p["b"])
        for k in range(2):
            x = x + elu(x @ p[f"own{k}"] + near @ x @ p[f"near{k}"] + p[f"b{k}"])
        hidden = elu(x.mean(axis=0) @ p["hidden/w"] + p["hidden/b"])
        np.testing.assert_allclose(value, (hidden @ p["value/w"] + p["value/b"])[0], rtol=1e-3, atol=1e-5)


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(x))


def population(rng) -> Population:
    return first_population(rng.random((4, 30)).astype(np.float32), 3, SHAPE, 2.0, rng)


def test_elites_stay_and_children_are_made_of_parents_and_elites():
    rng = np.random.default_rng(0)
    before, fitness = population(rng), np.array([0.1, 0.9, 0.2, 0.3, 0.8, 0.05, 0.4])
    # The elites are network 1 and chromosome 0.
    config = replace(TINY, population=7, mutation=0.0, crossover=1.0, elites=2)
    logits = rng.normal(size=(4, *SHAPE)).astype(np.float32)
    for seed in range(20):
        after = next_population(before, fitness, logits, None, config, np.random.default_rng(seed))
        assert np.array_equal(after.networks[1], before.networks[1])
        assert np.array_equal(after.priors[0], before.priors[0])
        assert np.array_equal(after.temperatures[0], before.temperatures[0])
        for child in after.networks:
            tails = [(child != parent)[::-1] for parent in before.networks]
            # A child has the tail of another parent.
            kept = max(int(tail.argmax()) if tail.any() else 30 for tail in tails)
            assert kept > 0 and np.array_equal(child[: 30 - kept], before.networks[1][: 30 - kept])


def test_an_elite_network_seeds_priors_with_its_posterior():
    rng = np.random.default_rng(0)
    before, config = population(rng), replace(TINY, population=7, mutation=0.0, crossover=1.0, elites=1)
    logits = rng.normal(size=(4, *SHAPE)).astype(np.float32)
    fitness = np.array([0.1, 0.9, 0.2, 0.3, 0.8, 0.05, 0.4])
    after = next_population(before, fitness, logits, None, config, np.random.default_rng(1))
    for prior in after.priors:
        np.testing.assert_allclose(np.exp(prior).sum(axis=-1), 1, rtol=1e-5)
        np.testing.assert_allclose(prior, tf.nn.log_softmax(logits[1]), rtol=1e-4)


def test_the_actor_takes_the_place_of_the_weakest_network():
    rng = np.random.default_rng(0)
    before, fitness, actor = population(rng), np.array([0.4, 0.9, 0.2, 0.3, 0.8, 0.05, 0.4]), np.full(30, 7, np.float32)
    after = next_population(before, fitness, np.zeros((4, *SHAPE)), actor, TINY, rng)
    assert [bool((network == 7).all()) for network in after.networks] == [False, False, True, False]


def test_cold_chromosomes_take_their_prior():
    rng = np.random.default_rng(0)
    own = population(rng)
    cold = own._replace(temperatures=np.full_like(own.temperatures, 1e-6))
    assert np.array_equal(cold.sampled(rng), own.priors.argmax(axis=-1))
    hot = own._replace(temperatures=np.full_like(own.temperatures, 1e6))
    assert 0.3 < np.mean([hot.sampled(rng).mean() for _ in range(50)]) < 0.7


@pytest.mark.parametrize("bootstrap", slow(True, False))
def test_the_actor_learns_to_prefer_rewarded_placements(bootstrap):
    """The reward is the share of tensors in memory 0; a random policy puts half of them there."""
    config = replace(TINY, bootstrap=bootstrap, gamma=0.1, alpha=0.05, learning_rate=0.003, critic_learning_rate=0.01)
    rng, seen = np.random.default_rng(0), seen_graph()
    sac = Sac(Policy(19, 2, 8, 8, 1, 2, 0.8, 0.0), Critic(19, 2, 8), config, rng)
    actions = rng.integers(2, size=(64, 9, 2))
    rewards = (actions == 0).mean(axis=(1, 2))
    losses = []
    for _ in range(120):
        rows = rng.integers(64, size=8)
        losses.append(sac.step(seen, actions[rows], rewards[rows], rng)["value_loss"])
    share = tf.nn.softmax(sac.policy.logits(sac.actor, seen)).numpy()[..., 0].mean()
    assert np.mean(losses[-20:]) < 0.3 * np.mean(losses[:20]) and share > 0.9
    assert bool(np.allclose(sac.targets, sac.critics)) is False


def test_rewards_follow_algorithm_1_of_the_paper():
    one = problem()
    control = int(one.evaluate(one.control()[None]).objectives[0])
    decisions = np.stack([all_slowest(one), np.zeros(9, np.int64)])
    result, moved = one.evaluate_moved(decisions)
    assert result.repaired.tolist()[0] == 0 < result.repaired[1] and moved[0] == 0 < moved[1]
    earned = (control / result.objectives) ** 2
    for invalid, expected in (("ratio", -moved[1]), ("minus-one", -1.0), ("rectified", earned[1])):
        agent = EGRL(replace(TINY, invalid=invalid), one)
        rewards, scalars = agent.record(one, decisions, control)
        np.testing.assert_allclose(rewards, [earned[0], expected])
        assert scalars["valid"] == 0.5 and agent.evaluations == 2
        best = min(result.objectives) if invalid == "rectified" else result.objectives[0]
        assert agent.best_objective == best and agent.joined(agent.actions[1].astype(int)).tolist() == (
            result.decisions[1] if invalid == "rectified" else decisions[1]
        ).tolist()  # fmt: skip


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("variant", ["egrl", *slow("ea", "pg")])
def test_training_finds_better_placements_and_resumes_after_a_kill(tmp_path, monkeypatch, variant):
    monkeypatch.setattr(agent_module, "CHECKPOINT_EVERY", 1)
    config = replace(TINY, variant=variant, invalid="rectified", **at_night({}, {"evaluations": 10, "depth": 1}))
    one = problem()

    class Killed(Exception):
        pass

    def kill(done, total):
        if done >= total // 2:
            raise Killed

    logged = []
    whole = EGRL(config, one)
    results = whole.train(one, 0, tmp_path / "whole", log=lambda step, scalars: logged.append((step, scalars)))
    start = one.evaluate(all_slowest(one)[None]).objectives[0]
    assert whole.best_objective < start and results["env_steps"] == whole.evaluations == config.evaluations
    result = one.evaluate(whole.act(one, 3)[:1])
    assert result.objectives[0] == whole.best_objective and not result.repaired[0]
    moves = [not np.array_equal(whole.sac.actor, EGRL(config, one).sac.actor)]
    assert moves == [variant != "ea"] and ("entropy" in logged[-1][1]) == (variant != "ea")
    with pytest.raises(Killed):
        EGRL(config, one).train(one, 0, tmp_path / "killed", progress=kill)
    again = EGRL(config, one)
    assert again.train(one, 0, tmp_path / "killed") == results
    for name, array in whole.arrays().items():
        assert np.array_equal(array, again.arrays()[name]), name


@pytest.mark.usefixtures("eager")
def test_a_trained_agent_acts_on_other_graphs_with_the_same_memories(tmp_path):
    one, other = problem(), instance(random_workload(5, 7), sram=60)
    agent = EGRL(replace(TINY, variant="ea", evaluations=14), one)
    agent.train(one, 0, tmp_path)
    loaded = EGRL(agent.config, other)
    loaded.load(tmp_path)
    decisions = loaded.act(other, 2, np.random.default_rng(0))
    assert decisions.shape == (3, 5) and all(decision in other.space for decision in decisions)
    assert loaded.act(one, 2).shape == (4, 9)
    with pytest.raises(RLFlowError, match="places in 2 memories; the device has 3"):
        agent.act(problem(flash=True))


@pytest.mark.parametrize("options, reason", [
    ({"hidden": 9}, "not a multiple of heads"), ({"elites": 6}, "leaves no individual"), ({"tau": 2.0}, "at most 1"),
])  # fmt: skip
def test_conflicting_options_are_refused(options, reason):
    with pytest.raises(RLFlowError, match=reason):
        replace(TINY, **options)


@pytest.mark.usefixtures("eager")
def test_stages_train_and_deliver(tmp_path, capsys):
    small = ("evaluations=7", "hidden=8", "output=8", "depth=1", "heads=2", "population=5", "elites=1", "batch=4")
    options = ("--model", "tiny_resnet18", "task.name=placement", f"placement.device={TINY_DEVICE}",
               "controller.name=egrl", *(f"controller.egrl.{option}" for option in small))  # fmt: skip
    for stage in ("train-controller", "eval"):
        done = in_process(capsys, stage, "--run", tmp_path / "run", *options)
        assert done.code == 0, done.err
    outcome = read_json(tmp_path / "run" / "eval.json")
    assert [path.read_bytes()[:4] for path in (tmp_path / "run").rglob("embedding.png")] == [b"\x89PNG"]
    assert all(one["equal"] for one in outcome["candidates"].values())
    assert {"3 controller/return", "3 controller/best_return"} <= {
        tag for tag in tags_of(tmp_path / "run" / "tensorboard")
    }
    refused = in_process(capsys, "train-controller", "--run", tmp_path / "other", "--model", "layered-12-2",
                         "task.name=ordering", "controller.name=egrl")  # fmt: skip
    assert "task.name=placement" in refused.error
