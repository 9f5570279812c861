"""Equality saturation: match all rules in an e-graph and apply them in iterations until nothing new appears.

Iteration k applies every match that the e-graph contains at its start. After k whole iterations, the e-graph contains
every graph that any number of rewrites reach, if no rewrite needs more than k − 1 others before it. After an iteration
without a new operator, this limit is void. `matches` works as in rlflow.rules.match, but a tensor may have several
makers.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import ABSENT, Node
from rlflow.graph.opsets import supported
from rlflow.rules.apply import Plan, has_outputs, match_signature, operands, plan_or_reason
from rlflow.rules.match import Attempt, attempts_at, holds_literal
from rlflow.rules.patterns import Absent, Literal, Op, Output, Star
from rlflow.rules.rule import Rule, RuleSet
from rlflow.search.saturation.egraph import EGraph


class ClassAttempt(Attempt):
    """A match attempt in an e-graph, which branches wherever a class has several makers.

    Two operators of a pattern may match one operator of the e-graph, because a graph may contain it twice.
    """

    graph: EGraph

    def makers(self, tensor: int) -> Iterable[int]:
        return self.graph.makers.get(tensor, ())

    def solutions(self, goals: list) -> Iterator["ClassAttempt"]:
        while goals:
            pattern, subject = goals.pop()
            kind = type(pattern)
            if kind is Op:
                choices = self.aligned(pattern, subject)
            elif kind is Output:
                choices = self.of_makers(pattern, subject)
            else:
                if not self.is_met(kind, pattern, subject):
                    return
                continue
            first, second = next(choices, None), next(choices, None)
            if second is None:  # With one choice or none, no attempt is copied.
                if first is None:
                    return
                attempt, more = first
                self.bindings, self.matched = attempt.bindings, attempt.matched
                goals += more
                continue
            for attempt, more in chain((first, second), choices):
                yield from attempt.solutions(goals + more)
            return
        yield self

    def is_met(self, kind: type, pattern, subject) -> bool:
        """Check a literal, an absent input or a variable against a class, and bind the variable.

        Args:
          kind: type of the pattern.
          pattern: the pattern.
          subject: a class; for `Star`, a tuple of classes.
        """
        if kind is Literal:
            constant = self.graph.constants.get(subject)
            return constant is not None and holds_literal(constant, pattern)
        if kind is Absent:
            return subject == ABSENT
        return (kind is Star or subject != ABSENT) and self.bind(pattern.name, subject)

    def of_makers(self, pattern: Output, subject: int) -> Iterator[tuple["ClassAttempt", list]]:
        """Yield each way in which a maker of a class can match the operator of an output pattern.

        Args:
          pattern: an output of an operator in the rule.
          subject: a class.

        Yields:
          (attempt, patterns that remain to be matched).
        """
        if pattern.op.key in self.matched:
            node = self.graph.nodes[self.matched[pattern.op.key]]
            if pattern.slot < len(node.outputs) and node.outputs[pattern.slot] == subject:
                yield self, []
            return
        for node_id in self.makers(subject):
            node = self.graph.nodes[node_id]
            if node.op == pattern.op.op and pattern.slot < len(node.outputs) and node.outputs[pattern.slot] == subject:
                yield from self.aligned(pattern.op, node)

    def aligned(self, op: Op, node: Node) -> Iterator[tuple["ClassAttempt", list]]:
        """Yield each way in which a node can match an operator.

        Args:
          op: an operator of the rule.
          node: an operator of the e-graph.

        Yields:
          (attempt, patterns that remain to be matched).
        """
        if op.key in self.matched:
            if self.matched[op.key] == node.id:
                yield self, []
            return
        attempt = self.copy()
        if not attempt.accepts(op, node):
            return
        *others, last = attempt.alignments(op, node) or (None,)
        for goals in others:
            yield attempt.copy(), goals
        if last is not None:
            yield attempt, last

    def accepts(self, op: Op, node: Node) -> bool:
        if node.op != op.op or node.domain != op.domain or node.captured:
            return False
        if not supported(op.op, op.domain, self.graph.opset(op.domain)):
            return False
        matched, self.matched = self.matched, {}  # emptied, because the base class rejects a node matched twice
        result = super().accepts(op, node)
        self.matched = matched | self.matched
        return result

    def bind_tensor(self, name: str, tensor: int) -> bool:
        return self.bind(name, tensor)  # constants of equal content are one class


def matches(graph: EGraph, rule: Rule, node: Node) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield the matches of a rule whose first root is a given operator; the roots of a match are different operators.

    Args:
      graph: the e-graph.
      rule: the rule.
      node: the operator that the first root must match.

    Yields:
      (ids of operators in the order of `rule.ops`, bindings).
    """
    for attempt in attempts_at(rule, ClassAttempt(graph, {}, {}), node):
        nodes = tuple([attempt.matched[op.key] for op in rule.ops])
        if len({nodes[position] for position in rule.root_positions}) == len(rule.root_positions):
            yield nodes, attempt.bindings


