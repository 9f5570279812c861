"""Operators that draw random numbers, and the tensors that depend on a draw.

Two runs of a model that draws give different outputs, so an output that depends on a draw cannot be compared between
two models. An operator with the attribute `seed` draws other numbers in each run of a session; only the n-th runs of
two new sessions agree. Sessions are run more than once here, so seeded operators count as draws, too.

Rewrites leave draws alone: no pattern matches a draw (`Attempt.accepts`), a draw whose result is not read stays in the
graph (`Graph._remove_dead`), and two equal draws stay two (`EGraph`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from rlflow.graph import contrib
from rlflow.graph.repairs import free_names, plain_domain, subgraphs

RANDOM_OPS = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
RUNTIME_RANDOM_OPS = frozenset(("Sampling", "BiasDropout", "BitmaskDropout", "BitmaskBiasDropout"))
MAX_DEPTH = 50  # a node that is nested deeper in functions and subgraphs counts as a draw, without further inspection

Functions = Mapping[tuple[str, str, str], onnx.FunctionProto]
Known = Mapping[str, np.ndarray]  # name of a constant with one element → its content


class Draws:
    """The draws of one model.

    Attributes:
      counts: operator → number of its nodes that draw; a node in a function counts once for each call of the function.
      tensors: names of the tensors of the main graph that depend on a draw.
      outputs, others: names of the outputs that depend on a draw, and of the other outputs.
    """

    def __init__(self, model: onnx.ModelProto):
        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        known = known_scalars(model.graph.initializer, model.graph.node)
        drawing = {k: list(drawn_by(node, functions, known)) for k, node in enumerate(model.graph.node)}
        self.counts = Counter(op for ops in drawing.values() for op in ops)
        self.tensors = _dependent(model.graph.node, {k for k, ops in drawing.items() if ops})
        names = dict.fromkeys(value.name for value in model.graph.output)
        self.outputs = [name for name in names if name in self.tensors]
        self.others = [name for name in names if name not in self.tensors]

    @property
    def text(self) -> str:
        """The names of the operators that draw, such as "Bernoulli, RandomNormal"."""
        return ", ".join(sorted(self.counts))


def drawn_by(node: onnx.NodeProto, functions: Functions, known: Known, depth: int = 0) -> Iterator[str]:
    """Yield the type of each operator that draws random numbers in a node, in its subgraphs and in called functions.

    Args:
      node: the node.
      functions: (domain, name, overload) → function of the model.
      known: the contents of constants that the node reads.
      depth: number of functions and subgraphs around the node.
    """
    domain = plain_domain(node.domain)
    body = functions.get((node.domain, node.op_type, node.overload))
    if depth > MAX_DEPTH:
        yield node.op_type
    elif body is not None:
        inner = known_scalars((), body.node)
        for each in body.node:
            yield from drawn_by(each, functions, inner, depth + 1)
    elif domain == "" and (node.op_type in RANDOM_OPS or (node.op_type == "Dropout" and _trains(node, known))):
        yield node.op_type
    elif domain == contrib.DOMAIN and node.op_type in RUNTIME_RANDOM_OPS:
        yield node.op_type
    for graph in subgraphs(node.attribute):
        inner = {**known, **known_scalars(graph.initializer, graph.node)}
        for each in graph.node:
            yield from drawn_by(each, functions, inner, depth + 1)


def _trains(node: onnx.NodeProto, known: Known) -> bool:
    """Return True if a Dropout may drop elements: it may be in training mode, and its ratio may be above 0."""
    if len(node.input) < 3 or not node.input[2]:
        return False
    mode, ratio = known.get(node.input[2]), known.get(node.input[1])
    return (mode is None or bool(mode)) and (ratio is None or float(ratio) != 0.0)


def known_scalars(weights: Iterable[onnx.TensorProto], nodes: Iterable[onnx.NodeProto]) -> dict[str, np.ndarray]:
    """Return name → content of the weights and Constants with one element that Dropouts may read.

    Args:
      weights: initialisers; external weights are unknown.
      nodes: the nodes of one graph or function, with the Dropouts and the Constants.
    """
    nodes = list(nodes)
    wanted = {name for node in nodes if node.op_type == "Dropout" for name in node.input[1:]}
    tensors = {tensor.name: tensor for tensor in weights if tensor.name in wanted}
    for node in nodes:
        if node.op_type == "Constant" and node.output[0] in wanted:
            tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return {
        name: numpy_helper.to_array(tensor).reshape(())
        for name, tensor in tensors.items()
        if list(tensor.dims) in ([], [1]) and tensor.data_location != onnx.TensorProto.EXTERNAL
    }


def _dependent(nodes: Iterable[onnx.NodeProto], drawing: set[int]) -> frozenset[str]:
    """Return the names of the tensors that depend on nodes that draw.

    Args:
      nodes: the nodes in any order.
      drawing: positions of the nodes that draw.
    """
    nodes = list(nodes)
    readers: dict[str, list[int]] = {}
    for k, node in enumerate(nodes if drawing else ()):
        for name in (*node.input, *free_names(node.attribute)):
            readers.setdefault(name, []).append(k)
    reached, waiting, names = set(drawing), list(drawing), set()
    while waiting:
        for name in nodes[waiting.pop()].output:
            names.add(name)
            new = [k for k in readers.get(name, ()) if k not in reached]
            reached.update(new)
            waiting += new
    return frozenset(names - {""})
