"""The pipeline of the command `memory`: lower the memory that a model needs, check the file, and write a receipt.

`Optimised` holds the graph that ONNX Runtime's optimisations make of a model, and its ordering problem. `best_order`
searches for an order. If the user asks for it, `rewrite` searches for proved rewrites that lower the peak. The
rewritten model is used only if its peak is below the peak of the original model in its best order. Rewrites round
differently, so the rewritten model is compared with the original within the tolerance of `optimise`.

`write_in_order` writes the file. It raises RLFlowError unless the outputs of the file are bit for bit the outputs of
its source model, and sessions run the file in the simulated order. `measure_setups` measures the memory that runs add
with each of SETUPS, and the latency of setups that need less memory. `make_order_receipt` makes a receipt, from which
`repeat` makes the same file byte for byte.

A node with subgraphs (If, Loop, Scan) is one node; the memory inside its subgraphs is not counted. The order is
optimised for one size of each symbol; the file is correct at every size.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.common.messages import progress_bar
from rlflow.common.system import MIN_RETURNED
from rlflow.costs import graph_cost
from rlflow.costs.measured import measure
from rlflow.env.batched import start_of
from rlflow.env.state import Task
from rlflow.graph import custom_ops
from rlflow.graph.feeds import Feeds, tried_feeds
from rlflow.graph.ir import ABSENT
from rlflow.graph.onnx_reader import load_graph, model_files
from rlflow.graph.onnx_runtime import Setup, machine
from rlflow.graph.onnx_writer import save_graph, with_shape
from rlflow.graph.random_numbers import Draws
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
from rlflow.optimisation.choice import EvalOptions
from rlflow.optimisation.receipt import make_receipt, reading_receipt, replay, shapes_of, versions
from rlflow.optimisation.validate import validate
from rlflow.optimisation.validate.findings import checks_text
from rlflow.rules.language import load_rules
from rlflow.search.base import Limits, run_search

SETUPS = {  # session options, in the order of the number of changed defaults
    "defaults": Setup(),
    "no pattern": Setup(pattern=False),
    "no pattern, no arena": Setup(pattern=False, arena=False),
    "no pattern, arena or reuse": Setup(pattern=False, arena=False, reuse=False),
}
SESSIONS_OBSERVED = 3  # number of observed sessions of the original if their orders may differ
# A difference of measured memory counts only above both limits; smaller differences are noise.
MIN_SHARE, MIN_BYTES = 0.02, 100_000  # as a share of the larger memory, and in bytes
SESSION_PAIRS = 6  # pairs of sessions per latency measurement


class Optimised:
    """The file that ONNX Runtime's optimisations make of a model, and the ordering problem of this file.

    An order is a list of names; the name of a node is the name of its first output.

    Args:
      source: the path of the model.
      folder: an existing folder for the optimised file.
      shapes: symbol or input → the sizes that the user named.
      fix: True to freeze these sizes, so that the optimised file accepts no other sizes.
      original: the path of the model with which memory is compared; None for `source`.
      feeds: the inputs of the model; None to draw them.

    Raises:
      RLFlowError: RLFlow or ONNX Runtime refuses the model, `shapes` names several sizes of one symbol, or every result
        of the model is constant.

    Attributes:
      source: the path of the model.
      path: the path of the optimised file, whose nodes are to be ordered.
      original: the path of the model with which memory is compared; `source`, or the model before the rewrites if
        `source` is a rewritten model.
      sizes: symbol → size, used for all counts and measurements.
      shapes: name of an input → shape at these sizes.
      feeds: the inputs of the model.
      inputs: sets of inputs (input name → array) at these sizes, on which outputs are compared; the first is measured.
      graph: the graph of the optimised file at these sizes.
      problem: the ordering problem of the graph, in bytes.
      nodes: the id in `graph` of each node of `problem`.
      at: name of a node → its number in the problem.
      usual: the orders in which sessions ran the optimised model before it was reordered, at least one.
      unknown: the number of tensors of unknown size, which count as 0 bytes.
    """

    def __init__(
        self, source: Path, folder: Path, shapes: Shapes, fix: bool, original: Path | None = None,
        feeds: Feeds | None = None,
    ):  # fmt: skip
        self.source, self.path, self.original = source, folder / "model.onnx", original or source
        loaded, (self.sizes, *more) = load_at(source, shapes, fix)
        if more:
            raise RLFlowError("an order is best at one size of each symbol: pass one size with --shape NAME=SIZE")
        self.shapes = input_shapes(loaded.interface, self.sizes)
        self.feeds = feeds or tried_feeds(source, (), shapes)
        self.inputs: list[Inputs] = self.feeds.sets(self.shapes, EvalOptions.seeds)
        ports = zip(loaded.interface.inputs, loaded.inputs, strict=True)
        frozen = [with_shape(value, loaded.types.get(tensor)) for value, tensor in ports] if fix else []
        orders = [save_optimised(source, self.path, self.inputs[0], frozen)]
        if is_blocked(self.path):  # Without blocked channels all sessions have one order.
            for _ in range(SESSIONS_OBSERVED - 1):
                orders.append(save_optimised(source, folder / "other.onnx", self.inputs[0], frozen))
        self.graph = with_sizes_of_a_run(load_graph(self.path, bodies=False).at(self.sizes), self.path, self.inputs[0])
        self.problem, self.nodes = problem_of(self.graph)
        if not self.nodes:
            raise RLFlowError("there is nothing to order: every result of the model is constant")
        self.at = {name: k for k, name in enumerate(names(self.graph, self.nodes))}
        self.usual = [[name for name in order if name in self.at] for order in orders]
        made = [tensor for node in self.graph.nodes.values() for tensor in node.outputs if tensor != ABSENT]
        self.unknown = sum(not is_known(self.graph, tensor) for tensor in made)

    def positions(self, order: Sequence[str]) -> np.ndarray:
        """Convert an order of names to node numbers of the problem, int64 [n]. Raise RLFlowError if it is not valid."""
        if sorted(order) != sorted(self.at):
            raise RLFlowError("the order has other nodes than this ONNX Runtime makes of the model; search again")
        result = np.array([self.at[name] for name in order], np.int64)
        if not self.problem.is_order(result):
            raise RLFlowError("the order is not valid: a node comes before a node that it depends on")
        return result

    def peak(self, order: Sequence[str]) -> int:
        """Return the peak memory of an order of names in bytes, which an ideal allocator would need."""
        return self.problem.peak(self.positions(order))

    def usage(self, order: Sequence[str]) -> np.ndarray:
        """Return the bytes in use at each step of an order of names, int64 [n]."""
        return self.problem.usage(self.positions(order)[None])[0]

    def block(self, order: Sequence[str]) -> int:
        """Return the bytes that a session with ONNX Runtime's defaults plans for an order: block plus outputs."""
        return sum(plan(self.graph, [self.nodes[k] for k in self.positions(order)]))


