"""A planner: it looks for the best sequence of substitutions inside the dream, and then plays it.

Where dreamt states can be searched (`DreamVectorEnv.searchable`), the searches of `rlflow.search` run on them as on real ones:
beam search, then annealing, each with a share of the substitutions that may be tried. Half of these begin where the best of the
episodes led that the world model learnt from, so what exploring came upon is not lost (Go-Explore, Ecoffet et al. 2021). Steps
that the world model doubts too much are not planned, since a search goes wherever a model promises too much. Elsewhere the best of
sampled episodes is the plan, and the next samples are drawn around it.

Played greedily, a plan is repeated as long as its next action is there. Sampled, it is left somewhere for random play of some
steps: what a world model learns from that lies around the plan, where it will be asked next.
"""

from dataclasses import asdict
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from controllers.base import Controller, StopReason, derive_seed, same_shapes
from controllers.config import PlannerConfig
from controllers.random import uniform_actions
from rlflow.search.search import Limits, Path, numbered, run_search
from worldmodel.base import DreamtState

SHOTS = 64  # episodes sampled side by side
LEAVE = 2.0  # times that a sampled episode would leave the plan, on average, if it came back
EXCURSION = 20  # random steps after that, on average


@runtime_checkable
class DreamOfOneStart(Protocol):
    """An environment that knows whether its start can be searched from; `DreamVectorEnv` is one."""

    def searchable(self, uncertainty_limit: float) -> DreamtState | None: ...


class Plan(NamedTuple):
    """actions: int64 [T, 2]. counts: int32 [T, N + 1], what was shown before each of them. worth: the return after the last."""

    actions: np.ndarray
    counts: np.ndarray
    worth: float


class Planner(Controller):
    name = "planner"
    Config = PlannerConfig
    BUDGET = ("steps",)

    def __init__(self, config, observation_space, action_space, seed=0):
        super().__init__(config, observation_space, action_space, seed)
        self.plan, self.env_steps = self.nothing, 0

    @property
    def nothing(self) -> Plan:
        return Plan(np.zeros((0, 2), np.int64), np.zeros((0, self.shapes.n_xfer_ids), np.int32), 0.0)

    def act(self, observation, greedy=True, rng=None):
        """int64 [B, 2]: greedily the plan's action of this step; NO-OP behind its end, or where the action is not there."""
        *_, counts = self.batch(observation)
        steps = np.minimum(np.asarray(observation["step"]), len(self.plan.actions))
        end = self.end(counts)
        planned = np.concatenate([self.plan.actions, np.zeros((1, 2), np.int64)])[steps]
        actions = np.where((steps < len(self.plan.actions))[:, None], planned, end)
        if greedy:
            there = actions[:, 1] < np.take_along_axis(counts, actions[:, :1], axis=1)[:, 0]
            return np.where(there[:, None], actions, end)
        rng = rng or self.rng
        as_planned = (counts == np.concatenate([self.plan.counts, np.full_like(counts[:1], -1)])[steps]).all(axis=1)
        stay = as_planned & (rng.random(len(steps)) >= LEAVE / max(len(self.plan.actions), 1))
        give_up = ~as_planned & (steps > 0) & (rng.random(len(steps)) < 1 / EXCURSION)
        return np.where(stay[:, None], actions, np.where(give_up[:, None], end, uniform_actions(counts, rng)))

    def end(self, counts: np.ndarray) -> np.ndarray:
        """int64 [B, 2]: NO-OP; where the task has none, the first action that is there."""
        first = np.argmax(counts > 0, axis=1)
        last = np.full(len(counts), self.shapes.n_xfer_ids - 1)
        return np.stack([last if self.shapes.stop else first, np.zeros(len(counts), np.int64)], axis=1).astype(np.int64)

    def train(self, make_env, seed, folder, log=None, progress=None):
        """Plans anew whatever `folder` holds: a plan is a function of the dream and the seed."""
        self.resume(folder, seed)
        self.plan, self.env_steps, teller = self.nothing, 0, Teller(self.config.steps, log, progress)
        env = self.open(make_env, SHOTS)
        try:
            start = env.searchable(self.config.uncertainty_limit) if isinstance(env, DreamOfOneStart) else None
            detail = self.shoot(env, seed, teller) if start is None else self.search(start, seed, teller)
        finally:
            env.close()
        teller.finish()
        self.save(folder)
        return {
            "stop_reason": StopReason.BUDGET, "detail": detail, "best_return": self.plan.worth,
            "iterations": len(self.plan.actions), "env_steps": self.env_steps, "dreamt_steps": len(self.plan.actions),
        }  # fmt: skip

    def search(self, start, seed: int, teller: "Teller") -> str:
        """Takes the plan that is cheapest of those that the searches find; returns what is to be said of it."""
        known, way = numbered(start, start.remembered())
        best, plans = start.objective, [(known.objective, way, "playing the real graph")]
        shares = (
            ("beam", 1 - self.config.annealing, self.config.beam_search), ("annealing", self.config.annealing, self.config.annealing_search),
        )  # fmt: skip
        origins = [(start, []), (known, way)][: 1 + bool(way)]
        for origin, before in origins:
            for method, share, options in shares:
                if not (limit := int(share * self.config.steps / len(origins))):
                    continue
                result = run_search(method, origin, Limits(interactions=limit), seed, teller, **asdict(options))
                better = [(self.env_steps + steps, runtime) for _, steps, runtime in result.trace if runtime < best]
                self.env_steps += result.interactions
                best = min(best, result.state.objective)
                teller.tell([(steps, {"best_runtime_ms": runtime / 1e9}) for steps, runtime in (*better, (self.env_steps, best))])
                plans.append((result.state.objective, before + result.actions, f"{method}, which ended by '{result.stop}'"))
        _, actions, finder = min(plans, key=lambda plan: plan[0])
        path, counts, state = needed(start, actions), [], start
        numbers = numbered(start, path)[1]
        for xfer_id, location in numbers:
            counts.append(np.append(state.counts, 1).astype(np.int32))
            state = state.follow(state.match(xfer_id, location))
        self.plan = Plan(np.array(numbers, np.int64).reshape(-1, 2), np.array(counts, np.int32).reshape(-1, self.shapes.n_xfer_ids), state.gained)
        return f"{len(numbers)} substitutions, found by {finder}"

    def shoot(self, env, seed: int, teller: "Teller") -> str:
        """Takes the best of sampled episodes again and again; returns what is to be said of it."""
        while self.env_steps < self.config.steps:
            before = self.env_steps
            self.plan = max((self.plan, *self.sampled(env, derive_seed(seed, before))), key=lambda plan: plan.worth)
            teller.update(self.env_steps - before)
            teller.tell([(self.env_steps, {"best_so_far": self.plan.worth})])
        return f"{len(self.plan.actions)} actions, the best of sampled episodes"

    def sampled(self, env, seed: int) -> list[Plan]:
        """What every copy plays until its first end, up to where its return was highest."""
        rng, playing = np.random.default_rng(seed), np.ones(env.num_envs, bool)
        observation, _ = env.reset(seed=seed)
        actions, counts, rewards = [], [], []
        while playing.any():
            counts.append(np.array(observation["counts"], np.int32))
            actions.append(self.act(observation, greedy=False, rng=rng))
            observation, gained, terminated, truncated, _ = env.step(actions[-1])
            rewards.append(np.where(playing, gained, 0.0))
            self.env_steps += int(playing.sum())
            playing &= ~(terminated | truncated)
        returns = np.cumsum([np.zeros(env.num_envs), *rewards], axis=0)
        lengths = np.argmax(returns, axis=0).tolist()  # the first of equals
        actions, counts = np.stack(actions), np.stack(counts)
        return [Plan(actions[:n, i], counts[:n, i], float(returns[n, i])) for i, n in enumerate(lengths)]

    def arrays(self):
        return {
            "actions": self.plan.actions, "counts": self.plan.counts, "worth": np.float64(self.plan.worth), "env_steps": np.int64(self.env_steps),
        }  # fmt: skip

    def restore(self, arrays):
        length = len(arrays.get("actions", ()))
        same_shapes(arrays, {"actions": (length, 2), "counts": (length, self.shapes.n_xfer_ids), "worth": (), "env_steps": ()})
        self.plan, self.env_steps = Plan(arrays["actions"], arrays["counts"], float(arrays["worth"])), int(arrays["env_steps"])


