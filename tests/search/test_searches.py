"""Test the properties that every search has, and the properties of each search."""

import itertools
import math

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.env.state import RewriteState, Task
from rlflow.optimisation.candidates import follow
from rlflow.optimisation.receipt import model_hash
from rlflow.search import SEARCHES
from rlflow.search import base as module
from rlflow.search import best_first as taso_module
from rlflow.search.base import Limits, Position, Search, run_search
from rlflow.search.beam import _Restart
from rlflow.search.best_first import best_first
from rlflow.search.descents import greedy
from rlflow.search.random_walks import annealing
from tests.search.test_greedy import replayed
from tests.suite import at_night, slow
from tests.toys.chains import OperatorCosts, losing_first, random_task, toy_task
from tests.toys.reachable import reachable_costs
from tests.toys.tiny import tiny_task

OPTIONS = {
    "random": {"max_steps": 10, "episodes": 5},
    "greedy": {"max_steps": 100},
    "taso": {"alpha": 1.05, "budget": 20},
    "best-first": {"budget": 30},
    "beam": {"width": 2, "depth": 2, "radius": 1},
    "annealing": {"restarts": 5, "steps": 20, "hot": 0.5, "cold": 0.01, "focus": 0.9},
    "descent": {"max_steps": 100},
    "grasp": {"unit": 1e-5, "max_steps": 100, "patience": 3},
}
MODELS = ["tiny_squeezenet1_1", "tiny_resnet18", "tiny_bert_base_fused"]
BEYOND_GREEDY = ["taso", "best-first", "beam", "annealing"]
METHODS = list(SEARCHES)


class Bar:
    """A progress bar that stores its last text."""

    def __init__(self):
        self.n, self.text = 0, ""

    def update(self, n: int) -> None:
        self.n += n

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.text = text


def searched(method: str, state, limits=Limits(), seed: int = 0, **changes):
    return run_search(method, state, limits, seed, **(OPTIONS[method] | changes))


# -- every search ----------------------------------------------------------------------------------


def test_every_search_method_has_options_in_this_file():
    assert OPTIONS.keys() == set(METHODS)


@pytest.mark.parametrize("name", [MODELS[0], *slow(*MODELS[1:])])
@pytest.mark.parametrize("method", METHODS)
def test_the_actions_of_a_search_lead_to_the_result_and_the_trace_to_its_cost(method, name):
    start = tiny_task(name).initial
    result = searched(method, start)
    limit = start.task.max_locations
    assert all(type(x) is int and type(k) is int and k < limit for x, k in result.actions)
    assert replayed(start, result.actions).graph.hash == result.state.graph.hash
    seconds, interactions, costs = zip(*result.trace, strict=True)
    assert costs[0] == start.cost.runtime_ps and costs[-1] == result.state.cost.runtime_ps
    assert all(after < before for before, after in itertools.pairwise(costs))
    assert list(seconds) == sorted(seconds) and list(interactions) == sorted(interactions)
    assert interactions[-1] <= result.interactions and seconds[-1] <= result.seconds


@pytest.mark.parametrize("method", METHODS)
def test_no_search_ends_above_the_start_and_no_descending_search_above_greedy(method):
    for name in at_night(MODELS, MODELS[:1]):
        start = tiny_task(name).initial
        cost = searched(method, start).state.cost.runtime_ps
        assert cost <= start.cost.runtime_ps
        if method in ("best-first", "beam", "annealing"):
            assert cost <= greedy(start, 100).state.cost.runtime_ps


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_result(method):
    def run(seed):
        result = searched(method, tiny_task("tiny_squeezenet1_1").initial, seed=seed)
        return result.actions, result.interactions, result.stop, [point[1:] for point in result.trace]

    assert run(1) == run(1)
    if method in ("random", "annealing", "grasp"):
        assert any(run(1) != run(seed) for seed in (2, 3, 4))  # Two seeds may give the same result.


