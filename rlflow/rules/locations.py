"""Find all matches of a rule set in a graph and keep them in canonical order.

Location k of a rule is its k-th match in the canonical order of the matched nodes (rlflow/graph/order.py). The valid
locations of a rule are therefore 0 … n - 1, and world models predict the number n. Two symmetric roots give two matches
that differ in the order of the roots; only the match in canonical order is a location, its mirror image is not.

A rule is local if it has one root and at most two levels of operators. Its matches and plans at a node follow from the
signatures of the node and of the nodes that give its inputs. Local rules are therefore matched once in each such
neighbourhood. Where an equal neighbourhood appears again, the same matches are returned with its ids (`LocalRules`).

The time of an update depends on the size of the change, not of the graph. A rewrite marks the nodes that it changed and
touched, and `MatchTable` looks for matches only from these nodes, upwards along the operators of the left sides. The
table stores for every node the non-local matches that contain the node, to delete these matches with the node.

`prepared` returns the graph in which the environment starts an episode: it applies the rules of the family
shape_arithmetic, in one fixed order.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from rlflow.common.layers import layered
from rlflow.graph.ir import ABSENT, Graph, Node
from rlflow.rules.apply import Plan, Plans, Refused, apply
from rlflow.rules.match import MAX_READERS, Match, few_readers, structural_matches
from rlflow.rules.patterns import Literal
from rlflow.rules.rule import Rule, RuleSet
from rlflow.rules.segments import Row, Segment, content_of_constant

MAX_MATCHES_AT = 256  # more than the default of `env.max_locations`, the number of locations that actions can select
WIDE = 32  # largest number of inputs of the nodes of a neighbourhood that is cached
MAX_NEIGHBOURHOODS = 20_000  # neighbourhoods in the cache; an entry takes a few kB

Matches = dict[int, tuple[Match, ...]]  # xfer_id → matches, at least one


class Refusal(NamedTuple):
    """The reason why a rule does not apply where its left side occurs.

    Attributes:
      rule: the rule's name.
      nodes: ids of the matched nodes in the order of `Rule.ops`.
      reason: the failed condition or the reason why the right side cannot be built.
    """

    rule: str
    nodes: tuple[int, ...]
    reason: str


def matches_at(
    graph: Graph, xfer_id: int, rule: Rule, node: Node, plans: Plans, refusals: list[Refusal] | None = None
) -> tuple[Match, ...]:
    """Return the matches of a rule whose first root is `node`, and collect the occurrences that are refused.

    A match and its mirror image (symmetric roots) are both returned, each for its own first root, since the canonical
    order depends on the whole graph. If the rule has one root, at most MAX_MATCHES_AT matches are returned. A rule can
    match at every input of a wide Concat; further matches are found after rewrites have used up the first matches.

    Args:
      graph: the graph to search.
      xfer_id: the rule's index in its rule set.
      rule: the rule.
      node: the node that the first root must match.
      plans: the cache of plans for graphs of this model.
      refusals: list to which a Refusal is appended where the left side occurs but the rule does not apply, or None.
    """
    result: dict[tuple, Match] = {}
    for nodes, bindings in structural_matches(graph, rule, node):
        if len(result) == MAX_MATCHES_AT and len(rule.roots) == 1:
            break
        key = nodes, tuple(sorted(bindings.items()))
        if key in result:
            continue
        try:
            result[key] = Match(xfer_id, nodes, bindings, plans.plan(graph, rule, nodes, bindings))
        except Refused as refused:
            if refusals is not None:
                refusals.append(Refusal(rule.name, nodes, str(refused)))
    return tuple(result.values())


# -- all local rules -------------------------------------------------------------------------------


def is_local(rule: Rule) -> bool:
    """Return True if the key of `neighbourhood` contains everything that the rule's matches at a node depend on."""
    literals = [pattern for op in rule.ops for pattern in op.inputs if isinstance(pattern, Literal)]
    single = all(np.size(literal.compute({})) == 1 for literal in literals)  # the key holds only single floats
    return len(rule.roots) == 1 and rule.depth <= 2 and not (rule.counts_readers or rule.content_names) and single


