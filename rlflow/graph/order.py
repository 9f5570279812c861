"""The canonical order of a graph's nodes, updated incrementally after a rewrite.

The order is the depth-first post-order from the outputs, with inputs from left to right. It is topological and depends
on the structure alone, not on names, ids, file order or history. Each node has two numbers for the moments at which
the walk discovers and finishes the node; only their comparison is meaningful (`Graph.rank`).

Most rewrites leave the walk through the old nodes unchanged: the new nodes lead to the same old nodes in the same
sequence. `after` then gives the new nodes numbers between the old numbers. In other cases, or if no numbers are left in
a gap, `walk` computes the whole order again.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rlflow.common.layers import layered

SPACING = 1 << 64  # gap between numbers of a fresh walk; enough for some tens of rewrites at one node


class Order(NamedTuple):
    """The numbers of a depth-first walk; smaller numbers are earlier moments.

    Attributes:
      discovered: node id → the moment at which the walk first reaches the node.
      finished: node id → the moment at which the walk has finished all nodes that the node depends on.
    """

    discovered: dict[int, int]
    finished: dict[int, int]


class Edit(NamedTuple):
    """The difference between a graph with a known order and its rewrite.

    Attributes:
      before: the order of the graph before the rewrite.
      removed: id of a removed node → ids of the nodes that it read from, in order.
      targets: id of a removed node → ids of the nodes that now produce its outputs for the remaining nodes; None for an
        output that is now a constant or an input.
      added: id of an added node → ids of the nodes that it reads from, in order.
    """

    before: Order
    removed: Mapping[int, tuple[int, ...]]
    targets: Mapping[int, frozenset[int | None]]
    added: Mapping[int, tuple[int, ...]]


def walk(roots: Iterable[int], sources) -> Order:
    """Return the order of all nodes that the roots depend on.

    Args:
      roots: ids of the nodes that compute the outputs.
      sources: function node id → ids of the nodes that it reads from, in order.
    """
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
    return Order(layered(discovered), layered(finished))


class _WalkChanged(Exception):
    """Raised if an edit changes the walk through the old nodes, or if a gap between old numbers is used up."""


def after(edit: Edit) -> Order | None:
    """Return the order of the graph after an edit, or None if only `walk` can compute it."""
    try:
        new = list(_number_new_nodes(_Walk(edit).events()))
    except _WalkChanged:
        return None
    discovered, finished = edit.before.discovered.copy(), edit.before.finished.copy()
    for node in edit.removed:
        del discovered[node], finished[node]
    for node, begin, end in new:
        discovered[node], finished[node] = begin, end
    return Order(discovered, finished)


class _Walk:
    """The depth-first walk through the added nodes of an edit.

    It raises _WalkChanged if it meets the old nodes in another sequence than the walk before the edit.
    """

    def __init__(self, edit: Edit):
        self.edit = edit
        self.discovered, self.finished = edit.before
        self.visited: set[int] = set()
        self.now = 0  # the walk has visited all old nodes with finish numbers up to this number
        self.kept: deque[int] = deque()  # old nodes that the walk must meet next, in this sequence

    def events(self) -> Iterator[tuple[int | None, int | None]]:
        """Yield the moments of the walk in order.

        (node id, None) is the discovery and, the second time, the finish of an added node. (None, number) is a moment
        that has the given number in the order before the edit.
        """
        children = {node: self.tree_children(node) for node in self.edit.removed}
        below = {child for result in children.values() for child in result}
        hooks = sorted(self.edit.removed.keys() - below, key=self.discovered.__getitem__)
        for hook in hooks:  # A hook is a removed node that the walk discovered from a remaining node.
            targets = self.edit.targets[hook]
            if self.discovered[hook] < self.now or len(targets) != 1:
                raise _WalkChanged
            self.now = self.discovered[hook]
            self.kept = deque(sorted(_kept(hook, children), key=self.discovered.__getitem__))
            yield None, self.now
            yield from self.visit(*targets)
            if self.kept:
                raise _WalkChanged
            self.now = self.finished[hook]
            yield None, self.now
        if self.visited != self.edit.added.keys():
            raise _WalkChanged

    def tree_children(self, node: int) -> list[int]:
        """Return the children of a removed node in the depth-first tree of the walk before the edit, in its order."""
        inside = {n for n in self.edit.removed[node] if self.is_below(n, node)}
        children: list[int] = []
        for n in sorted(inside, key=self.discovered.__getitem__):
            if not children or not self.is_below(n, children[-1]):
                children.append(n)
        return children

    def is_below(self, node: int, other: int) -> bool:
        """Return True if `node` is a descendant of `other` in the depth-first tree of the walk before the edit."""
        return self.discovered[other] < self.discovered[node] and self.finished[node] < self.finished[other]

    def visit(self, root: int | None) -> Iterator[tuple[int | None, int | None]]:
        stack = [root]
        while stack:
            node = stack.pop()
            if node is None or node in self.visited:
                continue
            if node < 0:
                yield ~node, None
            elif node in self.edit.added:
                self.visited.add(node)
                yield node, None
                stack.append(~node)
                stack += reversed(self.edit.added[node])
            elif self.finished[node] > self.now:
                if not self.kept or self.kept.popleft() != node:
                    raise _WalkChanged
                yield None, self.discovered[node]
                self.now = self.finished[node]
                yield None, self.now


def _kept(node: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """Yield the nodes that were not removed and whose parent in the depth-first tree is `node` or a removed node below.

    `children` maps each removed node to its children in the tree.
    """
    stack = [*children[node]]
    while stack:
        child = stack.pop()
        if child in children:
            stack += children[child]
        else:
            yield child


def _number_new_nodes(events: Iterable[tuple[int | None, int | None]]) -> Iterator[tuple[int, int, int]]:
    """Yield (added node, discovery number, finish number); the numbers divide the gaps between old numbers evenly.

    `events` are the moments that `_Walk.events` yields.
    """
    begun: dict[int, int] = {}
    waiting: list[int] = []
    left = 0
    for node, right in events:
        if node is not None:
            waiting.append(node)
            continue
        step = (right - left) // (len(waiting) + 1)
        if waiting and step == 0:
            raise _WalkChanged  # Too many rewrites at one node have used up the gap.
        for position, new in enumerate(waiting, start=1):
            number = left + position * step
            if new in begun:
                yield new, begun.pop(new), number
            else:
                begun[new] = number
        waiting, left = [], right
