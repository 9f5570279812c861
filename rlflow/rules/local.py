"""What matches at one node: of one rule, searched for; of all local rules at once, remembered.

A rule is local if it has one root and at most two levels of operators, as most have. What it matches at a node, its
plan included, follows from the signatures of the node and of those that give its inputs: operators, attributes, types,
small constants, and which tensors are the same. So all local rules are searched for once in each such neighbourhood;
wherever an equal one turns up, which is nearly everywhere, since networks repeat themselves, the matches are read off
with other ids, and a rule that does not apply costs nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.rules.apply import Plan, Plans, Refused, content_of_constant
from rlflow.rules.match import Match, structural_matches
from rlflow.rules.patterns import Literal
from rlflow.rules.rule import Rule, RuleSet

MAX_NEIGHBOURHOODS = 20_000  # kept at once; one takes a few kB

Matches = dict[int, tuple[Match, ...]]  # by xfer_id; none without a match


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
    result: dict[tuple, Match] = {}
    for nodes, bindings in structural_matches(graph, rule, node):
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
    """Whether all that the rule's matches at a node depend on is in the key of its neighbourhood."""
    literals = [pattern for op in rule.ops for pattern in op.inputs if isinstance(pattern, Literal)]
    single = all(np.size(literal.compute({})) == 1 for literal in literals)  # the key says no more of a float constant
    return len(rule.roots) == 1 and rule.depth <= 2 and not rule.counts_readers and single


def neighbourhood(graph: Graph, node: Node) -> tuple[tuple, list[int], list[int]]:
    """(key, node ids, tensor ids) of a node and the nodes that give its inputs.

    Equal keys: the same but for the ids, in one order. The key holds what matching and `match_signature` need.
    """
    producers, types, constants = graph.producers, graph.types, graph.constants
    nodes = list(dict.fromkeys([node.id, *[producers[tensor] for tensor in node.inputs if tensor in producers]]))
    numbers, weights = {ABSENT: 0}, {}  # tensor id → position, digest → number: which of them are the same
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
    if len(node.outputs) > 1:  # one that the rule does not replace must have no reader
        key += [graph.is_used(tensor) for tensor in node.outputs]
    return tuple(key), nodes, list(numbers)


class _Pattern(NamedTuple):
    """A match in terms of positions in the lists of ids that `neighbourhood` gives."""

    xfer_id: int
    nodes: tuple[int, ...]
    attributes: dict[str, Any]
    tensors: dict[str, int | tuple[int, ...]]
    plan: Plan

    def match(self, nodes: list[int], tensors: list[int]) -> Match:
        bindings = self.attributes.copy()
        for name, position in self.tensors.items():
            bindings[name] = tensors[position] if isinstance(position, int) else tuple([tensors[k] for k in position])
        return Match(self.xfer_id, tuple([nodes[position] for position in self.nodes]), bindings, self.plan)


class LocalRules:
    """The local rules of a rule set, with their matches in each neighbourhood met so far, for graphs of one model."""

    def __init__(self, rules: RuleSet, plans: Plans):
        self._plans = plans
        self._by_root: dict[str, dict[int, Rule]] = {}
        self._known: dict[tuple, dict[int, list[_Pattern]]] = {}
        for xfer_id, rule in enumerate(rules):
            if is_local(rule):
                self._by_root.setdefault(rule.roots[0].op, {})[xfer_id] = rule

    def matches_at(self, graph: Graph, node: Node) -> Matches:
        """The matches of all local rules whose root is `node`."""
        if node.constant or node.op not in self._by_root:
            return {}
        key, nodes, tensors = neighbourhood(graph, node)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_NEIGHBOURHOODS:
                self._known.clear()
            known = self._known[key] = self._search(graph, node, nodes, tensors)
        return {
            xfer_id: tuple([pattern.match(nodes, tensors) for pattern in result]) for xfer_id, result in known.items()
        }

    def _search(self, graph: Graph, node: Node, nodes: list[int], tensors: list[int]) -> dict[int, list[_Pattern]]:
        below = {graph.nodes[node_id].op for node_id in nodes[1:]}
        result = {}
        for xfer_id, rule in self._by_root[node.op].items():
            if rule.children <= below:
                matches = matches_at(graph, xfer_id, rule, node, self._plans)
                if matches:
                    result[xfer_id] = [_pattern(match, rule, nodes, tensors) for match in matches]
        return result


def _pattern(match: Match, rule: Rule, nodes: list[int], tensors: list[int]) -> _Pattern:
    attributes, positions = {}, {}
    for name, value in match.bindings.items():
        if name not in rule.tensor_names:
            attributes[name] = value
        else:
            positions[name] = tuple(map(tensors.index, value)) if isinstance(value, tuple) else tensors.index(value)
    return _Pattern(match.xfer_id, tuple(map(nodes.index, match.nodes)), attributes, positions, match.plan)
