"""Extraction of an expression from an e-graph where sharing has a price: each shared subexpression is bound by a `let`.

`extract` counts every chosen operator once and knows no price of sharing. A `let` is cheap beside an operator, so the
bound of `extract` is nearly exact. `cheapest_shared` closes the gap where few `let`s are of use. It knows the cheapest
expressions without a `let` and with one, and all others have two or more.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from rlflow.search.saturation.extract import extract
from rlflow.search.saturation.program import Option


class Term(NamedTuple):
    """An operator of an e-graph.

    Attributes:
      label: what the caller needs to build the operator.
      cost: the cost of the operator, without its children; 0 without children.
      children: the classes of the operands.
    """

    label: object
    cost: int
    children: tuple[str, ...]


Classes = Mapping[str, list[Term]]


def cheapest_trees(classes: Classes) -> tuple[dict[str, int], dict[str, Term]]:
    """Return class → the least cost of an expression without `let`s, and class → the operator of this expression."""
    return _least(classes, lambda term, costs: term.cost + sum(costs))


def cheapest_shared(classes: Classes, root: str, let: int, known: int, seconds: float) -> tuple[int, dict[str, Term]]:
    """Return a lower bound on the cost of all expressions of a class, and class → its operator in the cheapest found.

    Args:
      classes: the e-graph; each class can be computed.
      root: the class.
      let: the cost of a `let`, less than the least cost of an operator with children.
      known: the cost of an expression that the caller knows. The bound is at most this, and a choice that costs more is
        useless.
      seconds: time limit of the integer program. The choice is empty if it ends without a choice.
    """
    trees, choice = cheapest_trees(classes)
    if not trees[root]:
        return 0, choice
    classes = pruned(classes, root, known)
    number = {name: position for position, name in enumerate(classes)}
    inner = {name for name, terms in classes.items() if terms[0].children}
    terms = [(name, term) for name in inner for term in classes[name]]
    options = []
    for position, (name, term) in enumerate(terms):
        needs = dict.fromkeys(number[child] for child in term.children if child in inner)
        options.append(Option(term.cost, (number[name],), tuple(needs), position))
    bound, chosen = extract(options, [number[root]], known, seconds)
    choice = {name: found[0] for name, found in classes.items() if name not in inner}
    choice |= {terms[option.node][0]: terms[option.node][1] for option in chosen or ()}
    bound = min(trees[root], _one_let(classes, root, trees, let), bound + 2 * let, known)
    return bound, choice if root in choice else {}


def _one_let(classes: Classes, root: str, trees: Mapping[str, int], let: int) -> int:
    """Return the least cost of an expression with exactly one `let`.

    Args:
      classes: the e-graph.
      root: the class of the expression.
      trees: class → least cost without a `let`.
      let: the cost of a `let`.
    """
    costs = []
    for name in classes:
        bound = {**classes, name: [Term(None, 0, ())]}
        costs.append(cheapest_trees(bound)[0][root] + trees[name] + let)
    return min(costs)


def pruned(classes: Classes, root: str, most: int) -> dict[str, list[Term]]:
    """Drop operators that no expression of at most a given cost contains, and return class → its other operators.

    A shared subexpression counts once in this cost. A class that has an operator without children keeps only this
    operator. A chain of operators from the root down to a class and a chain from this class down have no common
    operator, so their costs add up.

    Args:
      classes: the e-graph.
      root: the class of the expression.
      most: the largest cost of an expression.
    """
    leaves = {name: [term for term in terms if not term.children][:1] for name, terms in classes.items()}
    classes = {name: leaves[name] or terms for name, terms in classes.items()}
    below, _ = _least(classes, lambda term, costs: term.cost + max(costs, default=0))
    above, queue = {root: 0}, [(0, root)]
    kept: dict[str, list[Term]] = {}
    while queue:
        cost, name = heappop(queue)
        if name in kept:
            continue
        kept[name] = []
        for term in classes[name]:
            if cost + term.cost + max((below[child] for child in term.children), default=0) <= most:
                kept[name].append(term)
                for child in term.children:
                    if cost + term.cost < above.get(child, inf):
                        above[child] = cost + term.cost
                        heappush(queue, (above[child], child))
    return kept


def _least(classes: Classes, total: Callable[[Term, list[int]], int]) -> tuple[dict[str, int], dict[str, Term]]:
    """Return class → its least number, and class → the operator that has this number.

    Args:
      classes: the e-graph.
      total: a function that returns the number of an operator, given the operator and the numbers of its children. The
        result must not fall if the number of a child grows.
    """
    least: dict[str, int] = {}
    choice: dict[str, Term] = {}
    changed = True
    while changed:
        changed = False
        for name, terms in classes.items():
            for term in terms:
                if all(child in least for child in term.children):
                    number = total(term, [least[child] for child in term.children])
                    if number < least.get(name, inf):
                        least[name], choice[name], changed = number, term, True
    return least, choice
