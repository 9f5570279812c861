"""Check and measure candidates, choose one, and write its file, receipt and fault report."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rlflow.common.errors import RLFlowError
from rlflow.common.files import copy_file, write_json
from rlflow.common.messages import program, progress_bar, say
from rlflow.common.spending import CHECKS as CHECKING
from rlflow.common.spending import VERDICT, spent_on, spent_so_far
from rlflow.costs import CostModel, NodeCost, peak_memory, runtime_ms, unit_of
from rlflow.costs.measured import MIN_PAIRS, MIN_SESSION_PAIRS, SESSION_PAIR, measure
from rlflow.costs.target import target_of
from rlflow.env.state import RewriteState, Task
from rlflow.graph.feeds import Feeds
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import file_bytes
from rlflow.graph.onnx_runtime import machine
from rlflow.graph.onnx_writer import copy_model, save_graph
from rlflow.graph.session_file import session_file
from rlflow.graph.typical import inputs_at
from rlflow.optimisation.ablation import ESTIMATE_SECONDS, measure_shares, shares
from rlflow.optimisation.candidates import Candidate, improvement
from rlflow.optimisation.choice import FAULT_REPORT, EvalOptions, choose
from rlflow.optimisation.quantised import is_dequantisable, offer
from rlflow.optimisation.receipt import make_receipt, versions
from rlflow.optimisation.repair import LeftOut, repaired, write_fault_report
from rlflow.optimisation.validate import Comparison, Findings
from rlflow.optimisation.validate.findings import Finding

RECEIPT = "receipt.json"  # in the folder of the delivered model
ONE_THREAD = 1 / 3  # share of `measure_seconds` for the measurement with one thread, which is only reported
SESSIONS_AND_RUNS = 3  # time of a measurement with the making of its sessions, relative to the seconds of its runs
CHECKS = ("equal", "max_relative_error", "findings", "measured", "file_bytes", "left_out")
ABLATION_SESSIONS = SESSION_PAIR * MIN_SESSION_PAIRS
# Runs of each file at each size in one measurement of a share, warm-up included; making a session counts as one run.
ABLATION_RUNS = ABLATION_SESSIONS * (MIN_PAIRS + 3)


@dataclass(frozen=True)
class DeliveryOptions:
    """The options of `deliver`.

    The attributes are the options `eval.seeds`, `eval.tolerance`, `eval.measure_seconds`, `eval.sessions`,
    `cost.threads`, `seed`, `env.exact`, `fix` and `eval.accept` of configs/default.yaml, and the inputs of the original
    (None to draw them).
    """

    seeds: Sequence[int]
    tolerance: float
    measure_seconds: float
    sessions: int
    threads: int
    seed: int
    exact: bool = False
    fix: bool = False
    accept: str = EvalOptions.accept
    feeds: Feeds | None = None


class Checked(NamedTuple):
    """A candidate whose checks are finished.

    Attributes:
      given: the candidate before any repair.
      candidate: the candidate after any repair.
      results: the results of its checks, with the keys CHECKS.
    """

    given: Candidate
    candidate: Candidate
    results: dict


def deliver(
    task: Task, source: Path, candidates: Sequence[Candidate], folder: Path, options: DeliveryOptions,
    shapes: dict, families: list[str], go_on: Callable[[dict], bool] = lambda result: True,
    end: float = math.inf, grace: float = math.inf, known: dict[str, Checked] | None = None,
) -> dict:  # fmt: skip
    """Check and measure the candidates, and write the best one with its receipt into the folder.

    If the outputs of a candidate differ from the original's, `rlflow.optimisation.repair` leaves out the rewrites at
    fault, and a fault report is written. The repaired candidate is measured at each typical size of the task.
    `rlflow.optimisation.choice` decides whether one of the equal candidates or the original is delivered.

    Args:
      task: the rewriting task.
      source: the file of the original.
      candidates: the candidates, in the order in which they are checked.
      folder: the folder for the delivered model, receipt.json and the fault report.
      options: the options of the delivery.
      shapes: symbol or input → the sizes that the user named.
      families: the rule families of the task for the receipt; an empty list stands for all families.
      go_on: a function that is called before every candidate but the first, with the results so far by name. If it
        returns False, no further candidate is checked.
      end: the value of time.monotonic() after which no search for rewrites at fault begins, and the gains of groups of
        rewrites are not measured.
      grace: the value of time.monotonic() after which nothing is computed that only reports show.
      known: hash of a graph → the finished checks of the candidate with this graph. These checks are not repeated, and
        each further check is added as soon as it is finished.

    Returns:
      A JSON-able dictionary.
      `original`: estimated cost, `objective` and file size of the original.
      `candidates`: name → estimated cost, checks (the keys CHECKS) and search effort of the candidate. `same_as` names
        an earlier candidate, or "original", with the same graph. `path_ms` lists the estimated runtimes in ms of the
        initial state and after each action.
      `actions`: name → the (xfer_id, location) pairs of the candidate.
      `delivered`: the name of the delivered candidate, or "original".
      `reason`: the reason for this choice, as text.
      `widened`: True if the candidates compute in float32 between the inputs and outputs of a half-precision model, or
        without the rounding of a quantised model.
      `quantised`: True if the original is a quantised model that can be dequantised.
      `dequantised`: the result of `rlflow.optimisation.quantised.offer` for a quantised model that stays quantised;
        None for other models.
      `target`: the name of another machine if its timings are used (then nothing is measured), or None.
      `shares`: the gain of each group of rewrites in the delivered file (see `rlflow.optimisation.ablation.shares`).
      `optimised`: the path of the delivered file; the path of the original if the original is delivered.
      `measured_one_thread`: the measurement of the delivered file with one thread, or None. It is made only if the
        candidates were measured with several threads.
      `fault_report`: the path of the fault report, or None.
      `spent`: where the seconds of the command went until now (`rlflow.common.spending`); empty for commands without
        an account.
    """
    target, known = target_of(task.cost), {} if known is None else known
    if target is not None:
        options = replace(options, measure_seconds=0.0)  # latencies of this machine do not hold on the target
    checked, result = _check_all(task, source, candidates, folder, options, shapes, go_on, end, known)
    report = folder / FAULT_REPORT if any(one["left_out"] for one in result.values()) else None
    if report is not None:
        write_fault_report(report, Path(source).name, machine(), versions(), result, task.rules)
        say(f"rewrites after which outputs part were left out: {report}")
    original = _describe_graph(task, task.original, task.original_cost)
    original |= {"objective": task.original_cost.runtime_ps, "file_bytes": file_bytes(source)}
    name, reason = choose(original, list(checked.values()), result, options.accept, target and target.machine)
    path, one_thread, groups = Path(source), None, []
    (folder / RECEIPT).unlink(missing_ok=True)  # of an earlier delivery, whose model is replaced or not delivered
    if name != "original":
        path = folder / "optimised.onnx"
        bound = shapes if options.fix else {}
        sha256 = save_graph(checked[name].state.graph, path)
        receipt = _receipt(task, checked[name], result[name]["measured"], families, bound, options, sha256)
        write_json(folder / RECEIPT, receipt)
        if result[name]["measured"] is not None and options.threads > 1 and time.monotonic() < grace:
            seconds, sizes = ONE_THREAD * options.measure_seconds, sizes_to_measure(task, shapes)
            with spent_on(VERDICT):
                one_thread = measure(
                    source, path, 1, seconds, options.sessions, options.seed, sizes, False, feeds=options.feeds,
                    whole_seconds=SESSIONS_AND_RUNS * seconds,
                )  # fmt: skip
        groups = _shares(task, checked[name], result[name]["measured"], path, options, shapes, end, grace)
    for one in checked.values():
        result[one.name]["path_ms"] = list(_runtimes_along(task, one, grace))
    return {
        "original": original, "candidates": result, "delivered": name, "reason": reason,
        "widened": task.widened is not None, "quantised": is_dequantisable(source),
        "dequantised": _offered(task, source, options, shapes) if time.monotonic() < grace else None,
        "target": target and target.machine, "shares": groups,
        "optimised": str(path), "measured_one_thread": one_thread,
        "actions": {one.name: [[int(x), int(k)] for x, k in one.actions] for one in checked.values()},
        "fault_report": report and str(report), "spent": spent_so_far(),
    }  # fmt: skip


def _offered(task: Task, source: Path, options: DeliveryOptions, shapes: dict) -> dict | None:
    """Return the entry `dequantised` of the result of `deliver`; None if the model is not measured in float32."""
    wanted = task.widened is None and not options.exact and options.measure_seconds > 0
    if not wanted or options.feeds is None or not is_dequantisable(source):
        return None
    inputs = list(options.feeds.at(sizes_to_measure(task, shapes), options.seed).values())
    with spent_on(VERDICT):
        return offer(source, inputs, options.threads)


def _check_all(
    task: Task, source: Path, candidates: Sequence[Candidate], folder: Path, options: DeliveryOptions, shapes: dict,
    go_on: Callable[[dict], bool], end: float, known: dict[str, Checked],
) -> tuple[dict[str, Candidate], dict[str, dict]]:  # fmt: skip
    """Check candidates until `go_on` returns False; return name → repaired candidate and name → results of its checks.

    A candidate with the graph of an earlier candidate, of a candidate in `known`, or of the original takes over the
    results and is not checked.
    """
    result: dict[str, dict] = {}
    checked: dict[str, Candidate] = {}
    comparison = None
    with progress_bar(len(candidates), "check and measure", "candidate") as bar:
        for candidate in candidates:
            if result and not go_on(result):
                break
            same = _same_graph(candidate, candidates[: len(result)], task)
            if same == "original":
                checks = dict(zip(CHECKS, (True, 0.0, [], None, file_bytes(source), []), strict=True))
            elif same is not None:
                checks = {key: result[same][key] for key in CHECKS}
                candidate = replace(candidate, state=checked[same].state, actions=checked[same].actions)
            else:
                graph_hash = candidate.state.graph.hash
                if graph_hash not in known:
                    if comparison is None:
                        _say_time_of_check(task)
                        with spent_on(CHECKING):
                            comparison = _comparison(task, source, options, shapes)
                    results = _check(task, candidate, comparison, source, folder, options, shapes, end)
                    known[graph_hash] = Checked(candidate, *results)
                found, checks = known[graph_hash].candidate, known[graph_hash].results
                candidate = replace(candidate, state=found.state, actions=found.actions)
            checked[candidate.name] = candidate
            result[candidate.name] = _describe(task, candidate) | {"same_as": same} | checks
            bar.update(1)
    return checked, result


def _shares(
    task: Task, delivered: Candidate, measured: dict | None, path: Path, options: DeliveryOptions, shapes: dict,
    end: float, grace: float,
) -> list[dict]:  # fmt: skip
    """Return the gain of each group of rewrites in the delivered file, as `rlflow.optimisation.ablation.shares` does.

    The gains are also measured if the file itself was measured and time is left.
    """
    known = shares(task, delivered, min(ESTIMATE_SECONDS, grace - time.monotonic()))
    without, sizes = path.with_name("without.onnx"), sizes_to_measure(task, shapes)

    def ablation(state: RewriteState, seconds: float) -> dict:
        save_graph(state.graph, without)
        try:
            seconds = min(seconds, options.measure_seconds)
            return measure(
                without, path, options.threads, seconds, ABLATION_SESSIONS, options.seed, sizes, False,
                feeds=options.feeds, whole_seconds=max(end - time.monotonic(), 0.0),
            )  # fmt: skip
        finally:
            _remove(without)

    if measured is not None and time.monotonic() < end < math.inf:
        needed = ABLATION_RUNS * len(sizes) * (measured["original_ms"] + measured["candidate_ms"]) / 1e3
        with spent_on(VERDICT):
            measure_shares(known, ablation, needed, end)
    return [share for share, _ in known]


def _remove(path: Path) -> None:
    """Delete the file of a model and the file of its external weights, if they exist."""
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)


def _receipt(
    task: Task, chosen: Candidate, measured: dict | None, families: list[str], bound: dict, options: DeliveryOptions,
    sha256: str,
) -> dict:  # fmt: skip
    costs = {
        "threads": options.threads,
        "estimated": {"original_ms": runtime_ms(task.original_cost), "optimised_ms": chosen.state.runtime_ms},
        "measured": measured,
    }
    actions = (*task.preparation, *chosen.actions)
    return make_receipt(
        task.original, task.rules, families, actions, chosen.state.graph, costs, bound, options.exact, task.sizes,
        task.widened, sha256,
    )  # fmt: skip


def _describe_graph(task: Task, graph: Graph, cost: NodeCost) -> dict:
    return {
        "estimated_ms": runtime_ms(cost),
        "flops": cost.flops,
        "bytes": cost.bytes,
        "launches": cost.launches,
        "peak_memory_bytes": max(peak_memory(graph.at(sizes)) for sizes in task.sizes),
    }


def _same_graph(candidate: Candidate, earlier: Sequence[Candidate], task: Task) -> str | None:
    """Return "original" or the name of an earlier candidate with the same graph as the candidate; None without one."""
    graph_hash = candidate.state.graph.hash
    if graph_hash == task.original.hash:
        return "original"
    return next((other.name for other in earlier if other.state.graph.hash == graph_hash), None)


def _comparison(task: Task, source: Path, options: DeliveryOptions, shapes: dict) -> Comparison:
    tolerance = 0.0 if options.exact else options.tolerance
    return Comparison(
        source, options.seeds, tolerance, shapes, options.threads, not options.exact, options.fix, options.feeds,
        task.widened is not None and is_dequantisable(source),
    )  # fmt: skip


def _check(
    task: Task, candidate: Candidate, comparison: Comparison, source: Path, folder: Path,
    options: DeliveryOptions, shapes: dict, end: float,
) -> tuple[Candidate, dict]:  # fmt: skip
    """Compare one candidate with the original, repair it if necessary, and measure it.

    Return the candidate after repair, and a dictionary with the keys CHECKS.
    """
    path = folder / f"candidate-{candidate.name}.onnx"

    def compare(state: RewriteState) -> Findings:
        save_graph(state.graph, path)  # the file of the last comparison is the repaired one, which is then measured
        return comparison.against(path)

    try:
        with spent_on(CHECKING):
            actions, state, findings, left_out = repaired(task, candidate.actions, compare, end)
        if left_out:
            candidate = replace(candidate, actions=actions, state=state)
            _say_left_out(candidate.name, left_out)
        measured, on_disk = None, file_bytes(path)
        if findings.ok and options.measure_seconds > 0 and state.graph.hash != task.original.hash:
            try:
                sizes, seconds = sizes_to_measure(task, shapes), options.measure_seconds
                with spent_on(VERDICT):
                    measured = measure(
                        source, path, options.threads, seconds, options.sessions, options.seed, sizes,
                        feeds=options.feeds,
                        whole_seconds=min(SESSIONS_AND_RUNS * seconds, max(end - time.monotonic(), seconds)),
                    )  # fmt: skip
            except RLFlowError as error:  # --exact does not check the model with ONNX Runtime's optimisations
                findings.findings.append(Finding("structure", False, f"cannot be measured: {error}", optimised=True))
    finally:
        _remove(path)
    return candidate, {
        "equal": findings.ok,
        "max_relative_error": findings.to_dict()["max_error"],
        "findings": findings.to_dict()["findings"],
        "measured": measured,
        "file_bytes": on_disk,
        "left_out": [asdict(each) for each in left_out],
    }


def sizes_to_measure(task: Task, shapes: Mapping) -> dict[str, Mapping]:
    """Return name of a typical size → input shapes; {"": shapes} for a task without symbols.

    Args:
      task: the rewriting task.
      shapes: symbol or input → the sizes that the user named.
    """
    if not any(task.sizes):
        return {"": shapes}
    return inputs_at(task.original.interface, task.sizes)


def _say_left_out(name: str, left_out: Sequence[LeftOut]) -> None:
    blamed = [each for each in left_out if each.blame != "needed"]
    for each in blamed[:1]:
        whose = "ONNX Runtime is at fault" if each.blame == "onnxruntime" else "the rule is at fault"
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        say(f"{name}: rewrite {each.step}, {each.rule}{more}, was left out; {whose}: {each.message}")


SECONDS_OF_CHECK = 600e-6  # seconds of one check per node of the original; ONNX Runtime makes four sessions in a check
SLOW_CHECK = 2.0  # if a check probably takes this many seconds or more, the expected time is printed


def _say_time_of_check(task: Task) -> None:
    """State the expected time of a long check, because a check that has begun is finished after the time is up."""
    nodes = len(task.original.nodes)
    seconds = SECONDS_OF_CHECK * nodes
    if seconds >= SLOW_CHECK:
        say(f"the check of {nodes:,} nodes takes about {seconds:.0f} s")


def _runtimes_along(task: Task, candidate: Candidate, until: float) -> Iterator[float]:
    """Yield the estimated runtime of the initial state, and of the state after each action while time is left, in ms.

    Args:
      task: the rewriting task.
      candidate: the candidate.
      until: the value of time.monotonic() until which the actions are repeated; the last state always follows.
    """
    state = task.initial
    for xfer_id, location in candidate.actions:
        yield state.runtime_ms
        if time.monotonic() >= until:
            break
        state = state.apply(int(xfer_id), int(location))
    yield candidate.state.runtime_ms


def _describe(task: Task, candidate: Candidate) -> dict:
    state, actions = candidate.state, (*task.preparation, *candidate.actions)
    rules: dict[str, int] = {}
    for xfer_id, _ in actions:
        rules[task.rules[xfer_id].name] = rules.get(task.rules[xfer_id].name, 0) + 1
    return _describe_graph(task, state.graph, state.cost) | {
        "objective": state.objective,
        "estimated_improvement_percent": improvement(runtime_ms(task.original_cost), state.runtime_ms),
        "substitutions": len(actions),
        "rules": dict(sorted(rules.items(), key=lambda item: (-item[1], item[0]))),
        "interactions": candidate.interactions,
        "seconds": candidate.seconds,
        "measurement_seconds": candidate.measurement_seconds,
    }


def check_is_of_time(cost: CostModel | type[CostModel]) -> None:
    """Raise RLFlowError if the cost model does not estimate time; `deliver` accepts only faster models."""
    unit, _ = unit_of(cost)
    if unit != "ms":
        raise RLFlowError(
            f"the task rewriting delivers faster models, but the cost counts {unit}. To save memory, run: "
            f"{program()} memory MODEL.onnx --out FILE --rewrite"
        )


def copy_delivery(outcome: dict, out: Path) -> None:
    """Copy the delivered model with its external weights to `out`, and the fault report to OUT.fault-report.md.

    What lies beside an earlier model at `out` is deleted first: its receipt, its session options and its fault report.

    Args:
      outcome: the result of `deliver`.
      out: the path of the copy.
    """
    report = out.with_suffix(".fault-report.md")
    for beside in (receipt_beside(out), session_file(out), report):
        beside.unlink(missing_ok=True)
    copy_model(Path(outcome["optimised"]), out, same=outcome["delivered"] == "original")
    if outcome["fault_report"] is not None:
        copy_file(Path(outcome["fault_report"]), report)


def copy_with_receipt(outcome: dict, out: Path) -> None:
    """Copy the delivered model and fault report like `copy_delivery`, and the receipt to OUT.receipt.json.

    Args:
      outcome: the result of `deliver`.
      out: the path of the copy.
    """
    copy_delivery(outcome, out)
    if outcome["delivered"] != "original":
        copy_file(Path(outcome["optimised"]).with_name(RECEIPT), receipt_beside(out))


def receipt_beside(out: Path) -> Path:
    """Return the path OUT.receipt.json of the receipt beside a delivered file."""
    return out.with_suffix(".receipt.json")
