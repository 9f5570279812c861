"""How long ONNX Runtime takes for a group of operators alone, and the signature under which the timing is kept.

A signature holds all that the cost of an operator may depend on; it is equal in every process.

A group is timed as a small model that is optimised like a user's model. Blocked operators are timed in blocks: the
small model gets a convolution in front of every blocked input, ONNX Runtime optimises it, and then the part before
those inputs and the reorders behind the outputs are removed. The rest is what the whole graph runs.

With several threads the threads are kept awake. Between two runs they sleep, and the first operator that needs them
waits some microseconds, which a whole graph pays once and each separate kernel would pay again. So another operator
beside the group wakes the threads (`roused`), also in the empty model whose time is subtracted. With two threads the
sum of the kernels is 0.92, 0.99 and 1.04 of the latency of BERT-Base, DenseNet-121 and ShuffleNetV2; without waking it
would be 0.94, 1.11 and 1.29.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from rlflow.common.errors import first_line
from rlflow.common.system import interruptions
from rlflow.costs.kernel_layout import NoTimingOfItsOwn, block, is_scale, optimised
from rlflow.graph.ir import ABSENT, Constant, Graph, Interface, Node, Opaque, TensorType
from rlflow.graph.onnx_reader import has_subgraph
from rlflow.graph.onnx_runtime import random_inputs, session
from rlflow.graph.onnx_writer import constant_cone, evaluate, to_model

CONTENT_LIMIT = 64  # elements; longer integer constants are weights or indices, whose content costs nothing
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def signature(graph: Graph, node: Node) -> tuple:
    """Operator, opset, attributes, types of inputs and outputs, and which inputs are constant.

    Of constants that steer what is computed (integers such as shapes and axes, and single numbers such as
    an exponent) the content counts too, and of computed tensors where it follows from sizes. Names and ids do not.
    Hashable; `text` writes it down.
    """
    inputs = (*node.inputs, *(tensor for _, tensor in node.captured)) if node.captured else node.inputs
    return (
        node.domain,
        node.op,
        graph.opset(node.domain),
        node.attributes,
        tuple([_input(graph, tensor) for tensor in inputs]),
        tuple([graph.types.get(tensor) for tensor in node.outputs]),
    )


def group_signature(graph: Graph, group: tuple[Node, ...]) -> tuple:
    """The signatures of nodes in topological order; of several nodes also which inputs are the same tensors."""
    if len(group) == 1:
        return (signature(graph, group[0]),)
    positions: dict[int, int] = {}
    return tuple(
        [
            (
                signature(graph, node),
                tuple([positions.setdefault(tensor, len(positions)) for tensor in (*node.inputs, *node.outputs)]),
            )
            for node in group
        ]
    )


def _input(graph: Graph, tensor: int) -> tuple | None:
    if tensor == ABSENT:
        return None
    constant = graph.constants.get(tensor)
    if constant is None:
        return graph.types.get(tensor), graph.is_constant(tensor), None
    return constant.type, True, constant.digest[:16] if has_content(constant.type) else None


@cache
def has_content(kind: TensorType) -> bool:
    """Whether the content of a constant of this type is part of a signature."""
    return kind.size == 1 or (kind.size <= CONTENT_LIMIT and kind.dtype not in _FLOATS)


def text(part) -> str:
    """A signature in one line, long attributes as their hash. Equal signatures give equal text."""
    if isinstance(part, TensorType) and part.content is None:
        part = part[:2]  # as in the timings that are kept
    if isinstance(part, Opaque):
        return f"<{hashlib.sha256(part.data).hexdigest()[:16]}>"
    if isinstance(part, tuple):
        return f"({','.join(map(text, part))})"
    return repr(part)


NCHWC = "com.microsoft.nchwc"
WARM_UPS = 2
MIN_REPEATS = 3
SESSIONS = 8  # of one model, at most
MEMORY = 200_000_000  # bytes of their models together
PATIENCE = 10  # times the budget, for an operator whose runs are disturbed by other processes
ROUSING = 32  # rows of a product that a thread gets: ONNX Runtime gives none less than 65 536 multiplications
Z = 1.96
# Another process finds a median this share of it beside this one's, however many runs there were: of 62 kernels,
# timed in 5 processes each, two intervals of the same kernel then part in fewer than one of 10 pairs (in 4 without).
BETWEEN_SESSIONS = 0.03


class Timing(NamedTuple):
    """Median nanoseconds of a run, the interval in which it lies in other sessions too, and the number of runs."""

    median: float
    low: float
    high: float
    repeats: int

    @property
    def off(self) -> float:
        """Nanoseconds by which the median may be off."""
        return (self.high - self.low) / 2

    def and_again(self, other: "Timing") -> "Timing":
        """What is known after another time, in other sessions: the surer one of both counts more.

        It is off by no less than half of what lies between them.
        """
        weights = 1 / max(self.off, 1.0) ** 2, 1 / max(other.off, 1.0) ** 2
        median = (weights[0] * self.median + weights[1] * other.median) / sum(weights)
        off = max(sum(weights) ** -0.5, abs(self.median - other.median) / 2)
        return Timing(median, max(median - off, 0.0), median + off, self.repeats + other.repeats)

    @classmethod
    def of(cls, times: list[int]) -> "Timing":
        """Of the runs of one process."""
        return cls(*median_of(times), len(times))


def median_of(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """(the median of what runs of one process gave, the interval in which it lies in other processes too): its 95 %
    interval by order statistics, and BETWEEN_SESSIONS.
    """
    ordered = np.sort(np.asarray(values, float))
    around, last = Z * len(ordered) ** 0.5 / 2, len(ordered) - 1  # the median's rank is binomial
    low, high = int(len(ordered) / 2 - around), int(np.ceil(len(ordered) / 2 + around))
    median, low, high = (float(at) for at in (np.median(ordered), ordered[max(low, 0)], ordered[min(high, last)]))
    elsewhere = BETWEEN_SESSIONS * median
    low, high = median - math.hypot(median - low, elsewhere), median + math.hypot(high - median, elsewhere)
    return median, max(low, 0.0), high


# -- models ----------------------------------------------------------------------------------------


class Timed(NamedTuple):
    """What is timed: a model, whether ONNX Runtime still has to optimise it, inputs that are not drawn at random."""

    model: onnx.ModelProto
    optimise: bool = True
    given: Mapping[str, np.ndarray] = {}


def group_model(graph: Graph, group: tuple[Node, ...]) -> onnx.ModelProto:
    """A model of nothing but the nodes: constants stay constants (weights get random content), the rest are inputs.

    Raises NoTimingOfItsOwn for a subgraph or an input of unknown shape.
    """
    made, reads = _made_and_read(group)
    if any(node.captured or has_subgraph(node.attributes) for node in group):
        raise NoTimingOfItsOwn("it holds a subgraph")
    if any(graph.types.get(t) is None or graph.types[t].shape is None for t in reads):
        raise NoTimingOfItsOwn("the shape of an input is not known")
    constants = {t: _stand_in(graph, t) for t in reads if graph.is_constant(t)}
    inputs = [t for t in reads if t not in constants]
    inner = {t for node in group for t in node.inputs}
    outputs = [t for t in sorted(made) if t not in inner]
    template = onnx.ModelProto()
    template.CopyFrom(graph.interface.template)
    del template.graph.initializer[:]
    names = {tensor: f"t{tensor}" for tensor in (*reads, *made)}
    types = {t: graph.types[t] for t in (*reads, *made) if t in graph.types}
    declared = {t: helper.make_tensor_value_info(names[t], kind.dtype, kind.shape) for t, kind in types.items()}
    interface = Interface(
        template,
        tuple(declared[t] for t in inputs),
        tuple(declared.get(t, onnx.ValueInfoProto(name=names[t])) for t in outputs),
        names,
        graph.interface.opsets,
    )
    return to_model(Graph.build(interface, group, types, constants, inputs, outputs))


def known_inputs(graph: Graph, group: tuple[Node, ...]) -> dict[str, np.ndarray]:
    """The inputs of `group_model` whose content follows from the sizes: a target shape cannot be drawn at random.

    They stay inputs: as constants they would be folded into what reads them, which ONNX Runtime cannot do in a model
    with symbolic sizes.
    """
    result = {}
    for tensor in _made_and_read(group)[1]:
        kind = graph.types[tensor]
        if kind.content is not None and not graph.is_constant(tensor):
            dtype = helper.tensor_dtype_to_np_dtype(kind.dtype)
            result[f"t{tensor}"] = np.array(kind.content, dtype).reshape(kind.shape)
    return result


def _made_and_read(group: tuple[Node, ...]) -> tuple[set[int], list[int]]:
    """The tensors that the group computes, and those that it reads from outside."""
    made = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
    return made, [t for t in dict.fromkeys(t for node in group for t in node.reads()) if t not in made]


def _stand_in(graph: Graph, tensor: int) -> Constant:
    """A constant of the tensor's type. Content that steers the operator is kept, weights become random; scales of
    integers are kept, as ONNX Runtime asks that those of an offset be products of others."""
    kind = graph.types[tensor]
    if tensor not in graph.constants:
        cone = constant_cone(graph, tensor)
        return Constant.of(evaluate(graph, [n for n in graph.order if n in cone], [tensor])[0])
    if has_content(kind) or kind.dtype != TensorProto.FLOAT or is_scale(graph, tensor):
        return graph.constants[tensor]
    # Away from zero: a variance must be positive, and denormal numbers are slow.
    return Constant("", kind, lambda: np.random.default_rng(0).random(kind.shape, np.float32) + np.float32(0.5))


def empty_model() -> onnx.ModelProto:
    """A model whose only node is folded at load: a run of it is ONNX Runtime's overhead."""
    one = helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])
    return _model([helper.make_node("Identity", ["c"], ["y"])], [("x", [1])], [("y", [1])], [one])


