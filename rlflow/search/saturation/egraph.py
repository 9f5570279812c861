"""An e-graph: many equal graphs at once, that share what they have in common.

A class stands for a tensor, with all the operators of all graphs that compute it; an operator reads and gives
classes. Equal operators of equal inputs are one (hash-consing), and if the inputs of two become equal, so do
their outputs (congruence). To rules, conditions, plans and cost models it is like a `Graph` whose tensors are
classes: rewrites keep types exactly, and constants are never replaced, so a type or a content is one of the class.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import ABSENT, Constant, Graph, Node, TensorType
from rlflow.rules.apply import Plan
from rlflow.rules.expressions import FLOATS


class EGraph:
    """Classes are the smallest numbers that were given to one of their tensors; others are resolved by `find`.

    Attributes:
      nodes: id → operator; its inputs and outputs are classes.
      types: class → TensorType.  constants: class → a weight or literal.
      makers, consumers: class → ids of the operators that give it, that read it (ascending as they came).
      weights: class of constants → the model's weights (floats, more than one) that it is computed from.
      inputs, outputs: classes in the order of the interface.
      fresh: ids of operators that are new, or around classes that were united, since it was last emptied.
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
        self._united: list[int] = []  # classes whose operators must be looked at again
        self._opset = graph.opset
        self.inputs = tuple(self._new_class(graph.types.get(t), False) for t in graph.inputs)
        self.outputs: tuple[int, ...] = ()
        self._class_of = dict(zip(graph.inputs, self.inputs, strict=True))  # of the first graph's tensors, as they were
        self.put(graph)

    # -- what a Graph answers, too -----------------------------------------------------------------

    def is_constant(self, tensor: int) -> bool:
        return tensor in self._constant

    def opset(self, domain: str) -> int:
        return self._opset(domain)

    def get(self, tensor: int) -> Constant | None:
        """The weight or literal of a class: what `shape_value` asks of the constants of a graph."""
        return self.constants.get(tensor)

    # -- growing -----------------------------------------------------------------------------------

    def put(self, graph: Graph) -> None:
        """Adds a graph: the first, or one that was rewritten from it, where a tensor of the first keeps its id."""
        first = not self.outputs
        class_of = self._class_of.copy()  # two rewritten graphs may have given one id to different tensors

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
        """The class of a weight or literal; equal content, equal class."""
        result = self._of_digest.get(constant.digest)
        if result is None:
            result = self._of_digest[constant.digest] = self._new_class(constant.type, True)
            self.constants[result] = constant
        return result

    def add(
        self, node: Node, inputs: Sequence[int], given: Sequence[int | None], types: Sequence[TensorType | None]
    ) -> list[int]:
        """The output classes of an operator, which is new or known.

        Args:
          node: its operator, attributes, captured classes; its outputs say which there are.
          inputs: classes.  given: per output the class that it is known to be, else None.
          types: of the outputs.
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

    def rewrite(self, plan: Plan, operands: Sequence[int]) -> None:
        """Adds what a plan builds (rlflow.rules.apply) and unites it with what it replaces. Rebuild afterwards."""
        real = {ABSENT: ABSENT} | {-2 - position: self.find(c) for position, c in enumerate(operands)}
        real |= {number: self.constant(constant) for number, constant in plan.constants}
        types = dict(plan.types)
        for node in plan.added:
            given = [real[t] if t < ABSENT else None for t in node.outputs]
            inputs = [real[t] if t == ABSENT else self.find(real[t]) for t in node.inputs]
            kinds = [types.get(t) for t in node.outputs]
            for tensor, result in zip(node.outputs, self.add(node, inputs, given, kinds), strict=True):
                real[tensor] = result
        for old, new in plan.rewired:
            self.unite(real[old], real[new])

    def tensors(self) -> dict[int, int]:
        """Class → a tensor of the first graph that it stands for."""
        return {self.find(c): tensor for tensor, c in reversed(self._class_of.items()) if tensor != ABSENT}

    # -- equality ----------------------------------------------------------------------------------

    def find(self, tensor: int) -> int:
        parent = self._parent
        while parent[tensor] != tensor:
            parent[tensor] = tensor = parent[parent[tensor]]
        return tensor

    def unite(self, first: int, second: int) -> None:
        """States that two classes are equal. Raises RLFlowError if their types are not: then a rule is wrong."""
        keep, gone = sorted((self.find(first), self.find(second)))
        if keep == gone:
            return
        if self.types[keep] != self.types[gone] or (gone in self._constant) != (keep in self._constant):
            raise RLFlowError("a tensor that is known in advance, or of another type, would replace one that is not")
        self._parent[gone] = keep
        self._united.append(keep)
        self.makers[keep].update(self.makers.pop(gone))
        self.consumers[keep].update(self.consumers.pop(gone))
        self._constant.discard(gone)
        if gone in self.constants:
            self.constants.setdefault(keep, self.constants.pop(gone))

    def rebuild(self) -> None:
        """Restores congruence after `unite`."""
        while self._united:
            classes = dict.fromkeys(self.find(c) for c in self._united)
            self._united = []
            for each in classes:
                for node_id in [*self.makers.get(each, ()), *self.consumers.get(each, ())]:
                    if node_id in self.nodes:
                        self._renew(node_id)
        self.outputs = tuple(map(self.find, self.outputs))

    def _renew(self, node_id: int) -> None:
        """The operator anew, in terms of the classes of now."""
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
    """Equal for operators that compute the same: of equal inputs, and giving as many outputs."""
    return node.key(), tuple(inputs), node.captured, tuple(c != ABSENT for c in outputs)


def _present(tensors: Iterable[int]) -> Iterable[int]:
    return (tensor for tensor in tensors if tensor != ABSENT)
