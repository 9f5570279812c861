"""Locations: all places where a rule set applies to a graph, in canonical order."""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from rlflow.graph.model import Graph, Node
from rlflow.rules.apply import Plans, Refused
from rlflow.rules.language import Rule, RuleSet
from rlflow.rules.match import Match, structural_matches


class Refusal(NamedTuple):
    """Why a rule does not apply at nodes whose operators fit it."""

    rule: str
    nodes: tuple[int, ...]
    reason: str


def matches_at(
    graph: Graph, xfer_id: int, rule: Rule, node: Node, plans: Plans, refusals: list[Refusal] | None = None
) -> tuple[Match, ...]:
    """Matches of a rule whose first root is `node`; why the near ones fail goes to `refusals`.

    For two alike roots both orders are given, as which of them counts depends on the whole graph.
    """
    found: dict[tuple, Match] = {}
    for nodes, bindings in structural_matches(graph, rule, node):
        key = nodes, tuple(sorted(bindings.items()))
        if key in found:
            continue
        try:
            found[key] = Match(xfer_id, nodes, bindings, plans.plan(graph, rule, nodes, bindings))
        except Refused as refused:
            if refusals is not None:
                refusals.append(Refusal(rule.name, nodes, str(refused)))
    return tuple(found.values())


def is_mirrored(graph: Graph, rule: Rule, nodes: tuple[int, ...]) -> bool:
    """For two alike roots, whether the match names them against the canonical order."""
    if not rule.symmetric:
        return False
    first, second = (nodes[place] for place in rule.root_places)
    return graph.position[first] > graph.position[second]


def explain(graph: Graph, rules: RuleSet, name: str) -> tuple[list[Match], list[Refusal]]:
    """Where a rule applies in a graph, and for each near miss the reason why it does not."""
    xfer_id = rules.index(name)
    rule, plans = rules[xfer_id], Plans()
    matches: list[Match] = []
    refusals: list[Refusal] = []
    for node_id in graph.order:
        if not graph.nodes[node_id].constant:
            matches += matches_at(graph, xfer_id, rule, graph.nodes[node_id], plans, refusals)
    return tuple([m for m in found if not is_mirrored(graph, rule, m.nodes)] for found in (matches, refusals))


# -- all rules -------------------------------------------------------------------------------------


class _RuleIndex:
    """Which rules are worth a try at a node: by its operator, then by the operators that feed it."""

    def __init__(self, rules: RuleSet):
        self.single: dict[str, list[tuple[int, Rule]]] = {}
        self.several: dict[str, list[tuple[int, Rule]]] = {}  # rules with several roots
        for xfer_id, rule in enumerate(rules):
            kind = self.single if len(rule.roots) == 1 else self.several
            kind.setdefault(rule.roots[0].op, []).append((xfer_id, rule))
        self.single_depth = max((rule.depth for rule in rules if len(rule.roots) == 1), default=0)
        self.several_depth = max((rule.depth for rule in rules if len(rule.roots) > 1), default=0)


