"""The pipeline of the command `memory`: make a model need less memory, check it, and write a receipt.

`Optimised` holds the graph that ONNX Runtime makes of a model, with its ordering problem. `best_order` searches for an
order. `rewrite`, on request, searches proved rewrites that lower the peak; the result is used only if its peak is below
the peak of the model in its best order. Rewrites round differently, so the rewritten model is compared within the
tolerance of `optimise`. `write_in_order` writes the file. It raises RLFlowError unless the file gives the same bits as
its source in a session with the defaults, and sessions run the file in the simulated order.

`measure_setups` measures the memory that runs add with each of SETUPS, and the latency of setups that need less memory.
`make_order_receipt` and `repeat` write and replay the receipt: the same file, byte for byte.

A node with subgraphs (If, Loop, Scan) is one node; the memory inside its subgraphs is not counted. The order is best at
one size of each symbol; the file is correct at every size.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.common.messages import progress_bar
from rlflow.common.system import MIN_RETURNED
from rlflow.costs import graph_cost
from rlflow.costs.measured import measure
from rlflow.env.batched import start_of
from rlflow.env.state import Task
from rlflow.graph.ir import ABSENT
from rlflow.graph.onnx_reader import load_graph, model_files
from rlflow.graph.onnx_runtime import Setup, machine, random_inputs
from rlflow.graph.onnx_writer import save_graph, with_shape
from rlflow.graph.typical import Shapes, input_shapes, load_at
from rlflow.memory.allocation import plan, priority_order, problem_of
from rlflow.memory.cost import FRACTIONS, MemoryCost
from rlflow.memory.order_search import optimum
from rlflow.memory.ordered_files import (
    Inputs,
    added_by_runs,
    in_a_users_process,
    is_blocked,
    is_known,
    names,
    order_run,
    reorder,
    same_bits,
    save_optimised,
    with_sizes_of_a_run,
)
from rlflow.optimisation.receipt import make_receipt, replay, shapes_of, versions
from rlflow.optimisation.validate import validate
from rlflow.optimisation.validate.findings import checks_text
from rlflow.rules.language import load_rules
from rlflow.search.base import Limits, run_search

SETUPS = {  # from the fewest changes to the most
    "defaults": Setup(),
    "no pattern": Setup(pattern=False),
    "no pattern, no arena": Setup(pattern=False, arena=False),
    "no pattern, arena or reuse": Setup(pattern=False, arena=False, reuse=False),
}
SESSIONS_OBSERVED = 3  # sessions of the unmodified model, whose orders may differ
SEEDS = (0, 1, 2)  # seeds of the inputs for the comparison of bits
MIN_SHARE, MIN_BYTES = 0.02, 100_000  # smallest real difference, as a share and in bytes
SESSION_PAIRS = 6  # pairs of sessions per latency measurement


class Optimised:
    """The file that ONNX Runtime's optimisations make of a model, and its ordering problem.

    The constructor raises RLFlowError if RLFlow or ONNX Runtime refuses the model.

    Attributes:
      source: the path of the model.
      path: the path of the optimised file, whose nodes are ordered.
      original: the model to compare with; differs from `source` if `source` is a rewritten model.
      sizes: symbol → size, used for all counts and measurements.
      graph: the graph of the file at these sizes.
      problem: the ordering problem of the graph, in bytes.
      usual: the orders of several sessions of the unmodified model, as lists of names.
      unknown: the number of tensors of unknown size; these count as 0 bytes.
    """

    def __init__(self, source: Path, folder: Path, shapes: Shapes, fix: bool, original: Path | None = None):
        self.source, self.path, self.original = source, folder / "model.onnx", original or source
        loaded, (self.sizes, *more) = load_at(source, shapes, fix)
        if more:
            raise RLFlowError("an order is best at one size of each symbol: pass one size with --shape NAME=SIZE")
        self.shapes = input_shapes(loaded.interface, self.sizes)
        ports = zip(loaded.interface.inputs, loaded.inputs, strict=True)
        frozen = [with_shape(value, loaded.types.get(tensor)) for value, tensor in ports] if fix else []
        orders = [save_optimised(source, self.path, self.inputs(0), frozen)]
        if is_blocked(self.path):  # Without blocked channels all sessions have one order.
            for _ in range(SESSIONS_OBSERVED - 1):
                orders.append(save_optimised(source, folder / "other.onnx", self.inputs(0), frozen))
        self.graph = with_sizes_of_a_run(load_graph(self.path).at(self.sizes), self.path, self.inputs(0))
        self.problem, self.nodes = problem_of(self.graph)
        if not self.nodes:
            raise RLFlowError("there is nothing to order: every result of the model is constant")
        self.at = {name: k for k, name in enumerate(names(self.graph, self.nodes))}
        self.usual = [[name for name in order if name in self.at] for order in orders]
        made = [tensor for node in self.graph.nodes.values() for tensor in node.outputs if tensor != ABSENT]
        self.unknown = sum(not is_known(self.graph, tensor) for tensor in made)

    def inputs(self, seed: int) -> Inputs:
        """Return random inputs: name → array."""
        return random_inputs(self.source, seed, self.shapes)

    def positions(self, order: Sequence[str]) -> np.ndarray:
        """Return an order of names as numbers of the problem, int64 [n]. Raise RLFlowError if it is not valid."""
        if sorted(order) != sorted(self.at):
            raise RLFlowError("the order has other nodes than this ONNX Runtime makes of the model; search again")
        result = np.array([self.at[name] for name in order], np.int64)
        if not self.problem.is_order(result):
            raise RLFlowError("the order is not valid: a node comes before a node that it depends on")
        return result

    def peak(self, order: Sequence[str]) -> int:
        """Return the bytes that an ideal allocator needs for an order."""
        return self.problem.peak(self.positions(order))

    def usage(self, order: Sequence[str]) -> np.ndarray:
        """Return the bytes in use while each node of an order runs, int64 [n]."""
        return self.problem.usage(self.positions(order)[None])[0]

    def block(self, order: Sequence[str]) -> int:
        """Return the bytes that a session with its defaults plans: its one block plus the outputs."""
        planned = plan(self.graph, [self.nodes[k] for k in self.positions(order)])
        return planned.peak + planned.outputs


class Ordered(NamedTuple):
    """The orders of a model.

    Attributes:
      usual: of the orders in which sessions run the model, the one with the highest peak.
      best: the best order that was found, as names.
      bound: bytes; no order has a lower peak.
    """

    usual: list[str]
    best: list[str]
    bound: int


def best_order(model: Optimised, seconds: float) -> Ordered:
    """Return the best order that a search finds, or the usual order if no better one is found.

    Args:
      model: the model.
      seconds: the time budget of the search.
    """
    usual = max(model.usual, key=model.peak)
    result, called = optimum(model.problem, seconds), list(model.at)
    order = [called[k] for k in result.order]
    return Ordered(usual, order if result.peak < model.peak(usual) else usual, result.bound)


def best_of(before: Optimised, by_order: Ordered, model: Optimised, seconds: float) -> Ordered:
    """Return the better one of the original model's best order and the rewritten model's best order.

    Args:
      before: the original model.
      by_order: the original model's orders.
      model: the rewritten model, or `before` again.
      seconds: the time budget of the search for the rewritten model.

    Returns:
      The orders; `usual` is always the original model's.
    """
    if model is before:
        return by_order
    ordered = best_order(model, seconds)
    less = model.peak(ordered.best) < before.peak(by_order.best)
    return Ordered(by_order.usual, ordered.best, ordered.bound) if less else by_order


def write_in_order(model: Optimised, order: Sequence[str], threads: int) -> list[str]:
    """Write the file of the model in an order, and check it.

    Args:
      model: the model.
      order: names of all nodes.
      threads: of the sessions that compare results.

    Returns:
      The order in which sessions run the file, as names.

    Raises:
      RLFlowError: if the results differ in a bit, or if a session runs the file in another order than the simulated
        one.
    """
    reorder(model.path, order)
    graph = load_graph(model.path)
    simulated = names(graph, priority_order(graph))
    setup, options = Setup(as_written=True), onnxruntime.SessionOptions()
    setup.apply(options)
    ran = order_run(str(model.path), options, model.inputs(0), model.path)
    if [name for name in ran if name in model.at] != simulated:
        raise RLFlowError("this ONNX Runtime does not run the reordered file in the simulated order; not written")
    sides = ((model.source, Setup()), (model.path, setup))
    if not same_bits(sides, [model.inputs(seed) for seed in SEEDS], threads):
        raise RLFlowError("the reordered file gives other bits than the model, which may draw at random; not written")
    return simulated


class Row(NamedTuple):
    """The measurements of one setup.

    Attributes:
      setup: its name in SETUPS.
      usual_bytes, bytes: what runs of the original model, and of the file, add to the resident memory of a fresh
        process;
        None if the system does not report it.
      latency: the file with this setup against the model with the defaults, as `measure` returns it. None if both are
        the
        same, or if a setup with fewer changes needs as little memory.
    """

    setup: str
    usual_bytes: int | None
    bytes: int | None
    latency: dict | None


def measure_setups(model: Optimised, written: bool, threads: int, seconds: float, progress) -> list[Row]:
    """Measure each of SETUPS.

    Args:
      model: the model.
      written: True if a file in another order was written; if not, the model itself is measured with each setup.
      threads: of the sessions.
      seconds: the budget of all latency measurements; a slow model may exceed it.
      progress: a bar that advances once per setup.
    """
    result, inputs, sizes = [], model.inputs(0), {"": model.shapes}
    path = model.path if written else model.original
    for name, usual in SETUPS.items():
        setup = usual._replace(as_written=written)
        before = added_by_runs(model.original, inputs, threads, usual)
        after = added_by_runs(path, inputs, threads, setup) if written else before
        latency = None
        if all(needs_less(after, row.bytes) for row in result) and setup != Setup():
            options = (threads, seconds / len(SETUPS), SESSION_PAIRS, 0, sizes, False, (Setup(), setup))
            latency = in_a_users_process(setup, measure, model.original, path, *options)
        result.append(Row(name, before, after, latency))
        progress.update()
    return result


def needs_less(size: int | None, other: int | None) -> bool:
    """Return whether a measured size is below another one by more than the noise of measurements.

    Args:
      size, other: bytes, or None if not measured.
    """
    return size is not None and other is not None and size < other - max(MIN_SHARE * other, MIN_BYTES)


def choose_setup(candidates: Sequence[Row], slowdown: float) -> Row:
    """Return the setup that needs the least memory; of about equal setups the one with the fewest changes.

    Args:
      candidates: in the order of SETUPS. The first one is always allowed; others only with a measured latency.
      slowdown: the allowed growth of latency, as a share. A setup that is shown to exceed the share is excluded.
    """
    best = candidates[0]
    for row in candidates[1:]:
        fast = row.latency is not None and row.latency["interval"][0] <= 1 + slowdown
        if fast and needs_less(row.bytes, best.bytes):
            best = row
    return best


def snippet(path: Path | str, setup: Setup) -> str:
    """Return Python code that loads a file with a setup.

    Args:
      path: the file.
      setup: the session's options.
    """
    lines = ["import onnxruntime", "", "options = onnxruntime.SessionOptions()"]
    if not setup.arena:
        lines.insert(0, f"# in an environment with MALLOC_MMAP_THRESHOLD_={MIN_RETURNED}: what is freed is given back")
    for name, value in setup.options().items():
        text = value if isinstance(value, bool) else f"onnxruntime.{type(value).__name__}.{value.name}"
        lines.append(f"options.{name} = {text}")
    lines.append(f'session = onnxruntime.InferenceSession({str(path)!r}, options, providers=["CPUExecutionProvider"])')
    return "\n".join(lines)


FAMILIES = ["concat", "memory"]
SEARCH = {"width": 4, "depth": 10, "radius": 1}  # of a beam; extracting a part may need many rewrites to pay


class Rewritten(NamedTuple):
    """A rewritten model.

    Attributes:
      path: the file.
      receipt: the receipt of `rlflow.optimisation.receipt`.
      checks: the checks of equality that passed, as text.
    """

    path: Path
    receipt: dict
    checks: str

    @property
    def rules(self) -> dict[str, int]:
        """Rule → how often it was applied."""
        return dict(Counter(action["rule"] for action in self.receipt["actions"]))


def rewrite(source: Path, path: Path, shapes: Shapes, fix: bool, seconds: float, threads: int) -> Rewritten | None:
    """Search rewrites that lower the peak, and write the result.

    Args:
      source: the model.
      path: the file to write.
      shapes: the sizes that the user named.
      fix: True to freeze these sizes.
      seconds: the time budget of the search.
      threads: of the sessions that check equality.

    Returns:
      The rewritten model, or None if the search finds nothing that needs less.

    Raises:
      RLFlowError: if the file is not equal to the model within the tolerance of `optimise`, or cannot be read.
    """
    graph, sizes = load_at(source, shapes, fix)
    task = Task(graph, load_rules(FAMILIES), MemoryCost(), sizes=sizes)
    result = run_search("beam", start_of(task, "single"), Limits(seconds), **SEARCH)
    if result.state.objective // FRACTIONS >= task.initial.objective // FRACTIONS:
        return None
    save_graph(result.state.graph, path)
    costs = {"peak": graph_cost(task.cost, graph).runtime_ps // FRACTIONS, "after": result.state.objective // FRACTIONS}
    bound = shapes if fix else {}
    receipt = make_receipt(graph, task.rules, FAMILIES, result.actions, result.state.graph, costs, bound, sizes=sizes)
    return Rewritten(path, receipt, _passed_checks(source, path, receipt, shapes, fix, threads))


def repeat_rewrites(source: Path, path: Path, receipt: dict, shapes: Shapes, fix: bool, threads: int) -> Rewritten:
    """Write the file that a receipt makes of a model, with the same bytes as before.

    Args:
      source: the model.
      path: the file to write.
      receipt: of the rewrites.
      shapes, fix, threads: as for `rewrite`.

    Raises:
      RLFlowError: as `rewrite` and `replay` do.
    """
    save_graph(replay(receipt, source), path)
    return Rewritten(path, receipt, _passed_checks(source, path, receipt, shapes, fix, threads))


def _passed_checks(source: Path, path: Path, receipt: dict, shapes: Shapes, fix: bool, threads: int) -> str:
    """Return the checks of equality that passed, as text. Raise RLFlowError if one fails."""
    findings = validate(source, path, shapes=shapes, threads=threads, receipt=receipt, fix=fix)
    if not findings.ok:
        raise RLFlowError(f"the rewritten model differs from the model: {findings.failures()[0].message}; not written")
    return checks_text(findings.to_dict()["findings"])


FORMAT = 1


def make_order_receipt(
    before: Optimised, model: Optimised, ordered: Ordered, executed: Sequence[str], setup: Setup, shapes: Shapes,
    fix: bool, rewrites: dict | None = None,
) -> dict:  # fmt: skip
    """Return the receipt of a file that was written and checked.

    Args:
      before: the original model.
      model: the model that was ordered; `before` again without rewrites.
      ordered: its orders.
      executed: the order in which sessions run the file.
      setup: the setup with which a session needs the least memory.
      shapes, fix: as `Optimised` got them.
      rewrites: the receipt of the rewrites, or None.
    """
    return {
        "format": FORMAT,
        "task": "ordering",
        "original_sha256": file_hash(*model_files(model.original)),
        "shapes": dict(shapes),
        "fix": fix,
        "sizes": dict(before.sizes),
        "rewrites": rewrites,
        "usual_order": ordered.usual,
        "order": ordered.best,
        "bytes": claims(before, model, ordered.usual, executed) | {"bound": ordered.bound},
        "session": {name: getattr(value, "name", value) for name, value in setup.options().items()},
        "model_sha256": file_hash(*model_files(model.path)),
        "versions": versions() | {"machine": machine()},
    }


def claims(before: Optimised, model: Optimised, usual: Sequence[str], executed: Sequence[str]) -> dict[str, int]:
    """Return the bytes that a receipt states: the ideal peak and the planned block, before and after.

    Args:
      before, usual: the original model and its usual order.
      model, executed: the ordered model and the order in which sessions run it.
    """
    return {
        "usual_peak": before.peak(usual),
        "peak": model.peak(executed),
        "usual_block": before.block(usual),
        "block": model.block(executed),
    }


def named_sizes(receipt: dict) -> tuple[Shapes, bool]:
    """Return (sizes that the user named, True if frozen). Raise RLFlowError for another kind of receipt."""
    if not isinstance(receipt, dict) or (receipt.get("task"), receipt.get("format")) != ("ordering", FORMAT):
        raise RLFlowError(f"not a receipt of `memory` of format {FORMAT}")
    return shapes_of(receipt), receipt.get("fix") is True


def repeat(receipt: dict, before: Optimised, model: Optimised, threads: int) -> list[str]:
    """Write the file of a receipt again, and check every statement of the receipt.

    Args:
      receipt: as `make_order_receipt` returned it.
      before: the original model.
      model: the model to order; `before` again without rewrites.
      threads: of the sessions that compare results.

    Returns:
      The order in which sessions run the file, as names.

    Raises:
      RLFlowError: if the receipt belongs to another model, states something wrong, or leads to another file.
    """
    try:
        usual, order, claimed = list(receipt["usual_order"]), list(receipt["order"]), dict(receipt["bytes"])
        original, written, made_by = (receipt[key] for key in ("original_sha256", "model_sha256", "versions"))
    except (KeyError, TypeError, ValueError) as error:
        raise RLFlowError(f"not a receipt: {error!r} is missing or malformed") from error
    if file_hash(*model_files(before.source)) != original:
        raise RLFlowError("the receipt belongs to another model")
    model.positions(order)
    executed = write_in_order(model, order, threads)
    for name, size in claims(before, model, usual, executed).items():
        if claimed.get(name) != size:
            raise RLFlowError(f"the receipt says {name} = {claimed.get(name)} bytes, but its orders need {size}")
    if file_hash(*model_files(model.path)) != written:
        raise RLFlowError(f"the same order gives another file here; use the versions of the receipt: {made_by}")
    return executed


class Improved(NamedTuple):
    """The result of `improve`.

    Attributes:
      results: plain values: sizes in bytes, measured rows, what was rewritten.
      model: the model in which the orders are counted.
      usage: memory in use over time, before and after; None if no file is to be written.
      receipt: the receipt of the file; None if no file is to be written.
      setup: the chosen session options.
    """

    results: dict
    model: Optimised
    usage: tuple | None
    receipt: dict | None
    setup: Setup

    def code(self, path: Path | str) -> str:
        """Return the Python code that loads the file at `path` with the chosen options."""
        return snippet(path, self.setup)


def improve(
    before: Optimised, shapes: Shapes, fix: bool, threads: int, seconds: float, slowdown: float,
    rewrite_seconds: float | None,
) -> Improved:  # fmt: skip
    """Search for the best order, rewrite where asked for, measure all session options and choose the best.

    Args:
      before: the model as it is.
      shapes: typical sizes of symbolic dimensions; `fix` freezes them.
      threads: threads of ONNX Runtime.
      seconds: the limit of the search, and of the measurement of latencies.
      slowdown: by how many percent the chosen options may make the model slower.
      rewrite_seconds: the limit of rewriting; None: the graph is not rewritten.
    """
    with progress_bar(2 + len(SETUPS), "memory", "step") as bar:
        by_order = best_order(before, seconds)
        model, rewritten = _rewritten_model(before, shapes, fix, threads, rewrite_seconds)
        bar.update()
        ordered = best_of(before, by_order, model, seconds)
        if ordered is by_order:
            model, rewritten = before, None
        better = ordered.best is not ordered.usual
        executed = write_in_order(model, ordered.best, threads) if better else ordered.usual
        sizes = claims(before, model, ordered.usual, executed) | {"bound": ordered.bound}
        written = sizes["peak"] < sizes["usual_peak"]
        bar.update()
        measured = measure_setups(model, written, threads, seconds, bar)
    best = choose_setup(measured, slowdown / 100)
    setup = SETUPS[best.setup]._replace(as_written=written)
    results = {
        "written": written, "nodes": model.problem.n, "unknown_sizes": model.unknown,
        "sizes": model.sizes, "bytes": sizes, "usual_peaks": sorted(map(before.peak, before.usual)),
        "gain_percent": 100 * (1 - sizes["peak"] / max(sizes["usual_peak"], 1)),
        "rewritten": rewritten and {"rules": rewritten.rules, "checks": rewritten.checks,
                                    "best_order": before.peak(by_order.best)},
        "proved": sizes["peak"] == ordered.bound,
        "rows": [row._asdict() for row in measured], "setup": best.setup,
        "this_processor_only": written and is_blocked(model.path),
    }  # fmt: skip
    if not written:
        return Improved(results, model, None, None, setup)
    rewrites = rewritten and rewritten.receipt
    receipt = make_order_receipt(before, model, ordered, executed, setup, shapes, fix, rewrites)
    return Improved(results, model, (before.usage(ordered.usual), model.usage(executed)), receipt, setup)


def make_again(before: Optimised, receipt: dict, shapes: Shapes, threads: int) -> tuple[Optimised, list[str]]:
    """Return the model of a receipt, written in its order, and the names of its nodes in that order.

    Args:
      before: the original model.
      receipt: the receipt of `improve`.
      shapes: the typical sizes that the receipt names.
      threads: threads of ONNX Runtime.

    Raises:
      RLFlowError: the receipt does not fit the model, or makes a wrong claim.
    """
    model, fix, rewrites = before, receipt["fix"], receipt.get("rewrites")
    if rewrites is not None:
        path = before.path.with_name("rewritten.onnx")
        rewritten = repeat_rewrites(before.source, path, rewrites, shapes, fix, threads)
        model = _optimised_rewritten(before, rewritten, shapes, fix)
    return model, repeat(receipt, before, model, threads)


def _rewritten_model(
    before: Optimised, shapes: Shapes, fix: bool, threads: int, seconds: float | None
) -> tuple[Optimised, Rewritten | None]:
    """Return the rewritten model, optimised, and its rewrites; `before` and None if nothing is rewritten."""
    if seconds is None:
        return before, None
    rewritten = rewrite(before.source, before.path.with_name("rewritten.onnx"), shapes, fix, seconds, threads)
    return (_optimised_rewritten(before, rewritten, shapes, fix), rewritten) if rewritten else (before, None)


def _optimised_rewritten(before: Optimised, rewritten: Rewritten, shapes: Shapes, fix: bool) -> Optimised:
    """Return the graph that ONNX Runtime makes of the rewritten model."""
    folder = before.path.with_name("rewritten")
    folder.mkdir()
    return Optimised(rewritten.path, folder, {} if fix else shapes, False, original=before.source)
