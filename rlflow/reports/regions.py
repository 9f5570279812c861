"""Find the effect of each rewrite, and group rewrites that need one another into regions.

`trace` replays the actions and records the effect of each step and the earlier steps that it needs. `opened_gains`
finds the later gains that a step with a loss made possible. A `Region` is a group of steps that need one another, with
the surrounding operators. Each step belongs to exactly one region, so the gains of the regions add up to the total
gain. Constant operators are folded at export, cost nothing, and are not shown.
"""

import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph
from rlflow.rules.match import Match


class Step(NamedTuple):
    """One rewrite of a sequence.

    Attributes:
      rule, why: the rule's name and purpose.
      position: the name of the first matched operator, or the names of its outputs if it has no name.
      before_ps, after_ps: estimated runtime of the whole graph before and after the rewrite, in ps.
      removed, added: ids of the nodes that the rewrite removed and added.
      needs: numbers, from 0, of the earlier steps without which this step would not be possible. Such a step added a
        node that this step matches or removes, or made the match of this step appear.
    """

    rule: str
    why: str
    position: str
    before_ps: int
    after_ps: int
    removed: frozenset[int]
    added: frozenset[int]
    needs: frozenset[int]

    @property
    def gain_ps(self) -> int:
        """The decrease of the estimated runtime in ps; negative if the step makes the graph slower."""
        return self.before_ps - self.after_ps


def trace(
    task: Task, actions: Iterable[tuple[int, int]], end: float = math.inf
) -> tuple[RewriteState, list[Step]]:
    """Replay actions from the initial state of a task, and record the effect of each.

    Args:
      task: the rewriting task.
      actions: valid (xfer_id, location) pairs, without NO-OP.
      end: the value of time.monotonic() after which no further action is replayed.

    Returns:
      (the state after the last replayed action, one Step per replayed action).
    """
    state, steps = task.initial, []
    makers: dict[int, int] = {}  # node → step that added it
    openers: dict[tuple, int] = {}  # match → step after which it first appeared
    for number, (xfer_id, location) in enumerate(actions):
        if time.monotonic() >= end:
            break
        match = state.table.location(int(xfer_id), int(location))
        after = state.follow(match)
        removed = frozenset(n for n in after.graph.changed if n in state.graph.nodes and n not in after.graph.nodes)
        added = frozenset(n for n in after.graph.changed if n in after.graph.nodes and n not in state.graph.nodes)
        needs = {makers.get(n) for n in {*match.nodes, *removed}} | {openers.get(_key(match))}
        rule = task.rules[match.xfer_id]
        node = state.graph.nodes[match.nodes[0]]
        outputs = (state.graph.interface.names.get(t, f"t{t}") for t in node.outputs if t >= 0)
        position = node.name or " ".join(outputs)
        steps.append(
            Step(
                rule.name, rule.why, position, state.cost.runtime_ps, after.cost.runtime_ps, removed, added,
                frozenset(needs - {None}),
            )
        )  # fmt: skip
        lost, new = after.table.difference(state.table)
        makers |= dict.fromkeys(added, number)
        openers |= dict.fromkeys(set(map(_key, new)) - set(map(_key, lost)), number)
        state = after
    return state, steps


def _key(match: Match) -> tuple:
    return match.xfer_id, match.nodes


def opened_gains(steps: Sequence[Step]) -> dict[int, tuple[list[int], int]]:
    """Find the later steps that each step with a loss made possible.

    Returns:
      Number of a step that made the graph slower → (numbers of the later steps that need it directly or indirectly,
        their total gain in ps).
    """
    result = {}
    for number, step in enumerate(steps):
        if step.gain_ps < 0:
            after = {number}
            for later in range(number + 1, len(steps)):
                if steps[later].needs & after:
                    after.add(later)
            after.remove(number)
            result[number] = sorted(after), sum(steps[later].gain_ps for later in after)
    return result


