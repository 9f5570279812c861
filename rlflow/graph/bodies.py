"""Bodies of If, Loop and Scan, whose nodes become nodes of the whole graph, and functions, whose calls are inlined.

The node with a body in an attribute is the owner of the body. A rewrite may read an outer tensor inside a body, but it
never matches nodes of two bodies. The tensors that an owner feeds into a body have no producer and are not constant.
Their types hold for every run of the body: if the body keeps the type of the initial value of a carried tensor, the
tensor has this type in every run, by induction. Otherwise its shape is unknown.

Other subgraphs stay unchanged in their attributes: bodies of other operators, bodies that are nested deeper than
MAX_DEPTH, and bodies in which a name has two meanings.
"""

from collections.abc import Iterator

import onnx
import onnx.inliner
import onnx.version_converter

from rlflow.graph.dims import Dim
from rlflow.graph.ir import ABSENT, Node, Opaque, TensorType
from rlflow.graph.repairs import refusal
from rlflow.graph.shapes import known_value, tensor_type

SINCE = {"If": 1, "Loop": 1, "Scan": 9}  # operator → oldest opset in which its bodies are read
MAX_DEPTH = 4  # deepest nesting of bodies that are read; each level multiplies the number of inferences by up to RUNS
RUNS = 3  # largest number of inferences of one body for one inference of the graph around it
MAX_TRIPS = 1_000_000  # a larger number of trips means "until the condition ends the loop"


def graphs_of(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """Return attribute name → graph for the graphs in a node's attributes, by name; lists of graphs are ignored."""
    graphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH and not a.ref_attr_name}
    return dict(sorted(graphs.items()))


def can_be_read(node: onnx.NodeProto, domain: str, opset: int, outer: list[set[str]]) -> bool:
    """Return True if the bodies of a node can become nodes of the graph.

    Args:
      node: the node.
      domain, opset: its domain and the version of the domain that the model imports.
      outer: the names that each enclosing graph defines, the main graph first.
    """
    if domain or opset < SINCE.get(node.op_type, opset + 1) or len(outer) > MAX_DEPTH:
        return False
    graphs, given = list(graphs_of(node).values()), len(node.input)
    if node.op_type == "If":
        fits = len(graphs) == 2 and all(len(graph.output) == len(node.output) for graph in graphs)
    else:
        carried_first = node.op_type == "Loop"
        fits = len(graphs) == 1 and given == len(graphs[0].input) and all(node.input[2 * carried_first :])
        fits = fits and len(graphs[0].output) == len(node.output) + carried_first
        fits = fits and (given - 2 <= len(node.output) if carried_first else _has_scan_counts(node))
    return fits and all(_has_unique_names(graph, outer) for graph in graphs)


def _has_scan_counts(node: onnx.NodeProto) -> bool:
    """Return True if a Scan has as many inputs and axes as its attributes say."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    scanned = attributes["num_scan_inputs"].i if "num_scan_inputs" in attributes else 0
    axes = attributes["scan_input_axes"].ints if "scan_input_axes" in attributes else ()
    states = len(node.input) - scanned
    return scanned >= 0 and 0 <= states <= len(node.output) and len(axes) in (0, scanned)


def _has_unique_names(graph: onnx.GraphProto, outer: list[set[str]]) -> bool:
    names = list(defined(graph))
    single = len(names) == len(set(names)) and all(type(name) is str for name in names)
    plain = not graph.sparse_initializer and not graph.quantization_annotation
    return single and plain and all(known.isdisjoint(names) for known in outer)


def defined(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph defines, without the names inside its nodes."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (name for node in graph.node for name in node.output if name)


def declarations(attribute: onnx.AttributeProto) -> Opaque:
    """Return a copy of a graph attribute without the nodes and weights of the graph, for the owner of the body."""
    kept = onnx.AttributeProto(name=attribute.name, type=attribute.type, doc_string=attribute.doc_string or None)
    for field, value in attribute.g.ListFields():
        if field.name in ("node", "initializer"):
            continue
        if field.is_repeated:
            getattr(kept.g, field.name).extend(value)
        else:
            setattr(kept.g, field.name, value)
    kept.g.SetInParent()
    return Opaque(kept.SerializeToString(deterministic=True))


def declared(values) -> list[TensorType | None]:
    """Return the declared types of the inputs of a body, without shapes that are not all numbers."""
    kinds = []
    for value in values:
        kind = tensor_type(value.type)
        numbers = all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        kinds.append(kind if kind is None or numbers else kind._replace(shape=None))
    return kinds


# -- types of the tensors that an owner feeds ------------------------------------------------------


def carried(node: Node) -> list[tuple[int, int, int, int]]:
    """Return the places of each tensor that a Loop or Scan carries from one run of its body to the next.

    Returns:
      (position among the node's inputs, the body's inputs, the body's outputs, the node's outputs) for each tensor.
    """
    if node.op == "Loop":
        return [(k + 2, k + 2, k + 1, k) for k in range(len(node.inputs) - 2)]
    return [(k, k, k, k) for k in range(len(node.inputs) - node.attribute("num_scan_inputs", 0))]


def first_types(node: Node, kinds: list[TensorType | None], given: list[TensorType | None]) -> list[TensorType | None]:
    """Return the types of the inputs of a body in its first run.

    Args:
      node: the owner of the body.
      kinds: types of the owner's inputs.
      given: declared types of the body's inputs.
    """
    result = list(given)
    for source, inside, _, _ in carried(node):
        known = kinds[source]
        if known is not None and known.shape is not None:
            result[inside] = TensorType(known.dtype, known.shape)
    if node.op == "Scan":
        states, axes = len(carried(node)), node.attribute("scan_input_axes", ())
        for k, kind in enumerate(kinds[states:]):
            if kind is not None and kind.shape:
                axis = (axes[k] if axes else 0) % len(kind.shape)
                result[states + k] = TensorType(kind.dtype, (*kind.shape[:axis], *kind.shape[axis + 1 :]))
    return result


def runs_of(graph, node: Node) -> int | Dim:
    """Return the number of runs of the body of a node; 1 if the number is not known.

    Args:
      graph: an object with the types and constants of a Graph.
      node: the owner of the body.
    """
    if node.op == "Scan":
        states, axes = len(carried(node)), node.attribute("scan_input_axes", ())
        kind = graph.types.get(node.inputs[states]) if len(node.inputs) > states else None
        return kind.shape[(axes[0] if axes else 0) % len(kind.shape)] if kind is not None and kind.shape else 1
    if node.op == "Loop" and node.inputs[0] != ABSENT:
        trips = known_value(graph, node.inputs[0])
        if trips is not None and trips.size == 1:
            number = trips.reshape(-1)[0]
            return number if type(number) is Dim else int(max(number, 0)) if number <= MAX_TRIPS else 1
    return 1


# -- functions -------------------------------------------------------------------------------------


CANNOT_BE_INLINED = (onnx.checker.ValidationError, onnx.version_converter.ConvertError, RuntimeError, ValueError)


def inlined(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a model without calls of its own functions, and the names of the functions.

    A function of another opset is converted to the model's. If the conversion fails, the model is returned unchanged.
    """
    if not model.functions:
        return model, ()
    try:
        result = onnx.inliner.inline_local_functions(model, convert_version=True)
        if refusal(result, None, lenient=True) is not None:
            return model, ()
    except CANNOT_BE_INLINED:
        return model, ()
    left = {function.name for function in result.functions}
    return result, tuple(sorted({function.name for function in model.functions} - left))
