"""Write the report of a run as Markdown with plots, and the sentences and tables that the HTML page shares with it.

`write_report` writes report.md from the results of the stages. The commands print `summary_line` and `certainty_line`
among their last lines. The tables show the candidates that were compared end to end, and the estimated and measured
gain of each group of rewrites.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rlflow.common.files import write_text
from rlflow.common.messages import escaped
from rlflow.graph.onnx_runtime import Setup
from rlflow.optimisation.candidates import measurement_seconds
from rlflow.optimisation.choice import is_faster, losses
from rlflow.optimisation.validate.findings import checks_text, equal_sizes_text, fixed_text, notes_text, verdict
from rlflow.reports import charts
from rlflow.reports.markup import Safe, join, table, tag, time_text

CONTEST_HEAD = ("candidate", "sessions", "latency relative to the original (median)")
CONTEST_NOTE = (
    "These candidates competed end to end, and the slower half was dropped after each heat. The winner was then "
    "checked and measured in separate runs; only these runs count."
)


def contest_table(outcome: Mapping) -> Safe | None:
    """Return an HTML table of the candidates that were compared end to end, or None if there was no contest."""
    rows = _contest_rows(outcome)
    if not rows:
        return None
    return join(
        [
            tag("p", f"{CONTEST_NOTE}{_earlier_measurements(outcome)}", class_="faint"),
            table(CONTEST_HEAD, rows, numbers=(1, 2)),
        ]
    )


def contest_markdown(outcome: Mapping) -> str:
    """Return a Markdown table of the candidates that were compared end to end; an empty text if there was no contest.

    An empty line precedes the table.
    """
    rows = _contest_rows(outcome)
    if not rows:
        return ""
    return f"\n\n{CONTEST_NOTE}{_earlier_measurements(outcome)}\n\n{markdown_table(CONTEST_HEAD, rows, numbers=(1, 2))}"


def _contest_rows(outcome: Mapping) -> list[tuple[str, str, str]]:
    return [(one["name"], str(one["draws"]), f"{one['ratio']:.3f}") for one in outcome.get("contest", [])]


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
    """Return an HTML table with the gain of each group of batched rewrites, or None if no group was examined."""
    rows = [[tag("code", name), *rest] for name, *rest in _share_rows(outcome)]
    if not rows:
        return None
    return join([tag("p", SHARES_NOTE, class_="faint"), table(SHARES_HEAD, rows, numbers=(1,))])


def shares_markdown(outcome: Mapping) -> str:
    """Return a Markdown table with the gain of each group of batched rewrites; an empty text if no group was examined.

    An empty line precedes the table.
    """
    rows = [[f"`{name}`", *rest] for name, *rest in _share_rows(outcome)]
    return f"\n\n{SHARES_NOTE}\n\n{markdown_table(SHARES_HEAD, rows, numbers=(1,))}" if rows else ""


def _share_rows(outcome: Mapping) -> Iterator[tuple[str, str, str]]:
    for share in outcome.get("shares", []):  # older results lack them
        off, measured = share["off_ps"], share["measured"]
        estimated = time_text(share["gain_ps"], "+") + (f" ± {time_text(off)}" if off else "")
        yield f"{share['rule']} ×{share['count']}", estimated, ratio_text(measured) if measured else "not measured"


def ratio_text(measured: Mapping) -> str:
    """Return the latency ratio of a measurement with its interval as text, such as "0.950 (0.940 – 0.960)"."""
    low, high = measured["interval"]
    return f"{measured['ratio']:.3f} ({low:.3f} – {high:.3f})"


SAME = "it is the original: nothing to compare"
RETURNS_PICTURE = "returns.png"  # file with the chart of dreamt and real returns, in the folder of the report
FIDELITY = ("cumulative_reward_error", "reward_r2", "mask_exact", "mask_f1", "counts_exact")


def write_report(folder: Path, results: dict) -> Path:
    """Write report.md and its plots, and return the path of report.md.

    Args:
      folder: the folder for the files.
      results: a dict of `stages` (name of a stage before eval → its results), `eval` (the result of
        `rlflow.optimisation.delivery.deliver`), `model`, `seed`, `machine` and `versions`.
    """
    outcome = results["eval"]
    charts.save(path_figure(outcome["candidates"]), folder / "path.png")
    rules = rule_figure(outcome["candidates"])
    if rules is not None:
        charts.save(rules, folder / "rules.png")
    learned = outcome["experiments"]
    if learned:
        charts.save(charts.bars(compared_returns(outcome), "return of one episode"), folder / RETURNS_PICTURE)
    sections = [
        f"# {results['model']}",
        _summary(outcome),
        "## What was changed\n\n" + _rewrites(outcome) + left_out_text(outcome) + shares_markdown(outcome),
        "## Estimated runtime along the way\n\n" + "![estimated runtime](path.png)",
        "## Candidates\n\n" + _candidates(outcome) + "\n" + _controls_note(outcome) + contest_markdown(outcome),
        *(["## Dream and reality\n\n" + _dream(outcome)] if learned else []),
        "## Conditions\n\n" + _conditions(results),
        "## Stages\n\n" + _stages(results["stages"]),
        "## Rules that each candidate applied\n\n" + ("None." if rules is None else "![rules](rules.png)"),
        "## Every check of equality\n\n" + _equality(outcome),
    ]
    fidelity = results["stages"].get("train-wm", {}).get("fidelity")
    if learned and fidelity:
        sections.append("## How far the world model can be trusted\n\n" + _fidelity(fidelity))
    path = folder / "report.md"
    write_text(path, "\n\n".join(sections) + "\n")
    return path


def summary_line(outcome: dict) -> str:
    """Return one sentence with the measured and the estimated gain of the delivered candidate.

    If the original is delivered, the sentence states the reason.
    """
    if outcome["delivered"] == "original":
        return f"No gain: {outcome['reason']}; the original is returned."
    result = outcome["candidates"][outcome["delivered"]]
    estimated = f"stimated {result['estimated_improvement_percent']:.1f} % faster, found by {outcome['delivered']}"
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
    """Return a clause about a half-precision model that is delivered with float32 inside, or None for other files."""
    if not outcome.get("widened") or outcome["delivered"] == "original":  # older results lack "widened"
        return None
    return "computes in float32 between its inputs and outputs (env.widen=false keeps the precision)"


def one_thread_text(outcome: dict) -> str | None:
    """Return the measurement of the delivered file with one thread in words, or None if it was not measured so.

    Only files that were chosen by measurements with several threads are also measured with one thread.
    """
    measured = outcome.get("measured_one_thread")  # older results lack it
    if not measured:
        return None
    advice = ": with one thread run the original" if losses(measured) else ""
    return f"with one thread {measured_text(measured)}{advice}"


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


def _session(outcome: dict) -> str:
    text, code = session_text(outcome), session_code(outcome)
    return f"\n\nSession: {text}" + (f"\n\n```python\n{code}\n```" if code else "") if text else ""


def _summary(outcome: dict) -> str:
    return (
        f"**{escaped(summary_line(outcome))}**\n\n{escaped(certainty_line(outcome))}\n\n"
        f"Delivered: `{Path(outcome['optimised']).name}`, chosen because: {escaped(outcome['reason'])}.\n\n"
        "*Estimated* is a sum of single-operator costs, *measured* the end-to-end latency in ONNX Runtime. "
        "The two are never mixed." + _session(outcome)
    )


def _rewrites(outcome: dict) -> str:
    """Return the rules that the delivered candidate applied with their counts, the most frequent rule first."""
    if outcome["delivered"] == "original":
        return "Nothing: the original is returned unchanged."
    rules = outcome["candidates"][outcome["delivered"]]["rules"]
    return ", ".join(f"`{rule}` ×{count}" for rule, count in rules.items()) + "."


def _candidates(outcome: dict) -> str:
    rows = [
        "| found by | estimated ms | estimated gain | measured ratio (95 % interval) | verdict | rewrites | "
        "real interactions | seconds of acting or search | seconds of measured rewards | largest relative error |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
        f"| *original* | {outcome['original']['estimated_ms']:.4f} | | 1 | | | | | | |",
    ]
    for name, result in outcome["candidates"].items():
        measured = result["measured"]
        ratio, verdict = "not measured", "same graph as the original" if result["same_as"] == "original" else ""
        if measured:
            ratio, verdict = ratio_text(measured), verdict_text(measured)
        if not result["equal"]:
            verdict = "NOT EQUAL, dropped"
        rows.append(
            f"| {name} | {result['estimated_ms']:.4f} | {result['estimated_improvement_percent']:.2f} % | {ratio} | "
            f"{verdict} | {result['substitutions']} | {result['interactions']} | {result['seconds']:.1f} | "
            f"{measurement_seconds(result):.1f} | {_error_text(result['max_relative_error'])} |"
        )
    return "\n".join(rows)


def _error_text(error: float | str | None) -> str:
    return f"{error:.1e}" if isinstance(error, float) else str(error)


def _controls_note(outcome: dict) -> str:
    learned = outcome["candidates"].get("controller")
    lines = ["`random` is the best graph found by random play with as many interactions; `greedy` is steepest descent."]
    for name, result in outcome["candidates"].items():
        if learned and name != "controller" and result["estimated_ms"] < learned["estimated_ms"]:
            lines.append(f"The control `{name}` beats the learned controller here.")
    return "\n\n" + "\n".join(lines)


def compared_returns(outcome: dict) -> dict[str, float]:
    """Return the bars of the chart of returns: name of a bar → return of one episode.

    The bars show each trained controller, in its training and on the real graph, and the controls.
    """
    names = {"untrained": "untrained policy", "greedy": "greedy search", "random": "random play"}
    returns = {}
    for row in outcome["experiments"]:
        where = "trained" if row["temperature"] is None else "dreamt"
        returns[f"{row['training']}, {where}"] = row["trained_return"]
        returns[f"{row['training']}, real"] = row["real_return"]
    return returns | {names[name]: value for name, value in outcome.get("compared_returns", {}).items()}


EXPERIMENTS_HEAD = (
    "experiment", "temperature of the dream", "return in training", "real return of the greedy episode, over as many "
    "steps", "lowest cost reached", "untrained", "no prior",
)  # fmt: skip
COSTS_OF_EXPERIMENT = ("cost", "untrained_cost", "no_prior_cost")


def experiment_rows(outcome: dict) -> list[tuple[str, ...]]:
    """Return the cells for EXPERIMENTS_HEAD as texts, one row for each trained controller; "–" marks a missing value.

    The last three cells are the lowest costs of the trained controller, of the same controller before its training, and
    of the same controller without training and without its prior.
    """
    return [
        (
            row["experiment"], "none" if row["temperature"] is None else f"{row['temperature']:g}",
            *("–" if row[key] is None else f"{row[key]:.3f}" for key in ("trained_return", "real_return")),
            *("–" if row.get(key) is None else f"{row[key]:.6g}" for key in COSTS_OF_EXPERIMENT),
        )
        for row in outcome["experiments"]
    ]  # fmt: skip


def _dream(outcome: dict) -> str:
    """Return a table of the trained controllers, and a link to the chart that shows their returns."""
    drawn = markdown_table(EXPERIMENTS_HEAD, experiment_rows(outcome), numbers=(1, 2, 3, 4, 5, 6))
    return f"{drawn}\n\n![dreamt and real returns beside the controls]({RETURNS_PICTURE})"


def _fidelity(fidelity: dict) -> str:
    """Return a table of the world model's accuracy on held-out episodes, by number of steps, beside two baselines."""
    head = ("steps", "predictor", "error of the summed reward", "reward R²", "masks exact", "mask F1", "counts exact")
    rows = []
    for steps, horizon in fidelity["horizons"].items():
        for predictor in ("model", "no_change", "rule_mean"):
            result = [horizon[predictor][key] for key in FIDELITY]
            rows.append([str(steps), predictor, *("–" if value is None else f"{value:.3f}" for value in result)])
    return (
        "Open loop on held-out random episodes, compared with trivial baselines (`no_change`: nothing happens; "
        f"`rule_mean`: each rule's mean reward):\n\n{markdown_table(head, rows, numbers=(0, 2, 3, 4, 5, 6))}"
    )


