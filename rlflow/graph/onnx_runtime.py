"""Sessions of ONNX Runtime and a test for its kernels; failures of ONNX Runtime become RLFlowErrors."""

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
from rlflow.graph import custom_ops
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType
from rlflow.graph.shapes import node_proto, type_proto

PROVIDERS = ["CPUExecutionProvider"]
SPINNING = "session.intra_op.allow_spinning"


LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
}  # names of `Setup.level`


class Setup(NamedTuple):
    """The settings of ONNX Runtime that determine execution, memory and optimisations; the defaults are ONNX Runtime's.

    Attributes:
      as_written: True to run the file without optimisation, in its own node order (except Shape and Size, which run
        first).
      pattern: True to place all intermediate results in one block of memory, planned in the first run
        (`enable_mem_pattern`).
      arena: True to keep freed memory for later results (`enable_cpu_mem_arena`).
      reuse: True to let a result reuse the buffer of another result (`enable_mem_reuse`).
      threads: number of threads inside one operator; 0 for the number that the caller of `session` states.
      spinning: True to let waiting threads spin.
      parallel: True to run independent operators at the same time.
      level: the optimisations, a name in LEVELS: all, extended (no blocked layouts), or basic.
      without: names of single optimisations that are switched off.
    """

    as_written: bool = False
    pattern: bool = True
    arena: bool = True
    reuse: bool = True
    threads: int = 0
    spinning: bool = True
    parallel: bool = False
    level: str = "all"
    without: tuple[str, ...] = ()

    @classmethod
    def of(cls, changes: Mapping[str, object]) -> "Setup":
        """Return the settings with changed fields, whose values may come from JSON."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()})

    def changes(self) -> dict[str, object]:
        """Return {field: value} for the fields that differ from ONNX Runtime's defaults."""
        return {name: value for name, value in self._asdict().items() if value != Setup._field_defaults[name]}

    def options(self) -> dict[str, object]:
        """Return {attribute of SessionOptions: value} for the settings that differ from ONNX Runtime's defaults.

        `spinning` and `without` are missing, because SessionOptions has no attributes for them.
        """
        chosen: dict[str, object] = {}
        if self.threads:
            chosen["intra_op_num_threads"] = self.threads
        if self.parallel:
            chosen["execution_mode"] = onnxruntime.ExecutionMode.ORT_PARALLEL
        if self.level != "all":
            chosen["graph_optimization_level"] = LEVELS[self.level]
        if self.as_written:
            chosen["graph_optimization_level"] = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            chosen["execution_order"] = onnxruntime.ExecutionOrder.PRIORITY_BASED
        used = {"enable_mem_pattern": self.pattern, "enable_cpu_mem_arena": self.arena, "enable_mem_reuse": self.reuse}
        return chosen | {name: value for name, value in used.items() if not value}

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        for name, value in self.options().items():
            setattr(options, name, value)
        if self.parallel:
            options.inter_op_num_threads = options.intra_op_num_threads
        if not self.spinning:
            options.add_session_config_entry(SPINNING, "0")

    def open(self, source: str | bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        """Create a session on the CPU with these settings.

        Args:
          source: path or content of the model.
          options: the other options of the session.
        """
        self.apply(options)
        disabled = {"disabled_optimizers": list(self.without)} if self.without else {}
        return onnxruntime.InferenceSession(source, options, providers=PROVIDERS, **disabled)

    def code(self, path: Path | str, libraries: Sequence[str] = ()) -> list[str]:
        """Return lines of Python that create a session of a file with these settings.

        Args:
          path: the file.
          libraries: libraries of custom operators.
        """
        lines = ["options = onnxruntime.SessionOptions()"]
        lines += [f"options.register_custom_ops_library({library!r})" for library in libraries]
        for name, value in self.options().items():
            text = value if isinstance(value, bool | int) else f"onnxruntime.{type(value).__name__}.{value.name}"
            lines.append(f"options.{name} = {text}")
        if self.parallel:
            lines.append("options.inter_op_num_threads = options.intra_op_num_threads")
        if not self.spinning:
            lines.append(f'options.add_session_config_entry("{SPINNING}", "0")')
        disabled = f", disabled_optimizers={list(self.without)}" if self.without else ""
        call = f'{str(path)!r}, options, providers=["CPUExecutionProvider"]{disabled}'
        return [*lines, f"session = onnxruntime.InferenceSession({call})"]


def session(
    model: onnx.ModelProto | Path | str, threads: int, optimise: bool = True, folder: Path | str | None = None,
    setup: Setup = Setup(), apart: Mapping[str, np.ndarray] | None = None,
) -> onnxruntime.InferenceSession:  # fmt: skip
    """Create an ONNX Runtime session on the CPU.

    Args:
      model: path of an ONNX file, or a ModelProto.
      threads: number of threads inside one operator; operators run one after the other unless `setup.parallel`.
      optimise: True to enable all graph optimisations of ONNX Runtime (its default), False to disable them.
      folder: folder with the external weights of a ModelProto.
      setup: the settings. If `setup` changes the number of threads or the optimisations, it overrides `threads` or
        `optimise`; for example, `setup.as_written` disables optimisation even if `optimise` is True.
      apart: weights of a ModelProto that it does not contain, by name (see `to_model`). ONNX Runtime 1.31 copies them;
        other versions may need the arrays as long as the session.

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
    custom_ops.register(options)
    add_weights(options, apart or {})
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
        return setup.open(source, options)
    except (google.protobuf.message.EncodeError, ValueError) as error:
        raise RLFlowError(f"a model above 2 GB must be given as a path: {first_line(error)}") from error
    except Exception as error:  # ONNX Runtime raises its own undocumented classes.
        rejected = "the model" if isinstance(model, onnx.ModelProto) else model
        reason = custom_ops.unknown_operator(error) or first_line(error)
        raise RLFlowError(f"ONNX Runtime rejects {rejected}: {reason}") from error


def add_weights(options: onnxruntime.SessionOptions, apart: Mapping[str, np.ndarray]) -> None:
    """Add the weights that a model does not contain (see `to_model`) to the options of its session."""
    if apart:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in apart.values()]
        options.add_external_initializers(list(apart), values)


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


def machine() -> str:
    """Return the text that identifies this machine in stored timings: processor, vector extension, logical cores."""
    return f"{processor()}, {os.cpu_count()} cores"
