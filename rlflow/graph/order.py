"""The canonical order of a graph's nodes, kept by difference.

It is the depth-first post-order from the outputs, inputs left to right: topological, and a matter of structure
alone, not of names, ids, file order or history. Every node has two numbers, for the moments at which the walk
discovers and finishes it; only how they compare means anything. A rewrite leaves most of the walk as it was: if
the new nodes lead to the same old ones in the same turn, they get numbers in between. Else the walk is repeated.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

SPACING = 1 << 64  # between neighbouring numbers of a fresh walk: room for some tens of rewrites in one place


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
        new = list(_numbered(_events(edit)))
    except _Elsewhere:
        return None
    discovered, finished = edit.before.discovered.copy(), edit.before.finished.copy()
    for node in edit.removed:
        del discovered[node], finished[node]
    for node, begin, end in new:
        discovered[node], finished[node] = begin, end
    return Order(discovered, finished)


def _events(edit: Edit) -> Iterator[tuple[int | None, int | None]]:
    """The walk through the new nodes: (new node, None) where one is met or done, (None, number) for fixed moments."""
    discovered, finished = edit.before
    children = {node: _tree_children(edit, node) for node in edit.removed}
    below = {child for found in children.values() for child in found}
    hooks = sorted((node for node in edit.removed if node not in below), key=discovered.__getitem__)
    visited: set[int] = set()
    last = -1
    for hook in hooks:
        if discovered[hook] < last or len(edit.targets[hook]) != 1:
            raise _Elsewhere
        last = finished[hook]
        kept = sorted(_kept(hook, children), key=discovered.__getitem__)
        (target,) = edit.targets[hook]
        yield None, discovered[hook]
        yield from _visit(edit, target, kept, [discovered[hook]], visited)
        if kept:
            raise _Elsewhere
        yield None, finished[hook]
    if visited != edit.added.keys():
        raise _Elsewhere


def _tree_children(edit: Edit, node: int) -> list[int]:
    """Those nodes that the walk discovered from `node` itself."""
    discovered, finished = edit.before
    inside = [n for n in edit.removed[node] if discovered[node] < discovered[n] and finished[n] < finished[node]]
    return [
        n for n in inside if not any(discovered[m] < discovered[n] and finished[n] < finished[m] for m in inside)
    ]


def _kept(node: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """The nodes that stay and were discovered from `node` or from a removed one below it."""
    for child in children[node]:
        if child in children:
            yield from _kept(child, children)
        else:
            yield child


def _visit(edit: Edit, node: int | None, kept: list[int], clock: list[int], visited: set[int]) -> Iterator:
    """Walks from `node`; takes from `kept` what is met in the same turn as before; `clock[0]`: all that is
    finished by then has been seen."""
    discovered, finished = edit.before
    if node is None or node in visited:
        return
    if node in edit.added:
        visited.add(node)
        yield node, None
        for source in edit.added[node]:
            yield from _visit(edit, source, kept, clock, visited)
        yield node, None
    elif finished[node] > clock[0]:
        if not kept or kept[0] != node:
            raise _Elsewhere
        yield None, discovered[kept.pop(0)]
        clock[0] = finished[node]
        yield None, clock[0]


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
            raise _Elsewhere  # too many rewrites in one place: number afresh
        for place, new in enumerate(waiting, start=1):
            number = left + place * step
            if new in begun:
                yield new, begun.pop(new), number
            else:
                begun[new] = number
        waiting, left = [], right
