"""What to measure next, where a latency is learned: that of which most improvement is expected.

A learned latency says of each candidate what it takes of what the best one so far takes, and how sure that is. What is
expected of measuring it is how much faster it is in the mean of the cases in which it is (Močkus 1975; Jones et al.
1998): much where it is promised to be faster, and where little is known of it. What is measured is shown to the model,
which then knows more of the others, too: candidates have most of their operators in common.
"""

from collections.abc import Sequence
from statistics import NormalDist

from rlflow.costs.at_sizes import AtSizes
from rlflow.costs.learned import LatencyModel, LearnedCost, Pooled
from rlflow.deliver.contenders import Contender
from rlflow.env.state import Task


class NextMeasurement:
    """Chooses among graphs, which are numbered from 0.

    Args:
      original: what they are measured beside.
    """

    def __init__(self, model: LatencyModel, original: Pooled, graphs: Sequence[Pooled]):
        self.model, self.original, self.graphs = model, original, graphs
        self.measured: dict[int, float] = {}  # of the original's latency

    def best(self) -> int | None:
        """The one that is predicted to be the fastest of those that were measured; None of none, or where that is the
        original."""
        ratios = {number: self.model.log_ratio(self.graphs[number], self.original)[0] for number in self.measured}
        fastest = min(ratios, key=ratios.__getitem__, default=None)
        return fastest if fastest is not None and ratios[fastest] < 0 else None

    def expected(self, number: int) -> float:
        """By how much its logarithm of latency is below that of the best one so far, 0 where it is not, in the mean."""
        best = self.best()
        beside = self.original if best is None else self.graphs[best]
        return expected_improvement(*self.model.log_ratio(self.graphs[number], beside))

    def next(self) -> int | None:
        """The one to measure next; None if all were."""
        left = [number for number in range(len(self.graphs)) if number not in self.measured]
        return max(left, key=self.expected, default=None)

    def show(self, number: int, ratio: float, uncertain: float) -> None:
        """What it was measured to take of what the original takes. uncertain: standard deviation of the logarithm."""
        self.measured[number] = ratio
        self.model = self.model.after(self.graphs[number], self.original, ratio, uncertain)


def expected_improvement(mean: float, deviation: float) -> float:
    """The mean of max(−x, 0), for a Gaussian x."""
    if deviation == 0:
        return max(-mean, 0.0)
    gaussian = NormalDist()
    return deviation * gaussian.pdf(mean / deviation) - mean * gaussian.cdf(-mean / deviation)


def by_expected_improvement(task: Task, contenders: Sequence[Contender]) -> list[Contender]:
    """The first one, then the others, those first of which most improvement over it is expected; as they are where no
    latency is learned."""
    cost = task.cost.model if isinstance(task.cost, AtSizes) else task.cost
    if not isinstance(cost, LearnedCost) or not contenders:
        return list(contenders)

    def pooled(contender: Contender) -> Pooled:
        return cost.pooled([contender.candidate.state.graph.at(sizes) for sizes in task.sizes])

    first, *others = contenders
    beside = pooled(first)
    expected = {id(one): expected_improvement(*cost.model.log_ratio(pooled(one), beside)) for one in others}
    return [first, *sorted(others, key=lambda one: -expected[id(one)])]
