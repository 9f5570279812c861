"""Sessions of ONNX Runtime, a test for its kernels, and random inputs; its failures become RLFlowErrors."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import google.protobuf.message
import numpy as np
import onnx
import onnxruntime
from onnx import helper

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.system import processor
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType
from rlflow.graph.limits import check_types
from rlflow.graph.shapes import node_proto, type_proto
from rlflow.graph.symbols import bind_shapes

PROVIDERS = ["CPUExecutionProvider"]

# Operators whose output has the same values as their first input, apart from its data type, shape and order.
_CARRIERS = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice"}


class Setup(NamedTuple):
    """The settings of ONNX Runtime that determine execution order and memory layout; the defaults are ONNX Runtime's.

    Attributes:
      as_written: True to run the file without optimisation, in its own node order (except Shape and Size, which run
        first).
      pattern: True to place all intermediate results in one block of memory, planned in the first run
        (`enable_mem_pattern`).
      arena: True to keep freed memory for later results (`enable_cpu_mem_arena`).
      reuse: True to let a result reuse the buffer of another result (`enable_mem_reuse`).
    """

    as_written: bool = False
    pattern: bool = True
    arena: bool = True
    reuse: bool = True

    def options(self) -> dict[str, object]:
        """Return {attribute of SessionOptions: value} for the settings that differ from ONNX Runtime's defaults."""
        chosen: dict[str, object] = {}
        if self.as_written:
            chosen["graph_optimization_level"] = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            chosen["execution_order"] = onnxruntime.ExecutionOrder.PRIORITY_BASED
        used = {"enable_mem_pattern": self.pattern, "enable_cpu_mem_arena": self.arena, "enable_mem_reuse": self.reuse}
        return chosen | {name: value for name, value in used.items() if not value}

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        for name, value in self.options().items():
            setattr(options, name, value)


