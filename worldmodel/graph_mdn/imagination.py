"""The latent and the recurrent state of "graph-mdn" in imagined rollouts, real episodes and open-loop replays.

The base classes in worldmodel/edits/imagination.py advance the graphs. After each step of the graphs, the
`EpisodeState` follows the step. It adds the rest of the reward that the graphs do not explain, and predicts if the
episode ends.
"""

from collections.abc import Sequence

import numpy as np

from rlflow.collect.episodes import Episode
from rlflow.env.state import RewriteState
from worldmodel.base import Imagined
from worldmodel.edits.dream_states import StateChange
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.imagination import EditsImagination, EditsObserver, Replayer
from worldmodel.edits.logged_episodes import NO_OP, GroundedEpisode, initial_runtime
from worldmodel.edits.simulator import UNKNOWN_EFFECT, Step
from worldmodel.graph_mdn.episode_network import SCALARS, Sequences, inputs_of, padded
from worldmodel.graph_mdn.simulator import NeuralSimulator

MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number, whose products spread the bits of a hash


class NeuralObserver(EditsObserver):
    """The observer of a real episode, with the latent state z and the recurrent state h of the dream."""

    def _begin_z(self) -> None:
        self._rows, self._encoded = self.model.node_rows(self._index), None  # (state, its z)

    @property
    def z(self) -> np.ndarray:
        if self._encoded is None or self._encoded[0] is not self.state:
            nodes = self.follower.numbers()
            self._encoded = self.state, self.model.graph_latents.of_nodes(self._index, self._rows, [nodes])[0]
        return self._encoded[1]

    def begin(self, state: RewriteState) -> None:
        super().begin(state)
        self.h, self._steps = np.zeros(self.model.hidden, np.float32), 0
        self._initial = state.task.initial.cost.runtime_ps

    def follow(self, action: Sequence[int], state: RewriteState) -> None:
        before = self.state.cost.runtime_ps
        super().follow(action, state)
        if self.model.episode_state is None:
            return
        percent, saved = self.model.percent(self._initial), self._initial - state.cost.runtime_ps
        gain, now = np.array([before - state.cost.runtime_ps]), np.array([self._steps])
        inputs = inputs_of(self.z[None], percent * gain, percent * np.array([saved]), now, np.zeros(1))
        self.h = self.model.episode_state(inputs, np.array([action[0]]), self.h[None], 0.0, (0, 0)).h[0]
        self._steps += 1


class NeuralImagination(EditsImagination):
    """A batch of imagined rollouts whose recurrent states begin with zeros; see `worldmodel.base.Imagination`.

    Predicted costs of nodes can depend on the way to a graph, but the cost of a real graph does not. If a rollout comes
    back to a graph, the graph therefore has its first cost again. Without this, a rewrite and its inverse gained 1.9 %
    each time that a policy applied both.
    """

    def __init__(self, model, start: RewriteState, n: int):
        super().__init__(model, start, n)
        self._simulator.states = self._start
        self._simulator.encode()
        self._simulator.states = self._start.taken(np.zeros(n, np.int64))
        self.h, self._steps = np.zeros((n, model.hidden), np.float32), np.zeros(n, np.int64)
        self._percent = model.percent(start.task.initial.cost.runtime_ps)
        self._first = {self._hashes(np.arange(1))[0]: self._start_gained}
        # For each rollout: hash of a graph → the runtime gained when the rollout first came to it (ps).
        self._visited = [dict(self._first) for _ in range(n)]

    def _consistent(self, rows: np.ndarray, step: Step, *gains: np.ndarray) -> Sequence[np.ndarray]:
        gains, known = np.array(gains), step.uncertainty < UNKNOWN_EFFECT
        for k, (row, key) in enumerate(zip(rows.tolist(), self._hashes(rows), strict=True)):
            visited, before = self._visited[row], self._gained[row]
            if known[k] and key in visited:
                gains[:, k] = visited[key] - before
            visited.setdefault(key, before + gains[0, k])
        return gains

    def _hashes(self, rows: np.ndarray) -> list[int]:
        """Return a hash of the present graph of each rollout in `rows`, from the neighbourhoods of its nodes."""
        numbers = self._simulator.states.keys[rows, :, -1].astype(np.uint64)
        numbers = (numbers ^ (numbers >> np.uint64(15))) * MIX
        return ((numbers ^ (numbers >> np.uint64(29))) * MIX).sum(axis=1).tolist()

    def _begin_z(self, index: GroundingIndex, nodes: np.ndarray, n: int) -> None:
        pass  # the simulator encodes the graphs

    def _restart_z(self, rows: np.ndarray) -> None:
        pass

    def _change_z(self, change: StateChange) -> None:
        pass

    @property
    def z(self) -> np.ndarray:
        return self.model.graph_latents.z(self._simulator.states.totals[:, :-1])

    def restart(self, rows: np.ndarray) -> None:
        super().restart(rows)
        self.h[rows], self._steps[rows] = 0.0, 0
        for row in np.flatnonzero(rows).tolist():
            self._visited[row] = dict(self._first)

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        if self.model.episode_state is None:
            return super().advance(actions, rows, temperature, seed)
        # The mixture has learnt all errors of predictions without noise, so it is the only noise.
        before, imagined = self._gained.copy(), super().advance(actions, rows, 0.0, seed)
        inputs = inputs_of(
            self.z, self._percent * (self._gained - before), self._percent * self._gained, self._steps,
            imagined.uncertainty,
        )  # fmt: skip
        followed = self.model.episode_state(inputs, np.asarray(actions)[:, 0], self.h, temperature, seed)
        self.h = np.where(rows[:, None], followed.h, self.h)
        self._steps = self._steps + rows
        # Where gains explain the rewards, NO-OP pays nothing in the data.
        stops = None if self.model.rewards.pays else (followed.rests, followed.expected)
        return Imagined(
            np.where(rows, imagined.rewards + followed.rests, 0.0), rows & followed.ends, imagined.uncertainty,
            np.where(rows, imagined.rewards + followed.expected, 0.0), stops,
        )  # fmt: skip


