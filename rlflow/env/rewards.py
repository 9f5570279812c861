"""Rewards of the steps of the real environment, from estimated costs or from measured latencies.

A reward is a function (before, after, initial) of states, or an `EpisodeReward` if it depends on several steps. An
invalid action has the reward INVALID_REWARD (RLFlow, equations 2 and 3) and does not change the state.

`MeasuredReward` (X-RLflow, equation 2) measures the latency RT after every N-th step and after the last step, NO-OP
included. The reward of a measured step is 100 (RT_s − RT_t) / RT_0, where RT_0 is the latency of the initial graph and
RT_s the latency at the previous measured step s. The reward of every other step is the constant `unmeasured`, which is
0.1 in X-RLflow's code. For every N, the rewards of the measured steps of an episode sum to 100 (RT_0 − RT_T) / RT_0.
Each latency is measured as a ratio to the initial graph at the same time, so a machine that slows down does not change
the rewards. If a measurement is lost, the reward of its step is 0, and the next measured step gets the gain of both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

from rlflow.common.registry import Registry
from rlflow.common.task import Earnings, EpisodeReward, Reward, State, StepReward
from rlflow.costs.measurements import Latencies
from rlflow.costs.probe import Latency
from rlflow.env import EnvOptions
from rlflow.env.state import RewriteState

INVALID_REWARD = -100.0  # reward of an invalid action

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
    """Return RT_{t-1} − RT_t, the decrease of the estimated runtime in ms (RLFlow, equation 2).

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
    """Return α (RT_{t-1} − RT_t) + β (M_{t-1} − M_t) for the runtime RT and memory accesses M (RLFlow, equation 3).

    Args:
      before: the state before the step.
      after: the state after the step.
      initial: the first state of the episode; unused.
      alpha: α, weight of the decrease of the runtime in ms.
      beta: β, weight of the decrease of the memory accesses in MB.
    """
    return alpha * incremental(before, after, initial) + beta * (before.cost.bytes - after.cost.bytes) / 1e6


def relative(before: State, after: State, initial: State) -> float:
    """Return 100 (RT_{t-1} − RT_t) / RT_0, the gain in percent of the initial objective (X-RLflow, equation 2).

    Args:
      before: the state before the step.
      after: the state after the step.
      initial: the first state of the episode, with the objective (estimated runtime) RT_0.
    """
    return 100.0 * (before.objective - after.objective) / max(initial.objective, 1)


def new_runtime(before: RewriteState, after: RewriteState, initial: RewriteState) -> float:
    """Return RT_0 − RT_t in ms, the decrease of the estimated runtime since the start of the episode.

    The RLFlow paper evaluates a "new runtime reward" (R2 in its figure 5) and gives no formula. This formula has the
    value 0 for the initial graph. NO-OP has the reward 0, as under every step reward.

    Args:
      before: the state before the step; unused.
      after: the state after the step.
      initial: the first state of the episode, with runtime RT_0.
    """
    return initial.runtime_ms - after.runtime_ms


def make_reward(name: str, alpha: float, beta: float) -> StepReward:
    """Return the reward function with the given name, which uses estimated costs.

    Args:
      name: a name in REWARDS other than "measured".
      alpha: weight of the runtime; only `combined` uses it.
      beta: weight of the memory accesses; only `combined` uses it.
    """
    reward = REWARDS.get(name)
    return partial(reward, alpha=alpha, beta=beta) if reward is combined else reward


# -- of an episode ---------------------------------------------------------------------------------


def begin(reward: Reward, initial: State) -> Earnings:
    """Return the rewards of an episode that has just begun, as an immutable `Earnings` value.

    Args:
      reward: a step reward or an episode reward.
      initial: the first state of the episode.
    """
    return reward.begin(initial) if isinstance(reward, EpisodeReward) else StepByStep(reward, initial)


@dataclass(frozen=True)
class StepByStep:
    """The `Earnings` of an episode under a reward that depends on one step alone.

    Attributes:
      reward: the reward function.
      initial: the first state of the episode.
      last: reward of the last step.
    """

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
    """A reward from measured latencies; implements `rlflow.common.task.EpisodeReward`.

    Attributes:
      latencies: the measured latencies, which all environments of one `EnvSpec` share.
      every: number of steps from one measured state to the next; None to measure only the last state.
      unmeasured: reward of a step that is not measured.
    """

    latencies: Latencies
    every: int | None
    unmeasured: float

    def begin(self, initial: RewriteState) -> "MeasuredEarnings":
        return MeasuredEarnings(self, initial)

    def latency(self, initial: RewriteState, state: RewriteState) -> Latency:
        """Return the latency of a state's graph relative to the initial graph; measure the latency if it is not known.

        Args:
          initial: the first state of the episode.
          state: the state to measure.
        """
        return self.latencies.of(initial.graph, state.graph, initial.task.sizes)


@dataclass(frozen=True)
class MeasuredEarnings:
    """The rewards of an episode under a `MeasuredReward`; implements `rlflow.common.task.Earnings`.

    Attributes:
      reward: the `MeasuredReward`.
      initial: the first state of the episode.
      steps: number of valid steps so far, without NO-OP.
      last: reward of the last step; for a measured step, in percent of the initial latency.
      baseline: latency of the last measured state / latency of the initial graph; None if no state after the initial
        state was measured.
      latency: latency of the current state relative to the initial graph; None if this state was not to be measured.
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

        `measured` is True if the state after the last valid step was to be measured. `latency` is the latency of this
        state relative to the initial graph, and [`latency_low`, `latency_high`] is its 95 % interval. The three are NaN
        if the state was not to be measured or the measurement was lost. `measurement_seconds` is the total over all
        episodes of all environments that share `MeasuredReward.latencies`.
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
