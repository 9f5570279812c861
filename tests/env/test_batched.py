"""Test batched rewrites: as moves, in searches, in the environment and in recorded episodes."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from controllers.stages.parts import check_single_moves
from rlflow.collect.rollouts import play_random
from rlflow.common.errors import RLFlowError
from rlflow.costs import GraphCost, TimeIsUp, graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.env import batched as module
from rlflow.env.batched import BatchedState, _updated_signatures, start_of
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable
from rlflow.runs.config import load_config
from rlflow.search.base import Position, Search, matches_of, numbered, run_search
from rlflow.search.best_first import _optimistic_cost
from rlflow.search.descents import steepest_descent
from rlflow.zoo.transformers import TINY_BERT, bert
from tests.search.test_greedy import replayed
from tests.suite import at_night, slow
from tests.toys.chains import toy_task
from tests.toys.tiny import tiny_task

FUZZED = ["tiny_mobilenet_v2", "tiny_bert_base_fused", "tiny_vit_base_fused", "tiny_shufflenet_v2"]


@cache
def blocks(n: int):
    """Return a tiny BERT with n equal layers."""
    return bert(f"blocks_{n}", 0, replace(TINY_BERT, layers=n), fused=True, vocabulary=100, positions=32, sequence=16)


@cache
def task_of(n: int, moves: str = "batched") -> Task:
    return Task(load_graph(blocks(n)), load_rules(), AnalyticCost(), moves=moves)


def unlike() -> Task:
    """Return a task whose layers all have different sizes, so that no two matches are equal."""
    sizes, nodes, weights, x = (4, 5, 7, 11, 13), [], [], "x"
    for k, (before, after) in enumerate(zip(sizes, sizes[1:], strict=False)):
        for name, shape in ((f"w{k}", (before, after)), (f"b{k}", (after,))):
            weights.append(numpy_helper.from_array(np.full(shape, 0.5 + k, np.float32), name))
        nodes += [
            helper.make_node("MatMul", [x, f"w{k}"], [f"m{k}"]),
            helper.make_node("Add", [f"m{k}", f"b{k}"], [f"a{k}"]),
            helper.make_node("Relu", [f"a{k}"], [f"r{k}"]),
            helper.make_node("Relu", [f"r{k}"], [f"s{k}"]),
        ]
        x = f"s{k}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, s)) for n, s in (("x", 4), (x, 13))]
    graph = helper.make_graph(nodes, "unlike", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return Task(load_graph(model), load_rules(), AnalyticCost(), moves="batched")


def move_of(state: BatchedState, rule: str):
    """Return the rule's move with the most matches."""
    return state.match(state.task.rules.index(rule), 0)


# -- moves -----------------------------------------------------------------------------------------


def test_one_move_rewrites_four_equal_blocks_and_its_receipt_replays():
    start = start_of(task_of(4))
    move = move_of(start, "bias-gelu-standard")
    after = start.follow(move)
    assert len(move.members) == len(after.actions) == 4
    assert {x for x, _ in after.actions} == {move.xfer_id}
    ops = Counter(node.op for node in after.graph.nodes.values())
    assert ops["BiasGelu"] == 4 and ops["Gelu"] == 0
    assert replayed(start.single, after.actions).hash == after.hash
    receipt = make_receipt(start.graph, start.task.rules, [], after.actions, after.graph, {"estimated": {}})
    assert len(receipt["actions"]) == 4 and replay(receipt, blocks(4)).hash == after.hash


def test_a_move_rewrites_only_its_matches_that_still_exist(monkeypatch):
    """Rewrite a match before the move that contains it: the move leaves out the match that is gone."""
    monkeypatch.setattr(module, "independent", lambda *_: False)
    start = start_of(task_of(4))
    move = move_of(start, "bias-gelu-standard")
    first, second, *others = move.members
    without = start.follow(type(move)((second,)))
    after = without.follow(type(move)((first, second, *others)))
    assert len(after.actions) == 3
    assert after.hash == start.follow(move).hash


