"""Decide if known equalities imply that two terms are equal, with a small e-graph.

The e-graph holds classes of equal terms. Known equalities are matched in it and applied until the two terms are in one
class or a limit is reached. If the limit is reached, the equality counts as not implied, so a redundant rule may be
kept.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from rlflow.proving.generator.operators import COMMUTATIVE, SCALARS, Label, Node, Term, variables


class Bounds(NamedTuple):
    """The limits of equality saturation.

    Attributes:
      iterations: the largest number of times that all equalities are applied.
      nodes: the number of e-graph nodes above which saturation stops.
    """

    iterations: int
    nodes: int


QUICK, THOROUGH = Bounds(4, 400), Bounds(5, 1000)

Equality = tuple[Term, Term]


class EGraph:
    """An e-graph: classes of equal terms. A node is (label or variable, slot, classes of its inputs)."""

    def __init__(self):
        self.parent: list[int] = []
        self.scalar: list[bool] = []  # by class: True if it holds single numbers
        self.classes: dict[tuple, int] = {}  # node → class

    def find(self, result: int) -> int:
        """Return the class that represents a class and all classes joined with it."""
        while self.parent[result] != result:
            self.parent[result] = result = self.parent[self.parent[result]]
        return result

    def canonical(self, node: tuple) -> tuple:
        """Return the node with each input class replaced by `find`, and sorted inputs if the operator commutes."""
        label, slot, children = node
        children = tuple(map(self.find, children))
        return label, slot, tuple(sorted(children)) if _commutes(label) else children

    def node(self, node: tuple) -> int:
        """Add a node if it is new, and return its class."""
        node = self.canonical(node)
        if node not in self.classes:
            self.classes[node] = len(self.parent)
            self.parent.append(len(self.parent))
            label, _, children = node
            self.scalar.append(all(self.scalar[k] for k in children) if children else label in SCALARS)
        return self.find(self.classes[node])

    def add(self, term: Term, scope: dict[str, int] | None = None) -> int:
        """Add a term and return its class.

        Args:
          term: the term.
          scope: variable → the class that replaces it in the term; None to add the variables as nodes.
        """
        if isinstance(term, str):
            return self.find(scope[term]) if scope is not None else self.node((term, 0, ()))
        return self.node((term.label, term.slot, tuple(self.add(child, scope) for child in term.inputs)))

    def join(self, one: int, other: int) -> None:
        """Merge two classes, whose terms are then equal."""
        one, other = sorted((self.find(one), self.find(other)))
        self.parent[other] = one

    def rebuild(self) -> None:
        """Merge the classes of nodes that have become equal because their input classes were merged."""
        changed = True
        while changed:
            changed, classes = False, {}
            for node, result in self.classes.items():
                node, result = self.canonical(node), self.find(result)
                before = self.find(classes.setdefault(node, result))
                if before != result:
                    self.join(before, result)
                    changed = True
            self.classes = classes

    def by_root(self) -> dict:
        """Return two tables of the nodes: (class, label, slot) → lists of input classes, (label, slot) → classes."""
        nodes, positions = defaultdict(list), defaultdict(dict)
        for (label, slot, children), result in self.classes.items():
            result = self.find(result)
            nodes[result, label, slot].append(children)
            positions[label, slot][result] = None
        return nodes, positions


def _commutes(label: Label | str) -> bool:
    return isinstance(label, Label) and label.op in COMMUTATIVE


def derivable(one: Term, other: Term, known: list[Equality], bounds: Bounds = QUICK) -> bool:
    """Return True if known equalities are found to imply that two terms are equal.

    Args:
      one, other: the terms.
      known: the equalities.
      bounds: the limits of the search.
    """
    graph = EGraph()
    ends = graph.add(one), graph.add(other)
    return any(graph.find(ends[0]) == graph.find(ends[1]) for _ in _saturated(graph, known, bounds))


def reachable(source: tuple[Term, ...], target: tuple[Term, ...], known: list[Equality], merges: list[tuple]) -> bool:
    """Return True if known equalities and merges are found to turn one graph with several outputs into another graph.

    Args:
      source, target: the outputs of both graphs, equal by position; the target may have further operators.
      known: the equalities.
      merges: (outputs, the same outputs as the parts of one Split) pairs.
    """
    graph = EGraph()
    ends = [graph.add(term) for term in source]
    for _ in _saturated(graph, known, QUICK):
        pass
    nodes, positions = graph.by_root()
    for outputs, merged in merges:
        for chosen in product(*(list(positions[term.label, term.slot]) for term in outputs)):
            for scope in list(_matches_all(nodes, graph, outputs, chosen, {})):
                for position, term in zip(chosen, merged, strict=True):
                    graph.join(position, graph.add(term, scope))
    graph.rebuild()
    for _ in _saturated(graph, known, QUICK):
        pass
    return all(graph.find(end) == graph.add(term) for end, term in zip(ends, target, strict=True))


def _saturated(graph: EGraph, known: list[Equality], bounds: Bounds) -> Iterator[None]:
    """Apply the known equalities in both directions until nothing changes or a limit is reached.

    Yield None after every iteration.
    """
    steps = [
        (source, target)
        for pair in known
        for source, target in (pair, pair[::-1])
        if isinstance(source, Node) and set(variables(target)) <= set(variables(source))
    ]
    for _ in range(bounds.iterations):
        nodes, positions = graph.by_root()
        before = len(graph.parent), len(graph.classes)
        for source, target in steps:
            for position in positions[source.label, source.slot]:
                for scope in list(_matches(nodes, graph, source, position, {})):
                    graph.join(position, graph.add(target, scope))
                if len(graph.classes) > bounds.nodes:
                    break
        graph.rebuild()
        yield
        if len(graph.classes) > bounds.nodes or before == (len(graph.parent), len(graph.classes)):
            return


def _matches(nodes: dict, graph: EGraph, pattern: Term, position: int, scope: dict[str, int]) -> Iterator[dict]:
    """Yield each assignment, variable → class, for which a class contains an instance of a pattern.

    Args:
      nodes: the first table of `EGraph.by_root`.
      graph: the e-graph.
      pattern: the term whose variables are assigned.
      position: the class.
      scope: the assignments that are already fixed.
    """
    if isinstance(pattern, str):
        if scope.get(pattern, position) == position and (pattern not in SCALARS or graph.scalar[position]):
            yield {**scope, pattern: position}
        return
    for children in nodes.get((position, pattern.label, pattern.slot), ()):
        orders = (children, children[::-1]) if _commutes(pattern.label) and children[0] != children[1] else (children,)
        for order in orders:
            yield from _matches_all(nodes, graph, pattern.inputs, order, scope)


def _matches_all(nodes: dict, graph: EGraph, patterns: tuple, positions: tuple, scope: dict) -> Iterator[dict]:
    """Yield each assignment, variable → class, for which each class contains an instance of its pattern.

    The arguments are as in `_matches`, with one class in `positions` for each pattern.
    """
    if not patterns:
        yield scope
        return
    for result in _matches(nodes, graph, patterns[0], positions[0], scope):
        yield from _matches_all(nodes, graph, patterns[1:], positions[1:], result)


def instance(pattern: Term, term: Term, scope: dict[str, Term]) -> dict[str, Term] | None:
    """Match a pattern against a term without using equalities, except that Add and Mul commute.

    Args:
      pattern: the term whose variables are assigned.
      term: the term to match.
      scope: the assignments, variable → term, that are already fixed.

    Returns:
      the scope with further assignments, or None if the term is not an instance of the pattern.
    """
    if isinstance(pattern, str):
        fits = pattern not in SCALARS or SCALARS.issuperset(variables(term))
        return {**scope, pattern: term} if fits and scope.get(pattern, term) == term else None
    if isinstance(term, str) or (pattern.label, pattern.slot) != (term.label, term.slot):
        return None
    orders = (term.inputs, term.inputs[::-1]) if _commutes(term.label) else (term.inputs,)
    for order in orders:
        result: dict | None = scope
        for child, subject in zip(pattern.inputs, order, strict=True):
            result = instance(child, subject, result) if result is not None else None
        if result is not None:
            return result
    return None
