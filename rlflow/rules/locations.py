"""Locations: all matches of a rule set in a graph, in canonical order.

Location k of a rule is its k-th match by the positions of the matched nodes (rlflow/graph/order.py). So the location
mask of a rule is always a prefix, and a count says all of it, which is what world models predict. Two alike roots that
are merged count once: the parser finds out whether a rule's clauses say the same of both; then the match named along
the canonical order is the location, and its mirror image is none.

A step costs what it changes. A rewrite marks the nodes that it `changed` and those that it `touched` (whose tensors
other nodes read than before), and matches are looked for only from there, upwards along the operators that left sides
are made of. Rules with more roots or more levels than local ones (local.py) are tried only where their operators are
found from a changed node upwards; their matches are known by every node that is part of one, so that none outlives its
nodes.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from rlflow.graph.model import Graph
from rlflow.rules.apply import Plans
from rlflow.rules.local import LocalRules, Refusal, is_local, matches_at
from rlflow.rules.match import Match
from rlflow.rules.rule import Rule, RuleSet


def is_symmetric_match(graph: Graph, rule: Rule, nodes: tuple[int, ...]) -> bool:
    """For two alike roots, whether the match names them against the canonical order."""
    if not rule.symmetric:
        return False
    first, second = (nodes[position] for position in rule.root_positions)
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
    return tuple([m for m in result if not is_symmetric_match(graph, rule, m.nodes)] for result in (matches, refusals))


# -- all rules -------------------------------------------------------------------------------------


class _Roots(NamedTuple):
    """What a node and those around it must be for it to be a root, the same for many rules.

    Attributes:
      ops: the operators of all roots, the first one first.
      children: operators that give inputs of each root.
      depth: of the left side.
    """

    ops: tuple[str, ...]
    children: frozenset[str]
    depth: int


class _Role:
    """A part that nodes of one operator play in left sides: `above` leads to the operators that may read it."""

    def __init__(self):
        self.above: dict[str, _Role] = {}
        self.roots: dict[_Roots, set[int]] = {}  # the rules of which it is a root, as xfer_ids


class _Roles:
    """The parts of all rules that are not local, which lead from a node of a match to its roots."""

    def __init__(self, rules: RuleSet):
        self.all: dict[str, _Role] = {}
        self.of_readers: dict[str, _Role] = {}  # of the rules to which it matters who else reads a tensor
        self.local = frozenset(xfer_id for xfer_id, rule in enumerate(rules) if is_local(rule))
        self.orders = np.array([2 if rule.symmetric else 1 for rule in rules], np.int32)  # in which a match is counted
        for xfer_id, rule in enumerate(rules):
            if xfer_id not in self.local:
                self._add(self.all, xfer_id, rule)
                if rule.counts_readers:
                    self._add(self.of_readers, xfer_id, rule)

    @staticmethod
    def _add(kind: dict[str, _Role], xfer_id: int, rule: Rule) -> None:
        roots = _Roots(tuple(root.op for root in rule.roots), rule.children, rule.depth)
        for path in rule.paths:
            role = kind.setdefault(path[0], _Role())
            for op in path[1:]:
                role = role.above.setdefault(op, _Role())
            role.roots.setdefault(roots, set()).add(xfer_id)


_roles = lru_cache(maxsize=4)(_Roles)


def _differs(match: Match, others: tuple[Match, ...]) -> bool:
    return not any(match == other and match.plan is other.plan for other in others)


class MatchTable:
    """All matches of a rule set in one graph; after a rewrite only what the change can reach is redone.

    A match depends on its own nodes and, in few rules, on who else reads their tensors. A rewrite that changes any of
    that marks one of the nodes. So local rules are matched anew at marked nodes and those that read from them. Of the
    other rules, matches that a marked node is part of are looked at anew, and new ones come from going up from
    marked nodes along the operators of the rules. Where a rule has several roots, the first is reached from another by
    a tensor that both depend on.
    """

    def __init__(self, rules: RuleSet, graph: Graph, previous: "MatchTable | None" = None):
        self.rules, self.graph = rules, graph
        if previous is None:
            self._roles, self._plans = _roles(rules), Plans()
            self._local_rules = LocalRules(rules, self._plans)
            self._at: list[dict[int, tuple[Match, ...]]] = [{} for _ in range(len(rules))]  # per rule, by first root
            self._totals = np.zeros(len(rules), np.int32)
            self._own = set(range(len(rules)))  # rules whose matches are not shared with the table before
            self._local_at: dict[int, frozenset[int]] = {}  # node id → the local rules that match there
            # Node id → (rule, first root) of the matches of the other rules that it is part of.
            self._part_of: dict[int, frozenset[tuple[int, int]]] = {}
            self._fill()
        else:
            self._roles, self._plans, self._local_rules = previous._roles, previous._plans, previous._local_rules
            self._at, self._totals = previous._at.copy(), previous._totals.copy()
            self._own = set()
            self._local_at, self._part_of = previous._local_at.copy(), previous._part_of.copy()
            self._update()

    @property
    def counts(self) -> np.ndarray:
        """int32 [N]: per rule its number of locations."""
        return self._totals // self._roles.orders

    @cached_property
    def locations(self) -> list[list[Match]]:
        """Per rule its matches, in the canonical order of the matched nodes."""
        return [list(self.of_rule(xfer_id)) for xfer_id in range(len(self.rules))]

    def of_rule(self, xfer_id: int) -> Iterator[Match]:
        """The matches of one rule, in the canonical order of the matched nodes."""
        rank, rule, at = self.graph.rank, self.rules[xfer_id], self._at[xfer_id]
        for node_id in sorted(at, key=rank.__getitem__):  # the first of a match's nodes
            result = at[node_id]
            if rule.symmetric:
                result = [match for match in result if not is_symmetric_match(self.graph, rule, match.nodes)]
            if len(result) > 1:
                result = sorted(result, key=lambda match: [rank[n] for n in match.nodes])
            yield from result

    def location(self, xfer_id: int, number: int) -> Match:
        """The rule's match of that number, counted from 0 in the canonical order."""
        return next(islice(self.of_rule(xfer_id), number, None))

    def location_of(self, match: Match) -> int | None:
        """The number of a match of any graph of this model; None if it is none of this one's."""
        of_root = self._at[match.xfer_id].get(match.nodes[0], ())
        if match not in of_root or is_symmetric_match(self.graph, self.rules[match.xfer_id], match.nodes):
            return None
        return list(self.of_rule(match.xfer_id)).index(match)

    def all_matches(self) -> Iterator[Match]:
        """Every match, rule by rule; of two alike roots in both orders."""
        for at in self._at:
            for node_id in sorted(at):
                yield from at[node_id]

    def difference(self, before: "MatchTable") -> tuple[list[Match], list[Match]]:
        """(matches of `before` that are gone or have another plan; those that are new), as `all_matches` counts."""
        lost, result = [], []
        for old, new in zip(before._at, self._at, strict=True):
            if old is not new:
                for node_id in sorted(old.keys() | new.keys()):
                    was, now = old.get(node_id, ()), new.get(node_id, ())
                    if was is not now:
                        lost += [m for m in was if _differs(m, now)]
                        result += [m for m in now if _differs(m, was)]
        return lost, result

    # -- looking for matches -----------------------------------------------------------------------

    def _fill(self) -> None:
        tries: dict[int, set[int]] = {}
        for node_id, node in self.graph.nodes.items():
            self._match_local(node_id)
            if node.op in self._roles.all:
                self._add_roots(node_id, self._roles.all[node.op], tries)
        self._match(tries)

    def _update(self) -> None:
        nodes, consumers, changed = self.graph.nodes, self.graph.consumers, self.graph.changed
        near: set[int] = set()  # where local rules are matched anew
        tries: dict[int, set[int]] = {}  # and where which others
        for node_id in self.graph.touched:
            node = nodes.get(node_id)
            itself = node is None or node_id in changed or len(node.outputs) > 1
            if itself:
                for xfer_id, first in self._part_of.get(node_id, ()):
                    tries.setdefault(first, set()).add(xfer_id)
            if node is None:
                for xfer_id in self._local_at.pop(node_id, ()):
                    self._store(xfer_id, node_id, ())
                continue
            if itself:
                near.add(node_id)
                near.update(reader for tensor in node.outputs for reader in consumers.get(tensor, ()))
            role = (self._roles.all if itself else self._roles.of_readers).get(node.op)
            if role is not None:
                self._climb(node_id, role, tries)
        for node_id in near:
            self._match_local(node_id)
        self._match(tries)

    def _climb(self, node_id: int, role: _Role, tries: dict[int, set[int]]) -> None:
        """Collects the rules to be tried at first roots that a change of the node, in this role, may concern."""
        nodes, consumers = self.graph.nodes, self.graph.consumers
        self._add_roots(node_id, role, tries)
        if role.above:
            for tensor in nodes[node_id].outputs:
                for reader in consumers.get(tensor, ()):
                    above = role.above.get(nodes[reader].op)
                    if above is not None:
                        self._climb(reader, above, tries)

    def _add_roots(self, node_id: int, role: _Role, tries: dict[int, set[int]]) -> None:
        if role.roots:
            nodes, producers = self.graph.nodes, self.graph.producers
            below = {nodes[producers[t]].op for t in nodes[node_id].inputs if t in producers}
            for roots, xfer_ids in role.roots.items():
                if roots.children <= below:
                    for first in self._first_roots(node_id, roots):
                        tries.setdefault(first, set()).update(xfer_ids)

    def _first_roots(self, root: int, roots: _Roots) -> list[int]:
        """The nodes that may be the first root where `root` is one of the roots."""
        if len(roots.ops) == 1:
            return [root]
        graph = self.graph
        below, tensors = {root}, set()
        for _ in range(roots.depth):
            reads = {t for n in below for t in graph.nodes[n].inputs if t in graph.types and not graph.is_constant(t)}
            below = {graph.producers[t] for t in reads if t in graph.producers}
            tensors |= reads
        readers, result = {n for t in tensors for n in graph.consumers[t]}, {root}
        for _ in range(roots.depth):
            result |= readers
            readers = {c for n in readers for t in graph.nodes[n].outputs for c in graph.consumers.get(t, ())}
        result = [n for n in result if graph.nodes[n].op in roots.ops]
        return [n for n in result if graph.nodes[n].op == roots.ops[0]] if len(result) >= len(roots.ops) else []

    def _match_local(self, node_id: int) -> None:
        """Matches all local rules at a node anew."""
        result = self._local_rules.matches_at(self.graph, self.graph.nodes[node_id])
        for xfer_id in self._local_at.get(node_id, frozenset()) | result.keys():
            self._store(xfer_id, node_id, result.get(xfer_id, ()))
        self._local_at[node_id] = frozenset(result)

    def _match(self, tries: dict[int, set[int]]) -> None:
        """Matches other rules anew, each at the nodes where it is to be tried."""
        for node_id, xfer_ids in tries.items():
            node = self.graph.nodes.get(node_id)
            for xfer_id in xfer_ids:
                result = ()
                if node is not None and not node.constant:
                    result = matches_at(self.graph, xfer_id, self.rules[xfer_id], node, self._plans)
                self._store(xfer_id, node_id, result)

    def _store(self, xfer_id: int, node_id: int, result: tuple[Match, ...]) -> None:
        old = self._at[xfer_id].get(node_id, ())
        if old == result and all(a.plan is b.plan for a, b in zip(old, result, strict=True)):
            return
        if xfer_id not in self._own:
            self._own.add(xfer_id)
            self._at[xfer_id] = self._at[xfer_id].copy()
        self._totals[xfer_id] += len(result) - len(old)
        if result:
            self._at[xfer_id][node_id] = result
        else:
            del self._at[xfer_id][node_id]
        if xfer_id not in self._roles.local:
            part = frozenset([(xfer_id, node_id)])
            for member in {n for match in old for n in match.nodes}:
                self._part_of[member] -= part
                if not self._part_of[member]:
                    del self._part_of[member]
            for member in {n for match in result for n in match.nodes}:
                self._part_of[member] = self._part_of.get(member, frozenset()) | part
