"""Matching in an e-graph: as rlflow.rules.match, but a tensor may have several operators to try."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from rlflow.graph.model import ABSENT, Node
from rlflow.graph.opsets import supported
from rlflow.rules import match
from rlflow.rules.language import Absent, Literal, Op, Output, Rule, Star
from rlflow.saturation.egraph import EGraph


class _Attempt(match._Attempt):
    """As its base, with a choice wherever a class has several operators.

    Two operators of a pattern may be one of the e-graph: in a graph they may be two with equal results.
    """

    graph: EGraph

    def solutions(self, goals: list) -> Iterator["_Attempt"]:
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
            return constant is not None and match._holds_literal(constant, pattern)
        if kind is Absent:
            return subject == ABSENT
        return (kind is Star or subject != ABSENT) and self.bind(pattern.name, subject)

    def of_makers(self, pattern: Output, subject: int) -> Iterator[tuple["_Attempt", list]]:
        if pattern.op.key in self.matched:
            node = self.graph.nodes[self.matched[pattern.op.key]]
            if pattern.slot < len(node.outputs) and node.outputs[pattern.slot] == subject:
                yield self, []
            return
        for node_id in self.graph.makers.get(subject, ()):
            node = self.graph.nodes[node_id]
            if node.op == pattern.op.op and pattern.slot < len(node.outputs) and node.outputs[pattern.slot] == subject:
                yield from self.aligned(pattern.op, node)

    def aligned(self, op: Op, node: Node) -> Iterator[tuple["_Attempt", list]]:
        """The ways in which the node can be the operator, each with what is then to be met."""
        if op.key in self.matched:
            if self.matched[op.key] == node.id:
                yield self, []
            return
        attempt = _Attempt(self.graph, self.bindings.copy(), self.matched.copy())
        if not attempt.accepts(op, node):
            return
        alignments = match._alignments(self.graph, op, node) if match._is_plain(op) else _laid_over(self.graph, op, node)
        for place, goals in enumerate(alignments):
            yield attempt if place == len(alignments) - 1 else _Attempt(
                self.graph, attempt.bindings.copy(), attempt.matched.copy()
            ), goals

    def accepts(self, op: Op, node: Node) -> bool:
        if node.op != op.op or node.domain != op.domain or node.captured:
            return False
        if not supported(op.op, op.domain, self.graph.opset(op.domain)):
            return False
        matched, self.matched = self.matched, {}  # the base lets no two operators be one
        found = super().accepts(op, node)
        self.matched = matched | self.matched
        return found

    def bind_tensor(self, name: str, tensor: int) -> bool:
        return self.bind(name, tensor)  # constants of equal content are one class


def _laid_over(graph: EGraph, op: Op, node: Node) -> list[list]:
    """The ways to lay patterns with stars over the inputs, each as goals, the first one last."""
    tensors = node.inputs
    while tensors and tensors[-1] == ABSENT:
        tensors = tensors[:-1]
    return [goals[::-1] for goals in _laid(graph, op.inputs, tensors)]


def _laid(graph: EGraph, patterns: tuple, tensors: tuple[int, ...]) -> Iterator[list]:
    if not patterns:
        if not tensors:
            yield []
        return
    first, rest = patterns[0], patterns[1:]
    if isinstance(first, Star):
        for count in range(len(tensors) + 1):
            for goals in _laid(graph, rest, tensors[count:]):
                yield [(first, tensors[:count]), *goals]
    elif isinstance(first, Output) and first.slot is None:
        for node_id in graph.makers.get(tensors[0], ()) if tensors else ():
            node = graph.nodes[node_id]
            if tensors[: len(node.outputs)] == node.outputs:
                for goals in _laid(graph, rest, tensors[len(node.outputs) :]):
                    yield [(first.op, node), *goals]
    elif tensors:
        for goals in _laid(graph, rest, tensors[1:]):
            yield [(first, tensors[0]), *goals]


def matches(graph: EGraph, rule: Rule, node: Node) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """(operators in the order of `rule.ops`, bindings) whose first root is `node`; roots are different operators."""
    attempts = _Attempt(graph, {}, {}).solutions([(rule.roots[0], node)])
    for root in rule.roots[1:]:
        attempts = _with_sibling(rule, root, attempts)
    for attempt in attempts:
        nodes = tuple([attempt.matched[op.key] for op in rule.ops])
        if len({nodes[place] for place in rule.root_places}) == len(rule.root_places):
            yield nodes, attempt.bindings


def _with_sibling(rule: Rule, root: Op, attempts: Iterator[_Attempt]) -> Iterator[_Attempt]:
    for attempt in attempts:
        if root.key in attempt.matched:
            yield attempt
            continue
        for sibling in match._sibling_roots(rule, root, attempt):
            copy = _Attempt(attempt.graph, attempt.bindings.copy(), attempt.matched.copy())
            yield from copy.solutions([(root, sibling)])
