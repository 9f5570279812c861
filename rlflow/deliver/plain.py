"""Delivery for tasks whose results are their decisions: each is carried out anew, and the best goes into a receipt.

What ONNX models need besides (files, equality, latency) is rlflow/deliver/delivery.py.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_json
from rlflow.deliver.candidates import Candidate, Decision, follow
from rlflow.deliver.receipt import versions
from rlflow.tasks.base import TaskSpec

FORMAT = 1


def deliver_steps(spec: TaskSpec, candidates: Sequence[Candidate], folder: Path) -> dict:
    """Step by step: the actions of a candidate lead to its state again, in a task that is opened anew. See
    `TaskSpec.deliver`.
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
    """One-shot: a decision is worth again what it was worth, unrepaired; the original is the instance's control."""
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
    """One line: what was delivered, and how far below the original it is."""
    before = outcome["original"]["objective"]
    if outcome["delivered"] == "original":
        return f"{before / task.per_unit:g} {task.unit}: {outcome['reason']}"
    after = outcome["candidates"][outcome["delivered"]]["objective"]
    bound = outcome.get("lower_bound")
    known = f"; nothing is below {bound / task.per_unit:g}" if bound is not None else ""
    return f"{before / task.per_unit:g} → {after / task.per_unit:g} {task.unit}, by {outcome['delivered']}{known}"


def _entry(candidate: Candidate | Decision, objective: int, result_hash: object, equal: bool) -> dict:
    return {
        "objective": int(objective), "hash": None if result_hash is None else str(result_hash), "equal": bool(equal),
        "interactions": candidate.interactions, "seconds": candidate.seconds,
    }  # fmt: skip


def _deliver(spec: TaskSpec, task, result: dict, actions: dict, original: int, folder: Path) -> dict:
    better = [name for name, one in result.items() if one["equal"] and one["objective"] < original]
    name = min(better, key=lambda each: result[each]["objective"]) if better else "original"
    if better:
        receipt = {
            "format": FORMAT, "spec": type(spec).__name__, "initial_hash": str(task.initial.hash),
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
        "reason": "lowest objective of those that come out the same again" if better else "no gain", "actions": actions,
    }  # fmt: skip
