"""Models in half precision (float16, bfloat16), and their conversion to float32.

ONNX Runtime's CPU kernels compute most operators in float32 and convert every operand and every result. Two conversions
keep float32 between the operators:

- `twin` replaces half precision everywhere, inputs and outputs included. Its outputs are the reference for the error of
  the original and of rewritten models (rlflow/optimisation/validate/onnx_model.py).
- `widened` keeps inputs, outputs and large weights in half precision. Casts at the inputs, the outputs and the weights
  connect them with operators in float32. ONNX Runtime folds the casts of weights when it makes a session, so the file
  stays as small as the original and the session computes in float32.

A widened model rounds less often than the original, so its outputs differ within the original's rounding error. Scalars
of well-known formulas are not rounded at all (`MEANT`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.naming import FreshNames
from rlflow.graph.random_numbers import Draws
from rlflow.graph.repairs import subgraphs

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
LARGEST_TWIN_BYTES = 2**30  # largest size in bytes of the twin's converted weights; protobuf messages end at 2 GB
# Largest number of elements of a weight that is stored in float32, so that the rules see its content.
SMALL = 1024
# Numbers of formulas such as GELU. In a widened model, a scalar that is one of them, rounded to half precision, becomes
# the number itself: it is what the exporter meant, and rules recognise it in float32.
MEANT = (0.044715, math.sqrt(2 / math.pi), math.sqrt(0.5), math.sqrt(2), 1.702, 1 / 6)
# Names of attributes whose value is the data type of a result.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype", "stash_type")


def is_half(model: onnx.ModelProto) -> bool:
    """Return True if a weight, constant, input or output of the model is float16 or bfloat16."""
    values = (*model.graph.input, *model.graph.output)
    return any(tensor.data_type in HALVES for graph in graphs(model) for tensor in _tensors(graph)) or any(
        value.type.tensor_type.elem_type in HALVES for value in values
    )


def twin(model: onnx.ModelProto, folder: str) -> onnx.ModelProto:
    """Return a copy of the model with float32 instead of float16 and bfloat16, inputs and outputs included.

    Args:
      model: the model.
      folder: the folder of the model's external weights; "" if it has none.

    Raises:
      RLFlowError: the converted weights would have more than LARGEST_TWIN_BYTES.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    size = 0
    for graph in graphs(wide):
        for tensor in _tensors(graph):
            size += 4 * int(np.prod(tensor.dims)) if tensor.data_type in HALVES else 0
            if size > LARGEST_TWIN_BYTES:
                raise RLFlowError("the model is too large to be run in float32")
            _convert(tensor, folder)
        values = (*graph.input, *graph.output, *graph.value_info) if isinstance(graph, onnx.GraphProto) else ()
        _declare_float32(graph, values)
    return wide


