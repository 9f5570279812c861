"""Small graphs for the tests, written in ONNX's text format."""

import numpy as np
import onnx

from rlflow.costs import CostModel, graph_cost
from rlflow.env.state import Task
from rlflow.graph.ir import Graph, Node, TensorType
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "elsewhere" : 1]> {body}'
    return onnx.parser.parse_model(text)


def graph(body: str, opset: int = 18, bodies: bool = True) -> Graph:
    return load_graph(model(body, opset), bodies=bodies)


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
    """Return `before` with its only `op` replaced by a `new_op` of the same inputs and type, with a new output."""
    old = only(before, op)
    tensor = before.next_id
    added = Node(before.next_id + 1, new_op, "", old.inputs, (tensor,), made_by_rule=True)
    kind: TensorType = before.types[old.outputs[0]]
    return before.rewrite([old.id], [added], {tensor: kind}, {}, {old.outputs[0]: tensor}, tensor + 2)


def check_is_local(cost: CostModel, graph: Graph) -> None:
    """Check along random rewrites that the incrementally updated cost equals the cost of the graph computed anew."""
    task, rng = Task(graph, load_rules(), cost), np.random.default_rng(0)
    for _ in range(3):
        state = task.initial
        for _ in range(20):
            xfer_id = int(rng.choice(np.flatnonzero(state.counts)))
            state = state.apply(xfer_id, int(rng.integers(state.counts[xfer_id])))
            assert state.graph_cost.total == graph_cost(cost, state.graph)