def session(
    model: onnx.ModelProto | Path | str, threads: int, optimise: bool = True, folder: Path | str | None = None,
    setup: Setup = Setup(),
) -> onnxruntime.InferenceSession:  # fmt: skip
    """Create an ONNX Runtime session on the CPU.

    Args:
      model: path of an ONNX file, or a ModelProto.
      threads: number of threads inside one operator; operators run one after the other.
      optimise: True to enable all graph optimisations of ONNX Runtime, its default.
      folder: folder with the external weights of a ModelProto.
      setup: settings of execution order and memory; `setup.as_written` disables optimisation even if `optimise`.

    Raises:
      RLFlowError: ONNX Runtime rejects the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # Errors arrive as exceptions and need no log.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    # An idle session must not keep its threads spinning while another session is timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    setup.apply(options)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
        return onnxruntime.InferenceSession(source, options, providers=PROVIDERS)
    except (google.protobuf.message.EncodeError, ValueError) as error:
        raise RLFlowError(f"a model above 2 GB must be given as a path: {first_line(error)}") from error
    except Exception as error:  # ONNX Runtime raises its own undocumented classes.
        rejected = "the model" if isinstance(model, onnx.ModelProto) else model
        raise RLFlowError(f"ONNX Runtime rejects {rejected}: {first_line(error)}") from error


def run(
    running: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
) -> list[np.ndarray]:
    """Run a session and return one array for each requested output, in the requested order.

    Args:
      running: the session.
      inputs: input name → array.
      outputs: names of the outputs to compute; None for all outputs.

    Raises:
      RLFlowError: the run fails.
    """
    try:
        return running.run(outputs, dict(inputs))
    except Exception as error:  # ONNX Runtime raises its own undocumented classes.
        raise RLFlowError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def has_kernel(
    graph: Graph, node: Node, type_of: Callable[[int], TensorType | None], load: Callable[[int], np.ndarray]
) -> bool:
    """Return True if the installed ONNX Runtime has a kernel for a node's operator, opset, types and attributes.

    Args:
      graph: a graph with the opsets of the model.
      node: the node.
      type_of: function tensor id → type of an input or output of the node; None if unknown.
      load: function tensor id → content of a constant input.
    """
    tensors = [t for t in dict.fromkeys((*node.inputs, *node.outputs)) if t != ABSENT]
    names = {ABSENT: ""} | {tensor: f"t{position}" for position, tensor in enumerate(tensors)}
    proto = node_proto(graph, replace(node, name=""), names.__getitem__, load)
    used = {*proto.input, *proto.output}
    kinds = tuple((names[t], type_of(t)) for t in tensors if names[t] in used)
    return _accepts_node(proto.SerializeToString(deterministic=True), graph.opset(""), graph.opset(node.domain), kinds)


@lru_cache(maxsize=4096)
def _accepts_node(proto: bytes, standard: int, opset: int, kinds: tuple[tuple[str, TensorType | None], ...]) -> bool:
    """Return True if ONNX Runtime can create a session for a model of one node without inserting casts.

    A session is the only reliable test: ONNX Runtime's lists of kernels contain some that its schemas exclude.

    Args:
      proto: the serialised node.
      standard: version of the ONNX opset.
      opset: version of the node's own domain.
      kinds: (name, type) of each input and output; with an unknown type the result is False.
    """
    node, types = onnx.NodeProto.FromString(proto), dict(kinds)
    if any(kind is None or kind.shape is None for kind in types.values()):
        return False
    if node.domain and any(kind.dtype in _HALF_TYPES for kind in types.values()):
        return False  # ONNX Runtime would insert casts to float32 and back.
    given, made = (
        [helper.make_value_info(name, type_proto(types[name])) for name in dict.fromkeys(names) if name]
        for names in (node.input, node.output)
    )
    opsets = [helper.make_opsetid(*pair) for pair in {"": standard, node.domain: opset}.items()]
    try:
        session(
            helper.make_model(helper.make_graph([node], "one", given, made), opset_imports=opsets, ir_version=8),
            1,
            False,
        )
    except RLFlowError:
        return False
    return True


_HALF_TYPES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def random_inputs(
    model: onnx.ModelProto | Path | str, seed: int, shapes: Mapping[str, object] | None = None
) -> dict[str, np.ndarray]:
    """Return random values for the inputs of a model; equal seeds, input names, types and shapes give equal values.

    Floats are standard normal, and booleans are fair coin flips. An integer input that Gather uses as indices is
    uniform in [0, n), where n is the size of the gathered axis. Other integers are uniform in {0, 1}.

    Args:
      model: path of an ONNX file, or a ModelProto.
      seed: seed of the random generator.
      shapes: sizes of symbolic dimensions, as in `load_graph`.

    Returns:
      Input name → array.

    Raises:
      RLFlowError: the size of an input is unknown, or an input is not a numeric tensor.
    """
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(model, load_external_data=False)
    initializers = {tensor.name for tensor in model.graph.initializer}
    values = bind_shapes([v for v in model.graph.input if v.name not in initializers], shapes or {})
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in sorted(values, key=lambda v: v.name):
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        check_types({value.name: TensorType(tensor.elem_type, shape)})
        rows = _gathered_rows(model.graph, value.name) if tensor.elem_type in _INTEGERS else None
        arrays[value.name] = random_array(rng, tensor.elem_type, shape, rows or 2, f"input '{value.name}'")
    return {value.name: arrays[value.name] for value in values}


_INTEGERS = {getattr(onnx.TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}


def random_array(
    rng: np.random.Generator, dtype: int, shape: tuple[int, ...], rows: int = 2, what: str = "a tensor"
) -> np.ndarray:
    """Draw an array of standard normal floats, of integers uniform in [0, rows), or of fair booleans.

    Args:
      rng: the random generator.
      dtype: onnx.TensorProto.DataType.
      shape: shape of the array.
      rows: exclusive upper bound on integers.
      what: description of the array in the error message.

    Raises:
      RLFlowError: the type is not supported.
    """
    if dtype in _INTEGERS:
        return rng.integers(0, rows, shape).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    if dtype == onnx.TensorProto.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == onnx.TensorProto.FLOAT:
        return rng.standard_normal(shape, np.float32)
    if dtype in (onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16):
        return rng.standard_normal(shape).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    known = onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(dtype) if dtype in known else str(dtype)
    raise RLFlowError(f"cannot make random values for {what} of type {name}")


def _gathered_rows(graph: onnx.GraphProto, name: str) -> int | None:
    """Return the smallest size of an axis that a Gather indexes by input `name`; None without such a Gather."""
    values = (*graph.input, *graph.value_info)
    dims = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    dims |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    carried, rows = {name}, []
    for node in graph.node:  # in topological order
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            dims[node.output[0]] = list(attributes["value"].t.dims)
        elif node.op_type == "Gather" and node.input[1] in carried and dims.get(node.input[0]):
            rows.append(dims[node.input[0]][attributes["axis"].i if "axis" in attributes else 0])
        elif node.op_type in _CARRIERS and node.input[0] in carried:
            carried.add(node.output[0])
        elif node.op_type in ("Cast", "Identity") and node.input[0] in dims:
            dims[node.output[0]] = dims[node.input[0]]
    return min((count for count in rows if count > 0), default=None)


def machine() -> str:
    """Return the text that identifies this machine in stored timings: processor, vector extension, logical cores."""
    return f"{processor()}, {os.cpu_count()} cores"
