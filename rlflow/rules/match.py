"""Match one rule at one node: find every way in which the left side of the rule occurs with its first root there.

`Attempt` is a backtracking search over goals, each a pattern and the tensor or node that it must match. It covers
operators, attributes and literals; the rule's conditions are tested later (rlflow.rules.apply).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain
from typing import Any

import numpy as np

from rlflow.graph.ir import ABSENT, Constant, Graph, Node
from rlflow.graph.opsets import schema_version, supported
from rlflow.graph.shapes import SHAPE_VALUE_LIMIT, attribute_defaults
from rlflow.rules.expressions import FLOATS, Tensor
from rlflow.rules.patterns import Absent, Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import Rule
from rlflow.rules.segments import Row, Segment

COMMUTATIVE = frozenset(("Add", "Mul", "And", "Or", "Xor", "Equal"))
WINDOWED = frozenset(("Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"))
# The `axis` of these operators counts axes of the first input, so a negative axis can be made positive.
AXIS_OF_INPUT = frozenset(
    (
        "ArgMax", "Concat", "Split", "Softmax", "LogSoftmax", "Gather", "LayerNormalization", "RMSNormalization",
        "Flatten",
    )
)
# These attributes follow from the weights or matter only in training.
REDUNDANT = frozenset((("Conv", "kernel_shape"), ("FusedConv", "kernel_shape"), ("BatchNormalization", "momentum")))


@dataclass(frozen=True, slots=True)
class Match:
    """One way in which a rule's left side occurs in a graph.

    Attributes:
      xfer_id: index of the rule in its rule set.
      nodes: node ids in the order of `rule.ops`.
      bindings: name → tensor id, Segment of tensor ids, or attribute value.
      plan: the replacement, an `apply.Plan`; comparisons ignore it.
    """

    xfer_id: int
    nodes: tuple[int, ...]
    bindings: dict[str, Any]
    plan: Any = field(compare=False)


# -- attributes ------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def _attributes(op: str, domain: str, opset: int, given: tuple, rank: int | None, kernel: tuple | None):
    """Return (attribute → value with defaults, the given (name, value) pairs that are not defaults).

    A negative `axis` is replaced by the axis counted from 0 if the rank is known.

    Args:
      op, domain, opset: the operator.
      given: (name, value) pairs of the node.
      rank: rank of the first input; None if unknown.
      kernel: spatial shape of a convolution's weight; None if unknown or for other operators.
    """
    defaults = dict(attribute_defaults(op, domain, schema_version(op, domain, opset)))
    if op == "Transpose":
        defaults["perm"] = None if rank is None else tuple(reversed(range(rank)))
    if op in WINDOWED:
        for name, value in (("strides", (1,)), ("dilations", (1,)), ("pads", (0, 0))):
            defaults[name] = None if rank is None else value * (rank - 2)
    if op in ("Conv", "FusedConv"):
        defaults["kernel_shape"] = kernel
    values = defaults | dict(given)
    if op in AXIS_OF_INPUT and isinstance(values.get("axis"), int) and values["axis"] < 0 and rank is not None:
        values["axis"] += rank
    others = tuple(
        (name, values[name]) for name, _ in given
        if (op, name) not in REDUNDANT and values[name] != defaults.get(name)
    )  # fmt: skip
    return values, others


def attributes_of(graph: Graph, node: Node) -> tuple[dict[str, Any], tuple]:
    """Return the attributes of a node, with `axis` counted from 0 if the rank of the first input is known.

    Returns:
      (attribute → value including defaults, the (name, value) pairs of the node that differ from the defaults).
    """
    kind = graph.types.get(node.inputs[0]) if node.inputs else None
    rank = len(kind.shape) if kind is not None and kind.shape is not None else None
    kernel = None
    if node.op in ("Conv", "FusedConv"):
        weight = graph.types.get(node.inputs[1])
        kernel = weight.shape[2:] if weight is not None and weight.shape is not None else None
    return _attributes(node.op, node.domain, graph.opset(node.domain), node.attributes, rank, kernel)


# -- one pattern -----------------------------------------------------------------------------------


# (digest of a constant, literal) → True if they are equal. Constants as keys would keep their models in memory.
_COMPARED: dict[tuple[str, Literal], bool] = {}
MAX_COMPARED = 65536


def holds_literal(constant: Constant, literal: Literal) -> bool:
    """Return True if a constant's elements equal a literal; the shapes are not compared.

    Args:
      constant: the constant; the result is False if it has more than SHAPE_VALUE_LIMIT elements.
      literal: the literal; its numbers are rounded to the constant's data type if this is a floating-point type.
    """
    if constant.type.size > SHAPE_VALUE_LIMIT:
        return False
    key = constant.digest, literal
    known = _COMPARED.get(key)
    if known is None:
        if len(_COMPARED) >= MAX_COMPARED:
            _COMPARED.clear()
        known = _COMPARED[key] = _equals_literal(constant, literal)
    return known


def _equals_literal(constant: Constant, literal: Literal) -> bool:
    wanted, result = np.asarray(literal.compute({})), constant.load()
    if result.size != wanted.size or result.dtype.kind in "OSU":
        return False
    if constant.type.dtype in FLOATS:
        wanted = wanted.astype(result.dtype)
    return np.array_equal(result.reshape(-1).astype(np.float64), wanted.reshape(-1).astype(np.float64))


def _same_attribute(wanted, result) -> bool:
    if isinstance(wanted, float) and isinstance(result, float):
        return abs(wanted - result) <= 1e-6 * abs(wanted)  # ONNX stores float attributes in float32
    return wanted == result


class Attempt:
    """A partial match: the bindings and nodes found so far.

    The methods match one goal after another. A goal is a pair of a pattern and its subject, which is a Node for an Op,
    a Segment for a Star, and else a tensor id.

    Args:
      graph: the graph to search.
      bindings: name → tensor id, Segment of tensor ids, or attribute value.
      matched: key of a pattern operator → node id.
    """

    def __init__(self, graph: Graph, bindings: dict[str, Any], matched: dict[int, int]):
        self.graph, self.bindings, self.matched = graph, bindings, matched  # matched: operator key → node id

    def copy(self) -> "Attempt":
        return type(self)(self.graph, self.bindings.copy(), self.matched.copy())

    def makers(self, tensor: int) -> Iterable[int]:
        """Return the ids of the nodes that compute a tensor: at most one in a graph, possibly several in an e-graph."""
        producer = self.graph.producers.get(tensor)
        return () if producer is None else (producer,)

    def solutions(self, goals: list) -> Iterator["Attempt"]:
        """Yield one attempt for every way to match all goals, the last goal first; the list `goals` is consumed.

        If there is one way only, the attempt is this object itself; otherwise this object is copied.
        """
        while goals:
            pattern, subject = goals.pop()
            kind = type(pattern)
            if kind is Op:
                if pattern.key in self.matched:
                    if self.matched[pattern.key] != subject.id:
                        return
                    continue
                if not self.accepts(pattern, subject):
                    return
                alignments = self.alignments(pattern, subject)
                first, second = next(alignments, None), next(alignments, None)
                if first is None:
                    return
                if second is not None:
                    for aligned in chain((first, second), alignments):
                        yield from self.copy().solutions(goals + aligned)
                    return
                goals += first
            elif kind is Output:
                producer = self.graph.producers.get(subject)
                if producer is None:
                    return
                node = self.graph.nodes[producer]
                if pattern.slot >= len(node.outputs) or node.outputs[pattern.slot] != subject:
                    return
                goals.append((pattern.op, node))
            elif kind is Literal:
                constant = self.graph.constants.get(subject)
                if constant is None or not holds_literal(constant, pattern):
                    return
            elif kind is Absent:
                if subject != ABSENT:
                    return
            elif kind is Star:
                if not self.bind(pattern.name, subject):
                    return
            elif subject == ABSENT or not self.bind_tensor(pattern.name, subject):
                return
        yield self

    def accepts(self, op: Op, node: Node) -> bool:
        """Return True if operator, domain and attributes of a node fit a pattern, and bind the pattern's attributes."""
        if node.op != op.op or node.domain != op.domain or node.captured or node.draw:
            return False
        if node.id in self.matched.values():
            return False
        if node.body != self.graph.nodes[next(iter(self.matched.values()), node.id)].body:
            return False  # A rewrite never moves an operator into a body or out of it.
        if not supported(op.op, op.domain, self.graph.opset(op.domain)):
            return False
        if op.op == "BatchNormalization" and any(tensor != ABSENT for tensor in node.outputs[1:]):
            return False  # Before opset 14 further outputs mean training mode.
        self.matched[op.key] = node.id
        values, others = attributes_of(self.graph, node)
        for name, pattern in op.attributes:
            value = values.get(name)
            if isinstance(pattern, Bind):
                if value is None or not self.bind(pattern.name, value):
                    return False
            elif not _same_attribute(pattern.compute({}), value):
                return False
        if others and op.attributes:
            named = dict(op.attributes)
            others = tuple([pair for pair in others if pair[0] not in named])
        return self.bind(op.rest, others) if op.rest is not None else not others

    def bind(self, name: str, value) -> bool:
        """Bind a name to a value if the name is unbound, and return True if the name now has this value."""
        return self.bindings.setdefault(name, value) == value

    def bind_tensor(self, name: str, tensor: int) -> bool:
        """Bind a name to a tensor if the name is unbound.

        Return True if the name now has this tensor or a constant of equal content.
        """
        return self.bind(name, tensor) or _same_constant(self.graph, self.bindings[name], tensor)

    def alignments(self, op: Op, node: Node) -> Iterator[list]:
        """Yield all ways to assign the input patterns of an operator to the inputs of a node.

        Each way is a list of goals in reverse order, since `solutions` begins with the last goal.
        """
        row = Row.of(node)
        tensors = row.tensors
        if not _is_plain(op):
            yield from (goals[::-1] for goals in self._variadic_alignments(op.inputs, row, 0))
        elif len(op.inputs) == len(tensors):
            ways = [tensors]
            if op.op in COMMUTATIVE and len(tensors) == 2 and tensors[0] != tensors[1]:
                ways.append(tensors[::-1])
            for way in ways:
                if self.producers_fit(op.inputs, way):
                    yield list(zip(reversed(op.inputs), reversed(way), strict=True))

    def producers_fit(self, patterns: tuple, tensors: tuple[int, ...]) -> bool:
        """Return True if the producers of tensors can match patterns, by operator name and constness only.

        This cheap test rejects alignments before `solutions` follows them.

        Args:
          patterns: input patterns of an operator.
          tensors: for each pattern, the id of the tensor that it would match.
        """
        nodes = self.graph.nodes
        for pattern, tensor in zip(patterns, tensors, strict=True):
            kind = type(pattern)
            if kind is Output and not any([nodes[maker].op == pattern.op.op for maker in self.makers(tensor)]):
                return False
            if kind is Literal and tensor not in self.graph.constants:
                return False
        return True

    def _variadic_alignments(self, patterns: tuple, row: Row, start: int) -> Iterator[list]:
        """Yield all ways to assign patterns to tensors in order; a pattern can stand for several consecutive tensors.

        Args:
          patterns: the patterns.
          row: the tensors.
          start: position of the first tensor to assign.

        Yields:
          A list of goals for each way.
        """
        tensors = row.tensors
        if not patterns:
            if start == len(tensors):
                yield []
            return
        first, rest = patterns[0], patterns[1:]
        if isinstance(first, Star):
            single = [pattern for pattern in rest if not _stands_for_several(pattern)]
            latest = len(tensors) - len(single)
            for stop in range(start if len(single) < len(rest) else max(latest, start), latest + 1):
                for goals in self._variadic_alignments(rest, row, stop):
                    yield [(first, Segment(row, start, stop)), *goals]
        elif start == len(tensors):
            return
        elif _stands_for_several(first):
            for node_id in self.makers(tensors[start]):
                node = self.graph.nodes[node_id]
                stop = start + len(node.outputs)
                if tensors[start:stop] == node.outputs:
                    for goals in self._variadic_alignments(rest, row, stop):
                        yield [(first.op, node), *goals]
        elif self.producers_fit((first,), (tensors[start],)):
            for goals in self._variadic_alignments(rest, row, start + 1):
                yield [(first, tensors[start]), *goals]


