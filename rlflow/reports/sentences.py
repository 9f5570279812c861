"""Describe the results of a run in sentences, tables and figures, for the commands and the HTML page.

The commands print `summary_line` and `certainty_line` among their last lines. The tables show the candidates that were
compared end to end, and the estimated and measured gain of each group of rewrites.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlflow.costs.measured import MARGIN
from rlflow.graph.onnx_runtime import Setup
from rlflow.optimisation.choice import is_faster, losses
from rlflow.optimisation.validate.findings import checks_text, equal_sizes_text, fixed_text, notes_text
from rlflow.reports import charts
from rlflow.reports.markup import Safe, join, table, tag, time_text

CONTEST_HEAD = ("candidate", "sessions", "latency relative to the original (median)")
CONTEST_NOTE = (
    "These candidates competed end to end, and the slower half was dropped after each heat. The winner was then "
    "checked and measured in separate runs; only these runs count."
)


def contest_table(outcome: Mapping) -> Safe | None:
    """Return an HTML table of the candidates that were compared end to end, or None if there was no contest."""
    rows = [(one["name"], one["draws"], f"{one['ratio']:.3f}") for one in outcome.get("contest", [])]
    if not rows:
        return None
    note = tag("p", f"{CONTEST_NOTE}{_earlier_measurements(outcome)}", class_="faint")
    return join([note, table(CONTEST_HEAD, rows, numbers=(1, 2))])


def _earlier_measurements(outcome: Mapping) -> str:
    """Return sentences with the latency ratios of rule families that earlier runs measured, or an empty text.

    The report states these ratios because the choice of the candidates depends on them.
    """
    known = [f"{family} {ratio:.3f}" for family, ratio in outcome.get("known_families", {}).items()]
    if not known:
        return ""
    return (
        " Earlier measurements on this machine helped to choose the candidates. Latency with the rewrites of a family, "
        f"relative to the latency without them: {', '.join(known)}."
    )


SHARES_HEAD = ("rewrites", "estimated gain", "measured latency relative to the file without them (95 % interval)")
SHARES_NOTE = (
    "The gain of each group of batched rewrites, relative to the same file without the group and without the rewrites "
    "that only the group made possible. Groups that need one another gain together, so their gains do not add up."
)


def shares_table(outcome: Mapping) -> Safe | None:
    """Return an HTML table with the gain of each group of rewrites, or None if no group was examined.

    A group holds the rewrites of one match class (`rlflow.optimisation.ablation.groups`).
    """
    rows = []
    for share in outcome.get("shares", []):  # older results lack them
        off, measured = share["off_ps"], share["measured"]
        estimated = time_text(share["gain_ps"], "+") + (f" ± {time_text(off)}" if off else "")
        name = tag("code", f"{share['rule']} ×{share['count']}")
        rows.append((name, estimated, ratio_text(measured) if measured else "not measured"))
    if not rows:
        return None
    return join([tag("p", SHARES_NOTE, class_="faint"), table(SHARES_HEAD, rows, numbers=(1,))])


def ratio_text(measured: Mapping) -> str:
    """Return the latency ratio of a measurement with its interval as text, such as "0.950 (0.940 – 0.960)"."""
    low, high = measured["interval"]
    return f"{measured['ratio']:.3f} ({low:.3f} – {high:.3f})"


SAME = "it is the original: nothing to compare"
RETURNS_PICTURE = "returns.png"  # file with the chart of dreamt and real returns, in the folder of the report
UNTRAINED = {  # candidate → its name in a sentence
    "untrained": "the untrained controller", "no-prior": "the untrained controller without its prior",
}  # fmt: skip


def summary_line(outcome: dict) -> str:
    """Return the measured and the estimated gain of the delivered candidate in one or two sentences.

    If the original is delivered, the sentence states the reason.
    """
    if outcome["delivered"] == "original":
        return f"No gain: {outcome['reason']}; the original is returned."
    result = outcome["candidates"][outcome["delivered"]]
    finder = UNTRAINED.get(outcome["delivered"], outcome["delivered"])
    estimated = f"stimated {result['estimated_improvement_percent']:.1f} % faster, found by {finder}"
    if outcome.get("target"):
        return f"E{estimated}, on {outcome['target']}; not yet measured there."
    if not result["measured"]:
        return f"E{estimated}; not measured."
    measured = measured_text(result["measured"])
    why = "" if is_faster(result["measured"]) else f" Delivered for this reason: {outcome['reason']}."
    return f"{measured[0].upper()}{measured[1:]}; e{estimated}.{why}"


def measured_text(measured: dict) -> str:
    """Return a measurement in words: the gain, the latency ratio with its interval, and both latencies in ms."""
    (low, high), verdict, ratio = measured["interval"], verdict_text(measured), measured["ratio"]
    gain = f" {100 * abs(1 - ratio):.1f} % {verdict}" if verdict in ("faster", "slower") else f", {verdict}"
    mean_of = at_sizes_text(measured)
    if mean_of and verdict == "slower":
        gain = f" slower at {' and at '.join(measured['slower_at'])}" if measured["slower_at"] else " slower"
    return (
        f"measured{gain} ({ratio:.3f} of the original's latency{mean_of}, 95 % interval {low:.3f} to {high:.3f}; "
        f"{measured['original_ms']:.3f} → {measured['candidate_ms']:.3f} ms"
        f"{'' if measured['side_by_side'] else ', sessions one after the other: large models'})"
    )


def verdict_text(measured: dict) -> str:
    """Return the verdict of a measurement in words.

    The verdict "no difference shown" becomes "if anything slower" if an interval of the latency ratio, over all sizes
    or at one size, lies wholly above 1.
    """
    if measured["verdict"] == "no difference shown" and losses(measured):
        return "if anything slower"
    return measured["verdict"]


def at_sizes_text(measured: dict) -> str:
    """Return the latency ratio at each typical size, as text for a ratio that is their geometric mean.

    The text is empty if only one size was measured.
    """
    at = measured.get("at", {})  # older results lack it
    if len(at) < 2:
        return ""
    *most, last = [f"{figures['ratio']:.3f} at {name}" for name, figures in at.items()]
    return f", the geometric mean of {', '.join(most)} and {last}"


def certainty_line(outcome: dict) -> str:
    """Return one sentence with the checks and measurements of the delivered candidate.

    If the original is delivered, the sentence states the measurement of the candidate with the lowest estimate.
    """
    candidates, name = outcome["candidates"], outcome["delivered"]
    if name == "original":
        best = min(candidates, key=lambda each: candidates[each]["estimated_ms"], default=None)
        measured = best and candidates[best]["measured"]
        return f"{best}: {measured_text(measured)}." if measured else "The file is the original, unchanged."
    result = candidates[name]
    if result["same_as"] == "original":
        return f"{SAME.capitalize()}."
    error, measured = result["max_relative_error"], result["measured"]
    equal = checks_text(result["findings"], "checks of equality")
    known = f", largest relative error of an output {error:.1e}" if isinstance(error, float) else ""
    runs = "no measurement"
    if measured:
        threads = f"{measured['threads']} thread{'' if measured['threads'] == 1 else 's'}"
        runs = f"{measured['pairs']} pairs of runs in {measured['sessions']} sessions with {threads}"
    if outcome.get("target"):
        runs = f"no measurement: run `rlflow measure` on {outcome['target']}"
    found = result["findings"]
    sizes = equal_sizes_text(found), fixed_text(found), notes_text(found)
    parts = equal + known, *sizes, runs, one_thread_text(outcome), widened_text(outcome)
    return "; ".join(filter(None, parts)) + "."


def widened_text(outcome: dict) -> str | None:
    """Return a clause about a model of low precision that is delivered with float32 inside, or None for other files."""
    if not outcome.get("widened") or outcome["delivered"] == "original":  # older results lack "widened"
        return None
    if outcome.get("quantised"):
        return "computes in float32 without the rounding of activations (--accept dequantised)"
    return "computes in float32 between its inputs and outputs (env.widen=false keeps the precision)"


def one_thread_text(outcome: dict) -> str | None:
    """Return the measurement of the delivered file with one thread in words, or None if there is no such measurement.

    Only files that were chosen by measurements with several threads are also measured with one thread.
    """
    measured = outcome.get("measured_one_thread")  # older results lack it
    if not measured:
        return None
    advice = ": with one thread run the original" if losses(measured) else ""
    return f"with one thread {measured_text(measured)}{advice}"


def dequantised_text(outcome: dict) -> str | None:
    """Return one sentence about a quantised model that is faster in float32, or None for other models."""
    offered = outcome.get("dequantised")  # older results lack it
    if not offered or offered["ratio"] >= 1 - MARGIN:
        return None
    error = offered["error"]
    differ = "in shape, or without a bound" if error is None else f"by {error:.1e} of their largest value"
    return (
        "the quantised model is slower here than in float32 without the rounding of activations, which takes "
        f"{offered['ratio']:.3f} of its latency; outputs then differ {differ}. "
        "--accept dequantised optimises and delivers that model."
    )


def session_text(outcome: dict) -> str | None:
    """Return one sentence about the session options of the delivered file, or None if none were measured."""
    chosen = outcome.get("session")
    if not chosen:
        return None
    if not chosen["tried"]:
        return "there was no time to try session options; pass more --seconds."
    if not chosen["setup"]:
        return f"no session option gains ({chosen['tried']} were tried); run the file with the defaults."
    fields = ", ".join(f"{name} {_plain(value)}" for name, value in chosen["setup"].items())
    same = measured_text(chosen["measured"]).replace("the original's latency", "the same file's latency")
    return f"with {fields}: {same}. rlflow.session(FILE) uses these options; the gain above is without them."


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " and ".join(value) if isinstance(value, list | tuple) else str(value)


def session_code(outcome: dict) -> str | None:
    """Return the Python lines that open the delivered file with its session options; None without such options."""
    chosen = outcome.get("session")
    if not chosen or not chosen["setup"]:
        return None
    return "\n".join(Setup.of(chosen["setup"]).code(Path(outcome["optimised"]).name))


def returns_figure(outcome: dict):
    """Return a figure with the returns of single episodes.

    Each trained controller has a bar for its training and one for the real graph. Each control has one bar.
    """
    names = {"untrained": "untrained policy", "greedy": "greedy search", "random": "random play"}
    returns = {}
    for row in outcome["experiments"]:
        where = "trained" if row["temperature"] is None else "dreamt"
        returns[f"{row['training']}, {where}"] = row["trained_return"]
        returns[f"{row['training']}, real"] = row["real_return"]
    returns |= {names[name]: value for name, value in outcome.get("compared_returns", {}).items()}
    return charts.bars(returns, "return of one episode")


EXPERIMENTS_HEAD = (
    "experiment", "temperature of the dream", "return in training", "real return of the greedy episode, over as many "
    "steps", "lowest cost reached", "untrained", "no prior", "greedy search",
)  # fmt: skip
COSTS_OF_EXPERIMENT = ("cost", "untrained_cost", "no_prior_cost", "greedy_cost")


def experiment_rows(outcome: dict) -> list[tuple[str, ...]]:
    """Return the cells for EXPERIMENTS_HEAD as texts, one row for each trained controller; "–" marks a missing value.

    The last four cells are the lowest costs of the trained controller, of the same controller before its training, of
    the same controller without training and without its prior, and of greedy search.
    """
    return [
        (
            row["experiment"], "none" if row["temperature"] is None else f"{row['temperature']:g}",
            *("–" if row[key] is None else f"{row[key]:.3f}" for key in ("trained_return", "real_return")),
            *("–" if row.get(key) is None else f"{row[key]:.6g}" for key in COSTS_OF_EXPERIMENT),
        )
        for row in outcome["experiments"]
    ]  # fmt: skip


def left_out_text(outcome: dict) -> str:
    """Return a sentence with the number of rewrites left out of each candidate because outputs differ after them.

    The text is empty if no rewrite was left out.
    """
    counts = [
        f"{len(result['left_out'])} of {name}" for name, result in outcome["candidates"].items() if result["left_out"]
    ]
    if not counts:
        return ""
    listed = ", ".join(counts)
    return f"Rewrites that were left out because outputs differ after them: {listed}; see fault-report.md."


def path_figure(candidates: Mapping[str, Mapping]):
    """Return a figure of the estimated runtime after each rewrite of each candidate."""
    series = {name: list(enumerate(result["path_ms"])) for name, result in candidates.items()}
    return charts.lines(series, "rewrites", "estimated runtime (ms)")


def rule_figure(candidates: Mapping[str, Mapping]):
    """Return a figure of how often each candidate applied each rule, or None if no candidate applied a rule."""
    counts = {(rule, name): count for name, result in candidates.items() for rule, count in result["rules"].items()}
    return charts.heatmap(sorted({rule for rule, _ in counts}), list(candidates), counts) if counts else None


def as_csv(table: Sequence[Mapping]) -> str:
    """Return a table as CSV.

    Args:
      table: the rows; the keys of the first row are the header, and a value of None becomes an empty cell.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()
