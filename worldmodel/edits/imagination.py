"""The observer, the imagined rollouts and the open-loop replays of the world model "edits".

`EditsObserver` and `EditsImagination` implement `Observer` and `Imagination` of `worldmodel.base`, and `Replayer`
computes a `Replay`. The observer sorts the matches of a rule by match class, then by the position of their nodes in
the initial graph. For the exploration in `rlflow.collect`, it also answers which rewrites the training data contain.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from rlflow.collect.edits import MatchRecord, edit_between, first_edit, match_record
from rlflow.collect.episodes import Episode
from rlflow.env.state import RewriteState
from rlflow.rules.match import Match
from worldmodel.base import Imagined, Replay
from worldmodel.edits.dream_states import StateChange
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.logged_episodes import (
    NO_OP,
    EpisodeFollower,
    GroundedEpisode,
    by_grounding,
    ground_episode,
    initial_runtime,
    logged_edits,
    new_runtimes,
)
from worldmodel.edits.node_values import node_latents
from worldmodel.edits.reward_scales import RewardScale
from worldmodel.edits.simulator import UNKNOWN_EFFECT, Simulator, Step
from worldmodel.spaces import within


class EditsObserver:
    """The observer of a real episode; see `worldmodel.base.Observer` for its attributes.

    Random play that explores unknown rewrites (rlflow/collect) uses the same class with the methods `took`, `knows`,
    `times` and `expects`.
    """

    h = np.zeros(0, np.float32)

    def __init__(self, model):
        self.model = model

    def begin(self, state: RewriteState) -> None:
        first = first_edit(state)
        self.model.observe(state, first)
        index = self.model.groundings.of(first)
        self._index, self.follower, self.state = index, EpisodeFollower(index.grounding, first), state
        self._located: dict[int, dict] = defaultdict(dict)  # rule → {result of `_name` for a match: result of `_order`}
        self._locate(first.lost, first.appeared)
        self._begin_z()
        self._times = self.model.groundings.rules.times()
        self._expected: dict[tuple[int, int | None], float] = {}  # results of `expects`

    def follow(self, action: Sequence[int], state: RewriteState) -> None:
        self.took(self.state.table.location(*self.real_action(action)), state)

    def took(self, match: Match, state: RewriteState) -> None:
        """Update the observer after one real step.

        Args:
          match: the match of the previous state that was rewritten.
          state: the real state after the rewrite.
        """
        edit = edit_between(self.state, match, state)
        self.model.observe(state, edit)
        self.follower.follow(edit, match_record(self.state, match))
        self._locate(edit.lost, edit.appeared)
        self.state = state

    # -- observations ------------------------------------------------------------------------------

    def _begin_z(self) -> None:
        """Prepare `z` for a new episode."""
        self._node_latents = node_latents(self._index, self.model.latents)

    @property
    def z(self) -> np.ndarray:
        self._index.update()
        values = self._node_latents(self.follower.numbers())
        return self.model.bounded(self.model.latents.offset + values.sum(axis=0))

    @property
    def counts(self) -> np.ndarray:
        return self.state.counts

    @property
    def class_counts(self) -> np.ndarray:
        limit, classes = self.model.spec.max_locations, []
        for xfer_id, located in self._located.items():
            allowed = located.values() if len(located) <= limit else self._orders(xfer_id)
            classes += [match_class for match_class, _ in allowed]
        return np.bincount(classes, minlength=len(self.model.match_classes)).astype(np.int32)

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        return int(action[0]), self._locations(int(action[0]))[int(action[1])]

    def model_action(self, action: Sequence[int]) -> tuple[int, int]:
        return int(action[0]), self._locations(int(action[0])).index(int(action[1]))

    # -- the order of locations --------------------------------------------------------------------

    def _locations(self, xfer_id: int) -> list[int]:
        """Return the environment's location numbers of a rule, in the order of the model's location numbers."""
        if xfer_id not in self._sorted:
            orders = self._orders(xfer_id)
            self._sorted[xfer_id] = sorted(range(len(orders)), key=orders.__getitem__)
        return self._sorted[xfer_id]

    def _orders(self, xfer_id: int) -> list[tuple]:
        """Return the sort key (see `_order`) of each location of a rule, in the order of the environment's numbers."""
        matches = islice(self.state.table.of_rule(xfer_id), self.model.spec.max_locations)
        return [self._located[xfer_id][self._name(match_record(self.state, match))] for match in matches]

    def _locate(self, lost: Iterable[MatchRecord], appeared: Iterable[MatchRecord]) -> None:
        self._sorted: dict[int, list[int]] = {}  # rule → results of `_locations` in the present state
        for match in lost:
            self._located[match.xfer_id].pop(self._name(match), None)  # edits list both orders of a symmetric match
        for match in appeared:
            of_rule, name, order = self._located[match.xfer_id], self._name(match), self._order(match)
            of_rule[name] = min(order, of_rule.get(name, order))

    def _name(self, match: MatchRecord) -> MatchRecord | frozenset[int]:
        return frozenset(match.nodes) if match.xfer_id in self.model.groundings.rules.symmetric else match

    def _order(self, match: MatchRecord) -> tuple:
        """Return the sort key of a match, as `GroundingIndex.order_of` does.

        A match whose pattern is not in the data belongs to the last match class of its rule.
        """
        number, index = self.follower.match(match), self._index
        if number is None:
            match_class = index.match_classes.of(match.xfer_id, None, ())
            return match_class, index.grounding.order_of(*self.follower.grounded(match))
        index.update()
        return index.order_of(number)

    # -- queries of exploration --------------------------------------------------------------------

    def knows(self, match: Match) -> bool:
        """Return True if the training data contain a rewrite with the pattern and signature of a match."""
        number = self.follower.match(match_record(self.state, match))
        if number is None:
            return False
        grounding = self._index.grounding
        ground = grounding.matches[number]
        return bool(grounding.rules.patterns[ground.pattern].effects.get(grounding.match_signature(ground)))

    def times(self, xfer_id: int) -> int:
        """Return the number of rewrites of a rule in the training data."""
        return self._times[xfer_id]

    def expects(self, match: Match) -> float:
        """Return the median observed gain (ps) of the pattern of a match, or of its rule if the pattern has no data."""
        number = self.follower.match(match_record(self.state, match))
        pattern = None if number is None else self._index.grounding.matches[number].pattern
        named = match.xfer_id, pattern
        if named not in self._expected:
            self._expected[named] = self.model.costs.gains(*named, None)[0]
        return self._expected[named]