def needed(start, actions: list[tuple[int, int]]) -> Path | None:
    """The path of the actions without those that its end can do without: each that gained nothing is left out, with all that was there
    through it alone, if the end is no dearer then."""
    kept, gains, state = [], [], start
    for xfer_id, location in actions:
        match = state.match(xfer_id, location)
        state, before = state.follow(match), state
        kept.append(match)
        gains.append(before.objective - state.objective)
    for match in [match for match, gain in zip(kept, gains, strict=True) if gain <= 0]:
        if match in kept:
            k = kept.index(match)
            without, end = followed(start, kept[:k] + kept[k + 1 :])
            kept, state = (without, end) if end.objective <= state.objective else (kept, state)
    path = None
    for match in kept:
        path = match, path
    return path


def followed(start, matches: list) -> tuple[list, object]:
    """(the matches that are there in their turn, the state after them)."""
    state, there = start, []
    for match in matches:
        if state.offers(match) and (after := state.follow(match)) is not state:
            state = after
            there.append(match)
    return there, state


class Teller:
    """What a search reports to, tqdm-like, on behalf of a training."""

    def __init__(self, steps: int, log, progress):
        self.done, self.steps, self.log, self.progress = 0, steps, log, progress

    def update(self, steps: int) -> None:
        self.done += steps
        if self.progress is not None:
            self.progress(min(self.done, self.steps), self.steps)

    def finish(self) -> None:
        """A search may have enough before its share is used up."""
        self.update(self.steps)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """The training's own figures are told by `tell`."""

    def tell(self, entries) -> None:
        """entries: (steps so far, scalars)."""
        for steps, scalars in entries if self.log else ():
            self.log(steps, scalars)
