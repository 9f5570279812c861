"""Dreams of the MDN-RNN, and its views of real graphs."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rlflow.common.task import GraphArrays, State
from worldmodel.base import Imagined


class RecurrentState(NamedTuple):
    """The recurrent state of k members side by side. Controllers see the first H entries of h.

    Attributes:
      h: float32 [B, k · H], outputs of the LSTMs.
      c: float32 [B, k · H], their cells.
    """

    h: np.ndarray
    c: np.ndarray


class DreamtLatents(NamedTuple):
    """The current states of B dreams.

    Attributes:
      z: float32 [B, Z].
      counts: int32 [B, N], predicted locations, the input of the next step.
      shown: int32 [B, N], the same, but 0 where the mask head predicts that the rule does not apply.
      h, c: float32 [B, k · H].
    """

    z: np.ndarray
    counts: np.ndarray
    shown: np.ndarray
    h: np.ndarray
    c: np.ndarray


class Recurrent(Protocol):
    """The methods of a model that dreams and observers call; MDNRNNWorldModel implements them."""

    hidden: int
    dynamics: object

    def encode(self, graphs: Sequence[GraphArrays]) -> np.ndarray: ...

    def meanings(self, graphs: Sequence[GraphArrays], matched: Sequence[np.ndarray]) -> np.ndarray: ...

    def initial_state(self, batch_size: int) -> RecurrentState: ...

    def step(self, z, counts, actions, state: RecurrentState, temperature: float, seed: tuple[int, int]): ...

    def recur(self, z, counts, actions, meaning, state: RecurrentState) -> RecurrentState: ...


class MDNRNNImagination:
    """A batch of imagined rollouts from z [n, Z], counts [n, N] and a recurrent state; see
    `worldmodel.base.Imagination`.
    """

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
    """The observer of a real episode; see `worldmodel.base.Observer`.

    z encodes the real graph, and h comes from the cell that dreams. Locations are numbered as in the environment.
    """

    def __init__(self, model: Recurrent):
        self._model = model

    @property
    def class_counts(self) -> np.ndarray:
        """The number of matches per match class, int [N]; each rule is one match class."""
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
        """Return the mean embedding of the nodes that the action matches, float32 [1, M]."""
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
