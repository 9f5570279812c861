"""Check structure and interface of a candidate: the ONNX checker, types of inputs and outputs, and damaged weights."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from google.protobuf.json_format import MessageToDict
from onnx import numpy_helper

from rlflow.graph.symbols import Symbols, check_shapes
from rlflow.optimisation.validate.findings import Finding
from rlflow.optimisation.validate.numerics import relative_error
from rlflow.optimisation.validate.onnx_model import Model

NEARLY = 0.1  # largest distance of a damaged copy from the original weight, as a share of the weight's norm


def structure(left: Model, right: Model) -> Iterator[Finding]:
    """Check that the ONNX checker accepts the candidate, and that no tensor of the candidate lost all its elements.

    Shapes are left unchecked if the checker refuses the original with shapes, too. Empty tensors are accepted if the
    original also has empty tensors.

    Args:
      left: the original.
      right: the candidate.
    """
    refusal, how = right.refusal(full=True), "the ONNX checker accepts the candidate, shapes included"
    if refusal is not None and left.refusal(full=True) is not None:
        refusal = right.refusal(full=False)
        how = "the ONNX checker accepts the candidate (shapes not checked: it refuses the original's too)"
    message = how if refusal is None else f"the ONNX checker refuses the candidate: {refusal}"
    yield Finding("structure", refusal is None, message)
    empty = right.empty_tensors()
    if empty and not left.empty_tensors():
        yield Finding("structure", False, f"tensor '{empty[0]}' has no elements, unlike all tensors of the original")


def kept_draws(left: Model, right: Model) -> Iterator[Finding]:
    """Check that the candidate draws random numbers as often as the original, by the same operators.

    Args:
      left: the original.
      right: the candidate.
    """
    ours, theirs = left.draws.counts, right.draws.counts
    if ours or theirs:
        kept = f"the candidate draws as often as the original: {_counted(ours)}"
        changed = f"the original draws random numbers by {_counted(ours)}, the candidate by {_counted(theirs)}"
        yield Finding("structure", ours == theirs, kept if ours == theirs else changed)


def _counted(draws: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(draws.items())) or "nothing"


def kept_weights(left: Model, right: Model, tolerance: float) -> Iterator[Finding]:
    """Check that no float weight of the candidate is a damaged copy of the original's weight of the same name.

    One wrong bit among millions may not show in an output. A weight that differs by more than NEARLY is not a copy, and
    the comparison of outputs shows whether the weight is right.

    Args:
      left: the original.
      right: the candidate.
      tolerance: the largest accepted relative error of a weight.
    """
    ours = {tensor.name: tensor for tensor in left.proto.graph.initializer}
    same = 0
    for tensor in right.proto.graph.initializer:
        before = ours.get(tensor.name)
        if before is None or (before.data_type, before.dims) != (tensor.data_type, tensor.dims):
            continue
        old, new = _array(before, left), _array(tensor, right)
        if old.dtype.kind != "f":
            continue
        if np.array_equal(old, new, equal_nan=True):  # true for nearly all weights, and much faster than the rest
            same += 1
            continue
        if not _nearly(old, new):
            continue
        error = relative_error(old, new)
        if error > tolerance:
            where = f"{np.count_nonzero(~_equal(old, new))} of {old.size} elements"
            yield Finding(
                "structure", False, f"weight '{tensor.name}' is damaged: {where} differ, relative error {error:.1e}"
            )
        else:
            same += 1
    yield Finding("structure", True, f"{same} weights are unchanged")


def _array(tensor: onnx.TensorProto, model: Model) -> np.ndarray:
    copy = onnx.TensorProto()  # reading an external weight stores its content in the proto
    copy.CopyFrom(tensor)
    return numpy_helper.to_array(copy, str(model.folder or ""))


def _equal(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return for each element whether it is equal in both weights; NaN equals NaN."""
    return (old == new) | (np.isnan(old) & np.isnan(new))


def _nearly(old: np.ndarray, new: np.ndarray) -> bool:
    """Return whether `new` may be a damaged copy of the weight `old`.

    This is so if their distance is at most NEARLY of the norm of `old`. If one weight has NaN or infinities, more than
    half of the elements must be equal.
    """
    if not np.isfinite(old).all() or not np.isfinite(new).all():
        return 0.5 < np.mean(_equal(old, new)) < 1
    old, new = old.astype(np.float64), new.astype(np.float64)
    return bool(np.linalg.norm(new - old) <= NEARLY * np.linalg.norm(old))


def interface(left: Model, right: Model, shapes: Mapping[str, object]) -> Iterator[Finding]:
    """Check that inputs and outputs have the same names, order and types as in the original.

    Args:
      left: the original.
      right: the candidate.
      shapes: symbol or input → sizes to which the candidate may have fixed symbolic dimensions; empty if it may not.
    """
    symbols = Symbols(left.inputs, (), check_shapes(left.inputs, shapes))
    given = {value.name: symbols.shape_of(value) for value in left.inputs if value.type.HasField("tensor_type")}
    yield from _ports("input", left.inputs, right.inputs, [given.get(value.name, ()) for value in left.inputs])
    outputs = [*left.proto.graph.output]
    made = [[symbols.bindings.get(dim.dim_param) for dim in value.type.tensor_type.shape.dim] for value in outputs]
    yield from _ports("output", outputs, [*right.proto.graph.output], made)


def _ports(
    what: str, ours: list[onnx.ValueInfoProto], theirs: list[onnx.ValueInfoProto], bound: Sequence[Sequence]
) -> Iterator[Finding]:
    names, new_names = [v.name for v in ours], [v.name for v in theirs]
    if names != new_names:
        yield Finding("interface", False, f"{what}s were {_list(names)}, are {_list(new_names)}")
    else:
        yield Finding("interface", True, f"{what} names and their order are kept")
    same = {value.name: value for value in theirs}
    # An output may be named twice, with other names of its sizes.
    partners = theirs if names == new_names else [same.get(name) for name in names]
    for value, new, sizes in zip(ours, partners, bound, strict=True):
        if new is None:
            continue
        fixed = _fixed_dims(value, new, sizes)
        if fixed is None:
            before, after = _type(value), _type(new)
            yield Finding("interface", False, f"{what} '{value.name}' was {before}, is {after}")
        else:
            note = f"; fixed: {', '.join(fixed)}" if fixed else ""
            yield Finding("interface", True, f"{what} '{value.name}' keeps its type{note}", fixed=fixed)


def _fixed_dims(old: onnx.ValueInfoProto, new: onnx.ValueInfoProto, bound: Sequence) -> list[str] | None:
    """Return the symbolic dimensions that `new` fixes, such as "batch = 1"; None if the types differ in any other way.

    Args:
      old: the declaration of an input or output in the original.
      new: the declaration in the candidate.
      bound: for each axis the number to which the axis may be fixed, or another value if it must stay symbolic.
    """
    fixed = []
    copy = onnx.TypeProto()
    copy.CopyFrom(old.type)
    dims = copy.tensor_type.shape.dim if copy.HasField("tensor_type") else []
    for axis, (dim, size) in enumerate(zip(dims, bound, strict=False)):
        theirs = new.type.tensor_type.shape.dim[axis : axis + 1]
        if theirs and theirs[0].HasField("dim_value") and not dim.HasField("dim_value") and theirs[0].dim_value == size:
            fixed.append(f"{dim.dim_param or 'axis ' + str(axis)} = {size}")
            dim.dim_value = size
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
