"""Random models with bodies: stretches of a model's nodes move into an If, a Loop or a Scan, also into several nested.

The new node gives the tensors that nodes after the stretch read. Inside the body all other tensors are captured, except
for one that a Loop carries or a Scan slices. A Loop and a Scan run up to three times, and the results of the last run
are taken.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_runtime import session

MOST_BODIES = 3
MOST_RUNS = 3
LONGEST = 8  # largest number of nodes that move into one body


def in_bodies(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with up to three stretches of its nodes in bodies, or unchanged if ONNX Runtime refuses that.

    Args:
        model: a model without subgraphs.
        seed: seed of the choices.
    """
    rng = np.random.default_rng([seed, 43])
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for number in range(int(rng.integers(1, MOST_BODIES + 1))):
        _Stretch(result, f"body{number}", rng).move()
    try:
        session(result, 1, optimise=False)
    except RLFlowError:
        return model
    return result


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node or its subgraphs read from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        made = {value.name for value in attribute.g.input}
        for inner in attribute.g.node:
            yield from (name for name in reads(inner) if name not in made)
            made.update(inner.output)


class _Stretch:
    """Successive nodes of a model, chosen at random, that move into the body of a new node.

    Args:
        model: the model, which `move` changes.
        prefix: beginning of all new names.
        rng: the random generator.
    """

    def __init__(self, model: onnx.ModelProto, prefix: str, rng: np.random.Generator):
        self.graph, self.prefix, self.rng = model.graph, prefix, rng
        graph = onnx.shape_inference.infer_shapes(model).graph
        values = [*graph.input, *graph.value_info, *graph.output]
        self.kinds = {value.name: value.type.tensor_type for value in values}
        self.kinds |= {t.name: _tensor_type(t) for t in graph.initializer}
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
        first = int(rng.integers(len(nodes)))
        last = int(rng.integers(first, min(len(nodes), first + LONGEST))) + 1
        self.before, self.inside, self.after = nodes[:first], nodes[first:last], nodes[last:]
        self.made = {name for node in self.inside for name in node.output if name}
        later = {name for node in self.after for name in reads(node)} | {value.name for value in graph.output}
        self.results = [name for node in self.inside for name in node.output if name in later]
        given = {name for node in self.inside for name in reads(node)} - self.made
        self.given = sorted(name for name in given if name in self.kinds and self.kinds[name].HasField("shape"))

    def move(self) -> None:
        """Move the nodes, unless no later node reads a result of them or the rank of a result is not known."""
        known = {name for name, kind in self.kinds.items() if kind.HasField("shape")}
        if not self.results or not known.issuperset(self.results):
            return
        makers = [self.branches, self.loop] + [self.scan] * bool(self.given)
        nodes = makers[int(self.rng.integers(len(makers)))]()
        del self.graph.node[:]
        self.graph.node.extend([*self.before, *nodes, *self.after])
        kept = [value for value in self.graph.value_info if value.name not in self.made]
        del self.graph.value_info[:]
        self.graph.value_info.extend(kept)

    def body(self, name: str, inputs: list, outputs: list, renamed: dict[str, str], more: list) -> onnx.GraphProto:
        """Return a graph with the nodes of the stretch.

        Args:
            name: ending of the names of its results.
            inputs: declarations of the inputs.
            outputs: declarations of the outputs before the results of the stretch.
            renamed: outer name → name inside, for tensors that are inputs.
            more: further nodes.
        """
        names = {result: f"{self.prefix}_{result}_{name}" for result in self.made} | renamed
        nodes = [_renamed(node, names) for node in self.inside]
        values = [onnx.ValueInfoProto(name=names[result], type=self.type(result, 1.0)) for result in self.results]
        return helper.make_graph([*more, *nodes], f"{self.prefix}_{name}", inputs, [*outputs, *values])

    def type(self, name: str, shaped: float = 0.5) -> onnx.TypeProto:
        """Return the type of a tensor, with its shape with the probability `shaped`.

        ONNX Runtime needs the rank of each result of a Scan.
        """
        kind = onnx.TypeProto()
        kind.tensor_type.elem_type = self.kinds[name].elem_type
        if self.kinds[name].HasField("shape") and self.rng.random() < shaped:
            for size in self.kinds[name].shape.dim:
                kind.tensor_type.shape.dim.add().CopyFrom(size)
            kind.tensor_type.shape.SetInParent()
        return kind

    def weight(self, name: str, values, dtype=np.int64) -> str:
        name = f"{self.prefix}_{name}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def branches(self) -> list[onnx.NodeProto]:
        """Return an If on a new input whose branches compute the same in nodes of their own."""
        condition = f"{self.prefix}_condition"
        self.graph.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
        both = {f"{name}_branch": self.body(name, [], [], {}, []) for name in ("then", "else")}
        return [helper.make_node("If", [condition], self.results, **both)]

    def loop(self) -> list[onnx.NodeProto]:
        """Return a Loop with a tensor that stays as it is, and Gathers of the results of the last run."""
        runs, p = int(self.rng.integers(1, MOST_RUNS + 1)), self.prefix
        inputs = [
            helper.make_tensor_value_info(f"{p}_run", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{p}_on", TensorProto.BOOL, []),
        ]
        outputs, more = [helper.make_tensor_value_info(f"{p}_on2", TensorProto.BOOL, [])], []
        more.append(helper.make_node("Identity", [f"{p}_on"], [f"{p}_on2"]))
        carried = [self.given[int(self.rng.integers(len(self.given)))]] if self.given else []
        for name in carried:
            inputs.append(onnx.ValueInfoProto(name=f"{p}_{name}_held", type=self.type(name)))
            outputs.append(onnx.ValueInfoProto(name=f"{p}_{name}_next", type=self.type(name)))
            more.append(helper.make_node("Identity", [f"{p}_{name}_held"], [f"{p}_{name}_next"]))
        body = self.body("loop", inputs, outputs, {name: f"{p}_{name}_held" for name in carried}, more)
        given = [self.weight("runs", runs), "", *carried]
        final = [f"{p}_{name}_last" for name in carried]
        return self.last_of("Loop", given, final, runs, body=body)

    def scan(self) -> list[onnx.NodeProto]:
        """Return a Scan over copies of a tensor that the stretch reads, and Gathers of the results of the last run."""
        runs, p = int(self.rng.integers(1, MOST_RUNS + 1)), self.prefix
        name = self.given[int(self.rng.integers(len(self.given)))]
        shape = self.weight("copies", [runs, *[1] * len(self.kinds[name].shape.dim)])
        inputs = [onnx.ValueInfoProto(name=f"{p}_{name}_slice", type=self.type(name))]
        body = self.body("scan", inputs, [], {name: f"{p}_{name}_slice"}, [])
        copies = helper.make_node("Expand", [name, shape], [f"{p}_{name}_copies"])
        return [copies, *self.last_of("Scan", [f"{p}_{name}_copies"], [], runs, body=body, num_scan_inputs=1)]

    def last_of(self, op: str, given: list[str], final: list[str], runs: int, **attributes) -> list[onnx.NodeProto]:
        """Return a Loop or Scan and a Gather of the last of each result.

        Args:
            op: the operator.
            given: names of its inputs.
            final: names of its outputs before the results.
            runs: number of runs.
            attributes: its attributes.
        """
        last, stacked = self.weight("last", runs - 1), [f"{self.prefix}_{name}_all" for name in self.results]
        owner = helper.make_node(op, given, [*final, *stacked], **attributes)
        results = zip(stacked, self.results, strict=True)
        return [owner, *(helper.make_node("Gather", [every, last], [name], axis=0) for every, name in results)]


def _tensor_type(tensor: TensorProto) -> onnx.TypeProto.Tensor:
    return helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    """Return a copy of a node, and of the nodes in its subgraphs, that uses other names.

    Args:
        node: the node.
        names: old name → new name.
    """
    copy = onnx.NodeProto.FromString(node.SerializeToString())
    copy.input[:] = [names.get(name, name) for name in copy.input]
    copy.output[:] = [names.get(name, name) for name in copy.output]
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            inner = [_renamed(each, names) for each in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(inner)
    return copy
