"""Exploring episodes: repeat the first actions of a known episode, then take the steps that have been seen least.

This is Go-Explore (Ecoffet et al. 2021): exploring episodes branch off from the greedy episode of the controller. The
exploring steps are drawn in one of three ways. 40 % draw a match that the world model does not know, if there is one.
Among unknown matches, matches with an expected gain come first, then matches whose plan the episode has applied least.
35 % (RAREST) draw a match of the rules that were applied the fewest times: a chain of rewrites is found only if its
first step is taken, although this step may gain nothing. The remaining 25 % (UNIFORM) draw any valid action but NO-OP.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol, runtime_checkable

import numpy as np

from rlflow.collect.episodes import Episode
from rlflow.collect.rollouts import record
from rlflow.common.errors import RLFlowError
from rlflow.common.task import LocalState, Match, Reward, Task, valid_actions

UNIFORM = 0.25  # share of the exploring steps that are drawn uniformly from all valid actions
RAREST = 0.35  # share of the exploring steps that are drawn from the matches of the rules applied the fewest times


@runtime_checkable
class ExplorationObserver(Protocol):
    """An observer of exploring episodes that knows the matches of earlier episodes; world models provide observers."""

    def begin(self, state: LocalState) -> None:
        """Record that an episode starts in this state."""

    def took(self, match: Match, state: LocalState) -> None:
        """Record a step of the episode.

        Args:
          match: the match of the previous state that was applied.
          state: the state after the step.
        """

    def knows(self, match: Match) -> bool:
        """Return True if the observer knows the effect of a match of the current state from earlier episodes."""

    def times(self, xfer_id: int) -> int:
        """Return how often earlier episodes applied the rule with this xfer_id."""

    def expects(self, match: Match) -> float:
        """Return the expected gain of a match of the current state, estimated from similar matches."""


def play_novel(
    task: Task, reward: Reward, prefix: Sequence[Sequence[int]], steps: int, rng: np.random.Generator, index: int = 0,
    observer: ExplorationObserver | None = None, restored: Sequence[LocalState] = (),
) -> Episode:
    """Play an exploring episode: apply given actions first, then explore (Go-Explore, Ecoffet et al. 2021).

    An exploring step is drawn from all valid actions but NO-OP (with probability UNIFORM), from the matches of the
    rules that were applied the fewest times (RAREST), or from the least familiar matches. The familiarity of a match
    consists, in descending order of importance, of three values: whether the observer knows the match, whether the
    observer expects no gain, and how often this episode applied the plan of the match.

    Args:
      task: the task.
      reward: the reward.
      prefix: the valid actions with which the episode begins.
      steps: largest number of exploring steps.
      rng: the random generator.
      index: index of the episode.
      observer: an observer that knows the matches of earlier episodes; None to count only the plans of this episode.
      restored: the states before and after each action of the prefix, which are then not computed again; () if they are
        unknown.

    Raises:
      RLFlowError: the task has neither a valid action nor NO-OP.
    """
    states, actions, tried, taken = [task.initial], [], Counter(), Counter()
    if observer is not None:
        observer.begin(task.initial)

    def carry_out(xfer_id: int, location: int, known: LocalState | None = None) -> None:
        match = states[-1].match(xfer_id, location)
        tried[match.plan] += 1
        taken[xfer_id] += 1
        actions.append((xfer_id, location))
        states.append(known or states[-1].follow(match))
        if known is None:
            states[-1].arrays()  # Encoding each state at once is incremental.
        if observer is not None:
            observer.took(match, states[-1])

    def familiarity(match: Match) -> tuple[bool, bool, int]:
        if observer is None:
            return False, False, tried[match.plan]
        return observer.knows(match), observer.expects(match) <= 0, tried[match.plan]

    def commonness(match: Match) -> int:
        return taken[match.xfer_id] + (observer.times(match.xfer_id) if observer is not None else 0)

    for (xfer_id, location), known in zip_longest(prefix, restored[1:]):
        carry_out(int(xfer_id), int(location), known)
    for _ in range(steps):
        valid = valid_actions(states[-1].counts, stop=False).tolist()
        if not valid:
            break
        draw = rng.random()
        if draw >= UNIFORM:
            known = list(map(commonness if draw < UNIFORM + RAREST else familiarity, states[-1].matches))
            least = min(known)
            valid = [action for action, familiar in zip(valid, known, strict=True) if familiar == least]
        carry_out(*valid[rng.integers(len(valid))])
    if not actions:  # no rule applies anywhere
        if not task.encoding_spec.stop:
            raise RLFlowError("no episode can be played, because no rule applies; choose another model or more rules")
        actions.append((task.encoding_spec.n_rules, 0))
        states.append(task.initial)
    return record(task, reward, states, actions, index, max(0, len(restored) - 1))