def twin_arrays(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert half-precision inputs of a model to float32, for the model that `twin` returns.

    Args:
      model: the model before conversion.
      arrays: name of an input → value.
    """
    halves = {value.name for value in model.graph.input if value.type.tensor_type.elem_type in HALVES}
    return {name: array.astype(np.float32) if name in halves else array for name, array in arrays.items()}


def widened(model: onnx.ModelProto, folder: str, keep: Sequence[str] = ()) -> onnx.ModelProto:
    """Return a copy of the model that computes in float32 between its inputs and outputs.

    Inputs, outputs, and weights of more than SMALL elements keep their names and types. A Cast to float32 follows each
    such input and weight, and a Cast back to half precision makes each output.

    Args:
      model: the model; its functions must have been inlined.
      folder: the folder of the model's external weights; "" if it has none.
      keep: names of tensors and nodes that the user protected.

    Raises:
      RLFlowError: the model has functions of its own, or draws random numbers, whose values depend on the type; an
        input or output is a sequence or an optional value; or `keep` names a tensor.
    """
    _check_can_be_widened(model, keep)
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    main, *inner = graphs(wide)
    names = FreshNames(_names(main, *inner))
    ports = {value.name: value.type.tensor_type.elem_type for value in (*main.input, *main.output)}
    for graph in reversed(inner):  # an inner graph before the graph around it, whose nodes are copied
        _declare_float32(graph, (*graph.input, *graph.output, *graph.value_info))
        _widen(graph, {}, names, folder)
    _declare_float32(main, main.value_info)
    _widen(main, {name: kind for name, kind in ports.items() if kind in HALVES}, names, folder)
    return wide


def _widen(graph: onnx.GraphProto, ports: Mapping[str, int], names: FreshNames, folder: str) -> None:
    """Convert the weights of a graph to float32, or add Casts behind them, and add Casts at its ports.

    Args:
      graph: the graph, which is changed. Its declarations state float32 already.
      ports: name of an input or output that keeps its half precision → its type.
      names: the maker of names.
      folder: the folder of external weights.
    """
    given, made = {value.name for value in graph.input}, {name for node in graph.node for name in node.output}
    casted = [name for name in ports if name in given]  # tensors in half precision whose readers read a Cast
    for tensor in graph.initializer:
        if tensor.data_type in HALVES and tensor.name not in given:
            if _is_large(tensor) or tensor.name in ports:
                casted.append(tensor.name)
            else:
                _convert(tensor, folder, MEANT)
    literals = set()
    for node in graph.node:
        for tensor in _tensors_of(_attributes([node])):
            if tensor.data_type in HALVES and _is_large(tensor) and node.op_type == "Constant":
                literals.add(node.output[0])
            else:
                _convert(tensor, folder, MEANT)
    results = [name for name in ports if name in made and name not in literals]
    renamed = {name: names.new(f"{name} (float32)") for name in (*casted, *sorted(literals), *results)}
    nodes = [_cast(name, renamed[name], TensorProto.FLOAT) for name in casted]
    for node in graph.node:
        _rename_reads(node, renamed)
        nodes.append(node)
        for k, name in enumerate(node.output):
            if name in literals:
                nodes.append(_cast(name, renamed[name], TensorProto.FLOAT))
            elif name in renamed:
                node.output[k] = renamed[name]
    nodes += [_cast(renamed[name], name, ports[name]) for name in results]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    # Some exporters declare their weights, too. A weight that stays in half precision states its type itself.
    declared = [value for value in graph.value_info if value.name not in literals.union(casted)]
    kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in declared]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for value in graph.output:
        if value.name not in ports:
            value.name = renamed.get(value.name, value.name)


def _check_can_be_widened(model: onnx.ModelProto, keep: Sequence[str]) -> None:
    if model.functions:
        raise RLFlowError(f"the model keeps its precision, because it calls its function '{model.functions[0].name}'")
    if Draws(model).counts:
        raise RLFlowError("the model keeps its precision, because it draws random numbers, which depend on it")
    tensors = {name for node in model.graph.node for name in (*node.input, *node.output)}
    if protected := sorted(tensors & set(keep)):
        raise RLFlowError(f"the model keeps its precision, because --keep protects the tensor '{protected[0]}'")
    for value in (*model.graph.input, *model.graph.output):
        if not value.type.HasField("tensor_type"):
            raise RLFlowError(f"the model keeps its precision, because '{value.name}' is not a tensor")
        if not value.type.tensor_type.elem_type:
            raise RLFlowError(f"the model keeps its precision, because '{value.name}' declares no type")


def _cast(name: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [name], [result], name=f"{name} (cast)", to=kind)


def _rename_reads(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename the tensors that a node reads, also in its subgraphs unless a subgraph defines the name itself."""
    for k, name in enumerate(node.input):
        node.input[k] = renamed.get(name, name)
    for graph in subgraphs(node.attribute):
        own = {tensor.name for tensor in (*graph.initializer, *graph.input)}
        own |= {name for inner in graph.node for name in inner.output}
        rest = {name: new for name, new in renamed.items() if name not in own}
        for inner in graph.node:
            _rename_reads(inner, rest)
        for value in graph.output:
            value.name = rest.get(value.name, value.name)


def _convert(tensor: TensorProto, folder: str, meant: Sequence[float] = ()) -> None:
    """Convert a tensor in half precision to float32; leave other tensors unchanged.

    Args:
      tensor: the tensor, which is changed.
      folder: the folder of external weights.
      meant: numbers that replace a scalar that is one of them, rounded to half precision.
    """
    if tensor.data_type in HALVES:
        half = numpy_helper.to_array(tensor, folder)
        array = half.astype(np.float32)
        for number in meant if half.size == 1 else ():
            if np.asarray(number).astype(half.dtype) == half.reshape(()):
                array = np.full(half.shape, number, np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _is_large(tensor: TensorProto) -> bool:
    return int(np.prod(tensor.dims)) > SMALL


def _declare_float32(graph: onnx.GraphProto | onnx.FunctionProto, values: Iterable[onnx.ValueInfoProto] = ()) -> None:
    """Replace half precision by float32 in declarations, and in the types that attributes of nodes state.

    Args:
      graph: the graph with the nodes.
      values: the declarations.
    """
    for value in values:
        _widen_type(value.type)
    for attribute in _attributes(graph.node):
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in HALVES:
            attribute.i = TensorProto.FLOAT


def _widen_type(kind: onnx.TypeProto) -> None:
    """Replace half precision by float32 in a type, and in the elements of a sequence or an optional type."""
    match kind.WhichOneof("value"):
        case "tensor_type" if kind.tensor_type.elem_type in HALVES:
            kind.tensor_type.elem_type = TensorProto.FLOAT
        case "sequence_type" | "optional_type" as form:
            _widen_type(getattr(kind, form).elem_type)


def _names(*every: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors of some graphs."""
    names = {name for graph in every for node in graph.node for name in (*node.input, *node.output)}
    return names | {one.name for graph in every for one in (*graph.input, *graph.output, *graph.initializer)}


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    """Return the main graph, the functions, and the subgraphs in attributes of nodes."""
    waiting, result = [model.graph, *model.functions], []
    while waiting:
        graph = waiting.pop()
        result.append(graph)
        waiting.extend(subgraphs(_attributes(graph.node)))
    return result


def _attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    return (attribute for node in nodes for attribute in node.attribute)


def _tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> list[TensorProto]:
    """Return the initializers of a graph and the tensors in attributes of its nodes."""
    result = list(graph.initializer) if isinstance(graph, onnx.GraphProto) else []
    return [*result, *_tensors_of(_attributes(graph.node))]


def _tensors_of(attributes: Iterable[onnx.AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        yield from attribute.tensors
