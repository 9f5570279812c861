"""What graphs take end to end, measured once on a machine: a budget of measurement seconds, and what it bought.

A graph that was measured stands in the database, for later runs too. What its measurement took counts where a graph is
asked about for the first time, whoever measured it: so the budget of an agent does not depend on what others did before
it, and agents can be compared at equal seconds on a machine that has seen all of them.

A measurement that is lost is lost for good here, so that a step is worth the same whenever it is asked about; nothing
is stored, and another run tries again.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from rlflow.common.errors import RLFlowError
from rlflow.common.progress import say
from rlflow.costs.database import TimingDatabase
from rlflow.costs.measurements import Measurements, sizes_text
from rlflow.costs.probe import Latency, LostMeasurement
from rlflow.graph.model import Graph

MOST_LOST = 5  # in a row: then it is the machine or the model, and not this graph

Measure = Callable[[Graph, Graph, Sequence[Mapping[str, int]]], Latency]  # see `rlflow.costs.probe.Probe`


class Latencies:
    """Asked for by graph; what is not known yet is measured.

    Attributes:
      seconds: that the measurements took of all that was asked about, those that were lost included.

    Raises RLFlowError if the database cannot be used or is another machine's.
    """

    def __init__(self, database: TimingDatabase, threads: int, measure: Measure):
        database.check_here()
        self.database, self.threads, self.seconds = database, threads, 0.0
        self._measure, self._measurements = measure, Measurements(database, threads)
        self._known: dict[tuple[str, str, str], Latency] = {}
        self._lost_in_a_row = 0

    def of(self, original: Graph, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> Latency:
        """What the graph takes, which a lost measurement does not say.

        original: what the graph was rewritten from.  sizes: of the symbols, once for every size to measure at.

        Raises RLFlowError if MOST_LOST measurements in a row are lost, or ONNX Runtime refuses the original.
        """
        key = graph.hash, original.hash, sizes_text(sizes)
        if key not in self._known:
            latency = self.database.latency(*key, self.threads) or self._new(key, original, graph, sizes)
            self.seconds += latency.seconds
            self._known[key] = latency
        return self._known[key]

    def _new(self, key: tuple, original: Graph, graph: Graph, sizes) -> Latency:
        with self.database.lock():
            latency = self.database.latency(*key, self.threads)
            if latency is not None:
                return latency  # another process has measured it while we waited
            latency = self._measured(key, original, graph, sizes)
        if not latency.lost:
            self._measurements.keep(original, graph, sizes, latency[:3], latency.original_ms)
        return latency

    def _measured(self, key: tuple, original: Graph, graph: Graph, sizes) -> Latency:
        started = time.monotonic()
        try:
            latency = self._measure(original, graph, sizes)
        except LostMeasurement as error:
            self._lost_in_a_row += 1
            if self._lost_in_a_row == MOST_LOST:
                raise RLFlowError(f"{MOST_LOST} measurements in a row were lost ({error})") from error
            say(f"a measurement was lost ({error}); its step earns nothing")
            return Latency.lost_after(time.monotonic() - started)
        self._lost_in_a_row = 0
        self.database.keep_latency(*key, self.threads, latency)
        return latency
