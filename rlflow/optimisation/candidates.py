"""Candidates for delivery: the result of a search or controller, as a state with the actions that lead to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlflow.common.task import State, Task


@dataclass(frozen=True)
class Candidate:
    """A result of a step-by-step task: a state (a rewritten graph) and the search or controller that found it.

    Attributes:
      name: the name of a search, "controller", "transfer" (a controller trained on other models), "receipt" (rewrites
        of an earlier result), "measured" (the fastest graph measured during training) or "random". The order of
        candidates breaks ties.
      state: the state after the actions.
      actions: (xfer_id, location) pairs that lead from the initial state to `state`.
      interactions: steps of the real environment spent on it.
      seconds: time spent on it.
      measurement_seconds: seconds of the measured rewards that it learned from; each graph counts once a stage.
    """

    name: str
    state: State
    actions: Sequence[tuple[int, int]]
    interactions: int
    seconds: float
    measurement_seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """A result of a one-shot task.

    Attributes:
      name: the method that found it.
      decision: int64 [n].
      objective: its value; lower is better.
      interactions: number of evaluations spent on it.
      seconds: time spent on it.
    """

    name: str
    decision: np.ndarray
    objective: int
    interactions: int
    seconds: float


def measurement_seconds(figures: Mapping) -> float:
    """Return the measurement seconds in a candidate's stored figures; 0 for older files, which lack them."""
    return float(figures.get("measurement_seconds", 0.0))


def states_along(task: Task, actions: Sequence[tuple[int, int]]) -> list[State]:
    """Return the initial state and the state after each action.

    Args:
      task: the opened task.
      actions: valid (xfer_id, location) pairs.
    """
    states = [task.initial]
    for xfer_id, location in actions:
        states.append(states[-1].apply(int(xfer_id), int(location)))
    return states


def follow(task: Task, actions: Sequence[tuple[int, int]]) -> State:
    """Return the state after the last of a list of valid actions."""
    return states_along(task, actions)[-1]


def improvement(before: float, after: float) -> float:
    """Return by how many percent `after` is lower than `before`; 0 if `before` is 0."""
    return 100.0 * (1.0 - after / before) if before else 0.0
