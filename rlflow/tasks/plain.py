"""The common part of tasks whose problem is named by the option `model` and whose result is a list of decisions.

`PlainSpec` implements most of the task contract, and `ModelSpec` more of it for a problem that is an ONNX model.
`deliver_steps` and `deliver_decisions` evaluate every candidate again in a newly loaded task, and write the receipt of
the best one. The delivery of an ONNX model also handles files, equality and latency
(`rlflow/optimisation/delivery.py`).
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from omegaconf import OmegaConf

from rlflow.common.errors import RLFlowError
from rlflow.common.files import is_file, write_json, write_text
from rlflow.common.task import ONE_SHOT, EncodingSpec, Instance, Task, TaskSpec
from rlflow.env.step import StepEnv
from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.candidates import Candidate, Decision, follow
from rlflow.optimisation.receipt import versions
from rlflow.zoo import ZOO, load

RECEIPT_FORMAT = 1  # the format of the receipts of `deliver_steps` and `deliver_decisions`


def deliver_steps(spec: TaskSpec, candidates: Sequence[Candidate], folder: Path) -> dict:
    """Repeat the actions of step-by-step candidates in a newly loaded task, and deliver the best candidate.

    A candidate can be delivered only if its actions lead to the same state with the same objective again.

    Args:
      spec: the specification of the task.
      candidates: the candidates.
      folder: the folder for the receipt.

    Returns:
      The dictionary that `TaskSpec.deliver` describes.
    """
    task, result = spec.make_task(), {}
    for candidate in candidates:
        try:
            state = follow(task, candidate.actions)
            equal = state.hash == candidate.state.hash and state.objective == candidate.state.objective
        except RLFlowError:
            equal = False
        result[candidate.name] = _entry(candidate, candidate.state.objective, candidate.state.hash, equal)
    actions = {one.name: [[int(part) for part in action] for action in one.actions] for one in candidates}
    return _deliver(spec, task, result, actions, task.initial.objective, folder)


def deliver_decisions(spec: TaskSpec, decisions: Sequence[Decision], folder: Path) -> dict:
    """Evaluate one-shot decisions in a newly loaded task, and deliver the best decision.

    A decision can be delivered only if it needs no repair and has the same objective again. The original, with which
    decisions are compared, is the control of the instance.

    Args:
      spec: the specification of the task.
      decisions: the decisions.
      folder: the folder for the receipt.

    Returns:
      The dictionary that `TaskSpec.deliver` describes, and `lower_bound`, the bound of the instance or None.
    """
    task, result = spec.make_task(), {}
    instance = task.initial
    for decision in decisions:
        again = instance.evaluate(np.asarray(decision.decision)[None])
        equal = int(again.objectives[0]) == decision.objective and not again.repaired[0]
        result[decision.name] = _entry(decision, decision.objective, None, equal)
    actions = {one.name: np.asarray(one.decision).tolist() for one in decisions}
    original = int(instance.evaluate(instance.control()[None]).objectives[0])
    outcome = _deliver(spec, task, result, actions, original, folder)
    return outcome | {"lower_bound": instance.lower_bound()}


def summary(task, outcome: dict) -> str:
    """Return one line of text: the objectives of the original and of the delivered result, its name, and the bound.

    If the original is delivered, the line holds its objective and the reason.

    Args:
      task: the loaded task.
      outcome: the result of `deliver_steps` or `deliver_decisions`.
    """
    before = outcome["original"]["objective"]
    if outcome["delivered"] == "original":
        return f"{before / task.per_unit:g} {task.unit}: {outcome['reason']}"
    after = outcome["candidates"][outcome["delivered"]]["objective"]
    bound = outcome.get("lower_bound")
    known = f"; lower bound {bound / task.per_unit:g}" if bound is not None else ""
    return f"{before / task.per_unit:g} → {after / task.per_unit:g} {task.unit}, by {outcome['delivered']}{known}"


def _entry(candidate: Candidate | Decision, objective: int, result_hash: object, equal: bool) -> dict:
    """Return the entry of one candidate or decision in `candidates` of the result of `TaskSpec.deliver`."""
    return {
        "objective": int(objective), "hash": None if result_hash is None else str(result_hash), "equal": bool(equal),
        "interactions": candidate.interactions, "seconds": candidate.seconds,
    }  # fmt: skip


def _deliver(spec: TaskSpec, task, result: dict, actions: dict, original: int, folder: Path) -> dict:
    """Write receipt.json for the best reproducible candidate that is better than the original, and return the outcome.

    Args:
      spec: the specification of the task.
      task: the loaded task.
      result: name of a candidate → its entry (`_entry`).
      actions: name of a candidate → its actions or its decision, as a list.
      original: the objective of the original.
      folder: the folder for the receipt.

    Returns:
      The dictionary that `TaskSpec.deliver` describes.
    """
    better = [name for name, one in result.items() if one["equal"] and one["objective"] < original]
    name = min(better, key=lambda each: result[each]["objective"]) if better else "original"
    (folder / "receipt.json").unlink(missing_ok=True)  # of an earlier delivery
    if better:
        receipt = {
            "format": RECEIPT_FORMAT, "spec": type(spec).__name__, "initial_hash": str(task.initial.hash),
            "actions": actions[name],
            "objective": {
                "original": int(original), "result": result[name]["objective"], "unit": task.unit,
                "per_unit": task.per_unit,
            },
            "result_hash": result[name]["hash"], "versions": versions(),
        }  # fmt: skip
        write_json(folder / "receipt.json", receipt)
    return {
        "original": {"objective": int(original)}, "candidates": result, "delivered": name,
        "reason": "lowest objective of all reproducible candidates" if better else "no gain", "actions": actions,
    }  # fmt: skip


@dataclass(frozen=True)
class PlainSpec:
    """A base class that implements most methods of `rlflow.common.task.TaskSpec`.

    A subclass adds `shape` (STEP_BY_STEP or ONE_SHOT) and `make_task`, and `make_reward` if the task is step by step.

    Attributes:
      source: the path of a file with the text that names the problem.
      max_steps: the number of steps after which an episode is truncated (option `env.max_steps`).
    """

    shape: ClassVar[str]

    source: str
    max_steps: int

    @property
    def problem(self) -> str:
        """The text in the file `source`, which names the problem; white space at both ends is removed."""
        try:
            return Path(self.source).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RLFlowError(f"cannot read {self.source}: {error}") from error

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        if is_file(model):
            return Path(model)
        source = folder / "problem.txt"
        write_text(source, model + "\n")
        return source

    @classmethod
    def files(cls, source: Path) -> Sequence[Path]:
        return [source]

    @classmethod
    def settled(cls, config: Mapping, source: Path, begun: Mapping | None = None) -> Mapping:
        if config.inputs:
            raise RLFlowError(f"the task {config.task.name} runs no model; leave out --inputs")
        return config

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        return cls(str(source), config.env.max_steps)

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        return {"max_steps": config.env.max_steps}

    def absolute(self) -> Self:
        return replace(self, source=os.path.abspath(self.source))

    def checked_task(self) -> Task:
        return self.make_task()

    def other_task(self, model: str) -> Task:
        with tempfile.TemporaryDirectory() as folder:
            return replace(self, source=str(self.fetch(model, 0, Path(folder)))).make_task()

    def make_env(self, task: Task, max_steps: int) -> StepEnv:
        return StepEnv(task, self.make_reward(), max_steps, with_graph=False)

    def deliver(self, task: Task, candidates: Sequence, folder: Path, config: Mapping) -> dict:
        carry_out = deliver_decisions if self.shape == ONE_SHOT else deliver_steps
        return carry_out(self, candidates, folder)

    def report(self, task: Task, results: dict, folder: Path) -> dict[str, str]:
        return {"result": summary(task, results["eval"]), "folder": str(folder)}


@dataclass(frozen=True)
class OneShotTask:
    """A loaded one-shot problem; `rlflow.common.task.Task` describes the attributes."""

    initial: Instance
    unit: str
    per_unit: float

    @property
    def encoding_spec(self) -> EncodingSpec:
        return self.initial.spec


@dataclass(frozen=True)
class ModelSpec(PlainSpec):
    """The base class of one-shot tasks whose problem is an ONNX model, by its path or its name in the zoo.

    Attributes:
      shapes: (symbol or input, size or sizes) pairs, the typical sizes of symbolic dimensions (see `typical_sizes`).
      custom_ops: libraries of custom operators that the ONNX file uses.
    """

    shape: ClassVar[str] = ONE_SHOT

    shapes: tuple = ()
    custom_ops: tuple[str, ...] = ()

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        if model not in ZOO:
            return super().fetch(model, seed, folder)
        save_model(load(model, seed), folder / "model.onnx")
        return folder / "model.onnx"

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        shapes = OmegaConf.to_container(config.shapes)
        sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in shapes.items()}
        return cls(str(source), config.env.max_steps, tuple(sizes.items()), tuple(config.custom_ops))

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        return super().depends_on(config) | {"shapes": OmegaConf.to_container(config.shapes)}
