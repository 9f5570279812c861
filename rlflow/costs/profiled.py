"""The profiled cost: every distinct operator is timed once in ONNX Runtime, on this machine.

Timings hold for one machine, one number of threads and one version of ONNX Runtime; they are kept in a
SQLite file under these keys, so the same file may travel, but its numbers do not. What is timed is what
ONNX Runtime executes: an operator that it fuses into its producer is timed together with it (`follower`).
"""

import contextlib
import fcntl
import os
import resource
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from rlflow.costs import FREE, NodeCost
from rlflow.costs.analytic import VIEWS, AnalyticCost
from rlflow.costs.signature import has_content, signature, text
from rlflow.errors import RLFlowError
from rlflow.graph.fold import constant_cone, evaluate
from rlflow.graph.model import ABSENT, Constant, Graph, Interface, Node
from rlflow.graph.onnx_reader import has_subgraph
from rlflow.graph.onnx_writer import to_model
from rlflow.runtime import machine, random_inputs, session

WARM_UPS = 2
MIN_REPEATS = 3
PATIENCE = 10  # times the budget, for an operator whose runs are disturbed by other processes
FLOOR_PS = 100_000  # an operator that is lost in the noise of a session's overhead still costs 0.1 µs
VIEW_PS = 200_000  # ONNX Runtime starts a Reshape and lets it share its input's memory
OVERHEAD = "session"  # the row that holds the time of a run of an empty graph

TABLE = """CREATE TABLE IF NOT EXISTS timings (
    signature TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT, median_ns REAL, repeats INTEGER,
    PRIMARY KEY (signature, threads, machine, onnxruntime))"""

ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip"))
FUSED = {
    "Conv": ACTIVATIONS | {"BatchNormalization"},
    "BatchNormalization": ACTIVATIONS,  # alone: timed as two kernels; after a Conv: all three are one
    "Gemm": ACTIVATIONS - {"Clip", "HardSigmoid"},
    "MatMul": frozenset(("Add",)),
}


def is_removed(node: Node) -> bool:
    """Whether ONNX Runtime removes the node when it loads a graph: Identity, and Dropout in inference."""
    if node.domain != "":
        return False
    if node.op == "Dropout":
        return all(t == ABSENT for t in (*node.outputs[1:], *node.inputs[2:]))
    return node.op == "Identity"


def follower(graph: Graph, node: Node) -> Node | None:
    """The only consumer of the node's result, if ONNX Runtime fuses it into the node.

    Sees the node and its consumers, nothing further: an Add counts as a bias only where its other operand
    is constant, so that no two producers claim it.
    """
    kinds = FUSED.get(node.op) if node.domain == "" else None
    if kinds is None:
        return None
    result = node.outputs[0]
    consumers = graph.consumers.get(result, ())
    if len(consumers) != 1 or result in graph.outputs:
        return None
    consumer = graph.nodes[consumers[0]]
    if consumer.domain != "" or consumer.op not in kinds:
        return None
    if consumer.op == "Add":
        return consumer if sum(graph.is_constant(t) for t in consumer.inputs) == 1 else None
    return consumer if consumer.inputs[0] == result else None


def is_fused(graph: Graph, node: Node) -> bool:
    """Whether the node is the follower of one of its producers, and is paid for there."""
    producers = (graph.nodes[graph.producers[t]] for t in node.inputs[:2] if t in graph.producers)
    return any(follower(graph, producer) is node for producer in producers)


def default_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlflow" / "costs.sqlite"


