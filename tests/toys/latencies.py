"""Latencies without a clock: a probe that derives a latency from the hash of a graph and records its questions."""

import numpy as np

from rlflow.costs.database import TimingDatabase
from rlflow.costs.measurements import Latencies
from rlflow.costs.probe import Latency, LostMeasurement
from rlflow.env.rewards import MeasuredReward

SECONDS = 0.25  # The duration of a measurement.


class PlantedProbe:
    """A stand-in for `rlflow.costs.probe.Probe`.

    Args:
      lost: hashes of the graphs whose measurement is lost.
      how: text that stands for the conditions of the measurements besides the sizes.
    """

    def __init__(self, lost=(), how=""):
        self.lost, self.how, self.asked = set(lost), how, []

    @staticmethod
    def ratio_of(digest: str) -> float:
        """Return the latency ratio of the graph with that hash, between 0.5 and 1.5."""
        return 0.5 + np.random.default_rng(int(digest[:12], 16)).random()

    @classmethod
    def ratio(cls, graph) -> float:
        return cls.ratio_of(graph.hash)

    def conditions(self, sizes) -> str:
        return repr((sizes, self.how))

    def __call__(self, original, graph, sizes) -> Latency:
        self.asked.append(graph.hash)
        if graph.hash in self.lost:
            raise LostMeasurement("planted")
        ratio = self.ratio(graph)
        return Latency(ratio, 0.9 * ratio, 1.1 * ratio, 2.0, 10, SECONDS)


def planted_reward(folder, every=5, unmeasured=0.0, lost=()) -> tuple[MeasuredReward, PlantedProbe]:
    """Return the reward `measured` with the planted probe and a database in the folder, and the probe."""
    probe = PlantedProbe(lost)
    latencies = Latencies(TimingDatabase(folder / "costs.sqlite"), 1, probe)
    return MeasuredReward(latencies, every, unmeasured), probe
