"""Timings of groups of operators in ONNX Runtime, and the signatures under which timings are stored.

A signature holds everything that the cost of an operator may depend on. Equal operators have equal signatures in every
process.

A group is timed as a small model that ONNX Runtime optimises like a user's model. Blocked operators are timed in blocks
of channels: the small model gets a convolution in front of every blocked input, and ONNX Runtime optimises the model.
Then the operators before those inputs and the reorders behind the outputs are removed (`in_blocks`). The remaining
kernels are the kernels that ONNX Runtime runs in the whole graph.

With several threads, an additional operator in the small model wakes the threads (`roused`), because a whole graph
waits for sleeping threads only once.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from rlflow.common.errors import first_line
from rlflow.common.system import interruptions
from rlflow.costs.kernel_layout import NoTimingOfItsOwn, block, is_scale, optimised
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.ir import ABSENT, Constant, Graph, Interface, Node, Opaque, TensorType
from rlflow.graph.onnx_reader import has_subgraph
from rlflow.graph.onnx_runtime import session
from rlflow.graph.onnx_writer import constant_cone, evaluate, to_model

# Largest number of elements of an integer constant whose content is part of a signature. The content of longer integer
# constants (weights, indices) does not change the cost.
CONTENT_LIMIT = 64
DRAWN = 1 << 20  # number of random numbers that are drawn for a weight; a larger weight repeats the numbers
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def signature(graph: Graph, node: Node) -> tuple:
    """Return the signature of an operator: everything that its cost may depend on, as a hashable value.

    A signature holds the operator, the opset, the attributes, the types of inputs and outputs, and which inputs are
    constant. It also holds the content of short integer constants, of single numbers, and of computed tensors whose
    content follows from sizes. It holds no names and ids. `signature_text` converts it to a string.

    Args:
      graph: the graph.
      node: a node of the graph.
    """
    inputs = (*node.inputs, *(tensor for _, tensor in node.captured)) if node.captured else node.inputs
    return (
        node.domain,
        node.op,
        graph.opset(node.domain),
        _with_defaults(graph, node) if node.op == "Conv" else node.attributes,
        tuple([_input(graph, tensor) for tensor in inputs]),
        tuple([graph.types.get(tensor) for tensor in node.outputs]),
    )


def group_signature(graph: Graph, group: tuple[Node, ...]) -> tuple:
    """Return the signature of a group of nodes as a hashable value.

    It holds the signature of each node and, for several nodes, which of their inputs and outputs are the same tensor.

    Args:
      graph: the graph.
      group: nodes of the graph in topological order.
    """
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


def _with_defaults(graph: Graph, node: Node) -> tuple:
    """Return the attributes of a convolution, with those that are left out because they have their default values."""
    weight = graph.types.get(node.inputs[1])
    if weight is None or weight.shape is None:
        return node.attributes
    return _filled(node.attributes, weight.shape[2:])


@cache
def _filled(attributes: tuple, kernel: tuple) -> tuple:
    """Return the attributes of a convolution with the defaults for a kernel of these sizes.

    The result is cached, since a signature is computed whenever the cost of an operator is looked up.
    """
    ones = (1,) * len(kernel)
    defaults = {"dilations": ones, "group": 1, "kernel_shape": kernel, "strides": ones}
    if "auto_pad" not in dict(attributes):
        defaults["pads"] = (0,) * (2 * len(kernel))
    return tuple(sorted((defaults | dict(attributes)).items()))


def _input(graph: Graph, tensor: int) -> tuple | None:
    if tensor == ABSENT:
        return None
    constant = graph.constants.get(tensor)
    if constant is None:
        return graph.types.get(tensor), graph.is_constant(tensor), None
    return constant.type, True, constant.digest[:16] if has_content(constant.type) else None


@cache
def has_content(kind: TensorType) -> bool:
    """Check if the content of a constant of this type is part of a signature."""
    return kind.size == 1 or (kind.size <= CONTENT_LIMIT and kind.dtype not in _FLOATS)


def signature_text(part) -> str:
    """Return a signature (or a part of it) as one line of text with hashes of large attributes.

    Equal signatures give equal text.
    """
    if isinstance(part, TensorType) and part.content is None:
        part = part[:2]  # Stored timings have this form.
    if isinstance(part, Opaque):
        return f"<{hashlib.sha256(part.data).hexdigest()[:16]}>"
    if isinstance(part, tuple):
        return f"({','.join(map(signature_text, part))})"
    return repr(part)


NCHWC = "com.microsoft.nchwc"
WARM_UPS = 2  # untimed runs of each session before the first timed run; one run for a kernel slower than its budget
MIN_REPEATS = 3  # smallest number of timed runs
SESSIONS = 8  # largest number of sessions of one model; a kernel that is slow for its budget gets fewer
# Bytes of input and output arrays between two runs on one set of them: more than the caches of one core hold, and half
# of a usual cache of the last level. Small arrays have at most SETS sets.
CYCLED, SETS = 16_000_000, 64
NUMBERS = {  # types of tensors that have a NumPy type
    f"tensor({name})" for name in "bool float float16 double int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
}
MEMORY = 200_000_000  # largest size of weights, inputs and outputs in bytes times the number of sessions
PATIENCE = 10  # multiple of the time budget that a kernel gets if other processes interrupt its runs
# The matrix product of `roused` has 32 rows for each thread, or 131,072 multiplications. ONNX Runtime gives a product
# no further thread for less than 65,536 multiplications.
ROUSING = 32
Z = 1.96  # 97.5 % quantile of the normal distribution
# The relative deviation of medians between processes, which does not shrink with the number of runs. It was chosen with
# 62 kernels timed in 5 processes each: the intervals of a kernel are disjoint in fewer than 1 of 10 pairs (4 without).
BETWEEN_SESSIONS = 0.03


class Timing(NamedTuple):
    """The time of one run of a kernel.

    Attributes:
      median: median over the runs in nanoseconds.
      low, high: 95 % confidence interval of the median, which covers differences between sessions and processes.
      repeats: number of timed runs.
    """

    median: float
    low: float
    high: float
    repeats: int

    @property
    def half_width(self) -> float:
        """Half-width of the 95 % confidence interval of the median, in nanoseconds."""
        return (self.high - self.low) / 2

    def combined_with(self, other: "Timing") -> "Timing":
        """Combine this timing with a timing of the same kernel in other sessions.

        The medians are weighted by the inverse square of the half-widths of their intervals.

        The half-width of the result is at least half the difference of the medians.
        """
        weights = 1 / max(self.half_width, 1.0) ** 2, 1 / max(other.half_width, 1.0) ** 2
        median = (weights[0] * self.median + weights[1] * other.median) / sum(weights)
        off = max(sum(weights) ** -0.5, abs(self.median - other.median) / 2)
        return Timing(median, max(median - off, 0.0), median + off, self.repeats + other.repeats)

    @classmethod
    def of(cls, times: list[int]) -> "Timing":
        """Compute the timing from the nanoseconds of all runs of a kernel in one process."""
        return cls(*median_with_interval(times), len(times))


def median_with_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return (median, low, high): the median of measured values and its 95 % interval across processes.

    The values come from one process. The deviations of low and high from the median combine (root of the sum of
    squares) the interval by order statistics and the deviation between processes, BETWEEN_SESSIONS · median.
    """
    ordered = np.sort(np.asarray(values, float))
    around, last = Z * len(ordered) ** 0.5 / 2, len(ordered) - 1  # The rank of the median is binomial.
    low, high = int(len(ordered) / 2 - around), int(np.ceil(len(ordered) / 2 + around))
    median, low, high = (float(at) for at in (np.median(ordered), ordered[max(low, 0)], ordered[min(high, last)]))
    elsewhere = BETWEEN_SESSIONS * median
    low, high = median - math.hypot(median - low, elsewhere), median + math.hypot(high - median, elsewhere)
    return median, max(low, 0.0), high


