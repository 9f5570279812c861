"""Rewards: what one step of the real environment earns.

A reward is a function of the states before and after a valid step and of the initial state; or one of the whole episode
(`rlflow.tasks.base.EpisodeReward`), as where only some states are measured (rlflow/env/measured_reward.py). An invalid
action gets `INVALID_REWARD` whatever the reward (RLFlow, equations 2 and 3), and changes nothing of what is earned.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from rlflow.common.registry import Registry
from rlflow.env.options import EnvOptions
from rlflow.env.state import RewriteState
from rlflow.tasks.base import Earnings, EpisodeReward, Reward, State, StepReward

INVALID_REWARD = -100.0

REWARDS = Registry(
    "reward",
    {
        "incremental": "rlflow.env.rewards:incremental",
        "combined": "rlflow.env.rewards:combined",
        "relative": "rlflow.env.rewards:relative",
        "new-runtime": "rlflow.env.rewards:new_runtime",
        "measured": "rlflow.env.measured_reward:MeasuredReward",
    },
)


def incremental(before: RewriteState, after: RewriteState, initial: RewriteState) -> float:
    """RT_{t-1} − RT_t in ms (RLFlow, equation 2)."""
    return before.runtime_ms - after.runtime_ms


def combined(
    before: RewriteState,
    after: RewriteState,
    initial: RewriteState,
    alpha: float = EnvOptions.alpha,
    beta: float = EnvOptions.beta,
) -> float:
    """α (RT_{t-1} − RT_t) + β (M_{t-1} − M_t) (RLFlow, equation 3); RT in ms, memory accesses M in MB."""
    return alpha * incremental(before, after, initial) + beta * (before.cost.bytes - after.cost.bytes) / 1e6


def relative(before: RewriteState, after: RewriteState, initial: RewriteState) -> float:
    """100 (RT_{t-1} − RT_t) / RT_0: percent of the unchanged graph's runtime (X-RLflow, equation 2)."""
    return 100.0 * (before.objective - after.objective) / max(initial.objective, 1)


def new_runtime(before: RewriteState, after: RewriteState, initial: RewriteState) -> float:
    """RT_0 − RT_t in ms: how far the new graph is below the unchanged one, at every step anew.

    The paper compares a "new runtime reward" (R2 in its figure 5) and gives no formula. Taken from RT_0 it is 0 for
    NO-OP, as the others.
    """
    return initial.runtime_ms - after.runtime_ms


def make_reward(name: str, alpha: float, beta: float) -> StepReward:
    """A reward by estimates; `alpha` and `beta` are those of `combined`."""
    reward = REWARDS.get(name)
    return partial(reward, alpha=alpha, beta=beta) if reward is combined else reward


# -- of an episode ---------------------------------------------------------------------------------


def begin(reward: Reward, initial: State) -> Earnings:
    """What an episode that begins here has earned: nothing yet."""
    return reward.begin(initial) if isinstance(reward, EpisodeReward) else StepByStep(reward, initial)


@dataclass(frozen=True)
class StepByStep:
    """Earnings where each step is paid by itself."""

    reward: StepReward
    initial: State
    last: float = 0.0
    info: ClassVar[Mapping[str, object]] = {}
    measurements: ClassVar[Mapping[str, float]] = {}

    def moved(self, before: State, after: State, ended: bool) -> Self:
        return replace(self, last=float(self.reward(before, after, self.initial)))

    def stopped(self, state: State) -> Self:
        return replace(self, last=0.0)
