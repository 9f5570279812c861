"""Rewards: the value of one step of the real environment, by estimated cost or by measured latency.

A reward is a function (before, after, initial) of states, or an `EpisodeReward` where only some states are measured.
An invalid action earns INVALID_REWARD (RLFlow, equations 2 and 3) and changes nothing else.

`MeasuredReward` (X-RLflow, equation 2) pays 100 (RT_{t−1} − RT_t) / RT_0 between measured states: percent of the
unchanged graph's latency. It measures every N-th step and the last one, NO-OP included. Other steps earn `unmeasured`;
X-RLflow's code pays 0.1 for them. The measured rewards of an episode sum to 100 (RT_0 − RT_T) / RT_0 for every N. Each
latency is a ratio to the initial graph, measured at the same time, so a machine that slows down changes no reward. A
lost measurement earns 0; the next measured step then pays for both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

from rlflow.common.registry import Registry
from rlflow.common.task import Earnings, EpisodeReward, Reward, State, StepReward
from rlflow.costs.measured import Latency
from rlflow.costs.measurements import Latencies
from rlflow.env import EnvOptions
from rlflow.env.state import RewriteState

INVALID_REWARD = -100.0

REWARDS = Registry(
    "reward",
    {
        "incremental": "rlflow.env.rewards:incremental",
        "combined": "rlflow.env.rewards:combined",
        "relative": "rlflow.env.rewards:relative",
        "new-runtime": "rlflow.env.rewards:new_runtime",
        "measured": "rlflow.env.rewards:MeasuredReward",
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


@dataclass(frozen=True)
class MeasuredReward:
    """See `rlflow.common.task.EpisodeReward`.

    latencies: of graphs.  every: steps from one measured state to the next; None: the last one alone.
    unmeasured: what other steps are paid.
    """

    latencies: Latencies
    every: int | None
    unmeasured: float

    def begin(self, initial: RewriteState) -> "MeasuredEarnings":
        return MeasuredEarnings(self, initial)

    def latency(self, initial: RewriteState, state: RewriteState) -> Latency:
        return self.latencies.of(initial.graph, state.graph, initial.task.sizes)


@dataclass(frozen=True)
class MeasuredEarnings:
    """See `rlflow.common.task.Earnings`.

    steps: that were valid.  baseline: the latency of the last state that was measured, as a share of the original's;
    None: of the initial one.  latency: of the state after the last step; None: it was not to be measured.
    """

    reward: MeasuredReward
    initial: RewriteState
    steps: int = 0
    last: float = 0.0
    baseline: float | None = None
    latency: Latency | None = None
    measurements: Mapping[str, float] = field(default_factory=dict)

    @property
    def info(self) -> Mapping[str, object]:
        """measured: whether the last valid step was to be.  latency, latency_low, latency_high: as a share of what the
        initial graph took meanwhile, with the 95 % interval; NaN where there was none to be, or where it was lost.
        measurement_seconds: of all episodes so far, those of environments that share the latencies with this one too.
        """
        ratio, low, high = self.latency[:3] if self.latency else (math.nan, math.nan, math.nan)
        return {
            "measured": self.latency is not None, "latency": ratio, "latency_low": low, "latency_high": high,
            "measurement_seconds": self.reward.latencies.seconds,
        }  # fmt: skip

    def moved(self, before: RewriteState, after: RewriteState, ended: bool) -> Self:
        steps, every = self.steps + 1, self.reward.every
        if ended or (every is not None and steps % every == 0):
            return self._measured(after, steps)
        return replace(self, steps=steps, last=self.reward.unmeasured, latency=None)

    def stopped(self, state: RewriteState) -> Self:
        return self._measured(state, self.steps)

    def _measured(self, state: RewriteState, steps: int) -> Self:
        initial = self.initial
        unchanged, latency = self.reward.latency(initial, initial), self.reward.latency(initial, state)
        measurements = {**self.measurements, initial.hash: unchanged.seconds, state.hash: latency.seconds}
        result = replace(self, steps=steps, last=0.0, latency=latency, measurements=measurements)
        if latency.lost:
            return result
        first = 1.0 if unchanged.lost else unchanged.ratio
        before = first if self.baseline is None else self.baseline
        return replace(result, last=100.0 * (before - latency.ratio) / first, baseline=latency.ratio)