class Ordered(NamedTuple):
    """The usual and the best order of a model, as lists of names.

    Attributes:
      usual: the order in which a session runs the unmodified model. If sessions differ, it is the order with the
        highest peak.
      best: the best order that was found.
      bound: a proved lower bound on the peak of every order, in bytes.
    """

    usual: list[str]
    best: list[str]
    bound: int


def best_order(model: Optimised, seconds: float) -> Ordered:
    """Search for the order with the lowest peak; the result is the usual order if no better order is found.

    Args:
      model: the optimised model.
      seconds: the time limit of the search.
    """
    usual = max(model.usual, key=model.peak)
    result, called = optimum(model.problem, seconds), list(model.at)
    order = [called[k] for k in result.order]
    return Ordered(usual, order if result.peak < model.peak(usual) else usual, result.bound)


def write_in_order(model: Optimised, order: Sequence[str], threads: int) -> list[str]:
    """Rewrite the optimised file of a model with its nodes in an order, and check the file.

    Args:
      model: the optimised model.
      order: the names of all nodes.
      threads: the number of threads of the sessions that compare outputs.

    Returns:
      The names of the nodes in the order in which sessions run the file. The order can differ from `order`, because
      Shape and Size run first.

    Raises:
      RLFlowError: the outputs differ from the source's in a bit, or a session does not run the file in the simulated
        order.
    """
    reorder(model.path, order)
    graph = load_graph(model.path, bodies=False)
    simulated = names(graph, priority_order(graph))
    setup, options = Setup(as_written=True), onnxruntime.SessionOptions()
    setup.apply(options)
    ran = order_run(str(model.path), options, model.inputs[0], model.path)
    if [name for name in ran if name in model.at] != simulated:
        raise RLFlowError("this ONNX Runtime does not run the reordered file in the simulated order; not written")
    sides = ((model.source, Setup()), (model.path, setup))
    if not same_bits(sides, model.inputs, threads):
        raise RLFlowError("the reordered file gives other bits than the model; not written")
    return simulated