@pytest.mark.parametrize("method", METHODS)
def test_searches_respect_limits_on_interactions_seconds_and_memory(method, monkeypatch):
    start = tiny_task("tiny_squeezenet1_1").initial
    whole = searched(method, start)
    result = searched(method, start, Limits(interactions=25))
    assert (result.stop, result.interactions) == ("interactions", 25) and whole.interactions > 25
    assert result.trace[-1][1] <= 25 and replayed(start, result.actions).graph.hash == result.state.graph.hash
    assert [point[1:] for point in whole.trace][: len(result.trace)] == [point[1:] for point in result.trace]

    ticks = itertools.count()
    # The clock advances by one second at each look.
    result = run_search(method, start, Limits(seconds=20), clock=lambda: next(ticks), **OPTIONS[method])
    assert result.stop == "seconds" and result.interactions < 20 and result.seconds < 23

    grown = iter([0, 0, *itertools.repeat(5, 10)])
    monkeypatch.setattr(module, "MEMORY_EVERY", 10)
    monkeypatch.setattr(module, "resident_memory", lambda: next(grown))
    result = searched(method, start, Limits(memory=4))
    assert (result.stop, result.interactions) == ("memory", 10)


def test_memory_freed_before_a_search_does_not_count_as_available():
    def grows(search) -> str:
        room = np.ones(40_000_000 // 8)
        search.follow(search.start, search.start.matches[0])
        return f"{len(room)} numbers"

    np.ones(120_000_000 // 8)
    start = tiny_task("tiny_squeezenet1_1").initial
    assert run_search(grows, start, Limits(memory=20_000_000)).stop == "memory"
    assert run_search(grows, start, Limits(memory=80_000_000)).stop == "5000000 numbers"


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_gives_the_best_so_far(method, monkeypatch):
    start = tiny_task("tiny_squeezenet1_1").initial
    wanted = searched(method, start, Limits(interactions=40))
    follow = Search.follow

    def interrupted(search, state, match):
        if search.interactions == 40:
            raise KeyboardInterrupt
        return follow(search, state, match)

    monkeypatch.setattr(Search, "follow", interrupted)
    result = searched(method, start)
    assert result.stop == "interrupted" and result.actions == wanted.actions
    assert result.state.graph.hash == wanted.state.graph.hash


@pytest.mark.parametrize("method", [*METHODS[::3], *slow(*sorted(set(METHODS) - set(METHODS[::3])))])
def test_the_limit_on_locations_holds(method):
    start = tiny_task("tiny_inception_v3", 2).initial
    result = searched(method, start, Limits(interactions=600))
    assert all(k < 2 for _, k in result.actions)
    assert replayed(start, result.actions).graph.hash == result.state.graph.hash


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_without_locations_is_its_own_result(method):
    start = toy_task(["Relu"], "Abs(x) => Neg(x)", {"Relu": 3}).initial
    result = searched(method, start)
    assert (result.state, result.actions, result.interactions) == (start, [], 0)


def test_the_progress_bar_counts_every_rewrite_and_shows_the_best():
    bar, start = Bar(), losing_first().initial
    result = run_search("beam", start, progress=bar, **OPTIONS["beam"])
    assert bar.n == result.interactions > 0
    assert bar.text == f"best {100 - 100 * 2009 / 2030:.2f} % lower"


def test_an_unknown_method_is_refused_by_name():
    with pytest.raises(RLFlowError, match="unknown search 'beem'; did you mean 'beam'"):
        run_search("beem", losing_first().initial)


def test_a_detour_is_left_out():
    task = toy_task(
        ["Relu"], "Relu(x) => Abs(x)\nAbs(x) => Relu(x)\nRelu(x) => Neg(x)", {"Relu": 2, "Abs": 9, "Neg": 1}
    )

    def wander(search) -> str:
        state, path = search.start, None
        for rule in (0, 1, 0, 1, 2):
            match = state.table.locations[rule][0]
            state, path = search.follow(state, match), (match, path)
            search.saw(state, path)
        return "home"

    result = run_search(wander, task.initial)
    assert (result.actions, result.interactions, result.stop, result.state.cost.runtime_ps) == ([(2, 0)], 5, "home", 1)


def test_a_detour_leaves_no_trace_in_the_bytes_of_the_model():
    """A receipt replays only the actions, and tensors are named in the order in which they were made."""
    task = tiny_task("tiny_resnet50")
    result = run_search(
        "annealing", task.initial, Limits(interactions=3000), restarts=1000, steps=50, hot=0.5, cold=0.01, focus=0.9
    )
    assert model_hash(result.state.graph) == model_hash(follow(task, result.actions).graph)


def gains_kept(start, seed: int) -> int:
    """Walk at random, compare every gain with a new computation, and return how many gains came from the position
    before."""
    search, rng = Search(start), np.random.default_rng(seed)
    position, kept = Position(search, start), 0
    for _ in range(12):
        for match in position.matches:
            before = search.interactions
            assert position.gain(match) == position.objective - position.state.follow(match).objective
            kept += search.interactions == before
        position = position.after(position.matches[rng.integers(len(position.matches))])
    return kept


def test_kept_gains_equal_recomputed_gains():
    """A gain that a position takes over from the position before equals a new computation."""
    assert gains_kept(tiny_task("tiny_squeezenet1_1").initial, 0) > 50


class Neighbourly(OperatorCosts):
    """A cost model in which Relu is cheap behind an Abs."""

    def node_cost(self, graph, node):
        before = graph.producers.get(node.inputs[0])
        cheap = node.op == "Relu" and before is not None and graph.nodes[before].op == "Abs"
        return super().node_cost(graph, node)._replace(runtime_ps=1) if cheap else super().node_cost(graph, node)


def test_a_gain_is_recomputed_when_a_neighbour_changes():
    costs = {"Tanh": 10, "Abs": 10, "Relu": 10, "Neg": 5, "Exp": 7}
    task = toy_task(["Tanh", "Relu", "Exp", "Exp"], "Tanh(x) => Abs(x)\nRelu(x) => Neg(x)", costs)
    start = Task(task.graph, task.rules, Neighbourly(costs, reach=1)).initial
    position = Position(Search(start), start)
    to_abs, to_neg = position.matches
    assert (position.gain(to_abs), position.gain(to_neg)) == (9, 5)
    assert [position.after(to_abs).gain(match) for match in position.after(to_abs).matches] == [-4]


class FarSighted(OperatorCosts):
    """A cost model in which Neg is cheap if the graph has an Abs, and costly otherwise."""

    def node_cost(self, graph, node):
        costly = node.op == "Neg" and all(other.op != "Abs" for other in graph.nodes.values())
        return super().node_cost(graph, node)._replace(runtime_ps=50) if costly else super().node_cost(graph, node)


@pytest.mark.parametrize("method", ["greedy", "descent"])
def test_a_descent_ends_in_a_local_optimum_of_a_cost_that_looks_far(method):
    costs = {"Tanh": 10, "Abs": 9, "Relu": 10, "Neg": 1, "Exp": 5}
    task = toy_task(["Tanh", "Exp", "Exp", "Exp", "Exp", "Relu"], "Relu(x) => Neg(x)\nTanh(x) => Abs(x)", costs)
    task = Task(task.graph, task.rules, FarSighted(costs, reach=6))
    result = searched(method, task.initial)
    assert (result.actions, result.stop, result.state.cost.runtime_ps) == ([(1, 0), (0, 0)], "local optimum", 30)


# -- losing first, winning later -------------------------------------------------------------------


def test_greedy_and_a_strict_descent_stay_where_the_first_step_loses():
    start = losing_first().initial
    assert greedy(start, 100).actions == []
    assert searched("taso", start, alpha=1.0).actions == []
    assert searched("annealing", start, hot=0.0).actions == []
    assert searched("beam", start, depth=1).actions == []


@pytest.mark.parametrize("method", BEYOND_GREEDY)
def test_a_loss_that_pays_later_is_taken(method):
    start = losing_first().initial
    result = searched(method, start, **{"restarts": 60} if method == "annealing" else {})
    assert result.state.cost.runtime_ps == min(reachable_costs(start).values()) == 2009 < start.cost.runtime_ps


# -- each one --------------------------------------------------------------------------------------


def expansions(monkeypatch, method: str, state, **changes) -> list[str]:
    """Return the hashes of the states whose matches a search reads, in order."""
    asked, table = [], type(state).table.func

    def spied(this):
        asked.append(this.graph.hash)
        return table(this)

    spy = RewriteState.__dict__["table"].__class__(spied)
    spy.__set_name__(RewriteState, "table")
    monkeypatch.setattr(RewriteState, "table", spy)
    run = Search(state)
    SEARCHES.get(method)(run, **(OPTIONS[method] | changes))
    return asked


@pytest.mark.parametrize("seed", [1, 9, 17])
@pytest.mark.parametrize(
    "method, changes", [("taso", {"alpha": 100.0, "budget": 10**6}), ("best-first", {"budget": 10**6})]
)
def test_no_graph_is_expanded_twice(method, changes, seed, monkeypatch):
    task = random_task(seed)
    wanted = reachable_costs(task.initial)
    start = type(task)(task.graph, task.rules, task.cost).initial  # A new task has no match table yet.
    if method == "taso":
        asked = expansions(monkeypatch, method, start, **changes)
        assert len(asked) == len(set(asked)) and set(asked) == wanted.keys()
        return
    expanded, branches = [], best_first.__globals__["_competing_matches"]
    monkeypatch.setitem(
        best_first.__globals__, "_competing_matches", lambda p: expanded.append(p.state.graph.hash) or branches(p)
    )
    run_search(method, start, **changes)
    assert len(expanded) == len(set(expanded)) > 1


@pytest.mark.parametrize("seed", range(8))
def test_taso_is_the_algorithm_of_the_paper(seed):
    """Compare with a plain implementation of the paper's queue, by the best cost after a number of expanded graphs."""
    task = random_task(seed)
    for budget in (1, 2, 5, 20):
        queue, queued, best = [task.initial], {task.initial.graph.hash}, task.initial.cost.runtime_ps
        for _ in range(budget):
            if not queue:
                break
            state = min(queue, key=lambda s: s.cost.runtime_ps)  # Of equal costs, `min` returns the first.
            queue.remove(state)
            for x, k in state.valid_actions()[:-1]:
                after = state.apply(int(x), int(k))
                if after.cost.runtime_ps < 1.3 * best and after.graph.hash not in queued:
                    queued.add(after.graph.hash)
                    queue.append(after)
                best = min(best, after.cost.runtime_ps)
        assert run_search("taso", task.initial, alpha=1.3, budget=budget).state.cost.runtime_ps == best


def test_taso_with_alpha_1_only_goes_down(monkeypatch):
    queued = []

    def push(queue, entry):
        queued.append((entry[0], entry[2].cost.runtime_ps))
        queue.append(entry)
        queue.sort()

    monkeypatch.setattr(taso_module, "heappush", push)
    for name in MODELS[:2]:
        searched("taso", tiny_task(name).initial, alpha=1.0)
    assert queued and all(child < parent for child, parent in queued)


def test_taso_queues_no_graph_of_twice_the_size():
    task = toy_task(["Relu"], "Relu(x) => Abs(Relu(x))", {"Relu": 1000, "Abs": 0})
    result = run_search("taso", task.initial, alpha=1.05, budget=100)
    # The search expands one operator, two operators, and tries a third; the stop takes one more loop.
    assert (result.stop, result.interactions) == ("nothing left to try", 3)


@pytest.mark.parametrize("seed", [s for s in range(at_night(24, 8)) if s != 8])
def test_a_wide_and_deep_beam_finds_the_cheapest_reachable_state(seed):
    start = random_task(seed).initial
    costs = reachable_costs(start)
    wide = max(len(costs), 2)
    assert run_search("beam", start, width=wide, depth=wide, radius=wide).state.cost.runtime_ps == min(costs.values())


def test_a_beam_of_width_and_depth_1_is_greedy():
    for name in MODELS:
        start = tiny_task(name).initial
        assert run_search("beam", start, width=1, depth=1, radius=1).actions == greedy(start, 100).actions


def test_a_chain_of_beam_search_stays_within_its_radius():
    """Two losing rewrites enable a gain at a third match, which is further from the first than the small radius."""
    costs = {"Relu": 10, "Abs": 11, "Exp": 100, "Neg": 1, "Tanh": 10, "Ceil": 11}
    rules = "Relu(x) => Abs(x)\nTanh(x) => Ceil(x)\nAbs(Exp(Exp(Exp(Ceil(x))))) => Neg(x)"
    task = toy_task(["Tanh", "Exp", "Exp", "Exp", "Relu"], rules, costs)
    assert run_search("beam", task.initial, width=4, depth=4, radius=1).actions == []
    assert len(run_search("beam", task.initial, width=4, depth=4, radius=4).actions) == 3


@pytest.mark.parametrize("width, depth", [(1, 3), (2, 1), (3, 2)])
def test_a_chain_carries_out_no_more_than_it_keeps(width, depth, monkeypatch):
    """A chain makes only the graphs that it keeps. Its other candidates have only gains, which are mostly known
    already."""
    base = Position(Search(tiny_task("tiny_squeezenet1_1").initial), tiny_task("tiny_squeezenet1_1").initial)
    seen, fresh, after = {base.state.graph.hash}, [], Position.after

    def spied(position, match):
        result = after(position, match)
        fresh.append(result.state.graph.hash not in seen)
        return result

    monkeypatch.setattr(Position, "after", spied)
    sizes = []
    for first in base.matches:
        fresh.clear()
        _Restart(width, depth, 1).chain(base, first, seen)
        sizes.append(sum(fresh))
    assert max(sizes) == width * depth


def test_annealing_at_temperature_0_is_descent(monkeypatch):
    costs, after = [], Position.after

    def spied(position, match):
        result = after(position, match)
        costs.append((position.objective, result.objective))
        return result

    monkeypatch.setattr(Position, "after", spied)
    for name in MODELS:
        annealing(Search(tiny_task(name).initial), **(OPTIONS["annealing"] | {"hot": 0.0}))
    assert costs and all(new <= old for old, new in costs)
    assert any(new == old for old, new in costs)


def test_a_hot_annealing_accepts_losses_less_and_less(monkeypatch):
    task = toy_task(["Relu"], "Relu(x) => Abs(x)\nAbs(x) => Relu(x)", {"Relu": 10, "Abs": 11})
    draws, gain = [], Position.gain
    monkeypatch.setattr(Position, "gain", lambda position, match: draws.append(gain(position, match)) or draws[-1])
    accepted, after = [], Position.after
    monkeypatch.setattr(
        Position, "after", lambda position, match: accepted.append(len(draws)) or after(position, match)
    )
    annealing(Search(task.initial), 1, 4000, 10.0, 0.1, 0.5)
    taken = {position - 1 for position in accepted}
    first, last = ([k in taken for k in range(*part) if draws[k] < 0] for part in ((0, 400), (3600, 4000)))
    assert np.mean(first) > 0.8 and np.mean(last) < 0.01 and min(len(first), len(last)) > 100


def test_random_search_plays_the_same_episodes_as_the_random_agent():
    """The search draws the same actions as the random agent of the paper, so that both controls are the same."""
    from rlflow.collect.rollouts import play_random

    task = tiny_task("tiny_resnet18")
    rng, best = np.random.default_rng(3), math.inf
    for _ in range(5):
        best = min(best, *play_random(task, lambda *_: 0.0, 10, rng).costs)
    result = run_search("random", task.initial, seed=3, max_steps=10, episodes=5)
    assert (result.state.runtime_ms, result.stop) == (best, "episodes")


def test_best_first_does_not_expand_every_order_of_independent_steps():
    task = toy_task(["Relu", "Exp"] * 10, "Relu(x) => Neg(x)", {"Relu": 2, "Neg": 1, "Exp": 5})
    result = run_search("best-first", task.initial, budget=10**6)
    assert result.stop == "nothing left to try" and len(result.actions) == 10
    assert result.interactions < 100  # There are 2 ** 10 subsets.


def test_the_time_before_the_first_rewrite_is_not_charged_for_each_choice_of_the_best_path():
    """A best path of many choices is repeated at the end of a search, in the time that rewrites took."""
    start, now = tiny_task("tiny_squeezenet1_1").initial, [0.0]
    search = module.Search(start, Limits(seconds=20), clock=lambda: now[0])
    now[0] = 2.0  # such as the first table of matches
    search.follow(start, start.matches[0])
    search._best_choices = 15  # as after a rewrite of 15 equal matches
    search.check()
    now[0] = 4.0  # the path would take 30 seconds
    with pytest.raises(module.LimitReached):
        search.check()
