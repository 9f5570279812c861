"""Test the integer program against brute force on random systems with shared classes, cycles and several outputs."""

import itertools
import random

import pytest

from rlflow.search.saturation import extract as extraction
from rlflow.search.saturation.extract import Option, extract
from tests.suite import at_night, each_of


def random_options(seed: int, classes: int, count: int) -> list[Option]:
    """Return random options for the wanted class 0. The two highest classes need nothing; all other needs are random,
    so that there are cycles."""
    draw = random.Random(seed)
    result = [Option(draw.randint(0, 30), (classes - 1 - k,), (), k) for k in range(2)]
    for node in range(2, count):
        makes = tuple(draw.sample(range(classes), 2 if draw.random() < 0.25 else 1))
        rest = [c for c in range(classes) if c not in makes]
        result.append(
            Option(draw.choice([0, 1, 3, 10, 20]), makes, tuple(draw.sample(rest, draw.choice([1, 1, 2, 3]))), node)
        )
    return result


def founded(options) -> set[int]:
    made: set[int] = set()
    while new := {c for option in options if made.issuperset(option.needs) for c in option.makes} - made:
        made |= new
    return made


def brute_force(options: list[Option], wanted: set[int]) -> int:
    """Return the cost of the cheapest founded subset of the options that makes the wanted classes."""
    best = None
    for size in range(len(options) + 1):
        for subset in itertools.combinations(options, size):
            cost = sum(option.cost for option in subset)
            if (best is None or cost < best) and wanted <= founded(subset):
                best = cost
    return best


SYSTEMS = [
    (seed, wanted) for seed in range(60) for wanted in ((0,),
        (0, 1)) if founded(random_options(seed, 7, 13)).issuperset(wanted)
]  # fmt: skip


@each_of(SYSTEMS[:: at_night(1, 2)])
def test_the_cheapest_choice_is_chosen_and_is_the_bound(system):
    seed, wanted = system
    options = random_options(seed, 7, 13)
    cheapest = brute_force(options, set(wanted))
    bound, choice = extract(options, wanted, sum(option.cost for option in options), 20)
    assert bound == cheapest
    assert sum(option.cost for option in choice) == cheapest
    assert set(wanted) <= founded(choice)
    assert all(founded(choice[:k]).issuperset(option.needs) for k, option in enumerate(choice))


def test_some_of_the_test_systems_would_be_cheaper_with_cycles():
    """Check that some of the systems are cheaper with cycles; otherwise the test above would show nothing."""
    systems = [random_options(seed, 7, 13) for seed, wanted in SYSTEMS if wanted == (0,)]
    assert len(systems) > 20
    cheaper = (options for options in systems if cheapest_with_circles(options) < brute_force(options, {0}))
    assert len(list(itertools.islice(cheaper, 3))) == 3


def cheapest_with_circles(options: list[Option]) -> int:
    """Return the cost of the cheapest subset in which every need is made, cycles included."""
    costs = []
    for size in range(1, len(options) + 1):
        for subset in itertools.combinations(options, size):
            made = {c for option in subset for c in option.makes}
            if 0 in made and all(made.issuperset(option.needs) for option in subset):
                costs.append(sum(option.cost for option in subset))
    return min(costs)


@pytest.mark.parametrize("seed", [seed for seed, wanted in SYSTEMS if wanted == (0,)][:: at_night(1, 3)])
def test_a_known_cost_narrows_the_search_and_leaves_the_bound_valid(seed):
    """The bound does not depend on whether the known cost is the best or a high one, and it never exceeds the known
    cost."""
    options = random_options(seed, 7, 13)
    cheapest, _ = extract(options, [0], 10_000, 20)
    bound, choice = extract(options, [0], cheapest, 20)
    assert bound == sum(option.cost for option in choice) == cheapest
    assert extract(options, [0], max(cheapest - 1, 0), 20)[0] <= max(cheapest - 1, 0)


def test_equal_components_are_solved_once(monkeypatch):
    """Solve a chain of equal blocks: class 3k is made from class 3k + 3 by either of two pairs that share an inner
    class."""
    options = [Option(5, (30,), (), 0)]
    for k in range(10):
        a, b = 3 * k, 3 * k + 3
        options += [
            Option(4, (a,), (a + 1, a + 2), 1), Option(3, (a + 1,), (b,), 2), Option(3, (a + 2,), (b,), 3),
            Option(1, (a + 1, a + 2), (b,), 4), Option(9, (a,), (b,), 5),
        ]  # fmt: skip
    calls = []
    solve = extraction._solve
    monkeypatch.setattr(extraction, "_solve", lambda *arguments: calls.append(arguments) or solve(*arguments))
    bound, _ = extract(options, [0], 1000, 20)
    assert bound == 5 + 10 * 5 and len(calls) < 10


def test_the_bound_of_a_search_without_time_is_valid():
    options = random_options(3, 7, 13)
    cheapest = brute_force(options, {0})
    bound, _ = extract(options, [0], 10_000, 0)
    assert 0 <= bound <= cheapest
