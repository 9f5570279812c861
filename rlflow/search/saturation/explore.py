"""Equality saturation: all rules at all matches of an e-graph, in iterations, until nothing new comes.

Iteration k applies every match that the e-graph holds at its beginning. So after k whole iterations it holds every
graph that rewrites reach, in any number, of which none needs more than k one upon the other; this is the scope
that is stated, and after an iteration without news there is no limit to k.
"""

import time

from rlflow.common.errors import RLFlowError
from rlflow.graph.model import Node
from rlflow.rules.apply import Plan, has_outputs, match_signature, operands, plan_or_reason
from rlflow.rules.rule import Rule, RuleSet
from rlflow.search.saturation.egraph import EGraph
from rlflow.search.saturation.ematch import matches

CHECK_EVERY = 64  # operators between two readings of the clock


class Explorer:
    """Applies a rule set to an e-graph. Raises RLFlowError for rules that ask who else reads a tensor."""

    def __init__(self, egraph: EGraph, rules: RuleSet):
        for rule in rules:
            if rule.counts_readers:
                raise RLFlowError(
                    f"rule {rule.name} asks who reads a tensor, which has no answer for many graphs at once"
                )
        self.egraph = egraph
        self._plans: dict[tuple, Plan | str] = {}
        self._done: set[tuple] = set()
        self._by_root: dict[str, list[tuple[int, Rule]]] = {}
        for number, rule in enumerate(rules):
            self._by_root.setdefault(rule.roots[0].op, []).append((number, rule))
        self._depth = max((rule.depth for rule in rules), default=0)

    def iterate(self, max_nodes: int, seconds: float) -> str | None:
        """One whole iteration; or nothing is done where a limit would be passed.

        Returns 'nodes' or 'seconds' for such a limit, 'saturated' if the iteration brought nothing new, else None.
        """
        egraph, end = self.egraph, time.monotonic() + seconds
        near, result, done = self._near(), [], self._done.copy()
        for position, node in enumerate(egraph.nodes.values()):
            result += self._at(node, near.get(node.id, self._depth))
            full = len(egraph.nodes) + len(result) > max_nodes  # most matches add an operator or two
            if full or (position % CHECK_EVERY == 0 and time.monotonic() > end):
                self._done = done
                return "nodes" if full else "seconds"
        egraph.fresh = {}
        for plan, bound in result:
            egraph.rewrite(plan, bound)
        egraph.rebuild()
        return None if egraph.fresh else "saturated"

    def _near(self) -> dict[int, int]:
        """Operator → how many edges below it something fresh is, as far as the deepest rule reaches."""
        nodes, consumers = self.egraph.nodes, self.egraph.consumers
        frontier = list(self.egraph.fresh)
        near = dict.fromkeys(frontier, 0)
        for distance in range(1, self._depth):
            above = [c for n in frontier for t in nodes[n].outputs for c in consumers.get(t, ())]
            frontier = [n for n in dict.fromkeys(above) if n not in near]
            near.update(dict.fromkeys(frontier, distance))
        return near

    def _at(self, node: Node, distance: int) -> list[tuple[Plan, list[int]]]:
        """The new matches whose first root is the operator; of several roots another may have something fresh below."""
        egraph = self.egraph
        if node.constant:
            return []
        below = {egraph.nodes[n].op for t in node.inputs for n in egraph.makers.get(t, ())}
        result = []
        for number, rule in self._by_root.get(node.op, ()):
            if not rule.children <= below or (distance >= rule.depth and len(rule.roots) == 1):
                continue
            for nodes, bindings in matches(egraph, rule, node):
                key = number, nodes, tuple(bindings.items())
                if key not in self._done and has_outputs(egraph, rule, nodes) and self._are_apart(rule, nodes):
                    self._done.add(key)
                    plan = self._plan(rule, nodes, bindings)
                    if plan is not None:
                        result.append((plan, operands(egraph, rule, nodes, bindings)))
        return result

    def _are_apart(self, rule: Rule, nodes: tuple[int, ...]) -> bool:
        """Whether no two roots read a common weight: an e-graph holds each operator in many forms at once, and to merge
        them with each other would go on for ever."""
        weights = [
            frozenset().union(*(self.egraph.weights.get(t, ()) for t in self.egraph.nodes[nodes[position]].inputs))
            for position in rule.root_positions
        ]
        return sum(map(len, weights)) == len(frozenset().union(*weights))

    def _plan(self, rule: Rule, nodes: tuple[int, ...], bindings: dict) -> Plan | None:
        key = match_signature(self.egraph, rule, nodes, bindings)
        result = self._plans.get(key)
        if result is None:
            result = self._plans[key] = plan_or_reason(self.egraph, rule, nodes, bindings)
        return None if isinstance(result, str) else result