class ProfiledCost:
    """Look-ups of timings in a local database; a miss is timed, one process at a time.

    `node_cost` of a node depends on its own signature and that of the follower that is fused into it;
    whether it is itself fused depends on its producers and their consumers. Hence `reach = 1`.

    Attributes:
      fallbacks: signature → why the operator could not be timed alone and has its analytic cost.

    Raises RLFlowError, from any method, if the database is damaged or cannot be written.
    """

    reach = 1

    def __init__(self, path: Path | str | None = None, threads: int = 1, budget_ms: float = 20.0):
        """`budget_ms` is the time that the repeats of one operator may take (at least MIN_REPEATS of them)."""
        self.path, self.threads, self.budget_ms = Path(path or default_path()), threads, budget_ms
        self.fallbacks: dict[str, str] = {}
        self._analytic = AnalyticCost()
        self._memo: dict[tuple, NodeCost] = {}
        self._where = (threads, machine(), onnxruntime.__version__)
        with self._database():
            pass  # a bad path shows now, not in the middle of an episode

    @classmethod
    def open(cls, threads: int = 1, database: Path | str | None = None) -> "ProfiledCost":
        return cls(database, threads)

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        if node.constant or is_removed(node) or is_fused(graph, node):
            return FREE
        if node.op in VIEWS and node.domain == "":
            return NodeCost(VIEW_PS, 0, 0, 1)
        fused = follower(graph, node)
        key = (signature(graph, node), signature(graph, fused) if fused else None)
        cost = self._memo.get(key)
        if cost is None:
            cost = self._memo[key] = self._timed(graph, (node, fused) if fused else (node,))
        return cost

    def _timed(self, graph: Graph, group: tuple[Node, ...]) -> NodeCost:
        estimates = [self._analytic.node_cost(graph, node) for node in group]
        name = " + ".join(text(signature(graph, node)) for node in group)
        try:
            runtime_ps = self._runtime_ps(name, lambda: group_model(graph, group))
        except CannotRunAlone as error:
            self.fallbacks[name] = str(error)
            runtime_ps = sum(estimate.runtime_ps for estimate in estimates)
        return NodeCost(runtime_ps, sum(e.flops for e in estimates), estimates[0].bytes, 1)

    def _runtime_ps(self, name: str, build) -> int:
        overhead = self._median_ns(OVERHEAD, _empty_model)
        return max(FLOOR_PS, round(1000 * (self._median_ns(name, build) - overhead)))

    def _median_ns(self, name: str, build) -> float:
        """The stored time of a run of the model that `build` makes; times it first where none is stored."""
        found = self._look_up(name)
        if found is None:
            with self._lock():
                found = self._look_up(name)  # another process may have timed it while we waited
                if found is None:
                    found, repeats = _time(build(), self.threads, self.budget_ms)
                    self._store(name, found, repeats)
        return found

    # -- the database ------------------------------------------------------------------------------

    def _look_up(self, name: str) -> float | None:
        query = "SELECT median_ns FROM timings WHERE signature=? AND threads=? AND machine=? AND onnxruntime=?"
        with self._database() as database:
            row = database.execute(query, (name, *self._where)).fetchone()
        return row[0] if row else None

    def _store(self, name: str, median_ns: float, repeats: int) -> None:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        with self._database() as database:
            row = (name, *self._where, date, median_ns, repeats)
            database.execute("INSERT INTO timings VALUES (?,?,?,?,?,?,?)", row)

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: a model that holds none may be forked, pickled and shared."""
        with self._said_plainly():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(TABLE)
                yield connection

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Only one process times at a time, so that timings do not disturb each other."""
        with self._said_plainly(), open(self.path.with_name(f"{self.path.name}.lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _said_plainly(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            message = f"cannot use the cost database {self.path} ({error}); delete it or name another"
            raise RLFlowError(message) from error


# -- timing ----------------------------------------------------------------------------------------


class CannotRunAlone(Exception):
    """Why an operator has no timing of its own."""


def group_model(graph: Graph, group: tuple[Node, ...]) -> onnx.ModelProto:
    """A model of the nodes alone: constants stay constants (weights get random content), the rest are inputs.

    Raises CannotRunAlone for a subgraph or an input of unknown shape.
    """
    made = {tensor for node in group for tensor in node.outputs if tensor != ABSENT}
    reads = [t for t in dict.fromkeys(t for node in group for t in node.reads()) if t not in made]
    if any(node.captured or has_subgraph(node.attributes) for node in group):
        raise CannotRunAlone("it holds a subgraph")
    if any(graph.types.get(t) is None or graph.types[t].shape is None for t in reads):
        raise CannotRunAlone("the shape of an input is not known")
    constants = {t: _stand_in(graph, t) for t in reads if graph.is_constant(t)}
    inputs = [t for t in reads if t not in constants]
    inner = {t for node in group[1:] for t in node.inputs}
    outputs = [t for t in sorted(made) if t not in inner]
    template = onnx.ModelProto()
    template.CopyFrom(graph.interface.template)
    del template.graph.initializer[:]
    names = {tensor: f"t{tensor}" for tensor in (*reads, *made)}
    types = {t: graph.types[t] for t in (*reads, *made) if t in graph.types}
    declared = {t: helper.make_tensor_value_info(names[t], *kind) for t, kind in types.items()}
    interface = Interface(
        template,
        tuple(declared[t] for t in inputs),
        tuple(declared.get(t, onnx.ValueInfoProto(name=names[t])) for t in outputs),
        names,
        graph.interface.opsets,
    )
    return to_model(Graph.build(interface, group, types, constants, inputs, outputs))


def _stand_in(graph: Graph, tensor: int) -> Constant:
    """A constant of the tensor's type. Content that steers the operator is kept, weights become random."""
    kind = graph.types[tensor]
    if tensor not in graph.constants:
        cone = constant_cone(graph, tensor)
        return Constant.of(evaluate(graph, [n for n in graph.order if n in cone], [tensor])[0])
    if has_content(kind) or kind.dtype != TensorProto.FLOAT:
        return graph.constants[tensor]
    # Away from zero: a variance must be positive, and denormal numbers are slow.
    return Constant("", kind, lambda: np.random.default_rng(0).random(kind.shape, np.float32) + np.float32(0.5))


def _empty_model() -> onnx.ModelProto:
    """A model whose only node is folded at load: a run of it is ONNX Runtime's overhead."""
    one = helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["c"], ["y"])], "empty", [x], [y], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _time(model: onnx.ModelProto, threads: int, budget_ms: float) -> tuple[float, int]:
    """Median nanoseconds of a run on random inputs, and the number of runs.

    Runs during which the system took the core away do not count, where enough others are had for patience.
    Raises CannotRunAlone if ONNX Runtime refuses.
    """
    try:
        inputs = random_inputs(model, seed=0)
        running = session(model, threads)
        binding = running.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for output in running.get_outputs():
            binding.bind_output(output.name)
        for _ in range(WARM_UPS):
            running.run_with_iobinding(binding)
    except Exception as error:  # ONNX Runtime raises its own, undocumented classes
        raise CannotRunAlone(str(error)) from error
    calm, all_times = [], []
    start = time.perf_counter_ns()
    while True:
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        before = time.perf_counter_ns()
        running.run_with_iobinding(binding)
        now = time.perf_counter_ns()
        all_times.append(now - before)
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == switches:
            calm.append(now - before)
        spent = (now - start) / (1e6 * budget_ms)
        if spent > PATIENCE or (spent > 1 and len(calm) >= MIN_REPEATS):
            break
    times = calm if len(calm) >= MIN_REPEATS else all_times
    return float(np.median(times)), len(times)