class NeuralReplayer(Replayer):
    """An open-loop replay with the recurrent state, which is warmed up by the real steps before a stretch.

    Attributes:
      inputs: float32 [S, horizon, Z + SCALARS], the inputs of the recurrent state.
      rules: int32 [S, horizon], the rule of each action; N is NO-OP.
    """

    def __init__(self, model, rows: np.ndarray, starts: np.ndarray, horizon: int):
        super().__init__(model, rows, starts, horizon)
        self.inputs = np.zeros((len(rows), horizon, model.latent + SCALARS), np.float32)
        self.rules = np.zeros((len(rows), horizon), np.int32)

    def begin(self, simulator: NeuralSimulator, stretches: np.ndarray, episodes: list[GroundedEpisode]) -> None:
        model, starts, index = self.model, self.starts[stretches], simulator.index
        simulator.encode()
        self._index, self._rows = index, model.node_rows(index)
        self._percent = model.percent(initial_runtime(index.grounding.first))
        self._h = np.zeros((len(stretches), model.hidden), np.float32)
        if model.episode_state is not None and starts.any():
            self._warm(episodes, starts)

    def _warm(self, episodes: list[GroundedEpisode], starts: np.ndarray) -> None:
        """Set the recurrent state of each stretch to the state after the real steps that precede the stretch.

        Args:
          episodes: the episode of each of the k stretches.
          starts: int64 [k], the number of steps before each stretch.
        """
        several = {id(episode): episode for episode in episodes}
        inputs, rules = zip(*[self._real_inputs(episode) for episode in several.values()], strict=True)
        longest = max(map(len, rules))
        states = self.model.episode_state.states(padded(inputs, longest), padded(rules, longest))
        numbers = {key: number for number, key in enumerate(several)}
        for k, (episode, start) in enumerate(zip(episodes, starts.tolist(), strict=True)):
            if start:
                self._h[k] = states[numbers[id(episode)], start - 1]

    def _real_inputs(self, episode: GroundedEpisode) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs of the cell for the real steps of an episode, and their rules."""
        z = self.model.graph_latents.of_nodes(self._index, self._rows, episode.nodes[1:])
        steps, gain = np.arange(len(episode.gains)), self._percent * episode.gains
        return inputs_of(z, gain, gain.cumsum(), steps, np.zeros(len(steps))), self._rules(episode.xfer_ids)

    def _rules(self, xfer_ids: np.ndarray) -> np.ndarray:
        return np.where(xfer_ids == NO_OP, self.model.spec.n_rules, xfer_ids).astype(np.int32)

    def finish_step(
        self, simulator: NeuralSimulator, stretches: np.ndarray, t: int, xfer_ids: np.ndarray, gain: np.ndarray,
        saved: np.ndarray,
    ) -> None:  # fmt: skip
        z = self.model.graph_latents.z(simulator.states.totals[:, :-1])
        steps, result = self.starts[stretches] + t, self.result
        unsure = result.uncertainty[stretches, t]
        inputs = inputs_of(z, self._percent * gain, self._percent * saved, steps, unsure)
        rules = self._rules(xfer_ids)
        self.inputs[stretches, t], self.rules[stretches, t] = inputs, rules
        if self.model.episode_state is not None:
            followed = self.model.episode_state(inputs, rules, self._h, 0.0, (0, 0))
            self._h = followed.h
            result.rewards[stretches, t] += followed.rests
            result.terminated[stretches, t] |= followed.ends


def predicted_sequences(model, episodes: Sequence[Episode]) -> Sequences:
    """Predict whole episodes open loop from their first graphs, and return the errors for the recurrent state to learn.

    Args:
      model: a `GraphMDNWorldModel` whose `episode_state` is None.
      episodes: recorded episodes.
    """
    longest, no_op = max(map(len, episodes)), model.spec.n_rules
    rows = np.arange(len(episodes))
    replayer = model.replayer(rows, np.zeros(len(rows), np.int64), longest)
    replayer.replay(episodes)
    rests, ends, within = (np.zeros((len(rows), longest), np.float32) for _ in range(3))
    for k, episode in enumerate(episodes):
        n = len(episode)
        rests[k, :n] = episode.rewards - replayer.result.rewards[k, :n]
        ends[k, :n] = episode.terminated & (episode.actions[:, 0] != no_op)
        within[k, :n] = 1.0
    return Sequences(replayer.inputs, replayer.rules, rests, ends, within)
