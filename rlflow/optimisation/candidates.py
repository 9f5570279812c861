"""Candidates for delivery: the result of a search or controller, as a state with the actions that lead to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlflow.common.task import State, Task


@dataclass(frozen=True)
class Candidate:
    """A result of a step-by-step task: a state (a rewritten graph) and the search or controller that found it.

    Attributes:
      name: the name of a search, "controller", "untrained" or "no-prior" (controllers before any training, the second
        one without its prior), "transfer" (a controller trained on other models), "receipt" (rewrites of an earlier
        result), "measured" (the fastest graph measured during training) or "random". A variant made by a contest
        appends a suffix, such as "beam-without-fusion".
      state: the state after the actions.
      actions: (xfer_id, location) pairs that lead from the initial state to `state`.
      interactions: the number of steps in the real environment that led to this result, data for training included.
      seconds: the duration of the search or of acting; for "measured" the duration of training.
      measurement_seconds: seconds of latency measurements for rewards; within one stage of the run, each graph counts
        once.
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
      name: the name of the method that found the decision.
      decision: int64 [n], one decision in the space of the task's `Instance`.
      objective: the value of the decision; lower is better.
      interactions: the number of decisions that the method evaluated, in training too.
      seconds: the duration of the method, without training.
    """

    name: str
    decision: np.ndarray
    objective: int
    interactions: int
    seconds: float


def measurement_seconds(figures: Mapping) -> float:
    """Return the entry `measurement_seconds` of a candidate's stored figures; 0 for older files without the entry."""
    return float(figures.get("measurement_seconds", 0.0))


def states_from(state: State, actions: Iterable[tuple[int, int]]) -> list[State]:
    """Return a state and the state after each action.

    Args:
      state: the first state.
      actions: (xfer_id, location) pairs, valid from this state.
    """
    states = [state]
    for xfer_id, location in actions:
        states.append(states[-1].apply(int(xfer_id), int(location)))
    return states


def states_along(task: Task, actions: Iterable[tuple[int, int]]) -> list[State]:
    """Return the initial state of a step-by-step task and the state after each action.

    Args:
      task: the task.
      actions: (xfer_id, location) pairs, valid from the initial state.
    """
    return states_from(task.initial, actions)


def follow(task: Task, actions: Sequence[tuple[int, int]]) -> State:
    """Return the state after the last of the actions; the arguments are as for `states_along`."""
    state = task.initial
    for xfer_id, location in actions:
        state = state.apply(int(xfer_id), int(location))
    return state


def improvement(before: float, after: float) -> float:
    """Return by how many percent `after` is lower than `before`; 0 if `before` is 0.

    Args:
      before, after: two values of one quantity, such as runtimes in ms.
    """
    return 100.0 * (1.0 - after / before) if before else 0.0
