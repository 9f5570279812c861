"""Read ONNX files into graphs: check the model, infer all types, and convert operators to the form of opsets.py.

Operators that no rule knows are kept unchanged. Large weights stay on disk until they are used.
"""

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import google.protobuf.message
import numpy as np
import onnx
from onnx import helper, numpy_helper

from rlflow.common.errors import RLFlowError, first_line, nearest
from rlflow.common.messages import say_once
from rlflow.graph import symbolic
from rlflow.graph.bodies import (
    RUNS,
    can_be_read,
    carried,
    declarations,
    declared,
    defined,
    first_types,
    graphs_of,
    inlined,
    runs_of,
)
from rlflow.graph.dequantised import dequantised, is_quantised
from rlflow.graph.half_precision import is_half, widened
from rlflow.graph.ir import ABSENT, Body, Constant, Graph, Interface, Node, Opaque, TensorType
from rlflow.graph.limits import MAX_CONSTANT_BYTES, check_declarations, check_expansion, check_types
from rlflow.graph.opsets import COUNTS_PARTS, MOVED, attributes_to_inputs, for_inference, moved_attributes
from rlflow.graph.random_numbers import RANDOM_OPS, drawn_by, known_scalars
from rlflow.graph.repairs import check_model, free_names, plain_domain, tensors_in
from rlflow.graph.shapes import SHAPE_VALUE_LIMIT, infer_types, known_value, tensor_type
from rlflow.graph.symbols import Symbols, check_shapes, with_ranks, with_sizes

MAY_DRAW = RANDOM_OPS | {"Dropout"}  # operators whose results may be random; Dropout is random in training mode


def check_is_file(path: Path) -> None:
    """Raise RLFlowError if the path of a model is a folder or does not exist."""
    if path.is_dir():
        raise RLFlowError(f"{path} is a folder. Pass the path of an ONNX file, or a name of the zoo")
    if not path.is_file():
        raise RLFlowError(f"no such file: {path}")


def read_model(path: Path | str) -> onnx.ModelProto:
    """Read, check and repair (repairs.py) the model of a file, without its external weights.

    The check includes that the files of external weights exist, unless the model needs a repair.

    Raises:
      RLFlowError: the file is missing, is not ONNX or fails the ONNX checker.
    """
    path = Path(path)
    check_is_file(path)
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
        if not model.HasField("graph"):
            raise google.protobuf.message.DecodeError("it has no graph")
    except (google.protobuf.message.DecodeError, UnicodeDecodeError) as error:
        raise RLFlowError(
            f"{path} is not an ONNX file: {error}. Pass a model that torch.onnx.export wrote, or a name of the zoo"
        ) from error
    model, repairs = check_model(model, path)
    if repairs:
        say_once(f"repaired: {'; '.join(repairs)}")
    return model


def load_graph(
    source: Path | str | onnx.ModelProto, shapes: Mapping[str, object] | None = None, bodies: bool = True,
    keep: Sequence[str] = (), widen: bool = False,
) -> Graph:  # fmt: skip
    """Return the graph of an ONNX file or model.

    Args:
      source: a path, or a model with its external data loaded.
      shapes: fixed sizes: input name → tuple of sizes, or dimension name → size. Other symbolic dimensions stay open.
      bodies: True to inline the model's functions, and to read the bodies of If, Loop and Scan, whose nodes then become
        nodes of the graph (bodies.py). If False, functions and bodies stay as the file contains them.
      keep: names of tensors and nodes of the main graph. Rewrites keep such a tensor with its name and value, and
        replace no such node.
      widen: True to compute in float32 between the inputs and outputs of a model in half precision
        (rlflow/graph/half_precision.py), or a quantised model without its rounding (rlflow/graph/dequantised.py).

    Raises:
      RLFlowError: the file or model is invalid, exceeds a limit, does not fit `shapes` or `keep`, or cannot be widened.
    """
    if isinstance(source, onnx.ModelProto):
        (model, _), folder = check_model(source), ""
    else:
        model = read_model(source)
        folder = str(weights_folder(model, Path(source)))
    check_declarations(model)
    check_expansion(model)
    functions: tuple[str, ...] = ()
    if bodies:
        model, functions = inlined(model)
    if widen:
        is_integer = is_quantised(model) and not is_half(model)
        model = (dequantised if is_integer else widened)(model, folder, keep)
    return _Reader(model, folder, dict(shapes or {}), bodies, functions, keep).read()


