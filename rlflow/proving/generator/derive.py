"""Whether equalities that are known already make two terms equal: a small e-graph.

It holds classes of equal terms. Known equalities are matched in it and add what they say, until the two terms are in
one class or a bound is reached. Beyond the bound a term counts as not derived: then a rule too many is kept.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from rlflow.proving.generator.operators import COMMUTATIVE, SCALARS, Label, Node, Term, variables


class Bounds(NamedTuple):
    iterations: int
    nodes: int


QUICK, THOROUGH = Bounds(4, 400), Bounds(5, 1000)

Equality = tuple[Term, Term]


class EGraph:
    """Terms up to equality. A node is (label or variable, slot, classes of its inputs)."""

    def __init__(self):
        self.parent: list[int] = []
        self.scalar: list[bool] = []  # whether the class is one of single numbers
        self.classes: dict[tuple, int] = {}  # node → class

    def find(self, result: int) -> int:
        while self.parent[result] != result:
            self.parent[result] = result = self.parent[self.parent[result]]
        return result

    def canonical(self, node: tuple) -> tuple:
        label, slot, children = node
        children = tuple(map(self.find, children))
        return label, slot, tuple(sorted(children)) if _commutes(label) else children

    def node(self, node: tuple) -> int:
        node = self.canonical(node)
        if node not in self.classes:
            self.classes[node] = len(self.parent)
            self.parent.append(len(self.parent))
            label, _, children = node
            self.scalar.append(all(self.scalar[k] for k in children) if children else label in SCALARS)
        return self.find(self.classes[node])

    def add(self, term: Term, scope: dict[str, int] | None = None) -> int:
        """The class of a term whose variables stand for classes, or for themselves."""
        if isinstance(term, str):
            return self.find(scope[term]) if scope is not None else self.node((term, 0, ()))
        return self.node((term.label, term.slot, tuple(self.add(child, scope) for child in term.inputs)))

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.find(one), self.find(other)))
        self.parent[other] = one

    def rebuild(self) -> None:
        """Joins the classes of nodes that have become alike."""
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
        """(class, label, slot) → inputs of the nodes there; label → classes where it stands."""
        nodes, positions = defaultdict(list), defaultdict(dict)
        for (label, slot, children), result in self.classes.items():
            result = self.find(result)
            nodes[result, label, slot].append(children)
            positions[label, slot][result] = None
        return nodes, positions


def _commutes(label: Label | str) -> bool:
    return isinstance(label, Label) and label.op in COMMUTATIVE


def derivable(one: Term, other: Term, known: list[Equality], bounds: Bounds = QUICK) -> bool:
    """Whether `known` joins the two within the bounds."""
    graph = EGraph()
    ends = graph.add(one), graph.add(other)
    return any(graph.find(ends[0]) == graph.find(ends[1]) for _ in _saturated(graph, known, bounds))


def reachable(source: tuple[Term, ...], target: tuple[Term, ...], known: list[Equality], merges: list[tuple]) -> bool:
    """Whether rewriting a graph with several outputs leads to another one, whose operators it need not have.

    merges: (outputs, the same outputs out of one Split) pairs that are known.
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
    """Adds what `known` says until there is nothing new or a bound is reached, and pauses after every iteration."""
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
    """The ways in which the pattern occurs in the class."""
    if isinstance(pattern, str):
        if scope.get(pattern, position) == position and (pattern not in SCALARS or graph.scalar[position]):
            yield {**scope, pattern: position}
        return
    for children in nodes.get((position, pattern.label, pattern.slot), ()):
        orders = (children, children[::-1]) if _commutes(pattern.label) and children[0] != children[1] else (children,)
        for order in orders:
            yield from _matches_all(nodes, graph, pattern.inputs, order, scope)


def _matches_all(nodes: dict, graph: EGraph, patterns: tuple, positions: tuple, scope: dict) -> Iterator[dict]:
    if not patterns:
        yield scope
        return
    for result in _matches(nodes, graph, patterns[0], positions[0], scope):
        yield from _matches_all(nodes, graph, patterns[1:], positions[1:], result)


def instance(pattern: Term, term: Term, scope: dict[str, Term]) -> dict[str, Term] | None:
    """What the pattern's variables stand for if the term is an instance of it as it is written."""
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
