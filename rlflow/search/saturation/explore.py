"""Equality saturation: match all rules in an e-graph and apply them in iterations until nothing new appears.

Each iteration applies every match that the e-graph contains when the iteration begins. After k whole iterations, the
e-graph contains every graph that any number of rewrites reach, if no rewrite needs more than k − 1 other rewrites
before it. If an iteration adds no operator, the graphs of any number of rewrites are contained without this limit.
`matches` works as in rlflow.rules.match, but several operators may compute a class.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import ABSENT, Node
from rlflow.graph.opsets import supported
from rlflow.rules.apply import Plan, bound_operands, has_outputs, match_signature, plan_or_reason
from rlflow.rules.match import Attempt, attempts_at, holds_literal
from rlflow.rules.patterns import Absent, Literal, Op, Output, Star
from rlflow.rules.rule import Rule, RuleSet
from rlflow.search.saturation.egraph import EGraph


class ClassAttempt(Attempt):
    """A partial match in an e-graph. It is copied wherever several operators that compute a class can match.

    Two operators of a rule may match one operator of the e-graph, because a graph may contain this operator twice.
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
        """Return whether a pattern without operators matches a class, and bind the pattern if it is a variable.

        Args:
          kind: type of the pattern: `Literal`, `Absent`, `Star` or a variable.
          pattern: the pattern.
          subject: a class; for `Star`, a Segment of classes.
        """
        if kind is Literal:
            constant = self.graph.constants.get(subject)
            return constant is not None and holds_literal(constant, pattern)
        if kind is Absent:
            return subject == ABSENT
        return (kind is Star or subject != ABSENT) and self.bind(pattern.name, subject)

    def of_makers(self, pattern: Output, subject: int) -> Iterator[tuple["ClassAttempt", list]]:
        """Yield each way in which an operator that computes a class can match the operator of an output pattern.

        Args:
          pattern: an output of an operator in the rule.
          subject: the class.

        Yields:
          (attempt, goals that remain to be matched: (pattern, class) pairs of the operator's inputs).
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
        """Yield each way in which an operator of the e-graph can match an operator of the rule.

        There are several ways if the rule's operator is commutative or has a variable number of inputs.

        Args:
          op: an operator of the rule.
          node: an operator of the e-graph.

        Yields:
          (attempt, goals that remain to be matched: (pattern, class) pairs of the operator's inputs).
        """
        if op.key in self.matched:
            if self.matched[op.key] == node.id:
                yield self, []
            return
        attempt = self.copy()
        if not attempt.accepts(op, node):
            return
        *others, last = list(attempt.alignments(op, node)) or (None,)
        for goals in others:
            yield attempt.copy(), goals
        if last is not None:
            yield attempt, last

    def accepts(self, op: Op, node: Node) -> bool:
        if node.op != op.op or node.domain != op.domain or node.captured or node.draw:
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
    """Yield the matches of a rule whose first root is a given operator, and whose roots are different operators.

    Args:
      graph: the e-graph.
      rule: the rule.
      node: the operator of the e-graph that the first root must match.

    Yields:
      (ids of the matched operators in the order of `rule.ops`, bindings of the rule's variables).
    """
    for attempt in attempts_at(rule, ClassAttempt(graph, {}, {}), node):
        nodes = tuple([attempt.matched[op.key] for op in rule.ops])
        if len({nodes[position] for position in rule.root_positions}) == len(rule.root_positions):
            yield nodes, attempt.bindings


CHECK_EVERY = 64  # number of operators between two readings of the clock


class Explorer:
    """Equality saturation of one e-graph by one rule set.

    Args:
      egraph: the e-graph, to which `iterate` adds operators.
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
        """Apply all new matches in the e-graph, or change nothing if a limit would be exceeded.

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
        """Return id of an operator → number of edges down to the nearest operator in `EGraph.fresh`.

        Operators that are further from a fresh operator than the deepest rule reaches are left out.
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
        """Return (plan, operands) of the matches with a given first root that were not returned before.

        Args:
          node: the operator that the first root must match.
          distance: number of edges from the operator down to a fresh operator. A rule with one root cannot have new
            matches if its depth is at most this distance. A rule with several roots can, because the fresh operator may
            be below another root.
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
                        result.append((plan, bound_operands(egraph, rule, nodes, bindings)))
        return result

    def _share_no_weight(self, rule: Rule, nodes: tuple[int, ...]) -> bool:
        """Check that no two roots of a match read constants that are computed from a common weight.

        An e-graph contains each operator in many equal forms. Without this check, rules would merge these forms with
        each other without end.

        Args:
          rule: the rule.
          nodes: ids of the matched operators, in the order of `rule.ops`.
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
