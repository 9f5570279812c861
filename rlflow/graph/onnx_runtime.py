"""ONNX Runtime: sessions, runs and random inputs, with errors that a person can read."""

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

# Operators that hand indices through unchanged on their way to a Gather.
_CARRIERS = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice"}


class Setup(NamedTuple):
    """What decides when results are made and where they lie; ONNX Runtime's defaults are the defaults.

    as_written: whether the file runs as it stands: unchanged, its nodes in its own order (Shape and Size first).
    pattern: whether all results share one block, laid out by what the first run needed.
    arena: whether what is freed is kept for later results.  reuse: whether a result may take over another's buffer.
    """

    as_written: bool = False
    pattern: bool = True
    arena: bool = True
    reuse: bool = True

    def options(self) -> dict[str, object]:
        """Attribute of SessionOptions → value, of those that are not the defaults."""
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
    """A session on the CPU.

    Args:
      model: a path, or a model.
      threads: threads inside one operator; operators run one after the other.
      optimise: whether ONNX Runtime may rewrite the graph as it does for a user.
      folder: where the external weights of a ModelProto lie.
      setup: one that runs the file as it is written does not optimise, whatever `optimise` says.

    Raises:
      RLFlowError: ONNX Runtime refuses the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors come as exceptions, not on the terminal
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    # A session that is not running must not burn the cores that another one is timed on.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    setup.apply(options)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
        return onnxruntime.InferenceSession(source, options, providers=PROVIDERS)
    except (google.protobuf.message.EncodeError, ValueError) as error:
        raise RLFlowError(f"a model above 2 GB must be given as a path: {first_line(error)}") from error
    except Exception as error:  # ONNX Runtime raises its own, undocumented classes
        raise RLFlowError(f"ONNX Runtime refuses {_label(model)}: {first_line(error)}") from error


def run(
    running: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
) -> list[np.ndarray]:
    """The values of `outputs` (all of the model's by default). Raises RLFlowError if the run fails."""
    try:
        return running.run(outputs, dict(inputs))
    except Exception as error:  # as above
        raise RLFlowError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def has_kernel(
    graph: Graph, node: Node, type_of: Callable[[int], TensorType | None], load: Callable[[int], np.ndarray]
) -> bool:
    """Whether the installed ONNX Runtime has a kernel for one operator: for its opset, types and attributes.

    Args:
      graph: the model, as far as its opsets go.
      type_of, load: type and, where it is constant, content of the tensors that the node reads and writes.
    """
    tensors = [t for t in dict.fromkeys((*node.inputs, *node.outputs)) if t != ABSENT]
    names = {ABSENT: ""} | {tensor: f"t{position}" for position, tensor in enumerate(tensors)}
    proto = node_proto(graph, replace(node, name=""), names.__getitem__, load)
    used = {*proto.input, *proto.output}
    kinds = tuple((names[t], type_of(t)) for t in tensors if names[t] in used)
    return _takes(proto.SerializeToString(deterministic=True), graph.opset(""), graph.opset(node.domain), kinds)


@lru_cache(maxsize=4096)
def _takes(proto: bytes, standard: int, opset: int, kinds: tuple[tuple[str, TensorType | None], ...]) -> bool:
    """Whether ONNX Runtime takes a model of one node: its own lists hold kernels that its schemas do not admit."""
    node, types = onnx.NodeProto.FromString(proto), dict(kinds)
    if any(kind is None or kind.shape is None for kind in types.values()):
        return False
    if node.domain and any(kind.dtype in _HALVES for kind in types.values()):
        return False  # it would cast them to float32 and back
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


_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def random_inputs(
    model: onnx.ModelProto | Path | str, seed: int, shapes: Mapping[str, object] | None = None
) -> dict[str, np.ndarray]:
    """Random values for the inputs of a model; equal seeds and input names give equal values.

    Floats are standard normal, booleans are even coin flips. Integers are in [0, rows) where the input is
    the index of a Gather with `rows` rows, else in {0, 1}.

    Args:
      shapes: sizes for symbolic dimensions, as `load_graph` takes them.

    Raises:
      RLFlowError: an input has a symbolic dimension that is not bound, or is not a tensor of numbers.
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
    """Standard normal floats, integers in [0, rows), or booleans. Raises RLFlowError for other types."""
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
    """The fewest rows of any table that the values of input `name` are indices into; None if of none."""
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
    """The processor's name, vectors and number of cores, as one line: timings of one are none of another."""
    return f"{processor()}, {os.cpu_count()} cores"


def _label(model) -> str:
    return "the model" if isinstance(model, onnx.ModelProto) else str(model)