def external_files(path: Path | str) -> list[str]:
    """Return the files with the external weights of a model, relative to its folder.

    The result is cached until the file changes. A call that uses the cache does not check that the weights still exist.

    Raises:
      RLFlowError: see `read_model`.
    """
    path = Path(path)
    if not path.is_file():
        read_model(path)  # raises
    state = path.stat()
    return list(_external_files(path.absolute(), (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)))


@lru_cache(maxsize=64)
def _external_files(path: Path, state: tuple[int, ...]) -> tuple[str, ...]:
    """Return `external_files` of a file; `state` is its device, inode number, size and time of modification."""
    names = sorted({entry.value for entry in external_locations(read_model(path))})
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts or not (path.parent / name).is_file():
            raise RLFlowError(f"{path} reads weights from '{name}', which is no file in the folder of the model")
    return tuple(names)


def external_locations(model: onnx.ModelProto) -> Iterator[onnx.StringStringEntryProto]:
    """Yield the protobuf entries, one for each tensor with external data, whose value is the name of the data file."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    for tensor in (*model.graph.initializer, *tensors_in(nodes)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (entry for entry in tensor.external_data if entry.key == "location")


def weights_folder(model: onnx.ModelProto, path: Path) -> Path:
    """Return the folder of a model's external weights, and make the locations in the model names of files there.

    This is the folder of `path`, except if the file and all its weights are symbolic links into one other folder, as in
    the cache of the Hugging Face Hub. Other links stay in the model, so that onnx refuses to read them.

    Args:
      model: the model that was read from the file; its locations may be changed.
      path: the file.
    """
    if not path.is_symlink():
        return path.parent
    linked, entries = path.resolve(), list(external_locations(model))
    if any("\0" in entry.value for entry in entries):
        return path.parent
    files = [(path.parent / entry.value).resolve() for entry in entries]
    if any(file.parent != linked.parent for file in files):
        return path.parent
    for entry, file in zip(entries, files, strict=True):
        entry.value = file.name
    return linked.parent


def model_files(path: Path | str) -> list[Path]:
    """Return the path of a model, followed by the files with its external weights."""
    path = Path(path)
    return [path, *(path.parent / name for name in external_files(path))]


def file_bytes(path: Path | str) -> int:
    """Return the size of a model on disk in bytes, including its external weights."""
    return sum(file.stat().st_size for file in model_files(path))


class _Reader:
    """A builder of the Graph of one ModelProto.

    Args:
      model: the checked model.
      folder: folder of the model, for external weights.
      shapes: sizes to fix, as in `load_graph`.
      reads_bodies: True if the nodes in bodies become nodes of the graph.
      functions: names of the functions that were inlined.
      keep: names of protected tensors and nodes.
    """

    def __init__(
        self, model: onnx.ModelProto, folder: str, shapes: dict, reads_bodies: bool, functions: tuple[str, ...],
        keep: Sequence[str],
    ):
        self.proto, self.folder, self.shapes, self.keep = model, folder, shapes, keep
        self.reads_bodies, self.functions = reads_bodies, functions
        self.opsets = {plain_domain(o.domain): o.version for o in model.opset_import}
        self.ids: ChainMap[str, int] = ChainMap()  # names of the graph that is read, then of the graphs around it
        self.names: dict[int, str] = {}
        self.bodies: dict[int, Body] = {}
        self.declared: dict[int, list[TensorType | None]] = {}  # id of a body → declared types of its inputs
        self.outer: list[set[str]] = []  # names that each graph around the current node defines, the main graph first
        self.inside: dict[int, list[Node]] = {0: []}  # id of a body → its nodes in the order of the file
        self.body, self.path = 0, ""  # the body that is read
        self.constants: dict[int, Constant] = {}
        self.computed_constants: set[int] = set()
        self.nodes: list[Node] = []
        self.notes: list[onnx.NodeProto] = []  # doc strings and metadata of nodes; the only output is the node's id
        self.next_id = 0
        self.called = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.scalars: dict[str, np.ndarray] = {}  # constants that Dropouts read as their ratio or training mode

    def read(self) -> Graph:
        graph = self.proto.graph
        initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        # Before IR version 4 every initialiser had to be listed as an input and could not be overridden.
        overridable = self.proto.ir_version >= 4
        inputs = [v for v in graph.input if overridable or v.name not in initializers]
        inputs = with_ranks(inputs, self.shapes)
        input_names = {v.name for v in inputs}
        self.load_inner_weights(input_names)
        self.scalars = known_scalars((t for t in graph.initializer if t.name not in input_names), graph.node)
        symbols = Symbols(inputs, graph.node, check_shapes(inputs, self.shapes))
        bound = [with_sizes(value, symbols) for value in inputs]
        types = self.infer_types(bound)
        sparse = {t.values.name: TensorType(t.values.data_type, tuple(t.dims)) for t in graph.sparse_initializer}
        check_types(types | sparse)

        self.outer.append(set(defined(graph)) if self.reads_bodies else set())
        for value in inputs:
            self.tensor(value.name)
        for proto in graph.initializer:
            if proto.name not in input_names:
                self.constants[self.tensor(proto.name)] = constant_of(proto, self.folder)
        for proto in graph.sparse_initializer:
            if proto.values.name not in input_names:
                self.add_node(helper.make_node("Constant", [], [proto.values.name], sparse_value=proto))
        for node in graph.node:
            if _is_literal(node):
                self.constants[self.tensor(node.output[0])] = _constant_value(node.attribute[0], self.folder)
            else:
                self.add_node(node)
        outputs = [self.tensor(v.name) for v in graph.output]
        computed = {name: kind for name, kind in types.items() if self.ids.get(name) in self.computed_constants}
        check_types(computed, MAX_CONSTANT_BYTES)

        self.types = {self.ids[name]: kind for name, kind in types.items() if name in self.ids}
        self.types |= {tensor: constant.type for tensor, constant in self.constants.items()}
        produced = [t for node in self.inside[0] for t in node.outputs if t != ABSENT]
        unknown = any(t not in self.types or self.types[t].shape is None for t in produced)
        self.infers_again = unknown or bool(symbols.least) or bool(symbols.bindings)
        lost = self.infer_by_node(0) if self.infers_again or self.bodies else []
        if self.infers_again or self.bodies:
            check_types({self.names.get(tensor, f"t{tensor}"): kind for tensor, kind in self.types.items()})
            computed = self.computed_constants & self.types.keys()
            check_types({self.names[tensor]: self.types[tensor] for tensor in computed}, MAX_CONSTANT_BYTES)
        nodes = [self.with_parts(node) for node in self.nodes]
        interface = Interface(
            self.template(input_names), tuple(inputs), tuple(graph.output), self.names, self.opsets,
            symbols.bindings, symbols.least, self.bodies, self.functions, self.labels(), self.weight_notes(),
            tuple(self.keep), *self.protection(),
        )  # fmt: skip
        outputs = [*outputs, *(self.ids[name] for name in interface.kept)]
        inputs = [self.ids[v.name] for v in inputs]
        result = Graph.build(interface, nodes, self.types, self.constants, inputs, outputs)
        result.lost = tuple((node_id, reason) for node_id, reason in lost if node_id in result.nodes)
        return result

    def infer_by_node(self, body: int) -> list[tuple[int, str]]:
        """Infer types and small contents node by node, again in the main graph and for the first time in a body.

        Return (node id, reason) for each node whose output shape cannot be inferred from known input shapes.

        A type in the main graph that stays unknown keeps the result of ONNX's inference over the whole model. The
        exception is a shape that depends on arithmetic with symbols, which becomes unknown, because ONNX's result can
        be wrong: before opset 11, ONNX infers that a Slice keeps the size of a symbolic axis.

        Args:
          body: id of the body whose nodes are inferred; 0 for the main graph.
        """
        lost = []
        for node in self.inside[body]:
            if body:
                for tensor in node.outputs:
                    self.types.pop(tensor, None)
            if node.bodies:
                lost += self.infer_bodies(node)
            elif self.infers_again or body:
                lost += self.infer_node(node)
        return lost

    def infer_node(self, node: Node) -> list[tuple[int, str]]:
        """Infer the types of the outputs of one node; return [(node id, reason)] if this fails."""
        kinds = [self.types.get(t) if t != ABSENT else None for t in node.inputs]
        known = [kind is not None or t == ABSENT for kind, t in zip(kinds, node.inputs, strict=True)]
        if not all(known) or has_subgraph(node.attributes):
            return []
        values = [known_value(self, t) if t != ABSENT else None for t in node.inputs]
        opset = self.opsets.get(node.domain, 0)
        try:
            result = infer_types(node.op, node.domain, opset, node.attributes, kinds, values, len(node.outputs))
        except RLFlowError as error:
            if symbolic.computes(node.op) and any(map(symbolic.is_symbolic, kinds)):
                self.types |= {t: self.types[t]._replace(shape=None) for t in node.outputs if t in self.types}
            return [(node.id, str(error))] if all(kind is None or kind.shape is not None for kind in kinds) else []
        self.types |= {t: kind for t, kind in zip(node.outputs, result, strict=True) if t != ABSENT}
        return []

    def infer_bodies(self, node: Node) -> list[tuple[int, str]]:
        """Infer the types inside the bodies of a node, and the types of its outputs that are still unknown.

        A tensor that a loop carries has the same type in every run if the body keeps the type of the first run. If the
        body does not, the inference is repeated with an unknown shape. Return the same as `infer_by_node`.
        """
        results = [tensor for _, tensor in node.captured]
        if node.op == "If":
            lost = [each for body in node.bodies for each in self.infer_by_node(body)]
            both = zip(results, results[len(results) // 2 :], strict=False)
            same = {t: self.types.get(a) for t, (a, b) in zip(node.outputs, both, strict=False)
                    if self.types.get(a) == self.types.get(b)}  # fmt: skip
        else:
            (body,) = node.bodies
            inputs, places = self.bodies[body].inputs, carried(node)
            kinds = first_types(node, [self.types.get(t) for t in node.inputs], self.declared[body])
            for run in range(RUNS):
                self.types |= {t: kind for t, kind in zip(inputs, kinds, strict=True) if kind is not None}
                lost = self.infer_by_node(body)
                after = [(inside, self.types.get(results[result])) for _, inside, result, _ in places]
                known = [(k, kind) for k, kind in after if kinds[k] is not None and kinds[k].shape is not None]
                wrong = [k for k, kind in known if (kind and kind[:2]) != kinds[k][:2]]
                if not wrong or run == RUNS - 1:
                    break
                for k in wrong if run == 0 else [k for k, _ in after]:
                    kinds[k] = kinds[k] and kinds[k]._replace(shape=None)
            same = {node.outputs[out]: kinds[inside] for _, inside, _, out in places if out < len(node.outputs)}
            self.bodies[body] = self.bodies[body]._replace(runs=runs_of(self, node))
        same = {t: kind for t, kind in same.items() if t != ABSENT and kind is not None and kind.shape is not None}
        for tensor, kind in same.items():
            known = self.types.get(tensor)
            if known is None or known.shape is None:
                self.types[tensor] = TensorType(kind.dtype, kind.shape)
        return lost

    def with_parts(self, node: Node) -> Node:
        """Return a Split into equal parts with an explicit input of part sizes, if the sizes are known numbers.

        Other nodes are returned unchanged. `onnx_writer._Writer.without_parts` reverses this change.
        """
        counted = dict(node.attributes).get("num_outputs") is not None
        equal = counted if self.opsets.get("", 0) >= COUNTS_PARTS else self.opsets.get("", 0) >= MOVED["Split"].version
        if (node.op, node.domain, len(node.inputs)) != ("Split", "", 1) or node.constant or not equal:
            return node
        axis = dict(node.attributes).get("axis", 0)
        kinds = [self.types.get(tensor) for tensor in node.outputs]
        shapes = [kind.shape if kind is not None else None for kind in kinds]
        sizes = {shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None for shape in shapes}
        if len(sizes) > 1 or type(*sizes) is not int:
            return node
        parts = Constant.of(np.array([*sizes] * len(kinds), np.int64))
        tensor = self.fresh()
        self.constants[tensor], self.types[tensor] = parts, parts.type
        attributes = tuple(pair for pair in node.attributes if pair[0] != "num_outputs")
        return replace(node, inputs=(*node.inputs, tensor), attributes=attributes)

    def template(self, input_names: set[str]) -> onnx.ModelProto:
        """Return the `Interface.template` of the model.

        `input_names` are the names of the inputs; an initialiser with such a name is the default value of an input.
        """
        source, template = self.proto.graph, _without_graph(self.proto)
        template.ir_version = max(self.proto.ir_version, 4)
        graph = template.graph
        graph.name = source.name
        if source.doc_string:
            graph.doc_string = source.doc_string
        graph.metadata_props.extend(source.metadata_props)
        graph.initializer.extend(t for t in source.initializer if t.name in input_names)
        graph.initializer.extend(self.weights_of_annotations())
        graph.sparse_initializer.extend(t for t in source.sparse_initializer if t.values.name in input_names)
        graph.quantization_annotation.extend(source.quantization_annotation)
        graph.node.extend(self.notes)
        graph.value_info.extend(source.value_info)
        return template

    def protection(self) -> tuple[tuple[str, ...], frozenset[int]]:
        """Return the `Interface.kept` and `Interface.protected` of the model; outputs of protected nodes are kept, too.

        Raise RLFlowError if neither a tensor nor a node of the main graph has a name in `keep`.
        """
        graph, made = self.proto.graph, {}  # made: name of a node → its outputs
        for node in graph.node:
            if node.name:
                made.setdefault(node.name, []).extend(name for name in node.output if name)
        for name in self.keep:
            if name not in self.ids and name not in made:
                hint = nearest(name, [*self.ids, *made])
                raise RLFlowError(f"--keep {name}: the model has no tensor and no node of this name{hint}")
        named = dict.fromkeys(tensor for name in self.keep for tensor in (name, *made.get(name, ())))
        always = {value.name for value in (*graph.input, *graph.output)}
        kept = tuple([name for name in named if name in self.ids and name not in always])
        return kept, frozenset([node.id for node in self.inside[0] if node.name and node.name in self.keep])

    def labels(self) -> dict[int, str]:
        """Return the `Interface.labels` of the model."""
        names = self.names
        first = {node.id: next((names[t] for t in node.outputs if t in names), node.op) for node in self.nodes}
        return {node.id: node.name or first[node.id] for node in self.nodes}

    def weight_notes(self) -> tuple[onnx.TensorProto, ...]:
        """Return the `Interface.notes` of the model.

        A Constant node becomes a weight, so its documentation and metadata become a note of this weight.
        """
        graph, result = self.proto.graph, []
        literals = [(node.output[0], node) for node in graph.node if _is_literal(node)]
        for name, source in (*((tensor.name, tensor) for tensor in graph.initializer), *literals):
            if source.doc_string or source.metadata_props:
                note = onnx.TensorProto(name=name, doc_string=source.doc_string or None)
                note.metadata_props.extend(source.metadata_props)
                result.append(note)
        return tuple(result)

    def weights_of_annotations(self) -> list[onnx.TensorProto]:
        """Return the initialisers that quantisation annotations name and no node or output reads."""
        graph = self.proto.graph
        named = {entry.value for a in graph.quantization_annotation for entry in a.quant_parameter_tensor_names}
        read = {tensor for node in self.nodes for tensor in node.reads()} | {self.ids.get(v.name) for v in graph.output}
        single = [(t.name, self.ids[t.name]) for t in graph.initializer if t.name in named]
        single = [(name, tensor) for name, tensor in single if tensor in self.constants and tensor not in read]
        return [numpy_helper.from_array(self.constants[tensor].load(), name) for name, tensor in single]

    def load_inner_weights(self, input_names: set[str]) -> None:
        """Copy external data into the model: default values of inputs, tensors in attributes, and small weights.

        Default values and attributes are exported unchanged; small weights may determine a shape. `input_names` are the
        names of the inputs.
        """
        graph = self.proto.graph
        nodes = [node for node in graph.node if not _is_literal(node)]
        nodes += (node for function in self.proto.functions for node in function.node)
        defaults = [tensor for tensor in graph.initializer if tensor.name in input_names]
        weights = (*graph.initializer, *tensors_in(node for node in graph.node if _is_literal(node)))
        small = [tensor for tensor in weights if _size(tensor) <= SHAPE_VALUE_LIMIT]
        for tensor in (*defaults, *tensors_in(nodes), *small):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                array = constant_of(tensor, self.folder).load()
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    def tensor(self, name: str) -> int:
        if name not in self.ids:
            if isinstance(name, bytes):  # Protobuf returns bytes if it cannot decode the name.
                raise RLFlowError(f"the name of a tensor is not UTF-8: {name!r}")
            self.ids[name] = self.fresh()  # in the innermost graph
            self.names[self.ids[name]] = name
        return self.ids[name]

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    def add_node(self, node: onnx.NodeProto) -> None:
        attributes = node.attribute
        for name in (node.name, *(attribute.name for attribute in attributes)):
            if isinstance(name, bytes):
                raise RLFlowError(f"the name of a node or an attribute is not UTF-8: {name!r}")
        domain = plain_domain(node.domain)
        moved = attributes_to_inputs(node, self.opsets.get(domain, 0))
        inputs = [self.tensor(name) if name else ABSENT for name in node.input]
        dropped = {name for name, slot, _ in moved_attributes(node.op_type, domain, self.opsets.get(domain, 0))}
        for slot, array in moved:
            inputs += [ABSENT] * (slot + 1 - len(inputs))
            inputs[slot] = self.fresh()
            self.constants[inputs[slot]] = Constant.of(array)
        bodies: tuple[int, ...] = ()
        if self.reads_bodies and can_be_read(node, domain, self.opsets.get(domain, 0), self.outer):
            bodies, subgraph_reads = self.read_bodies(node)
            kept = {a.name: declarations(a) for a in attributes if a.name in graphs_of(node)}
        else:
            captured = tuple(dict.fromkeys(free_names(attributes)))
            subgraph_reads, kept = tuple((name, self.tensor(name)) for name in captured), {}
        values = ((a.name, kept.get(a.name) or _attribute_value(a, domain)) for a in attributes)
        known = tuple(sorted(pair for pair in values if pair[0] not in dropped))
        outputs = tuple(self.tensor(name) if name else ABSENT for name in node.output)
        constant = is_constant_node(
            node.op_type, domain, has_subgraph(known), [self.is_constant(t) for t in inputs if t != ABSENT]
        )
        if constant:
            self.computed_constants.update(outputs)
        node_id, draws = self.fresh(), any(drawn_by(node, self.called, self.scalars))
        self.nodes.append(
            Node(
                node_id, node.op_type, domain, tuple(inputs), outputs, known, subgraph_reads, constant,
                name=node.name, overload=node.overload, body=self.body, bodies=bodies, draw=node_id if draws else 0,
            )
        )
        self.inside[self.body].append(self.nodes[-1])
        if node.doc_string or node.metadata_props or node.device_configurations:
            note = onnx.NodeProto(output=[str(self.nodes[-1].id)], doc_string=node.doc_string or None)
            note.metadata_props.extend(node.metadata_props)
            note.device_configurations.extend(node.device_configurations)
            self.notes.append(note)

    def read_bodies(self, node: onnx.NodeProto) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
        """Read the bodies of a node; return the ids of the bodies, and the value of `Node.captured` for their owner."""
        around, ids, results = (self.body, self.path, self.ids), [], []
        place = node.name or f"{node.op_type.lower()}_{len(self.inside[self.body])}"
        for attribute, graph in graphs_of(node).items():
            self.body, self.path = self.fresh(), f"{around[1]}/{place}/{attribute}".lstrip("/")
            self.ids, self.inside[self.body] = around[2].new_child(), []
            self.outer.append(set(defined(graph)))
            inputs = tuple([self.tensor(value.name) for value in graph.input])
            self.declared[self.body] = declared(graph.input)
            constants = {self.tensor(proto.name): constant_of(proto, self.folder) for proto in graph.initializer}
            self.constants |= constants
            for inner in graph.node:
                if _is_literal(inner):
                    tensor = self.tensor(inner.output[0])
                    constants[tensor] = self.constants[tensor] = _constant_value(inner.attribute[0], self.folder)
                else:
                    self.add_node(inner)
            results += [(f"{attribute}/{k}", self.tensor(value.name)) for k, value in enumerate(graph.output)]
            self.bodies[self.body] = Body(attribute, inputs, frozenset(constants), around[0], self.path)
            ids.append(self.body)
            self.outer.pop()
            self.body, self.path, self.ids = around
        return tuple(ids), tuple(results)

    def is_constant(self, tensor: int) -> bool:
        return tensor in self.constants or tensor in self.computed_constants

    def infer_types(self, inputs: list[onnx.ValueInfoProto]) -> dict[str, TensorType]:
        """Return tensor name → type from ONNX's inference over the whole model without its large weights.

        The shapes that the file declares count only for tensors whose shape inference does not give, because they are
        often out of date, for example after a change of the batch size.

        Args:
          inputs: the declarations of the inputs with the sizes to use.
        """
        source = self.proto.graph
        types = self.inferred(inputs, declared=False)
        # With symbols the declared shapes cannot help: the file's dimension names differ from ours.
        in_symbols = any(symbolic.is_symbolic(tensor_type(value.type)) for value in inputs) or bool(self.shapes)
        unknown = (name for node in source.node for name in node.output if types.get(name, _UNKNOWN).shape is None)
        if not in_symbols and any(unknown):
            declared = self.inferred(inputs, declared=True)
            types |= {name: kind for name, kind in declared.items() if types.get(name, _UNKNOWN).shape is None}
        return types

    def inferred(self, inputs: list[onnx.ValueInfoProto], declared: bool) -> dict[str, TensorType]:
        """Return tensor name → type from one run of ONNX's inference.

        Args:
          inputs: the declarations of the inputs with the sizes to use.
          declared: True to let the inference use the shapes that the file declares for other tensors.
        """
        light = onnx.ModelProto()
        light.CopyFrom(_without_graph(self.proto))
        light.ir_version = max(self.proto.ir_version, 4)
        graph, source = light.graph, self.proto.graph
        graph.name = source.name
        graph.node.extend(map(for_inference, source.node))
        graph.output.extend(source.output if declared else map(_without_shape, source.output))
        names = {value.name for value in inputs}
        graph.input.extend(inputs)
        for tensor in source.initializer:
            if tensor.name in names:
                continue
            if _size(tensor) <= SHAPE_VALUE_LIMIT:
                graph.initializer.append(tensor)
            else:
                graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        if declared:
            graph.value_info.extend(source.value_info)
        try:
            graph = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
        except (onnx.shape_inference.InferenceError, RuntimeError) as error:
            raise RLFlowError(f"shape inference fails: {first_line(error)}") from error
        # graph.output keeps the declared types; value_info contains the inferred types and takes precedence.
        values = [*graph.output, *graph.value_info, *graph.input]
        types = {value.name: tensor_type(value.type) for value in values}
        return {name: kind for name, kind in types.items() if kind is not None}


_UNKNOWN = TensorType(onnx.TensorProto.UNDEFINED, None)


def _without_shape(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    result = onnx.ValueInfoProto()
    result.CopyFrom(value)
    if value.type.HasField("tensor_type"):
        result.type.tensor_type.ClearField("shape")
    return result


def is_constant_node(op: str, domain: str, subgraph: bool, inputs_known: list[bool]) -> bool:
    """Return True if a node's outputs are known before the model runs.

    Args:
      op, domain: the operator; operators of other domains are never constant, since they may have hidden state.
      subgraph: True if an attribute contains a subgraph.
      inputs_known: for each present input, True if the input is constant.
    """
    return domain == "" and op not in MAY_DRAW and not subgraph and all(inputs_known)


def has_subgraph(attributes) -> bool:
    return any(
        isinstance(value, Opaque)
        and onnx.AttributeProto.FromString(value.data).type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        for _, value in attributes
    )


def constant_of(proto: onnx.TensorProto, folder: str) -> Constant:
    """Return the constant of a tensor; it is read once now for its digest, and again at each `load()`.

    Args:
      proto: the tensor, with its data inside or in an external file.
      folder: folder of the model, for external data.
    """

    def load() -> np.ndarray:
        try:
            return numpy_helper.to_array(proto, folder)
        except (OSError, ValueError, TypeError, KeyError, onnx.checker.ValidationError) as error:
            where = "external " if proto.data_location == onnx.TensorProto.EXTERNAL else ""
            raise RLFlowError(f"cannot read the {where}weight '{proto.name}': {first_line(error)}") from error

    return Constant.lazy(load(), load)


def _is_literal(node: onnx.NodeProto) -> bool:
    """Return True if the node is a Constant that becomes a weight; sparse and string Constants stay nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or not node.attribute:
        return False
    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t.data_type != onnx.TensorProto.STRING
    return attribute.name in ("value_int", "value_ints", "value_float", "value_floats")


