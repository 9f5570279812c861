"""Accept models that ONNX Runtime runs although the ONNX checker refuses them.

Exporters and scripts write files without a name of the graph, with nodes in any order, or with outputs that declare no
shape. ONNX Runtime runs such files. `check_model` changes what can be changed without a change of meaning, and states
each change in words. Other faults are tolerated: an output without a type or a shape, or initialisers of an old file
that are no inputs. Such parts stay unchanged in an exported file. Only the copy for the checker is corrected.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import google.protobuf.message
import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph import contrib

NAME = "main_graph"  # the name of a graph that has none, as torch.onnx.export names it
# In the copy for the checker, operators that only ONNX Runtime knows get this domain, which the checker skips.
UNCHECKED = "rlflow.unchecked"
# Domains whose operators ONNX Runtime also finds if the model does not import them, and the version that it takes.
BUILT_IN = {contrib.DOMAIN: contrib.VERSION, "ai.onnx.ml": 3}
# Operators that ONNX Runtime finds in ONNX's own domain, also before the opset that defines them.
LEGACY = frozenset(("LayerNormalization", "SimplifiedLayerNormalization"))
REFUSALS = (
    checker.ValidationError, onnx.shape_inference.InferenceError, google.protobuf.message.EncodeError, ValueError,
    RuntimeError,
)  # fmt: skip


def check_model(model: onnx.ModelProto, path: Path | str | None = None) -> tuple[onnx.ModelProto, list[str]]:
    """Check a model, and repair a copy of it if ONNX Runtime accepts what the checker refuses.

    Args:
      model: the model; a model with a path may lack the contents of its external weights.
      path: the file of the model, whose external weights the checker looks for; None for a model in memory.

    Returns:
      The model or its repaired copy, and one text for each repair.

    Raises:
      RLFlowError: the checker refuses the model even after the repairs.
    """
    # Faults that need a repair although the checker does not see them.
    unseen = _has_two_opsets(model) or any(_negative_sizes(model.graph))
    if not unseen and refusal(model, path, lenient=False) is None:
        return model, []
    repaired = onnx.ModelProto()
    repaired.CopyFrom(model)
    done = list(_repairs(repaired))
    left = refusal(repaired, path, lenient=True)
    if left is not None:
        raise RLFlowError(f"the ONNX checker refuses {path or 'the model'}: {left}")
    return repaired, done


def refusal(model: onnx.ModelProto, path: Path | str | None, lenient: bool, full: bool = False) -> str | None:
    """Return the error message of the ONNX checker; None if the checker accepts the model.

    Args:
      model: the model.
      path: the file of the model; None for a model in memory.
      lenient: True to tolerate the faults that ONNX Runtime ignores (`_for_checker`). The checker then does not look
        for the external data of the main graph's weights.
      full: True to check the results of shape inference too.
    """
    try:
        checker.check_model(_for_checker(model) if lenient else str(path) if path else model, full_check=full)
    except REFUSALS as error:
        return first_line(error)
    return None


def _has_two_opsets(model: onnx.ModelProto) -> bool:
    return len({plain_domain(opset.domain) for opset in model.opset_import}) < len(model.opset_import)


def _negative_sizes(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorShapeProto.Dimension]]:
    """Yield (name of a tensor, dimension) for each declared dimension with a negative size, in subgraphs too."""
    inner = (body for node in all_nodes(graph.node) for body in subgraphs(node.attribute))
    for part in (graph, *inner):
        for value in (*part.input, *part.output, *part.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    yield value.name, dim


def clear_negative_sizes(graph: onnx.GraphProto) -> list[str]:
    """Make negative sizes unknown, as ONNX Runtime takes them, and return the names of their tensors, each once."""
    names: dict[str, None] = {}
    for name, dim in _negative_sizes(graph):
        dim.Clear()
        names[name] = None
    return list(names)


def plain_domain(domain: str) -> str:
    """Return the name of a domain of operators: "" for the standard domain, which may also be written "ai.onnx"."""
    return "" if domain == "ai.onnx" else domain


def _repairs(model: onnx.ModelProto) -> Iterator[str]:
    """Repair the model in place and yield one text for each repair."""
    graph, nodes = model.graph, list(all_nodes(model.graph.node))
    if not graph.name:
        graph.name = NAME
        yield "the graph has no name"
    if negative := clear_negative_sizes(graph):
        yield f"sizes of {', '.join(negative[:3])} are negative (unknown sizes, as in ONNX Runtime)"
    if _has_two_opsets(model):
        last = {plain_domain(opset.domain): opset.version for opset in model.opset_import}
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(*pair) for pair in last.items())
        yield "a domain is imported twice (the last version counts, as in ONNX Runtime)"
    if any(node.domain == "ai.onnx" for node in nodes):
        for entry in (*nodes, *model.opset_import):
            entry.domain = plain_domain(entry.domain)
        yield "the domain of nodes is written as ai.onnx"
    imported = {opset.domain for opset in model.opset_import}
    for domain in sorted({node.domain for node in nodes} & BUILT_IN.keys() - imported):
        model.opset_import.append(helper.make_opsetid(domain, BUILT_IN[domain]))
        yield f"the domain {domain} is used and not imported"
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for function in model.functions:
        others = [o for o in function.opset_import if versions.get(plain_domain(o.domain), o.version) != o.version]
        for opset in others:
            opset.version = versions[plain_domain(opset.domain)]
        if others:
            yield f"function {function.name} states another opset than the model (ONNX Runtime takes the model's)"
    yield from _repaired_weights(graph)
    if _sort(graph):
        yield "the nodes are not in topological order"


def _repaired_weights(graph: onnx.GraphProto) -> Iterator[str]:
    """Remove weights without a name, which nothing can read, and copies of equal weights; yield each repair as text."""
    kept: dict[str, onnx.TensorProto] = {}
    unnamed = repeated = 0
    for tensor in graph.initializer:
        if not tensor.name:
            unnamed += 1
        elif tensor.name not in kept:
            kept[tensor.name] = tensor
        elif kept[tensor.name] == tensor:
            repeated += 1
        else:
            return  # Two weights of one name differ; the checker refuses the model.
    if unnamed or repeated:
        kept = {name: onnx.TensorProto.FromString(tensor.SerializeToString()) for name, tensor in kept.items()}
        del graph.initializer[:]
        graph.initializer.extend(kept.values())
    if unnamed:
        yield "a weight has no name"
    if repeated:
        yield "a weight is stored twice"


def _sort(graph: onnx.GraphProto) -> bool:
    """Sort the nodes of a graph topologically; return False if nothing changed: they were sorted, or have a cycle."""
    producer = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    reads = []
    for node in graph.node:
        names = [*node.input, *free_names(node.attribute)]
        reads.append({producer[name] for name in names if name in producer})
    if all(source < k for k, sources in enumerate(reads) for source in sources):
        return False
    readers: dict[int, list[int]] = {}
    for k, sources in enumerate(reads):
        for source in sources:
            readers.setdefault(source, []).append(k)
    missing = [len(sources) for sources in reads]
    order = [k for k, count in enumerate(missing) if count == 0]
    for k in order:  # grows
        for reader in readers.get(k, ()):
            missing[reader] -= 1
            if missing[reader] == 0:
                order.append(reader)
    if len(order) < len(reads):
        return False
    nodes = [onnx.NodeProto.FromString(graph.node[k].SerializeToString()) for k in order]
    del graph.node[:]
    graph.node.extend(nodes)
    return True


def _for_checker(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without the faults that ONNX Runtime ignores: the checker then refuses only others."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if 0 < copy.ir_version < 4:
        copy.ir_version = 4  # Before version 4 the checker wants each weight among the inputs.
    for value in copy.graph.output:
        if not value.HasField("type"):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    for value in copy.graph.input:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()  # `check_shapes` refuses an input without a declared rank.
    version = next((opset.version for opset in copy.opset_import if opset.domain in ("", "ai.onnx")), 0)
    for node in all_nodes(copy.graph.node):
        if node.domain == "" and node.op_type in LEGACY and not defs.has(node.op_type, version, ""):
            node.domain = UNCHECKED
    copy.opset_import.append(helper.make_opsetid(UNCHECKED, 1))
    for tensor in copy.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(0, np.float32), tensor.name))
    return copy


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and all nodes of the subgraphs in their attributes."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for graph in subgraphs(node.attribute):
            stack.extend(graph.node)


def subgraphs(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs that attributes hold, without the subgraphs inside these."""
    for attribute in attributes:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def names_read(node: onnx.NodeProto) -> list[str]:
    """Return the names of the tensors that a node and the nodes in its subgraphs read."""
    inner = (each for body in subgraphs(node.attribute) for each in body.node)
    return [*node.input, *(name for each in inner for name in names_read(each))]


def tensors_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Yield the tensors in attributes of nodes and of all nodes in their subgraphs, and the subgraphs' initialisers."""
    for node in all_nodes(nodes):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in subgraphs(node.attribute):
            yield from graph.initializer


def free_names(attributes: Iterable[onnx.AttributeProto]) -> list[str]:
    """Return the names of outer tensors that the subgraphs in attributes read."""
    names: dict[str, None] = {}
    for graph in subgraphs(attributes):
        defined = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        defined |= {t.values.name for t in graph.sparse_initializer}
        for node in graph.node:
            read = (*node.input, *free_names(node.attribute))
            names.update((name, None) for name in read if name and name not in defined)
            defined.update(node.output)
        names.update((v.name, None) for v in graph.output if v.name not in defined)
    return list(names)
