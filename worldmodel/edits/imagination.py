"""Dreams of the world model "edits" for controllers."""

import numpy as np

from rlflow.collect.edits import first_edit
from rlflow.env.state import RewriteState
from worldmodel.base import Imagined
from worldmodel.edits.episode_follower import EpisodeFollower
from worldmodel.edits.node_values import node_latents
from worldmodel.spaces import within


class EditsImagination:
    """See `worldmodel.base.Imagination`. The temperature scales the spread that runtimes had in the same
    neighbourhood."""

    def __init__(self, model, start: RewriteState, n: int):
        first, unchanged = first_edit(start), start.task.initial.cost.runtime_ps
        model.observe(start, first)
        index, self._scale = model.groundings.of(first), model.rewards.of(unchanged)
        nodes = np.array(list(EpisodeFollower(index.grounding, first).nodes.values()), np.int64)
        self.model, self.limit = model, model.spec.max_locations
        self._start_gained = unchanged - start.cost.runtime_ps
        self._gained = np.full(n, self._start_gained, np.float64)  # ps, since the unchanged graph
        self._simulator = model.simulator(index, [nodes])
        self._start = self._simulator.states
        self._simulator.states = self._start.taken(np.zeros(n, np.int64))
        self._node_latents = node_latents(index, model.latents)
        self._start_sum = model.latents.offset + self._node_latents(nodes).sum(axis=0)
        self._sums = np.tile(self._start_sum, (n, 1))
        self.h = np.zeros((n, 0), np.float32)

    @property
    def z(self) -> np.ndarray:
        return self.model.bounded(self._sums)

    @property
    def counts(self) -> np.ndarray:
        return np.minimum(self._simulator.states.counts, self.limit)

    @property
    def class_counts(self) -> np.ndarray:
        states = self._simulator.states
        if states.counts.max() <= self.limit:
            return states.class_counts
        return within(states.class_counts, self.model.match_classes, self.limit)

    def restart(self, rows: np.ndarray) -> None:
        self._simulator.states.copy_rows(np.flatnonzero(rows), self._start)
        self._sums[rows] = self._start_sum
        self._gained[rows] = self._start_gained

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        n = len(actions)
        rewards, uncertainty = np.zeros(n), np.zeros(n, np.float32)
        moved = np.flatnonzero(rows)
        if len(moved):
            matches = self._simulator.states.matches_at(moved, np.asarray(actions)[moved])
            step = self._simulator.step(moved, matches)
            noise = np.random.default_rng(seed).standard_normal(n)[moved] if temperature > 0 else 0.0
            gained = step.gain + temperature * step.spread * noise
            uncertainty[moved] = step.uncertainty
            rewards[moved] = self._scale.reward(gained, self._gained[moved])
            self._gained[moved] += gained
            if step.change is not None:
                step.change.add_to(self._sums, self._node_latents)
        return Imagined(rewards, np.zeros(n, bool), uncertainty)
