"""Groups of operators that ONNX Runtime fuses into one kernel when it loads a graph.

Every group has an anchor, an operator that determines the kind of the group: a Conv, a MatMul, the Erf of a Gelu, the
Sqrt of a normalisation. The other operators of a group are at most `INNER` edges away from the anchor. Fusions without
such a bound are not modelled: transposes that move through a graph, and equal expressions that are computed once.
"""

from collections.abc import Iterator

from rlflow.costs import kernel_layout
from rlflow.costs.kernel_layout import (
    CARRIERS,
    CONVOLUTIONS,
    FOLDS,
    POOLS,
    Layout,
    have_same_type,
    only_reader,
    padding_reader,
    producer,
    varying,
)
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType

BLOCKED_ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Tanh", "HardSigmoid"))  # also fused behind a blocked sum
CONV_ACTIVATIONS = BLOCKED_ACTIVATIONS | {"LeakyRelu", "Clip"}
GEMM_ACTIVATIONS = BLOCKED_ACTIVATIONS | {"LeakyRelu", "Elu"}
PRODUCTS = frozenset(("MatMul", "FusedMatMul"))
BEHIND = CONV_ACTIVATIONS | {"Elu", "Sum", "BatchNormalization"}  # operators that never precede their anchor
# Operators of a group other than the anchor, with their largest number of edges to the anchor.
INNER = {
    **dict.fromkeys((*CONV_ACTIVATIONS, "Sum"), FOLDS + 2), **dict.fromkeys(("Add", "Mul"), FOLDS + 1),
    "BatchNormalization": FOLDS, "Sub": 2, "Pow": 3, "ReduceMean": 3, "Div": 1, "Elu": 2, "Transpose": 1, "Pad": 1,
}  # fmt: skip


