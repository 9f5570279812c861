"""Measured latencies of whole graphs, stored in the timing database for later runs.

`Latencies` returns latencies of graphs to an agent and sums the duration of all measurements. If an earlier run has
measured a graph under the same conditions (`Probe.conditions`), its latency is looked up, but its duration counts all
the same. Agents can therefore be compared at equal measurement time. A measurement is lost if the graph does not run,
or if the measuring process dies or exceeds its time limit. A lost measurement stays lost for the run, so that the
reward of a step is reproducible. Lost measurements are not stored, so another run measures the graph again.
"""

import time

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.costs.database import TimingDatabase
from rlflow.costs.probe import Latency, LostMeasurement, Probe, Sizes, sizes_text
from rlflow.graph.ir import Graph

# The number of consecutive lost measurements after which `Latencies` gives up, because then the machine or the model is
# at fault, not one graph.
MOST_LOST = 5


class Latencies:
    """A cache of latencies; a graph whose latency is not stored is measured at its first request.

    Every method may raise RLFlowError if the database cannot be used or belongs to another machine.

    Attributes:
      seconds: total duration of the measurements of all requested graphs, lost and stored measurements included.
    """

    def __init__(self, database: TimingDatabase, threads: int, probe: Probe):
        database.check_here()
        self.database, self.threads, self.seconds = database, threads, 0.0
        self._probe = probe
        self._conditions: dict[str, str] = {}  # sizes → conditions; `Probe.conditions` makes all inputs
        self._known: dict[tuple[str, str, str], Latency] = {}  # (graph, original, conditions) → latency
        self._lost_in_a_row = 0

    def of(self, original: Graph, graph: Graph, sizes: Sizes) -> Latency:
        """Return the latency of a graph relative to its original; the measurement may be lost (`Latency.lost`).

        Args:
          original: the graph before all rewrites.
          graph: the graph to measure.
          sizes: for each size to measure at, symbol → size.

        Raises:
          RLFlowError: MOST_LOST measurements in a row were lost, or ONNX Runtime refuses the original.
        """
        text = sizes_text(sizes)
        if text not in self._conditions:
            self._conditions[text] = self._probe.conditions(sizes)
        key = graph.hash, original.hash, self._conditions[text]
        if key not in self._known:
            latency = self.database.latency(*key, self.threads) or self._new(key, original, graph, sizes)
            self.seconds += latency.seconds
            self._known[key] = latency
        return self._known[key]

    def _new(self, key: tuple, original: Graph, graph: Graph, sizes: Sizes) -> Latency:
        with self.database.lock():
            latency = self.database.latency(*key, self.threads)
            if latency is not None:
                return latency  # Another process has measured it meanwhile.
            return self._measured(key, original, graph, sizes)

    def _measured(self, key: tuple, original: Graph, graph: Graph, sizes: Sizes) -> Latency:
        started = time.monotonic()
        try:
            latency = self._probe(original, graph, sizes)
        except LostMeasurement as error:
            self._lost_in_a_row += 1
            if self._lost_in_a_row == MOST_LOST:
                raise RLFlowError(
                    f"{MOST_LOST} measurements in a row were lost ({error}); raise env.measure_limit if the model "
                    "needs more time"
                ) from error
            say(f"a measurement was lost ({error}); the reward of its step is 0")
            return Latency.lost_after(time.monotonic() - started)
        self._lost_in_a_row = 0
        self.database.keep_latency(*key, self.threads, latency)
        return latency
