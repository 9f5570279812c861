"""Numerics: what the original gives on many inputs, kept, and what any number of candidates give beside it.

On special values a sound substitution may round by more than the tolerance: sums that cancel, ties that an ArgMax
breaks. So the original is asked first, on inputs moved in the last digits, to both sides: a candidate may move by
`MARGIN` times what the original then does, and where that is much, or an integer changes, nothing is compared.

Models are compared as they are written. As a user runs them, with ONNX Runtime's optimisations, they are compared too, but
not alone: its fusions recognise a LayerNormalization whose operands were swapped, or whose axis was changed, as a right one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.errors import RLFlowError
from rlflow.runtime import run
from rlflow.validate.findings import Finding
from rlflow.validate.inputs import InputSet, nudged
from rlflow.validate.models import Model

SATURATING = frozenset(("Softmax", "LogSoftmax", "Sigmoid", "Tanh"))
VIEWS = frozenset(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"))
MARGIN = 8  # roundings happen at every operator, nudges at the inputs alone
BLUNT = 0.1  # a limit above which a comparison says nothing


class Wanted(NamedTuple):
    """The value of one tensor on one set of inputs.

    Attributes:
      limit: the largest relative error that passes.
      floor: errors are relative to no less than that, for an output that happens to be small there.
      why_not: why it is not compared.
    """

    value: object
    limit: float
    floor: float = 0.0
    why_not: str | None = None


@dataclass(frozen=True)
class Slot:
    """A tensor that is compared: an output, or what enters the saturating operator `before` it.

    Softmax is blind to what all elements along its axes have in common, so there they are compared less the largest.

    Attributes:
      axis: of a Softmax, else None.
      onwards: whether it normalises all axes from there on together, as it did before opset 13.
    """

    output: str
    tensor: str
    before: str | None = None
    axis: int | None = None
    onwards: bool = False

    @property
    def label(self) -> str:
        return f"what enters {self.before} before '{self.output}'" if self.before else f"output '{self.output}'"

    def axes(self, rank: int) -> tuple[int, ...]:
        if self.axis is None:
            return ()
        first = self.axis % max(rank, 1)
        return tuple(range(first, rank if self.onwards else first + 1))

    def seen(self, value: object) -> object:
        if self.axis is None or not value.size:
            return value
        with np.errstate(invalid="ignore"):  # ∞ − ∞, on both sides
            return value - value.max(axis=self.axes(value.ndim), keepdims=True)


class Expected:
    """The values that the original gives; its session is gone once they are there."""

    def __init__(
        self, model: Model, ordinary: Sequence[InputSet], special: Sequence[InputSet], tolerance: float, threads: int,
        optimise: bool,
    ):
        """Raises RLFlowError if the original cannot be run on the ordinary inputs."""
        self.tolerance, self.threads, self.optimise = tolerance, threads, optimise
        self.slots = [Slot(name, name) for name in model.outputs]
        self.slots += filter(None, (_before_saturation(model.proto, name) for name in model.outputs))
        running = model.session_with([slot.tensor for slot in self.slots], threads, optimise)
        self.sets = [(given, self.ordinary(_run(running, given.arrays, self.slots))) for given in ordinary]
        scales = [max(map(_largest, values)) for values in zip(*([w.value for w in wanted] for _, wanted in self.sets), strict=True)]
        self.sets += [(given, self.special(running, given, scales)) for given in special]

    def ordinary(self, values: Sequence[object]) -> list[Wanted]:
        return [Wanted(value, self.tolerance) for value in values]

    def special(self, running, given: InputSet, scales: list[float]) -> list[Wanted]:
        try:
            values = _run(running, given.arrays, self.slots)
            beside = [_run(running, nudged(given.arrays, sign), self.slots) for sign in (1, -1)]
        except RLFlowError as error:
            return [Wanted(None, 0.0, why_not=f"the original cannot be run: {error}")] * len(self.slots)
        return [self.judged(*each) for each in zip(values, scales, *beside, strict=True)]

    def judged(self, value: object, scale: float, *beside: object) -> Wanted:
        """The limit for a value that became `beside` when the inputs were moved in the last digits."""
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            stable = all(_same(value, other) for other in beside)
            return Wanted(value, 0.0, why_not=None if stable else "the last digits of the inputs decide it")
        if not np.isfinite(value).all():
            return Wanted(value, 0.0, why_not="the original's values are not finite")
        limit = MARGIN * max(relative_error(value, other, scale) if value.shape == other.shape else np.inf for other in beside)
        if limit > BLUNT:
            return Wanted(value, 0.0, why_not="the last digits of the inputs decide it")
        return Wanted(value, max(limit, self.tolerance) if self.tolerance else 0.0, scale)

    def against(self, candidate: Model) -> Iterator[Finding]:
        """A finding for every tensor and set of inputs, those that could not be compared included."""
        compared, theirs = [], []  # places in `slots`; the same of the candidate
        for place, slot in enumerate(self.slots):
            if slot.output not in candidate.outputs:
                if slot.before is None:
                    yield Finding("numerics", False, f"{slot.label} is missing and was not compared")
                continue
            found = _before_saturation(candidate.proto, slot.output) if slot.before else slot
            if found is None or found.before != slot.before:
                last = f"from {found.before}" if found else "not from a saturating operator"
                yield Finding("numerics", True, f"{slot.label} was not compared: it now comes {last}")
                continue
            compared.append(place)
            theirs.append(found)
        try:
            running = candidate.session_with([slot.tensor for slot in theirs], self.threads, self.optimise)
            yield Finding("structure", True, f"ONNX Runtime loads {'and optimises ' if self.optimise else ''}the candidate")
        except RLFlowError as error:
            yield Finding("structure", False, str(error))
            return
        for given, wanted in self.sets if theirs else ():  # ONNX Runtime takes none for all
            name = f"{given.name}, optimised" if self.optimise else given.name
            if all(each.value is None for each in wanted):
                yield Finding("numerics", True, f"{name}: nothing was compared: {wanted[0].why_not}")
                continue
            try:
                values = _run(running, given.arrays, theirs)
            except RLFlowError as error:
                yield Finding("numerics", False, f"{name}: {error}")
                continue
            for place, slot, value in zip(compared, theirs, values, strict=True):
                yield _finding(f"{name}: {slot.label}", wanted[place], value, self.slots[place], slot)


def _finding(label: str, wanted: Wanted, new: object, ours: Slot, theirs: Slot) -> Finding:
    old = wanted.value
    if wanted.why_not is not None:
        return Finding("numerics", True, f"{label} was not compared: {wanted.why_not}")
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):  # sequences, maps, absent optionals
        same = _same(old, new)
        return Finding("numerics", same, f"{label}: {'equal' if same else 'differs'} (not a tensor)")
    if ours.before and old.shape != new.shape:
        return Finding("numerics", True, f"{label} was not compared: its shapes are {list(old.shape)} and {list(new.shape)}")
    if ours.axes(old.ndim) != theirs.axes(new.ndim):
        return Finding("numerics", True, f"{label} was not compared: other axes are normalised")
    if old.shape != new.shape or old.dtype != new.dtype:
        return Finding("numerics", False, f"{label}: was {old.dtype}{list(old.shape)}, is {new.dtype}{list(new.shape)}")
    if old.dtype.kind != "f":
        same = _same(old, new)
        return Finding("numerics", same, f"{label}: {'equal' if same else 'differs, and must be equal'}")
    error = relative_error(old, new, wanted.floor)
    return Finding("numerics", error <= wanted.limit, f"{label}: relative error {error:.1e} (limit {wanted.limit:.0e})", error)


def _run(running, arrays: dict[str, np.ndarray], slots: Sequence[Slot]) -> list[object]:
    values = run(running, arrays, [slot.tensor for slot in slots])
    return [slot.seen(value) for slot, value in zip(slots, values, strict=True)]


def _before_saturation(model: onnx.ModelProto, output: str) -> Slot | None:
    """What the saturating operator that makes an output reads; None if there is none, or no node gives it."""
    producers = {name: node for node in model.graph.node for name in node.output}
    node = producers.get(output)
    while node is not None and node.op_type in VIEWS:
        node = producers.get(node.input[0])
    if node is None or node.op_type not in SATURATING or node.input[0] not in producers:
        return None
    if "Softmax" not in node.op_type:
        return Slot(output, node.input[0], node.op_type)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1 if opset >= 13 else 1)
    return Slot(output, node.input[0], node.op_type, axis, onwards=opset < 13)


def _same(old: object, new: object) -> bool:
    both = isinstance(old, np.ndarray) and isinstance(new, np.ndarray)
    return np.array_equal(old, new) if both else repr(old) == repr(new)


def _largest(value: object) -> float:
    """The largest finite magnitude of a float tensor; 0 for everything else."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return 0.0
    return float(np.abs(value[np.isfinite(value)]).max(initial=0.0))


def relative_error(old: np.ndarray, new: np.ndarray, floor: float = 0.0) -> float:
    """max |new − old| / max |old| over finite values; infinity where NaN or infinities are not the same in both.

    What it is relative to is at least `floor`; where that is zero too, the error is absolute.
    """
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return float("inf")
    old, new = old[finite].astype(np.float64), new[finite].astype(np.float64)
    scale = max(float(np.abs(old).max(initial=0.0)), floor)
    return float(np.abs(new - old).max(initial=0.0) / (scale if scale > 0 else 1.0))
