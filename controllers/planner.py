"""A planner: it searches the dream for the best sequence of rewrites, and then plays it.

Where dreamt states can be searched (`DreamVectorEnv.searchable`), the searches of `rlflow.search` run on them as on
real states: beam search, then annealing, each with a share of the rewrites that may be tried. The exact-simulator
control is the same code with other states. A step is not planned if the world model is too uncertain about it.
Elsewhere the best of sampled episodes is the plan, and the next samples are drawn around it.

The world model keeps the edits that led to the cheapest graph of all episodes, and half of the searches begin where
they led (Go-Explore, Ecoffet et al. 2021). In the end each step of the plan that gains nothing is left out on trial,
with all that it alone made possible.

Played greedily, a plan is repeated as long as its next action is valid. Played sampled, it is left at some step for
some steps of random play. What a world model learns from these lies around the plan, where it will be asked next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from controllers.base import Controller, Log, Progress, StopReason, derive_seed, same_shapes
from controllers.controller_options import PlannerConfig
from controllers.random import uniform_actions
from rlflow.common.task import Match
from rlflow.search.base import Limits, Path, SearchResult, numbered, run_search, uninterrupted
from worldmodel.base import DreamtState
from worldmodel.trainer import Trainer


class SearchProgress:
    """Tqdm-like, as `rlflow.search` takes it; passes on to a training's own `log` and `progress`.

    Attributes: steps, of the whole training; done, how many of them were made.
    """

    def __init__(self, steps: int, log: Log | None, progress: Progress | None):
        self.done, self.steps = 0, steps
        self._log, self._progress = log, progress

    def update(self, steps: int) -> None:
        self.done += steps
        if self._progress is not None:
            self._progress(min(self.done, self.steps), self.steps)

    def finish(self) -> None:
        """A search may have enough before its share is used up."""
        self.update(self.steps)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Nothing: the training's own figures are logged by `log`."""

    def log(self, entries: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """entries: (steps so far, scalars)."""
        if self._log is None:
            return
        for steps, scalars in entries:
            self._log(steps, scalars)


class Plan(NamedTuple):
    """T actions in a row.

    actions: int64 [T, 2], (xfer_id, location).  counts: int32 [T, N + 1], what was observed before each of them.
    dreamt_return: the sum of the predicted rewards after the last.
    """

    actions: np.ndarray
    counts: np.ndarray
    dreamt_return: float


def empty_plan(n_xfer_ids: int) -> Plan:
    return Plan(np.zeros((0, 2), np.int64), np.zeros((0, n_xfer_ids), np.int32), 0.0)


def plan_along(start: DreamtState, path: Path | None) -> Plan:
    """The plan of the matches of a path from the start."""
    actions = numbered(start, path)[1]
    counts, state = [], start
    for xfer_id, location in actions:
        counts.append(np.append(state.counts, 1).astype(np.int32))
        state = state.follow(state.match(xfer_id, location))
    observed = np.array(counts, np.int32).reshape(-1, len(start.counts) + 1)
    return Plan(np.array(actions, np.int64).reshape(-1, 2), observed, state.gained)


def shortened(start: DreamtState, actions: list[tuple[int, int]]) -> Path | None:
    """The path of these actions without those that its end can do without.

    Each action that gained nothing is left out, with all that only it made possible, if the end is no costlier then.
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
        rest, end = _carried_out(start, kept[:index] + kept[index + 1 :])
        if end.objective <= objective:
            kept, objective = rest, end.objective
    path = None
    for match in kept:
        path = match, path
    return path


def _carried_out(start: DreamtState, matches: list[Match]) -> tuple[list[Match], DreamtState]:
    """(those of the matches that exist when it is their turn, the state after them)."""
    state, done = start, []
    for match in matches:
        if not state.offers(match):
            continue
        after = state.follow(match)
        if after is not state:
            state = after
            done.append(match)
    return done, state


SHOTS = 64  # episodes sampled side by side
LEAVE = 2.0  # times that a sampled episode would leave the plan, on average, if it came back
EXCURSION = 20  # random steps after that, on average


@runtime_checkable
class DreamOfOneStart(Protocol):
    """An environment that knows whether its start can be searched from; `DreamVectorEnv` is one."""

    def searchable(self, uncertainty_limit: float) -> DreamtState | None: ...


class Candidate(NamedTuple):
    """A sequence of actions from the start, the objective at its end, and what it is the result of."""

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
        """int64 [B, 2]: greedily the plan's action of this step; NO-OP behind its end, or if it is not valid."""
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
        """int64 [B, 2]: NO-OP; where the task has none, the first valid action."""
        if self.shapes.stop:
            xfer_ids = np.full(len(counts), self.shapes.n_xfer_ids - 1)
        else:
            xfer_ids = np.argmax(counts > 0, axis=1)
        return np.stack([xfer_ids, np.zeros(len(counts), np.int64)], axis=1).astype(np.int64)

    def train(self, make_env, seed, folder, log=None, progress=None):
        """Samples on where `folder` holds samples' plan. Searches plan anew: their plan is a function of the dream and
        the seed."""
        trainer = self.trainer(folder, seed, self.config.steps, log, progress)
        reported = SearchProgress(self.config.steps, log, progress)
        env = self.open(make_env, SHOTS)
        try:
            start = env.searchable(self.config.uncertainty_limit) if isinstance(env, DreamOfOneStart) else None
            if start is None:
                detail = self.shoot(env, seed, trainer)
            else:
                detail = self.search(start, seed, reported)
        finally:
            env.close()
        reported.finish()
        trainer.write()
        return {
            "stop_reason": StopReason.BUDGET, "detail": detail, "best_return": self.best_return,
            "iterations": self.iterations, "env_steps": self.env_steps, "dreamt_steps": len(self.plan.actions),
        }  # fmt: skip

    @property
    def best_return(self) -> float:
        return self.plan.dreamt_return

    @property
    def iterations(self) -> int:
        """Actions of the plan."""
        return len(self.plan.actions)

    # -- where dreamt states can be searched ---------------------------------------------------------

    def search(self, start: DreamtState, seed: int, progress: SearchProgress) -> str:
        """Takes the cheapest of the searches' results as the plan; returns a line about it."""
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
        """Counts the steps of a search and logs what was better than the best before; returns the best now."""
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

    # -- where they cannot ---------------------------------------------------------------------------

    def shoot(self, env, seed: int, trainer: Trainer) -> str:
        """Takes the best of sampled episodes again and again, and keeps it; returns a line about it."""

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
        """What every copy plays until its first end, up to where its return was highest."""
        rng, playing = np.random.default_rng(seed), np.ones(env.num_envs, bool)
        observation, _ = env.reset(seed=seed)
        actions, counts, rewards = [], [], [np.zeros(env.num_envs)]
        while playing.any():
            counts.append(np.array(observation["counts"], np.int32))
            actions.append(self.act(observation, greedy=False, rng=rng))
            observation, gained, terminated, truncated, _ = env.step(actions[-1])
            rewards.append(np.where(playing, gained, 0.0))
            self.env_steps += env.num_envs  # copies that ended first play on
            playing &= ~(terminated | truncated)
        returns = np.cumsum(rewards, axis=0)  # [steps + 1, copies]
        lengths = np.argmax(returns, axis=0).tolist()  # the first of equals
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