def kernel_digest(model: onnx.ModelProto) -> str:
    """Return a digest of the operators that ONNX Runtime runs for a model that it has optimised.

    It depends on everything on which `signature` depends, but on no names. Groups of equal digest run equal kernels,
    such as a Conv with a BatchNormalization that ONNX Runtime folds into it, and the Conv that a rule makes of both.

    Args:
      model: the optimised model.
    """
    graph, numbers = model.graph, {}
    kinds = {value.name: ("input", value.type.SerializeToString(deterministic=True)) for value in graph.input}
    kinds |= {tensor.name: _weight_facts(tensor) for tensor in graph.initializer}
    parts = [sorted((opset.domain, opset.version) for opset in model.opset_import if opset.domain == "")]
    for node in graph.node:
        given = [attribute for attribute in node.attribute if not _is_default(node.op_type, attribute)]
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in given)
        read = [(numbers.setdefault(name, len(numbers)), kinds.get(name)) if name else None for name in node.input]
        made = [numbers.setdefault(name, len(numbers)) if name else None for name in node.output]
        parts.append((node.domain, node.op_type, attributes, read, made))
    parts.append([numbers.get(value.name) for value in graph.output])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_default(op: str, attribute: onnx.AttributeProto) -> bool:
    """Return True if an attribute of a convolution or pool says the same as its absence."""
    match attribute.name:
        case "strides" | "dilations":
            return set(attribute.ints) == {1}
        case "pads":
            return set(attribute.ints) == {0}
        case "group":
            return attribute.i == 1
        case "auto_pad":
            return attribute.s == b"NOTSET"
    return attribute.name == "kernel_shape" and op in ("Conv", "FusedConv")  # The weight has this shape.


