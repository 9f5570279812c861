"""Matching in an e-graph: as rlflow.rules.match, but a tensor may have several operators to try."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from rlflow.graph.model import ABSENT, Node
from rlflow.graph.opsets import supported
from rlflow.rules.match import Attempt, attempts_at, holds_literal
from rlflow.rules.patterns import Absent, Literal, Op, Output, Star
from rlflow.rules.rule import Rule
from rlflow.search.saturation.egraph import EGraph


class ClassAttempt(Attempt):
    """As its base, with a choice wherever a class has several operators.

    Two operators of a pattern may be one of the e-graph: in a graph they may be two with equal results.
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
            if second is None:  # no copy where there is no choice
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
        if kind is Literal:
            constant = self.graph.constants.get(subject)
            return constant is not None and holds_literal(constant, pattern)
        if kind is Absent:
            return subject == ABSENT
        return (kind is Star or subject != ABSENT) and self.bind(pattern.name, subject)

    def of_makers(self, pattern: Output, subject: int) -> Iterator[tuple["ClassAttempt", list]]:
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
        """The ways in which the node can be the operator, each with what is then to be met."""
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
        matched, self.matched = self.matched, {}  # the base lets no two operators be one
        result = super().accepts(op, node)
        self.matched = matched | self.matched
        return result

    def bind_tensor(self, name: str, tensor: int) -> bool:
        return self.bind(name, tensor)  # constants of equal content are one class


def matches(graph: EGraph, rule: Rule, node: Node) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """(operators in the order of `rule.ops`, bindings) whose first root is `node`; roots are different operators."""
    for attempt in attempts_at(rule, ClassAttempt(graph, {}, {}), node):
        nodes = tuple([attempt.matched[op.key] for op in rule.ops])
        if len({nodes[position] for position in rule.root_positions}) == len(rule.root_positions):
            yield nodes, attempt.bindings