def neighbourhood(graph: Graph, node: Node) -> tuple[tuple, list[int], list[int]]:
    """Describe a node together with the nodes that compute its inputs by a key without ids.

    The key contains everything that local rules and `match_signature` read. Two neighbourhoods with equal keys differ
    only in their ids, which are listed in corresponding order.

    Args:
      graph: the graph.
      node: the central node.

    Returns:
      (key, node ids, tensor ids).
    """
    producers, types, constants = graph.producers, graph.types, graph.constants
    nodes = list(dict.fromkeys([node.id, *[producers[tensor] for tensor in node.inputs if tensor in producers]]))
    if graph.interface.bodies:  # No match contains nodes of two bodies.
        nodes = [near for near in nodes if graph.nodes[near].body == node.body]
    numbers, weights = {ABSENT: 0}, {}  # tensor id → position; digest → number of the weight
    key: list[Any] = []
    for node_id in nodes:
        member = graph.nodes[node_id]
        key += member.op, member.domain, member.attributes, len(member.inputs)
        key += [numbers.setdefault(tensor, len(numbers)) for tensor in (*member.inputs, *member.outputs)]
    for tensor in numbers:
        constant = constants.get(tensor)
        if constant is None:
            key += types.get(tensor), graph.is_constant(tensor), None
        else:
            key += constant.type, content_of_constant(constant), weights.setdefault(constant.digest, len(weights))
    if len(node.outputs) > 1:  # An output that a rule does not replace must have no reader.
        key += [graph.is_used(tensor) for tensor in node.outputs]
    return tuple(key), nodes, list(numbers)


class _RelativeMatch(NamedTuple):
    """A match without ids; nodes and tensors are positions in the lists of ids that `neighbourhood` returns.

    Attributes:
      xfer_id: index of the rule in its rule set.
      nodes: positions of the matched nodes, in the order of `Rule.ops`.
      attributes: name → attribute value.
      tensors: name → position.
      segments: name → (position of the node whose inputs contain the tensors, start, stop).
      plan: the replacement.
    """

    xfer_id: int
    nodes: tuple[int, ...]
    attributes: dict[str, Any]
    tensors: dict[str, int]
    segments: dict[str, tuple[int, int, int]]
    plan: Plan

    def match(self, graph: Graph, nodes: list[int], tensors: list[int]) -> Match:
        bindings = self.attributes.copy()
        for name, position in self.tensors.items():
            bindings[name] = tensors[position]
        for name, (position, start, stop) in self.segments.items():
            bindings[name] = Segment(Row.of(graph.nodes[nodes[position]]), start, stop)
        return Match(self.xfer_id, tuple([nodes[position] for position in self.nodes]), bindings, self.plan)


class LocalRules:
    """The local rules of a rule set, with a cache of their matches in each neighbourhood, for graphs of one model."""

    def __init__(self, rules: RuleSet, plans: Plans):
        self._plans = plans
        self._by_root: dict[str, dict[int, Rule]] = {}
        self._known: dict[tuple, dict[int, list[_RelativeMatch]]] = {}
        for xfer_id, rule in enumerate(rules):
            if is_local(rule):
                self._by_root.setdefault(rule.roots[0].op, {})[xfer_id] = rule

    def matches_at(self, graph: Graph, node: Node) -> Matches:
        """Return xfer_id → matches at `node` for the local rules whose root matches the node."""
        if node.constant or node.op not in self._by_root or node.id in graph.interface.protected:
            return {}
        if self._is_wide(graph, node):
            return self._search(graph, node)
        key, nodes, tensors = neighbourhood(graph, node)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_NEIGHBOURHOODS:
                self._known.clear()
            known = self._known[key] = {
                xfer_id: [_relative_match(match, self._by_root[node.op][xfer_id], nodes, tensors) for match in matches]
                for xfer_id, matches in self._search(graph, node).items()
            }
        return {
            xfer_id: tuple([pattern.match(graph, nodes, tensors) for pattern in result])
            for xfer_id, result in known.items()
        }

    @staticmethod
    def _is_wide(graph: Graph, node: Node) -> bool:
        """Return True if a key of the neighbourhood would be long, so that many of them would be slow and large."""
        producers, nodes = graph.producers, graph.nodes
        return len(node.inputs) > WIDE or any(
            len(nodes[producers[tensor]].inputs) > WIDE for tensor in node.inputs if tensor in producers
        )

    def _search(self, graph: Graph, node: Node) -> Matches:
        below = {graph.nodes[node_id].op for node_id in graph.sources(node)}
        result = {}
        for xfer_id, rule in self._by_root[node.op].items():
            if rule.children <= below:
                matches = matches_at(graph, xfer_id, rule, node, self._plans)
                if matches:
                    result[xfer_id] = matches
        return result


