"""Test the searchable dream: a search gets the same answers from it as from the real state, and its states are
immutable."""

import numpy as np
import pytest

from rlflow.collect.edits import first_edit
from rlflow.env.state import Task
from rlflow.search.base import Limits, Position, Search, run_search
from tests.search.test_searches import gains_kept
from tests.suite import at_night, slow
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    random_episodes,
    signs_and_products,
    task_of,
)
from tests.toys.tiny import tiny_task
from worldmodel.edits.logged_episodes import EpisodeFollower
from worldmodel.edits.model import EditsWorldModel
from worldmodel.edits.searchable_dream import SearchableMatch, SearchableState, mark
from worldmodel.edits.simulator import BY_ANALOGY, NEW_NEIGHBOURHOOD, UNKNOWN_EFFECT

OPTIONS = {
    "greedy": {"max_steps": 100},
    "beam": {"width": 2, "depth": 2, "radius": 1},
    "annealing": {"restarts": 3, "steps": 10, "hot": 0.5, "cold": 0.01, "focus": 0.9},
}


def known(task: Task) -> tuple[EditsWorldModel, Task]:
    return fitted(random_episodes(task, 60, 12), task), task


@pytest.fixture(scope="module")
def toy():
    """Return (model, task) of the toy with signs and products; the model knows all of its rewrites."""
    return known(task_of(signs_and_products(), SIGNS_AND_PRODUCTS))


@pytest.fixture(scope="module")
def squeezenet():
    """Return (model, task) of a small SqueezeNet; the model knows nearly everything that random play meets."""
    return known(tiny_task("tiny_squeezenet1_1"))


@pytest.fixture(params=["toy", *slow("squeezenet")])
def system(request):
    return request.getfixturevalue(request.param)


def open_matches(state: SearchableState) -> list[tuple[int, int, SearchableMatch]]:
    """Return (xfer_id, location, match) of every match that the state offers."""
    offered = set(state.matches)
    return [
        (x, k, match) for x in range(len(state.counts)) for k, match in enumerate(state.of_rule(x)) if match in offered
    ]


def uncertain(model: EditsWorldModel, task: Task, actions: list[tuple[int, int]]) -> list[float]:
    """Return the model's uncertainty of each step in a new imagined rollout."""
    imagined = model.imagine(task.initial, 1)
    return [
        float(imagined.advance(np.array([action]), np.ones(1, bool), 0.0, (0, 0)).uncertainty[0]) for action in actions
    ]


# -- dream and reality -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(at_night(4, 1)))
def test_a_searchable_dream_equals_the_real_state_and_the_controllers_dream(system, seed):
    model, task = system
    rng, state, real = np.random.default_rng(seed), model.searchable(task.initial, 0.0), task.initial
    observer, imagined, steps = model.observer(), model.imagine(task.initial, 1), 0
    observer.begin(real)
    for _ in range(12):
        assert np.array_equal(state.counts, real.counts) and np.array_equal(state.counts, imagined.counts[0])
        assert state.counts.dtype == np.int32
        assert state.objective == real.objective
        gained = 100 * (1 - real.objective / task.initial.objective)
        assert state.gained == pytest.approx(gained, abs=1e-6)
        offered = open_matches(state)
        if not offered:
            break
        xfer_id, location, match = offered[rng.integers(len(offered))]
        assert state.match(xfer_id, location) is match
        after = state.follow(match)
        predicted = imagined.advance(np.array([[xfer_id, location]]), np.ones(1, bool), 0.0, (0, 0))
        if predicted.uncertainty[0] > 0:
            assert after is state
            break
        real = real.apply(*observer.real_action((xfer_id, location)))
        observer.follow((xfer_id, location), real)
        assert predicted.rewards[0] == pytest.approx(after.gained - state.gained, abs=1e-6)
        state, steps = after, steps + 1
    assert steps >= 3


def test_near_gives_the_same_neighbourhood_as_the_graph(system):
    model, task = system
    state, real = model.searchable(task.initial, 0.0), task.initial
    number = EpisodeFollower(state.dream.index.grounding, first_edit(real)).nodes
    outputs = {number[n] for n in number if n < 0}
    for node in real.graph.nodes:
        for reach in range(4):
            if not real.graph.nodes[node].constant:
                result = {number[n] for n in real.near([node], reach)}
                assert state.near([number[node]], reach) - outputs == result


@pytest.mark.parametrize("method", list(OPTIONS))
def test_a_search_in_a_dream_finds_the_same_result_as_on_the_real_graph(system, method):
    model, task = system
    dreamt = run_search(method, model.searchable(task.initial, NEW_NEIGHBOURHOOD), **OPTIONS[method])
    real = run_search(method, task.initial, **OPTIONS[method])
    if method == "annealing":  # Annealing draws from the matches in another order.
        assert dreamt.state.objective <= run_search("greedy", task.initial, max_steps=100).state.objective
    else:
        assert dreamt.state.objective == real.state.objective < task.initial.objective
    observer, state = model.observer(), task.initial
    observer.begin(state)
    for action in dreamt.actions:
        after = state.apply(*observer.real_action(action))
        observer.follow(action, after)
        state = after
    assert state.objective == dreamt.state.objective


