"""A planner: it looks for the best sequence of rewrites inside the dream, and then plays it.

Where dreamt states can be searched (`DreamVectorEnv.searchable`), the searches of `rlflow.search` run on them as on
real ones, since a dreamt state answers what they ask of a state (matches, objective, what the last rewrite touched,
what is near): beam search, then annealing, each with a share of the rewrites that may be tried. So the exact-simulator
control is the same code with the other states. Steps of which the world model is too uncertain are not planned
(worldmodel/edits/searchable_dream.py). Elsewhere the best of sampled episodes is the plan, and the next samples are
drawn around it.

What was met once is not lost: with the world model goes the sequence of edits that led to the cheapest graph of all
episodes, and half of the searches begin where it led (Go-Explore, Ecoffet et al. 2021). What a plan can do without is
left out of it in the end: each step that gains nothing is tried without, and with it goes all that was there through it
alone.

Played greedily, a plan is repeated as long as its next action is valid. Sampled, it is left at some step for random
play of some steps: what a world model learns from that lies around the plan, where it will be asked next.
"""

from dataclasses import asdict
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from controllers.base import Controller, StopReason, derive_seed, same_shapes
from controllers.config import PlannerConfig
from controllers.plans import Plan, empty_plan, plan_along, shortened
from controllers.random import uniform_actions
from controllers.search_progress import SearchProgress
from rlflow.search.base import Limits, SearchResult, numbered, run_search, uninterrupted
from worldmodel.base import DreamtState
from worldmodel.trainer import Trainer

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
