"""Groups of operators that ONNX Runtime fuses into one kernel when it loads a graph.

Every group has an anchor, an operator that determines which fusion forms the group: a Conv, a MatMul, the Erf of a
Gelu, the Sqrt of a normalisation. `INNER` limits the number of edges from each other operator of a group to the anchor.
Optimisations without such a limit are not modelled: transposes that ONNX Runtime moves through a graph, and equal
expressions that it computes once.
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

# Activations that a convolution in blocks of channels also computes if it has added another tensor to its result.
BLOCKED_ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Tanh", "HardSigmoid"))
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
    """The groups of one graph, which are computed on demand and cached.

    Attributes:
      graph: the graph.
      layout: the layouts of the graph's operators.
    """

    def __init__(self, graph: Graph, layout: Layout):
        self.graph, self.layout = graph, layout
        self._anchored: dict[int, tuple[Node, ...]] = {}

    def of(self, node: Node) -> tuple[Node, ...]:
        """Return the group whose anchor is `node`, in topological order.

        The result is empty if the node belongs to the group of another anchor.
        """
        if node.op == "Slice" and node.domain == "":
            parts = self._slices(node)
            return parts if node in parts[:1] else ()
        if node.op in kernel_layout.BORDERS and kernel_layout.is_inner_border(self.graph, node):
            return ()
        if node.op in INNER and node.domain == "" and any(node in self._group(a) for a in self._anchors_near(node)):
            return ()
        return self._group(node)

    def blocked_inputs(self, group: tuple[Node, ...]) -> frozenset[int]:
        """Return the ids of the tensors that the group reads in blocks of channels and does not compute itself."""
        return frozenset(
            tensor for node in group if self.layout.reads_blocked(node) for tensor in varying(self.graph, node)
            if not any(tensor in other.outputs for other in group)
        )  # fmt: skip

    def reorders(self, group: tuple[Node, ...]) -> list[tuple[str, TensorType]]:
        """Return the reorders for which a group is charged: reorders of its outputs, and of graph inputs that it reads.

        Returns:
          (ReorderInput or ReorderOutput, type of the tensor) for each reorder.
        """
        inner = {tensor for node in group for tensor in node.inputs} if len(group) > 1 else ()
        return [reorder for node in group for reorder in self.layout.reorders(node, inner)]

    def _group(self, anchor: Node) -> tuple[Node, ...]:
        result = self._anchored.get(anchor.id)
        if result is None:
            grow = _GROW.get(anchor.op)
            nodes = tuple(grow(self, anchor)) if grow else (anchor,)
            if any(node.body != anchor.body for node in nodes):
                nodes = (anchor,)  # ONNX Runtime fuses no operators of two graphs.
            result = self._anchored[anchor.id] = kernel_layout.with_borders(self.graph, nodes)
        return result

    def _anchors_near(self, node: Node) -> Iterator[Node]:
        """Yield the anchors other than the node that are near enough (`INNER`) for their group to contain the node."""
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
        """Return the group of a convolution: [Pad] Conv [folded operators] [sum] [activation].

        A BatchNormalization or Mul in blocks of channels runs as a convolution, too, and has a group of the same form.
        Outside blocks, or if it folds into a convolution or has several varying inputs, the result is the node alone.
        """
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
        """Check if the kernel of the convolution whose last operator is `node` also computes the sum `total`.

        If the kernels of both summands could compute the sum, the kernel of the first summand does.
        """
        if total.op not in ("Add", "Sum") or total.domain != "" or len(set(varying(self.graph, total))) != 2:
            return False
        if not have_same_type(self.graph, (*total.inputs, *total.outputs)):
            return False
        summands = [producer(self.graph, tensor) for tensor in total.inputs]
        able = [s for s in summands if s and only_reader(self.graph, s.outputs[0]) is total and self._can_add(s, total)]
        return bool(able) and able[0] is node

    def _can_add(self, node: Node, total: Node) -> bool:
        """Check if `node` is the last operator of a convolution whose kernel can add another tensor to its result.

        If the convolution runs in blocks of channels, the sum `total` must run in blocks, too. Otherwise the
        convolution must have a bias (or a folded offset), and `total` must be an Add.
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
        """Return the group of a matrix product with the scales and transposes of its inputs (a FusedMatMul).

        The product also computes the bias and activation behind it (as a Gemm), or the scale behind it.
        """
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
        """Check if the products that read the node compute it themselves.

        The node must be a transpose of the last two axes that only products read, or a constant scale that belongs to
        no other group.
        """
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
        """Check if the input of a scale is a matrix product that no other node reads."""
        before = producer(self.graph, varying(self.graph, node)[0])
        return before is not None and before.op in PRODUCTS and only_reader(self.graph, before.outputs[0]) is node

    def _is_scale(self, node: Node | None) -> bool:
        """Check if the node multiplies its varying input by one constant number, or divides it by such a number."""
        if node is None or node.op not in ("Mul", "Div") or node.domain != "":
            return False
        return self._has_number(node, (1,) if node.op == "Div" else (0, 1))

    def _gemm(self, node: Node) -> list[Node]:
        return [node, *self._activation(node, only_reader(self.graph, node.outputs[0]), GEMM_ACTIVATIONS)]

    # -- activations and normalisations made of several operators -----------------------------------

    def _gelu(self, erf: Node) -> list[Node]:
        """Return the group of a Gelu, ½ · x · (1 + erf(x / √2)), written as separate operators; else the Erf alone.

        Of the three orders in which the products can be computed, ONNX Runtime fuses (x · (1 + erf)) · ½ and
        (½ · x) · (1 + erf). The group also holds an Add in front that adds one constant per feature.
        """
        graph = self.graph
        inside, plus = producer(graph, erf.inputs[0]), only_reader(graph, erf.outputs[0])
        if not (self._is(inside, "Div") and self._is(plus, "Add") and only_reader(graph, inside.outputs[0]) is erf):
            return [erf]
        times = only_reader(graph, plus.outputs[0])
        if not (self._is(times, "Mul") and self._has_number(inside, (1,)) and self._has_number(plus, (0, 1))):
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
        """Return the group of x · sigmoid(x) or x · sigmoid(a · x) for a constant number a; else the Sigmoid alone."""
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
        """Return the group of a normalisation d / sqrt(mean(d²) + ε) · scale that is written as separate operators.

        If d is x − mean(x) and an offset follows, the group is a whole LayerNormalization (`_centred`). If the
        operators do not form this pattern, the result is the Sqrt alone.
        """
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

        The nodes are mean = ReduceMean(x), x − mean, `nodes`, the addition of the offset and, if there is one, the
        residual sum that computes x. The result is empty if the operators do not form this pattern.

        Args:
          deviation: the candidate for the operator that computes x − mean.
          nodes: the operators that follow x − mean up to the product with the scale.
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
        """Return the Add of a residual connection that a normalisation computes itself; else an empty list.

        If an Add of one constant per feature computes a summand, the kernel computes that Add, too.

        Args:
          x: the normalised tensor, which must have three axes.
          nodes: the operators of the normalisation, which must be the only readers of `x`.
        """
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
        """Return [the Add of one constant per feature that computes x], or an empty list.

        The list is also empty if a node outside `nodes` reads x, or if the Add belongs to the group of the operator
        before it.
        """
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
        """Return all Slices that partition the input of this Slice along one axis, in order of their position.

        ONNX Runtime runs such Slices as one Split. If they do not partition the tensor, the result is the node alone.
        """
        graph, x = self.graph, node.inputs[0]
        parts = [
            (self._extent(reader), reader)
            for reader in map(graph.nodes.get, graph.consumers[x])
            if self._is(reader, "Slice") and reader.body == node.body
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
        """Return (axis, first index, last index + 1) of a Slice along one axis, all counted from 0.

        The result is None if the Slice has several axes or another step than 1, or if its axis, its bounds or the shape
        of its input are not known.
        """
        kind = self.graph.types.get(node.inputs[0])
        slots = [self.graph.constants.get(tensor) for tensor in node.inputs[1:]]
        if kind is None or kind.shape is None or len(slots) < 3:
            return None
        if any(slot is None or slot.type.size != 1 for slot in slots):
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
        """Return the producer of the node's only varying input if the node is the ONNX operator `op`, else None."""
        data = varying(self.graph, node) if self._is(node, op) else ()
        return producer(self.graph, data[0]) if len(data) == 1 else None

    def _rank(self, tensor: int) -> int | None:
        kind = self.graph.types.get(tensor)
        return None if kind is None or kind.shape is None else len(kind.shape)

    def _has_number(self, node: Node, slots: tuple[int, ...]) -> bool:
        """Check if the node has a constant input of one element and exactly one varying input.

        Args:
          node: the node.
          slots: positions of the inputs that may be this constant.
        """
        graph, tensors = self.graph, [node.inputs[k] for k in slots]
        has_number = any(graph.is_constant(tensor) and graph.types[tensor].size == 1 for tensor in tensors)
        return has_number and len(varying(graph, node)) == 1

    def _read_by(self, tensor: int, nodes: list[Node]) -> bool:
        ids = {node.id for node in nodes}
        return tensor not in self.graph.outputs and ids.issuperset(self.graph.consumers.get(tensor, ()))

    def _are_inner(self, nodes: list[Node]) -> bool:
        """Check if only `nodes` read the outputs of `nodes`; the outputs of the last node may have any readers."""
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
# Operators through which a group or a layout may depend on further nodes: operators inside groups, and operators whose
# layout is the layout of their inputs.
PASSES = CARRIERS | INNER.keys() | frozenset(("Erf", "Sqrt"))
