"""Is the candidate the same model as the original? Structure, interface and numerics, each on its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, EncodeError

from rlflow.errors import RLFlowError, first_line
from rlflow.runtime import random_inputs, run, session

SATURATING = frozenset(("Softmax", "LogSoftmax", "Sigmoid", "Tanh"))
SHIFTS = (0, 1, -1)  # an average over noise of mean zero washes out a wrong weight
VIEWS = frozenset(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `value` is the relative error where one was measured."""

    kind: Literal["structure", "interface", "numerics"]
    ok: bool
    message: str
    value: float | None = None


@dataclass
class Findings:
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    @property
    def max_error(self) -> float | None:
        """The largest relative error measured; None if nothing could be compared."""
        return max((f.value for f in self.findings if f.value is not None), default=None)

    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.ok]

    def to_dict(self) -> dict:
        """JSON-able: an infinite error becomes the text "inf"."""
        findings = [asdict(f) | {"value": _json_number(f.value)} for f in self.findings]
        return {"ok": self.ok, "max_error": _json_number(self.max_error), "findings": findings}


def _json_number(value: float | None) -> float | str | None:
    return value if value is None or np.isfinite(value) else str(value)


def validate(
    original: onnx.ModelProto | Path | str,
    candidate: onnx.ModelProto | Path | str,
    seeds: Sequence[int] = (0, 1, 2),
    tolerance: float = 1e-4,
    shapes: Mapping[str, object] | None = None,
    threads: int = 1,
    optimise: bool = True,
) -> Findings:
    """Compares two models; every check leaves a finding, and what could not be compared leaves one too.

    Structure: the ONNX checker (with shape inference where the original passes it) and ONNX Runtime accept
    the candidate. Interface: names, types, shapes and order of inputs and outputs; a symbolic dimension may
    have become the size that `shapes` binds it to. Numerics: both run in ONNX Runtime on `random_inputs` of
    every seed, the floats shifted by 0, 1 and -1 in turn; the relative error of an output is max |candidate
    − original| / max |original| (the absolute error where the original is all zero). NaN and infinity must
    stand in the same places with the same sign; integers, booleans and strings must be equal. Where an
    output comes from Softmax, LogSoftmax, Sigmoid or Tanh (through views), the tensor before it is compared
    too: saturated outputs hide errors.

    Args:
      original, candidate: paths, or models; above 2 GB paths.
      seeds: of the inputs.
      tolerance: the largest relative error of a float output that passes.
      shapes: sizes for symbolic dimensions, as `load_graph` takes them.
      optimise: whether ONNX Runtime may rewrite both, as it does for a user; it rounds as it likes where it does.

    Raises:
      RLFlowError: the original cannot be read or run, or its inputs cannot be made.
    """
    found = Findings()
    left = _Model.read(original)
    inputs = {
        seed: _shifted(random_inputs(left.proto, seed, shapes), SHIFTS[place % len(SHIFTS)])
        for place, seed in enumerate(seeds)
    }
    try:
        right = _Model.read(candidate)
    except RLFlowError as error:
        found.findings.append(Finding("structure", False, str(error)))
        return found
    found.findings += _structure(left, right)
    found.findings += _interface(left.proto.graph, right.proto.graph, inputs[seeds[0]], shapes or {})
    found.findings += _numerics(left, right, inputs, tolerance, threads, optimise)
    return found


def _shifted(inputs: Mapping[str, np.ndarray], shift: int) -> dict[str, np.ndarray]:
    return {name: a + a.dtype.type(shift) if a.dtype.kind == "f" else a for name, a in inputs.items()}


