"""Test A* and Q* with a learned value: search results, training examples, and equal results after a kill."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from controllers.astar.agent import NO_ACTION, AStar
from controllers.astar.network import ValueNetwork, choices_of, joined, joined_choices
from controllers.astar.search import Explored, Tried, astar, examples_along, mcts, qstar
from controllers.base import StopReason
from controllers.controller_options import QSTAR, AStarConfig
from controllers.evaluation import rollout
from controllers.real_env import train_for_real
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.common.task import GraphArrays
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.states import StateEnv
from rlflow.env.step import MultiModelEnv, StepEnv
from rlflow.optimisation.candidates import states_from
from rlflow.search.base import LimitReached, Limits, Search, SearchResult
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import parse_expression
from tests.commands import TINY, in_process
from tests.suite import slow
from tests.toys.tiny import tiny_task

pytestmark = pytest.mark.usefixtures("eager")

HORIZON = 5
SMALL = AStarConfig(
    search="astar", width=8, hidden=8, propagations=2, horizon=HORIZON, evaluations=70, epochs=2, problems=1, passes=1
)
OF_CHOICES = replace(SMALL, search=QSTAR)
SQUARE = "(mul (exp x) (exp x))"  # The best path has five steps, and the cost rises first.
WIDE = "(add (mul (exp x) (exp x)) (div y (log y)))"  # The same expression, next to rewrites without gain.


@cache
def task(text: str = SQUARE, rules: str = "binding") -> ExpressionTask:
    return ExpressionTask(parse_expression(text), rules_of(rules), 50)


def agent(config: AStarConfig = SMALL, seed: int = 0, of=None) -> AStar:
    return AStar(config, (of or task()).encoding_spec, seed)


def environment() -> StateEnv:
    return StateEnv(StepEnv(task(), max_steps=12))


def nothing(graphs) -> np.ndarray:
    return np.zeros((len(graphs), HORIZON))


def explored(limit: int, value=nothing, kind=Explored, text: str = SQUARE) -> tuple[Search, Explored]:
    search = Search(task(text).initial, Limits(interactions=limit))
    result = kind(search, value, HORIZON)
    try:
        astar(search, result)
    except LimitReached:
        pass
    return search, result


def no_choice(graph, choices) -> np.ndarray:
    return np.zeros((len(choices.sorts), HORIZON))


def tried(limit: int, value=no_choice, text: str = SQUARE, noise: float = 0.0) -> tuple[Search, Tried]:
    search = Search(task(text).initial, Limits(interactions=limit))
    result = Tried(search, value, HORIZON)
    try:
        qstar(search, result, noise=noise)
    except LimitReached:
        pass
    return search, result


def shaken(network: ValueNetwork) -> ValueNetwork:
    """Return the network with a random last layer instead of a zero one."""
    network.last.w.assign(0.3 * np.random.default_rng(5).standard_normal(network.last.w.shape))
    return network


# -- the network -----------------------------------------------------------------------------------


def graphs_of(some: ExpressionTask, number: int) -> list[GraphArrays]:
    state = some.initial
    return [state.arrays(), *(state.follow(match).arrays() for match in state.matches[: number - 1])]


def permuted(graph: GraphArrays, order: np.ndarray) -> GraphArrays:
    """Return the same graph with its nodes in another order."""
    row = np.argsort(order).astype(np.int32)
    return graph._replace(
        ops=graph.ops[order], nodes=graph.nodes[order], senders=row[graph.senders], receivers=row[graph.receivers]
    )


def test_the_value_of_a_graph_does_not_depend_on_the_batch_or_the_order_of_nodes():
    network, graphs = shaken(agent().network), graphs_of(task(), 3)
    together = network.values(joined(graphs)).numpy()
    assert together.shape == (3, HORIZON) and len(np.unique(together[:, 0])) == 3
    for graph, values in zip(graphs, together, strict=True):
        mixed = permuted(graph, np.random.default_rng(1).permutation(len(graph.ops)))
        for same in (graph, mixed):
            np.testing.assert_allclose(network.values(joined([same])).numpy()[0], values, atol=1e-5)


def test_the_value_of_a_choice_does_not_depend_on_the_batch():
    network, state = shaken(agent(OF_CHOICES).network), task(WIDE).initial
    states = [state, *(state.follow(match) for match in state.matches[:2])]
    graphs, choices = [one.arrays() for one in states], [choices_of(one, one.matches) for one in states]
    together = network.values(joined(graphs), joined_choices(graphs, choices)).numpy()
    alone = [network.values(joined([graph]), one).numpy() for graph, one in zip(graphs, choices, strict=True)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)
    assert len(together) == sum(len(one.matches) for one in states) and len(np.unique(together[:, 0])) > 10


def test_only_messages_show_the_edges():
    """Exchange the arguments of a subtraction. Without messages the network sees the same set of nodes."""
    first, second = (task(text, "simplify").initial.arrays() for text in ("(sub (exp x) x)", "(sub x (exp x))"))
    for propagations, differ in ((0, False), (2, True)):
        network = shaken(agent(replace(SMALL, propagations=propagations)).network)
        difference = np.abs(np.subtract(*network.values(joined([first, second])).numpy())).max()
        assert (difference > 1e-4) == differ


def test_dropout_depends_on_its_seeds_and_applies_in_training_only():
    network, graph = shaken(agent(replace(SMALL, dropout=0.5)).network), joined(graphs_of(task(), 3))
    seeds = [np.array([[k, 0], [k, 1]], np.int32) for k in (0, 0, 1)]
    dropped = [network._forward(graph, seeds=seed).numpy() for seed in seeds]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert (dropped[0] != dropped[2]).any()
    np.testing.assert_array_equal(network.values(graph), network._forward(graph))


# -- the searches ----------------------------------------------------------------------------------


def written(graph: GraphArrays) -> bytes:
    return b"".join(array.tobytes() for array in graph)


def lowest_within(state, steps: int) -> int:
    """Return the lowest objective within a number of steps, by trying all paths."""
    below = [lowest_within(state.follow(match), steps - 1) for match in state.matches] if steps else []
    return min([state.objective, *below])


def test_targets_are_the_largest_gains_within_each_number_of_steps():
    _, whole = explored(100_000)
    examples = whole.examples()
    assert examples[0].graph is whole.root.graph and examples[0].left == HORIZON
    for steps in range(1, HORIZON + 1):
        gain = task().initial.objective - lowest_within(task().initial, steps)
        assert examples[0].gains[0, steps - 1] * steps == gain
    assert examples[0].gains.tolist() == [[0, 0, 0, 0, 39_000 / HORIZON]]
    assert all((example.gains >= 0).all() for example in examples)
    assert len(examples) == sum(node.children is not None for node in whole.nodes.values()) < len(whole.nodes)


def test_targets_of_choices_are_the_largest_gains_of_steps_that_begin_with_them():
    """Compare the targets with an exhaustive search. A choice that raises the objective has a negative target."""
    _, whole = tried(100_000)
    state, examples = task().initial, whole.examples()
    assert examples[0].graph is whole.root.graph and examples[0].left == HORIZON
    order = list(whole.root.children)
    assert sorted(order) == list(range(len(state.matches)))
    of_root = choices_of(state, [state.matches[k] for k in order])
    assert all((a == b).all() for a, b in zip(examples[0].choices, of_root, strict=True))
    for row, k in enumerate(order):
        for steps in range(1, HORIZON + 1):
            gain = state.objective - lowest_within(state.follow(state.matches[k]), steps - 1)
            assert examples[0].gains[row, steps - 1] * steps == pytest.approx(gain)
    assert (examples[0].gains[:, -1] == 39_000 / HORIZON).any() and (examples[0].gains < 0).any()
    assert all(len(one.gains) == len(one.choices.sorts) for one in examples)


@pytest.mark.parametrize("of_choices", [False, True])
def test_a_path_shows_gains_that_the_whole_search_confirms(of_choices):
    search, whole = tried(100_000) if of_choices else explored(100_000)
    known = {written(example.graph): example for example in whole.examples()}
    actions = whole.actions_to(search.best)
    along = examples_along(states_from(task().initial, actions), actions if of_choices else None, HORIZON)
    assert len(along) == HORIZON and along[0].gains[0, -1] * HORIZON == 39_000
    for place, example in enumerate(along):
        other, row, last = known[written(example.graph)], 0, example.left - 1
        if of_choices:
            pairs = zip(other.choices.sorts, other.choices.firsts, strict=True)
            (row,) = [k for k, pair in enumerate(pairs) if pair == (example.choices.sorts, example.choices.firsts)]
        assert example.left == HORIZON - place == other.left
        assert (example.gains[0] <= other.gains[row]).all() and example.gains[0, last] == other.gains[row, last]


def test_patience_ends_a_search_that_has_found_a_gain():
    search, ended = Search(task(WIDE).initial), []
    ended.append(astar(search, Explored(search, nothing, HORIZON), patience=30))
    _, steps, objective = search.trace[-1]
    assert ended == ["patience"] and objective < task(WIDE).initial.objective
    assert 30 < search.interactions - steps < 30 + 2 * len(task(WIDE).initial.matches)


def test_with_the_true_value_only_states_of_a_best_path_are_expanded():
    """Take the values from an exhaustive search. A* then needs one expansion for each step of the best path."""
    everything, whole = explored(100_000, text=WIDE)
    known = {written(example.graph): example.gains[0] for example in whole.examples()}

    def value(graphs) -> np.ndarray:
        return np.array([known.get(written(graph), np.zeros(HORIZON)) for graph in graphs])

    guided, seen = explored(100_000, value, text=WIDE)
    tried, state = 0, task(WIDE).initial
    for sort, index in seen.actions_to(guided.best):
        tried += len(state.matches)
        state = state.apply(sort, index)
    assert guided.trace[-1][1] <= tried < 0.2 * everything.trace[-1][1]
    assert state.objective == everything.best.objective == task(WIDE).initial.objective - 39_000


def test_with_the_true_value_of_choices_each_step_costs_one_rewrite():
    _, whole = tried(100_000, text=WIDE)
    known = {written(node.graph): np.zeros((len(node.state.matches), HORIZON)) for node in whole.nodes.values()}
    for node, example in zip([one for one in whole.nodes.values() if one.children], whole.examples(), strict=True):
        known[written(node.graph)][list(node.children)] = example.gains

    search, seen = tried(100_000, lambda graph, choices: known[written(graph)], text=WIDE)
    assert search.best.objective == task(WIDE).initial.objective - 39_000
    assert search.trace[-1][1] == len(seen.actions_to(search.best)) == HORIZON


def test_qstar_without_a_value_next_makes_a_choice_of_the_cheapest_state():
    class Watched(Tried):
        def follow(self, node, choice):
            waiting = [
                one for one in self.nodes.values() if one.left > 0 and len(one.children) < len(one.state.matches)
            ]
            if choice not in node.children:
                assert node.state.objective == min(one.state.objective for one in waiting)
            return super().follow(node, choice)

    search = Search(task(WIDE).initial, Limits(interactions=300))
    with pytest.raises(LimitReached):
        qstar(search, Watched(search, no_choice, HORIZON))
    assert search.interactions == 300


def test_noise_changes_what_is_tried_first_but_not_what_is_found():
    found = [tried(100_000, text=WIDE, noise=noise) for noise in (0.0, 1e4, 1e4)]
    assert len({search.best.objective for search, _ in found}) == 1
    first = [list(whole.root.children) for _, whole in found]
    assert first[0] != first[1] == first[2] and sorted(first[0]) == sorted(first[1])
    assert found[0][1].nodes.keys() == found[1][1].nodes.keys()


def test_astar_without_a_value_expands_the_cheapest_state_next():
    class Watched(Explored):
        def expand(self, node):
            waiting = [other for other in self.nodes.values() if other.children is None and other.left]
            assert node.children is not None or node.state.objective == min(w.state.objective for w in waiting)
            return super().expand(node)

    search, _ = explored(300, kind=Watched, text=WIDE)
    assert search.interactions == 300
    np.testing.assert_array_equal(agent().value(graphs_of(task(), 3)), 0)


@pytest.mark.parametrize("whole", [explored, tried])
def test_a_state_reached_with_more_steps_left_is_searched_again(whole):
    """The search finds all states within the horizon with a shortest path, whatever path reached each of them first."""
    _, whole = whole(100_000)
    for node in whole.nodes.values():
        actions = whole.actions_to(node.state)
        assert states_from(task().initial, actions)[-1].hash == node.state.hash
        assert len(actions) == HORIZON - node.left
    reached, frontier = {task().initial.hash}, [task().initial]
    for _ in range(HORIZON):
        frontier = [state.follow(match) for state in frontier for match in state.matches]
        frontier = [state for state in {state.hash: state for state in frontier}.values() if state.hash not in reached]
        reached |= {state.hash for state in frontier}
    assert whole.nodes.keys() == reached


def test_mcts_respects_its_limit_and_ends_once_all_states_are_explored():
    search = Search(task(WIDE).initial, Limits(interactions=100), seed=3)
    with pytest.raises(LimitReached):
        mcts(search, Explored(search, nothing, HORIZON), 10_000.0, 0.5, 5.0)
    assert search.interactions == 100
    search = Search(task().initial, seed=3)
    assert mcts(search, Explored(search, nothing, HORIZON), 10_000.0, 0.5, 5.0) == "nothing left to try"
    assert search.best.objective == task().initial.objective - 39_000


# -- learning --------------------------------------------------------------------------------------


def saved(folder) -> tuple[bytes, bytes]:
    return (folder / "controller.npz").read_bytes(), (folder / "controller.json").read_bytes()


@pytest.mark.parametrize("search", [QSTAR, "astar", *slow("mcts")])
def test_a_killed_and_resumed_training_ends_with_the_same_bytes(tmp_path, search):
    def kill(done, total):
        if done == 1:
            raise KeyboardInterrupt

    config = replace(SMALL, search=search)
    logged = []
    whole = agent(config).train(environment, 0, tmp_path / "whole", lambda *entry: logged.append(entry))
    with pytest.raises(KeyboardInterrupt):
        agent(config).train(environment, 0, tmp_path / "killed", progress=kill)
    assert saved(tmp_path / "killed") != saved(tmp_path / "whole")
    assert agent(config).train(environment, 0, tmp_path / "killed") == whole
    assert saved(tmp_path / "killed") == saved(tmp_path / "whole")
    agent(config, 1).train(environment, 1, tmp_path / "other")
    assert saved(tmp_path / "other")[0] != saved(tmp_path / "whole")[0]
    assert whole["stop_reason"] == StopReason.BUDGET and whole["iterations"] == 2 == len(logged)
    assert 0 < whole["env_steps"] <= 2 * SMALL.evaluations and logged[-1][0] == whole["env_steps"]
    loaded = agent(config, 5)
    loaded.load(tmp_path / "whole")
    assert loaded.scale > 0 and loaded.best_return == whole["best_return"] > 0


@pytest.mark.nightly
def test_training_fits_the_value_to_its_targets():
    learner = agent(replace(SMALL, width=16, hidden=32, passes=40, batch=200, learning_rate=0.01, dropout=0.0))
    examples, rng = explored(100_000)[1].examples(), np.random.default_rng(0)
    first = learner.learn(examples, rng)["loss"]
    last = learner.learn(examples, rng)["loss"]
    values = learner.value([one.graph for one in examples])
    gains = np.concatenate([one.gains for one in examples])
    counts = np.arange(1, HORIZON + 1) <= np.array([one.left for one in examples])[:, None]
    assert last < 0.5 * first
    assert np.corrcoef(values[counts], gains[counts])[0, 1] > 0.8


def test_the_curriculum_prefers_problems_that_are_sometimes_solved():
    learner = agent(replace(SMALL, problems=3))
    learner.lowest, learner.success = np.full(6, 100), np.array([0.0, 0.5, 0.9, 0.2, 0.1, 1.0])
    learner.paths = np.full((6, HORIZON, 2), NO_ACTION)
    for seed in range(5):
        chosen = learner.chosen(np.random.default_rng(seed))
        assert set(chosen[:2]) == {1, 3} and len(set(chosen)) == 3
    for objective, rate, lowest in ((100, 0.75, 100), (101, 0.375, 100), (90, 0.5, 90), (90, 0.75, 90)):
        learner.record(1, SearchResult(SimpleNamespace(objective=objective), [(0, 2), (3, 1)], 0, "", 0.0, []))
        assert (learner.success[1], learner.lowest[1]) == (rate, lowest)
    assert learner.paths[1].tolist() == [[0, 2], [3, 1], *[[NO_ACTION] * 2] * 3]
    assert (learner.paths[0] == NO_ACTION).all()


@pytest.mark.parametrize("band", [(0.8, 0.2), (0.5,), (0.2, 1.5)])
def test_an_invalid_band_is_refused(band):
    with pytest.raises(RLFlowError, match="band"):
        replace(SMALL, band=band)


def test_several_problems_are_trained_on_and_interactions_are_limited(tmp_path):
    def both():
        return MultiModelEnv([environment(), StateEnv(StepEnv(task(WIDE)))])

    config = replace(SMALL, problems=2, epochs=3)
    learner = agent(config)
    results = train_for_real(learner, both, 200, 0, tmp_path)
    assert results["detail"] == "200 interactions" and results["iterations"] == 1 and len(learner.lowest) == 2
    with pytest.raises(RLFlowError, match="100 interactions do not last until the first checkpoint of astar"):
        train_for_real(agent(config), both, 100, 0, tmp_path / "other")


# -- acting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SMALL, OF_CHOICES])
def test_the_agent_follows_the_path_of_its_search_and_searches_again_at_its_end(config):
    learner = agent(config)
    episode = rollout(learner, environment(), greedy=True, seed=0)
    result, _ = learner.searched(task().initial, SMALL.evaluations)
    assert min(episode.costs) * task().per_unit <= result.state.objective < task().initial.objective
    assert episode.terminated and episode.costs[-1] == min(episode.costs)
    assert all(info["valid"] for info in episode.infos)
    assert learner.acting_steps > result.interactions  # The agent searches again after its first search.
    assert rollout(agent(config), environment(), greedy=True, seed=0) == episode


@pytest.mark.parametrize("search", [QSTAR, "astar"])
def test_sampled_episodes_have_valid_actions_and_end_by_the_horizon(search):
    learner = agent(replace(SMALL, alpha=0.1, search=search))
    episodes = [rollout(learner, environment(), greedy=False, seed=seed) for seed in (1, 1, 2, 3)]
    assert episodes[0] == episodes[1] and len({tuple(episode.actions) for episode in episodes}) == 3
    for episode in episodes:
        assert len(episode.actions) <= SMALL.horizon + 1 and all(info["valid"] for info in episode.infos)


PROGRAM = ("--model", SQUARE, "task.name=expressions", "task.rules=binding", f"controller.astar.also=['{WIDE}']")


@pytest.mark.parametrize("options", [PROGRAM, *slow((("--model", "tiny_squeezenet1_1"),))])
def test_the_stage_commands_train_and_evaluate_the_agent(tmp_path, capsys, options):
    options = (*options, *TINY, "controller.name=astar", "controller.train_on=real", "eval.samples=1")
    for stage in ("train-controller", "eval"):
        done = in_process(capsys, stage, "--run", tmp_path, *options)
        assert done.code == 0, (stage, done.err)
    (training,) = read_json(tmp_path / "train-controller.json")["trainings"]
    outcome = read_json(tmp_path / "eval.json")
    acted = outcome["candidates"]["controller"]
    assert all(one["equal"] for one in outcome["candidates"].values())
    assert acted["objective"] < outcome["original"]["objective"]
    assert acted["interactions"] > training["env_steps"] + 20  # The rewrites of its searches count as interactions.


@pytest.mark.nightly
def test_the_agent_also_learns_to_rewrite_models(tmp_path):
    """Train the same controller on models, whose task has another encoding."""
    of = tiny_task("tiny_squeezenet1_1")

    def make() -> StateEnv:
        return StateEnv(GraphRewriteEnv(of, max_steps=8))

    learner = agent(OF_CHOICES, of=of)
    results = learner.train(make, 0, tmp_path)
    assert results["best_return"] > 0
    episode = rollout(learner, make(), greedy=True, seed=0)
    assert min(episode.costs) < episode.costs[0] and all(info["valid"] for info in episode.infos)


def test_observations_hold_the_state_and_tasks_without_local_states_are_refused():
    observation, _ = environment().reset()
    assert observation["state"].item() is task().initial and environment().observation_space.contains(observation)

    class Bare(gymnasium.Env):
        initial = object()

    with pytest.raises(RLFlowError, match="needs a task with local states"):
        StateEnv(Bare())