class EditsImagination:
    """A batch of imagined rollouts; see `worldmodel.base.Imagination`.

    The gain of a step is drawn from a Gaussian with the mean `Step.gain` and the standard deviation temperature ×
    `Step.spread`. For a known effect, the spread comes from logged runtimes of nodes with equal neighbourhoods.

    Args:
      model: the world model.
      start: the real state at which all rollouts start.
      n: the number of rollouts.
    """

    def __init__(self, model, start: RewriteState, n: int):
        first, unchanged = first_edit(start), start.task.initial.cost.runtime_ps
        model.observe(start, first)
        index, self._scale = model.groundings.of(first), model.rewards.of(unchanged)
        nodes, costs = new_runtimes(EpisodeFollower(index.grounding, first), first)
        self.model, self.limit = model, model.spec.max_locations
        self._start_gained = unchanged - start.cost.runtime_ps
        self._gained = np.full(n, self._start_gained, np.float64)  # runtime saved since the task's initial graph (ps)
        self._simulator = model.simulator(index, [nodes], [costs])
        self._start = self._simulator.states
        self._simulator.states = self._start.taken(np.zeros(n, np.int64))
        self._begin_z(index, nodes, n)
        self.h = np.zeros((n, 0), np.float32)

    def _begin_z(self, index: GroundingIndex, nodes: np.ndarray, n: int) -> None:
        """Prepare `z` for n rollouts that start at the graph with these nodes."""
        self._node_latents = node_latents(index, self.model.latents)
        self._start_sum = self.model.latents.offset + self._node_latents(nodes).sum(axis=0)
        self._sums = np.tile(self._start_sum, (n, 1))

    def _restart_z(self, rows: np.ndarray) -> None:
        self._sums[rows] = self._start_sum

    def _change_z(self, change: StateChange) -> None:
        change.add_to(self._sums, self._node_latents)

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

    def _consistent(self, rows: np.ndarray, step: Step, *gains: np.ndarray) -> Sequence[np.ndarray]:
        """Return the gains of a step, corrected where a rollout came back to a graph; here they stay as they are.

        Args:
          rows: int [k], the rollouts that moved.
          step: the predictions of the simulator for them.
          gains: float64 [k] each, gains (ps); the rollouts have gained the first of them.
        """
        return gains

    def restart(self, rows: np.ndarray) -> None:
        self._simulator.states.copy_rows(np.flatnonzero(rows), self._start)
        self._restart_z(rows)
        self._gained[rows] = self._start_gained

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        n = len(actions)
        rewards, expected, uncertainty = np.zeros(n), np.zeros(n), np.zeros(n, np.float32)
        moved = np.flatnonzero(rows)
        if len(moved):
            matches = self._simulator.states.matches_at(moved, np.asarray(actions)[moved])
            step = self._simulator.step(moved, matches)
            noise = np.random.default_rng(seed).standard_normal(n)[moved] if temperature > 0 else 0.0
            gained = step.gain + temperature * step.spread * noise
            gained, most_likely = self._consistent(moved, step, gained, step.gain)
            uncertainty[moved] = step.uncertainty
            rewards[moved] = self._scale.reward(gained, self._gained[moved])
            expected[moved] = self._scale.reward(most_likely, self._gained[moved])
            self._gained[moved] += gained
            if step.change is not None:
                self._change_z(step.change)
        return Imagined(rewards, np.zeros(n, bool), uncertainty, expected)