def _weight_facts(tensor: onnx.TensorProto) -> tuple:
    """Return the data type and shape of a weight, and a digest of its content if that is part of a signature."""
    kind = TensorType(tensor.data_type, tuple(tensor.dims))
    content = onnx.numpy_helper.to_array(tensor).tobytes() if has_content(kind) else b""
    return *kind[:2], hashlib.sha256(content).hexdigest()


# -- models ----------------------------------------------------------------------------------------


class Timed(NamedTuple):
    """A model to time, with the arguments of `time_model`.

    Attributes:
      model: the model.
      optimise: True if ONNX Runtime has to optimise the model; False if the model is optimised already.
      given: name → array, for the inputs that must not be random.
      apart: name → array, for the weights that the model does not contain.
    """

    model: onnx.ModelProto
    optimise: bool = True
    given: Mapping[str, np.ndarray] = {}
    apart: Mapping[str, np.ndarray] = {}


def group_model(graph: Graph, group: tuple[Node, ...], apart: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return a model of the nodes of a group alone. Constants stay constants, but weights get random content.

    Args:
      graph: the graph of the nodes; all other tensors that the nodes read become inputs of the model.
      group: nodes in topological order.
      apart: receives the large weights (see `to_model`).

    Raises:
      NoTimingOfItsOwn: a node has a subgraph, or an input has an unknown shape.
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
    del template.graph.initializer[:], template.graph.value_info[:]
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
    group = tuple([replace(node, body=0) if node.body else node for node in group])
    return to_model(Graph.build(interface, group, types, constants, inputs, outputs), apart)


def known_inputs(graph: Graph, group: tuple[Node, ...]) -> dict[str, np.ndarray]:
    """Return the input arrays of `group_model` that must not be random, such as a target shape, by input name.

    The content of these inputs follows from the sizes. They are inputs and not constants, because ONNX Runtime would
    fold constants into their readers, which it cannot do in a model with symbolic sizes.

    Args:
      graph: the graph of the nodes.
      group: nodes in topological order.
    """
    result = {}
    for tensor in _made_and_read(group)[1]:
        kind = graph.types[tensor]
        if kind.content is not None and not graph.is_constant(tensor):
            dtype = helper.tensor_dtype_to_np_dtype(kind.dtype)
            result[f"t{tensor}"] = np.array(kind.content, dtype).reshape(kind.shape)
    return result


def _made_and_read(group: tuple[Node, ...]) -> tuple[set[int], list[int]]:
    """Return the ids of the tensors that a group computes, and the ids of all other tensors that it reads."""
    made = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
    return made, [t for t in dict.fromkeys(t for node in group for t in node.reads()) if t not in made]


def _stand_in(graph: Graph, tensor: int) -> Constant:
    """Return a constant that replaces a constant tensor in a timing; a float32 weight gets random content.

    Content that is part of a signature is kept. Quantisation scales are kept, too, because ONNX Runtime requires that
    the scale of a bias equals the product of two other scales. The scales of a Resize are kept because they determine
    the size of its result, and whether ONNX Runtime runs it in blocks of channels. A tensor that constant nodes compute
    is evaluated.
    """
    kind = graph.types[tensor]
    if tensor not in graph.constants:
        cone = constant_cone(graph, tensor)
        return Constant.of(evaluate(graph, [n for n in graph.order if n in cone], [tensor])[0])
    if has_content(kind) or kind.dtype != TensorProto.FLOAT or is_scale(graph, tensor):
        return graph.constants[tensor]
    return Constant("", kind, lambda: _random_numbers(kind.shape))


def _random_numbers(shape: Sequence[int]) -> np.ndarray:
    """Return float32 numbers above zero, because a variance must be positive and denormal numbers are slow.

    The numbers repeat after DRAWN numbers, because drawing is slower than copying.
    """
    size = math.prod(shape)
    drawn = np.random.default_rng(0).random(min(size, DRAWN), np.float32) + np.float32(0.5)
    if size > DRAWN:
        drawn = np.broadcast_to(drawn, (-(-size // DRAWN), DRAWN)).reshape(-1)[:size]
    return drawn.reshape(shape)


def empty_model() -> onnx.ModelProto:
    """Return a model with one node, which ONNX Runtime folds at load, so its latency is the overhead of any run."""
    one = helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])
    return float_model([helper.make_node("Identity", ["c"], ["y"])], {"x": [1]}, {"y": [1]}, [one])


def roused(model: onnx.ModelProto, threads: int) -> onnx.ModelProto:
    """Return a copy of the model with an additional first operator, a matrix product that wakes all threads.

    Between two runs the threads sleep, and the first operator that needs several threads waits some microseconds. A
    whole graph waits once, but each separately timed kernel would wait again. The empty model gets the same product, so
    subtracting the time of the empty model also subtracts the product.

    Args:
      model: the model.
      threads: threads of ONNX Runtime.
    """
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
    """Return a model whose only operator is a reorder between a plain tensor and blocks of channels.

    Args:
      op: ReorderInput or ReorderOutput.
      kind: type of the tensor, [batch, channels, height, width].
    """
    image, blocks = {"image": kind.shape}, {"blocks": blocked_shape(kind)}
    given, made = (image, blocks) if op == "ReorderInput" else (blocks, image)
    channels = {} if op == "ReorderInput" else {"channels": kind.shape[1]}
    return float_model([helper.make_node(op, list(given), list(made), domain=NCHWC, **channels)], given, made)


def float_model(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:  # fmt: skip
    """Return the model of some nodes; inputs and outputs are float32 and given as name → shape."""
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()]
        for values in (inputs, outputs)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
    graph = helper.make_graph(nodes, "alone", given, made, weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


# -- blocks ----------------------------------------------------------------------------------------


def blocked_shape(kind: TensorType) -> list[int]:
    """Return the shape of a tensor type [batch, channels, height, width] with the channels padded to whole blocks."""
    batch, channels, *image = kind.shape
    return [batch, -(-channels // block()) * block(), *image]


def in_blocks(model: onnx.ModelProto, blocked: dict[str, TensorType]) -> onnx.ModelProto:
    """Return the optimised form of a model that reads inputs in blocks of channels.

    Outputs that ONNX Runtime computes in blocks are outputs in blocks, without the reorder.

    Args:
      model: the model; the call modifies it.
      blocked: name of each input that comes in blocks → type of the plain tensor.
    """
    graph = model.graph
    for name, kind in blocked.items():
        (given,) = [value for value in graph.input if value.name == name]
        graph.output.append(given)  # A second reader prevents fusions into the convolution.
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
    given: Mapping[str, np.ndarray] | None = None, apart: Mapping[str, np.ndarray] | None = None,
) -> Timing:  # fmt: skip
    """Time runs of a model on random inputs, with the caches as a whole graph leaves them.

    In a whole graph the operator before has just written the input of a kernel, and other tensors have been written
    since the memory of its output was last used. Therefore the runs take turns with several sets of input and output
    arrays, and the inputs are written before each run. The sets have about CYCLED bytes together; each session has at
    least one set. Runs on a single small set would find all arrays in the caches of the core, so that operators that
    move data would be too fast. Several sessions also evict each other's weights, and average over memory layouts. A
    kernel that is slow for its budget depends less on all that. It gets as many sessions as its budget has runs, and as
    many sets, but up to MIN_REPEATS sets if its arrays are small.
    With several threads all sets share the inputs, which are not written again. The thread that wrote them would have
    all of them in its cache. In a whole graph each thread has written a part, and here each has read a part.

    With one thread the clock is the processor time of the thread, which stops while other processes run. With more
    threads the clock is the wall time, and the model is `roused`. Runs that the system interrupted are left out, unless
    fewer than MIN_REPEATS runs would remain.

    Args:
      model: the model.
      threads: threads of ONNX Runtime.
      budget_ms: time for all runs and for writing their inputs; up to PATIENCE times as much if the system interrupts
        the runs.
      optimise: True if ONNX Runtime has to optimise the model.
      given: name → array, for the inputs that must not be random.
      apart: name → array, for the weights that the model does not contain.

    Raises:
      NoTimingOfItsOwn: ONNX Runtime refuses the model, or its inputs cannot be made.
    """
    weights = model.ByteSize() + sum(array.nbytes for array in (apart or {}).values())
    model = roused(model, threads) if threads > 1 else model
    try:
        inputs = random_inputs(model, seed=0) | dict(given or {})
        sessions = [session(model, threads, optimise, apart=apart)]
        start = time.perf_counter()
        outputs = _results(sessions[0], inputs)
        per_budget = int(budget_ms / (1e3 * (time.perf_counter() - start)))  # number of runs that the budget allows
        held = sum(array.nbytes for array in (*inputs.values(), *outputs) if array is not None)
        for _ in range(min(SESSIONS, MEMORY // (weights + held), per_budget) - 1):
            sessions.append(session(model, threads, optimise, apart=apart))
        sets = min(SETS, -(-CYCLED // max(held, 1)), max(per_budget, MIN_REPEATS))
        count, writes = max(sets, len(sessions)), threads == 1
        turns = [_Turn.of(sessions[k % len(sessions)], inputs, outputs, writes) for k in range(count)]
        for turn in turns[1 : len(sessions)]:
            turn.run()
        for _ in range(WARM_UPS - 1 if per_budget >= 1 else 0):
            for turn in turns:
                turn.run()
    except Exception as error:  # The exception classes of ONNX Runtime are undocumented.
        raise NoTimingOfItsOwn(first_line(error)) from error
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    calm, all_times = [], []
    start = time.perf_counter_ns()
    while True:
        for turn in turns:
            turn.write_inputs()
            interrupted = interruptions()
            before = clock()
            turn.run()
            taken = clock() - before
            all_times.append(taken)
            if interruptions() == interrupted:
                calm.append(taken)
        spent = (time.perf_counter_ns() - start) / (1e6 * budget_ms)
        if len(calm if spent <= PATIENCE else all_times) >= MIN_REPEATS and spent > 1:
            break
    return Timing.of(calm if len(calm) >= MIN_REPEATS else all_times)


def _results(running: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
    """Run a session and return its outputs; None for an output whose type NumPy lacks, such as text or bfloat16."""
    binding = _binding(running, inputs, [None] * len(running.get_outputs()))
    running.run_with_iobinding(binding)
    return [_array(value) for value in binding.get_outputs()]


def _array(value: onnxruntime.OrtValue) -> np.ndarray | None:
    if not value.is_tensor() or value.data_type() not in NUMBERS:
        return None
    return value.numpy()


def _binding(running: onnxruntime.InferenceSession, inputs, outputs) -> onnxruntime.IOBinding:
    """Bind the inputs (by name) and outputs of a session to arrays; ONNX Runtime allocates an output that is None."""
    binding = running.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for output, array in zip(running.get_outputs(), outputs, strict=True):
        if array is None:
            binding.bind_output(output.name)
        else:
            binding.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return binding


class _Turn(NamedTuple):
    """The runs of a session on one set of input and output arrays.

    Attributes:
      write_inputs: writes the values of the inputs into their arrays, as the operator before a kernel does, or nothing.
      run: runs the session without copying inputs and outputs.
      arrays: the inputs and outputs, which ONNX Runtime does not keep alive.
    """

    write_inputs: Callable[[], None]
    run: Callable[[], None]
    arrays: list[np.ndarray | None]

    @classmethod
    def of(
        cls, running: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray],
        outputs: Sequence[np.ndarray | None], writes: bool,
    ) -> "_Turn":  # fmt: skip
        """Return the runs of a session on arrays of its own.

        Args:
          running: the session.
          inputs: the inputs by name; the own inputs are copies of them if `writes`, else these arrays themselves.
          outputs: the outputs of a first run; the own outputs are copies of them.
          writes: whether `write_inputs` writes the inputs.
        """
        own = {name: array.copy() if writes else array for name, array in inputs.items()}
        results = [None if array is None else array.copy() for array in outputs]
        binding = _binding(running, own, results)

        def write_inputs() -> None:
            for name, array in own.items() if writes else ():
                np.copyto(array, inputs[name])

        return cls(write_inputs, lambda: running.run_with_iobinding(binding), [*own.values(), *results])
