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
from dataclasses import dataclass, field, replace
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

    def begin(self, initial: RewriteState) -> "MeasuredEarnings":
        return MeasuredEarnings(self, initial)

    def latency(self, initial: RewriteState, state: RewriteState) -> Latency:
        return self.latencies.of(initial.graph, state.graph, initial.task.sizes)


@dataclass(frozen=True)
class MeasuredEarnings:
    """See `rlflow.tasks.base.Earnings`.

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
