"""The interface of a world model, which learns from episodes, follows real graphs and predicts the effect of actions.

A world model numbers the matches of a rule in an order of its own. The environment uses the canonical order, which
depends on the whole graph, and a dream need not know the whole graph. `Observer.real_action` translates the model's
location numbers into the environment's. In both orders the mask of valid locations is a prefix.

Matches with equal rule, pattern and attributes form a *match class*, wherever they occur. The locations of a rule are
ordered by match class, so the number of matches per class determines the class of each location. A model that does not
distinguish the matches of a rule has one match class per rule.

An action is a pair (xfer_id, location), but controllers choose the match class and derive the location. A location
number says nothing about the match, so a policy over location numbers would not generalise. The observation space
contains the median reward of each match class. PPO and CMA-ES start from these rewards as a greedy prior. For a class
without data, `edits` and `graph-mdn` predict the reward, and `mdn-rnn` uses 0.

`uncertainty` is a world model's own estimate of how unreliable a predicted step is, on a scale of that model. A dream
can end at an uncertain step, or subtract a penalty from its reward.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec, LocalState, Match, State


class Observer(Protocol):
    """The latent state of one real episode, which a world model updates after every real step.

    Attributes:
      z: float32 [Z], the latent state.
      h: float32 [H], the recurrent state.
      counts: int32 [N], the number of valid locations of each rule.
      class_counts: int32 [K], the number of valid locations of each match class.
    """

    z: np.ndarray
    h: np.ndarray
    counts: np.ndarray
    class_counts: np.ndarray

    def begin(self, state: State) -> None:
        """Start to follow a new real episode.

        Args:
          state: the first state of the episode.
        """

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        """Translate an action (xfer_id, location) from the model's location numbers to the environment's."""

    def model_action(self, action: Sequence[int]) -> tuple[int, int]:
        """Translate an action (xfer_id, location) from the environment's location numbers to the model's."""

    def follow(self, action: Sequence[int], state: State) -> None:
        """Update the latent state after one real step.

        Args:
          action: the action of the step, a valid (xfer_id, location) in the model's location numbers, not NO-OP.
          state: the real state after the action.
        """


class Imagined(NamedTuple):
    """The predicted outcome of one step in each of n imagined rollouts.

    Attributes:
      rewards: float64 [n], the reward of the step.
      terminated: bool [n], True if the predicted step ends the episode. The end by NO-OP is not predicted.
      uncertainty: float32 [n], the uncertainty of the step on the model's own scale; 0 means that the model expects no
        error. `mdn-rnn` with one member always reports 0.
      expected: float64 [n], the rewards without the noise that the temperature scales; None if they have none.
      stops: the rewards of NO-OP in the rollouts that were not advanced, as a pair of arrays like (`rewards`,
        `expected`); None if NO-OP has the reward 0.
    """

    rewards: np.ndarray
    terminated: np.ndarray
    uncertainty: np.ndarray
    expected: np.ndarray | None = None
    stops: tuple[np.ndarray, np.ndarray] | None = None


class Imagination(Protocol):
    """A batch of n imagined rollouts that start at the same real state.

    Attributes:
      z: float32 [n, Z], the latent states.
      h: float32 [n, H], the recurrent states.
      counts: int32 [n, N], the predicted number of valid locations of each rule.
      class_counts: int32 [n, K], the predicted number of valid locations of each match class.
    """

    z: np.ndarray
    h: np.ndarray
    counts: np.ndarray
    class_counts: np.ndarray

    def restart(self, rows: np.ndarray) -> None:
        """Reset the rollouts selected by `rows`, bool [n], to the start state."""

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        """Apply one action in each selected rollout and leave the other rollouts unchanged.

        Args:
          actions: int [n, 2], a valid (xfer_id, location) for each selected rollout; other entries are ignored.
          rows: bool [n], True for the rollouts to advance.
          temperature: τ, which scales the randomness of the outcome; 0 gives the most likely outcome.
          seed: two integers that seed the random numbers of the step.

        Returns:
          The predicted outcome of the step.
        """


class Replay(NamedTuple):
    """Open-loop predictions for S stretches of an episode, with `horizon` recorded actions each.

    The model receives the real graph at the start of a stretch and the recorded actions.

    Attributes:
      rewards: float64 [S, horizon], the predicted reward of each action.
      terminated: bool [S, horizon], True if the action is predicted to end the episode.
      counts: int32 [S, horizon, N], the predicted number of valid locations of each rule after each action.
      uncertainty: float32 [S, horizon], the uncertainty of each predicted step.
    """

    rewards: np.ndarray
    terminated: np.ndarray
    counts: np.ndarray
    uncertainty: np.ndarray


class UnpredictableRewardError(RLFlowError):
    """Raised if the episodes use a reward that this world model cannot predict.

    The message names a world model that can predict the reward. The caller adds the name of the reward.
    """


class WorldModel(Protocol):
    """A learned simulator of the environment.

    Attributes:
      spec: the sizes of the task's observations and actions.
      config: the options of the model.
      latent: Z, the size of the latent state z.
      hidden: H, the size of the recurrent state h.
      match_classes: int32 [K], the xfer_id of the rule of each match class, ascending.
      usual_rewards: float32 [K], the median reward of each match class in the data; a mean would be dominated by rare,
        large losses. If a step's reward contains the gains of earlier steps, a model may use the gain of the step
        alone. A class without data has a predicted reward (edits/class_rewards.py). `mdn-rnn` uses the mean reward of
        the rule.
      files: the names of the files with everything that was learned.
      digest: the SHA-256 digest of these files, which `worldmodel.train_and_load.load` sets; None for a model that was
        not loaded. Controllers store the digest of the world model in which they were trained.
    """

    spec: EncodingSpec
    config: object
    latent: int
    hidden: int
    match_classes: np.ndarray
    usual_rewards: np.ndarray
    files: tuple[str, ...]
    digest: str | None

    def observer(self) -> Observer: ...

    def imagine(self, start: State, n: int) -> Imagination:
        """Return n imagined rollouts from a real state. The recurrent state h begins as at the start of an episode.

        Args:
          start: the real state at which all rollouts start.
          n: the number of rollouts.
        """

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        """Predict S stretches of recorded episodes open loop, at temperature 0.

        Args:
          episodes: the recorded episodes. Steps before the start of a stretch may warm up the recurrent state.
          rows: int [S], for each stretch the index of its episode in `episodes`.
          starts: int [S], for each stretch the index of its first step in the episode.
          horizon: number of steps per stretch. Predictions after the end of an episode have no meaning.
        """

    def calibration(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Measure how often real outcomes of single steps lie in the predicted central regions.

        Returns:
          {"coverage_50": share of outcomes in the predicted 50 % region, "coverage_90": share in the 90 % region}.
        """

    def save(self, folder: Path | str) -> None: ...

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self: ...


# -- optional abilities of a world model ----------------------------------------------------------


@runtime_checkable
class Searchable(Protocol):
    """A world model whose imagined states can be explored by the searches in `rlflow.search`, like real states."""

    def searchable(self, start: LocalState, uncertainty_limit: float) -> "DreamtState":
        """Return the imagined state that equals a real state and that a search can explore.

        Args:
          start: the real state.
          uncertainty_limit: a match whose step has a higher uncertainty is left out, or following it returns the state
            unchanged.
        """


class DreamtState(LocalState, Protocol):
    """An imagined state that a search can explore.

    Attributes:
      gained: the sum of the predicted rewards since the start state.
    """

    gained: float

    def remembered(self) -> tuple | None:
        """Return the path from the start state to the best state of this problem in the training data.

        The path may end before that state, at the first recorded step that the model cannot follow with certainty.

        Returns:
          A `rlflow.search.base.Path`, or None if the training data do not contain the problem.
        """

    def offers(self, match: Match) -> bool:
        """Return True if the match exists in this state and the model is certain enough of its effect."""
