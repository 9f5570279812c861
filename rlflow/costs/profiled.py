"""The profiled cost: every distinct kernel is timed once in ONNX Runtime, on this machine.

The timed kernels are the kernels that ONNX Runtime executes:

- Operators that ONNX Runtime fuses are timed together. The anchor, one of these operators, gets the whole cost
  (`rlflow.costs.groups`).
- Operators that ONNX Runtime runs in blocks of channels are timed in blocks. Reorders between tensors in blocks and
  plain tensors have timings of their own (`rlflow.costs.kernel_layout`).

Timings are stored in `rlflow.costs.database`. Two groups of operators share one timing if ONNX Runtime makes equal
kernels of both. Two timings of one kernel differ by noise, which would decide between equal graphs. The cost of a node
depends only on a bounded neighbourhood (`reach`, `passes`), so a total that is updated by difference equals a full
recount. Optimisations without a local bound, such as moving transposes through a graph and merging equal expressions,
are not modelled.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.common.spending import KERNELS, spent_on
from rlflow.costs import EXACT, FREE, NodeCost, Spread, TimeIsUp, kernel_layout, runs_of
from rlflow.costs.analytic import VIEWS, AnalyticCost, RooflineCost
from rlflow.costs.database import TimingDatabase
from rlflow.costs.groups import PASSES, Groups
from rlflow.costs.kernel_layout import Layout, NoTimingOfItsOwn, is_removed
from rlflow.costs.kernel_models import Timed, empty_model, group_model, in_blocks, known_inputs, reorder_model
from rlflow.costs.signatures import group_signature, kernel_digest, signature_text
from rlflow.costs.target import Target
from rlflow.costs.timing import Timing, time_model
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType

# The smallest cost of a kernel in picoseconds. The time of a fast kernel is smaller than the noise of the overhead of a
# run, which is subtracted.
FLOOR_PS = 100_000
VIEW_PS = 200_000  # cost in picoseconds of a Reshape, which ONNX Runtime starts but which moves no data
OVERHEAD = "session"  # name of the timing of an empty graph
GRAPHS = 16  # number of graphs whose groups are cached; the views of one graph at its typical sizes count separately


class Kernel(NamedTuple):
    """The cost of a kernel and the uncertainty of this cost."""

    cost: NodeCost
    spread: Spread = EXACT


class ProfiledCost:
    """A cost model that looks up the timings of kernels in a database and times kernels that are missing there.

    A lock of the database ensures that only one process at a time measures. The cost and the layout of a node depend on
    nodes within `reach` edges, along paths through operators in `passes`. Other operators end a path, because nothing
    is fused across them and their layout does not depend on their neighbours.

    Every method may raise RLFlowError if the database cannot be used, and TimeIsUp if a kernel would have to be timed
    after the deadline.

    Attributes:
      fallbacks: signature → the reason why these operators cannot be timed; they cost the calibrated roofline instead.
      deadline: time on the clock time.monotonic() (see `timing_until`).
      timing_seconds: seconds that this object has spent on making and timing the models of kernels.
      target: the other machine whose timings the database holds; None for this machine.
    """

    reach = 13
    passes = PASSES

    def __init__(self, path: Path | str | None = None, threads: int = 1, budget_ms: float = 20.0):
        """Open the database of timings.

        Args:
          path: SQLite file; None for the user's default database.
          threads: threads of ONNX Runtime.
          budget_ms: milliseconds for the runs of one kernel and the writing of their inputs; at least MIN_REPEATS runs
            are made.
        """
        self.database, self.threads, self.budget_ms = TimingDatabase(path), threads, budget_ms
        self.fallbacks: dict[str, str] = {}
        self.deadline, self.timing_seconds = math.inf, 0.0
        self.target = Target.of(self.database, threads)
        self._analytic = AnalyticCost()
        self._memo: dict[tuple, Kernel] = {}
        self._names: dict[str, str] = {}  # signature → the signature under which the timing is stored
        self._again: set[str] = set()  # names of timings to repeat
        self._groups: dict[Graph, Groups] = {}  # of the last GRAPHS graphs

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "ProfiledCost":
        return cls(database, threads)

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        kernels = self._kernels(graph, node)
        if len(kernels) == 1:
            return kernels[0].cost
        cost = FREE
        for kernel in kernels:
            cost = NodeCost(*[a + b for a, b in zip(cost, kernel.cost, strict=True)])
        return cost

    def spread(self, graph: Graph, node: Node) -> Spread:
        """Return the uncertainty of `node_cost`."""
        result = EXACT
        for kernel in self._kernels(graph, node):
            result = result.plus(kernel.spread, 1)
        return result

    def kernels(self, graph: Graph) -> Iterator[tuple[str, tuple[int, ...] | None, str, Kernel, int]]:
        """Yield the kernels of a graph in the order of their anchors, each followed by the reorders of its group.

        Operators that ONNX Runtime removes, such as Identity, are left out.

        Yields:
          (operators such as "Conv + Relu", shape of the last output or None if it is unknown, name of the first node or
          "" for a reorder, the `Kernel`, its number of runs in one run of the model).
        """
        groups = self._groups_of(graph)
        for node_id in graph.order:
            node = graph.nodes[node_id]
            group = () if node.constant else groups.of(node)
            if not group:
                continue
            outputs = [tensor for tensor in group[-1].outputs if tensor != ABSENT]
            kind = graph.types.get(outputs[-1]) if outputs else None
            operators, kernel = " + ".join(one.op for one in group), self._kernel(groups, group)
            runs = runs_of(self, graph, node)
            if kernel.cost != FREE:
                yield operators, kind and kind.shape, group[0].name, kernel, runs
            for op, moved in groups.reorders(group):
                yield op, moved.shape, "", self._reorder(op, moved), runs

    def time_again(self, timing: str) -> None:
        """Make the next use of a timing repeat it and store the combination of both timings.

        Args:
          timing: a name in a `Spread` of this cost model.
        """
        self._again.add(timing)
        for key in [key for key, kernel in self._memo.items() if timing in kernel.spread]:
            del self._memo[key]

    def __getstate__(self) -> dict:
        # Graphs are not sent to other processes, and a deadline has no meaning on the clock of another process.
        return self.__dict__ | {"_groups": {}, "deadline": math.inf}

    def _groups_of(self, graph: Graph) -> Groups:
        result = self._groups.get(graph)
        if result is None:
            if len(self._groups) == GRAPHS:
                del self._groups[next(iter(self._groups))]
            result = self._groups[graph] = Groups(graph, Layout(graph))
        return result

    # -- kernels -----------------------------------------------------------------------------------

    def _kernels(self, graph: Graph, node: Node) -> list[Kernel]:
        """Return the kernels whose cost is the cost of a node.

        For the anchor of a group these are the kernel of the group and the reorders for which the group is charged. For
        other nodes and for constant nodes the list is empty.
        """
        if node.constant:
            return []
        groups = self._groups_of(graph)
        group = groups.of(node)
        if not group:
            return []
        return [self._kernel(groups, group), *[self._reorder(op, kind) for op, kind in groups.reorders(group)]]

    def _kernel(self, groups: Groups, group: tuple[Node, ...]) -> Kernel:
        graph, first = groups.graph, group[0]
        if len(group) == 1 and first.domain == "":
            if is_removed(graph, first):
                return Kernel(FREE)
            if first.op in VIEWS:
                return Kernel(NodeCost(VIEW_PS, 0, 0, 1))
        blocked = groups.blocked_inputs(group)
        key = (
            group_signature(graph, group),
            tuple([k for k, tensor in enumerate(t for node in group for t in node.inputs) if tensor in blocked]),
        )
        kernel = self._memo.get(key)
        if kernel is None:
            kernel = self._memo[key] = self._timed(groups, group, blocked, signature_text(key))
        return kernel

    def _timed(self, groups: Groups, group: tuple[Node, ...], blocked: frozenset[int], name: str) -> Kernel:
        graph = groups.graph
        estimates = [self._analytic.node_cost(graph, node) for node in group]
        blocks = bool(blocked) or any(map(groups.layout.runs_blocked, group))

        def build() -> Timed:
            known = known_inputs(graph, group)
            if kernel_layout.is_quantised(group):
                return Timed(kernel_layout.in_channels_last(group_model(graph, group)), False, known)
            if blocks:
                kinds = {f"t{t}": graph.types[t] for t in blocked}
                return Timed(in_blocks(group_model(graph, group), kinds), False, known)
            apart: dict[str, np.ndarray] = {}
            return Timed(group_model(graph, group, apart), True, known, apart)

        try:
            runtime_ps, spread = self._runtime(name, build)
        except NoTimingOfItsOwn as error:
            self.fallbacks[name] = str(error)
            runtime_ps, spread = sum(self._calibrated.node_cost(graph, node).runtime_ps for node in group), EXACT
        return Kernel(NodeCost(runtime_ps, sum(e.flops for e in estimates), _moved(graph, group), 1), spread)

    @cached_property
    def _calibrated(self) -> RooflineCost:
        return RooflineCost.open(self.threads, self.database.path)

    def _reorder(self, op: str, kind: TensorType) -> Kernel:
        key = (op, kind)
        kernel = self._memo.get(key)
        if kernel is None:
            runtime_ps, spread = self._runtime(signature_text(key), lambda: Timed(reorder_model(op, kind), False))
            kernel = self._memo[key] = Kernel(NodeCost(runtime_ps, 0, 2 * kind.nbytes, 1), spread)
        return kernel

    # -- timings -----------------------------------------------------------------------------------

    def _runtime(self, name: str, build: Callable[[], Timed]) -> tuple[int, Spread]:
        """Return the runtime of a kernel in picoseconds without the overhead of a run, and its uncertainty.

        Args:
          name: signature of the kernel as text.
          build: function that makes the model to time.
        """
        name, build = self._shared(name, build)
        overhead, timing = self._timing(OVERHEAD, lambda: Timed(empty_model())), self._timing(name, build)
        spread = EXACT.plus({name: timing.half_width, OVERHEAD: -overhead.half_width}, 1000)
        return max(FLOOR_PS, round(1000 * (timing.median - overhead.median))), spread

    def _shared(self, name: str, build: Callable[[], Timed]) -> tuple[str, Callable[[], Timed]]:
        """Return the name under which the timing of a kernel is stored, and a function that makes the model to time.

        The name is another signature if an equal kernel was timed for other operators.

        Args:
          name: signature of the operators as text.
          build: function that makes the model to time.
        """
        if name in self._names:
            return self._names[name], build
        shared = self.database.timed_as(name, self.threads)
        if shared is None and self.target is None:
            with self._charged():
                timed = build()
                ran = kernel_layout.optimised(timed.model, timed.apart) if timed.optimise else timed.model
            self.database.keep_kernel(name, self.threads, kernel_digest(ran, timed.given))
            shared, build = self.database.timed_as(name, self.threads), lambda: timed
        self._names[name] = shared or name
        return self._names[name], build

    def _timing(self, name: str, build: Callable[[], Timed]) -> Timing:
        """Return the timing of a kernel; time the kernel first if no timing is stored or `time_again` names it.

        A kernel of another machine (`target`) that was not recorded there gets the timing `UNRECORDED`.

        Args:
          name: signature of the kernel as text.
          build: function that makes the model to time.
        """
        result = self.database.look_up(name, self.threads)
        if result is None and self.target is not None:
            result = self.target.unrecorded(name, build)
        if result is None:
            with self.database.lock():
                result = self.database.look_up(name, self.threads)  # Another process may have timed it meanwhile.
                if result is None:
                    result = self._time(build())
                    self.database.store(name, self.threads, result)
        elif name in self._again:
            self._again.remove(name)
            with self.database.lock():
                before = self.database.look_up(name, self.threads) or result  # with repetitions by other processes
                result = before.combined_with(self._time(build()))
                self.database.replace(name, self.threads, result)
        return result

    def _time(self, timed: Timed) -> Timing:
        with self._charged():
            return time_model(timed, self.threads, self.budget_ms)

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Add the duration of the block to `timing_seconds`. Raise TimeIsUp instead after the deadline."""
        began = time.monotonic()
        if began >= self.deadline:
            raise TimeIsUp
        try:
            with spent_on(KERNELS):
                yield
        finally:
            self.timing_seconds += time.monotonic() - began


def _moved(graph: Graph, group: tuple[Node, ...]) -> int:
    """Return the number of bytes of the tensors that a group reads or writes, without tensors inside the group."""
    made = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
    read = {tensor for node in group for tensor in node.reads()}
    return sum(graph.types[tensor].nbytes for tensor in made ^ read if tensor in graph.types)
