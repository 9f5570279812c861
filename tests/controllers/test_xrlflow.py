"""Test X-RLflow's agent: the invariances of its network, that it learns, and that a kill does not change the result."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from controllers.base import StopReason
from controllers.controller_options import XRLflowConfig
from controllers.real_env import train_for_real
from controllers.stages.parts import controller_from
from controllers.xrlflow import agent as agents
from controllers.xrlflow.agent import Step, XRLflow, demonstrations
from controllers.xrlflow.network import Network, joined
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.env.step import MultiModelEnv
from rlflow.search.base import Search
from rlflow.search.descents import greedy
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_task
from worldmodel.boards import tag_of

SMALL = XRLflowConfig(updates=2, episodes=2, epochs=2, width=16, global_width=8, layers=1)
FLATTENED = replace(SMALL, head="flattened", padding=20)


def environment(name="tiny_resnet18", reach: int | None = SMALL.layers) -> CandidateEnv:
    return CandidateEnv(GraphRewriteEnv(tiny_task(name), relative, 6), reach)


@cache
def network(layers: int = 3, head: str = "each") -> Network:
    return Network(replace(FLATTENED, layers=layers, head=head), np.random.default_rng(3))


def judged(observations, **options) -> tuple[np.ndarray, np.ndarray]:
    """Return (log probabilities [B, candidates], values [B]) of a network with a random last layer in its policy
    head."""
    of = network(**options)
    of.policy_head.last.w.assign(0.1 * np.random.default_rng(5).standard_normal(of.policy_head.last.w.shape))
    distribution, values = of(joined(observations))
    return distribution.log_probs.numpy(), values.numpy()


def walked(env: CandidateEnv, steps: int, seed: int) -> list[dict]:
    """Return the observations of a random walk on which no episode ends."""
    rng, observations = np.random.default_rng(seed), [env.reset()[0]]
    for _ in range(steps):
        actions = observations[-1]["actions"]
        observations.append(env.step(actions[rng.integers(1, len(actions))])[0])
    return observations


# -- the network -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_resnet18", *slow("tiny_vit_base_fused", "tiny_inception_v3", "tiny_bert_base")])
def test_the_local_encoding_is_the_encoding_of_the_whole_candidate_graphs(name):
    """The encoding of the patch of each successor graph equals the encoding of the whole successor graph. A patch of a
    shorter reach gives another encoding."""
    local, whole, short = (walked(environment(name, reach), 3, seed=1) for reach in (3, None, 1))
    for one, other, less in zip(local, whole, short, strict=True):
        encodings = [network().encoded(joined([observation])) for observation in (one, other, less)]
        for mine, theirs in zip(encodings[0], encodings[1], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
        assert np.abs(encodings[2][1] - encodings[1][1]).max() > 1e-3
        assert not encodings[0][1][0].numpy().any() and encodings[0][0].numpy().any()  # NO-OP changes nothing.
        assert len(one["ops"]) < len(other["ops"])
        for mine, theirs in zip(judged([one]), judged([other]), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def permuted(observation: dict, order: np.ndarray) -> dict:
    """Return the same observation with the successor graphs, and their rows, in another order."""
    new = np.argsort(order)  # Old number of a successor graph → new number.
    owners = new[observation["owners"]].astype(np.int32)
    rows = np.argsort(owners, kind="stable")
    row = np.argsort(rows).astype(np.int32)
    return observation | {
        "ops": observation["ops"][rows], "nodes": observation["nodes"][rows], "owners": owners[rows],
        "senders": row[observation["senders"]], "receivers": row[observation["receivers"]],
        "replaced": row[observation["replaced"]], "replacers": new[observation["replacers"]].astype(np.int32),
        "actions": observation["actions"][order],
    }  # fmt: skip


def test_the_head_scores_candidates_whatever_their_order():
    observation = environment(reach=3).reset()[0]
    order = np.concatenate([[0], 1 + np.random.default_rng(0).permutation(len(observation["actions"]) - 1)])
    before, after = judged([observation]), judged([permuted(observation, order)])
    np.testing.assert_allclose(after[0][0], before[0][0][order], atol=1e-5)
    np.testing.assert_allclose(after[1], before[1], atol=1e-5)
    assert len(set(np.round(before[0][0], 4))) > 5  # The network tells successor graphs apart.
    flattened = [judged([o], head="flattened")[1] for o in (observation, permuted(observation, order))]
    # The paper's head depends on the order of the successor graphs.
    assert np.abs(flattened[0] - flattened[1]).max() > 1e-3


@pytest.mark.parametrize("head", ["each", "flattened"])
def test_batched_observations_give_the_same_results_as_single_ones(head):
    observations = [*walked(environment(reach=3), 2, 0), *walked(environment("tiny_bert_base", 3), 1, 0)]
    together, values = judged(observations, head=head)
    for k, observation in enumerate(observations):
        single, value = judged([observation], head=head)
        np.testing.assert_allclose(together[k, : single.shape[1]], single[0], atol=1e-5)
        assert not np.isfinite(together[k, single.shape[1] :]).any()
        np.testing.assert_allclose(values[k], value[0], atol=1e-5)
        np.testing.assert_allclose(np.exp(single).sum(), 1, atol=1e-5)


def test_the_flattened_head_chooses_no_op_or_one_of_the_first_candidates():
    observation = environment(reach=3).reset()[0]
    log_probs, _ = judged([observation], head="flattened")
    assert log_probs.shape == (1, 1 + FLATTENED.padding) and len(observation["actions"]) > 1 + FLATTENED.padding
    assert np.isfinite(log_probs).all()
    few = CandidateEnv(GraphRewriteEnv(tiny_task(rules=("matmul",))), 3).reset()[0]
    log_probs, _ = judged([few], head="flattened")
    np.testing.assert_array_equal(np.isfinite(log_probs[0]), np.arange(1 + FLATTENED.padding) < len(few["actions"]))


def test_no_op_is_the_only_choice_if_no_candidate_is_left():
    last = CandidateEnv(GraphRewriteEnv(tiny_task(rules=("attention",))), 3).reset()[0]
    assert len(last["actions"]) == 1 and not len(last["replaced"])
    bare = last | {key: last[key][:0] for key in ("ops", "nodes", "senders", "receivers", "owners")}  # No node is left.
    for observation in (last, bare):
        log_probs, values = judged([observation])
        np.testing.assert_array_equal(log_probs, [[0.0]])
        assert np.isfinite(values).all()


# -- gains -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_squeezenet1_1", *slow("tiny_resnet18", "tiny_bert_base")])
def test_an_agent_that_is_shown_gains_begins_as_greedy_descent(name):
    """An untrained agent that sees gains plays greedy descent to its end; without gains it does much worse."""
    gained = {}
    for gains in (True, False):
        env = CandidateEnv(GraphRewriteEnv(tiny_task(name), relative, 60), SMALL.layers, gains)
        agent = XRLflow(replace(SMALL, gains=gains))
        (observation, _), objectives, ended = env.reset(), [], False
        while not ended:
            action = agent.act({key: value[None] for key, value in observation.items()})[0]
            observation, _, terminated, truncated, _ = env.step(action)
            objectives.append(env.unwrapped.state.objective)
            ended = terminated or truncated
        gained[gains] = min(objectives)
    descent = greedy(tiny_task(name).initial, 60).state.objective
    assert gained[True] <= descent * (1 + 1e-3) < gained[False]


def test_no_op_is_masked_while_a_candidate_gains():
    env = CandidateEnv(GraphRewriteEnv(tiny_task(), relative, 60), SMALL.layers, gains=True)
    of = Network(replace(SMALL, gains=True), np.random.default_rng(3))
    observation = env.reset()[0]
    spent = observation | {"gains": -np.abs(observation["gains"])}
    distribution, _ = of(joined([observation, spent]))
    assert np.isfinite(distribution.log_probs.numpy()[:, 0]).tolist() == [False, True]
    assert np.isfinite(distribution.log_probs.numpy()[:, 1:]).all()


def test_the_flattened_head_refuses_the_option_gains():
    with pytest.raises(RLFlowError, match="head=each"):
        replace(FLATTENED, gains=True)


# -- imitation -------------------------------------------------------------------------------------

IMITATES = XRLflowConfig(updates=0, imitate=60, gains=True, layers=2, width=32, learning_rate=0.003)


def shown(name: str) -> CandidateEnv:
    return CandidateEnv(GraphRewriteEnv(tiny_task(name), relative, 60), IMITATES.layers, IMITATES.gains)


@pytest.mark.nightly
def test_an_imitating_agent_repeats_beam_search_and_beats_greedy_descent(tmp_path):
    """The agent reports the rewrites of the demonstrations as its own interactions."""
    initial = tiny_task("tiny_squeezenet1_1").initial
    descent = greedy(initial, 60).state.objective
    searched, interactions = demonstrations(shown("tiny_squeezenet1_1"), 0)
    agent = XRLflow(IMITATES)
    results = train_for_real(agent, lambda: shown("tiny_squeezenet1_1"), 10**6, 0, tmp_path)
    steps, _ = agent.play(shown("tiny_squeezenet1_1"), None, 0)
    best = np.cumsum([step.reward for step in steps]).max()
    assert best > 100 * (1 - descent / initial.objective) + 1
    chosen = [agent.clone(joined([one.observation]), np.array([one.choice], np.int32)) for one in searched]
    assert np.mean(chosen) > 0.7  # Some successor graphs are alike.
    assert results["env_steps"] == interactions + len(steps) and results["iterations"] == 0


def test_a_damaged_description_of_a_controller_is_named(tmp_path):
    spec = tiny_task().encoding_spec
    XRLflow(SMALL).save(tmp_path)
    whole = read_json(tmp_path / "controller.json")
    assert isinstance(controller_from(tmp_path, spec, 0), XRLflow)
    for wrong, said in (
        ([whole], "controller.json does not describe a controller"),
        (whole | {"config": {"no such option": 1}}, "controller.json is damaged"),
        (whole | {"config": whole["config"] | {"width": "wide"}}, "'width' is a int, not 'wide'"),
        (whole | {"controller": "xrlfow"}, "unknown controller 'xrlfow'; did you mean 'xrlflow'?"),
        (whole | {"controller": "random"}, "which is of one model alone"),
        (whole | {"shapes": {"w": [3]}}, "is of another shape"),
    ):
        write_json(tmp_path / "controller.json", wrong)
        with pytest.raises(RLFlowError) as caught:
            controller_from(tmp_path, spec, 0)
        assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.nightly
def test_a_training_killed_after_the_imitation_does_not_repeat_it_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    imitates = replace(SMALL, imitate=2, updates=1)
    monkeypatch.setattr(agents, "SEARCH_INTERACTIONS", 300)
    XRLflow(imitates).train(environment, 0, tmp_path / "whole")

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(XRLflow, "learn", kill)
        XRLflow(imitates).train(environment, 0, tmp_path / "killed")
    monkeypatch.setattr(agents, "demonstrations", lambda *_: pytest.fail("searched again"))
    again = XRLflow(imitates)
    again.train(environment, 0, tmp_path / "killed")
    assert again.iterations == 1
    for file in ("controller.npz", "controller.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes()


def test_a_search_that_is_cut_off_gives_no_demonstration_of_stopping(monkeypatch):
    """A search that is cut off gives no demonstration of stopping. A search that ends by itself does (tested at
    night)."""
    if at_night(True, False):
        assert demonstrations(shown("tiny_squeezenet1_1"), 0)[0][-1].choice == 0
    monkeypatch.setattr(agents, "SEARCH_INTERACTIONS", 3)
    cut, interactions = demonstrations(shown("tiny_squeezenet1_1"), 0)
    assert interactions == 3 and all(one.choice for one in cut)


@pytest.mark.nightly
def test_a_choice_beyond_the_padding_cannot_be_imitated():
    agent, choices = XRLflow(replace(FLATTENED, padding=3, imitate=1)), []
    searched, _ = demonstrations(environment(), 0)
    clone = agent.clone

    def watched(graph, chosen):
        choices.extend(chosen.tolist())
        return clone(graph, chosen)

    agent.clone = watched
    agent.imitate(environment(), np.random.default_rng(0))
    assert sorted(choices) == sorted(one.choice for one in searched if one.choice <= 3)
    assert 0 < len(choices) < len(searched)


def test_an_interrupted_search_is_not_imitated(tmp_path, monkeypatch):
    def interrupted(self, state, match):
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        XRLflow(replace(SMALL, imitate=1)).train(environment, 0, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_an_agent_trained_with_gains_plays_beside_its_untrained_self(tmp_path):
    """The untrained agent is a second player if gains are shown. Without gains an untrained agent knows nothing, so the
    trained one plays alone."""
    agent = XRLflow(replace(SMALL, imitate=2, updates=0, gains=True))
    begun = agent.arrays()
    train_for_real(agent, lambda: CandidateEnv(environment().env, SMALL.layers, gains=True), 10**6, 0, tmp_path)
    itself, before = agent.players()
    assert itself is agent and before.arrays().keys() == begun.keys()
    assert all(np.array_equal(before.arrays()[key], begun[key]) for key in begun)
    assert any(not np.array_equal(agent.arrays()[key], begun[key]) for key in begun)
    ignorant = XRLflow(SMALL)
    assert ignorant.players() == [ignorant]


def test_a_search_that_exceeds_the_interactions_is_refused_before_anything_is_learnt(tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "SEARCH_INTERACTIONS", 20)
    with pytest.raises(RLFlowError, match="do not last until the first checkpoint"):
        train_for_real(XRLflow(replace(SMALL, imitate=1)), environment, 10, 0, tmp_path)


# -- the agent -------------------------------------------------------------------------------------


def test_actions_are_candidates_and_depend_only_on_the_generator():
    agent = XRLflow(SMALL)
    for observation in walked(environment(), 2, 0):
        batch, rng = {key: value[None] for key, value in observation.items()}, np.random.default_rng
        sampled = [agent.act(batch, greedy=False, rng=rng(k)) for k in range(30)]
        assert {a.shape for a in sampled} == {(1, 2)} and {a.dtype for a in sampled} == {np.dtype(np.int64)}
        assert {tuple(a[0]) for a in sampled} <= set(map(tuple, observation["actions"].tolist()))
        assert len({tuple(a[0]) for a in sampled}) > 5
        np.testing.assert_array_equal(sampled[7], agent.act(batch, greedy=False, rng=rng(7)))
        np.testing.assert_array_equal(*[agent.act(batch) for _ in range(2)])


def test_advantages_are_returns_minus_values():
    """A truncated episode adds the value of its last state to the advantages, and a terminated one does not (γ = λ =
    1)."""
    agent = XRLflow(replace(SMALL, gamma=1.0, gae_lambda=1.0))
    agent.scale = lambda rewards, ended: rewards
    agent.scale.start = lambda envs: None
    values, rewards = [5.0, 1.0, 2.0], [1.0, 0.0, 4.0]
    for terminated in (True, False):
        ends = [False, False, terminated]
        steps = [Step({}, 0, 0.0, v, r, e) for v, r, e in zip(values, rewards, ends, strict=True)]
        beyond = 0.0 if terminated else 10.0
        expected = [5 + beyond - 5, 4 + beyond - 1, 4 + beyond - 2]
        np.testing.assert_allclose(agent._advantages(steps, beyond), expected)


def trained(folder, config=SMALL, progress=None):
    """Return (results, logged curves) of a training."""
    logged = []
    log = lambda step, scalars: logged.append((step, scalars))  # noqa: E731
    results = train_for_real(XRLflow(config), environment, 1000, 0, folder, log, progress)
    return results, logged


@pytest.mark.nightly
def test_a_killed_training_ends_with_the_same_bytes(tmp_path):
    """A killed training ends with the same bytes, and each logged curve is declared."""
    whole, logged = trained(tmp_path / "whole")
    assert whole["stop_reason"] == StopReason.BUDGET and whole["iterations"] == 2
    assert logged[-1][0] == whole["env_steps"] > 0
    for _, scalars in logged:
        assert all(tag_of("train-controller", name) and np.isfinite(value) for name, value in scalars.items())
        assert {"return", "best_return", "candidates"} <= scalars.keys()

    def kill(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", progress=kill)
    assert trained(tmp_path / "killed")[0] == whole
    for file in ("controller.npz", "controller.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes()
    with pytest.raises(RLFlowError, match="head each, not flattened"):
        trained(tmp_path / "whole", FLATTENED)


MODELS = ("tiny_resnet18", "tiny_bert_base")


@pytest.mark.nightly
def test_several_models_take_turns_and_the_greedy_return_is_their_mean(tmp_path):
    """The models take turns, and a kill does not change the result."""
    first = [environment(name).reset()[0]["ops"] for name in MODELS]
    played = []

    class Recorded(MultiModelEnv):
        def reset(self, **options):
            observation, info = super().reset(**options)
            played.append([k for k, ops in enumerate(first) if np.array_equal(ops, observation["ops"])])
            return observation, info

    def several() -> MultiModelEnv:
        return Recorded(list(map(environment, MODELS)))

    agent = XRLflow(replace(SMALL, episodes=3))
    agent.train(several, 0, tmp_path / "whole")
    # Both models greedily before the first update, then three samples, both greedily, and the same once more.
    assert played == [[0], [1], [0], [1], [0], [0], [1], [1], [0], [1], [0], [1]]
    returns = [sum(step.reward for step in agent.play(environment(name), None, 0)[0]) for name in MODELS]
    assert np.isclose(agent.evaluate(several())["return"], np.mean(returns)) and returns[0] != returns[1]

    killed = XRLflow(replace(SMALL, episodes=3, updates=1))
    killed.train(several, 0, tmp_path / "killed")
    killed = XRLflow(replace(SMALL, episodes=3))
    killed.train(several, 0, tmp_path / "killed")
    for file in ("controller.npz", "controller.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes()


@pytest.mark.nightly
def test_an_update_ends_with_the_pass_in_which_the_policy_moved_too_far(tmp_path):
    """The first pass starts from the policy that played, with a ratio of one, so the second pass is the earliest that
    can end."""
    agent = XRLflow(replace(SMALL, updates=1, epochs=4, target_kl=1e-9))
    agent.train(environment, 0, tmp_path)
    assert agent.env_steps < 2 * agent.config.batch and int(agent.optimizer.step) == 2


@pytest.mark.nightly
def test_training_learns_the_best_return(tmp_path):
    """Play loses at first and reaches the best that these rules allow, within 80 episodes of 4 steps."""
    config = XRLflowConfig(updates=10, episodes=8, layers=1, width=32, learning_rate=0.003, entropy_weight=0.003)
    env = CandidateEnv(GraphRewriteEnv(tiny_task(rules=("convolution", "padding")), relative, 4), config.layers)
    sampled = []
    results = XRLflow(config).train(
        lambda: env, 0, tmp_path, lambda step, scalars: sampled.append(scalars["sampled_return"])
    )
    assert np.mean(sampled[:3]) < 0 and sampled[-1] > 10  # Percent of the initial runtime.
    assert results["best_return"] > 14.9
