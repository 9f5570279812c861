"""Locations: all places where a rule set applies to a graph, in canonical order."""

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import islice
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
    return graph.rank[first] > graph.rank[second]


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


class _Role:
    """A part that nodes of one operator play in left sides: `above` leads to the operators that may read it."""

    def __init__(self):
        self.above: dict[str, _Role] = {}
        self.roots: dict[int, Rule] = {}  # the rules of which it is a root, by xfer_id


class _Roles:
    """The parts of all rules, so that from a node of a match its roots can be found."""

    def __init__(self, rules: RuleSet):
        self.all: dict[str, _Role] = {}
        self.of_readers: dict[str, _Role] = {}  # of the rules to which it matters who else reads a tensor
        self.by_first_root: dict[str, dict[int, Rule]] = {}
        self.by_root: dict[str, dict[int, Rule]] = {}
        for xfer_id, rule in enumerate(rules):
            self.by_first_root.setdefault(rule.roots[0].op, {})[xfer_id] = rule
            for root in rule.roots:
                self.by_root.setdefault(root.op, {})[xfer_id] = rule
            self._add(self.all, xfer_id, rule)
            if rule.counts_readers or len(rule.roots) > 1:
                self._add(self.of_readers, xfer_id, rule)

    @staticmethod
    def _add(kind: dict[str, _Role], xfer_id: int, rule: Rule) -> None:
        for path in rule.paths:
            role = kind.setdefault(path[0], _Role())
            for op in path[1:]:
                role = role.above.setdefault(op, _Role())
            role.roots[xfer_id] = rule


_roles = lru_cache(maxsize=4)(_Roles)


def _differs(match: Match, others: tuple[Match, ...]) -> bool:
    return not any(match == other and match.plan is other.plan for other in others)


class MatchTable:
    """All matches of a rule set in one graph; after a rewrite only what the change can reach is redone.

    A match depends on its own nodes and, in few rules, on who else reads their tensors. A rewrite that changes any of
    that marks one of the nodes, so what may appear or disappear is found by going up from the marked nodes along the
    operators of the rules. Where a rule has several roots, the first is reached from another by a tensor that both depend on.
    """

    def __init__(self, rules: RuleSet, graph: Graph, previous: "MatchTable | None" = None):
        self.rules, self.graph = rules, graph
        if previous is None:
            self._roles, self._plans = _roles(rules), Plans()
            self._at: list[dict[int, tuple[Match, ...]]] = [{} for _ in range(len(rules))]  # per rule, by first root
            self._totals = [0] * len(rules)
            self._own = set(range(len(rules)))  # rules whose matches are not shared with the table before
            for node_id, node in graph.nodes.items():
                self._match(node_id, self._roles.by_first_root.get(node.op, {}))
        else:
            self._roles, self._plans = previous._roles, previous._plans
            self._at, self._totals = previous._at.copy(), previous._totals.copy()
            self._own = set()
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
        return [list(self.of_rule(xfer_id)) for xfer_id in range(len(self.rules))]

    def of_rule(self, xfer_id: int) -> Iterator[Match]:
        """The matches of one rule, in the canonical order of the matched nodes."""
        rank, rule, at = self.graph.rank, self.rules[xfer_id], self._at[xfer_id]
        for node_id in sorted(at, key=rank.__getitem__):  # the first of a match's nodes
            found = at[node_id]
            if rule.symmetric:
                found = [match for match in found if not is_mirrored(self.graph, rule, match.nodes)]
            if len(found) > 1:
                found = sorted(found, key=lambda match: [rank[n] for n in match.nodes])
            yield from found

    def location(self, xfer_id: int, number: int) -> Match:
        """The rule's match of that number, counted from 0 in the canonical order."""
        return next(islice(self.of_rule(xfer_id), number, None))

    def all_matches(self) -> Iterator[Match]:
        """Every match, rule by rule; of two alike roots in both orders."""
        for at in self._at:
            for node_id in sorted(at):
                yield from at[node_id]

    def difference(self, before: "MatchTable") -> tuple[list[Match], list[Match]]:
        """(matches of `before` that are no more, or whose replacement is another; those that are new), as `all_matches` counts."""
        lost, found = [], []
        for old, new in zip(before._at, self._at, strict=True):
            if old is not new:
                for node_id in sorted(old.keys() | new.keys()):
                    was, now = old.get(node_id, ()), new.get(node_id, ())
                    if was is not now:
                        lost += [m for m in was if _differs(m, now)]
                        found += [m for m in now if _differs(m, was)]
        return lost, found

    # -- after a rewrite ---------------------------------------------------------------------------

    def _update(self, before: Graph) -> None:
        nodes, changed = self.graph.nodes, self.graph.changed
        tries: dict[int, dict[int, Rule]] = {}
        for node_id in self.graph.touched:
            if node_id in nodes:
                node = nodes[node_id]
                kind = self._roles.all if node_id in changed or len(node.outputs) > 1 else self._roles.of_readers
                role = kind.get(node.op)
                if role is not None:
                    self._climb(node_id, role, tries)
            elif node_id in before.nodes:
                for xfer_id, rule in self._roles.by_root.get(before.nodes[node_id].op, {}).items():
                    self._store(xfer_id, node_id, ())
                    if len(rule.roots) > 1:  # nothing that is left may lead from here to the first root of such a match
                        for first in self._first_roots(before, node_id, rule) & nodes.keys():
                            tries.setdefault(first, {})[xfer_id] = rule
        for node_id, rules in tries.items():
            self._match(node_id, rules)

    def _climb(self, node_id: int, role: _Role, tries: dict[int, dict[int, Rule]]) -> None:
        """Collects the rules to be tried at first roots that a change of the node, in this role, may concern."""
        nodes, consumers = self.graph.nodes, self.graph.consumers
        for xfer_id, rule in role.roots.items():
            firsts = (node_id,) if len(rule.roots) == 1 else self._first_roots(self.graph, node_id, rule)
            for first in firsts:
                tries.setdefault(first, {})[xfer_id] = rule
        if role.above:
            for tensor in nodes[node_id].outputs:
                for reader in consumers.get(tensor, ()):
                    above = role.above.get(nodes[reader].op)
                    if above is not None:
                        self._climb(reader, above, tries)

    @staticmethod
    def _first_roots(graph: Graph, root: int, rule: Rule) -> set[int]:
        """The nodes that may be the rule's first root where `root` is one of its roots."""
        below, tensors = {root}, set()
        for _ in range(rule.depth):
            reads = {t for n in below for t in graph.nodes[n].inputs if t in graph.types and not graph.is_constant(t)}
            below = {graph.producers[t] for t in reads if t in graph.producers}
            tensors |= reads
        readers, found = {n for t in tensors for n in graph.consumers[t]}, {root}
        for _ in range(rule.depth):
            found |= readers
            readers = {c for n in readers for t in graph.nodes[n].outputs for c in graph.consumers.get(t, ())}
        return {n for n in found if graph.nodes[n].op == rule.roots[0].op}

    def _match(self, node_id: int, rules: Mapping[int, Rule]) -> None:
        """Tries the rules at a node anew."""
        graph = self.graph
        producers, nodes = graph.producers, graph.nodes
        node = nodes[node_id]
        if not rules or node.constant:
            return
        below = {nodes[producers[t]].op for t in node.inputs if t in producers}
        for xfer_id, rule in rules.items():
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
