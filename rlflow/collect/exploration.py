"""Episodes that explore: a return along known actions, then steps towards what has been seen least.

The controller's way is the trunk, and exploring are its branches (Go-Explore, Ecoffet et al. 2021). Drawn are matches
that the world model does not know, first those whose pattern or rule gained elsewhere, and of these what the episode
has tried least: two matches are the same to it if one plan makes what replaces them. So are matches of rules that were
carried out the fewest times: a chain is found only by who takes its first step, which may gain nothing. An episode
explores for as many steps as the way to where it begins has, and at least 30: a long way is one through a large graph.
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

UNIFORM = 0.25  # share of the steps that are drawn from all valid actions,
RAREST = 0.35  # and from the matches of the rule that was carried out least


@runtime_checkable
class ExplorationObserver(Protocol):
    """Watches episodes that explore, and knows what earlier ones have seen: what a world model's observer may be
    besides.
    """

    def begin(self, state: LocalState) -> None:
        """An episode starts here."""

    def took(self, match: Match, state: LocalState) -> None:
        """A match led to this state."""

    def knows(self, match: Match) -> bool:
        """Whether it has seen a match like this one of the state carried out."""

    def times(self, xfer_id: int) -> int:
        """How often it has seen the rule carried out, in earlier episodes."""

    def expects(self, match: Match) -> float:
        """The gain that it expects of a match of the state, by what it knows of others."""


def play_novel(
    task: Task, reward: Reward, prefix: Sequence[Sequence[int]], steps: int, rng: np.random.Generator, index: int = 0,
    observer: ExplorationObserver | None = None, restored: Sequence[LocalState] = (),
) -> Episode:
    """First returns along valid actions, then explores (Go-Explore, Ecoffet et al. 2021).

    It mostly takes what the observer does not know: of that what it expects to gain, and what the episode has tried
    least; or a rule that was carried out the fewest times: what a rare one makes possible, others are needed to see.
    Two matches are the same to the observer if their replacements are made by one plan, wherever they are.

    Args:
      prefix: the valid actions to return along.  steps: of exploration after them.
      restored: the states before and after each action of the prefix, if they are known: then it is copied, not walked.
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
    if not actions:  # nothing applies anywhere
        if not task.encoding_spec.stop:
            raise RLFlowError("an episode needs an action, and nothing can be done with this problem")
        actions.append((task.encoding_spec.n_rules, 0))
        states.append(task.initial)
    return record(task, reward, states, actions, index, max(0, len(restored) - 1))