def _equality(outcome: dict) -> str:
    if outcome["delivered"] == "original":
        return "The original is returned unchanged."
    rows = ["| check | result | |", "| --- | --- | --- |"]
    for finding in outcome["candidates"][outcome["delivered"]]["findings"]:
        rows.append(f"| {finding['kind']} | {verdict(finding)} | {escaped(finding['message'])} |")
    return "\n".join(rows)


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
    return f"\n\nRewrites that were left out because outputs differ after them: {listed}; see fault-report.md."


def _stages(stages: dict) -> str:
    rows = [(name, f"{stage['seconds']:.1f}") for name, stage in stages.items()]
    return markdown_table(("stage", "seconds"), rows, numbers=(1,))


def _conditions(results: dict) -> str:
    lines = [f"- seed {results['seed']}", f"- machine: {results['machine']}"]
    return "\n".join(lines + [f"- {name} {version}" for name, version in results["versions"].items()])


def path_figure(candidates: Mapping[str, Mapping]):
    """Return a figure of the estimated runtime after each rewrite of each candidate."""
    series = {name: list(enumerate(result["path_ms"])) for name, result in candidates.items()}
    return charts.lines(series, "rewrites", "estimated runtime (ms)")


def rule_figure(candidates: Mapping[str, Mapping]):
    """Return a figure of how often each candidate applied each rule, or None if no candidate applied a rule."""
    counts = {(rule, name): count for name, result in candidates.items() for rule, count in result["rules"].items()}
    return charts.heatmap(sorted({rule for rule, _ in counts}), list(candidates), counts) if counts else None


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> str:
    """Return a Markdown table.

    Args:
      head: the titles of the columns.
      rows: the cells of each row; texts are not escaped.
      numbers: the columns that are aligned to the right.
    """
    rules = ["---:" if column in numbers else "---" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rules, *rows))


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
