"""Quantised models: an operator between DequantizeLinear and QuantizeLinear, which ONNX Runtime runs in integers.

What it makes of an operator and the borders around it (one kernel, a view, or all of them as they are written) follows
from scales, types and attributes by rules of its own. They are not repeated here: whatever touches an operator belongs
to its group, so that it is timed together, and ONNX Runtime itself decides.
"""

import onnx
from onnx import helper

from rlflow.costs.optimised import optimised
from rlflow.graph.model import Graph, Node

ENTERS, LEAVES = "DequantizeLinear", "QuantizeLinear"  # the floats
BORDERS = frozenset((ENTERS, LEAVES))


def with_borders(graph: Graph, group: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a group and all borders that belong to it, those of weights included, in topological order."""
    if group[0].op in BORDERS:
        return group
    before, after = borders_before(graph, group), _after(graph, group)
    return (*before, *group, *after) if before or after else group


def is_quantised(group: tuple[Node, ...]) -> bool:
    """Whether the group has borders around an operator, which is none that moves channels itself."""
    return any(node.op in BORDERS for node in group) and all(node.op != "Transpose" for node in group)


def is_inside(graph: Graph, node: Node) -> bool:
    """Whether the node is a border that belongs to the groups of others."""
    if node.op == ENTERS:
        readers = [graph.nodes[reader] for reader in graph.consumers.get(node.outputs[0], ())]
        return bool(readers) and node.outputs[0] not in graph.outputs and not any(r.op in BORDERS for r in readers)
    if node.op == LEAVES:
        before = graph.nodes.get(graph.producers.get(node.inputs[0]))
        if before is None or before.op in BORDERS or before.constant:
            return False
        return len(graph.consumers[node.inputs[0]]) == 1 and node.inputs[0] not in graph.outputs
    return False


def borders_before(graph: Graph, group: tuple[Node, ...]) -> list[Node]:
    """What makes the floats that the group reads, each node once."""
    before = []
    for node in group:
        for tensor in node.inputs:
            if tensor in graph.producers:
                border = graph.nodes[graph.producers[tensor]]
                if border.op == ENTERS and border not in before:
                    before.append(border)
    return before


def is_scale(graph: Graph, tensor: int) -> bool:
    """Whether the tensor says what an integer is worth."""
    readers = [graph.nodes[reader] for reader in graph.consumers.get(tensor, ())]
    return any(reader.op in BORDERS and tensor in reader.inputs[1:] for reader in readers)


def _after(graph: Graph, group: tuple[Node, ...]) -> list[Node]:
    """What makes integers of the floats that the group gives, where nothing else reads them."""
    after = []
    for node in group:
        for tensor in node.outputs:
            readers = graph.consumers.get(tensor, ())
            if len(readers) == 1 and graph.nodes[readers[0]].op == LEAVES and tensor not in graph.outputs:
                after.append(graph.nodes[readers[0]])
    return after


# -- a kernel by itself ----------------------------------------------------------------------------


def in_channels_last(model: onnx.ModelProto) -> onnx.ModelProto:
    """The optimised model without the transposes that bring images to quantised kernels and back, if there are any.

    These kernels want the channels last, and what lies between two of them stays so.
    """
    result = optimised(model)
    graph = result.graph
    kinds = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
    read = [name for node in graph.node for name in node.input]
    for node in list(graph.node):
        perm = next((list(a.ints) for a in node.attribute if (node.op_type, a.name) == ("Transpose", "perm")), None)
        if perm == [0, 2, 3, 1] and node.input[0] in kinds and read.count(node.input[0]) == 1:
            _replace(graph.input, node.input[0], _transposed(kinds[node.input[0]], node.output[0], perm))
        elif perm == [0, 3, 1, 2] and node.output[0] in kinds:
            _replace(graph.output, node.output[0], _transposed(kinds[node.output[0]], node.input[0], [0, 2, 3, 1]))
        else:
            continue
        graph.node.remove(node)
    return result


def _replace(values, name: str, new: onnx.ValueInfoProto) -> None:
    (old,) = [value for value in values if value.name == name]
    old.CopyFrom(new)


def _transposed(kind: onnx.TypeProto.Tensor, name: str, perm: list[int]) -> onnx.ValueInfoProto:
    sizes = [kind.shape.dim[axis].dim_value for axis in perm]
    return helper.make_tensor_value_info(name, kind.elem_type, sizes)
