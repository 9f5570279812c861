"""A comparison of runs for people and for programs: report.md with plots, report.html, and tables as CSV and JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlflow.common.files import write_json, write_text
from rlflow.reports.charts import heatmap, intervals, lines
from rlflow.reports.comparison import NONE, Run, candidate_rows, rule_counts, summary, times
from rlflow.reports.html import learning_curves
from rlflow.reports.markdown import as_csv, make_figure, save_figure
from rlflow.reports.markup import Safe, page, short, table, tag

NOTE = (
    "Means over runs, with 95 % intervals (Student's t) where there are several. *Estimated* is a sum of "
    "single-operator costs, *measured* the "
    "end-to-end latency in ONNX Runtime; the two are never mixed. Both are improvements over the original, in percent."
)
RULES = (
    "How often the learned controller applies each rule (where none was trained: what was delivered), the mean over "
    "the runs of a model."
)
TIME_HEAD = ("model", "controller", "stage", "runs", "seconds")
HEAD = (
    "model", "controller of the runs", "candidate", "runs", "estimated %", "measured %", "runs measured", "verdicts",
    "real interactions",
    "seconds of acting or search",
)  # fmt: skip


def write_comparison(folder: Path, runs: Sequence[Run]) -> dict:
    """Writes everything into the folder; returns what comparison.json holds: `runs`, `summary`, `times` and `rules`."""
    rows = [row for run in runs for row in candidate_rows(run)]
    counts = rule_counts(runs)
    result = {
        "runs": rows, "summary": summary(rows), "times": times(runs),
        "rules": [{"rule": rule, "model": model, "mean_count": count} for (rule, model), count in counts.items()],
    }  # fmt: skip
    write_json(folder / "comparison.json", result)
    for name in ("runs", "times", "rules"):
        write_text(folder / f"{name}.csv", as_csv(result[name]))
    write_text(folder / "summary.csv", as_csv([flat(entry) for entry in result["summary"]]))
    write_text(folder / "report.md", _markdown(folder, result, counts, curves_of(runs)))
    write_text(folder / "report.html", _html(result, counts, curves_of(runs)))
    return result


def flat(entry: Mapping) -> dict:
    """A row of the summary without dicts in it: `estimated_percent.mean`, …"""
    result = {}
    for key, value in entry.items():
        result |= (
            {f"{key}.{part}": v for part, v in value.items()}
            if isinstance(value, dict) and key != "verdicts"
            else {key: value}
        )
    return result | {"verdicts": verdicts(entry)}


def verdicts(entry: Mapping) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in entry["verdicts"].items())


def curves_of(runs: Sequence[Run]) -> dict[tuple[str, str], dict[str, list]]:
    """(model, title) → name of the run's curve → curve: how the runs of a model learn, together."""
    result: dict[tuple[str, str], dict[str, list]] = {}
    for run in runs:
        for name, key, curve in learning_curves(run.curves):
            lines_of = result.setdefault((run.model, key), {})
            lines_of[
                f"{name}, seed {run.seed}"
                + ("" if f"{name}, seed {run.seed}" not in lines_of else f" ({run.folder.name})")
            ] = curve
    return result


def interval_text(result: Mapping, digits: int = 2) -> str:
    """A mean with its interval, as far as they are known."""
    if result["mean"] is None:
        return "–"
    text = f"{result['mean']:.{digits}f}"
    return text if result["low"] is None else f"{text} ({result['low']:.{digits}f} – {result['high']:.{digits}f})"


def name_of(entry: Mapping) -> str:
    """The model and the candidate; of the controller which one, of a control beside which one it was run."""
    result = entry["controller"] if entry["candidate"] == "controller" else entry["candidate"]
    beside = (
        f" (beside {entry['controller']})" if entry["candidate"] != "controller" and entry["controller"] != NONE else ""
    )
    return f"{short(entry['model'])}: {result}{beside}"


def cells(entry: Mapping) -> list[str]:
    """A row of the summary, as HEAD."""
    return [
        short(entry["model"]), entry["controller"], entry["candidate"], str(entry["runs"]),
        interval_text(entry["estimated_percent"]),
        interval_text(entry["measured_percent"]), str(entry["measured_percent"]["n"]), verdicts(entry),
        interval_text(entry["interactions"], 0),
        interval_text(entry["seconds"], 1),
    ]  # fmt: skip


def time_cells(entry: Mapping) -> list[str]:
    return [short(entry["model"]), entry["controller"], entry["stage"], str(entry["n"]), interval_text(entry, 1)]


# -- Markdown and PNG ------------------------------------------------------------------------------