class Row(NamedTuple):
    """The measurements of one setup.

    Attributes:
      setup: the name of the setup in SETUPS.
      usual_bytes: the bytes that runs of the original model with this setup add to the resident memory of a fresh
        process (`added_by_runs`); None if the system does not report them.
      bytes: the same for the delivered file; equal to `usual_bytes` if no file is written.
      latency: the comparison of the file with this setup and the original model with the defaults, as
        `rlflow.costs.measured.measure` returns it. None if both sides are the same, if an earlier setup needs about as
        little memory, or if memory is not known.
    """

    setup: str
    usual_bytes: int | None
    bytes: int | None
    latency: dict | None


def measure_setups(model: Optimised, written: bool, threads: int, seconds: float, progress) -> list[Row]:
    """Measure memory with each of SETUPS, and the latency of each setup that needs less memory than all earlier ones.

    Args:
      model: the model that was ordered.
      written: True if a file in another order was written; False to measure the original model with each setup.
      threads: the number of threads of the sessions.
      seconds: the time limit of all latency measurements; a slow model may exceed it.
      progress: a tqdm bar, which advances once per setup.
    """
    result, inputs, sizes = [], model.inputs[0], {"": model.shapes}
    path = model.path if written else model.original
    for name, usual in SETUPS.items():
        setup = usual._replace(as_written=written)
        before = added_by_runs(model.original, inputs, threads, usual)
        after = added_by_runs(path, inputs, threads, setup) if written else before
        latency = None
        if all(needs_less(after, row.bytes) for row in result) and setup != Setup():
            options = (threads, seconds / len(SETUPS), SESSION_PAIRS, 0, sizes, False, (Setup(), setup), model.feeds)
            latency = in_a_users_process(setup, measure, model.original, path, *options)
        result.append(Row(name, before, after, latency))
        progress.update()
    return result


def needs_less(size: int | None, other: int | None) -> bool:
    """Return whether a measured memory is below another one by more than MIN_SHARE and MIN_BYTES.

    Args:
      size, other: measured bytes; None if not measured, which gives False.
    """
    return size is not None and other is not None and size < other - max(MIN_SHARE * other, MIN_BYTES)


def choose_setup(candidates: Sequence[Row], slowdown: float) -> Row:
    """Return the setup that needs the least memory; of about equal setups the one that changes the fewest defaults.

    Args:
      candidates: the measurements in the order of SETUPS. The first setup is always allowed, other setups only if their
        latency was measured.
      slowdown: the largest accepted increase of the measured latency, as a share of the original's.
    """
    best = candidates[0]
    for row in candidates[1:]:
        fast = row.latency is not None and row.latency["ratio"] <= 1 + slowdown
        if fast and needs_less(row.bytes, best.bytes):
            best = row
    return best


