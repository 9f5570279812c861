"""What every world model is: learned from episodes, it follows real graphs and imagines what actions do to them.

A model numbers the locations of a rule in an order of its own (`Observer.real_action` translates), since the canonical
order of a graph is a matter of the whole graph and a dream need not know it. Masks stay prefixes all the same.

Matches that are alike in rule, pattern and attributes, wherever they are, form a *match class*. A rule's locations are
ordered by match class, so the counts of the classes say which locations belong to which class. A model that does not
distinguish the matches of a rule has one match class for each rule.

`uncertainty` is what a model says of its own prediction of a step, on its own scale; a dream can be cut or paid less
for it.

Matches are chosen by class, since a location's number says nothing of what is there: what was learnt of one match would
say nothing of the next. A match class is what a match consists of, wherever it is (`edits`: rule, pattern and
signatures; `mdn-rnn`: the rule); an action stays (xfer, location). What each class usually earns is part of the
observation space: PPO and CMA-ES begin with it as a greedy prior, and learn what to do otherwise. Of what was never
carried out `edits` and `graph-mdn` say what they predict; else it is 0, and only real steps can show more.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec, LocalState, Match, State


class Observer(Protocol):
    """Follows one real episode.

    z: float32 [Z].  h: float32 [H].  counts: int32 [N], locations per rule.  class_counts: int32 [K], per match class.
    """

    z: np.ndarray
    h: np.ndarray
    counts: np.ndarray
    class_counts: np.ndarray

    def begin(self, state: State) -> None:
        """A new episode starts here."""

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        """The environment's (xfer_id, location) for one of the model's."""

    def follow(self, action: Sequence[int], state: State) -> None:
        """The model's valid action, no NO-OP, led to this state."""


class Imagined(NamedTuple):
    """One step of n dreams, as predicted.

    rewards: float64 [n].  terminated: bool [n], by the task (NO-OP aside).  uncertainty: float32 [n], of the model
    about the step, 0 where it has seen its like; its scale is the model's own.
    """

    rewards: np.ndarray
    terminated: np.ndarray
    uncertainty: np.ndarray


class Imagination(Protocol):
    """n dreams side by side, from one start.

    z: float32 [n, Z].  h: float32 [n, H].  counts: int32 [n, N] and class_counts: int32 [n, K], as observed.
    """

    z: np.ndarray
    h: np.ndarray
    counts: np.ndarray
    class_counts: np.ndarray

    def restart(self, rows: np.ndarray) -> None:
        """Puts the dreams in rows, bool [n], back to the start."""

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        """Takes the valid actions, int [n, 2], in rows, bool [n]; the other dreams stay as they are.

        At temperature 0 the most likely outcome; the same arguments give the same dream.
        """


class Replay(NamedTuple):
    """Open loop: S stretches of `horizon` recorded actions as the model predicts them from their first graph on.

    rewards: float64 [S, horizon]. terminated: bool [S, horizon]. counts: int32 [S, horizon, N], after each action.
    uncertainty: float32 [S, horizon].
    """

    rewards: np.ndarray
    terminated: np.ndarray
    counts: np.ndarray
    uncertainty: np.ndarray


class UnpredictableRewardError(RLFlowError):
    """Episodes are rewarded as this world model cannot predict.

    The message says which one can; whoever knows the reward's name adds it.
    """


class WorldModel(Protocol):
    """spec: the encoding. latent, hidden: Z and H. config: its options.

    match_classes: int32 [K], the rule of each match class, ascending.
    usual_rewards: float32 [K], what each match class usually earned in the data (by its own steps' gain, where all
      gains so far are rewarded at every step and the model knows that): the median, since one that mostly gains loses
      a hundred times as much behind a few rewrites that no good way makes; of one that nobody rewrote, what the
      model says (worldmodel/edits/class_rewards.py); `mdn-rnn`: the rule's mean.
    """

    spec: EncodingSpec
    config: object
    latent: int
    hidden: int
    match_classes: np.ndarray
    usual_rewards: np.ndarray

    def observer(self) -> Observer: ...

    def imagine(self, start: State, n: int) -> Imagination:
        """n dreams that start at this real state, with nothing remembered."""

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        """What it predicts, at temperature 0, for the actions of episode rows[s] from step starts[s] on, s < S.

        The real steps before a start may be used to warm up. What lies past an episode's end is not read.
        """

    def calibration(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How often what happened lies in the regions that it gave 50 % and 90 %: {"coverage_50", "coverage_90"}."""

    def save(self, folder: Path | str) -> None: ...

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self: ...


# -- what a world model may offer besides ----------------------------------------------------------


@runtime_checkable
class Searchable(Protocol):
    """A world model whose dreams `rlflow.search` can walk like real states."""

    def searchable(self, start: LocalState, uncertainty_limit: float) -> "DreamtState":
        """The start as such a state. Steps of which the model is more uncertain are not offered, or lead nowhere."""


class DreamtState(LocalState, Protocol):
    """gained: rewards since the start of the dream."""

    gained: float

    def remembered(self) -> tuple | None:
        """The `rlflow.search.base.Path` to the best state of this problem that the model learnt from, if any."""

    def offers(self, match: Match) -> bool:
        """Whether the match exists."""