# -- values ----------------------------------------------------------------------------------------


def answers_of(state: SearchableState) -> tuple:
    return (
        state.objective,
        state.hash,
        state.touched,
        state.counts.tolist(),
        [m.number for m in state.matches],
        sorted(state.near(state.touched, 2)),
    )


def test_the_answers_of_a_state_do_not_change_while_the_grounding_grows(system):
    """A state's answers do not change while other states follow from it and the grounding grows."""
    model, task = system
    rng, start = np.random.default_rng(0), model.searchable(task.initial, 0.0)
    states, answers = [start], [answers_of(start)]
    for _ in range(25):
        at = states[rng.integers(len(states))]
        if at.matches:
            states.append(at.follow(at.matches[rng.integers(len(at.matches))]))
            answers.append(answers_of(states[-1]))
    assert [answers_of(state) for state in states] == answers


def test_states_made_before_and_after_the_grounding_grew_give_equal_answers(toy):
    _, task = toy
    model, _ = known(task)
    early = model.searchable(task.initial, 0.0)
    size = len(early.dream.index.grounding.matches)
    run_search("beam", model.searchable(task.initial, 0.0), **OPTIONS["beam"])
    assert len(early.dream.index.grounding.matches) > size
    late = model.searchable(task.initial, 0.0)
    assert answers_of(early) == answers_of(late)
    for one, other in zip(early.matches, late.matches, strict=True):
        assert answers_of(early.follow(one)) == answers_of(late.follow(other))


def test_states_have_equal_hashes_exactly_if_their_nodes_are_equal(toy):
    model, task = toy
    start, nodes_of = model.searchable(task.initial, 0.0), {}
    waiting = [start]
    ways = 0
    while waiting and len(nodes_of) < 60:
        state = waiting.pop(0)
        producer = state.states.producer[0]
        nodes = frozenset(producer[producer >= 0].tolist())
        assert nodes_of.setdefault(state.hash, nodes) == nodes
        assert state.hash == sum(map(mark, nodes))
        for match in state.matches:
            after = state.follow(match)
            if after.hash in nodes_of:
                ways += 1
            else:
                waiting.append(after)
    assert ways > 20 and len(set(nodes_of.values())) == len(nodes_of)


def test_the_marks_of_any_two_nodes_have_a_sum_of_their_own():
    marks = [mark(node) for node in range(300)]
    sums = [one + other for k, one in enumerate(marks) for other in marks[:k]]
    assert len(set(sums)) == len(sums)


# -- uncertainty -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.0, *slow(BY_ANALOGY, NEW_NEIGHBOURHOOD, 99.0)])
def test_rewrites_above_the_uncertainty_limit_are_on_no_path(limit):
    """Check searches and single steps of a model that saw few rewrites, each once."""
    task = tiny_task("tiny_squeezenet1_1")
    model = fitted(random_episodes(task, 2, 6), task)
    for method in OPTIONS:
        result = run_search(method, model.searchable(task.initial, limit), Limits(interactions=300), **OPTIONS[method])
        assert all(uncertainty <= min(limit, BY_ANALOGY) for uncertainty in uncertain(model, task, result.actions))
    uncertainties = []
    start = model.searchable(task.initial, limit)
    for xfer_id in range(len(start.counts)):
        for location, match in enumerate(start.of_rule(xfer_id)):
            uncertainties.append(uncertain(model, task, [(xfer_id, location)])[0])
            assert (start.follow(match) is start) == (uncertainties[-1] > min(limit, BY_ANALOGY))
    assert UNKNOWN_EFFECT in uncertainties and 0.0 in uncertainties


def test_refused_rewrites_do_not_affect_the_temperature_of_annealing():
    """A stand-in loss for "not allowed" would make all other losses small in comparison."""
    task = tiny_task("tiny_squeezenet1_1")
    model = fitted(random_episodes(task, 2, 6), task)
    start = model.searchable(task.initial, 0.0)
    position = Position(Search(start), start)
    shown = sum(start.counts.tolist())
    assert 0 < len(position.matches) < shown
    assert all(abs(position.gain(match)) < start.objective for match in position.matches)


# -- gains -----------------------------------------------------------------------------------------


def test_kept_gains_equal_recomputed_gains(squeezenet):
    model, task = squeezenet
    assert gains_kept(model.searchable(task.initial, NEW_NEIGHBOURHOOD), 1) > 20


def test_a_gain_is_recomputed_after_another_consumer_is_removed():
    """Both Max nodes read Exp, which is removed together with the last of its consumers."""
    rules = "drop: a toy\n  Max(x, y) => Neg(x)"
    model, task = known(
        task_of(onnx_model("p = Exp(z)\na = Max(x, p)\nb = Max(y, p)", {name: (4, 8) for name in "xyz"}, "a b"), rules)
    )
    start = model.searchable(task.initial, 0.0)
    position = Position(Search(start), start)
    first, second = position.matches
    single = position.gain(second)
    after = position.after(first)
    assert after.gain(second) == after.objective - after.state.follow(second).objective > single
