"""Write graphs as ONNX files, fold constant expressions, and copy model files with their external weights.

A rule adds `Concat(w, u)` without reading a weight, so the constant expressions that rules make stay nodes until
export. `evaluate` then computes them once in ONNX Runtime, with one thread, so that equal graphs give equal bytes. The
model's own constant expressions stay unchanged.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import google.protobuf.message
import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import copy_file, file_hash, new_file, write_bytes
from rlflow.graph.ir import ABSENT, RUNTIME_OPSET, Graph, Node, Opaque, TensorType
from rlflow.graph.naming import FreshNames, combined
from rlflow.graph.onnx_reader import external_files, external_locations, model_files
from rlflow.graph.opsets import COUNTS_PARTS, MOVED
from rlflow.graph.repairs import subgraphs
from rlflow.graph.shapes import SHAPE_VALUE_LIMIT, node_proto

if TYPE_CHECKING:
    import onnxruntime  # slow to import

# `evaluate` passes large weights of these types to ONNX Runtime as inputs, which avoids a copy into a model.
FED = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16))


def folds(graph: Graph) -> dict[int, list[int]]:
    """Return tensor id → ids of the nodes that compute it, for each constant expression that an export folds.

    An expression is folded if it contains a node that a rule added, and if its value is a graph output or an input of a
    node that is not constant.
    """
    roots = [t for n in graph.order for t in graph.nodes[n].reads() if not graph.nodes[n].constant]
    roots = [t for t in dict.fromkeys([*roots, *graph.outputs]) if t in graph.producers]
    cones = {t: constant_cone(graph, t) for t in roots if graph.nodes[graph.producers[t]].constant}
    return {
        tensor: sorted(cone, key=graph.rank.__getitem__)
        for tensor, cone in cones.items() if any(graph.nodes[n].made_by_rule for n in cone)
    }  # fmt: skip


def constant_cone(graph: Graph, tensor: int) -> set[int]:
    """Return the ids of all nodes on which a tensor depends, including its producer."""
    cone, stack = set(), [tensor]
    while stack:
        producer = graph.producers.get(stack.pop())
        if producer is not None and producer not in cone:
            cone.add(producer)
            stack += graph.nodes[producer].reads()
    return cone


def evaluate(graph: Graph, node_ids: list[int], tensors: list[int]) -> list[np.ndarray]:
    """Compute constant tensors in ONNX Runtime, with one thread so that equal graphs give equal bits on one machine.

    Args:
      graph: the graph.
      node_ids: the nodes that compute the tensors, in topological order.
      tensors: ids of the tensors.

    Returns:
      One array for each tensor.

    Raises:
      RLFlowError: ONNX Runtime rejects the expression.
    """
    from rlflow.graph.onnx_runtime import run, session  # importing onnxruntime is slow

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
    try:
        return run(session(model, 1, optimise=False), {_name(t): graph.constants[t].load() for t in fed})
    except RLFlowError as error:
        raise RLFlowError(f"cannot fold the weights that a rule combined: {error}") from error


def _values(graph: Graph, tensors: list[int]) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info(_name(t), graph.types[t].dtype, graph.types[t].shape) for t in tensors]


def _name(tensor: int) -> str:
    return "" if tensor == ABSENT else f"t{tensor}"


EXTERNAL_DATA_THRESHOLD = 1_900_000_000  # bytes; a protobuf file must stay below 2 GiB
LARGE = 25_000_000  # smallest size in bytes of a weight that `to_model` can keep apart from the model
SMALLEST_OUTSIDE = 1024  # bytes; smaller weights stay in the model file
ALIGNMENT = 64  # bytes; aligned weights can be used directly from a memory-mapped file


def to_model(graph: Graph, apart: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return the ONNX model of a graph, with the constant expressions of rules folded into weights.

    Equal graphs with equal names and origins (`Node.origins`) give equal bytes.

    Args:
      graph: the graph.
      apart: receives name → array for each float32 weight of LARGE bytes or more, which saves copies. The model then
        has only the shapes of these weights, and `session` needs the arrays. None to write all weights into the model.

    Raises:
      RLFlowError: folding fails.
    """
    return _Writer(graph).with_weights(apart)


