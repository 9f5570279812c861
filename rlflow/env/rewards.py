"""Rewards: the value of one step of the real environment, by estimated cost or by measured latency.

A reward is a function (before, after, initial) of states, or an `EpisodeReward` if only some states are measured. An
invalid action earns INVALID_REWARD (RLFlow, equations 2 and 3) and changes nothing else.

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
    """Return RT_{t-1} − RT_t in ms (RLFlow, equation 2).

    Args:
      before: the state before the step.
      after: the state after the step.
      initial: the first state of the episode; unused.
    """
    return before.runtime_ms - after.runtime_ms


def combined(
    before: RewriteState,
    after: RewriteState,
    initial: RewriteState,
    alpha: float = EnvOptions.alpha,
    beta: float = EnvOptions.beta,
) -> float:
    """Return α (RT_{t-1} − RT_t) + β (M_{t-1} − M_t) (RLFlow, equation 3).

    Args:
      before: the state before the step.
      after: the state after the step.
      initial: the first state of the episode; unused.
      alpha: α, weight of the runtime RT in ms.
      beta: β, weight of the memory accesses M in MB.
    """
    return alpha * incremental(before, after, initial) + beta * (before.cost.bytes - after.cost.bytes) / 1e6


def relative(before: RewriteState, after: RewriteState, initial: RewriteState) -> float:
    """Return 100 (RT_{t-1} − RT_t) / RT_0, percent of the unchanged graph's runtime (X-RLflow, equation 2).

    Args:
      before: the state before the step.
      after: the state after the step.
      initial: the first state of the episode, with runtime RT_0.
    """
    return 100.0 * (before.objective - after.objective) / max(initial.objective, 1)


def new_runtime(before: RewriteState, after: RewriteState, initial: RewriteState) -> float:
    """Return RT_0 − RT_t in ms, the improvement of the new graph over the unchanged graph.

    The paper evaluates a "new runtime reward" (R2 in its figure 5) and gives no formula. The difference from
    RT_0 is 0 for the unchanged graph. For NO-OP, the environment pays 0 under every step reward.

    Args:
      before: the state before the step; unused.
      after: the state after the step.
      initial: the first state of the episode, with runtime RT_0.
    """
    return initial.runtime_ms - after.runtime_ms


def make_reward(name: str, alpha: float, beta: float) -> StepReward:
    """Return a reward that is computed from estimates.

    Args:
      name: a name in REWARDS other than "measured".
      alpha: weight of the runtime in `combined`.
      beta: weight of the memory accesses in `combined`.
    """
    reward = REWARDS.get(name)
    return partial(reward, alpha=alpha, beta=beta) if reward is combined else reward


# -- of an episode ---------------------------------------------------------------------------------


def begin(reward: Reward, initial: State) -> Earnings:
    """Return the earnings at the start of an episode.

    Args:
      reward: a step reward or an episode reward.
      initial: the first state of the episode.
    """
    return reward.begin(initial) if isinstance(reward, EpisodeReward) else StepByStep(reward, initial)


@dataclass(frozen=True)
class StepByStep:
    """The earnings under a reward that depends on one step alone; implements `rlflow.common.task.Earnings`."""

    reward: StepReward
    initial: State
    last: float = 0.0
    info: ClassVar[Mapping[str, object]] = {}
    measurements: ClassVar[Mapping[str, float]] = {}

    def after_step(self, before: State, after: State, ended: bool) -> Self:
        return replace(self, last=float(self.reward(before, after, self.initial)))

    def after_stop(self, state: State) -> Self:
        return replace(self, last=0.0)


@dataclass(frozen=True)
class MeasuredReward:
    """A reward by measured latency; implements `rlflow.common.task.EpisodeReward`.

    Attributes:
      latencies: the measurements of graphs, shared by all environments of one `EnvSpec`.
      every: number of steps between measured states; None to measure the last state alone.
      unmeasured: reward of a step that is not measured.
    """

    latencies: Latencies
    every: int | None
    unmeasured: float

    def begin(self, initial: RewriteState) -> "MeasuredEarnings":
        return MeasuredEarnings(self, initial)

    def latency(self, initial: RewriteState, state: RewriteState) -> Latency:
        """Return the latency of a state relative to the initial graph; measure it if it is not known.

        Args:
          initial: the first state of the episode.
          state: the state to measure.
        """
        return self.latencies.of(initial.graph, state.graph, initial.task.sizes)


@dataclass(frozen=True)
class MeasuredEarnings:
    """The earnings of an episode under a `MeasuredReward`; implements `rlflow.common.task.Earnings`.

    Attributes:
      reward: the reward.
      initial: the first state of the episode.
      steps: number of valid steps so far.
      last: reward of the last step, in percent of the initial latency.
      baseline: relative latency of the last measured state; None if no state after the initial one was measured.
      latency: relative latency of the current state; None if this state was not to be measured.
      measurements: hash of each measured state → seconds that the measurement took.
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
        """Entries for the `info` dictionary of the environment.

        `measured` is True if the last valid step was to be measured. `latency`, `latency_low` and `latency_high` are
        relative to the initial graph, with the 95 % interval; they are NaN if no measurement was due or the measurement
        was lost. `measurement_seconds` is the total over all episodes of all environments that share the latencies.
        """
        ratio, low, high = self.latency[:3] if self.latency else (math.nan, math.nan, math.nan)
        return {
            "measured": self.latency is not None, "latency": ratio, "latency_low": low, "latency_high": high,
            "measurement_seconds": self.reward.latencies.seconds,
        }  # fmt: skip

    def after_step(self, before: RewriteState, after: RewriteState, ended: bool) -> Self:
        steps, every = self.steps + 1, self.reward.every
        if ended or (every is not None and steps % every == 0):
            return self._after_measurement(after, steps)
        return replace(self, steps=steps, last=self.reward.unmeasured, latency=None)

    def after_stop(self, state: RewriteState) -> Self:
        return self._after_measurement(state, self.steps)

    def _after_measurement(self, state: RewriteState, steps: int) -> Self:
        initial = self.initial
        unchanged, latency = self.reward.latency(initial, initial), self.reward.latency(initial, state)
        measurements = {**self.measurements, initial.hash: unchanged.seconds, state.hash: latency.seconds}
        result = replace(self, steps=steps, last=0.0, latency=latency, measurements=measurements)
        if latency.lost:
            return result
        first = 1.0 if unchanged.lost else unchanged.ratio
        before = first if self.baseline is None else self.baseline
        return replace(result, last=100.0 * (before - latency.ratio) / first, baseline=latency.ratio)
