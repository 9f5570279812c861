"""The MDN-RNN as a dream (`MDNRNNImagination`) and as an observer of real episodes (`MDNRNNObserver`)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.common.task import State
from worldmodel.base import Imagined


class RecurrentState(NamedTuple):
    """The recurrent states of the LSTMs of all k members of an ensemble, concatenated.

    Controllers observe the first H columns of h, which belong to the first member.

    Attributes:
      h: float32 [B, k · H], the outputs.
      c: float32 [B, k · H], the cells.
    """

    h: np.ndarray
    c: np.ndarray


class DreamtLatents(NamedTuple):
    """The current states of B dreams.

    Attributes:
      z: float32 [B, Z], the latent states.
      counts: int32 [B, N], the predicted number of locations of each rule, an input of the next step.
      shown: int32 [B, N], the counts that controllers observe: `counts`, but 0 where the mask head predicts that the
        rule has no location.
      h, c: float32 [B, k · H], see `RecurrentState`.
    """

    z: np.ndarray
    counts: np.ndarray
    shown: np.ndarray
    h: np.ndarray
    c: np.ndarray


class MDNRNNImagination:
    """A batch of n imagined rollouts; see `worldmodel.base.Imagination`.

    Args:
      model: the world model.
      z: float32 [n, Z], the latent states at the start.
      counts: int32 [n, N], the number of locations of each rule at the start.
      state: the recurrent states at the start.
    """

    def __init__(self, model, z: np.ndarray, counts: np.ndarray, state: RecurrentState):
        self._model = model
        self._start = self._now = DreamtLatents(z, counts, counts, *state)

    @property
    def z(self) -> np.ndarray:
        return self._now.z

    @property
    def h(self) -> np.ndarray:
        return self._now.h[:, : self._model.hidden]

    @property
    def counts(self) -> np.ndarray:
        return self._now.shown

    class_counts = counts  # one match class for each rule

    def restart(self, rows: np.ndarray) -> None:
        self._now = _where(rows, self._start, self._now)

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        now = self._now
        step = self._model.step(now.z, now.counts, actions, RecurrentState(now.h, now.c), temperature, seed)
        self._now = _where(rows, DreamtLatents(step.z, step.counts, step.shown_counts, *step.state), now)
        return Imagined(step.reward.astype(np.float64), step.terminated > 0.5, step.uncertainty)


class MDNRNNObserver:
    """The observer of a real episode; see `worldmodel.base.Observer`.

    z encodes the real graph. h comes from the same LSTM as in dreams. Locations are numbered as in the environment.
    """

    def __init__(self, model):
        self._model = model

    @property
    def class_counts(self) -> np.ndarray:
        """The number of matches of each match class, int [N]; each rule is one match class."""
        return self.counts

    def begin(self, state: State) -> None:
        self._state = self._model.initial_state(1)
        self._see(state)

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        return int(action[0]), int(action[1])

    model_action = real_action

    def follow(self, action: Sequence[int], state: State) -> None:
        actions = np.asarray(action)[None]
        self._state = self._model.recur(self.z[None], self.counts[None], actions, self._state)
        self._see(state)

    def _see(self, state: State) -> None:
        self.z, self.counts = self._model.encode([state.arrays()])[0], state.counts
        self.h = self._state.h[0, : self._model.hidden]


def _where(rows: np.ndarray, new: DreamtLatents, old: DreamtLatents) -> DreamtLatents:
    return DreamtLatents(*(np.where(rows[:, None], a, b) for a, b in zip(new, old, strict=True)))
