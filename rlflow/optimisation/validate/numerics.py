"""Numerics: run the original once on many inputs, and compare any number of candidates with its outputs.

On special inputs a correct rewrite may change outputs by more than the tolerance, because sums cancel or an ArgMax
decides between nearly equal values. The original therefore also runs on inputs changed in the last digits (`nudged`).
A candidate may differ from the original by `MARGIN` times the largest change of the output that these inputs cause. If
this limit is above MAX_LIMIT, or if an integer output changes, the output is not compared.

An output of a low-precision model may differ by `OWN_MARGIN` times the error of ONNX Runtime's own sessions
(onnx_model.py).

Models are compared without and with ONNX Runtime's optimisations. Optimised runs alone are not enough: a fusion may
replace a wrong LayerNormalization (operands swapped, another axis) by a correct one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph.half_precision import is_half, twin, twin_arrays
from rlflow.graph.onnx_runtime import run
from rlflow.graph.typical import sizes_text
from rlflow.optimisation.validate.findings import Finding, not_comparable
from rlflow.optimisation.validate.inputs import PATIENCE, InputSet, Others, elsewhere, nudged
from rlflow.optimisation.validate.onnx_model import OWN_MARGIN, Model, is_low

SATURATING = frozenset(("Softmax", "LogSoftmax", "Sigmoid", "Tanh"))
VIEWS = frozenset(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"))
# Accepted change of an output on special inputs, as a multiple of the change that `nudged` inputs cause. It is above 1,
# because every operator rounds and `nudged` changes only the inputs.
MARGIN = 8
MAX_LIMIT = 0.1  # largest limit of a relative error; a larger limit would not show that two outputs are equal


class Wanted(NamedTuple):
    """The expected value of one tensor on one set of inputs.

    Attributes:
      value: the value in a run of the original; None if the original was not run.
      limit: the largest accepted relative error of a candidate.
      floor: the smallest divisor of relative errors, for a tensor that is small on these inputs only.
      why_not: the reason why the tensor is not compared, or None.
      precise: the reference value from which errors of a low-precision model are computed; None to compute them from
        `value`.
    """

    value: object
    limit: float
    floor: float = 0.0
    why_not: str | None = None
    precise: np.ndarray | None = None


@dataclass(frozen=True)
class Slot:
    """A tensor to compare: an output of the model, or the input of the saturating operator that makes an output.

    Softmax does not change if its inputs are shifted alike along its axes. Its input is therefore compared after the
    maximum along these axes is subtracted.

    Attributes:
      output: the name of the output.
      tensor: the name of the tensor to compare.
      before: the type of the saturating operator, such as "Softmax"; None if the output itself is compared.
      axis: the axis of a Softmax or LogSoftmax; None for other tensors.
      onwards: True if the Softmax normalises all axes from `axis` on together, as it does before opset 13.
    """

    output: str
    tensor: str
    before: str | None = None
    axis: int | None = None
    onwards: bool = False

    @property
    def label(self) -> str:
        """The name of the slot in messages."""
        return f"input of {self.before} before '{self.output}'" if self.before else f"output '{self.output}'"

    def axes(self, rank: int) -> tuple[int, ...]:
        """Return the axes that the Softmax normalises in a tensor of `rank` axes; () for other slots."""
        if self.axis is None:
            return ()
        first = self.axis % max(rank, 1)
        return tuple(range(first, rank if self.onwards else first + 1))

    def seen(self, value: object) -> object:
        """Return the value that is compared: for the input of a Softmax, the input minus its maximum along `axes`."""
        if self.axis is None or not value.size:
            return value
        with np.errstate(invalid="ignore"):  # both models may compute ∞ − ∞
            return value - value.max(axis=self.axes(value.ndim), keepdims=True)


def slots_of(model: Model) -> list[Slot]:
    """Return one slot per output of the model, then one slot per output that a saturating operator makes.

    Outputs that depend on random numbers, which the model draws, have no slot.
    """
    names = model.draws.others
    slots = [Slot(name, name) for name in names]
    return slots + list(filter(None, (_before_saturation(model.proto, name) for name in names)))


class Precise:
    """The reference values of a low-precision model, and the errors of ONNX Runtime's own sessions of the model.

    The reference is a run of the model in float32. For a quantised model it is a run without optimisations.
    """

    def __init__(self, model: Model, ordinary: Sequence[InputSet], threads: int):
        """Make the sessions and compute the largest errors on the ordinary inputs.

        Raise RLFlowError if the float32 model cannot be made or run.

        Args:
          model: the original.
          ordinary: the ordinary inputs.
          threads: the number of threads of ONNX Runtime.
        """
        self.model, self.slots = model.proto, slots_of(model)
        names = [slot.tensor for slot in self.slots]
        self.own = [model.session_with(names, threads, optimise) for optimise in (False, True)]
        if is_half(model.proto):
            wide = twin(model.proto, str(model.folder or ""))
            self.measured_from = Model(wide, wide, None).session_with(names, threads, False)
        else:
            self.measured_from = self.own.pop(0)
        # For each slot the largest error on all ordinary inputs, because the error on one set may be small by chance.
        self.ordinary_errors = [0.0] * len(self.slots)
        self.ordinary_errors = [
            max(errors) for errors in zip(*([error for _, error in self(given)] for given in ordinary), strict=True)
        ]

    def __call__(self, given: InputSet, scales: Sequence[float] | None = None) -> list[tuple[np.ndarray, float]]:
        """Run the reference and the model's own sessions on a set of inputs.

        Args:
          given: the inputs.
          scales: for each slot the smallest divisor of relative errors; None for 0.

        Returns:
          For each slot the reference value, and the largest relative error of a session of the model on these inputs or
          on ordinary inputs.

        Raises:
          RLFlowError: a session cannot be run on these inputs.
        """
        values = _run(self.measured_from, twin_arrays(self.model, given.arrays), self.slots)
        beside = [_run(own, given.arrays, self.slots) for own in self.own]
        floors = scales or [0.0] * len(values)
        return [
            (
                value,
                max(
                    [
                        usual,
                        *(
                            relative_error(value, other, floor) if _comparable(value, other) else np.inf
                            for other in others
                        ),
                    ]
                ),
            )
            for value, usual, floor, *others in zip(values, self.ordinary_errors, floors, *beside, strict=True)
        ]


def precise_runs(model: Model, ordinary: Sequence[InputSet], threads: int) -> Precise | None:
    """Return the reference runs of a low-precision model; None for other models, or if the reference cannot be run.

    Args:
      model: the original.
      ordinary: the ordinary inputs.
      threads: the number of threads of ONNX Runtime.
    """
    if not is_low(model.proto):
        return None
    try:
        return Precise(model, ordinary, threads)
    except RLFlowError:
        return None


class Expected:
    """The outputs of the original on all sets of inputs, with the accepted errors of candidates.

    Attributes:
      slots: the tensors to compare.
      drawn: the outputs that are not compared because they depend on random numbers.
      draws: the names of the operators that draw these numbers.
      sets: (inputs, expected value of each slot) pairs.
      elsewhere: assignments symbol → size that the user did not name and at which the original runs.
    """

    def __init__(
        self, model: Model, ordinary: Sequence[InputSet], special: Sequence[InputSet], tolerance: float, threads: int,
        optimise: bool, precise: Precise | None = None, others: Others | None = None,
    ):  # fmt: skip
        """Run the original. Raise RLFlowError if it cannot be run on the ordinary inputs.

        Args:
          model: the original.
          ordinary, special: the inputs.
          tolerance: the accepted relative error on ordinary inputs; 0 requires equality bit for bit.
          threads: the number of threads of ONNX Runtime.
          optimise: True to run the models with ONNX Runtime's optimisations.
          precise: the reference runs of a low-precision model, or None.
          others: the plan for sizes that the user did not name, or None.
        """
        began = time.monotonic()
        self.tolerance, self.threads, self.optimise = tolerance, threads, optimise
        self.precise = precise if tolerance else None  # tolerance 0 requires equality bit for bit
        self.slots = slots_of(model)
        self.drawn, self.draws = model.draws.outputs, model.draws.text
        running = model.session_with([slot.tensor for slot in self.slots], threads, optimise)
        self.sets = [(given, self.ordinary(running, given)) for given in ordinary]
        beside = [wanted for given, wanted in self.sets if special and given.sizes == special[0].sizes]
        scales = [max(map(_largest, values)) for values in zip(*([w.value for w in of] for of in beside), strict=True)]
        self.sets += [(given, self.special(running, given, scales)) for given in special]
        self.elsewhere: list[dict[str, int]] = []  # unnamed sizes at which the original runs
        if others is not None:
            self.look_elsewhere(running, others, max(PATIENCE, time.monotonic() - began))
        self.precise = None  # closes its sessions

    def look_elsewhere(self, running, others: Others, seconds: float) -> None:
        """Run the original at sizes that the user did not name, and add the results to `sets` and `elsewhere`.

        Args:
          running: a session of the original.
          others: the plan for these sizes.
          seconds: the time limit.
        """

        def run_there(sizes: dict[str, int]) -> tuple[InputSet, list[Wanted]]:
            given = others.draw(sizes)
            return given, self.ordinary(running, given)

        for sizes, result, why_not in elsewhere(others.ladders, others.named, run_there, seconds):
            if result is not None:
                self.sets.append(result)
                self.elsewhere.append(sizes)
            elif self.slots:
                left_out = InputSet(sizes_text(sizes), {}, sizes)
                self.sets.append((left_out, [Wanted(None, 0.0, why_not=why_not)] * len(self.slots)))

    def ordinary(self, running, given: InputSet) -> list[Wanted]:
        """Run the original on ordinary inputs, and return the expected value of each slot.

        Args:
          running: a session of the original.
          given: the inputs.
        """
        return self.widened_limits(
            [Wanted(value, self.tolerance) for value in _run(running, given.arrays, self.slots)], given, None
        )

    def widened_limits(self, wanted: list[Wanted], given: InputSet, scales: Sequence[float] | None) -> list[Wanted]:
        """Raise the accepted errors of a low-precision model to OWN_MARGIN times the error of its own sessions.

        Args:
          wanted: the expected value of each slot; returned unchanged if the model has no low precision.
          given: the inputs.
          scales: for each slot the smallest divisor of relative errors; None for 0.
        """
        if self.precise is None:
            return wanted
        try:
            runs = self.precise(given, scales)
        except RLFlowError:
            return wanted
        allowed = []
        for each, (value, error) in zip(wanted, runs, strict=True):
            known = (
                each.why_not is None
                and _comparable(each.value, value)
                and np.isfinite(each.value).all()
                and np.isfinite(error)
            )
            if not known:
                allowed.append(each)
            elif relative_error(value, each.value, each.floor) > MAX_LIMIT:  # for example, integers that saturate
                allowed.append(each._replace(why_not="the error of the original itself is too large in low precision"))
            else:
                limit = max(each.limit, min(OWN_MARGIN * error, MAX_LIMIT))
                allowed.append(each._replace(limit=limit, precise=value))
        return allowed

    def special(self, running, given: InputSet, scales: list[float]) -> list[Wanted]:
        """Run the original on special inputs and on `nudged` ones, and return the expected value of each slot.

        Args:
          running: a session of the original.
          given: the inputs.
          scales: for each slot the smallest divisor of relative errors.
        """
        try:
            values = _run(running, given.arrays, self.slots)
            beside = [_run(running, nudged(given.arrays, sign), self.slots) for sign in (1, -1)]
        except RLFlowError as error:
            return [Wanted(None, 0.0, why_not=f"the original cannot be run: {error}")] * len(self.slots)
        wanted = [self.judged(*each) for each in zip(values, scales, *beside, strict=True)]
        return self.widened_limits(wanted, given, scales)

    def judged(self, value: object, scale: float, *beside: object) -> Wanted:
        """Return the expected value of a tensor on special inputs, with its accepted error.

        Args:
          value: the value in the run of the original.
          scale: the smallest divisor of relative errors.
          *beside: the values in runs of the original on `nudged` inputs.
        """
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            stable = all(_same(value, other) for other in beside)
            return Wanted(value, 0.0, why_not=None if stable else "the last digits of the inputs determine it")
        if not np.isfinite(value).all():
            return Wanted(value, 0.0, why_not="the original's values are not finite")
        limit = MARGIN * max(
            relative_error(value, other, scale) if value.shape == other.shape else np.inf for other in beside
        )
        if limit > MAX_LIMIT:
            return Wanted(value, 0.0, why_not="the last digits of the inputs determine it")
        return Wanted(value, max(limit, self.tolerance) if self.tolerance else 0.0, scale)

    def against(self, candidate: Model) -> Iterator[Finding]:
        """Compare a candidate; yield a finding for every slot and set of inputs, even if nothing could be compared."""
        return (replace(finding, optimised=self.optimise) for finding in self._against(candidate))

    def _against(self, candidate: Model) -> Iterator[Finding]:
        for name in self.drawn:
            text = f"output '{name}' cannot be compared, because the model draws random numbers ({self.draws})"
            yield replace(_not_compared(text), note=not_comparable(self.drawn))
        compared, theirs = [], []  # positions in `slots`; the slots of the candidate
        for position, slot in enumerate(self.slots):
            if slot.output not in candidate.outputs:
                if slot.before is None:
                    yield Finding("numerics", False, f"{slot.label} is missing and was not compared", compared=False)
                continue
            result = _before_saturation(candidate.proto, slot.output) if slot.before else slot
            if result is None or result.before != slot.before:
                last = f"from {result.before}" if result else "not from a saturating operator"
                yield _not_compared(f"{slot.label} was not compared: it now comes {last}")
                continue
            compared.append(position)
            theirs.append(result)
        try:
            running = candidate.session_with([slot.tensor for slot in theirs], self.threads, self.optimise)
            yield Finding(
                "structure", True, f"ONNX Runtime loads {'and optimises ' if self.optimise else ''}the candidate"
            )
        except RLFlowError as error:
            yield Finding("structure", False, str(error))
            return
        runs: dict[str, bool] = {}  # sizes → whether the candidate runs on all inputs of this size
        for given, wanted in self.sets:
            if given.sizes and not candidate.takes({name: array.shape for name, array in given.arrays.items()}):
                continue  # the interface fixed a size
            ran, findings = self._on(given, wanted, running, compared, theirs)
            yield from (replace(finding, sizes=dict(given.sizes)) for finding in findings)
            if ran is not None:
                where = sizes_text(given.sizes)
                runs[where] = runs.get(where, True) and ran
        if len(runs) > 1:
            yield _runs_at_every_size(runs)

    def _on(
        self, given: InputSet, wanted: Sequence[Wanted], running, compared: Sequence[int], theirs: Sequence[Slot]
    ) -> tuple[bool | None, list[Finding]]:
        """Compare the candidate with the original on one set of inputs.

        Args:
          given: the inputs.
          wanted: the expected value of each of `self.slots`.
          running: a session of the candidate.
          compared: the positions in `self.slots` of the slots that the candidate has too.
          theirs: the candidate's slots, in the order of `compared`.

        Returns:
          (True if the candidate ran, False if it failed, None if it was not run; the findings).
        """
        name = f"{given.name}, optimised" if self.optimise else given.name
        if wanted and all(each.value is None for each in wanted):
            return None, [_not_compared(f"{name}: nothing was compared: {wanted[0].why_not}")]
        try:
            values = _run(running, given.arrays, theirs)
        except RLFlowError as error:
            return False, [Finding("numerics", False, f"{name}: {error}")]
        return True, [
            _finding(f"{name}: {slot.label}", wanted[position], value, self.slots[position], slot)
            for position, slot, value in zip(compared, theirs, values, strict=True)
        ]


def _runs_at_every_size(runs: Mapping[str, bool]) -> Finding:
    what, refused = "at every size that the original runs at", [where for where, ran in runs.items() if not ran]
    if refused:
        return Finding("structure", False, f"does not run {what}: {'; '.join(refused)}")
    return Finding("structure", True, f"runs {what}: {len(runs)} were tried")


def _not_compared(message: str) -> Finding:
    return Finding("numerics", True, message, compared=False)


def _finding(label: str, wanted: Wanted, new: object, ours: Slot, theirs: Slot) -> Finding:
    old = wanted.value
    if wanted.why_not is not None:
        return _not_compared(f"{label} was not compared: {wanted.why_not}")
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):  # a sequence, a map or an absent optional
        same = _same(old, new)
        return Finding("numerics", same, f"{label}: {'equal' if same else 'differs'} (not a tensor)")
    if ours.before and old.shape != new.shape:
        return _not_compared(f"{label} was not compared: its shapes are {list(old.shape)} and {list(new.shape)}")
    if ours.axes(old.ndim) != theirs.axes(new.ndim):
        return _not_compared(f"{label} was not compared: other axes are normalised")
    if old.shape != new.shape or old.dtype != new.dtype:
        return Finding("numerics", False, f"{label}: was {old.dtype}{list(old.shape)}, is {new.dtype}{list(new.shape)}")
    if old.dtype.kind != "f":
        same = _same(old, new)
        return Finding("numerics", same, f"{label}: {'equal' if same else 'differs, and must be equal'}")
    error = relative_error(old if wanted.precise is None else wanted.precise, new, wanted.floor)
    how = "" if wanted.precise is None else f": low precision, {OWN_MARGIN:g} times ONNX Runtime's own"
    return Finding(
        "numerics", error <= wanted.limit, f"{label}: relative error {error:.1e} (limit {wanted.limit:.0e}{how})", error
    )


def _comparable(value: object, other: object) -> bool:
    """Return whether both values are float arrays of the same shape."""
    arrays = isinstance(value, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and value.dtype.kind == other.dtype.kind == "f" and value.shape == other.shape


def _run(running, arrays: dict[str, np.ndarray], slots: Sequence[Slot]) -> list[object]:
    values = run(running, arrays, [slot.tensor for slot in slots] or None)
    if not slots:
        return []  # The run shows that the model runs. Its outputs are not compared.
    return [slot.seen(value) for slot, value in zip(slots, values, strict=True)]


def _before_saturation(model: onnx.ModelProto, output: str) -> Slot | None:
    """Return the slot of the input of the saturating operator that makes an output, directly or through views.

    Return None if there is no such operator, or if no node makes its input.

    Args:
      model: the model.
      output: the name of the output.
    """
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
    """Return the largest finite absolute value in a float array; 0 for other values."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return 0.0
    return float(np.abs(value[np.isfinite(value)]).max(initial=0.0))


def relative_error(old: np.ndarray, new: np.ndarray, floor: float = 0.0) -> float:
    """Return max |new − old| / max |old| over finite values; infinity if shapes, NaN or infinities differ.

    Args:
      old: the expected tensor.
      new: the other tensor.
      floor: the smallest divisor. If it is 0 and `old` is 0 everywhere, the error is absolute.
    """
    if old.shape != new.shape:
        return float("inf")
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return float("inf")
    old, new = old[finite].astype(np.float64), new[finite].astype(np.float64)
    scale = max(float(np.abs(old).max(initial=0.0)), floor)
    return float(np.abs(new - old).max(initial=0.0) / (scale if scale > 0 else 1.0))
