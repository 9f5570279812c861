"""A planner: it searches the dream for the best sequence of rewrites, then plays this sequence.

Some world models have dreams whose states can be searched (`DreamVectorEnv.searchable`). The planner then runs beam
search and annealing of `rlflow.search` on dreamt states; `controller.planner.annealing` divides the number of rewrites
between both. Steps about which the world model is too uncertain are not planned. In other dreams the plan is the best
of many sampled episodes, and each new episode departs from the best plan so far.

The world model remembers the rewrites that led to the cheapest graph of its training episodes. If there are any, half
of the searches begin at that graph (Go-Explore, Ecoffet et al. 2021). Finally each step without gain is removed from
the plan if the last state then costs no more.

Greedy play repeats the plan while its next action is valid. Sampled play leaves the plan at a random step for some
random steps. The world model then learns from states near the plan, where the next search will query it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from controllers.base import Controller, Log, Progress, StopReason, derive_seed, same_shapes
from controllers.controller_options import PlannerConfig
from controllers.random import uniform_actions
from rlflow.common.task import Match
from rlflow.search.base import Limits, Path, SearchResult, numbered, run_search, uninterrupted
from worldmodel.base import DreamtState
from worldmodel.trainer import Trainer


class SearchProgress:
    """A tqdm-like bar for `rlflow.search` that calls the `log` and `progress` functions of a training.

    Attributes:
      steps: the number of steps of the whole training.
      done: the number of steps made so far.
    """

    def __init__(self, steps: int, log: Log | None, progress: Progress | None):
        self.done, self.steps = 0, steps
        self._log, self._progress = log, progress

    def update(self, steps: int) -> None:
        self.done += steps
        if self._progress is not None:
            self._progress(min(self.done, self.steps), self.steps)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Do nothing. A search calls this method with a text for the bar, and `log` receives the same figures."""

    def log(self, entries: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """Pass each entry (number of steps so far, {name: scalar}) to the `log` function of the training."""
        if self._log is None:
            return
        for steps, scalars in entries:
            self._log(steps, scalars)


class Plan(NamedTuple):
    """A sequence of T actions that was found in a dream.

    Attributes:
      actions: int64 [T, 2], (xfer_id, location).
      counts: int32 [T, N + 1], the counts that the dream showed before each action.
      dreamt_return: the sum of the predicted rewards of the T steps.
    """

    actions: np.ndarray
    counts: np.ndarray
    dreamt_return: float


def empty_plan(n_xfer_ids: int) -> Plan:
    """Return a plan without actions, for N + 1 = `n_xfer_ids` rules with NO-OP."""
    return Plan(np.zeros((0, 2), np.int64), np.zeros((0, n_xfer_ids), np.int32), 0.0)


def plan_along(start: DreamtState, path: Path | None) -> Plan:
    """Return the plan that applies the matches of a path, without detours that return to an earlier state.

    Args:
      start: the dreamt state at which the path begins.
      path: the path of matches; None is the empty path.
    """
    actions = numbered(start, path)[1]
    counts, state = [], start
    for xfer_id, location in actions:
        counts.append(np.append(state.counts, 1).astype(np.int32))
        state = state.follow(state.match(xfer_id, location))
    observed = np.array(counts, np.int32).reshape(-1, len(start.counts) + 1)
    return Plan(np.array(actions, np.int64).reshape(-1, 2), observed, state.gained)


def shortened(start: DreamtState, actions: list[tuple[int, int]]) -> Path | None:
    """Return the path of a sequence of actions after removing actions that do not lower the cost of the last state.

    An action without gain is removed, with later actions that depend on it, if the last state then costs no more.

    Args:
      start: the first dreamt state.
      actions: pairs (xfer_id, location), to be applied in turn.
    """
    matches, gains, state = [], [], start
    for xfer_id, location in actions:
        match = state.match(xfer_id, location)
        after = state.follow(match)
        matches.append(match)
        gains.append(state.objective - after.objective)
        state = after
    kept, objective = matches, state.objective
    for match, gain in zip(matches, gains, strict=True):
        if gain > 0 or match not in kept:
            continue
        index = kept.index(match)
        rest, end = _apply_existing(start, kept[:index] + kept[index + 1 :])
        if end.objective <= objective:
            kept, objective = rest, end.objective
    path = None
    for match in kept:
        path = match, path
    return path


def _apply_existing(start: DreamtState, matches: list[Match]) -> tuple[list[Match], DreamtState]:
    """Apply matches in turn, except matches that the current state does not have or that change nothing.

    Returns:
      (applied matches, last state).
    """
    state, done = start, []
    for match in matches:
        if not state.offers(match):
            continue
        after = state.follow(match)
        if after is not state:
            state = after
            done.append(match)
    return done, state


SHOTS = 64  # episodes sampled in parallel
LEAVE = 2.0  # a sampled episode departs from a plan of T actions with the probability LEAVE / T at each step
EXCURSION = 20  # expected number of random steps between the departure and the end of the episode


class Candidate(NamedTuple):
    """A sequence of actions from the start, the objective of its last state, and its origin as text for users."""

    objective: int
    actions: list[tuple[int, int]]
    origin: str


class Planner(Controller):
    name = "planner"
    Config = PlannerConfig
    BUDGET = ("steps",)

    def __init__(self, config, observation_space, action_space, seed=0):
        super().__init__(config, observation_space, action_space, seed)
        self.plan, self.env_steps = empty_plan(self.shapes.n_xfer_ids), 0

    def act(self, observation, greedy=True, rng=None):
        """Return actions, int64 [B, 2]; see `Controller.act`.

        Greedy play takes the plan's action for the observed step. It takes NO-OP (see `end`) if that action is invalid
        or the plan has ended.

        Sampled play departs from the plan with the probability LEAVE / T at each step, and departs wherever the
        observed counts differ from the plan's counts or the plan has ended. A step that departs takes a random valid
        action. Where the counts differ or the plan has ended, it takes NO-OP with the probability 1 / EXCURSION
        instead, except at step 0 or with an empty plan.
        """
        *_, counts = self.batch(observation)
        length = len(self.plan.actions)
        steps = np.minimum(np.asarray(observation["step"]), length)
        end = self.end(counts)
        planned = np.concatenate([self.plan.actions, np.zeros((1, 2), np.int64)])[steps]
        actions = np.where((steps < length)[:, None], planned, end)
        if greedy:
            valid = actions[:, 1] < np.take_along_axis(counts, actions[:, :1], axis=1)[:, 0]
            return np.where(valid[:, None], actions, end)
        rng = rng or self.rng
        expected = np.concatenate([self.plan.counts, np.full_like(counts[:1], -1)])[steps]
        as_planned = (counts == expected).all(axis=1)
        stay = as_planned & (rng.random(len(steps)) >= LEAVE / max(length, 1))
        give_up = ~as_planned & (steps > 0) & (rng.random(len(steps)) < 1 / EXCURSION)
        random = uniform_actions(counts, rng)
        return np.where(stay[:, None], actions, np.where(give_up[:, None], end, random))

    def end(self, counts: np.ndarray) -> np.ndarray:
        """Return the actions that end episodes, int64 [B, 2]: NO-OP, or the first valid action in a task without NO-OP.

        counts: int32 [B, N + 1], the observed number of locations of each rule.
        """
        if self.shapes.stop:
            xfer_ids = np.full(len(counts), self.shapes.n_xfer_ids - 1)
        else:
            xfer_ids = np.argmax(counts > 0, axis=1)
        return np.stack([xfer_ids, np.zeros(len(counts), np.int64)], axis=1).astype(np.int64)

    def train(self, make_env, seed, folder, log=None, progress=None):
        """Search or sample the plan; see `Controller.train`.

        Sampling resumes from the checkpoint. A search begins anew, since its result depends on dream and seed alone.
        """
        trainer = self.trainer(folder, seed, self.config.steps, log, progress)
        reported = SearchProgress(self.config.steps, log, progress)
        env = self.open(make_env, SHOTS)
        try:
            # `searchable` is a method of dreams (`DreamVectorEnv`) and not of other environments.
            start = env.searchable(self.config.uncertainty_limit) if hasattr(env, "searchable") else None
            if start is None:
                detail = self.shoot(env, seed, trainer)
            else:
                detail = self.search(start, seed, reported)
        finally:
            env.close()
        reported.update(self.config.steps)  # all steps, since a search may end before it has used its share of them
        trainer.write()
        return self.results(StopReason.BUDGET, detail) | {"dreamt_steps": len(self.plan.actions)}

    @property
    def best_return(self) -> float:
        return self.plan.dreamt_return

    @property
    def iterations(self) -> int:
        """The number of actions of the plan."""
        return len(self.plan.actions)

    # -- dreams whose states can be searched ---------------------------------------------------------

    def search(self, start: DreamtState, seed: int, progress: SearchProgress) -> str:
        """Run all searches and keep the cheapest result as the plan; return a text with its length and origin.

        Args:
          start: the dreamt initial state.
          seed: the seed of every search.
          progress: the bar of all searches.
        """
        self.plan, self.env_steps = empty_plan(self.shapes.n_xfer_ids), 0
        remembered, way = numbered(start, start.remembered())
        origins = [(start, [])]
        if way:
            origins.append((remembered, way))
        searches = (
            ("beam", 1 - self.config.annealing, self.config.beam_search),
            ("annealing", self.config.annealing, self.config.annealing_search),
        )
        candidates = [Candidate(remembered.objective, way, "of playing the real graph")]
        best = start
        for origin, before in origins:
            for method, share, options in searches:
                limit = int(share * self.config.steps / len(origins))
                if not limit:
                    continue
                limits = Limits(interactions=limit)
                result = uninterrupted(run_search(method, origin, limits, seed, progress, **asdict(options)))
                best = self._count(result, best, progress)
                line = f"by {method}, which ended by '{result.stop}'"
                candidates.append(Candidate(result.state.objective, before + result.actions, line))
        cheapest = min(candidates, key=lambda candidate: candidate.objective)
        self.plan = plan_along(start, shortened(start, cheapest.actions))
        return f"{len(self.plan.actions)} rewrites, {cheapest.origin}"

    def _count(self, result: SearchResult, best: DreamtState, progress: SearchProgress) -> DreamtState:
        """Add the steps of a search to `env_steps` and log its improvements; return the cheapest state so far.

        Args:
          result: the result of the search.
          best: the cheapest state before the search.
          progress: the bar that logs.
        """
        entries = []
        for _, steps, objective in result.trace:
            if objective < best.objective:
                entries.append((self.env_steps + steps, {"best_runtime_ms": objective / 1e9}))
        self.env_steps += result.interactions
        best = min(best, result.state, key=lambda state: state.objective)
        returns = {"return": result.state.gained, "best_return": best.gained}
        entries.append((self.env_steps, {"best_runtime_ms": best.objective / 1e9, **returns}))
        progress.log(entries)
        return best

    # -- other dreams --------------------------------------------------------------------------------

    def shoot(self, env, seed: int, trainer: Trainer) -> str:
        """Sample episodes until all steps are used, and keep the best one as the plan; return a text with its length.

        Args:
          env: a vector environment of dreams.
          seed: the seed of the training.
          trainer: the trainer that logs and writes checkpoints.
        """

        def update() -> dict[str, float]:
            plans = self.sampled(env, derive_seed(seed, self.env_steps))
            for plan in plans:
                if plan.dreamt_return > self.plan.dreamt_return:
                    self.plan = plan
            mean = float(np.mean([plan.dreamt_return for plan in plans]))
            return {"return": mean, "best_return": self.plan.dreamt_return}

        steps = self.config.steps
        trainer.run(update, lambda: min(self.env_steps, steps), steps, at=lambda: self.env_steps)
        return f"{len(self.plan.actions)} actions, the best of sampled episodes"

    def sampled(self, env, seed: int) -> list[Plan]:
        """Play a sampled episode in every copy of `env`; return each as a plan up to the step of the highest return."""
        rng, playing = np.random.default_rng(seed), np.ones(env.num_envs, bool)
        observation, _ = env.reset(seed=seed)
        actions, counts, rewards = [], [], [np.zeros(env.num_envs)]
        while playing.any():
            counts.append(np.array(observation["counts"], np.int32))
            actions.append(self.act(observation, greedy=False, rng=rng))
            observation, gained, terminated, truncated, _ = env.step(actions[-1])
            rewards.append(np.where(playing, gained, 0.0))
            self.env_steps += env.num_envs  # copies that ended early play on
            playing &= ~(terminated | truncated)
        returns = np.cumsum(rewards, axis=0)  # [steps + 1, copies]
        lengths = np.argmax(returns, axis=0).tolist()  # the shortest among equal returns
        actions, counts = np.stack(actions), np.stack(counts)
        plans = []
        for copy, length in enumerate(lengths):
            plans.append(Plan(actions[:length, copy], counts[:length, copy], float(returns[length, copy])))
        return plans

    def arrays(self):
        return {
            "actions": self.plan.actions,
            "counts": self.plan.counts,
            "dreamt_return": np.float64(self.plan.dreamt_return),
            "env_steps": np.int64(self.env_steps),
        }

    def restore(self, arrays):
        length = len(arrays.get("actions", ()))
        expected = {"actions": (length, 2), "counts": (length, self.shapes.n_xfer_ids)}
        same_shapes(arrays, expected | {"dreamt_return": (), "env_steps": ()})
        self.plan = Plan(arrays["actions"], arrays["counts"], float(arrays["dreamt_return"]))
        self.env_steps = int(arrays["env_steps"])
