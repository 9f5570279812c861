"""Candidates for delivery: a state and the actions that lead to it, or a decision; and who came to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlflow.common.task import State, Task


@dataclass(frozen=True)
class Candidate:
    """Step by step: a state (a rewritten graph), and who came to it.

    Attributes:
      name: "controller", "transfer" (one that learnt on other models), "receipt" (the rewrites of an earlier one),
        "measured" (the fastest graph that its training measured), "random" or the name of a search; the order of
        candidates breaks ties.
      actions: (xfer_id, location) pairs that lead from the initial state to `state`.
      interactions: steps of the real environment that were spent on it.
      seconds: time that was spent on it.
      measurement_seconds: of the measured rewards that it learnt from, each graph once a stage.
    """

    name: str
    state: State
    actions: Sequence[tuple[int, int]]
    interactions: int
    seconds: float
    measurement_seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """One-shot: a decision, int64 [n], its objective, and who came to it with how many evaluations in how many seconds.
    """

    name: str
    decision: np.ndarray
    objective: int
    interactions: int
    seconds: float


def measurement_seconds(figures: Mapping) -> float:
    """Of a candidate, as it was written; older files lack them."""
    return float(figures.get("measurement_seconds", 0.0))


def states_along(task: Task, actions: Sequence[tuple[int, int]]) -> list[State]:
    """The initial state and the one after each of the valid actions."""
    states = [task.initial]
    for xfer_id, location in actions:
        states.append(states[-1].apply(int(xfer_id), int(location)))
    return states


def follow(task: Task, actions: Sequence[tuple[int, int]]) -> State:
    """The state at the end of a list of valid actions."""
    return states_along(task, actions)[-1]


def improvement(before: float, after: float) -> float:
    """Percent by which `after` is lower."""
    return 100.0 * (1.0 - after / before) if before else 0.0