@dataclass(frozen=True)
class _Model:
    """A model whose external weights stay on disk, in `folder`; `source` is what the user gave."""

    source: onnx.ModelProto | Path
    proto: onnx.ModelProto
    folder: Path | None

    @classmethod
    def read(cls, source: onnx.ModelProto | Path | str) -> "_Model":
        if isinstance(source, onnx.ModelProto):
            return cls(source, source, None)
        path = Path(source)
        try:
            return cls(path, onnx.load(path, load_external_data=False), path.parent.resolve())
        except OSError as error:
            raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
        except (DecodeError, UnicodeDecodeError) as error:
            raise RLFlowError(f"{path} is not an ONNX file: {first_line(error)}") from error

    def refusal(self, full: bool) -> str | None:
        """What the ONNX checker has against the model."""
        try:
            onnx.checker.check_model(str(self.source) if self.folder else self.source, full_check=full)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            return first_line(error)
        except (ValueError, EncodeError, RuntimeError) as error:  # above 2 GB
            return first_line(error)
        return None

    def session_with(self, extra: Sequence[str], threads: int, optimise: bool):
        """A session of the model that gives the tensors `extra` after its own outputs."""
        if self.folder and not extra:
            return session(self.source, threads, optimise)  # without a copy of the weights
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        return session(model, threads, optimise, self.folder)


# -- structure and interface -----------------------------------------------------------------------


def _structure(left: _Model, right: _Model) -> Iterator[Finding]:
    refusal, how = right.refusal(full=True), "the ONNX checker accepts the candidate, shapes included"
    if refusal is not None and left.refusal(full=True) is not None:
        refusal = right.refusal(full=False)
        how = "the ONNX checker accepts the candidate (shapes not checked: it refuses the original's too)"
    message = how if refusal is None else f"the ONNX checker refuses the candidate: {refusal}"
    yield Finding("structure", refusal is None, message)


def _interface(
    left: onnx.GraphProto, right: onnx.GraphProto, bound: Mapping[str, np.ndarray], shapes: Mapping[str, object]
) -> Iterator[Finding]:
    sizes = {name: size for name, size in shapes.items() if isinstance(size, int)}
    for value in left.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(bound.get(value.name)), strict=False):
            if dim.dim_param:
                sizes[dim.dim_param] = size
    for what, ours, theirs in (("input", _inputs(left), _inputs(right)), ("output", left.output, right.output)):
        names, new_names = [v.name for v in ours], [v.name for v in theirs]
        if names != new_names:
            yield Finding("interface", False, f"{what}s were {_list(names)}, are {_list(new_names)}")
        else:
            yield Finding("interface", True, f"{what} names and their order are kept")
        new = {value.name: value for value in theirs}
        for value in ours:
            if value.name in new:
                fixed = _fixed_dims(value, new[value.name], sizes)
                if fixed is None:
                    before, after = _type(value), _type(new[value.name])
                    yield Finding("interface", False, f"{what} '{value.name}' was {before}, is {after}")
                else:
                    note = f"; fixed: {', '.join(fixed)}" if fixed else ""
                    yield Finding("interface", True, f"{what} '{value.name}' keeps its type{note}")


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def _fixed_dims(old: onnx.ValueInfoProto, new: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> list[str] | None:
    """The symbolic dimensions that the new type fixes to their bound sizes; None if the types differ otherwise."""
    fixed = []
    copy = onnx.TypeProto()
    copy.CopyFrom(old.type)
    dims = copy.tensor_type.shape.dim if copy.HasField("tensor_type") else []
    for dim, theirs in zip(dims, new.type.tensor_type.shape.dim, strict=False):
        if dim.dim_param and theirs.HasField("dim_value") and sizes.get(dim.dim_param) == theirs.dim_value:
            fixed.append(f"{dim.dim_param} = {theirs.dim_value}")
            dim.dim_value = theirs.dim_value
    return fixed if copy == new.type else None


def _type(value: onnx.ValueInfoProto) -> str:
    if not value.type.HasField("tensor_type"):
        return str(MessageToDict(value.type))
    tensor = value.type.tensor_type
    dims = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    shape = f"[{', '.join(dims)}]" if tensor.HasField("shape") else "[…]"
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type)}{shape}"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


# -- numerics --------------------------------------------------------------------------------------