def kept_apart(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of a model without its large weights, and these weights by name, as `session` takes them.

    Creating a session from the copy is faster: `session` serialises a ModelProto, and ONNX Runtime reads these bytes
    again. Large weights are float32 initialisers of at least LARGE bytes that have their content in `raw_data`, that
    are no inputs, and whose content fits their shape.
    """
    light = onnx.ModelProto(**{field.name: value for field, value in model.ListFields() if field.name != "graph"})
    fields = {field.name: value for field, value in model.graph.ListFields() if field.name != "initializer"}
    light.graph.MergeFrom(onnx.GraphProto(**fields))
    apart, inputs = {}, {value.name for value in model.graph.input}
    for proto in model.graph.initializer:
        size = len(proto.raw_data) if proto.data_type == TensorProto.FLOAT and proto.name not in inputs else 0
        if size >= LARGE and size == 4 * math.prod(proto.dims) and min(proto.dims) > 0:
            apart[proto.name] = array = numpy_helper.to_array(proto)
            outside(light.graph.initializer.add(name=proto.name), array, "apart", 0, array.nbytes)
        else:  # ONNX Runtime refuses a weight whose content does not fit its shape
            light.graph.initializer.append(proto)
    return light, apart


def save_graph(graph: Graph, path: Path | str) -> str:
    """Write the model of a graph atomically and return its hash (`model_hash`).

    If the model exceeds protobuf's limit, its weights go to `<name>.data` in the same folder, with one weight in memory
    at a time. An existing model of this name is removed before the weights are replaced, since it would read the new
    weights as its own.

    Args:
      graph: the graph.
      path: path of the ONNX file.

    Raises:
      RLFlowError: folding fails or the file cannot be written.
    """
    path, writer = Path(path), _Writer(graph)
    if writer.fits_into_one_file:
        content = serialised(writer.with_weights())
        write_bytes(path, content)
        return hashlib.sha256(content).hexdigest()
    data, digest = path.with_name(f"{path.name}.data"), hashlib.sha256()
    with new_file(data) as file:

        def put(block: bytes | memoryview) -> None:
            file.write(block)
            digest.update(block)

        model = writer.with_weights_outside(data.name, put)
        path.unlink(missing_ok=True)
    save_model(model, path)
    for entry in external_locations(model):
        entry.value = ""
    digest.update(serialised(model))
    return digest.hexdigest()


def save_model(model: onnx.ModelProto, path: Path | str) -> None:
    """Write a model atomically. Raise RLFlowError if it exceeds protobuf's limit of 2 GiB."""
    write_bytes(path, serialised(model))


def model_hash(graph: Graph) -> str:
    """Return the SHA-256 digest of the file that `save_graph` writes, in hexadecimal digits.

    If `save_graph` writes external weights, the digest covers the bytes of the weights, followed by the model with an
    empty location of the weights, so that the digest does not depend on the file name.
    """
    digest, writer = hashlib.sha256(), _Writer(graph)
    whole = writer.fits_into_one_file
    model = writer.with_weights() if whole else writer.with_weights_outside("", digest.update)
    digest.update(serialised(model))
    return digest.hexdigest()


def serialised(model: onnx.ModelProto) -> bytes:
    """Return the file content of a model. Raise RLFlowError if it exceeds protobuf's limit of 2 GiB."""
    try:
        return model.SerializeToString(deterministic=True)
    except (google.protobuf.message.EncodeError, ValueError) as error:
        raise RLFlowError(f"the model does not fit into an ONNX file: {first_line(error)}") from error


class _Writer:
    """A builder of the ModelProto of one graph, which loads or computes each weight once."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.folded = folds(graph)
        self.bodies = graph.interface.bodies
        self.homes = {tensor: body for body, each in self.bodies.items() for tensor in each.constants}
        self.inside: dict[int, list[int]] = {}  # id of a body → its nodes in canonical order
        for node_id in graph.order:
            self.inside.setdefault(graph.nodes[node_id].body, []).append(node_id)
        self.declared = _declared_graphs(graph)
        self.names = self.original_names()
        self.tensor_names = FreshNames(
            set(self.names.values()) | {v.name for v in graph.interface.outputs} | _inner_names(graph)
        )
        self.node_names = FreshNames(graph.interface.labels.values())
        self.weight_notes = {note.name: note for note in graph.interface.notes}
        self.aliases: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.used: dict[int, int] = {}  # constant → the body that holds it, in order of first use
        self.written: dict[int, tuple[int, int, str]] = {}  # body → (outer body, position of the owner, attribute)
        self.notes = {int(note.output[0]): note for note in graph.interface.template.graph.node}
        self.model = self.without_weights()

    @property
    def fits_into_one_file(self) -> bool:
        return sum(self.graph.types[tensor].nbytes for tensor in self.used) <= EXTERNAL_DATA_THRESHOLD

    def with_weights(self, apart: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
        for tensor, body in self.used.items():
            if apart is not None and self.is_large(tensor):
                apart[self.name(tensor)] = array = self.constant(tensor)
                outside(self.graph_of(body).initializer.add(name=self.name(tensor)), array, "apart", 0, array.nbytes)
            else:
                self.graph_of(body).initializer.append(self.initializer(tensor))
        return self.model

    def is_large(self, tensor: int) -> bool:
        kind = self.graph.types[tensor]
        return kind.dtype == TensorProto.FLOAT and kind.nbytes >= LARGE

    def graph_of(self, body: int) -> onnx.GraphProto:
        """Return the written graph of a body; 0 is the main graph."""
        if not body:
            return self.model.graph
        outer, position, name = self.written[body]
        return next(a.g for a in self.graph_of(outer).node[position].attribute if a.name == name)

    def with_weights_outside(self, location: str, put: Callable[[bytes | memoryview], object]) -> onnx.ModelProto:
        """Return the model with external weights; small weights stay in the model.

        Args:
          location: name of the file with the weights.
          put: function that receives the content of that file, one weight after the other.
        """
        end = 0
        for tensor, body in self.used.items():
            proto = self.graph_of(body).initializer.add()
            end += self.put_weight(tensor, proto, location, end, put)
        return self.model

    def put_weight(self, tensor: int, proto: onnx.TensorProto, location: str, end: int, put) -> int:
        """Fill in the proto of a weight, and append the weight to the external file unless it is small.

        Args:
          tensor: id of the weight.
          proto: the empty proto.
          location: name of the external file.
          end: number of bytes in the file so far.
          put: function that appends bytes to the file.

        Returns:
          The number of bytes appended.
        """
        array = self.constant(tensor)
        if array.nbytes < SMALLEST_OUTSIDE or array.dtype == object:
            proto.CopyFrom(self.with_note(numpy_helper.from_array(array, self.name(tensor))))
            return 0
        data, padding = _raw_bytes(array), -end % ALIGNMENT
        put(bytes(padding))
        put(data)
        proto.name = self.name(tensor)
        outside(proto, array, location, end + padding, len(data))
        self.with_note(proto)
        return padding + len(data)

    def without_weights(self) -> onnx.ModelProto:
        graph, interface = self.graph, self.graph.interface
        model = onnx.ModelProto()
        model.CopyFrom(interface.template)
        del model.graph.node[:], model.graph.quantization_annotation[:], model.graph.value_info[:]
        for value, tensor in zip(interface.inputs, graph.inputs, strict=True):
            model.graph.input.append(with_shape(value, graph.types.get(tensor)) if graph.is_rewritten else value)
        model.graph.output.extend(interface.outputs)
        self.needed = self.unfolded_constants()
        self.write_nodes(0, interface.output_names, graph.outputs)
        model.graph.node.extend(self.nodes)
        made_by_rules = {node.domain for node in graph.nodes.values()} & RUNTIME_OPSET.keys() - interface.opsets.keys()
        model.opset_import.extend(helper.make_opsetid(domain, RUNTIME_OPSET[domain]) for domain in made_by_rules)
        model.graph.quantization_annotation.extend(self.annotations(model.graph))
        model.graph.value_info.extend(self.kept_declarations())
        return model

    def kept_declarations(self) -> list[onnx.ValueInfoProto]:
        """Return the model's declarations of intermediate tensors that the written file still has.

        A declaration with another number than the inferred size is left out, because a rewrite could rely on the size.
        """
        graph = self.graph
        made = {t for t, node_id in graph.producers.items() if graph.nodes[node_id].body == 0}
        ids = {self.names[t]: t for t in made if t in self.names}
        written = {name for node in self.nodes for name in node.output} | {self.name(tensor) for tensor in self.used}
        return [
            value for value in graph.interface.template.graph.value_info
            if value.name in written and agrees(value, graph.types.get(ids.get(value.name)))
        ]  # fmt: skip

    def write_nodes(self, body: int, outputs: Iterable[str], tensors: Iterable[int]) -> None:
        """Write the nodes of a body (0: the main graph) to `self.nodes`, so that its outputs get their names.

        Args:
          body: id of the body.
          outputs: names of its outputs.
          tensors: ids of its outputs.
        """
        for node_id in self.inside.get(body, ()):
            node = self.graph.nodes[node_id]
            if not node.constant or node_id in self.needed:
                self.write_node(node)
        for name, tensor in zip(outputs, tensors, strict=True):
            self.alias(tensor, name)

    def write_bodies(self, owner: Node, proto: onnx.NodeProto) -> None:
        """Fill in the nodes of the bodies of a node; `proto` is the owner with the declarations of its bodies."""
        around, aliases = self.nodes, self.aliases
        for body in owner.bodies:
            name, (declared, tensors) = self.bodies[body].attribute, self.declared[body]
            self.written[body] = self.bodies[body].outer, len(around), name
            self.nodes, self.aliases = [], set(aliases)
            self.write_nodes(body, [value.name for value in declared.output], tensors)
            graph = next(attribute.g for attribute in proto.attribute if attribute.name == name)
            graph.node.extend(self.nodes)
            made = {name for node in self.nodes for name in node.output} | {value.name for value in graph.input}
            kept = [value for value in graph.value_info if value.name in made]
            del graph.value_info[:]
            graph.value_info.extend(kept)
        self.nodes, self.aliases = around, aliases

    def home(self, tensor: int) -> int:
        """Return the id of the body in which a constant is stored; 0 for the main graph.

        A constant of the model stays where it was. A new constant goes to the innermost body that contains all its
        readers, or to the main graph if it is an output of the graph. A folded tensor is new, even if it has the name
        of a tensor that the model computed in a body.
        """
        is_old = tensor in self.graph.interface.names and tensor not in self.folded
        if tensor in self.homes or is_old or not self.bodies:
            return self.homes.get(tensor, 0)
        chains = [self.chain(self.graph.nodes[reader]) for reader in self.graph.consumers.get(tensor, ())]
        common = chains[0] if chains and tensor not in self.graph.outputs else [0]
        return next(body for body in common if all(body in chain for chain in chains))

    def chain(self, reader: Node) -> list[int]:
        """Return the body of a node and all bodies around it, the main graph last."""
        chain = [reader.body]
        while chain[-1]:
            chain.append(self.bodies[chain[-1]].outer)
        return chain

    def annotations(self, written: onnx.GraphProto) -> list[onnx.TensorAnnotation]:
        """Return the model's quantisation annotations whose tensors all exist in the written graph."""
        names = {name for node in self.nodes for name in node.output}
        names |= {self.name(tensor) for tensor, body in self.used.items() if not body}
        names |= {value.name for value in (*written.input, *written.initializer)}
        return [
            a for a in self.graph.interface.template.graph.quantization_annotation
            if names.issuperset((a.tensor_name, *(entry.value for entry in a.quant_parameter_tensor_names)))
        ]  # fmt: skip

    def original_names(self) -> dict[int, str]:
        """Return tensor id → ONNX name for tensors of the original model.

        If rewrites made another computed tensor an output (of the graph or of its body) or a kept tensor, it gets the
        name of that output or kept tensor. A folded weight that is an output of a body loses its name, because the
        weight may be stored in an outer graph; the body then makes a copy with the name of the output.
        """
        graph, names = self.graph, dict(self.graph.interface.names)
        for body, (outputs, tensors) in [(0, (graph.interface.output_names, graph.outputs)), *(
            (body, ([value.name for value in written.output], tensors))
            for body, (written, tensors) in self.declared.items()
        )]:  # fmt: skip
            declared = set(outputs)
            for name, tensor in zip(outputs, tensors, strict=True):
                computed = tensor in graph.producers and tensor not in self.folded
                here = computed and graph.nodes[graph.producers[tensor]].body == body
                if here and names.get(tensor) not in declared:
                    names[tensor] = name
                if body and tensor in self.folded:
                    names.pop(tensor, None)
        names[ABSENT] = ""
        return names

    def unfolded_constants(self) -> set[int]:
        """Return the ids of the constant nodes to write: the model needs their results, and folding keeps them."""
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

    def name(self, tensor: int, wanted: str = "constant") -> str:
        """Return the name of a tensor; a new tensor gets the name `wanted`, with a number if it exists."""
        if tensor not in self.names:
            self.names[tensor] = self.tensor_names.new(wanted)
        return self.names[tensor]

    def name_around(self, node: Node) -> Node:
        """Return the node with its name in the file, and give names to new tensors that the node reads or computes.

        A computed tensor is named after the node, a folded weight after the weights that it combines, and another new
        constant after the node that reads it.
        """
        labels = self.graph.interface.labels
        known = [labels[origin] for origin in node.origins or (node.id,) if origin in labels]
        label = combined(known or [node.op])
        if node.made_by_rule:
            label = self.node_names.new(f"{label} ({'fused' if len(known) > 1 else 'rewritten'})")
            node = replace(node, name=label)
        for slot, tensor in enumerate(node.inputs):
            weights = [self.names[t] for t in self.leaves(tensor) if t in self.graph.interface.names]
            self.name(tensor, f"{combined(weights)} (folded)" if weights else f"{label} input {slot}")
        for slot, tensor in enumerate(node.outputs):
            self.name(tensor, f"{label}:{slot}")
        return node

    def leaves(self, tensor: int) -> list[int]:
        """Return the ids of the constants from which a new folded weight is computed; [] for another tensor."""
        if tensor in self.names or tensor not in self.folded:
            return []
        read = dict.fromkeys(t for node_id in self.folded[tensor] for t in self.graph.nodes[node_id].inputs)
        return [t for t in read if t in self.graph.constants]

    def read(self, tensor: int) -> str:
        """Return the name of a tensor that a node reads; mark the tensor as used if it is a constant."""
        if tensor in self.folded or tensor in self.graph.constants:
            if tensor not in self.used:
                self.used[tensor] = self.home(tensor)
        return self.name(tensor)

    def write_node(self, node: Node) -> None:
        if not node.bodies:
            for name, tensor in node.captured:  # The subgraph still refers to the tensor by its original name.
                self.alias(tensor, name)
        proto = node_proto(self.graph, self.without_parts(self.name_around(node)), self.read, self.constant)
        if node.bodies:
            self.write_bodies(node, proto)
        if node.id in self.notes:
            proto.MergeFrom(self.notes[node.id])
            del proto.output[-1]  # Remove the output of the note, which was only its key.
        self.nodes.append(proto)

    def without_parts(self, node: Node) -> Node:
        """Return a Split without the input of part sizes that `onnx_reader._Reader.with_parts` added.

        Other nodes are returned unchanged.
        """
        opset = self.graph.opset("")
        got = (node.op, node.domain, len(node.inputs)) == ("Split", "", 2) and opset >= MOVED["Split"].version
        if not got or node.made_by_rule or node.inputs[1] in self.graph.interface.names:
            return node
        counted = {("num_outputs", len(node.outputs))} if opset >= COUNTS_PARTS else set()
        return replace(node, inputs=node.inputs[:1], attributes=tuple(sorted(counted.union(node.attributes))))

    def alias(self, tensor: int, name: str) -> None:
        """Give the tensor a second name by an Identity node, unless it has this name already."""
        source = self.read(tensor)
        if source != name and name not in self.aliases:
            self.aliases.add(name)
            label = self.node_names.new(f"{combined([name])} (copy)")
            self.nodes.append(helper.make_node("Identity", [source], [name], label))

    def constant(self, tensor: int) -> np.ndarray:
        if tensor in self.folded:
            return evaluate(self.graph, self.folded[tensor], [tensor])[0]
        return self.graph.constants[tensor].load()

    def initializer(self, tensor: int) -> onnx.TensorProto:
        proto = numpy_helper.from_array(self.constant(tensor), self.name(tensor))
        return self.with_note(proto)

    def with_note(self, proto: onnx.TensorProto) -> onnx.TensorProto:
        """Add the documentation and metadata that the weight of this name has in the model, and return the proto."""
        if proto.name in self.weight_notes:
            proto.MergeFrom(self.weight_notes[proto.name])
        return proto


def outside(proto: onnx.TensorProto, array: np.ndarray, location: str, offset: int, length: int) -> None:
    """Fill in the type and shape of a weight, and where its content lies outside the model.

    Args:
      proto: the weight without content.
      array: the content.
      location: name of the file.
      offset, length: position of the content in the file and its length, in bytes.
    """
    proto.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    proto.dims.extend(array.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        proto.external_data.add(key=key, value=str(value))


def write_weights_to(options: "onnxruntime.SessionOptions", file: str) -> None:
    """Make a session that writes its optimised model write the weights of SMALLEST_OUTSIDE bytes or more to a file.

    Args:
      options: the options of the session.
      file: name of the file, in the folder of the optimised model.
    """
    weights = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{weights}_file_name", file)
    options.add_session_config_entry(f"{weights}_min_size_in_bytes", str(SMALLEST_OUTSIDE))


def _raw_bytes(array: np.ndarray) -> bytes | memoryview:
    """Return the content of an array as ONNX stores it (little-endian), without a copy for NumPy's built-in types."""
    if array.dtype.isbuiltin == 1 and sys.byteorder == "little":
        return memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B")
    return numpy_helper.from_array(array).raw_data


def agrees(value: onnx.ValueInfoProto, kind: TensorType | None) -> bool:
    """Return False if a declaration states another data type, rank or number than the type of the tensor.

    Args:
      value: the declaration.
      kind: the inferred type; None if it is not known.
    """
    if kind is None or not value.type.HasField("tensor_type"):
        return True
    declared = value.type.tensor_type
    if declared.elem_type != kind.dtype:
        return False
    if kind.shape is None or not declared.HasField("shape"):
        return True
    pairs = zip(declared.shape.dim, kind.shape, strict=False)
    numbers = all(dim.dim_value == size for dim, size in pairs if dim.HasField("dim_value") and type(size) is int)
    return len(declared.shape.dim) == len(kind.shape) and numbers


def with_shape(value: onnx.ValueInfoProto, kind: TensorType | None) -> onnx.ValueInfoProto:
    """Return a copy of an input's declaration with a number for each dimension whose size is a number.

    Args:
      value: the declaration.
      kind: the input's type with the sizes; None leaves the declaration unchanged.
    """
    fixed = onnx.ValueInfoProto()
    fixed.CopyFrom(value)
    if kind is not None and kind.shape is not None:
        for dim, size in zip(fixed.type.tensor_type.shape.dim, kind.shape, strict=True):
            if type(size) is int:
                dim.dim_value = size
    return fixed


def _declared_graphs(graph: Graph) -> dict[int, tuple[onnx.GraphProto, list[int]]]:
    """Return id of a body → (the graph with the declarations of the body, ids of the body's outputs)."""
    result = {}
    for node in graph.nodes.values() if graph.interface.bodies else ():
        for body in node.bodies:
            name = graph.interface.bodies[body].attribute
            proto = onnx.AttributeProto.FromString(dict(node.attributes)[name].data).g
            result[body] = proto, [tensor for place, tensor in node.captured if place.rpartition("/")[0] == name]
    return result


def _inner_names(graph: Graph) -> set[str]:
    """Return the names of all tensors that subgraphs in the attributes of nodes define."""
    stack = [
        onnx.AttributeProto.FromString(value.data)
        for node in graph.nodes.values() for _, value in node.attributes if isinstance(value, Opaque)
    ]  # fmt: skip
    names: set[str] = set()
    while stack:
        for inner in subgraphs([stack.pop()]):
            names |= {v.name for v in (*inner.input, *inner.output)} | {t.name for t in inner.initializer}
            names |= {name for node in inner.node for name in node.output}
            stack += [a for node in inner.node for a in node.attribute]
    return names


def copy_model(source: Path, out: Path, same: bool) -> None:
    """Copy a model. Its external weights are copied first, so that no model exists without its weights.

    An existing model at `out` is removed before its weights are replaced, since this old model would read the new
    weights as its own.

    Args:
      source: the model.
      out: path of the copy.
      same: True if the copy must have the same bytes. If False, the copy reads the weights of `<source>.data` from
        `<out>.data`, so that several models can share a folder.

    Raises:
      RLFlowError: the copy would overwrite the weights of another model.
    """
    renamed = {} if same else {f"{source.name}.data": f"{out.name}.data"}
    locations = external_files(source)
    copies = [(source.parent / location, out.parent / renamed.get(location, location)) for location in locations]
    for location, (weights, copy) in zip(locations, copies, strict=True):
        if location not in renamed and copy.exists() and file_hash(copy) != file_hash(weights):
            raise RLFlowError(f"{out} needs its weights in {copy}, which is another file already; name another folder")
    for weights, copy in copies:
        if not copy.exists() or not copy.samefile(weights):
            copy_file(weights, copy, outdated=out)
    if not renamed.keys() & set(locations):
        copy_file(source, out)
        return
    model = onnx.load(source, load_external_data=False)
    for entry in external_locations(model):
        entry.value = renamed.get(entry.value, entry.value)
    save_model(model, out)


def check_apart(source: Path | str, out: Path | str, said: str = "--out") -> None:
    """Raise RLFlowError if writing a model to `out` would overwrite a file of the original model.

    Args:
      source: path of the original model.
      out: path of the model to write; its weights may go to `<out>.data`.
      said: name of the option or function that got `out`, for the error message.
    """
    files = model_files(source)
    for target in (Path(out), Path(f"{out}.data")):
        if target.exists() and any(target.samefile(file) for file in files):
            reason = f"{target} is the model itself, which is never overwritten; name another file"
            raise RLFlowError(f"{said} {out}: {reason}")
