"""The reward `measured`: what steps took off the latency of the whole graph, as a user runs it (X-RLflow, equation 2).

    100 (RT_{t−1} − RT_t) / RT_0        percent of the unchanged graph's latency, between two measured states

Measured is every N-th step and the last one, NO-OP included; the steps between are paid `unmeasured` each. So the
measured rewards of an episode sum to 100 (RT_0 − RT_T) / RT_0, whatever N is. X-RLflow's code pays 0.1 for a step that
is not measured: 8 points for a hundred steps that gain nothing at N = 5.

A latency is a share of what the initial graph took at the same time (`rlflow.costs.probe`), and the initial graph is
measured as the others are, beside itself: a machine that is slower than an hour ago earns nobody anything, nor does
being the second of two sessions. Where a measurement is lost the step earns 0, and what it may have gained is paid with
the next one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from rlflow.costs.latencies import Latencies
from rlflow.costs.probe import Latency
from rlflow.env.state import RewriteState


@dataclass(frozen=True)
class MeasuredReward:
    """See `rlflow.tasks.base.EpisodeReward`.

    latencies: of graphs.  every: steps from one measured state to the next; None: the last one alone.
    unmeasured: what other steps are paid.
    """

    latencies: Latencies
    every: int | None
    unmeasured: float

    @property
    def measurement_seconds(self) -> float:
        return self.latencies.seconds

    def begin(self, initial: RewriteState) -> "MeasuredEarnings":
        return MeasuredEarnings(self, initial)

    def latency(self, initial: RewriteState, state: RewriteState) -> Latency | None:
        return self.latencies.of(initial.graph, state.graph, initial.task.sizes)


@dataclass(frozen=True)
class MeasuredEarnings:
    """See `rlflow.tasks.base.Earnings`.

    steps: that were valid.  baseline: the latency of the last state that was measured, as a share of the original's;
    None: of the initial one.  measured: whether the last step was to be measured.  latency: what that gave.
    """

    reward: MeasuredReward
    initial: RewriteState
    steps: int = 0
    last: float = 0.0
    baseline: float | None = None
    measured: bool = False
    latency: Latency | None = None

    @property
    def info(self) -> Mapping[str, object]:
        """measured: whether the last valid step was to be.  latency, latency_low, latency_high: as a share of what the
        initial graph took meanwhile, with the 95 % interval; NaN where there is none: the measurement was lost, or
        there was none to be.  measurement_seconds: of all episodes so far.
        """
        nothing = math.nan, math.nan, math.nan
        ratio, low, high = self.latency[:3] if self.latency else nothing
        return {
            "measured": self.measured, "latency": ratio, "latency_low": low, "latency_high": high,
            "measurement_seconds": self.reward.measurement_seconds,
        }  # fmt: skip

    def moved(self, before: RewriteState, after: RewriteState, ended: bool) -> Self:
        steps, every = self.steps + 1, self.reward.every
        if ended or (every is not None and steps % every == 0):
            return self._measured(after, steps)
        return replace(self, steps=steps, last=self.reward.unmeasured, measured=False, latency=None)

    def stopped(self, state: RewriteState) -> Self:
        return self._measured(state, self.steps)

    def _measured(self, state: RewriteState, steps: int) -> Self:
        unchanged = self.reward.latency(self.initial, self.initial)
        latency = self.reward.latency(self.initial, state)
        if latency is None:
            return replace(self, steps=steps, last=0.0, measured=True, latency=None)
        first = unchanged.ratio if unchanged else 1.0  # what it is beside itself, but for the noise
        before = first if self.baseline is None else self.baseline
        gained = 100.0 * (before - latency.ratio) / first
        return replace(self, steps=steps, last=gained, baseline=latency.ratio, measured=True, latency=latency)