@pytest.mark.parametrize("op", ["Neg", "Transpose", "Identity"])
def test_overlapping_matches_of_a_move_are_rewritten_in_turn(op):
    """The pairs overlap in a chain of equal operators, so each rewrite leaves the input of the next match."""
    nodes = [helper.make_node("Tanh", ["x"], ["t0"])]
    nodes += [helper.make_node(op, [f"t{k}"], [f"t{k + 1}"]) for k in range(6)]
    nodes.append(helper.make_node("Tanh", ["t6"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 4)) for name in "xy"]
    graph = helper.make_graph(nodes, "pairs", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    start = start_of(Task(load_graph(model), load_rules(), AnalyticCost(), moves="batched"))
    moves = [move for move in start.matches if len(move.members) > 1]
    assert moves
    for move in moves:
        check(start, start.follow(move))


def test_the_limit_on_locations_holds_within_a_move():
    task = Task(task_of(4).graph, task_of(4).rules, AnalyticCost(), max_locations=2, moves="batched")
    state = start_of(task)
    for _ in range(6):
        state = state.follow(max(state.matches, key=lambda move: len(move.members)))
        assert all(location < 2 for _, location in state.actions)
        assert (state.counts <= 2).all()


def check(before: BatchedState, after: BatchedState) -> None:
    """Check that all incrementally updated values equal a new computation, and that moves contain exactly the single
    matches."""
    task, graph = after.task, after.graph
    assert replayed(before.single, after.actions).hash == after.hash
    anew = MatchTable(task.rules, graph)
    assert after.single.table.locations == anew.locations
    assert after.cost == graph_cost(task.cost, graph)
    assert after._groups[0] == _updated_signatures({}, graph, graph.nodes)
    members = [match for move in after.matches for match in move.members]
    assert Counter(map(id, members)) == Counter(map(id, after.single.matches))
    for move in after.matches:  # The matches of a move share no node.
        assert len(move.nodes) == sum(len(set(member.nodes)) for member in move.members)
    fresh = BatchedState(after.single)
    assert [move.members for move in after.matches] == [move.members for move in fresh.matches]
    for xfer_id, n in enumerate(after.counts):
        assert [after.index_of(after.match(xfer_id, k)) for k in range(n)] == list(range(n))


@pytest.mark.parametrize("name", [FUZZED[0], *slow(*FUZZED[1:])])
def test_updated_match_tables_equal_new_ones_along_random_moves(name):
    """Check several random walks on each model; after every move the updated tables equal new tables."""
    rng = np.random.default_rng(0)
    start, checked = BatchedState(tiny_task(name).initial), 0
    for _ in range(at_night(25, 5)):
        state = start
        for _ in range(int(rng.integers(1, 3))):
            if not state.matches:
                break
            before, state = state, state.follow(state.matches[rng.integers(len(state.matches))])
            check(before, state)
            checked += 1
    assert checked


def test_a_move_that_does_not_exist_is_refused():
    start = start_of(task_of(1))
    with pytest.raises(RLFlowError, match="has no move"):
        start.apply(0, int(start.counts[0]))


# -- searches --------------------------------------------------------------------------------------


OPTIONS = {
    "greedy": {"max_steps": 100},
    "descent": {"max_steps": 100},
    "grasp": {"unit": 1e-5, "max_steps": 100, "patience": 3},
    "beam": {"width": 2, "depth": 2, "radius": 1},
    "annealing": {"restarts": 3, "steps": 20, "hot": 0.5, "cold": 0.01, "focus": 0.9},
    "best-first": {"budget": 10},
    "taso": {"alpha": 1.05, "budget": 5},
    "random": {"max_steps": 5, "episodes": 5},
}


@pytest.mark.parametrize("method", ["beam", "greedy", *slow(*sorted(OPTIONS.keys() - {"beam", "greedy"}))])
def test_batched_and_single_searches_agree_on_a_model_without_repeats(method):
    task = unlike()
    start = start_of(task)
    assert len(start.matches) == len(task.initial.matches) > 8
    batched = run_search(method, start, seed=3, **OPTIONS[method])
    single = run_search(method, replace(task, moves="single").initial, seed=3, **OPTIONS[method])
    assert batched.actions == single.actions and batched.actions
    assert batched.state.hash == single.state.hash
    if method != "beam":  # Beam search tries a chain at one match first and then repeats a gain at the equal matches.
        assert batched.interactions == single.interactions
        assert [point[1:] for point in batched.trace] == [point[1:] for point in single.trace]


@pytest.mark.parametrize("method", ["beam", *slow(*sorted(OPTIONS.keys() - {"beam"}))])
def test_a_batched_search_returns_single_rewrites(method):
    task = task_of(4)
    result = run_search(method, start_of(task), seed=1, **OPTIONS[method])
    assert replayed(task.initial, result.actions).hash == result.state.hash
    assert result.trace[-1][2] == result.state.objective <= task.initial.objective
    assert result.state.task is task and not isinstance(result.state, BatchedState)


def test_a_path_ends_before_a_state_within_a_move_that_is_costed_too_late(monkeypatch):
    start = start_of(task_of(4))
    search = Search(start)
    steepest_descent(search, 3)
    states, after = [], GraphCost.after

    def timed(*arguments):
        if len(states) == 2:
            raise TimeIsUp
        states.append(1)
        return after(*arguments)

    whole = search.numbered()[1]
    assert len(whole) > 4 and len(matches_of(search.best_path)) < len(whole)
    monkeypatch.setattr(GraphCost, "after", timed)
    seen = numbered(start, search.best_path)
    monkeypatch.undo()
    assert 0 < len(seen[1]) <= 2 and seen[1] == whole[: len(seen[1])]
    assert seen[0].hash == replayed(start.single, seen[1]).hash and seen[0].objective < start.objective


def costs_counted(monkeypatch, state) -> tuple[int, int]:
    """Return (number of graphs that the steepest descent evaluates, cost at its end)."""
    counted, after = [], GraphCost.after
    monkeypatch.setattr(GraphCost, "after", lambda *args: counted.append(1) or after(*args))
    search = Search(state)
    assert steepest_descent(search, 1000) == "local optimum"
    monkeypatch.undo()
    return len(counted), search.best.objective


def test_a_descent_on_twelve_equal_blocks_computes_about_as_many_costs_as_on_one(monkeypatch):
    one, _ = costs_counted(monkeypatch, task_of(1).initial)
    twelve, batched = costs_counted(monkeypatch, start_of(task_of(12)))
    assert twelve <= 2 * one
    four, single = costs_counted(monkeypatch, task_of(4).initial)
    assert four > 3 * one  # With single rewrites the descent searches every block.
    assert costs_counted(monkeypatch, start_of(task_of(4)))[1] == single


@pytest.mark.nightly
def test_beam_search_on_twelve_equal_blocks_tries_about_as_many_rewrites_as_on_one():
    options = {"width": 2, "depth": 2, "radius": 1}
    one = run_search("beam", task_of(1).initial, **options)
    batched = run_search("beam", start_of(task_of(12)), **options)
    assert batched.interactions - len(batched.actions) <= 2 * one.interactions
    four = run_search("beam", task_of(4).initial, **options)
    assert four.interactions > 3 * one.interactions
    assert run_search("beam", start_of(task_of(4)), **options).state.objective <= four.state.objective


def test_best_first_estimates_the_same_cost_for_moves_and_single_rewrites():
    """Six separate matches gain 7 each. One move covers the four matches between the ends."""
    costs = {"Relu": 10, "Abs": 3, "Tanh": 1, "Neg": 0, "Exp": 0, "Ceil": 0}
    task = replace(toy_task(["Relu", "Tanh"] * 6, "Relu(x) => Abs(x)", costs), moves="batched")
    start = start_of(task)
    assert max(len(move.members) for move in start.matches) >= 4
    promises = [_optimistic_cost(Position(Search(state), state)) for state in (start, task.initial)]
    assert promises == [task.initial.objective - 6 * 7] * 2
    result = run_search("best-first", start, budget=len(start.matches) + 1)
    assert result.state.objective == promises[0]


def test_rewrites_tried_at_one_match_are_repeated_at_all_equal_matches():
    """Try random rewrites near one another from one state, and repeat each of them at all equal matches."""
    search, carried = Search(start_of(task_of(4))), 0
    for seed in range(at_night(40, 10)):
        rng = np.random.default_rng(seed)
        start = Position(search, search.start)
        tried, touched = start.of_single(), set()
        while len(matches_of(tried.path)) < 4:
            near = tried.state.near(touched, 1)
            matches = [match for match in tried.matches if not touched or not near.isdisjoint(match.nodes)]
            if not matches:
                break
            tried = tried.after(matches[rng.integers(len(matches))])
            touched |= tried.state.touched
        compound_replay, position, choices = start.state.start_replay(), start, matches_of(tried.path)
        for choice in choices:
            if not compound_replay.is_made(choice):
                match = compound_replay.match(position.state, choice)
                if match is None:
                    break
                assert match.xfer_id == choice.xfer_id
                position = position.after(match)
                compound_replay.record_match(position.state)
            compound_replay.record_choice(choice)
            carried += 1
        assert position.objective == numbered(search.start, position.path)[0].objective
        before = replayed(task_of(4).initial, numbered(search.start, position.path)[1])
        assert before.hash == position.state.hash
        ended = start.everywhere(tried, touched)
        assert (ended is None) == (position.objective >= start.objective)
        assert ended is None or ended[0].state.hash == position.state.hash
    # Some rewrites cannot be repeated, because an earlier one has removed their match.
    assert carried > at_night(150, 35)


# -- the environment and episodes ------------------------------------------------------------------


def test_an_action_of_the_environment_is_a_move():
    task = task_of(4)
    env = GraphRewriteEnv(task, max_steps=5)
    observation, info = env.reset()
    assert info["actions"] == ()
    counts = observation["location_masks"][:-1].sum(axis=-1)
    assert (counts == env.state.counts).all() and counts.sum() < task.initial.counts.sum()
    xfer_id = task.rules.index("bias-gelu-standard")
    observation, reward, terminated, truncated, info = env.step((xfer_id, 0))
    assert info["valid"] and len(info["actions"]) == 4 and not terminated and not truncated
    after = replayed(task.initial, info["actions"])
    assert env.state.hash == after.hash and reward == relative(task.initial, after, task.initial)
    _, _, _, _, info = env.step((xfer_id, 0))
    assert not info["valid"] and info["actions"] == ()


def test_an_episode_of_random_play_consists_of_single_rewrites():
    task = task_of(4)
    for index in range(5):
        episode = play_random(task, relative, 12, np.random.default_rng(index))
        assert len(episode) <= 12
        state = task.initial
        for (xfer_id, location), cost in zip(episode.actions.tolist(), episode.costs[1:], strict=True):
            state = state if xfer_id == task.no_op else state.apply(xfer_id, location)
            assert state.objective / task.per_unit == cost


def test_stages_that_choose_single_rewrites_refuse_batched_moves():
    class Run:
        config = load_config(overrides=["env.moves=batched"])

    with pytest.raises(RLFlowError, match="env.moves=batched is for random play"):
        check_single_moves(Run)


def test_the_former_name_of_batched_is_refused():
    with pytest.raises(RLFlowError, match="'search.moves' is one of single, batched, not 'alike'"):
        load_config(overrides=["search.moves=alike"])
    with pytest.raises(RLFlowError, match="moves is one of single, batched, not 'alike'"):
        start_of(task_of(1), "alike")
