"""Open-loop replay of recorded episodes by the world model "edits", and how wide its predictions spread."""

from collections.abc import Sequence

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.base import Replay
from worldmodel.edits.grounded_episodes import NO_OP, GroundedEpisode, by_grounding, ground_episode
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.logged_edits import initial_runtime, logged_edits
from worldmodel.edits.reward_scales import RewardScale
from worldmodel.edits.simulator import UNKNOWN_EFFECT, Simulator


class Replayer:
    """Replays S stretches of `horizon` actions each. result: see `worldmodel.base.Replay`. spread: float64 [S,
    horizon], of rewards."""

    def __init__(self, model, rows: np.ndarray, starts: np.ndarray, horizon: int):
        size = len(rows), horizon
        counts = np.zeros((*size, model.spec.n_rules), np.int32)
        self.model, self.rows, self.starts = model, rows, starts
        self.result = Replay(np.zeros(size), np.zeros(size, bool), counts, np.zeros(size, np.float32))
        self.spread = np.zeros(size)

    def replay(self, episodes: Sequence[Episode]) -> None:
        """Fills in the results; rows are numbers of these episodes."""
        logs = logged_edits(episodes)
        for index, numbers in by_grounding(self.model.groundings, logs).items():
            grounded = {k: ground_episode(index, logs[k]) for k in numbers if k in self.rows}
            stretches = np.flatnonzero(np.isin(self.rows, numbers))
            if len(stretches):
                scale = self.model.rewards.of(initial_runtime(logs[numbers[0]].edits[0]))
                self._replay_group(index, stretches, [grounded[k] for k in self.rows[stretches]], scale)

    def _replay_group(
        self, index: GroundingIndex, stretches: np.ndarray, episodes: list[GroundedEpisode], scale: RewardScale
    ) -> None:
        """Of one grounding's stretches, int64 [k], in k episodes."""
        starts = self.starts[stretches]
        before = np.array([episode.gains[:start].sum() for episode, start in zip(episodes, starts, strict=True)])
        simulator = self.model.simulator(index, [e.nodes[start] for e, start in zip(episodes, starts, strict=True)])
        for t in range(self.result.rewards.shape[1]):
            actions = np.array([_action(episode, start + t) for episode, start in zip(episodes, starts, strict=True)])
            gain, spread, moves = self._step(simulator, stretches, actions, t)
            self.result.rewards[stretches, t] = np.where(moves, scale.reward(gain, before), 0.0)
            self.spread[stretches, t] = abs(scale.per_ps) * spread
            before += gain

    def _step(
        self, simulator: Simulator, stretches: np.ndarray, actions: np.ndarray, t: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ps gained, their spread, whether it is no NO-OP), [k] each. actions: int64 [k, 2], xfer_id and match."""
        states, index, result = simulator.states, simulator.index, self.result
        states.grow()
        matches = np.array([index.representative(match) if match >= 0 else match for match in actions[:, 1].tolist()])
        there, moves = matches >= 0, matches != NO_OP
        gain, spread = np.zeros(len(matches)), np.zeros(len(matches))
        gain[moves], spread[moves] = simulator.expected(actions[moves, 0])
        there[there] = states.open[np.flatnonzero(there), matches[there]] == 0
        at = np.flatnonzero(there)
        result.uncertainty[stretches[~there & moves], t] = UNKNOWN_EFFECT
        result.terminated[stretches, t] = matches == NO_OP
        if len(at):
            step = simulator.step(at, matches[at])
            gain[at], spread[at], result.uncertainty[stretches[at], t] = step.gain, step.spread, step.uncertainty
        result.counts[stretches, t] = np.minimum(states.counts, self.model.spec.max_locations)
        return gain, spread, moves


def _action(episode: GroundedEpisode, t: int) -> tuple[int, int]:
    return (int(episode.xfer_ids[t]), int(episode.matches[t])) if t < len(episode.matches) else (NO_OP, NO_OP)
