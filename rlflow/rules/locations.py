"""Locations: all places where a rule set applies to a graph, in canonical order."""

from typing import NamedTuple

from rlflow.graph.model import Graph, Node
from rlflow.rules.apply import Refused, replacement
from rlflow.rules.expressions import Unknown
from rlflow.rules.language import Rule, RuleSet
from rlflow.rules.match import Match, scope_of, structural_matches


class Refusal(NamedTuple):
    """Why a rule does not apply at nodes whose operators fit it."""

    rule: str
    nodes: tuple[int, ...]
    reason: str


def matches_at(
    graph: Graph, xfer_id: int, rule: Rule, node: Node, refusals: list[Refusal] | None = None
) -> list[Match]:
    """Matches of a rule whose first root is `node`; why the near ones fail goes to `refusals`.

    For two alike roots both orders are given, as which of them counts depends on the whole graph.
    """
    found: list[Match] = []
    seen: set = set()
    for match in structural_matches(graph, xfer_id, rule, node):
        key = match.nodes, tuple(sorted(match.bindings.items()))
        if key in seen:
            continue
        seen.add(key)
        try:
            scope = scope_of(graph, rule, match.bindings)
            reason = next((c.reason for c in rule.conditions if not c.holds(scope)), None)
            if reason is None:
                replacement(graph, rule, match)
                found.append(match)
                continue
        except (Unknown, Refused) as refused:
            reason = str(refused)
        if refusals is not None:
            refusals.append(Refusal(rule.name, match.nodes, reason))
    return found


def is_mirrored(graph: Graph, rule: Rule, nodes: tuple[int, ...]) -> bool:
    """For two alike roots, whether the match names them against the canonical order."""
    if not rule.symmetric:
        return False
    node_of = dict(zip((op.key for op in rule.ops), nodes, strict=True))
    first, second = (node_of[root.key] for root in rule.roots)
    return graph.position[first] > graph.position[second]


def explain(graph: Graph, rules: RuleSet, name: str) -> tuple[list[Match], list[Refusal]]:
    """Where a rule applies in a graph, and for each near miss the reason why it does not."""
    xfer_id = rules.index(name)
    matches, refusals = [], []
    for node_id in graph.order:
        node = graph.nodes[node_id]
        if not node.constant:
            matches += matches_at(graph, xfer_id, rules[xfer_id], node, refusals)
    rule = rules[xfer_id]
    return tuple([m for m in found if not is_mirrored(graph, rule, m.nodes)] for found in (matches, refusals))


# -- all rules -------------------------------------------------------------------------------------


class MatchTable:
    """All matches of a rule set in one graph; after a rewrite only what the change can reach is redone."""

    def __init__(self, rules: RuleSet, graph: Graph, previous: "MatchTable | None" = None):
        self.rules, self.graph = rules, graph
        if previous is None:
            self._by_op: dict[str, list[int]] = {}
            for xfer_id, rule in enumerate(rules):
                self._by_op.setdefault(rule.roots[0].op, []).append(xfer_id)
            self._at: dict[int, tuple[Match, ...]] = {}
            distances = dict.fromkeys(graph.nodes, 0)
        else:
            self._by_op, self._at = previous._by_op, previous._at.copy()
            distances = self._distances(graph.touched)
            for node_id in graph.touched - graph.nodes.keys():
                self._at.pop(node_id, None)
        for node_id, distance in distances.items():
            self._match_node(graph.nodes[node_id], distance)
        self.locations = self._locations()

    def _match_node(self, node: Node, distance: int) -> None:
        """Tries the rules at `node` anew that can see as far as `distance`."""
        if node.constant or node.op not in self._by_op:
            return
        found = [m for m in self._at.get(node.id, ()) if self.rules[m.xfer_id].radius < distance]
        for xfer_id in self._by_op[node.op]:
            if self.rules[xfer_id].radius >= distance:
                found += matches_at(self.graph, xfer_id, self.rules[xfer_id], node)
        if found:
            self._at[node.id] = tuple(found)
        else:
            self._at.pop(node.id, None)

    def _distances(self, touched: frozenset[int]) -> dict[int, int]:
        """Steps from the touched nodes, up to the widest rule's radius (siblings that share an input are near)."""
        graph = self.graph
        frontier = {n for n in touched if n in graph.nodes}
        distances = dict.fromkeys(frontier, 0)
        for distance in range(1, 1 + max((rule.radius for rule in self.rules), default=0)):
            near: set[int] = set()
            for node_id in frontier:
                node = graph.nodes[node_id]
                for tensor in node.reads():
                    if not graph.is_constant(tensor):
                        near.update(graph.consumers.get(tensor, ()))
                        if tensor in graph.producers:
                            near.add(graph.producers[tensor])
                for tensor in node.outputs:
                    near.update(graph.consumers.get(tensor, ()))
            frontier = near - distances.keys()
            distances.update(dict.fromkeys(frontier, distance))
        return distances

    def _locations(self) -> list[list[Match]]:
        """Per rule its matches, in the canonical order of the matched nodes."""
        position = self.graph.position
        locations: list[list[Match]] = [[] for _ in range(len(self.rules))]
        for node_id in sorted(self._at, key=position.__getitem__):
            for match in self._at[node_id]:
                if not is_mirrored(self.graph, self.rules[match.xfer_id], match.nodes):
                    locations[match.xfer_id].append(match)
        for matches in locations:
            matches.sort(key=lambda match: tuple(position[n] for n in match.nodes))
        return locations