class Groups:
    """The groups of one graph, computed on demand and cached."""

    def __init__(self, graph: Graph, layout: Layout):
        self.graph, self.layout = graph, layout
        self._anchored: dict[int, tuple[Node, ...]] = {}

    def of(self, node: Node) -> tuple[Node, ...]:
        """Return the group of an anchor in topological order; empty for a node in the group of another anchor."""
        if node.op == "Slice" and node.domain == "":
            parts = self._slices(node)
            return parts if node in parts[:1] else ()
        if node.op in kernel_layout.BORDERS and kernel_layout.is_inner_border(self.graph, node):
            return ()
        if node.op in INNER and node.domain == "" and any(node in self._group(a) for a in self._anchors_near(node)):
            return ()
        return self._group(node)

    def blocked_inputs(self, group: tuple[Node, ...]) -> frozenset[int]:
        """Return the tensors from outside that the group reads in blocks of channels."""
        return frozenset(
            tensor for node in group if self.layout.reads_blocked(node) for tensor in varying(self.graph, node)
            if not any(tensor in other.outputs for other in group)
        )  # fmt: skip

    def reorders(self, group: tuple[Node, ...]) -> list[tuple[str, TensorType]]:
        """Return the reorders of the group's outputs, and of graph inputs for which the group is charged."""
        inner = {tensor for node in group for tensor in node.inputs} if len(group) > 1 else ()
        return [reorder for node in group for reorder in self.layout.reorders(node, inner)]

    def _group(self, anchor: Node) -> tuple[Node, ...]:
        result = self._anchored.get(anchor.id)
        if result is None:
            grow = _GROW.get(anchor.op)
            nodes = tuple(grow(self, anchor)) if grow else (anchor,)
            result = self._anchored[anchor.id] = kernel_layout.with_borders(self.graph, nodes)
        return result

    def _anchors_near(self, node: Node) -> Iterator[Node]:
        """Yield all other anchors whose group may hold the node, judging by the number of edges (`INNER`)."""
        graph, seen, frontier = self.graph, {node.id}, [node]
        up_single = node.op in BEHIND
        for _ in range(INNER[node.op]):
            around = []
            for near in frontier:
                ids = [graph.producers[t] for t in near.inputs if t in graph.producers]
                if not up_single:
                    ids += [reader for t in near.outputs for reader in graph.consumers.get(t, ())]
                for node_id in ids:
                    if node_id not in seen:
                        seen.add(node_id)
                        other = graph.nodes[node_id]
                        if other.op in _GROW and not other.constant:
                            yield other
                        if other.op in INNER:
                            around.append(other)
            frontier = around

    # -- convolutions and poolings -----------------------------------------------------------------

    def _convolution(self, node: Node) -> list[Node]:
        """Return [Pad] Conv [folded operators] [sum] [activation]; a blocked scale runs as a convolution, too."""
        graph, blocked = self.graph, self.layout.runs_blocked(node)
        if node.op in ("BatchNormalization", "Mul") and (
            not blocked or self.layout.folds_into(node) or len(varying(graph, node)) > 1
        ):
            return [node]
        nodes = [*self._padding(node), node]
        if node.op == "FusedConv":
            return nodes
        reader = only_reader(graph, node.outputs[0])
        for _ in range(FOLDS):
            if reader is None or self.layout.folds_into(reader) is not nodes[-1]:
                break
            nodes.append(reader)
            reader = only_reader(graph, reader.outputs[0])
        if reader is None or not self._is_summand(nodes[-1], reader):
            return nodes + self._activation(nodes[-1], reader, CONV_ACTIVATIONS)
        after = only_reader(graph, reader.outputs[0])
        return [*nodes, reader, *self._activation(reader, after, BLOCKED_ACTIVATIONS if blocked else CONV_ACTIVATIONS)]

    def _padding(self, node: Node) -> list[Node]:
        before = producer(self.graph, node.inputs[0])
        is_pad = before is not None and before.op == "Pad"
        return [before] if is_pad and padding_reader(self.graph, before) is node else []

    def _pool(self, node: Node) -> list[Node]:
        return [*self._padding(node), node]

    def _activation(self, node: Node, reader: Node | None, kinds: frozenset[str]) -> list[Node]:
        fits = (
            reader is not None
            and reader.domain == ""
            and reader.op in kinds
            and varying(self.graph, reader) == [node.outputs[0]]
        )
        return [reader] if fits else []

    def _is_summand(self, node: Node, total: Node) -> bool:
        """Check if the convolution that ends in `node` also computes a sum; of two candidates the first one does."""
        if total.op not in ("Add", "Sum") or total.domain != "" or len(set(varying(self.graph, total))) != 2:
            return False
        if not have_same_type(self.graph, (*total.inputs, *total.outputs)):
            return False
        summands = [producer(self.graph, tensor) for tensor in total.inputs]
        able = [s for s in summands if s and only_reader(self.graph, s.outputs[0]) is total and self._can_add(s, total)]
        return bool(able) and able[0] is node

    def _can_add(self, node: Node, total: Node) -> bool:
        """Check if the node ends a convolution whose kernel can add another tensor to its result.

        In a blocked region both summands must be blocked. Elsewhere the convolution must have a bias.
        """
        convolution, offset = node, False
        while (before := self.layout.folds_into(convolution)) is not None:
            convolution, offset = before, offset or convolution.op != "Mul"
        if self.layout.runs_blocked(convolution):
            scale = convolution.op in ("BatchNormalization", "Mul") and len(varying(self.graph, convolution)) == 1
            return (convolution.op == "Conv" or scale) and self.layout.runs_blocked(total)
        offset = offset or (len(convolution.inputs) > 2 and convolution.inputs[2] != ABSENT)
        return convolution.op == "Conv" and convolution.domain == "" and offset and total.op == "Add"

    # -- products ----------------------------------------------------------------------------------

    def _product(self, node: Node) -> list[Node]:
        """Return a MatMul with its bias and activation (a Gemm), or with scales and transposes (a FusedMatMul)."""
        graph = self.graph
        reader = only_reader(graph, node.outputs[0])
        before = [producer(graph, tensor) for tensor in dict.fromkeys(node.inputs[:2])]
        nodes = [near for near in before if near is not None and self._is_inside_product(near)] + [node]
        if node.op == "MatMul" and self._is_bias(node, reader):
            after = only_reader(graph, reader.outputs[0]) if self._rank(node.inputs[0]) == 2 else None
            return [*nodes, reader, *self._activation(reader, after, GEMM_ACTIVATIONS)]
        return [*nodes, reader] if self._is_scale(reader) else nodes

    def _is_bias(self, product: Node, reader: Node | None) -> bool:
        if (
            reader is None
            or reader.op != "Add"
            or len(varying(self.graph, reader)) != 1
            or self._rank(product.inputs[1]) != 2
        ):
            return False
        (bias,) = [t for t in reader.inputs if t != product.outputs[0]]
        width = self.graph.types[product.inputs[1]].shape[1:]
        return self.graph.types[bias].shape in ([width, (1, *width)] if self._rank(product.inputs[0]) == 2 else [width])

    def _is_inside_product(self, node: Node) -> bool:
        """Check if a node in front of a product is part of it: a transpose of the last two axes, or a factor."""
        if node.op == "Transpose" and node.domain == "":
            rank = self._rank(node.inputs[0])
            swaps = rank is not None and node.attribute("perm") == (*range(rank - 2), rank - 1, rank - 2)
            readers = self.graph.consumers.get(node.outputs[0], ())
            return (
                swaps
                and node.outputs[0] not in self.graph.outputs
                and all(self.graph.nodes[r].op in PRODUCTS for r in readers)
            )
        if not self._is_scale(node) or only_reader(self.graph, node.outputs[0]) is None:
            return False
        elsewhere = (near for near in self._anchors_near(node) if near.op not in PRODUCTS)
        return not self._is_result_scale(node) and not any(node in self._group(near) for near in elsewhere)

    def _is_result_scale(self, node: Node) -> bool:
        """Check if the factor belongs to the product in front of it."""
        before = producer(self.graph, varying(self.graph, node)[0])
        return before is not None and before.op in PRODUCTS and only_reader(self.graph, before.outputs[0]) is node

    def _is_scale(self, node: Node | None) -> bool:
        """Check if the node multiplies or divides by one constant number."""
        if node is None or node.op not in ("Mul", "Div") or node.domain != "":
            return False
        return self._number(node, (1,) if node.op == "Div" else (0, 1)) is not None

    def _gemm(self, node: Node) -> list[Node]:
        return [node, *self._activation(node, only_reader(self.graph, node.outputs[0]), GEMM_ACTIVATIONS)]

    # -- activations and normalisations made of several operators -----------------------------------

    def _gelu(self, erf: Node) -> list[Node]:
        """Return x / √2 → Erf → + 1 → · x · ½; ONNX Runtime fuses two of the three orders of the last products."""
        graph = self.graph
        inside, plus = producer(graph, erf.inputs[0]), only_reader(graph, erf.outputs[0])
        if not (self._is(inside, "Div") and self._is(plus, "Add") and only_reader(graph, inside.outputs[0]) is erf):
            return [erf]
        times = only_reader(graph, plus.outputs[0])
        if not self._is(times, "Mul") or self._number(inside, (1,)) is None or self._number(plus, (0, 1)) is None:
            return [erf]
        x = inside.inputs[0]
        other = next((tensor for tensor in times.inputs if tensor != plus.outputs[0]), None)
        half = (
            only_reader(graph, times.outputs[0])
            if other == x
            else producer(graph, other)
            if other is not None
            else None
        )
        if (
            not self._is_scale(half)
            or half.op != "Mul"
            or (other != x and (half.inputs.count(x) != 1 or only_reader(graph, other) is not times))
        ):
            return [erf]
        nodes = [inside, erf, plus, times, half] if other == x else [half, inside, erf, plus, times]
        return self._feature_bias(x, nodes) + nodes

    def _gelu_operator(self, node: Node) -> list[Node]:
        return [*self._feature_bias(node.inputs[0], [node]), node] if node.domain == "" else [node]

    def _quick_gelu(self, sigmoid: Node) -> list[Node]:
        """Return x · sigmoid(x) or x · sigmoid(a · x)."""
        x, times = sigmoid.inputs[0], only_reader(self.graph, sigmoid.outputs[0])
        if not self._is(times, "Mul"):
            return [sigmoid]
        other = next((tensor for tensor in times.inputs if tensor != sigmoid.outputs[0]), None)
        scale = producer(self.graph, x)
        if other == x:
            return [sigmoid, times]
        fits = (
            self._is_scale(scale)
            and scale.op == "Mul"
            and other in scale.inputs
            and only_reader(self.graph, x) is sigmoid
        )
        return [scale, sigmoid, times] if fits else [sigmoid]

    def _written_normalisation(self, root: Node) -> list[Node]:
        """Return (x - mean) / sqrt(mean of squares + ε) · scale + offset."""
        graph = self.graph
        epsilon, over = producer(graph, root.inputs[0]), only_reader(graph, root.outputs[0])
        variance = self._before(epsilon, "Add")
        square = self._before(variance, "ReduceMean")
        deviation = self._before(square, "Pow")
        if not self._is(square, "Pow") or not self._is(over, "Div") or over.inputs[0] != square.inputs[0]:
            return [root]
        scale = only_reader(graph, over.outputs[0])
        if not self._is(scale, "Mul") or len(varying(graph, scale)) != 1:
            return [root]
        nodes = [square, variance, epsilon, root, over, scale]
        if not self._are_inner(nodes):
            return [root]
        return self._centred(deviation, nodes) or nodes

    def _centred(self, deviation: Node | None, nodes: list[Node]) -> list[Node]:
        """Return the nodes of a LayerNormalization that is written as separate operators.

        The result holds the mean, the difference, `nodes`, the offset and, if there is one, the residual sum before
        the mean. The result is empty if the operators do not form this pattern.

        Args:
          deviation: the operator that subtracts the mean.
          nodes: the operators between the difference and the offset.
        """
        if not self._is(deviation, "Sub") or not self._read_by(deviation.outputs[0], nodes):
            return []
        x, mean = deviation.inputs[0], producer(self.graph, deviation.inputs[1])
        offset = only_reader(self.graph, nodes[-1].outputs[0])
        fits = (
            self._is(mean, "ReduceMean")
            and mean.inputs[0] == x
            and only_reader(self.graph, mean.outputs[0]) is deviation
        )
        if not fits or not self._is(offset, "Add") or len(varying(self.graph, offset)) != 1:
            return []
        whole = [mean, deviation, *nodes, offset]
        return self._residual_sum(x, whole) + whole

    def _normalisation(self, node: Node) -> list[Node]:
        last = node.attribute("axis", -1) in (-1, (self._rank(node.inputs[0]) or 0) - 1)
        return [*self._residual_sum(node.inputs[0], [node]), node] if last and node.domain == "" else [node]

    def _residual_sum(self, x: int, nodes: list[Node]) -> list[Node]:
        """Return the residual sum that a normalisation of three axes computes itself, and the offset of a summand."""
        total = producer(self.graph, x)
        if not self._is(total, "Add") or self._rank(x) != 3 or not self._read_by(x, nodes):
            return []
        if not have_same_type(self.graph, (*total.inputs, x)):
            return []
        offsets = (self._feature_bias(tensor, [total]) for tensor in total.inputs)
        return [
            *next((result for result in offsets if result and self.graph.is_constant(result[0].inputs[1])), []),
            total,
        ]

    def _feature_bias(self, x: int, nodes: list[Node]) -> list[Node]:
        """Return the Add of one constant per feature that computes x, if only `nodes` read x."""
        add = producer(self.graph, x)
        if not self._is(add, "Add") or not self._read_by(x, nodes) or len(varying(self.graph, add)) != 1:
            return []
        before = producer(self.graph, varying(self.graph, add)[0])
        if before is not None and before.op in _GROW and add in self._group(before):
            return []
        type_ = self.graph.types.get(x)
        shapes = [self.graph.types[t].shape for t in add.inputs if self.graph.is_constant(t)]
        return [add] if type_ is not None and type_.shape is not None and shapes == [type_.shape[-1:]] else []

    # -- slices ------------------------------------------------------------------------------------

    def _slices(self, node: Node) -> tuple[Node, ...]:
        """Return the slices that partition a tensor, in order, which run as one Split; else the node alone."""
        graph, x = self.graph, node.inputs[0]
        parts = [
            (self._extent(reader), reader)
            for reader in map(graph.nodes.get, graph.consumers[x])
            if self._is(reader, "Slice")
        ]
        (axis, *_), end = self._extent(node) or (None,), 0
        if axis is None:
            return (node,)
        ordered = sorted((extent, part.id, part) for extent, part in parts if extent is not None and extent[0] == axis)
        for (_, first, last), _, _ in ordered:
            if first != end:
                return (node,)
            end = last
        whole = len(ordered) > 1 and end == graph.types[x].shape[axis]
        return tuple(part for *_, part in ordered) if whole else (node,)

    def _extent(self, node: Node) -> tuple[int, int, int] | None:
        """Return (axis, first, last + 1) of a Slice of one axis, all counted from 0; None if they are not known."""
        kind, slots = (
            self.graph.types.get(node.inputs[0]),
            [self.graph.constants.get(tensor) for tensor in node.inputs[1:]],
        )
        if (
            kind is None
            or kind.shape is None
            or len(slots) < 3
            or any(slot is None or slot.type.size != 1 for slot in slots)
        ):
            return None
        first, last, axis, *step = [int(slot.load().reshape(-1)[0]) for slot in slots]
        size = kind.shape[axis]
        first, last = (min(position + size if position < 0 else position, size) for position in (first, last))
        return (axis % len(kind.shape), first, last) if step in ([], [1]) and first >= 0 else None

    # -- predicates --------------------------------------------------------------------------------

    @staticmethod
    def _is(node: Node | None, op: str) -> bool:
        return node is not None and node.op == op and node.domain == ""

    def _before(self, node: Node | None, op: str) -> Node | None:
        """Return the producer of the node's only varying input, if `node` is an `op`."""
        data = varying(self.graph, node) if self._is(node, op) else ()
        return producer(self.graph, data[0]) if len(data) == 1 else None

    def _rank(self, tensor: int) -> int | None:
        kind = self.graph.types.get(tensor)
        return None if kind is None or kind.shape is None else len(kind.shape)

    def _number(self, node: Node, slots: tuple[int, ...]) -> int | None:
        """Return the constant input among `slots` that is one number, if the node has just one varying input."""
        result = [
            node.inputs[k]
            for k in slots
            if self.graph.is_constant(node.inputs[k]) and self.graph.types[node.inputs[k]].size == 1
        ]
        return result[0] if result and len(varying(self.graph, node)) == 1 else None

    def _read_by(self, tensor: int, nodes: list[Node]) -> bool:
        ids = {node.id for node in nodes}
        return tensor not in self.graph.outputs and ids.issuperset(self.graph.consumers.get(tensor, ()))

    def _are_inner(self, nodes: list[Node]) -> bool:
        """Check if no other node reads a result of the nodes, except results of the last node."""
        return all(self._read_by(tensor, nodes) for node in nodes[:-1] for tensor in node.outputs if tensor != ABSENT)


_GROW = {
    **dict.fromkeys((*CONVOLUTIONS, "BatchNormalization", "Mul"), Groups._convolution),
    **dict.fromkeys(POOLS, Groups._pool),
    **dict.fromkeys(PRODUCTS, Groups._product),
    "Gemm": Groups._gemm,
    "Erf": Groups._gelu,
    "Gelu": Groups._gelu_operator,
    "Sigmoid": Groups._quick_gelu,
    "Sqrt": Groups._written_normalisation,
    "LayerNormalization": Groups._normalisation,
}  # fmt: skip
# A group or a layout may depend on nodes behind these operators, because groups hold them or they carry a layout.
PASSES = CARRIERS | INNER.keys() | frozenset(("Erf", "Sqrt"))
