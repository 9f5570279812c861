"""An e-graph: a set of equal graphs that share their common parts.

An e-class stands for a set of equal tensors, together with all operators of all graphs that compute these tensors. The
inputs and outputs of operators are classes. Equal operators with equal inputs are one operator (hash-consing). If the
inputs of two equal operators become equal, so do their outputs (congruence). Rules, conditions, plans and cost models
use an e-graph like a `Graph` whose tensors are classes. This works because rewrites keep types exactly and never
replace constants, so all tensors of a class have the same type and content.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import ABSENT, Constant, Graph, Node, TensorType
from rlflow.rules.apply import Plan, flat
from rlflow.rules.expressions import FLOATS
from rlflow.rules.segments import Segment


class EGraph:
    """An e-graph that begins with one graph.

    Each new class gets a number. When classes are united, the smallest of their numbers names the united class, and
    `find` maps the other numbers to this name.

    Attributes:
      nodes: id → operator, a `Node` whose inputs and outputs are classes.
      types: class → type of its tensors.
      constants: class → weight or literal.
      makers: class → ids of the operators that compute it, in order of insertion.
      consumers: class → ids of the operators that read it, in order of insertion.
      weights: class of a constant → classes of the model's weights (floats, more than one element) that it is computed
        from.
      inputs, outputs: the classes of the graph's inputs and outputs, in the order of the interface.
      fresh: ids of the operators that were added, or that read or give a united class, since the caller last emptied
        `fresh`.
    """

    def __init__(self, graph: Graph):
        self.interface = graph.interface
        self.nodes: dict[int, Node] = {}
        self.types: dict[int, TensorType | None] = {}
        self.constants: dict[int, Constant] = {}
        self.makers: dict[int, dict[int, None]] = {}
        self.consumers: dict[int, dict[int, None]] = {}
        self.weights: dict[int, frozenset[int]] = {}
        self.fresh: dict[int, None] = {}
        self._parent: list[int] = []
        self._constant: set[int] = set()
        self._of_key: dict[tuple, int] = {}
        self._of_digest: dict[str, int] = {}
        self._n_nodes = 0
        self._united: list[int] = []  # classes whose operators may have become equal to others
        self._opset = graph.opset
        self.inputs = tuple(self._new_class(graph.types.get(t), False) for t in graph.inputs)
        self.outputs: tuple[int, ...] = ()
        self._class_of = dict(zip(graph.inputs, self.inputs, strict=True))  # of the first graph's tensors
        self.put(graph)

    # -- the interface of a Graph -----------------------------------------------------------------

    def is_constant(self, tensor: int) -> bool:
        return tensor in self._constant

    def opset(self, domain: str) -> int:
        return self._opset(domain)

    def get(self, tensor: int) -> Constant | None:
        """Return the weight or literal of a class, or None.

        `rlflow.graph.shapes.shape_value` uses an e-graph as a mapping from tensors to constants and calls this method.
        """
        return self.constants.get(tensor)

    # -- growing -----------------------------------------------------------------------------------

    def put(self, graph: Graph) -> None:
        """Add the first graph, or a graph that rewrites made of the first graph, and unite the outputs of both.

        In a rewritten graph, a tensor of the first graph must have the same id as there.
        """
        first = not self.outputs
        class_of = self._class_of.copy()  # a copy, because two rewritten graphs may use one id for different tensors

        def known(tensor: int) -> int | None:
            return tensor if tensor == ABSENT else self.find(class_of[tensor]) if tensor in class_of else None

        for tensor, constant in graph.constants.items():
            class_of[tensor] = self.constant(constant)
            if first and constant.type.size > 1 and constant.type.dtype in FLOATS:
                self.weights[class_of[tensor]] = frozenset((class_of[tensor],))
        for node_id in graph.order:
            node = graph.nodes[node_id]
            captured = tuple((name, known(t)) for name, t in node.captured)
            outputs = self.add(
                replace(node, captured=captured), [known(t) for t in node.inputs],
                [known(t) for t in node.outputs], [graph.types.get(t) for t in node.outputs],
            )  # fmt: skip
            class_of.update(zip(node.outputs, outputs, strict=True))
        outputs = [known(t) for t in graph.outputs]
        for old, new in zip(self.outputs, outputs, strict=not first):
            self.unite(old, new)
        self.outputs = tuple(outputs)
        if first:
            self._class_of = class_of
        self.rebuild()

    def constant(self, constant: Constant) -> int:
        """Return the class of a weight or literal, which is new unless an equal constant has a class already."""
        result = self._of_digest.get(constant.digest)
        if result is None:
            result = self._of_digest[constant.digest] = self._new_class(constant.type, True)
            self.constants[result] = constant
        return result

    def add(
        self, node: Node, inputs: Sequence[int], given: Sequence[int | None], types: Sequence[TensorType | None]
    ) -> list[int]:
        """Add an operator unless the e-graph contains an equal one, and return the classes of its outputs.

        Args:
          node: the operator with its attributes and captured classes. Its inputs are ignored, and its outputs only show
            which outputs exist (not ABSENT).
          inputs: the classes of the inputs.
          given: for each output, a class that the output is known to equal, or None for a new class.
          types: type of each output.
        """
        key = _key(node, inputs, node.outputs)
        known = self._of_key.get(key)
        if known is not None:
            outputs = self.nodes[known].outputs
            for wanted, result in zip(given, outputs, strict=True):
                if wanted is not None and wanted != ABSENT:
                    self.unite(wanted, result)
        else:
            outputs = tuple(
                ABSENT if t == ABSENT else self._new_class(kind, node.constant) if wanted is None else self.find(wanted)
                for t, wanted, kind in zip(node.outputs, given, types, strict=True)
            )
            self._insert(replace(node, id=self._n_nodes, inputs=tuple(inputs), outputs=outputs), key)
            self._n_nodes += 1
            if node.constant:
                read = frozenset().union(*(self.weights.get(c, ()) for c in inputs))
                self.weights |= {c: read for c in _present(outputs)}
        return [c if c == ABSENT else self.find(c) for c in outputs]

    def rewrite(self, plan: Plan, operands: Sequence[int | Segment]) -> None:
        """Add the operators of a plan, and unite their outputs with the classes that they replace.

        The caller must call `rebuild` afterwards.

        Args:
          plan: the replacement, see `rlflow.rules.apply.Plan`.
          operands: the classes of the match's operands, see `rlflow.rules.apply.bound_operands`.
        """
        real: dict[int, int | Segment] = {ABSENT: ABSENT}
        for position, c in enumerate(operands):
            real[-2 - position] = c if isinstance(c, Segment) else self.find(c)
        real |= {number: self.constant(constant) for number, constant in plan.constants}
        types = dict(plan.types)
        for node in plan.added:
            given = [real[t] if t < ABSENT else None for t in node.outputs]
            inputs = [c if c == ABSENT else self.find(c) for c in flat(real[t] for t in node.inputs)]
            kinds = [types.get(t) for t in node.outputs]
            for tensor, result in zip(node.outputs, self.add(node, inputs, given, kinds), strict=True):
                real[tensor] = result
        for old, new in plan.rewired:
            self.unite(real[old], real[new])

    def tensors(self) -> dict[int, int]:
        """Return class → id of a tensor of the first graph in the class, for the classes that contain such a tensor."""
        return {self.find(c): tensor for tensor, c in reversed(self._class_of.items()) if tensor != ABSENT}

    # -- equality ----------------------------------------------------------------------------------

    def find(self, tensor: int) -> int:
        """Return the class that a number names today; the number may be an earlier name of the class."""
        parent = self._parent
        while parent[tensor] != tensor:
            parent[tensor] = tensor = parent[parent[tensor]]
        return tensor

    def unite(self, first: int, second: int) -> None:
        """Unite two classes, because their tensors are equal.

        Args:
          first: a class.
          second: a class.

        Raises:
          RLFlowError: the types of the classes differ, or only one class is constant. This shows that a rule is wrong.
        """
        keep, gone = sorted((self.find(first), self.find(second)))
        if keep == gone:
            return
        if self.types[keep] != self.types[gone] or (gone in self._constant) != (keep in self._constant):
            raise RLFlowError(
                "a rule is wrong: it replaces a tensor by one of another type, or a tensor known in advance by one "
                "that is not; report it with the model"
            )
        self._parent[gone] = keep
        self._united.append(keep)
        self.makers[keep].update(self.makers.pop(gone))
        self.consumers[keep].update(self.consumers.pop(gone))
        self._constant.discard(gone)
        if gone in self.constants:
            self.constants.setdefault(keep, self.constants.pop(gone))

    def rebuild(self) -> None:
        """Restore congruence after calls of `unite`: unite the outputs of equal operators whose inputs became equal."""
        while self._united:
            classes = dict.fromkeys(self.find(c) for c in self._united)
            self._united = []
            for each in classes:
                for node_id in [*self.makers.get(each, ()), *self.consumers.get(each, ())]:
                    if node_id in self.nodes:
                        self._reinsert(node_id)
        self.outputs = tuple(map(self.find, self.outputs))

    def _reinsert(self, node_id: int) -> None:
        """Insert an operator again with the present names of its classes.

        If the e-graph then contains an equal operator, the outputs of both are united instead.
        """
        old = self.nodes[node_id]
        self._remove(old)
        inputs, outputs = (
            tuple(c if c == ABSENT else self.find(c) for c in side) for side in (old.inputs, old.outputs)
        )
        new = replace(
            old, inputs=inputs, outputs=outputs, captured=tuple((name, self.find(c)) for name, c in old.captured)
        )
        key = _key(new, inputs, outputs)
        known = self._of_key.get(key)
        if known is None:
            self._insert(new, key)
        else:
            for mine, other in zip(_present(outputs), _present(self.nodes[known].outputs), strict=True):
                self.unite(mine, other)

    # -- book-keeping ------------------------------------------------------------------------------

    def _new_class(self, kind: TensorType | None, constant: bool) -> int:
        new = len(self._parent)
        self._parent.append(new)
        self.types[new], self.makers[new], self.consumers[new] = kind, {}, {}
        if constant:
            self._constant.add(new)
        return new

    def _insert(self, node: Node, key: tuple) -> None:
        self.nodes[node.id], self._of_key[key], self.fresh[node.id] = node, node.id, None
        for c in _present(node.outputs):
            self.makers[c][node.id] = None
        for c in _present(node.reads()):
            self.consumers[c][node.id] = None

    def _remove(self, node: Node) -> None:
        del self.nodes[node.id]
        self.fresh.pop(node.id, None)
        del self._of_key[_key(node, node.inputs, node.outputs)]
        for c in _present(node.outputs):
            self.makers[self.find(c)].pop(node.id, None)
        for c in _present(node.reads()):
            self.consumers[self.find(c)].pop(node.id, None)


def _key(node: Node, inputs: Iterable[int], outputs: Iterable[int]) -> tuple:
    """Return a key that is equal for operators with the same computation, the same inputs and the same set of outputs.

    Two operators that draw random numbers have different keys.
    """
    return node.key(), tuple(inputs), node.captured, tuple(c != ABSENT for c in outputs), node.draw


def _present(tensors: Iterable[int]) -> Iterable[int]:
    return (tensor for tensor in tensors if tensor != ABSENT)
