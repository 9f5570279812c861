"""Graphs to ONNX files."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rlflow.files import write_bytes
from rlflow.graph.fold import fold_constants
from rlflow.graph.model import ABSENT, Graph, Node, Opaque, TensorType
from rlflow.graph.shapes import node_proto

EXTERNAL_DATA_THRESHOLD = 1_900_000_000  # bytes; protobuf cannot hold 2 GiB


def to_model(graph: Graph) -> onnx.ModelProto:
    """The ONNX model of a graph, with the constant expressions that rules made folded into weights.

    Equal graphs with equal names give equal bytes. Raises RLFlowError where folding fails.
    """
    return _Writer(graph).write()


def save_graph(graph: Graph, path: Path | str) -> onnx.ModelProto:
    """Writes the model atomically; weights go to `<name>.data` beside it where protobuf's limit asks for it."""
    model = to_model(graph)
    save_model(model, path)
    return model


def save_model(model: onnx.ModelProto, path: Path | str) -> None:
    path = Path(path)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > EXTERNAL_DATA_THRESHOLD:
        data, offset = bytearray(), 0
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < 1024:
                continue
            data += tensor.raw_data
            size = len(tensor.raw_data)
            onnx.external_data_helper.set_external_data(tensor, f"{path.name}.data", offset, size)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            offset += size
        write_bytes(path.with_name(f"{path.name}.data"), bytes(data))
    write_bytes(path, model.SerializeToString(deterministic=True))


class _Writer:
    """Builds one ModelProto from one Graph."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.folded = fold_constants(graph)
        self.names = self.original_names()
        self.taken = set(self.names.values()) | {v.name for v in graph.interface.outputs} | _inner_names(graph)
        self.aliases: set[str] = set()
        self.fresh_names = 0
        self.nodes: list[onnx.NodeProto] = []
        self.used: dict[int, None] = {}  # constants, in order of first use

    def write(self) -> onnx.ModelProto:
        graph, interface = self.graph, self.graph.interface
        model = onnx.ModelProto()
        model.CopyFrom(interface.template)
        for value, tensor in zip(interface.inputs, graph.inputs, strict=True):
            model.graph.input.append(_with_shape(value, graph.types.get(tensor)) if graph.relied_on_shapes else value)
        model.graph.output.extend(interface.outputs)
        needed = self.unfolded_constants()
        for node_id in graph.order:
            node = graph.nodes[node_id]
            if not node.constant or node_id in needed:
                self.write_node(node)
        for value, tensor in zip(interface.outputs, graph.outputs, strict=True):
            self.alias(tensor, value.name)
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.initializer(tensor) for tensor in self.used)
        return model

    def original_names(self) -> dict[int, str]:
        """Names of the tensors that have one. The graph's outputs get the interface's names first."""
        graph, names = self.graph, dict(self.graph.interface.names)
        declared = {value.name for value in graph.interface.outputs}
        for value, tensor in zip(graph.interface.outputs, graph.outputs, strict=True):
            computed = tensor in graph.producers and tensor not in self.folded
            if computed and names.get(tensor) not in declared:
                names[tensor] = value.name
        names[ABSENT] = ""
        return names

    def unfolded_constants(self) -> set[int]:
        """Ids of the model's own constant nodes that are still read; the others were folded."""
        graph, cone = self.graph, set()
        stack = [t for n in graph.nodes.values() if not n.constant for t in n.reads()] + list(graph.outputs)
        while stack:
            tensor = stack.pop()
            producer = graph.producers.get(tensor)
            if tensor not in self.folded and producer not in cone and producer in graph.nodes:
                if graph.nodes[producer].constant:
                    cone.add(producer)
                    stack += graph.nodes[producer].reads()
        return cone

    def name(self, tensor: int) -> str:
        if tensor not in self.names:
            while f"rlflow_{self.fresh_names}" in self.taken:
                self.fresh_names += 1
            self.names[tensor] = f"rlflow_{self.fresh_names}"
            self.taken.add(self.names[tensor])
        return self.names[tensor]

    def read(self, tensor: int) -> str:
        """The name of a tensor that is about to be read; remembers the constants among them."""
        if tensor in self.folded or tensor in self.graph.constants:
            self.used[tensor] = None
        return self.name(tensor)

    def write_node(self, node: Node) -> None:
        for name, tensor in node.captured:  # the subgraph goes on using the name it was written with
            self.alias(tensor, name)
        self.nodes.append(node_proto(self.graph, node, self.read, self.constant))

    def alias(self, tensor: int, name: str) -> None:
        """Makes the tensor known under a second name."""
        source = self.read(tensor)
        if source != name and name not in self.aliases:
            self.aliases.add(name)
            self.nodes.append(helper.make_node("Identity", [source], [name]))

    def constant(self, tensor: int) -> np.ndarray:
        return self.folded[tensor] if tensor in self.folded else self.graph.constants[tensor].load()

    def initializer(self, tensor: int) -> onnx.TensorProto:
        return numpy_helper.from_array(self.constant(tensor), self.name(tensor))


def _with_shape(value: onnx.ValueInfoProto, kind: TensorType | None) -> onnx.ValueInfoProto:
    """The declaration of an input with every symbolic dimension fixed to the size that it was bound to."""
    fixed = onnx.ValueInfoProto()
    fixed.CopyFrom(value)
    if kind is not None and kind.shape is not None:
        for dim, size in zip(fixed.type.tensor_type.shape.dim, kind.shape, strict=True):
            dim.dim_value = size
    return fixed


def _inner_names(graph: Graph) -> set[str]:
    """Names that are taken inside the subgraphs of a graph's nodes."""
    stack = [
        onnx.AttributeProto.FromString(value.data)
        for node in graph.nodes.values() for _, value in node.attributes if isinstance(value, Opaque)
    ]  # fmt: skip
    names: set[str] = set()
    while stack:
        attribute = stack.pop()
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            names |= {v.name for v in inner.input} | {t.name for t in inner.initializer}
            names |= {name for node in inner.node for name in node.output}
            stack += [a for node in inner.node for a in node.attribute]
    return names
