"""The canonical order of a graph's nodes, kept by difference.

It is the depth-first post-order from the outputs, inputs left to right: topological, and a matter of structure alone,
not of names, ids, file order or history. Every node has two numbers, for the moments at which the walk discovers and
finishes it; only how they compare (`Graph.rank`) means anything. A rewrite leaves most of the walk as it was: if the
new nodes lead to the same old ones in the same turn, they get numbers in between, as for most rewrites. Else, or when a
gap is used up, the walk is repeated.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

SPACING = 1 << 64  # between neighbouring numbers of a fresh walk: room for some tens of rewrites at one node


class Order(NamedTuple):
    """Node id → when the walk meets it, and when it is done with all that the node depends on."""

    discovered: dict[int, int]
    finished: dict[int, int]


class Edit(NamedTuple):
    """What became of a graph whose order is known.

    Attributes:
      before: the order before.
      removed: node id → the nodes that it read from, in turn.
      targets: removed node id → the nodes that now give what it gave to the nodes that stay (None: no node).
      added: node id → the nodes that it reads from, in turn.
    """

    before: Order
    removed: Mapping[int, tuple[int, ...]]
    targets: Mapping[int, frozenset[int | None]]
    added: Mapping[int, tuple[int, ...]]


def walk(roots: Iterable[int], sources) -> Order:
    """The order of all nodes that the roots depend on; `sources(node)` are the nodes it reads from, in turn."""
    discovered: dict[int, int] = {}
    finished: dict[int, int] = {}
    now = 0
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if node < 0:
            now += SPACING
            finished[~node] = now
        elif node not in discovered:
            now += SPACING
            discovered[node] = now
            stack.append(~node)
            stack += [source for source in reversed(sources(node)) if source not in discovered]
    return Order(discovered, finished)


class _Elsewhere(Exception):
    """The walk takes another turn than before."""


def after(edit: Edit) -> Order | None:
    """The order after the edit; None where the walk must be repeated."""
    try:
        new = list(_numbered(_Walk(edit).events()))
    except _Elsewhere:
        return None
    discovered, finished = edit.before.discovered.copy(), edit.before.finished.copy()
    for node in edit.removed:
        del discovered[node], finished[node]
    for node, begin, end in new:
        discovered[node], finished[node] = begin, end
    return Order(discovered, finished)


class _Walk:
    """The walk through what an edit added; everything else it finds as it was, or gives up."""

    def __init__(self, edit: Edit):
        self.edit = edit
        self.discovered, self.finished = edit.before
        self.visited: set[int] = set()
        self.now = 0  # all old nodes that were finished by then have been seen
        self.kept: list[int] = []  # old nodes that are still to be met, in this turn

    def events(self) -> Iterator[tuple[int | None, int | None]]:
        """(new node, None) where it is met and where it is done; (None, number) for moments in between that stay."""
        children = {node: self.tree_children(node) for node in self.edit.removed}
        below = {child for result in children.values() for child in result}
        hooks = sorted(self.edit.removed.keys() - below, key=self.discovered.__getitem__)
        for hook in hooks:  # a removed node that was discovered from one that stays
            targets = self.edit.targets[hook]
            if self.discovered[hook] < self.now or len(targets) != 1:
                raise _Elsewhere
            self.now = self.discovered[hook]
            self.kept = sorted(_kept(hook, children), key=self.discovered.__getitem__)
            yield None, self.now
            yield from self.visit(*targets)
            if self.kept:
                raise _Elsewhere
            self.now = self.finished[hook]
            yield None, self.now
        if self.visited != self.edit.added.keys():
            raise _Elsewhere

    def tree_children(self, node: int) -> list[int]:
        """Those nodes that the walk discovered from `node` itself."""
        inside = [n for n in self.edit.removed[node] if self.is_below(n, node)]
        return [n for n in inside if not any(self.is_below(n, other) for other in inside)]

    def is_below(self, node: int, other: int) -> bool:
        """Whether the walk met `node` on behalf of `other`."""
        return self.discovered[other] < self.discovered[node] and self.finished[node] < self.finished[other]

    def visit(self, node: int | None) -> Iterator[tuple[int | None, int | None]]:
        if node is None or node in self.visited:
            return
        if node in self.edit.added:
            self.visited.add(node)
            yield node, None
            for source in self.edit.added[node]:
                yield from self.visit(source)
            yield node, None
        elif self.finished[node] > self.now:
            if self.kept[:1] != [node]:
                raise _Elsewhere
            self.kept.pop(0)
            yield None, self.discovered[node]
            self.now = self.finished[node]
            yield None, self.now


def _kept(node: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """The nodes that stay and were discovered from `node` or from a removed one below it."""
    for child in children[node]:
        if child in children:
            yield from _kept(child, children)
        else:
            yield child


def _numbered(events: Iterable[tuple[int | None, int | None]]) -> Iterator[tuple[int, int, int]]:
    """(new node, its two numbers), evenly spread between the fixed numbers around them."""
    begun: dict[int, int] = {}
    waiting: list[int] = []
    left = 0
    for node, right in events:
        if node is not None:
            waiting.append(node)
            continue
        step = (right - left) // (len(waiting) + 1)
        if waiting and step == 0:
            raise _Elsewhere  # too many rewrites at one node: number afresh
        for position, new in enumerate(waiting, start=1):
            number = left + position * step
            if new in begun:
                yield new, begun.pop(new), number
            else:
                begun[new] = number
        waiting, left = [], right