CHECK_EVERY = 64  # operators between two readings of the clock


class Explorer:
    """A rule set that is applied to an e-graph in iterations.

    Args:
      egraph: the e-graph; it grows.
      rules: the rules.

    Raises:
      RLFlowError: a rule depends on the readers of a tensor.
    """

    def __init__(self, egraph: EGraph, rules: RuleSet):
        for rule in rules:
            if rule.counts_readers:
                raise RLFlowError(
                    f"rule {rule.name} depends on the readers of a tensor, which an e-graph does not define; drop it"
                )
        self.egraph = egraph
        self._plans: dict[tuple, Plan | str] = {}
        self._done: set[tuple] = set()
        self._by_root: dict[str, list[tuple[int, Rule]]] = {}
        for number, rule in enumerate(rules):
            self._by_root.setdefault(rule.roots[0].op, []).append((number, rule))
        self._depth = max((rule.depth for rule in rules), default=0)

    def iterate(self, max_nodes: int, seconds: float) -> str | None:
        """Do one whole iteration, or change nothing if a limit would be exceeded.

        Args:
          max_nodes: largest number of operators in the e-graph.
          seconds: time limit for the matching.

        Returns:
          'nodes' or 'seconds' for an exceeded limit, 'saturated' if the iteration found nothing new, else None.
        """
        egraph, end = self.egraph, time.monotonic() + seconds
        near, result, done = self._distances_to_fresh(), [], self._done.copy()
        for position, node in enumerate(egraph.nodes.values()):
            result += self._new_matches_at(node, near.get(node.id, self._depth))
            full = len(egraph.nodes) + len(result) > max_nodes  # an estimate: most matches add one or two operators
            if full or (position % CHECK_EVERY == 0 and time.monotonic() > end):
                self._done = done
                return "nodes" if full else "seconds"
        egraph.fresh = {}
        for plan, bound in result:
            egraph.rewrite(plan, bound)
        egraph.rebuild()
        return None if egraph.fresh else "saturated"

    def _distances_to_fresh(self) -> dict[int, int]:
        """Return, for each operator near a fresh one, the distance in edges down to the fresh one, up to the deepest
        rule.
        """
        nodes, consumers = self.egraph.nodes, self.egraph.consumers
        frontier = list(self.egraph.fresh)
        near = dict.fromkeys(frontier, 0)
        for distance in range(1, self._depth):
            above = [c for n in frontier for t in nodes[n].outputs for c in consumers.get(t, ())]
            frontier = [n for n in dict.fromkeys(above) if n not in near]
            near.update(dict.fromkeys(frontier, distance))
        return near

    def _new_matches_at(self, node: Node, distance: int) -> list[tuple[Plan, list[int]]]:
        """Return the new matches whose first root is the operator.

        A rule with several roots is matched at any distance, because the fresh operator may be below another root.
        """
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
                if key not in self._done and has_outputs(egraph, rule, nodes) and self._share_no_weight(rule, nodes):
                    self._done.add(key)
                    plan = self._plan(rule, nodes, bindings)
                    if plan is not None:
                        result.append((plan, operands(egraph, rule, nodes, bindings)))
        return result

    def _share_no_weight(self, rule: Rule, nodes: tuple[int, ...]) -> bool:
        """Check that no two roots read a common weight.

        An e-graph contains each operator in many forms at once, and merging these forms with each other would never
        end.
        """
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
