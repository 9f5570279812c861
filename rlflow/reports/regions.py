"""Where a graph changed: groups of rewrites that need one another, each with the operators around it.

Constant operators, which are folded when a model is written, cost nothing and are not shown.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlflow.env.state import RewriteState
from rlflow.graph.model import Graph
from rlflow.reports.steps import Step, groups

AROUND = 12  # neighbours of a region that are shown
FOLDED = 200  # operators of a chain that are passed over, at most


class Region(NamedTuple):
    """Rewrites that need one another, and where they changed the graph.

    Attributes:
      steps: the rewrites that made it, numbered from 0.
      removed, added: ids of nodes of the graph before, and of the one after.
      around: ids of neighbours that no step here changed.
      hidden: how many more neighbours there are.
    """

    steps: tuple[int, ...]
    gain_ps: int
    removed: frozenset[int]
    added: frozenset[int]
    around: frozenset[int]
    hidden: int


class Edge(NamedTuple):
    """From node to node; `folded` operators between them are not shown."""

    source: int
    target: int
    folded: int = 0


def regions(before: RewriteState, after: RewriteState, steps: Sequence[Step]) -> list[Region]:
    """The regions in which something changed, the one that gained most first.

    Their `removed` are exactly the nodes of `before` that `after` lacks, each in one region; so with `added`.
    """
    result = []
    for numbers in groups(steps):
        members = {n for number in numbers for n in steps[number].removed | steps[number].added}
        removed = frozenset(n for n in members if shown(before.graph, n))
        added = frozenset(n for n in members if shown(after.graph, n))
        around = sorted((neighbours(before.graph, removed) | neighbours(after.graph, added)) - members)
        gain = sum(steps[number].gain_ps for number in numbers)
        result.append(
            Region(tuple(numbers), gain, removed, added, frozenset(around[:AROUND]), max(0, len(around) - AROUND))
        )
    return sorted(result, key=lambda region: (-region.gain_ps, region.steps))


def shown(graph: Graph, node_id: int) -> bool:
    return node_id in graph.nodes and not graph.nodes[node_id].constant


def neighbours(graph: Graph, node_ids: Iterable[int]) -> set[int]:
    """The shown nodes that read from the given ones, or that those read from."""
    return {n for node_id in node_ids for n in (*sources(graph, node_id), *readers(graph, node_id))}


def sources(graph: Graph, node_id: int) -> list[int]:
    result = dict.fromkeys(graph.producers[t] for t in graph.nodes[node_id].reads() if t in graph.producers)
    return [n for n in result if shown(graph, n)]


def readers(graph: Graph, node_id: int) -> list[int]:
    result = dict.fromkeys(c for t in graph.nodes[node_id].outputs for c in graph.consumers.get(t, ()))
    return [n for n in result if shown(graph, n)]


def edges(graph: Graph, node_ids: frozenset[int]) -> list[Edge]:
    """The edges between these nodes, and the chains of single operators that lead from one of them to another."""
    result = []
    for node_id in sorted(node_ids & graph.nodes.keys()):
        for reader in readers(graph, node_id):
            end, folded = (reader, 0) if reader in node_ids else _follow(graph, reader, node_ids)
            if end is not None:
                result.append(Edge(node_id, end, folded))
    return result


def _follow(graph: Graph, node_id: int, ends: frozenset[int]) -> tuple[int | None, int]:
    """(the first of `ends` down an unbranched chain, or None; operators of the chain)."""
    for folded in range(1, FOLDED):
        following = readers(graph, node_id)
        if len(following) != 1 or len(sources(graph, node_id)) != 1:
            return None, 0
        node_id = following[0]
        if node_id in ends:
            return node_id, folded
    return None, 0