def _relative_match(match: Match, rule: Rule, nodes: list[int], tensors: list[int]) -> _RelativeMatch:
    attributes, positions, segments = {}, {}, {}
    for name, value in match.bindings.items():
        if isinstance(value, Segment):
            segments[name] = nodes.index(value.row.node), value.start, value.stop
        elif name in rule.tensor_names:
            positions[name] = tensors.index(value)
        else:
            attributes[name] = value
    of_nodes = tuple(map(nodes.index, match.nodes))
    return _RelativeMatch(match.xfer_id, of_nodes, attributes, positions, segments, match.plan)


def is_symmetric_match(graph: Graph, rule: Rule, nodes: tuple[int, ...]) -> bool:
    """Return True if a match has two symmetric roots that are not in canonical order, so that it is no location.

    Args:
      graph: the graph of the match.
      rule: the matched rule.
      nodes: node ids in the order of `rule.ops`.
    """
    if not rule.symmetric:
        return False
    first, second = (nodes[position] for position in rule.root_positions)
    return graph.rank[first] > graph.rank[second]


def explain(graph: Graph, rules: RuleSet, name: str) -> tuple[list[Match], list[Refusal]]:
    """Return the matches of one rule and its refusals, in the canonical order of the nodes.

    Args:
      graph: the graph to search.
      rules: the rule set.
      name: the rule's name.
    """
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
    """The requirements that nodes must meet to be the roots of a rule; several rules can share one object.

    Attributes:
      ops: operator names of all roots, the first root first.
      children: `Rule.children`, operator names that must occur directly below each root.
      depth: `Rule.depth`, number of operators on the longest path below a root.
    """

    ops: tuple[str, ...]
    children: frozenset[str]
    depth: int


class _Role:
    """A part that a node can play in left sides, given by the operators on the way up from some operator to the node.

    Attributes:
      above: operator name → role of a reader of the node with this operator.
      roots: requirements on the roots → xfer_ids of the rules in which the node may be a root.
    """

    def __init__(self):
        self.above: dict[str, _Role] = {}
        self.roots: dict[_Roots, set[int]] = {}


class _Roles:
    """The roles of all rules that are not local, with which a search climbs from a changed node to possible roots.

    Attributes:
      all: operator name → the role from which a climb begins at a node with this operator.
      of_readers: the same for rules with `counts_readers` only.
      local: xfer_ids of the local rules.
      orders: int32 [N]: number of matches that form one location of each of the N rules: 2 for a symmetric rule, whose
        match and mirror image are one location, else 1.
    """

    def __init__(self, rules: RuleSet):
        self.all: dict[str, _Role] = {}
        self.of_readers: dict[str, _Role] = {}
        self.local = frozenset(xfer_id for xfer_id, rule in enumerate(rules) if is_local(rule))
        self.orders = np.array([2 if rule.symmetric else 1 for rule in rules], np.int32)
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


def _without(matches: tuple[Match, ...], others: tuple[Match, ...]) -> list[Match]:
    """Return the matches that are not among `others` with the same plan."""
    of_nodes: dict[tuple[int, ...], list[Match]] = {}
    for other in others:
        of_nodes.setdefault(other.nodes, []).append(other)
    return [
        match
        for match in matches
        if not any(match == other and match.plan is other.plan for other in of_nodes.get(match.nodes, ()))
    ]


