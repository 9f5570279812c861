"""Test extraction with a price for sharing against an enumeration of all choices, on small random e-graphs."""

from itertools import product
from math import inf

import numpy as np
import pytest

from rlflow.search.saturation.sharing import Term, cheapest_shared, cheapest_trees, pruned

LET = 1


def random_classes(seed: int) -> dict[str, list[Term]]:
    """Return six random classes. The last two hold a variable. Operators may refer to any class, so there are
    cycles."""
    rng = np.random.default_rng(seed)
    names = [f"c{k}" for k in range(6)]
    classes = {name: [Term("leaf", 0, ())] for name in names[4:]}
    for number, name in enumerate(names[:4]):
        below = names[number + 1 :]
        first = Term("op", 10 * int(rng.integers(1, 4)), tuple(rng.choice(below, 2)))
        others = [Term("op", 10 * int(rng.integers(1, 4)), tuple(rng.choice(names, 2))) for _ in range(2)]
        classes[name] = [first, *others]
    return classes


def cost_of(choice: dict[str, Term], root: str) -> float:
    """Return the cost of a choice with a `let` for each class that is used twice; infinite for a cycle."""
    uses: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> float:
        if name in above:
            return inf
        uses[name] = uses.get(name, 0) + 1
        if uses[name] > 1:
            return 0
        return choice[name].cost + sum(visit(child, (*above, name)) for child in choice[name].children)

    total = visit(root, ())
    return total + LET * sum(count > 1 and bool(choice[name].children) for name, count in uses.items())


def enumerated(classes: dict[str, list[Term]], root: str) -> float:
    return min(cost_of(dict(zip(classes, terms, strict=True)), root) for terms in product(*classes.values()))


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_and_the_choice_agree_with_the_enumeration(seed):
    classes = random_classes(seed)
    best = enumerated(classes, "c0")
    trees, choice = cheapest_trees(classes)
    assert trees["c0"] >= cost_of(choice, "c0") >= best
    known = int(cost_of(choice, "c0"))
    bound, choice = cheapest_shared(classes, "c0", LET, known, 10.0)
    found = cost_of(choice, "c0") if choice else known
    assert bound <= best <= found <= best + 3 * LET
    assert enumerated(pruned(classes, "c0", int(best)), "c0") == best


def test_one_let_is_proved_the_cheapest():
    """Extract (x + y)² with a shared sum. Without the `let`, the sum is computed twice."""
    x, y = [Term("x", 0, ())], [Term("y", 0, ())]
    classes = {"square": [Term("mul", 20, ("sum", "sum"))], "sum": [Term("add", 10, ("x", "y"))], "x": x, "y": y}
    bound, choice = cheapest_shared(classes, "square", LET, 40, 10.0)
    assert bound == cost_of(choice, "square") == 31


def test_two_lets_are_within_the_bound():
    """Extract ((x + y)²)² with two shared classes. The known cost is far too high, so the integer program gives the
    bound."""
    x, y = [Term("x", 0, ())], [Term("y", 0, ())]
    classes = {"x": x, "y": y, "sum": [Term("add", 10, ("x", "y"))]}
    classes |= {"square": [Term("mul", 20, ("sum", "sum"))], "fourth": [Term("mul", 20, ("square", "square"))]}
    bound, choice = cheapest_shared(classes, "fourth", LET, 100, 10.0)
    assert bound == cost_of(choice, "fourth") == 52