def groups(steps: Sequence[Step]) -> list[list[int]]:
    """Partition the steps into groups whose steps need one another, directly or through other steps of the group.

    Returns:
      For each group the numbers of its steps, ascending; the groups are ordered by their first steps.
    """
    parent = list(range(len(steps)))  # step → an earlier step of its group, or itself

    def first_of(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for number, step in enumerate(steps):
        for need in step.needs:
            new, old = sorted((first_of(number), first_of(need)))
            parent[old] = new
    result: dict[int, list[int]] = {}
    for number in range(len(steps)):
        result.setdefault(first_of(number), []).append(number)
    return [result[first] for first in sorted(result)]


class RuleGain(NamedTuple):
    """The total gain of all steps of one rule.

    Attributes:
      rule, why: the rule's name and purpose.
      count: the number of steps that apply the rule.
      gain_ps: the sum of the gains of these steps, in ps. Steps of other rules may have made the gains possible.
    """

    rule: str
    why: str
    count: int
    gain_ps: int


def by_rule(steps: Sequence[Step]) -> list[RuleGain]:
    """Group the steps by rule, with the highest gain first. The gains of the rules add up to the gain of all steps."""
    result: dict[str, RuleGain] = {}
    for step in steps:
        known = result.get(step.rule, RuleGain(step.rule, step.why, 0, 0))
        result[step.rule] = known._replace(count=known.count + 1, gain_ps=known.gain_ps + step.gain_ps)
    return sorted(result.values(), key=lambda one: (-one.gain_ps, one.rule))


AROUND = 12  # maximum number of neighbours that are drawn with a region
FOLDED = 200  # a chain of this many hidden operators or more is not drawn as an edge


class Region(NamedTuple):
    """A group of rewrites that need one another, and the part of the graph that they changed.

    Attributes:
      steps: numbers of the rewrites, from 0.
      gain_ps: the sum of the gains of these rewrites, in ps.
      removed, added: ids of the nodes that exist only before, and only after all steps; constant nodes are left out.
      around: ids of at most AROUND neighbours that the region's steps neither removed nor added.
      hidden: the number of such neighbours that are not in `around`.
    """

    steps: tuple[int, ...]
    gain_ps: int
    removed: frozenset[int]
    added: frozenset[int]
    around: frozenset[int]
    hidden: int


class Edge(NamedTuple):
    """An edge between two drawn nodes, which stands for a chain of `folded` operators that are not drawn."""

    source: int
    target: int
    folded: int = 0


def regions(before: RewriteState, after: RewriteState, steps: Sequence[Step]) -> list[Region]:
    """Return the regions of a sequence of steps, with the highest gain first.

    Each node that exists in only one of the two graphs and is not constant is in `removed` or `added` of exactly one
    region. Both sets are empty if a region changed only constant nodes.

    Args:
      before, after: the states before and after all steps.
      steps: the steps, as `trace` returns them.
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
    """Return whether a graph contains a node and the node is not constant. Pages show only such nodes.

    Args:
      graph: the graph.
      node_id: id of the node.
    """
    return node_id in graph.nodes and not graph.nodes[node_id].constant


def neighbours(graph: Graph, node_ids: Iterable[int]) -> set[int]:
    """Return the ids of the non-constant nodes that read from the given nodes or give an input to them.

    Args:
      graph: the graph.
      node_ids: ids of the given nodes.
    """
    return {n for node_id in node_ids for n in (*sources(graph, node_id), *readers(graph, node_id))}


def sources(graph: Graph, node_id: int) -> list[int]:
    """Return the ids of the non-constant nodes that give an input to a node, each once.

    Args:
      graph: the graph.
      node_id: id of the node.
    """
    result = dict.fromkeys(graph.producers[t] for t in graph.nodes[node_id].reads() if t in graph.producers)
    return [n for n in result if shown(graph, n)]


def readers(graph: Graph, node_id: int) -> list[int]:
    """Return the ids of the non-constant nodes that read an output of a node, each once.

    Args:
      graph: the graph.
      node_id: id of the node.
    """
    result = dict.fromkeys(c for t in graph.nodes[node_id].outputs for c in graph.consumers.get(t, ()))
    return [n for n in result if shown(graph, n)]


def edges(graph: Graph, node_ids: frozenset[int]) -> list[Edge]:
    """Return the edges between given nodes. An unbranched chain of other nodes from one to another counts as an edge.

    Args:
      graph: the graph.
      node_ids: ids of the given nodes; ids that the graph lacks are ignored.
    """
    result = []
    for node_id in sorted(node_ids & graph.nodes.keys()):
        for reader in readers(graph, node_id):
            end, folded = (reader, 0) if reader in node_ids else _chain_end(graph, reader, node_ids)
            if end is not None:
                result.append(Edge(node_id, end, folded))
    return result


def _chain_end(graph: Graph, node_id: int, ends: frozenset[int]) -> tuple[int | None, int]:
    """Follow the readers from a node down an unbranched chain until it reaches a node in `ends`.

    Returns:
      (id of the reached node, number of steps along the chain). If the chain branches, stops or has
        FOLDED steps or more, the result is (None, 0).
    """
    for folded in range(1, FOLDED):
        following = readers(graph, node_id)
        if len(following) != 1 or len(sources(graph, node_id)) != 1:
            return None, 0
        node_id = following[0]
        if node_id in ends:
            return node_id, folded
    return None, 0
