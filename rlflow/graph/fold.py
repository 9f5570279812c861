"""Folding: constant expressions that rules made are computed once, on export, in ONNX Runtime.

They are nodes until then: a rule writes `Concat(w, u)` without reading a weight. Nodes that depend on constants alone
cost nothing and are not shown to agents. The model's own constant expressions stay as they are.
"""

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph.model import ABSENT, Graph
from rlflow.graph.shapes import SHAPE_VALUE_LIMIT, node_proto

# Large weights of these types are handed to ONNX Runtime as they are, not copied into a model first.
FED = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16))


def folds(graph: Graph) -> dict[int, list[int]]:
    """Tensor id → the nodes that compute it, for every constant expression with a rule-made node that the model reads.

    The model's own constant expressions stay as they are.
    """
    roots = [t for n in graph.order for t in graph.nodes[n].reads() if not graph.nodes[n].constant]
    roots = [t for t in dict.fromkeys([*roots, *graph.outputs]) if t in graph.producers]
    cones = {t: constant_cone(graph, t) for t in roots if graph.nodes[graph.producers[t]].constant}
    return {
        tensor: sorted(cone, key=graph.rank.__getitem__)
        for tensor, cone in cones.items() if any(graph.nodes[n].made_by_rule for n in cone)
    }  # fmt: skip


def constant_cone(graph: Graph, tensor: int) -> set[int]:
    """Ids of all nodes that the tensor is computed from."""
    cone, stack = set(), [tensor]
    while stack:
        producer = graph.producers.get(stack.pop())
        if producer is not None and producer not in cone:
            cone.add(producer)
            stack += graph.nodes[producer].reads()
    return cone


def evaluate(graph: Graph, node_ids: list[int], tensors: list[int]) -> list[np.ndarray]:
    """The arrays of constant `tensors`, given the nodes (in topological order) that compute them.

    One thread, so that equal graphs fold to equal bits on one machine. Raises RLFlowError if ONNX Runtime
    refuses the expression.
    """
    import onnxruntime

    nodes = [node_proto(graph, graph.nodes[n], _name, lambda t: graph.constants[t].load()) for n in node_ids]
    read = {name for proto in nodes for name in proto.input}
    inputs = dict.fromkeys(t for n in node_ids for t in graph.nodes[n].inputs)
    weights = [t for t in inputs if t in graph.constants and _name(t) in read]
    fed = [t for t in weights if graph.constants[t].type.size > SHAPE_VALUE_LIMIT and graph.types[t].dtype in FED]
    initializers = [numpy_helper.from_array(graph.constants[t].load(), _name(t)) for t in weights if t not in fed]
    model = helper.make_model(
        helper.make_graph(nodes, "fold", _values(graph, fed), _values(graph, tensors), initializers),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in graph.interface.opsets.items()],
        ir_version=8,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {_name(t): graph.constants[t].load() for t in fed})
    except Exception as error:  # ONNX Runtime raises its own, undocumented classes
        raise RLFlowError(f"cannot fold the weights that a rule combined: {first_line(error)}") from error


def _values(graph: Graph, tensors: list[int]) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info(_name(t), graph.types[t].dtype, graph.types[t].shape) for t in tensors]


def _name(tensor: int) -> str:
    return "" if tensor == ABSENT else f"t{tensor}"


