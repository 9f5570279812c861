"""The profiled cost: every distinct kernel is timed once in ONNX Runtime, on this machine.

What is timed is what ONNX Runtime executes: operators that it fuses are timed together (`rlflow.costs.groups`) and
paid for at one of them, the anchor; operators that it runs in blocks are timed in blocks, and reorders at the borders
of such regions have timings of their own (`rlflow.costs.layout`). Timings are kept in `rlflow.costs.database`.

ONNX Runtime's optimised graph judges the tables in the tests. A cost looks past few operators (`passes`), so that a
total kept by difference equals one counted anew. What has no local bound (moving transposes, shared expressions) is not
seen.
"""

import math
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from rlflow.costs import FREE, NodeCost, TimeIsUp, quantised
from rlflow.costs.analytic import VIEWS, AnalyticCost
from rlflow.costs.calibrate import RooflineCost
from rlflow.costs.database import TimingDatabase
from rlflow.costs.groups import PASSES, Groups
from rlflow.costs.layout import Layout, is_removed
from rlflow.costs.optimised import NoTimingOfItsOwn
from rlflow.costs.signature import group_signature, text
from rlflow.costs.target import Target
from rlflow.costs.timing import Timed, empty_model, group_model, in_blocks, known_inputs, reorder_model, time_model
from rlflow.graph.model import ABSENT, Graph, Node

FLOOR_PS = 100_000  # an operator that is lost in the noise of a session's overhead still costs 0.1 µs
VIEW_PS = 200_000  # ONNX Runtime starts a Reshape and lets it share its input's memory
OVERHEAD = "session"  # the row that holds the time of a run of an empty graph
GRAPHS = 16  # whose groups are remembered: as many as one graph has views at typical sizes


class ProfiledCost:
    """Look-ups of timings in a local database; a miss is timed, one process at a time.

    Whether a node is paid for, and in which layout it runs, depends on what lies at most `reach` edges around it,
    and only on what lies behind operators of `passes`: nothing is fused across others, and they need no other's layout.

    Attributes:
      fallbacks: signature → why the operators could not be timed by themselves and have the calibrated roofline's.
      deadline: see `timing_until`.
      target: the other machine whose timings the database holds; None: this one's.

    Raises RLFlowError, from any method, if the database cannot be used; TimeIsUp.
    """

    reach = 13
    passes = PASSES

    def __init__(self, path: Path | str | None = None, threads: int = 1, budget_ms: float = 20.0):
        """`budget_ms` is the time that the repeats of one kernel may take (at least MIN_REPEATS of them)."""
        self.database, self.threads, self.budget_ms = TimingDatabase(path), threads, budget_ms
        self.fallbacks: dict[str, str] = {}
        self.deadline = math.inf
        self.target = Target.of(self.database, threads)
        self._analytic = AnalyticCost()
        self._memo: dict[tuple, NodeCost] = {}
        self._groups: dict[Graph, Groups] = {}  # of the last graphs asked about

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "ProfiledCost":
        return cls(database, threads)

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        if node.constant:
            return FREE
        groups = self._groups_of(graph)
        group = groups.of(node)
        if not group:
            return FREE
        return self._with_reorders(self._kernel(groups, group), groups, group)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_groups": {}}  # a graph need not travel to other processes

    def _groups_of(self, graph: Graph) -> Groups:
        result = self._groups.get(graph)
        if result is None:
            if len(self._groups) == GRAPHS:
                del self._groups[next(iter(self._groups))]
            result = self._groups[graph] = Groups(graph, Layout(graph))
        return result

    # -- kernels -----------------------------------------------------------------------------------

    def _kernel(self, groups: Groups, group: tuple[Node, ...]) -> NodeCost:
        graph, first = groups.graph, group[0]
        if len(group) == 1 and first.domain == "":
            if is_removed(graph, first):
                return FREE
            if first.op in VIEWS:
                return NodeCost(VIEW_PS, 0, 0, 1)
        blocked = groups.blocked_inputs(group)
        key = (
            group_signature(graph, group),
            tuple([tensor in blocked for node in group for tensor in node.inputs]) if blocked else (),
        )
        cost = self._memo.get(key)
        if cost is None:
            cost = self._memo[key] = self._timed(groups, group, blocked, text(key))
        return cost

    def _timed(self, groups: Groups, group: tuple[Node, ...], blocked: frozenset[int], name: str) -> NodeCost:
        graph = groups.graph
        estimates = [self._analytic.node_cost(graph, node) for node in group]
        blocks = bool(blocked) or any(map(groups.layout.runs_blocked, group))

        def build() -> Timed:
            model, known = group_model(graph, group), known_inputs(graph, group)
            if quantised.is_quantised(group):
                return Timed(quantised.in_channels_last(model), False, known)
            if not blocks:
                return Timed(model, given=known)
            return Timed(in_blocks(model, {f"t{t}": graph.types[t] for t in blocked}), False, known)

        try:
            runtime_ps = self._runtime_ps(name, build)
        except NoTimingOfItsOwn as error:
            self.fallbacks[name] = str(error)
            runtime_ps = sum(self._calibrated.node_cost(graph, node).runtime_ps for node in group)
        return NodeCost(runtime_ps, sum(e.flops for e in estimates), _moved(graph, group), 1)

    @cached_property
    def _calibrated(self) -> RooflineCost:
        return RooflineCost.open(self.threads, self.database.path)

    # -- reorders ----------------------------------------------------------------------------------

    def _with_reorders(self, cost: NodeCost, groups: Groups, group: tuple[Node, ...]) -> NodeCost:
        for op, kind in groups.reorders(group):
            key = (op, kind)
            result = self._memo.get(key)
            if result is None:
                runtime = self._runtime_ps(text(key), lambda op=op, kind=kind: Timed(reorder_model(op, kind), False))
                result = self._memo[key] = NodeCost(runtime, 0, 2 * kind.nbytes, 1)
            cost = NodeCost(*[a + b for a, b in zip(cost, result, strict=True)])
        return cost

    # -- timings -----------------------------------------------------------------------------------

    def _runtime_ps(self, name: str, build: Callable[[], Timed]) -> int:
        overhead = self._median_ns(OVERHEAD, lambda: Timed(empty_model()))
        return max(FLOOR_PS, round(1000 * (self._median_ns(name, build) - overhead)))

    def _median_ns(self, name: str, build: Callable[[], Timed]) -> float:
        """The stored time of a run of what `build` makes; times it first where none is stored."""
        result = self.database.look_up(name, self.threads)
        if result is None and self.target is not None:
            result = self.target.unrecorded(name, build)
        if result is None:
            with self.database.lock():
                result = self.database.look_up(name, self.threads)  # another process may have timed it while we waited
                if result is None:
                    if time.monotonic() >= self.deadline:
                        raise TimeIsUp
                    timed = build()
                    result = time_model(timed.model, self.threads, self.budget_ms, timed.optimise, timed.given)
                    self.database.store(name, self.threads, result)
        return result.median


def _moved(graph: Graph, group: tuple[Node, ...]) -> int:
    """Bytes that the group reads and writes, each tensor once; what stays inside does not count."""
    made = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
    read = {tensor for node in group for tensor in node.reads()}
    return sum(graph.types[tensor].nbytes for tensor in made ^ read if tensor in graph.types)