def _numerics(
    left: _Model, right: _Model, inputs: Mapping[int, Mapping[str, np.ndarray]], tolerance: float, threads: int, optimise: bool
) -> Iterator[Finding]:
    given = {value.name for value in right.proto.graph.output}
    outputs = [value.name for value in left.proto.graph.output if value.name in given]
    for name in (value.name for value in left.proto.graph.output if value.name not in given):
        yield Finding("numerics", False, f"output '{name}' is missing and was not compared")
    hidden = []  # (label, tensor of the original, tensor of the candidate)
    for name in outputs:
        ours, theirs = (_before_saturation(model.proto.graph, name) for model in (left, right))
        if ours is None:
            continue
        if theirs is None or theirs[0] != ours[0]:
            last = f"from {theirs[0]}" if theirs else "not from a saturating operator"
            message = f"what enters {ours[0]} before '{name}' was not compared: it now comes {last}"
            yield Finding("numerics", True, message)
        else:
            hidden.append((f"what enters {ours[0]} before '{name}'", ours[1], theirs[1]))
    base = left.session_with(_new(left, [ours for _, ours, _ in hidden]), threads, optimise)
    wanted = [*outputs, *(ours for _, ours, _ in hidden)]
    expected = {seed: run(base, arrays, wanted) for seed, arrays in inputs.items()}
    del base  # a session holds all weights; the two never live at once
    labels = [*(f"output '{name}'" for name in outputs), *(label for label, _, _ in hidden)]
    try:
        other = right.session_with(_new(right, [theirs for _, _, theirs in hidden]), threads, optimise)
        yield Finding("structure", True, "ONNX Runtime loads the candidate")
    except RLFlowError as error:
        yield Finding("structure", False, str(error))
        return
    for seed, arrays in inputs.items():
        try:
            actual = run(other, arrays, [*outputs, *(theirs for _, _, theirs in hidden)])
        except RLFlowError as error:
            yield Finding("numerics", False, f"seed {seed}: {error}")
            continue
        for slot, (label, old, new) in enumerate(zip(labels, expected[seed], actual, strict=True)):
            if slot >= len(outputs) and np.shape(old) != np.shape(new):
                shapes = f"{list(old.shape)} and {list(new.shape)}"
                yield Finding("numerics", True, f"seed {seed}: {label} was not compared: its shapes are {shapes}")
            else:
                yield _compared(f"seed {seed}: {label}", old, new, tolerance)


def _new(model: _Model, tensors: list[str]) -> list[str]:
    """Those tensors, each once, that are not outputs of the model already."""
    given = {value.name for value in model.proto.graph.output}
    return [name for name in dict.fromkeys(tensors) if name not in given]


def _before_saturation(graph: onnx.GraphProto, output: str) -> tuple[str, str] | None:
    """The saturating operator that makes an output, and the tensor that it reads; None if there is none."""
    producers = {name: node for node in graph.node for name in node.output}
    node = producers.get(output)
    while node is not None and node.op_type in VIEWS:
        node = producers.get(node.input[0])
    return (node.op_type, node.input[0]) if node is not None and node.op_type in SATURATING else None


def _compared(label: str, old, new, tolerance: float) -> Finding:
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):  # sequences, maps, absent optionals
        same = repr(old) == repr(new)
        return Finding("numerics", same, f"{label}: {'equal' if same else 'differs'} (not a tensor)")
    if old.shape != new.shape or old.dtype != new.dtype:
        return Finding("numerics", False, f"{label}: was {old.dtype}{list(old.shape)}, is {new.dtype}{list(new.shape)}")
    if old.dtype.kind != "f":
        same = np.array_equal(old, new)
        return Finding("numerics", same, f"{label}: {'equal' if same else 'differs, and must be equal'}")
    error = relative_error(old, new)
    message = f"{label}: relative error {error:.1e} (limit {tolerance:.0e})"
    return Finding("numerics", error <= tolerance, message, error)


def relative_error(old: np.ndarray, new: np.ndarray) -> float:
    """max |new − old| / max |old| over finite values; infinity where NaN or infinities are not the same in both."""
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return float("inf")
    old, new = old[finite].astype(np.float64), new[finite].astype(np.float64)
    scale = np.abs(old).max(initial=0.0)
    return float(np.abs(new - old).max(initial=0.0) / (scale if scale > 0 else 1.0))
