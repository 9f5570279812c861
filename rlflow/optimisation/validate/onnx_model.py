"""A model under validation, and the accepted errors of models in half precision and of quantised models.

The default tolerance 1e-4 suits float32. A half-precision model is also run in float32
(`rlflow.graph.half_precision.twin`). A candidate may differ from that result by `OWN_MARGIN` times the largest error of
ONNX Runtime's own sessions of the original, with and without optimisations. A model that cannot be converted keeps the
tolerance.

The reference for a quantised model is a run without optimisations, which computes in floats. With optimisations ONNX
Runtime computes in integers. Where this rounds a sum the other way, an output differs by one quantisation step.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph.dequantised import is_quantised
from rlflow.graph.half_precision import is_half
from rlflow.graph.input_walk import light
from rlflow.graph.ir import Graph, Interface
from rlflow.graph.onnx_reader import external_locations, load_graph, weights_folder
from rlflow.graph.onnx_runtime import session
from rlflow.graph.onnx_writer import kept_apart
from rlflow.graph.random_numbers import Draws
from rlflow.graph.repairs import check_model, clear_negative_sizes, refusal
from rlflow.graph.symbols import Symbols, with_ranks


@dataclass(frozen=True)
class Model:
    """A model under validation; external weights stay on disk until a session needs them.

    Attributes:
      source: the model or the path from which this object was made.
      proto: the model without the contents of external weights.
      folder: the folder of external weights; None for a model in memory.
    """

    source: onnx.ModelProto | Path
    proto: onnx.ModelProto
    folder: Path | None

    @classmethod
    def read(cls, source: onnx.ModelProto | Path | str) -> "Model":
        """Return the model of a path or a ModelProto. Raise RLFlowError if the file cannot be read as ONNX."""
        if isinstance(source, onnx.ModelProto):
            return cls(source, source, None)
        path = Path(source)
        try:
            proto = onnx.load(path, load_external_data=False)
            clear_negative_sizes(proto.graph)
            return cls(path, proto, weights_folder(proto, path).resolve())
        except OSError as error:
            raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
        except (DecodeError, UnicodeDecodeError) as error:
            raise RLFlowError(f"{path} is not an ONNX file: {first_line(error)}") from error

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs; a name that the model declares twice appears once."""
        return list(dict.fromkeys(value.name for value in self.proto.graph.output))

    @cached_property
    def draws(self) -> Draws:
        """The operators that draw random numbers, and the tensors that depend on them."""
        return Draws(self.proto)

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs that a user must give: the graph inputs that are not initializers."""
        initializers = {tensor.name for tensor in self.proto.graph.initializer}
        return [value for value in self.proto.graph.input if value.name not in initializers]

    @property
    def interface(self) -> Interface:
        """The interface of the model's graph (inputs, outputs and symbols only), computed without reading weights."""
        graph = self.proto.graph
        symbols = Symbols(self.inputs, graph.node, {}).least
        return Interface(onnx.ModelProto(), tuple(self.inputs), tuple(graph.output), {}, {}, symbols=symbols)

    def with_ranks(self, shapes: Mapping[str, object]) -> "Model":
        """Return the model with the given sizes of its inputs that declare no rank; it is otherwise the same.

        Args:
          shapes: symbol or input → sizes.
        """
        ranked, known = onnx.ModelProto(), with_ranks(self.proto.graph.input, shapes)
        if list(self.proto.graph.input) == known:
            return self
        ranked.CopyFrom(self.proto)
        del ranked.graph.input[:]
        ranked.graph.input.extend(known)
        return replace(self, proto=ranked)

    def graph(self) -> Graph | None:
        """Return the model as a `Graph` with symbolic sizes; None if RLFlow cannot read the model."""
        try:
            return load_graph(self.source)
        except RLFlowError:
            return None

    def refusal(self, full: bool) -> str | None:
        """Return the error message of the ONNX checker; None if the checker accepts the model.

        Parts that ONNX Runtime does not need, such as shapes of outputs, may be missing (`repairs.check_model`).

        Args:
          full: True to check the results of shape inference too; then no part may be missing.
        """
        if full:
            return refusal(self.proto, self.source if self.folder else None, lenient=False, full=True)
        try:
            check_model(self.proto, self.source if self.folder else None)
        except RLFlowError as error:
            return str(error)
        return None

    def empty_tensors(self) -> list[str]:
        """Return the names of the intermediate tensors without elements, as far as ONNX's shape inference shows it."""
        try:
            values = onnx.shape_inference.infer_shapes(light(self.proto), data_prop=True).graph.value_info
        except (onnx.shape_inference.InferenceError, RuntimeError):
            return []  # the checker reports this model
        shapes = {value.name: value.type.tensor_type.shape.dim for value in values}
        return [
            name for name, dims in shapes.items() if any(d.HasField("dim_value") and d.dim_value <= 0 for d in dims)
        ]

    def session_with(self, tensors: Sequence[str], threads: int, optimise: bool):
        """Return an ONNX Runtime session of the model whose outputs also include the given tensors.

        Args:
          tensors: names of tensors.
          threads: the number of threads of ONNX Runtime.
          optimise: True to turn on ONNX Runtime's optimisations.
        """
        extra = [name for name in dict.fromkeys(tensors) if name not in self.outputs]
        if isinstance(self.source, Path) and not extra:
            return session(self.source, threads, optimise)  # makes no copy of the weights
        model, apart = kept_apart(self.proto)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        return session(model, threads, optimise, self.folder, apart=apart)

    def takes(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether all fixed dimensions of the inputs have the given sizes.

        Args:
          shapes: name of an input → its shape.
        """
        for value in self.inputs:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
                if dim.HasField("dim_value") and dim.dim_value != size:
                    return False
        return True

    def known(self, shapes: Mapping[str, object]) -> dict[str, object]:
        """Return the entries of `shapes` whose key is a symbol or an input of this model.

        Args:
          shapes: symbol or input → sizes.
        """
        names = {value.name for value in self.inputs}
        names |= {dim.dim_param for value in self.inputs for dim in value.type.tensor_type.shape.dim}
        return {name: size for name, size in shapes.items() if name in names}

    def sha256(self) -> str:
        """Return the SHA-256 hash of the model and its external weights, in hexadecimal digits.

        It equals `onnx_writer.model_hash` of a graph that is exported to the same bytes. Raise RLFlowError if a file of
        weights cannot be read.
        """
        digest, named = hashlib.sha256(), onnx.ModelProto()
        named.CopyFrom(self.proto)
        entries = list(external_locations(named))
        for location in sorted({entry.value for entry in entries}):
            try:
                with open((self.folder or Path()) / location, "rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError as error:
                raise RLFlowError(f"cannot read the weights {location}: {error.strerror or error}") from error
        for entry in entries:
            entry.value = ""
        digest.update(named.SerializeToString(deterministic=True))
        return digest.hexdigest()


# Accepted error as a multiple of the error of ONNX Runtime's own sessions. Two correct roundings of a result have
# similar errors; in tensors of few elements one error was up to twice the other.
OWN_MARGIN = 4.0


def is_low(model: onnx.ModelProto) -> bool:
    """Return whether the model has half precision or is quantised; the default tolerance suits neither."""
    return is_half(model) or is_quantised(model)
