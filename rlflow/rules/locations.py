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
    """Matches of a rule whose first root is `node`; why the near ones fail goes to `refusals`."""
    found: list[Match] = []
    seen: set = set()
    for match in structural_matches(graph, xfer_id, rule, node):
        key = match.nodes, tuple(sorted(match.bindings.items()))
        if key in seen or (rule.symmetric and _is_mirrored(graph, rule, match)):
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


def _is_mirrored(graph: Graph, rule: Rule, match: Match) -> bool:
    """For two alike roots, whether the match names them against the canonical order."""
    node_of = dict(zip((op.key for op in rule.ops), match.nodes, strict=True))
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
    return matches, refusals


# -- all rules -------------------------------------------------------------------------------------


class MatchTable:
    """All matches of a rule set in one graph; after a rewrite only what the change can reach is redone."""

    def __init__(self, rules: RuleSet, graph: Graph, previous: "MatchTable | None" = None):
        self.rules, self.graph = rules, graph
        if previous is None:
            self._by_op: dict[str, list[int]] = {}
            for xfer_id, rule in enumerate(rules):
                self._by_op.setdefault(rule.roots[0].op, []).append(xfer_id)
            self._radius = max((rule.radius for rule in rules), default=0)
            self._at: dict[int, tuple[Match, ...]] = {}
            stale = graph.nodes.keys()
        else:
            self._by_op, self._radius = previous._by_op, previous._radius
            self._at = previous._at.copy()
            stale = self._reach(graph.touched)
            for node_id in graph.touched - graph.nodes.keys():
                self._at.pop(node_id, None)
        for node_id in stale:
            found = self._match_node(graph.nodes[node_id])
            if found:
                self._at[node_id] = found
            else:
                self._at.pop(node_id, None)
        self.locations = self._locations()

    def _match_node(self, node: Node) -> tuple[Match, ...]:
        if node.constant:
            return ()
        candidates = self._by_op.get(node.op, ())
        return tuple(m for x in candidates for m in matches_at(self.graph, x, self.rules[x], node))

    def _reach(self, touched: frozenset[int]) -> set[int]:
        """Nodes within the rules' radius of the touched ones (siblings that share an input count as near)."""
        graph, reached = self.graph, {n for n in touched if n in self.graph.nodes}
        frontier = reached
        for _ in range(self._radius):
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
            frontier = near - reached
            reached = reached | near
        return reached

    def _locations(self) -> list[list[Match]]:
        """Per rule its matches, in the canonical order of the matched nodes."""
        position = self.graph.position
        locations: list[list[Match]] = [[] for _ in range(len(self.rules))]
        for node_id in sorted(self._at, key=position.__getitem__):
            for match in self._at[node_id]:
                locations[match.xfer_id].append(match)
        for matches in locations:
            matches.sort(key=lambda match: tuple(position[n] for n in match.nodes))
        return locations
