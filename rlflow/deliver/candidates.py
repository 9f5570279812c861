"""Candidates for delivery: a rewritten graph, the actions that lead to it, and who came to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlflow.env.state import RewriteState, Task


@dataclass(frozen=True)
class Candidate:
    """A rewritten graph and who came to it.

    Attributes:
      name: "controller", "random" or the name of a search; the order of candidates breaks ties.
      actions: (xfer_id, location) pairs that lead from the initial state to `state`.
      interactions: steps of the real environment that were spent on it.
      seconds: time that was spent on it.
    """

    name: str
    state: RewriteState
    actions: Sequence[tuple[int, int]]
    interactions: int
    seconds: float


def states_along(task: Task, actions: Sequence[tuple[int, int]]) -> list[RewriteState]:
    """The initial state and the one after each of the valid actions."""
    states = [task.initial]
    for xfer_id, location in actions:
        states.append(states[-1].apply(int(xfer_id), int(location)))
    return states


def follow(task: Task, actions: Sequence[tuple[int, int]]) -> RewriteState:
    """The state at the end of a list of valid actions."""
    return states_along(task, actions)[-1]


def improvement(before: float, after: float) -> float:
    """Percent by which `after` is lower."""
    return 100.0 * (1.0 - after / before) if before else 0.0