def _size(tensor: onnx.TensorProto) -> int:
    """Return the number of elements that a tensor's declared shape gives."""
    return math.prod(tensor.dims)


def _constant_value(attribute: onnx.AttributeProto, folder: str) -> Constant:
    """Return the constant in the attribute of a Constant node; `folder` is the folder of the model's external data."""
    if attribute.name == "value":
        return constant_of(attribute.t, folder)
    dtype = np.int64 if attribute.name in ("value_int", "value_ints") else np.float32
    return Constant.of(np.array(helper.get_attribute_value(attribute), dtype))


def _attribute_value(attribute: onnx.AttributeProto, domain: str):
    kinds = onnx.AttributeProto
    if attribute.ref_attr_name or attribute.type not in (
        kinds.INT, kinds.FLOAT, kinds.STRING, kinds.INTS, kinds.FLOATS, kinds.STRINGS
    ):
        return Opaque(attribute.SerializeToString(deterministic=True))
    value = helper.get_attribute_value(attribute)
    if domain and value == []:  # Without a schema, the element type of an empty list is unknown.
        return Opaque(attribute.SerializeToString(deterministic=True))
    return tuple(value) if attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS) else value


def _without_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model without its graph, whose weights may be large."""
    copy = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        else:
            setattr(copy, field.name, value)
    return copy
