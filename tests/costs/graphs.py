"""Small graphs for the tests, written in ONNX's text format."""

import onnx

from rlflow.graph.model import Graph, Node, TensorType
from rlflow.graph.onnx_reader import load_graph


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "elsewhere" : 1]> {body}'
    return onnx.parser.parse_model(text)


def graph(body: str, opset: int = 18) -> Graph:
    return load_graph(model(body, opset))


def only(graph: Graph, op: str) -> Node:
    (node,) = [n for n in graph.nodes.values() if n.op == op]
    return node


CONV = """g (float[1,4,8,8] x) => (float[1,6,6,6] {out})
  <float[6,4,3,3] w = {weight}, float[6] b = {bias}> {{ {nodes} }}"""


def conv(nodes: str, out: str = "y", **names: str) -> Graph:
    weight = "{" + ",".join(["0.1"] * 216) + "}"
    bias = "{" + ",".join(["0.5"] * 6) + "}"
    return graph(CONV.format(nodes=nodes, weight=weight, bias=bias, out=out))


def swap(before: Graph, op: str, new_op: str) -> Graph:
    """`before` with its only `op` replaced by a `new_op` of the same inputs and type, under a new tensor."""
    old = only(before, op)
    tensor = before.next_id
    added = Node(before.next_id + 1, new_op, "", old.inputs, (tensor,), made_by_rule=True)
    kind: TensorType = before.types[old.outputs[0]]
    return before.rewrite([old.id], [added], {tensor: kind}, {}, {old.outputs[0]: tensor}, tensor + 2)