class Replayer:
    """An open-loop replay of S stretches of `horizon` recorded actions; see `worldmodel.base.WorldModel.replay`.

    Attributes:
      result: the predictions, filled in by `replay`.
      spread: float64 [S, horizon], the standard deviation of the predicted gain of each step, in units of the reward.
    """

    def __init__(self, model, rows: np.ndarray, starts: np.ndarray, horizon: int):
        size = len(rows), horizon
        counts = np.zeros((*size, model.spec.n_rules), np.int32)
        self.model, self.rows, self.starts = model, rows, starts
        self.result = Replay(np.zeros(size), np.zeros(size, bool), counts, np.zeros(size, np.float32))
        self.spread = np.zeros(size)

    def replay(self, episodes: Sequence[Episode]) -> None:
        """Predict all stretches and write the predictions to `result` and `spread`.

        Args:
          episodes: the recorded episodes, which `rows` indexes.
        """
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
        """Replay the stretches that belong to one grounding.

        Args:
          index: the grounding.
          stretches: int64 [k], the indices of these stretches.
          episodes: for each of the k stretches, its episode.
          scale: the conversion of saved runtime to rewards.
        """
        starts = self.starts[stretches]
        before = np.array([episode.gains[:start].sum() for episode, start in zip(episodes, starts, strict=True)])
        real = list(zip(episodes, starts.tolist(), strict=True))
        nodes, costs = [e.nodes[start] for e, start in real], [e.costs(start) for e, start in real]
        simulator = self.model.simulator(index, nodes, costs)
        self.begin(simulator, stretches, episodes)
        for t in range(self.result.rewards.shape[1]):
            actions = np.array([_action(episode, start + t) for episode, start in zip(episodes, starts, strict=True)])
            gain, spread, moves = self._step(simulator, stretches, actions, t)
            self.result.rewards[stretches, t] = np.where(moves, scale.reward(gain, before), 0.0)
            self.spread[stretches, t] = abs(scale.per_ps) * spread
            before += gain
            self.finish_step(simulator, stretches, t, actions[:, 0], gain, before)

    def begin(self, simulator: Simulator, stretches: np.ndarray, episodes: list[GroundedEpisode]) -> None:
        """Prepare the replay of the stretches of one grounding; do nothing.

        Args:
          simulator: the simulator of the imagined states.
          stretches: int64 [k], the indices of these stretches.
          episodes: for each of the k stretches, its episode.
        """

    def finish_step(
        self, simulator: Simulator, stretches: np.ndarray, t: int, xfer_ids: np.ndarray, gain: np.ndarray,
        saved: np.ndarray,
    ) -> None:  # fmt: skip
        """Complete the predictions of one step; do nothing.

        A subclass overrides `begin` and this method to add predictions of a recurrent state.

        Args:
          simulator: the simulator of the imagined states, after the step.
          stretches: int64 [k], the indices of the stretches.
          t: the number of actions that were replayed before.
          xfer_ids: int64 [k], the rules of the actions; NO_OP for NO-OP.
          gain: float64 [k], the predicted gains (ps).
          saved: float64 [k], the runtime saved since the start of each episode (ps).
        """

    def _step(
        self, simulator: Simulator, stretches: np.ndarray, actions: np.ndarray, t: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Replay one action in each of k stretches, and write its uncertainty, end and location counts to `result`.

        Args:
          simulator: the simulator of the k imagined states; modified.
          stretches: int64 [k], the indices of the stretches.
          actions: int64 [k, 2], the rule and the match of each action; see `GroundedEpisode`.
          t: the number of actions that were replayed before.

        Returns:
          (float64 [k] gain in ps, float64 [k] its standard deviation in ps, bool [k]: True unless the action is NO-OP).
        """
        states, index, result = simulator.states, simulator.index, self.result
        states.grow()
        matches = np.array([index.representative(match) if match >= 0 else match for match in actions[:, 1].tolist()])
        there, moves = matches >= 0, matches != NO_OP
        gain, spread = np.zeros(len(matches)), np.zeros(len(matches))
        gain[moves], spread[moves] = self.model.costs.gains.expected(actions[moves, 0])
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