class MatchTable:
    """All matches of a rule set in one graph.

    After a rewrite, only the matches that the change can affect are updated. A match depends on its own nodes and, for
    a few rules, on all readers of the matched tensors. A rewrite that changes any of these marks a node of the match.
    Local rules are matched again at the marked nodes and their readers. Other rules are matched again at the first
    roots of known matches that contain a marked node. They are also matched at roots that a climb from a marked node
    reaches along the operators of left sides. If a rule has several roots, the climb can reach any of them; the first
    root is then found through a tensor on which all roots depend.

    Args:
      rules: the rule set.
      graph: the graph.
      previous: the table of the graph before the last rewrite; None to search the whole graph.
    """

    def __init__(self, rules: RuleSet, graph: Graph, previous: "MatchTable | None" = None):
        self.rules, self.graph = rules, graph
        if previous is None:
            self._roles, self._plans = _roles(rules), Plans()
            self._local_rules = LocalRules(rules, self._plans)
            self._at: list[dict[int, tuple[Match, ...]]] = [{} for _ in range(len(rules))]  # per rule, by first root
            self._totals = np.zeros(len(rules), np.int32)
            self._unshared = set(range(len(rules)))  # rules whose matches are not shared with `previous`
            self._local_at: dict[int, frozenset[int]] = {}  # node id → local rules that match at the node
            # Node id → (rule, first root) of every match of another rule that contains the node.
            self._part_of: dict[int, frozenset[tuple[int, int]]] = {}
            self._fill()
        else:
            self._roles, self._plans, self._local_rules = previous._roles, previous._plans, previous._local_rules
            self._at, self._totals = previous._at.copy(), previous._totals.copy()
            self._unshared = set()
            self._local_at, self._part_of = previous._local_at.copy(), previous._part_of.copy()
            self._update(previous.graph)

    @property
    def counts(self) -> np.ndarray:
        """int32 [N]: the number of locations of each of the N rules."""
        return self._totals // self._roles.orders

    @cached_property
    def locations(self) -> list[list[Match]]:
        """A list for each rule with its matches in the order of their locations."""
        return [list(self.of_rule(xfer_id)) for xfer_id in range(len(self.rules))]

    def of_rule(self, xfer_id: int) -> Iterator[Match]:
        """Yield the matches of one rule in the order of their locations."""
        rank, rule, at = self.graph.rank, self.rules[xfer_id], self._at[xfer_id]
        for node_id in sorted(at, key=rank.__getitem__):  # the first node of each match
            result = at[node_id]
            if rule.symmetric:
                result = [match for match in result if not is_symmetric_match(self.graph, rule, match.nodes)]
            yield from self._in_order(result)

    def location(self, xfer_id: int, number: int) -> Match:
        """Return the match of a rule at location `number`."""
        return next(islice(self.of_rule(xfer_id), number, None))

    def location_of(self, match: Match) -> int | None:
        """Return the location of a match in this graph, or None if the match is no location here.

        The match may come from another graph that rewrites of the same model produced.
        """
        rule, at, root = self.rules[match.xfer_id], self._at[match.xfer_id], match.nodes[0]
        if match not in at.get(root, ()) or is_symmetric_match(self.graph, rule, match.nodes):
            return None
        if rule.symmetric:
            return list(self.of_rule(match.xfer_id)).index(match)
        moment = self.graph.rank[root]
        earlier = sum([len(at[node_id]) for node_id in at if self.graph.rank[node_id] < moment])
        return earlier + self._in_order(at[root]).index(match)

    def _in_order(self, matches: Sequence[Match]) -> Sequence[Match]:
        """Sort matches with the same first node by the ranks of their other nodes."""
        rank = self.graph.rank
        return matches if len(matches) < 2 else sorted(matches, key=lambda match: [rank[n] for n in match.nodes])

    def all_matches(self) -> Iterator[Match]:
        """Yield all matches, rule by rule, including the mirror images of matches with symmetric roots."""
        for at in self._at:
            for node_id in sorted(at):
                yield from at[node_id]

    def difference(self, before: "MatchTable") -> tuple[list[Match], list[Match]]:
        """Return (matches of `before` that this table lacks, matches of this table that `before` lacks).

        A match whose plan has changed is in both lists.
        """
        lost, result = [], []
        for old, new in zip(before._at, self._at, strict=True):
            if old is not new:
                for node_id in sorted(old.keys() | new.keys()):
                    was, now = old.get(node_id, ()), new.get(node_id, ())
                    if was is not now:
                        lost += _without(was, now)
                        result += _without(now, was)
        return lost, result

    # -- search ----------------------------------------------------------------------------------

    def _fill(self) -> None:
        tries: dict[int, set[int]] = {}
        for node_id, node in self.graph.nodes.items():
            self._match_local(node_id)
            if node.op in self._roles.all:
                self._add_roots(node_id, self._roles.all[node.op], tries)
        self._match(tries)
        self._at = [layered(at) for at in self._at]
        self._local_at, self._part_of = layered(self._local_at), layered(self._part_of)

    def _update(self, before: Graph) -> None:
        nodes, consumers, changed = self.graph.nodes, self.graph.consumers, self.graph.changed

        def is_crowded(graph: Graph, tensor: int) -> bool:
            return len(graph.consumers.get(tensor, ())) > MAX_READERS

        near: set[int] = set()  # nodes at which local rules are matched again
        tries: dict[int, set[int]] = {}  # first root → other rules to match again
        for node_id in self.graph.touched:
            node = nodes.get(node_id)
            itself = node is None or node_id in changed or len(node.outputs) > 1
            itself = itself or any(is_crowded(before, t) != is_crowded(self.graph, t) for t in node.inputs)
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
        """Add to `tries` (first root → xfer_ids) the matches that a change of a node in a role may affect."""
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
        """Return the ids of the nodes that may be the first root of a match in which `root` is one of the roots."""
        if len(roots.ops) == 1:
            return [root]
        graph = self.graph
        below, tensors = {root}, set()
        for _ in range(roots.depth):
            reads = {t for n in below for t in graph.nodes[n].inputs if t in graph.types and not graph.is_constant(t)}
            below = {graph.producers[t] for t in reads if t in graph.producers}
            tensors |= reads
        readers, result = {n for t in tensors for n in few_readers(graph, t)}, {root}
        for _ in range(roots.depth):
            result |= readers
            readers = {c for n in readers for t in graph.nodes[n].outputs for c in few_readers(graph, t)}
        result = [n for n in result if graph.nodes[n].op in roots.ops]
        return [n for n in result if graph.nodes[n].op == roots.ops[0]] if len(result) >= len(roots.ops) else []

    def _match_local(self, node_id: int) -> None:
        """Match all local rules at a node and replace the stored matches."""
        result = self._local_rules.matches_at(self.graph, self.graph.nodes[node_id])
        for xfer_id in self._local_at.get(node_id, frozenset()) | result.keys():
            self._store(xfer_id, node_id, result.get(xfer_id, ()))
        self._local_at[node_id] = frozenset(result)

    def _match(self, tries: dict[int, set[int]]) -> None:
        """Match rules that are not local and replace the stored matches; `tries` maps first roots to xfer_ids."""
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
        if xfer_id not in self._unshared:
            self._unshared.add(xfer_id)
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


PREPARING_FAMILY = "shape_arithmetic"
Actions = tuple[tuple[int, int], ...]  # (xfer_id, location)


def prepared(graph: Graph, rules: RuleSet) -> tuple[Graph, Actions]:
    """Apply the rules of the family shape_arithmetic until none applies, and return the graph and the actions.

    Args:
      graph: the graph as it was loaded.
      rules: the rule set; only its family shape_arithmetic is applied.
    """
    xfer_ids = [xfer_id for xfer_id, rule in enumerate(rules) if rule.family == PREPARING_FAMILY]
    own = RuleSet(tuple([rules[xfer_id] for xfer_id in xfer_ids]))
    actions, table = [], MatchTable(own, graph)
    while (position := next((k for k, count in enumerate(table.counts) if count), None)) is not None:
        graph = apply(graph, own[position], table.location(position, 0))
        table = MatchTable(own, graph, table)
        actions.append((xfer_ids[position], 0))
    return graph, tuple(actions)