def _markdown(folder: Path, result: Mapping, counts: Mapping, curves: Mapping) -> str:
    plots = {
        "gains": _plot_gains(folder, result["summary"]),
        "rules": _plot_rules(folder, counts),
        "curves": _plot_curves(folder, curves),
    }
    pictures = {name: f"\n\n![{name}]({path.name})" if path else "" for name, path in plots.items()}
    sections = [
        "# Runs compared", NOTE, "## Improvement\n\n" + _rows(HEAD, map(cells, result["summary"])) + pictures["gains"],
        f"## Rules applied\n\n{RULES}" + (pictures["rules"] or "\n\nNone."),
        "## Time\n\n" + _rows(("model", "controller", "stage", "runs", "seconds"), map(time_cells, result["times"])),
    ]  # fmt: skip
    sections += [f"## Training{pictures['curves']}"] if curves else []
    return "\n\n".join(sections) + "\n"


def _rows(head: Sequence[str], rows) -> str:
    lines_of = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines_of
    )


def _plot_gains(folder: Path, entries: Sequence[Mapping]) -> Path:
    figure = make_figure(8, 0.32 * len(entries) + 1.2)
    axes = figure.subplots(1, 2, sharey=True)
    for plane, key, label in zip(
        axes, ("estimated_percent", "measured_percent"), ("estimated", "measured"), strict=True
    ):
        for position, entry in enumerate(entries):
            if entry[key]["mean"] is not None:
                low, high = (
                    entry[key][end] if entry[key]["low"] is not None else entry[key]["mean"] for end in ("low", "high")
                )
                plane.plot([low, high], [position, position], color="C0")
                plane.plot(entry[key]["mean"], position, "o", color="C0", markersize=4)
        plane.axvline(0, color="grey", linewidth=0.8)
        plane.set_xlabel(f"{label} improvement (%)")
    axes[0].set_yticks(range(len(entries)), map(name_of, entries))
    axes[0].invert_yaxis()
    return save_figure(figure, folder / "gains.png")


def _plot_rules(folder: Path, counts: Mapping[tuple[str, str], float]) -> Path | None:
    rules, models = (sorted({key[axis] for key in counts}) for axis in (0, 1))
    if not rules:
        return None
    values = [[counts.get((rule, model), 0.0) for model in models] for rule in rules]
    figure = make_figure(0.9 * len(models) + 4, 0.3 * len(rules) + 1.5)
    axes = figure.subplots()
    axes.imshow(values, aspect="auto", cmap="Blues")
    axes.set_xticks(range(len(models)), map(short, models), rotation=45, ha="right")
    axes.set_yticks(range(len(rules)), rules)
    most = max(map(max, values))
    for row, column in ((r, c) for r in range(len(rules)) for c in range(len(models)) if values[r][c]):
        axes.text(
            column, row, f"{values[row][column]:.3g}", ha="center", va="center", fontsize=8,
            color="white" if 2 * values[row][column] > most else "black",
        )  # fmt: skip
    return save_figure(figure, folder / "rules.png")


def _plot_curves(folder: Path, curves: Mapping[tuple[str, str], Mapping[str, list]]) -> Path | None:
    if not curves:
        return None
    figure = make_figure(8, 2.4 * len(curves))
    for plane, ((model, key), named) in zip(
        figure.subplots(len(curves), 1, squeeze=False)[:, 0], curves.items(), strict=True
    ):
        for name, curve in named.items():
            plane.plot(*zip(*curve, strict=True), label=short(name))
        plane.set(title=short(model), xlabel="step", ylabel=key)
        plane.legend(fontsize=7)
    return save_figure(figure, folder / "curves.png")


# -- HTML ------------------------------------------------------------------------------------------


def _html(result: Mapping, counts: Mapping, curves: Mapping) -> str:
    rules, models = (sorted({key[axis] for key in counts}) for axis in (0, 1))
    measured = any(entry["measured_percent"]["mean"] is not None for entry in result["summary"])
    charts = [
        intervals([(name_of(entry), entry[f"{key}_percent"]) for entry in result["summary"]], f"{key} improvement (%)")
        for key in ("estimated", *(["measured"] if measured else []))
    ]  # fmt: skip
    sections = [
        ("Improvement", [table(HEAD, map(cells, result["summary"]), numbers=(3, 4, 5, 6, 8, 9)), *charts]),
        (
            "Rules applied",
            [tag("p", RULES, class_="faint"), heatmap(rules, models, counts, "rule") if rules else tag("p", "None.")],
        ),
        ("Time", [table(TIME_HEAD, map(time_cells, result["times"]), numbers=(3, 4))]),
        ("Training", [_chart(model, key, named) for (model, key), named in curves.items()] or [tag("p", "No curves.")]),
    ]  # fmt: skip
    body = [tag("section", tag("h2", title), content) for title, content in sections]
    return page("RLFlow: runs compared", tag("h1", "Runs compared"), tag("p", NOTE.replace("*", "")), body)


def _chart(model: str, key: str, named: Mapping[str, list]) -> Safe:
    return tag("div", tag("h3", short(model)), lines(named, "step", key))