def roused(model: onnx.ModelProto, threads: int) -> onnx.ModelProto:
    """The model, and beside it a product of matrices of which every one of the threads gets a part."""
    shapes = {"rouse a": [ROUSING * threads, 2 * ROUSING], "rouse b": [2 * ROUSING, 2 * ROUSING]}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for name, shape in shapes.items():
        result.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    product = helper.make_tensor_value_info("rouse", TensorProto.FLOAT, shapes["rouse a"])
    result.graph.output.append(product)
    result.graph.node.insert(0, helper.make_node("MatMul", list(shapes), [product.name]))
    return result


def reorder_model(op: str, kind: TensorType) -> onnx.ModelProto:
    """ReorderInput or ReorderOutput of a tensor [batch, channels, height, width]."""
    image, blocks = ("image", list(kind.shape)), ("blocks", blocked_shape(kind))
    given, made = (image, blocks) if op == "ReorderInput" else (blocks, image)
    channels = {} if op == "ReorderInput" else {"channels": kind.shape[1]}
    return _model([helper.make_node(op, [given[0]], [made[0]], domain=NCHWC, **channels)], [given], [made])


def _model(nodes, inputs, outputs, weights=()) -> onnx.ModelProto:
    given, made = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in values] for values in (inputs, outputs)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(
        helper.make_graph(nodes, "alone", given, made, list(weights)), opset_imports=opsets, ir_version=8
    )


