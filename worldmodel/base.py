"""The interface of a world model: it is learned from episodes, follows real graphs and predicts the effect of actions.

A model numbers the locations of a rule in an order of its own. `Observer.real_action` translates that number into the
environment's. The canonical order of a graph depends on the whole graph, which a dream need not know. In both orders
the mask of valid locations is a prefix.

Matches with equal rule, pattern and attributes form a *match class*, wherever they occur. The locations of a rule are
ordered by match class, so the counts of the classes tell which locations belong to which class. A model that does not
distinguish the matches of a rule has one match class per rule.

Controllers choose a match by its class. A location number says nothing about the match at that location, so learning by
number would not generalise. An action stays (xfer, location). The median class reward is part of the observation space:
PPO and CMA-ES start from it as a greedy prior. For a class without data `edits` and `graph-mdn` give their prediction,
and `mdn-rnn` gives 0.

`uncertainty` is the model's own estimate for a predicted step, on the model's own scale. A dream can end at an
uncertain step, or reduce its reward.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec, LocalState, Match, State


class Observer(Protocol):
    """The latent view of one real episode, as a world model follows it.

    Attributes:
      z: float32 [Z], the latent state.
      h: float32 [H], the recurrent state.
      counts: int32 [N], locations per rule.
      class_counts: int32 [K], locations per match class.
    """

    z: np.ndarray
    h: np.ndarray
    counts: np.ndarray
    class_counts: np.ndarray

    def begin(self, state: State) -> None:
        """Start a new episode at this state."""

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        """Return the environment's (xfer_id, location) for an action of the model."""

    def follow(self, action: Sequence[int], state: State) -> None:
        """Take over the state that an action led to.

        Args:
          action: a valid (xfer_id, location) in the model's numbering, not NO-OP.
          state: the state after the action.
        """


class Imagined(NamedTuple):
    """The predicted outcome of one step in n dreams.

    Attributes:
      rewards: float64 [n].
      terminated: bool [n], whether the task ended the episode; NO-OP is not included.
      uncertainty: float32 [n], on the model's own scale; 0 where the model has seen such a step.
    """

    rewards: np.ndarray
    terminated: np.ndarray
    uncertainty: np.ndarray


class Imagination(Protocol):
    """A batch of n imagined rollouts from one start.

    Attributes:
      z: float32 [n, Z], the latent states.
      h: float32 [n, H], the recurrent states.
      counts: int32 [n, N], locations per rule.
      class_counts: int32 [n, K], locations per match class.
    """

    z: np.ndarray
    h: np.ndarray
    counts: np.ndarray
    class_counts: np.ndarray

    def restart(self, rows: np.ndarray) -> None:
        """Reset the dreams in rows, bool [n], to the start."""

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        """Apply one action in each selected dream; the other dreams do not change.

        Args:
          actions: int [n, 2], valid (xfer_id, location).
          rows: bool [n], the dreams to advance.
          temperature: τ; 0 gives the most likely outcome.
          seed: two integers; equal arguments give equal dreams.

        Returns:
          The predicted outcome of the step.
        """


class Replay(NamedTuple):
    """Open-loop predictions for S stretches of `horizon` recorded actions, each from the first graph of its stretch.

    Attributes:
      rewards: float64 [S, horizon].
      terminated: bool [S, horizon].
      counts: int32 [S, horizon, N], after each action.
      uncertainty: float32 [S, horizon].
    """

    rewards: np.ndarray
    terminated: np.ndarray
    counts: np.ndarray
    uncertainty: np.ndarray


class UnpredictableRewardError(RLFlowError):
    """Raised when the episodes use a reward that this world model cannot predict.

    The message names a world model that can. The caller, which knows the name of the reward, adds it to the message.
    """


class WorldModel(Protocol):
    """A learned simulator of the environment.

    Attributes:
      spec: the encoding of the task.
      config: the options of the model.
      latent: Z, the size of z.
      hidden: H, the size of h.
      match_classes: int32 [K], the rule of each match class, ascending.
      usual_rewards: float32 [K], the median class rewards in the data. The mean would be dominated by rare, large
        losses. Where every step is rewarded with all gains so far, a model may take the gain of the step alone. A
        class that was never rewritten has the model's prediction (edits/class_rewards.py). `mdn-rnn` gives the mean
        reward of the rule.
    """

    spec: EncodingSpec
    config: object
    latent: int
    hidden: int
    match_classes: np.ndarray
    usual_rewards: np.ndarray

    def observer(self) -> Observer: ...

    def imagine(self, start: State, n: int) -> Imagination:
        """Return n dreams that start at this real state with an initial recurrent state."""

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        """Return the predictions at temperature 0 for recorded actions.

        Args:
          episodes: the recorded episodes. The steps before a start may warm up the model; steps after an end are not
            read.
          rows: int [S], the episode of each stretch.
          starts: int [S], the first step of each stretch.
          horizon: steps per stretch.
        """

    def calibration(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return how often the outcome lies in the predicted 50 % and 90 % regions: {"coverage_50", "coverage_90"}."""

    def save(self, folder: Path | str) -> None: ...

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self: ...


# -- optional abilities of a world model ----------------------------------------------------------


@runtime_checkable
class Searchable(Protocol):
    """A world model whose dreams `rlflow.search` can explore like real states."""

    def searchable(self, start: LocalState, uncertainty_limit: float) -> "DreamtState":
        """Return the start as a state that a search can explore.

        Args:
          start: the real state.
          uncertainty_limit: steps with a higher uncertainty are not offered, or lead nowhere.
        """


class DreamtState(LocalState, Protocol):
    """A state of a dream that a search can explore.

    Attributes:
      gained: the sum of rewards since the start of the dream.
    """

    gained: float

    def remembered(self) -> tuple | None:
        """Return the `rlflow.search.base.Path` to the best known state of this problem in the training data, or None.
        """

    def offers(self, match: Match) -> bool:
        """Return whether the match exists in this state."""
