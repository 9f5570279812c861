"""Apply a match: plan the replacement and build the graph after the rewrite.

A match is valid only if its replacement can be built, with ONNX's shape inference on every new operator. A rewrite that
would change a type or need a newer opset is refused with a reason, so the action mask contains no invalid rewrite.

A `Plan` is a replacement in relative numbers, which `apply` maps to the tensors of one match. Matches of equal
signature (types, constness, small constants, attributes) share one plan, so most matches cost a look-up and no shape
inference. In a plan 0, 1, … are new tensors and nodes; -2, -3, … are the operands of the match (`bound_operands`).

Numbers keep their precision. ONNX stores float attributes in float32, so a rewrite is refused if it would store a
float64 attribute that float32 cannot hold exactly, or a constant that its data type would turn into 0 or infinity.

The shape operand of a new operator must be constant. Sizes that are symbols are expressed by the 0 and -1 of Reshape or
the 1 of Expand, where these give the same sizes, or new operators compute them if the rule says so (size_operands.py).
Otherwise the rewrite is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.contents import CONTENT_LIMIT, content_array
from rlflow.graph.dims import Dim, Undecided
from rlflow.graph.ir import ABSENT, MAX_ORIGINS, Constant, Graph, Node, TensorType
from rlflow.graph.onnx_reader import is_constant_node
from rlflow.graph.opsets import moved_attributes, supported, takes
from rlflow.graph.shapes import infer_types, known_value, refused_at_some_size, shape_value, steers
from rlflow.graph.symbolic import is_symbolic
from rlflow.rules.contents import digest_of
from rlflow.rules.expressions import Tensor, Unknown, unshared
from rlflow.rules.match import Match, attributes_of, scope_of
from rlflow.rules.patterns import Absent, Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import Rule
from rlflow.rules.segments import Segment, facts
from rlflow.rules.size_operands import computed_sizes, without_symbols

MAX_PLANS = 20_000  # plans in the cache; a plan takes a few kB


class Refused(Exception):
    """Raised if the right side of a rule cannot be built at a match; the message gives the reason."""


class Plan(NamedTuple):
    """A rule's replacement in relative numbers: 0, 1, … for new tensors and nodes, -2, -3, … for operands of the match.

    Attributes:
      added: new nodes in topological order; ids and tensors are relative numbers. The number of a `Star` among the
        inputs stands for all of its tensors.
      types: (number of a new tensor, type) pairs.
      constants: (number of a new tensor, content) pairs.
      rewired: (number of an old output, number of its replacement) pairs, for old outputs whose tensor id no new node
        takes over.
      n_new: number of new tensors and nodes together; they have the numbers 0 … n_new − 1.
    """

    added: tuple[Node, ...]
    types: tuple[tuple[int, TensorType], ...]
    constants: tuple[tuple[int, Constant], ...]
    rewired: tuple[tuple[int, int], ...]
    n_new: int


def apply(graph: Graph, rule: Rule, match: Match) -> Graph:
    """Return the graph after one rewrite.

    Args:
      graph: the graph that the match was found in.
      rule: the matched rule.
      match: a match of this rule in this graph.
    """
    return apply_all(graph, rule, (match,))


def apply_all(graph: Graph, rule: Rule, matches: Sequence[Match]) -> Graph:
    """Return the graph after several rewrites by one rule, equal to the graph after the same rewrites one by one.

    Args:
      graph: the graph that the matches were found in.
      rule: the matched rule.
      matches: `independent` matches of this rule in this graph.
    """
    removed, added, types, constants, rewired, next_id = set(), [], {}, {}, {}, graph.next_id
    for match in matches:
        bound, plan = bound_operands(graph, rule, match.nodes, match.bindings), match.plan

        def real(number: int, bound=bound, first=next_id) -> int:
            return first + number if number >= 0 else number if number == ABSENT else bound[-2 - number]

        removed.update([match.nodes[position] for position in rule.root_positions])
        origins = {origin for node_id in match.nodes for origin in graph.nodes[node_id].origins or (node_id,)}
        origins = tuple(sorted(origins)[:MAX_ORIGINS])
        added += [
            Node(
                real(node.id), node.op, node.domain, tuple(flat(map(real, node.inputs))),
                tuple(map(real, node.outputs)), node.attributes, constant=node.constant, made_by_rule=True,
                body=graph.nodes[match.nodes[0]].body, origins=origins,
            )
            for node in plan.added
        ]  # fmt: skip
        types.update((real(number), kind) for number, kind in plan.types)
        constants.update((real(number), constant) for number, constant in plan.constants)
        rewired.update((real(old), real(new)) for old, new in plan.rewired)
        next_id += plan.n_new
    return graph.rewrite(sorted(removed), added, types, constants, rewired, next_id)


def independent(graph: Graph, rule: Rule, matches: Sequence[Match]) -> bool:
    """Return True if no match shares a node with another match or reads a tensor that another match's node computes.

    The result is always False for a rule with `counts_readers`.

    Args:
      graph: the graph that the matches were found in.
      rule: the matched rule.
      matches: matches of this rule in this graph.
    """
    if rule.counts_readers:
        return False
    nodes, read = set(), set()
    for match in matches:
        if not nodes.isdisjoint(match.nodes):
            return False
        nodes.update(match.nodes)
        given = {graph.producers.get(tensor) for tensor in operands(graph, rule, match.nodes, match.bindings)}
        read |= given.difference(match.nodes)
    return nodes.isdisjoint(read)


def has_outputs(graph: Graph, rule: Rule, nodes: tuple[int, ...]) -> bool:
    """Return whether the matched nodes have every output that the rule replaces; nodes may omit their last outputs.

    Args:
      graph: the graph of the match.
      rule: the matched rule.
      nodes: node ids in the order of `rule.ops`.
    """
    return all(slot < len(graph.nodes[nodes[position]].outputs) for position, slot in rule.replaced)


def bound_operands(graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict) -> list[int | Segment]:
    """Return what the operand numbers -2, -3, … of a match's plan stand for: all variables, then the replaced outputs.

    Args:
      graph: the graph of the match.
      rule: the matched rule.
      nodes: node ids in the order of `rule.ops`.
      bindings: name → tensor id, Segment of tensor ids, or attribute value.

    Returns:
      Tensor ids; a Segment for a `Star`.
    """
    result = [bindings[name] for name in rule.tensor_names]
    return result + [graph.nodes[nodes[position]].outputs[slot] for position, slot in rule.replaced]


def flat(bound: Iterable[int | Segment]) -> Iterator[int]:
    """Yield the tensor ids of operands, with the tensors of a Segment one after the other."""
    for value in bound:
        if isinstance(value, Segment):
            yield from value
        else:
            yield value


def operands(graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict) -> list[int]:
    """Return the tensor ids of a match: the tensors of all variables, then the replaced outputs.

    The arguments are as for `bound_operands`.
    """
    return list(flat(bound_operands(graph, rule, nodes, bindings)))


def rewired_tensors(graph: Graph, rule: Rule, match: Match) -> tuple[tuple[int, int], ...]:
    """Return (id of the old tensor, id of the new tensor) for each tensor whose readers the rewrite redirects.

    Args:
      graph: the graph before the rewrite.
      rule: the matched rule.
      match: a match of this rule in this graph.
    """
    bound, first = bound_operands(graph, rule, match.nodes, match.bindings), graph.next_id

    def real(number: int) -> int:
        return first + number if number >= 0 else bound[-2 - number]

    return tuple([(real(old), real(new)) for old, new in match.plan.rewired])


# -- plans -----------------------------------------------------------------------------------------


class Plans:
    """A cache of the plans, or the reasons for refusals, of matches of one rule set in graphs of one model."""

    def __init__(self):
        self._known: dict[tuple, Plan | str] = {}

    def plan(self, graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict) -> Plan:
        """Test the conditions of a rule where its left side occurs, and return the plan of the replacement.

        Args:
          graph: the graph of the match.
          rule: the matched rule.
          nodes: node ids in the order of `rule.ops`.
          bindings: name → tensor id, Segment of tensor ids, or attribute value.

        Raises:
          Refused: if a condition fails or the right side cannot be built.
        """
        reason = _output_mismatch(graph, rule, nodes)
        if reason:
            raise Refused(reason)
        margins = margins_to_skip(graph, rule, nodes, bindings)
        if margins:
            key = (MARGINS, match_signature(graph, rule, nodes, bindings, margins))
        else:
            key = match_signature(graph, rule, nodes, bindings)
        result = self._known.get(key)
        if result is None:
            if len(self._known) >= MAX_PLANS:
                self._known.clear()
            result = self._known[key] = plan_or_reason(graph, rule, nodes, bindings, margins)
        if isinstance(result, str):
            raise Refused(result)
        return result


MARGINS = "any margins"  # first part of a key of the plans that do not depend on the margins of a Concat


def margins_to_skip(graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict) -> tuple[str, ...]:
    """Return `Rule.margins` if the plan does not depend on the inputs for which the margins stand, else ().

    The other inputs then determine the plan, because the whole Concat is known to be valid. A plan can so be shared by
    all positions in a wide Concat. The arguments are as for `bound_operands`.
    """
    if not rule.margins:
        return ()
    row, root = bindings[rule.margins[0]].row, graph.nodes[nodes[rule.root_positions[0]]]
    between = row.tensors[len(bindings[rule.margins[0]]) : bindings[rule.margins[1]].start]
    changes = row.varying(graph) > sum(not graph.is_constant(tensor) for tensor in between)
    if not changes or not row.fits(graph, attributes_of(graph, root)[0]["axis"], graph.types.get(root.outputs[0])):
        return ()
    return rule.margins


def match_signature(
    graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict, skipped: tuple[str, ...] = ()
) -> tuple:
    """Return a key of everything that conditions and the right side depend on; matches of equal key share one plan.

    Args:
      graph: the graph of the match.
      rule: the matched rule.
      nodes: node ids in the order of `rule.ops`.
      bindings: name → tensor id, Segment of tensor ids, or attribute value.
      skipped: the result of `margins_to_skip`. The key omits these variables and the type of the Concat, so that the
        key is equal at many positions in the Concat.
    """
    result = [rule.name, *[bindings[name] for name in rule.attribute_names]]
    for name in rule.tensor_names:
        value = bindings[name]
        if name in skipped:
            continue
        if not isinstance(value, Segment):
            result += facts(graph, value)
        elif not rule.counts_readers:
            result.append(value.key(graph))
        else:
            result.append(tuple([fact for tensor in value for fact in facts(graph, tensor)]))
        if rule.counts_readers:
            result += [unshared(Tensor(graph, tensor)) for tensor in flat((value,))]
        if name in rule.content_names:
            result += [digest_of(graph, tensor) for tensor in flat((value,))]
    if not skipped:
        result += [graph.types.get(graph.nodes[nodes[position]].outputs[slot]) for position, slot in rule.replaced]
    return tuple(result)


def _output_mismatch(graph: Graph, rule: Rule, nodes: tuple[int, ...]) -> str | None:
    """Return why the outputs of the matched nodes do not fit the rule, or None.

    The reason is that a node lacks an output of the left side, or that another output of a root is used. `nodes` are
    node ids in the order of `rule.ops`.
    """
    if not has_outputs(graph, rule, nodes):
        return "the operator has fewer outputs"
    removed = {nodes[position] for position in rule.root_positions}
    if not graph.interface.protected.isdisjoint(removed):
        return "--keep protects the node"
    replaced = {graph.nodes[nodes[position]].outputs[slot] for position, slot in rule.replaced}
    for node_id in removed:
        for tensor in graph.nodes[node_id].outputs:
            if tensor not in replaced and (
                tensor in graph.output_set or any(reader not in removed for reader in graph.consumers.get(tensor, ()))
            ):
                return "another output of the operator is used"
    return None


def plan_or_reason(
    graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict, margins: tuple[str, ...] = ()
) -> Plan | str:
    """Return the plan of a rule where its left side occurs, or the reason why the rule does not apply there.

    Args:
      graph: the graph of the match.
      rule: the matched rule.
      nodes: node ids in the order of `rule.ops`.
      bindings: name → tensor id, Segment of tensor ids, or attribute value.
      margins: see `margins_to_skip`.
    """
    if not rule.for_all_shapes and any(is_symbolic(graph.types.get(t)) for t in operands(graph, rule, nodes, bindings)):
        return "proved for bounded shapes only"
    try:
        scope = scope_of(graph, rule, bindings)
        reason = next((c.reason for c in rule.conditions if not c.holds(scope)), None)
        return reason or _Planner(graph, rule, nodes, bindings, scope, margins).plan()
    except (Unknown, Undecided, Refused) as refused:
        return str(refused)
    except (IndexError, ZeroDivisionError, ValueError):  # such as min() of no elements
        return "an expression of the rule has no value here"


class _Planner:
    """A builder of the `Plan` of one match; it refers to tensors and nodes by the plan's relative numbers.

    In the plan, the number of a `Star` stands for all of its tensors. While the plan is built, each of these tensors
    also has a number of its own, smaller than the numbers of all operands. The plan contains none of these numbers.
    """

    def __init__(self, graph: Graph, rule: Rule, nodes: tuple[int, ...], bindings: dict, scope: dict, margins=()):
        self.graph, self.rule, self.bindings, self.scope, self.margins = graph, rule, bindings, scope, margins
        self.nodes, self.bound = nodes, bound_operands(graph, rule, nodes, bindings)
        self.numbers = {name: -2 - position for position, name in enumerate(rule.tensor_names)}  # of the variables
        number = -2 - len(rule.tensor_names)
        self.old_outputs = range(number, number - len(rule.replaced), -1)
        self.n_new = 0
        self.added: list[Node] = []
        self.types: dict[int, TensorType] = {}
        self.constants: dict[int, Constant] = {}
        self.built: dict[int, Node] = {}  # key of a pattern operator → new node
        self.taken_over: dict[tuple[int, int], int] = {}  # (operator key, slot) → old output that the new node gives

    def plan(self) -> Plan:
        replaced = list(zip(self.old_outputs, (target for _, target in self.rule.target), strict=True))
        for old, target in replaced:
            if isinstance(target, Output):
                self.taken_over.setdefault((target.op.key, target.slot), old)
        rewired = []
        for old, target in replaced:
            new = self.tensor(target)
            if new != old:
                rewired.append((old, new))
            self.check_type(old, self.type(new))
        return Plan(
            tuple(self.added), tuple(self.types.items()), tuple(self.constants.items()), tuple(rewired), self.n_new
        )

    def type(self, number: int) -> TensorType | None:
        """Return the type of the tensor with a number; None for an unknown type and for an absent input (ABSENT)."""
        if number == ABSENT:
            return None
        return self.types[number] if number >= 0 else self.graph.types.get(self.bound[-2 - number])

    def is_constant(self, number: int) -> bool:
        if number < 0:
            return self.graph.is_constant(self.bound[-2 - number])
        return number in self.constants or any(number in node.outputs and node.constant for node in self.added)

    def is_stored(self, number: int) -> bool:
        """Return True if the tensor with this number is a constant with a content, which no node computes."""
        if number < 0:
            return self.bound[-2 - number] in self.graph.constants
        return number in self.constants or any(number in node.outputs and node.constant for node in self.added)

    def check_type(self, old: int, new: TensorType | None) -> None:
        known = self.type(old)
        if known is None or known.shape is None or new is None:
            raise Refused("the shape of a tensor is not known")
        if (known.dtype, known.shape) != (new.dtype, new.shape):
            raise Refused(f"the result would be {new}, not {known}")

    def fresh(self) -> int:
        self.n_new += 1
        return self.n_new - 1

    def tensor(self, pattern, op: Op | None = None, left: list[int] | None = None) -> int:
        """Return the number of the tensor that a pattern of the right side stands for, and build new nodes for it.

        Args:
          pattern: the pattern.
          op: the operator that reads the tensor; None for an output of the rule.
          left: numbers of the operands of `op` before this one.
        """
        match pattern:
            case Var(name):
                return self.numbers[name]
            case Output(made_by, slot):
                return self.node(made_by).outputs[slot]
            case Literal(compute=compute, computed=computed):
                value = compute(self.scope)
                try:
                    return self.literal(value, op, left)
                except Undecided:
                    if not computed:
                        raise
                    return self.tensor(computed_sizes(value, self.operand_shapes(), op.op))
            case Absent():
                return ABSENT
        raise TypeError(pattern)

    def literal(self, value, op: Op | None, left: list[int] | None) -> int:
        """Add a constant and return its number; symbolic sizes are expressed as in `without_symbols`.

        An array keeps its data type. Other values become int64, but floats take the data type of the first operand of
        `op` if this operand stands before the constant. The scales of a Resize become float32.

        Args:
          value: number, tuple or array.
          op: the operator that reads the constant; None for an output of the rule.
          left: numbers of the operands of `op` before the constant.
        """
        kind = self.type(left[0]) if left else None
        if isinstance(value, tuple) and any(type(size) is Dim for size in value):
            shape = None if kind is None else kind.shape
            value = without_symbols(op.op if op is not None else None, shape, value)
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype == object:
            raise Refused(f"{value} would have to be known")
        if array is not value:
            dtype = TensorProto.INT64
            if op is not None and op.op == "Resize" and len(left) == 2:
                dtype = TensorProto.FLOAT
            elif array.dtype.kind == "f" and array.size and left:
                if kind is None:
                    raise Refused("the shape of a tensor is not known")
                dtype = kind.dtype
            array = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        tensor = self.fresh()
        self.constants[tensor] = Constant.of(array)
        self.types[tensor] = self.constants[tensor].type
        return tensor

    def operand_shapes(self) -> dict[str, tuple]:
        """Return name → shape for each variable of the left side that stands for one tensor of known shape."""
        kinds = {name: self.type(self.numbers[name]) for name in self.rule.tensor_names if self.is_single(name)}
        return {name: kind.shape for name, kind in kinds.items() if kind is not None and kind.shape is not None}

    def is_single(self, name: str) -> bool:
        return not isinstance(self.bindings[name], Segment) and self.bindings[name] != ABSENT

    def node(self, op: Op) -> Node:
        if op.key not in self.built:
            self.built[op.key] = self.make_node(op)
        return self.built[op.key]

    def make_node(self, op: Op) -> Node:
        if not supported(op.op, op.domain, self.graph.opset(op.domain)):
            raise Refused(f"{op.op} needs a newer opset than the model's")
        inputs: list[int] = []  # a number for each tensor, but without the margins
        of_plan: list[int] = []
        for pattern in op.inputs:
            if isinstance(pattern, Star):
                of_plan.append(self.numbers[pattern.name])
                inputs += self.tensors(pattern.name)
            else:
                inputs.append(self.tensor(pattern, op, inputs))
                of_plan.append(inputs[-1])
        if not takes(op.op, op.domain, self.graph.opset(op.domain), len(inputs)):
            raise Refused(f"{op.op} needs a newer opset than the model's")
        for _, slot, _ in moved_attributes(op.op, op.domain, self.graph.opset(op.domain)):
            if slot < len(inputs) and inputs[slot] != ABSENT and not self.is_stored(inputs[slot]):
                raise Refused(f"{op.op} needs a newer opset than the model's")  # an attribute cannot be computed
        attributes = self.attributes(op, inputs)
        # An operator that computes a size is not an operator of the rule; it has one output.
        n_outputs = self.rule.n_outputs.get(op.key, 1)
        kinds = self.infer(op, attributes, inputs, n_outputs)
        if self.keeps_margins(op):
            kinds = (self.type_of_whole(attributes, kinds[0]),)
        outputs = tuple(self.taken_over.get((op.key, slot), ABSENT) for slot in range(n_outputs))
        outputs = tuple(self.fresh() if tensor == ABSENT else tensor for tensor in outputs)
        for tensor, kind in zip(outputs, kinds, strict=True):
            if tensor < 0:
                self.check_type(tensor, kind)
            else:
                self.types[tensor] = kind
        known = [self.is_constant(t) for t in inputs if t != ABSENT]
        # The inputs in the margins of a Concat are not all constant (`margins_to_skip`).
        constant = not self.keeps_margins(op) and is_constant_node(op.op, op.domain, False, known)
        node = Node(
            self.fresh(), op.op, op.domain, tuple(of_plan), outputs, attributes, constant=constant, made_by_rule=True
        )
        if not self.can_run(replace(node, inputs=tuple(inputs))):
            name = f"{op.domain}.{op.op}" if op.domain else op.op
            raise Refused(f"the installed ONNX Runtime has no {name} for these types and attributes")
        self.added.append(node)
        return node

    def tensors(self, name: str) -> list[int]:
        """Return the number of each tensor of a `Star`, ABSENT for an absent tensor; [] if the star is a margin."""
        if name in self.margins:
            return []
        first = -2 - len(self.bound)
        self.bound += self.bindings[name]
        return [ABSENT if tensor == ABSENT else first - k for k, tensor in enumerate(self.bindings[name])]

    def can_run(self, node: Node) -> bool:
        """Return True if a new node may be added, because ONNX Runtime has a kernel for it or needs none.

        A node of ONNX's own domain with a float32 result needs no test. With another type it needs a kernel only if all
        replaced nodes have kernels. A node of another domain always needs a kernel.
        """
        from rlflow.graph.onnx_runtime import has_kernel  # importing onnxruntime is slow

        if not node.domain and self.type(node.outputs[0]).dtype == TensorProto.FLOAT:
            return True
        return has_kernel(self.graph, node, self.type, self.content) or not (node.domain or self.replaced_nodes_run)

    @cached_property
    def replaced_nodes_run(self) -> bool:
        """True if ONNX Runtime has kernels for all matched nodes."""
        from rlflow.graph.onnx_runtime import has_kernel

        graph = self.graph
        return all(
            has_kernel(graph, graph.nodes[n], graph.types.get, lambda t: graph.constants[t].load()) for n in self.nodes
        )

    def content(self, number: int) -> np.ndarray:
        """Return the content of the constant with this number."""
        return (self.constants[number] if number >= 0 else self.graph.constants[self.bound[-2 - number]]).load()

    def attributes(self, op: Op, inputs: list[int]) -> tuple:
        """Return the attributes of a new node as sorted (name, value) pairs; `inputs` are the numbers of its inputs.

        ONNX stores float attributes in float32, so a float attribute of a float64 operator must be exact in float32.
        """
        pairs = dict(self.bindings[op.rest]) if op.rest is not None else {}
        double = any(kind is not None and kind.dtype == TensorProto.DOUBLE for kind in map(self.type, inputs))
        for name, value in op.attributes:
            pairs[name] = self.scope[value.name] if isinstance(value, Bind) else value.compute(self.scope)
            if double and not _fits_float32(pairs[name]):
                raise Refused("float32 cannot hold the attribute exactly")
        return tuple(sorted(pairs.items()))

    def infer(self, op: Op, attributes: tuple, inputs: list[int], n_outputs: int) -> tuple[TensorType, ...]:
        """Return the output types of a new node. Raise Refused if they are unknown or the node fails at some size."""
        kinds, opset = [self.type(t) for t in inputs], self.graph.opset(op.domain)
        if any(t != ABSENT and (kind is None or kind.shape is None) for t, kind in zip(inputs, kinds, strict=True)):
            raise Refused("the shape of a tensor is not known")
        try:
            result = infer_types(op.op, op.domain, opset, attributes, kinds, list(map(self.value, inputs)), n_outputs)
        except RLFlowError as error:
            raise Refused(str(error)) from error
        reason = refused_at_some_size(op.op, dict(attributes), kinds, result)
        if reason is not None:
            raise Refused(reason)
        return result

    def keeps_margins(self, op: Op) -> bool:
        return bool(self.margins) and op.key == self.rule.target[0][1].op.key

    def type_of_whole(self, attributes: tuple, kind: TensorType) -> TensorType:
        """Return the type of the Concat with margins. Raise Refused if the new inputs between them have another type.

        Args:
          attributes: attributes of the new Concat.
          kind: type of a Concat of the new inputs between the margins alone.
        """
        first, last = (self.bindings[name] for name in self.margins)
        replaced = [self.graph.types[tensor] for tensor in first.row.tensors[len(first) : last.start]]
        opset = self.graph.opset("")
        (before,) = infer_types("Concat", "", opset, attributes, replaced, [None] * len(replaced), 1)
        if (kind.dtype, kind.shape) != (before.dtype, before.shape):
            raise Refused(f"the result would contain {kind}, not {before}")
        return self.type(self.old_outputs[0])

    def value(self, number: int) -> np.ndarray | None:
        """Return the content of the tensor with a number if shape inference may need the content, else None.

        These are small integer or boolean constants (shapes, axes, …), small constant operands of the match, and
        contents that were computed from sizes.
        """
        if number == ABSENT:
            return None
        if number >= 0:
            kind = self.types.get(number)
            if number in self.constants:
                return self.constants[number].load() if kind.size <= CONTENT_LIMIT or steers(kind) else None
            return None if kind is None else content_array(kind)
        tensor = self.bound[-2 - number]
        steering = shape_value(self.graph, tensor)
        return steering if steering is not None else known_value(self.graph, tensor)


def _fits_float32(attribute) -> bool:
    """Return True if float32 can hold all floats in an attribute's value exactly."""
    numbers = attribute if isinstance(attribute, tuple) else (attribute,)
    return all(float(np.float32(number)) == number for number in numbers if isinstance(number, float))
