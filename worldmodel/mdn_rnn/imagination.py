"""Dreams of the MDN-RNN, and the real graphs in its eyes."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rlflow.common.task import GraphArrays, State
from worldmodel.base import Imagined


class RecurrentState(NamedTuple):
    """h float32 [B, k · H], the LSTMs' outputs, and their cells c float32 [B, k · H], of k members side by side.

    Controllers see the first H of h.
    """

    h: np.ndarray
    c: np.ndarray


class DreamtLatents(NamedTuple):
    """Where B dreams are. z float32 [B, Z]; counts, shown int32 [B, N]; h, c float32 [B, k · H].

    `counts` are the predicted locations, the next step's input; `shown` are 0 where the mask head denies the rule.
    """

    z: np.ndarray
    counts: np.ndarray
    shown: np.ndarray
    h: np.ndarray
    c: np.ndarray


class Recurrent(Protocol):
    """What dreams and observers need of a model: MDNRNNWorldModel has it."""

    hidden: int
    dynamics: object

    def encode(self, graphs: Sequence[GraphArrays]) -> np.ndarray: ...

    def meanings(self, graphs: Sequence[GraphArrays], matched: Sequence[np.ndarray]) -> np.ndarray: ...

    def initial_state(self, batch_size: int) -> RecurrentState: ...

    def step(self, z, counts, actions, state: RecurrentState, temperature: float, seed: tuple[int, int]): ...

    def recur(self, z, counts, actions, meaning, state: RecurrentState) -> RecurrentState: ...


class MDNRNNImagination:
    """See `worldmodel.base.Imagination`. The dreams start at z [n, Z], counts [n, N] and the recurrent state."""

    def __init__(self, model: Recurrent, z: np.ndarray, counts: np.ndarray, state: RecurrentState):
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
    """See `worldmodel.base.Observer`. z encodes the real graph; h comes from the cell that dreams.

    Locations are numbered as in the environment.
    """

    def __init__(self, model: Recurrent):
        self._model = model

    @property
    def class_counts(self) -> np.ndarray:
        """One match class for each rule."""
        return self.counts

    def begin(self, state: State) -> None:
        self._state = self._model.initial_state(1)
        self._see(state)

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        return int(action[0]), int(action[1])

    def follow(self, action: Sequence[int], state: State) -> None:
        actions = np.asarray(action)[None]
        self._state = self._model.recur(self.z[None], self.counts[None], actions, self._meaning(action), self._state)
        self._see(state)

    def _meaning(self, action: Sequence[int]) -> np.ndarray:
        """float32 [1, M] of the nodes that the action really matches."""
        if not self._model.dynamics.meaning:
            return np.zeros((1, 0), np.float32)
        match = self._real.match(*self.real_action(action))
        return self._model.meanings([self._graph], [self._real.rows(match.nodes)])

    def _see(self, state: State) -> None:
        self._real, self._graph = state, state.arrays()
        self.z, self.counts = self._model.encode([self._graph])[0], state.counts
        self.h = self._state.h[0, : self._model.hidden]


def _where(rows: np.ndarray, new: DreamtLatents, old: DreamtLatents) -> DreamtLatents:
    return DreamtLatents(*(np.where(rows[:, None], a, b) for a, b in zip(new, old, strict=True)))