# -- blocks ----------------------------------------------------------------------------------------


def blocked_shape(kind: TensorType) -> list[int]:
    """[batch, channels, height, width] with the channels filled up to whole blocks."""
    batch, channels, *image = kind.shape
    return [batch, -(-channels // block()) * block(), *image]


def in_blocks(model: onnx.ModelProto, blocked: dict[str, TensorType]) -> onnx.ModelProto:
    """The optimised model, with the inputs that `blocked` names, and all outputs that can be, in blocks."""
    graph = model.graph
    for name, kind in blocked.items():
        (given,) = [value for value in graph.input if value.name == name]
        graph.output.append(given)  # a second reader, so that nothing is fused into the convolution
        graph.input.remove(given)
        graph.input.append(
            helper.make_tensor_value_info(f"image of {name}", kind.dtype, [kind.shape[0], 1, *kind.shape[2:]])
        )
        weight = np.ones((kind.shape[1], 1, 1, 1), np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(weight, f"weight of {name}"))
        graph.node.insert(0, helper.make_node("Conv", [f"image of {name}", f"weight of {name}"], [name]))
    result = optimised(model)
    return _without_borders(result, blocked)


def _without_borders(model: onnx.ModelProto, blocked: dict[str, TensorType]) -> onnx.ModelProto:
    graph = model.graph
    made = {tensor: node for node in graph.node for tensor in node.output}
    images = {f"image of {name}": kind for name, kind in blocked.items()}
    borders = [node for node in graph.node if node.input and node.input[0] in images]
    inputs = [
        helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, blocked_shape(images[n.input[0]]))
        for n in borders
    ]
    inputs += [value for value in graph.input if value.name not in images]
    outputs = []
    for value in graph.output:
        border = made.get(value.name)
        if border is None or border.domain != NCHWC or border.op_type != "ReorderOutput" or _channels_last(border):
            outputs.append(value)
            continue
        borders.append(border)
        if value.name not in blocked:
            kind = TensorType(TensorProto.FLOAT, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim))
            outputs.append(helper.make_tensor_value_info(border.input[0], TensorProto.FLOAT, blocked_shape(kind)))
    kept = [node for node in graph.node if node not in borders]
    read = {name for node in kept for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    cut = helper.make_graph(kept, "alone", inputs, outputs, weights)
    return helper.make_model(cut, opset_imports=model.opset_import, ir_version=model.ir_version)


def _channels_last(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)


# -- time ------------------------------------------------------------------------------------------


def time_model(
    model: onnx.ModelProto, threads: int, budget_ms: float, optimise: bool = True,
    given: Mapping[str, np.ndarray] | None = None,
) -> Timing:  # fmt: skip
    """Times runs of a model on random inputs, but for those that are `given`, in several sessions by turns.

    So weights come from as far away as they do in a whole graph, and no session's memory layout decides. With one
    thread it is the thread's own time that counts, which other processes do not stop; with more the model is `roused`.
    Runs during which the system took the core away do not count, where it says so and enough others are had for
    patience.

    Raises NoTimingOfItsOwn if ONNX Runtime refuses.
    """
    sessions = max(1, min(SESSIONS, MEMORY // max(model.ByteSize(), 1)))
    model = roused(model, threads) if threads > 1 else model
    try:
        inputs = random_inputs(model, seed=0) | dict(given or {})
        runs = [_bound(session(model, threads, optimise), inputs) for _ in range(sessions)]
        for _ in range(WARM_UPS):
            for run in runs:
                run()
    except Exception as error:  # ONNX Runtime raises its own, undocumented classes
        raise NoTimingOfItsOwn(first_line(error)) from error
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    calm, all_times = [], []
    start = time.perf_counter_ns()
    while True:
        for run in runs:
            interrupted = interruptions()
            before = clock()
            run()
            taken = clock() - before
            all_times.append(taken)
            if interruptions() == interrupted:
                calm.append(taken)
        spent = (time.perf_counter_ns() - start) / (1e6 * budget_ms)
        if spent > PATIENCE or (spent > 1 and len(calm) >= MIN_REPEATS):
            break
    return Timing.of(calm if len(calm) >= MIN_REPEATS else all_times)


def _bound(running: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> Callable[[], None]:
    """A run of the session that copies nothing in or out."""
    binding = running.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for output in running.get_outputs():
        binding.bind_output(output.name)
    return lambda: running.run_with_iobinding(binding)