class MatchTable:
    """All matches of a rule set in one graph; after a rewrite only what the change can reach is redone.

    A match with one root depends on its own nodes and on who reads their inputs; a rewrite that changes that
    touches one of the nodes, so it is found by going up from the touched nodes. Another root is reached from the
    first by going down to a tensor that both read, and up again.
    """

    def __init__(self, rules: RuleSet, graph: Graph, previous: "MatchTable | None" = None):
        self.rules, self.graph = rules, graph
        if previous is None:
            self._index, self._plans = _RuleIndex(rules), Plans()
            self._at: list[dict[int, tuple[Match, ...]]] = [{} for _ in range(len(rules))]  # per rule, by first root
            self._totals = [0] * len(rules)
            self._own = set(range(len(rules)))
            for node_id in graph.nodes:
                self._match(node_id, 0, self._index.single)
                self._match(node_id, 0, self._index.several)
        else:
            self._index, self._plans = previous._index, previous._plans
            self._at, self._totals = previous._at.copy(), previous._totals.copy()
            self._own = set()  # rules whose matches are not shared with the table before
            self._update(previous.graph)

    @property
    def counts(self) -> list[int]:
        """Per rule its number of locations."""
        return [
            total // 2 if rule.symmetric else total for rule, total in zip(self.rules, self._totals, strict=True)
        ]

    @cached_property
    def locations(self) -> list[list[Match]]:
        """Per rule its matches, in the canonical order of the matched nodes."""
        return [self.of_rule(xfer_id) for xfer_id in range(len(self.rules))]

    def of_rule(self, xfer_id: int) -> list[Match]:
        """The matches of one rule, in the canonical order of the matched nodes."""
        position, rule, at = self.graph.position, self.rules[xfer_id], self._at[xfer_id]
        found = [match for node_id in sorted(at, key=position.__getitem__) for match in at[node_id]]
        if rule.symmetric:
            found = [match for match in found if not is_mirrored(self.graph, rule, match.nodes)]
        if len(found) > len(at) or len(rule.ops) > 1:
            found.sort(key=lambda match: [position[n] for n in match.nodes])
        return found

    # -- after a rewrite ---------------------------------------------------------------------------

    def _update(self, before: Graph) -> None:
        graph, index = self.graph, self._index
        touched = graph.touched & graph.nodes.keys()
        for node_id in graph.touched - touched:
            self._forget(before, node_id)
        levels = self._upwards(touched, max(index.single_depth, index.several_depth))
        for distance, level in enumerate(levels[: index.single_depth]):
            for node_id in level:
                self._match(node_id, distance, index.single)
        near = set().union(*levels[: index.several_depth])
        tensors: set[int] = set()
        for _ in range(index.several_depth):
            tensors |= {t for n in near for t in graph.nodes[n].inputs if not graph.is_constant(t)}
            near = {graph.producers[t] for t in tensors if t in graph.producers}
        readers = {n for t in tensors for n in graph.consumers.get(t, ())}
        for level in self._upwards(readers, index.several_depth):
            for node_id in level:
                self._match(node_id, 0, index.several)

    def _upwards(self, node_ids: Iterable[int], n_levels: int) -> list[set[int]]:
        """The nodes, then those that read their outputs, and so on; each node once."""
        nodes, consumers = self.graph.nodes, self.graph.consumers
        levels, seen = [set(node_ids)], set(node_ids)
        while len(levels) < n_levels:
            above = {n for node_id in levels[-1] for t in nodes[node_id].outputs for n in consumers.get(t, ())}
            levels.append(above - seen)
            seen |= above
        return levels

    def _forget(self, before: Graph, node_id: int) -> None:
        node = before.nodes.get(node_id)
        if node is not None:
            for kind in (self._index.single, self._index.several):
                for xfer_id, _ in kind.get(node.op, ()):
                    self._store(xfer_id, node_id, ())

    def _match(self, node_id: int, distance: int, kind: dict[str, list[tuple[int, Rule]]]) -> None:
        """Tries the rules at a node anew that can see a change `distance` steps below it."""
        graph = self.graph
        node = graph.nodes[node_id]
        rules = kind.get(node.op)
        if rules is None or node.constant:
            return
        producers, nodes = graph.producers, graph.nodes
        below = {nodes[producers[t]].op for t in node.inputs if t in producers}
        for xfer_id, rule in rules:
            if rule.depth > distance:
                found = matches_at(graph, xfer_id, rule, node, self._plans) if rule.children <= below else ()
                self._store(xfer_id, node_id, found)

    def _store(self, xfer_id: int, node_id: int, found: tuple[Match, ...]) -> None:
        old = self._at[xfer_id].get(node_id, ())
        if old == found and all(a.plan is b.plan for a, b in zip(old, found, strict=True)):
            return
        if xfer_id not in self._own:
            self._own.add(xfer_id)
            self._at[xfer_id] = self._at[xfer_id].copy()
        self._totals[xfer_id] += len(found) - len(old)
        if found:
            self._at[xfer_id][node_id] = found
        else:
            del self._at[xfer_id][node_id]