def _stands_for_several(pattern) -> bool:
    """Return True if an input pattern stands for any number of consecutive inputs."""
    return isinstance(pattern, Star) or (isinstance(pattern, Output) and pattern.slot is None)


def _same_constant(graph: Graph, first: int, second: int) -> bool:
    """Return True if two tensors are constants of equal content; exporters store equal axes once per node."""
    constants = graph.constants
    return first in constants and second in constants and constants[first].digest == constants[second].digest


@cache
def _is_plain(op: Op) -> bool:
    """Return True if every input pattern of an operator stands for exactly one input."""
    return not any(map(_stands_for_several, op.inputs))


# -- one rule --------------------------------------------------------------------------------------


@cache
def _path_to_variable(pattern: Op, bound: frozenset[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the shortest path from a variable in `bound` up to `pattern`, or None if there is no path.

    The path is (variable, names of the operators from the operator that reads the variable up to `pattern`).
    """
    best = None
    for child in pattern.inputs:
        if isinstance(child, Var) and child.name in bound:
            return child.name, (pattern.op,)
        if isinstance(child, Output):
            inner = _path_to_variable(child.op, bound)
            if inner is not None and (best is None or len(inner[1]) + 1 < len(best[1])):
                best = inner[0], (*inner[1], pattern.op)
    return best


# Largest number of readers of a tensor at which rules with several roots look for further roots. The number of pairs of
# readers grows with the square of the number of readers.
MAX_READERS = 256


def few_readers(graph: Graph, tensor: int) -> tuple[int, ...]:
    """Return the ids of the nodes that read a tensor, or () if more than MAX_READERS nodes read the tensor."""
    readers = graph.consumers.get(tensor, ())
    return readers if len(readers) <= MAX_READERS else ()


def _sibling_roots(rule: Rule, root: Op, attempt: Attempt) -> list[Node]:
    """Return the nodes that may match a further root: those reachable from a tensor that the attempt has bound."""
    graph, bindings = attempt.graph, attempt.bindings
    varying = frozenset(
        name for name in rule.tensor_names
        if isinstance(bindings.get(name), int) and not graph.is_constant(bindings[name])
    )  # fmt: skip
    path = _path_to_variable(root, varying)
    if path is None:
        return []
    frontier: Iterable[int] = (bindings[path[0]],)
    for op in path[1]:
        nodes = {n for tensor in frontier for n in few_readers(graph, tensor) if graph.nodes[n].op == op}
        frontier = {tensor for n in nodes for tensor in graph.nodes[n].outputs}
    return [graph.nodes[n] for n in sorted(nodes) if not graph.nodes[n].constant]


def structural_matches(graph: Graph, rule: Rule, node: Node) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield (node ids, bindings) for every occurrence of a rule's left side whose first root is `node`.

    The conditions of the rule are not tested. The ids are in the order of `rule.ops`.

    Args:
      graph: the graph to search.
      rule: the rule whose left side is matched.
      node: the node that the rule's first root must match.
    """
    attempts = attempts_at(rule, Attempt(graph, {}, {}), node)
    for attempt in attempts:
        yield tuple([attempt.matched[op.key] for op in rule.ops]), attempt.bindings


def attempts_at(rule: Rule, attempt: Attempt, node: Node) -> Iterator[Attempt]:
    """Yield one attempt for every way in which all roots of the rule match, the first root at the node.

    Args:
      rule: the rule whose left side is matched.
      attempt: an empty attempt for the graph or e-graph.
      node: the node that the rule's first root must match.
    """
    attempts = attempt.solutions([(rule.roots[0], node)])
    for root in rule.roots[1:]:
        attempts = _with_sibling(rule, root, attempts)
    return attempts


def _with_sibling(rule: Rule, root: Op, attempts: Iterator[Attempt]) -> Iterator[Attempt]:
    for attempt in attempts:
        if root.key in attempt.matched:
            yield attempt
            continue
        for sibling in _sibling_roots(rule, root, attempt):
            yield from attempt.copy().solutions([(root, sibling)])


def scope_of(graph: Graph, rule: Rule, bindings: dict[str, Any]) -> dict[str, Any]:
    """Return name → value for the expressions of a rule: tensors as `Tensor`, attributes and `let` names as values.

    Args:
      graph: the graph of the match.
      rule: the matched rule.
      bindings: name → tensor id, Segment of tensor ids, or attribute value.

    Raises:
      Unknown: if a `let` needs a fact that the graph does not contain.
    """
    tensors = rule.tensor_names
    scope = {}
    for name, value in bindings.items():
        if name not in tensors:
            scope[name] = value
        elif isinstance(value, Segment):
            scope[name] = tuple(Tensor(graph, tensor) for tensor in value)
        else:
            scope[name] = Tensor(graph, value)
    for name, expression in rule.lets:
        scope[name] = expression(scope)
    return scope