def snippet(path: Path | str, setup: Setup) -> str:
    """Return Python code, as text, that makes a session of a file with the options of a setup.

    Args:
      path: the file of the model.
      setup: the session options.
    """
    lines = ["import onnxruntime", "", *setup.code(path, custom_ops.loaded())]
    if not setup.arena:
        lines.insert(0, f"# in an environment with MALLOC_MMAP_THRESHOLD_={MIN_RETURNED}: what is freed is given back")
    return "\n".join(lines)


FAMILIES = ["concat", "memory"]  # rule families of `rewrite`
# Options of the beam search of `rewrite`. It is deep, because moving a part of a tensor may lower the peak only after
# many rewrites.
SEARCH = {"width": 4, "depth": 10, "radius": 1}


class Rewritten(NamedTuple):
    """A rewritten model that was compared with its original.

    Attributes:
      path: the file of the rewritten model.
      receipt: the receipt of the rewrites, see `rlflow.optimisation.receipt.make_receipt`.
      checks: the number of checks that passed, as text (`checks_text`).
    """

    path: Path
    receipt: dict
    checks: str

    @property
    def rules(self) -> dict[str, int]:
        """Name of a rule → number of its rewrites."""
        return dict(Counter(action["rule"] for action in self.receipt["actions"]))


def rewrite(
    source: Path, path: Path, shapes: Shapes, fix: bool, seconds: float, threads: int, feeds: Feeds
) -> Rewritten | None:
    """Search for rewrites that lower the peak memory of a model, and write the rewritten model.

    Args:
      source: the file of the model.
      path: the file to write.
      shapes: symbol or input → the sizes that the user named.
      fix: True to freeze these sizes, so that the result accepts no other sizes.
      seconds: the time limit of the search.
      threads: the number of threads of the sessions that compare outputs.
      feeds: the inputs of the model.

    Returns:
      The rewritten model, or None if no graph with a lower peak was found.

    Raises:
      RLFlowError: the model cannot be read, or outputs differ by more than the tolerance of `optimise`.
    """
    graph, sizes = load_at(source, shapes, fix)
    task = Task(graph, load_rules(FAMILIES), MemoryCost(), sizes=sizes)
    result = run_search("beam", start_of(task, "single"), Limits(seconds), **SEARCH)
    if result.state.objective // FRACTIONS >= task.initial.objective // FRACTIONS:
        return None
    sha256 = save_graph(result.state.graph, path)
    costs = {"peak": graph_cost(task.cost, graph).runtime_ps // FRACTIONS, "after": result.state.objective // FRACTIONS}
    bound = shapes if fix else {}
    receipt = make_receipt(
        graph, task.rules, FAMILIES, result.actions, result.state.graph, costs, bound, sizes=sizes, sha256=sha256
    )
    return Rewritten(path, receipt, _passed_checks(source, path, receipt, shapes, fix, threads, feeds))


def repeat_rewrites(
    source: Path, path: Path, receipt: dict, shapes: Shapes, fix: bool, threads: int, feeds: Feeds
) -> Rewritten:
    """Apply the rewrites of a receipt to a model, and write the same file that `rewrite` wrote, byte for byte.

    Args:
      source: the file of the model.
      path: the file to write.
      receipt: the receipt of the rewrites.
      shapes, fix, threads, feeds: as for `rewrite`.

    Raises:
      RLFlowError: the receipt does not fit the model or the rules (`replay`), or the outputs of the written model
        differ from those of `source`.
    """
    save_graph(replay(receipt, source), path)
    return Rewritten(path, receipt, _passed_checks(source, path, receipt, shapes, fix, threads, feeds))


def _passed_checks(
    source: Path, path: Path, receipt: dict, shapes: Shapes, fix: bool, threads: int, feeds: Feeds
) -> str:
    """Compare a rewritten model with its original by `validate`, and return the number of passed checks as text.

    Raise RLFlowError if a check fails. The arguments are as for `repeat_rewrites`.
    """
    findings = validate(source, path, shapes=shapes, threads=threads, receipt=receipt, fix=fix, feeds=feeds)
    if not findings.ok:
        raise RLFlowError(f"the rewritten model differs from the model: {findings.failures()[0].message}; not written")
    return checks_text(findings.to_dict()["findings"])


FORMAT = 1  # the format of the receipts of `make_order_receipt`


def make_order_receipt(
    before: Optimised, model: Optimised, ordered: Ordered, executed: Sequence[str], setup: Setup, shapes: Shapes,
    fix: bool, rewrites: dict | None = None,
) -> dict:  # fmt: skip
    """Make the receipt of a reordered file, from which `repeat` makes the same file.

    Args:
      before: the original model.
      model: the model that was ordered: a rewritten model, or `before`.
      ordered: the usual order of `before`, and the best order and bound of `model`.
      executed: the names of the nodes in the order in which sessions run the file.
      setup: the session options that were chosen for the file.
      shapes, fix: the arguments with which `before` was made.
      rewrites: the receipt of the rewrites; None if nothing was rewritten.

    Returns:
      A JSON-able dictionary.
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
    """Return the bytes that a receipt states: `usual_peak` and `usual_block` before, `peak` and `block` after ordering.

    A peak is the memory of an ideal allocator (`Optimised.peak`); ONNX Runtime plans a block (`Optimised.block`).

    Args:
      before: the original model.
      model: the model that was ordered.
      usual: the usual order of `before`.
      executed: the order in which sessions run the file of `model`.
    """
    return {
        "usual_peak": before.peak(usual),
        "peak": model.peak(executed),
        "usual_block": before.block(usual),
        "block": model.block(executed),
    }


def named_sizes(receipt: dict) -> tuple[Shapes, bool]:
    """Return (symbol or input → the sizes that the user named, True if these sizes are frozen).

    Raise RLFlowError if the dictionary is not a receipt of `make_order_receipt`.
    """
    if not isinstance(receipt, dict) or (receipt.get("task"), receipt.get("format")) != ("ordering", FORMAT):
        raise RLFlowError(f"not a receipt of `memory` of format {FORMAT}")
    return shapes_of(receipt), receipt.get("fix") is True


def repeat(receipt: dict, before: Optimised, model: Optimised, threads: int) -> list[str]:
    """Write the file of a receipt again, and check its hash and the bytes that the receipt states.

    Args:
      receipt: a receipt of `make_order_receipt`.
      before: the original model.
      model: the model to order: the model after the rewrites of the receipt, or `before`.
      threads: the number of threads of the sessions that compare outputs.

    Returns:
      The names of the nodes in the order in which sessions run the file.

    Raises:
      RLFlowError: the receipt belongs to another model, states other bytes, or leads to another file.
    """
    with reading_receipt():
        usual, order, claimed = list(receipt["usual_order"]), list(receipt["order"]), dict(receipt["bytes"])
        original, written, made_by = (receipt[key] for key in ("original_sha256", "model_sha256", "versions"))
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
      results: a JSON-able dictionary. `bytes` holds the sizes of `claims` and `bound`, in bytes. `rows` holds the
        measurements of each setup (`Row`), and `setup` the name of the chosen setup. `rewritten` holds the applied
        rules, or None without rewrites. `written` is True if a better order was found.
      model: the model that was ordered; `model.path` is the file in the new order.
      usage: (bytes in use at each step of the usual order, at each step of the new order), int64 arrays. None if no
        better order was found.
      receipt: the receipt of the file; None if no better order was found.
      setup: the chosen session options.
    """

    results: dict
    model: Optimised
    usage: tuple | None
    receipt: dict | None
    setup: Setup


def improve(
    before: Optimised, shapes: Shapes, fix: bool, threads: int, seconds: float, slowdown: float,
    rewrite_seconds: float | None,
) -> Improved:  # fmt: skip
    """Lower the memory of a model: rewrite it if requested, search for the best order, and choose session options.

    Args:
      before: the original model.
      shapes: symbol or input → the sizes that the user named.
      fix: True if these sizes are frozen.
      threads: the number of threads of ONNX Runtime.
      seconds: the time limit of each search for an order, and of all latency measurements together.
      slowdown: the allowed increase of latency by the chosen session options, in percent.
      rewrite_seconds: the time limit of the search for rewrites; None to rewrite nothing.
    """
    with progress_bar(2 + len(SETUPS), "memory", "step") as bar:
        by_order = ordered = best_order(before, seconds)
        model, rewritten = before, None
        if rewrite_seconds is not None:
            path = before.path.with_name("rewritten.onnx")
            rewritten = rewrite(before.source, path, shapes, fix, rewrite_seconds, threads, before.feeds)
        bar.update()
        if rewritten is not None:
            changed = _optimised_rewritten(before, rewritten, shapes, fix)
            order = best_order(changed, seconds)
            if changed.peak(order.best) < before.peak(by_order.best):
                model, ordered = changed, order._replace(usual=by_order.usual)
            else:
                rewritten = None
        better = ordered.best is not ordered.usual
        executed = write_in_order(model, ordered.best, threads) if better else ordered.usual
        sizes = claims(before, model, ordered.usual, executed) | {"bound": ordered.bound}
        written = sizes["peak"] < sizes["usual_peak"]
        bar.update()
        measured = measure_setups(model, written, threads, seconds, bar)
    best = choose_setup(measured, slowdown / 100)
    setup = SETUPS[best.setup]._replace(as_written=written)
    draws = Draws(onnx.load(before.original, load_external_data=False))
    results = {
        "written": written, "nodes": model.problem.n, "unknown_sizes": model.unknown,
        "sizes": model.sizes, "bytes": sizes, "usual_peaks": sorted(map(before.peak, before.usual)),
        "gain_percent": 100 * (1 - sizes["peak"] / max(sizes["usual_peak"], 1)),
        "rewritten": rewritten and {"rules": rewritten.rules, "checks": rewritten.checks,
                                    "best_order": before.peak(by_order.best)},
        "proved": sizes["peak"] == ordered.bound,
        "rows": [row._asdict() for row in measured], "setup": best.setup,
        "this_processor_only": written and is_blocked(model.path),
        "drawn": draws.outputs, "compared": bool(draws.others),
    }  # fmt: skip
    if not written:
        return Improved(results, model, None, None, setup)
    rewrites = rewritten and rewritten.receipt
    receipt = make_order_receipt(before, model, ordered, executed, setup, shapes, fix, rewrites)
    return Improved(results, model, (before.usage(ordered.usual), model.usage(executed)), receipt, setup)


def make_again(before: Optimised, receipt: dict, shapes: Shapes, threads: int) -> tuple[Optimised, list[str]]:
    """Make the file of a receipt again: apply its rewrites, write the nodes in its order, and check the result.

    Args:
      before: the original model.
      receipt: the receipt of a result of `improve`.
      shapes: the sizes that the receipt names (`named_sizes`).
      threads: the number of threads of ONNX Runtime.

    Returns:
      The ordered model, and the names of its nodes in the order in which sessions run the file.

    Raises:
      RLFlowError: the receipt belongs to another model, states other bytes, or leads to another file.
    """
    model, (_, fix), rewrites = before, named_sizes(receipt), receipt.get("rewrites")
    if rewrites is not None:
        path = before.path.with_name("rewritten.onnx")
        rewritten = repeat_rewrites(before.source, path, rewrites, shapes, fix, threads, before.feeds)
        model = _optimised_rewritten(before, rewritten, shapes, fix)
    return model, repeat(receipt, before, model, threads)


def _optimised_rewritten(before: Optimised, rewritten: Rewritten, shapes: Shapes, fix: bool) -> Optimised:
    """Apply ONNX Runtime's optimisations to a rewritten model and return the result with its ordering problem."""
    folder = before.path.with_name("rewritten")
    folder.mkdir()
    return Optimised(rewritten.path, folder, {} if fix else shapes, False, before.source, before.feeds)
