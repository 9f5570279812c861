"""A comparison of runs for people and for programs: report.md with plots, report.html, and tables as CSV and JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlflow.common.files import write_json, write_text
from rlflow.common.markdown import escaped
from rlflow.reports import charts
from rlflow.reports.comparison import NONE, Run, candidate_rows, rule_counts, summary, times
from rlflow.reports.html import learning_curves
from rlflow.reports.markdown import as_csv
from rlflow.reports.markup import page, short, table, tag

NOTE = (
    "Means over runs, with 95 % intervals (Student's t) where there are several. *Estimated* is a sum of "
    "single-operator costs, *measured* the "
    "end-to-end latency in ONNX Runtime; the two are never mixed. Both are improvements over the original, in percent."
)
RULES = (
    "How often the learned controller applies each rule (where none was trained: what was delivered), the mean over "
    "the runs of a model."
)
SHORTEST = 8  # characters of a model's name
TIME_HEAD = ("model", "controller", "stage", "runs", "seconds")
HEAD = (
    "model", "controller of the runs", "candidate", "runs", "estimated %", "measured %", "runs measured", "verdicts",
    "real interactions",
    "seconds of acting or search", "of measured rewards",
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
    figures = figures_of(result, counts, curves_of(runs))
    for name, (_, figure) in figures.items():
        charts.save(figure, folder / f"{name}.png")
    write_text(folder / "report.md", _markdown(result, figures))
    write_text(folder / "report.html", _html(result, figures))
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
    """The model and the candidate; of the controller which one, of a control beside which one it was run.

    Where that is too long for a chart, the model's name is cut, so that the candidates of a model can be told apart.
    """
    result = entry["controller"] if entry["candidate"] == "controller" else entry["candidate"]
    beside = (
        f" (beside {entry['controller']})" if entry["candidate"] != "controller" and entry["controller"] != NONE else ""
    )
    candidate = f": {result}{beside}"
    return short(entry["model"], max(SHORTEST, charts.LONGEST - len(candidate))) + candidate


def cells(entry: Mapping) -> list[str]:
    """A row of the summary, as HEAD."""
    return [
        short(entry["model"]), entry["controller"], entry["candidate"], str(entry["runs"]),
        interval_text(entry["estimated_percent"]),
        interval_text(entry["measured_percent"]), str(entry["measured_percent"]["n"]), verdicts(entry),
        interval_text(entry["interactions"], 0),
        interval_text(entry["seconds"], 1), interval_text(entry["measurement_seconds"], 1),
    ]  # fmt: skip


def time_cells(entry: Mapping) -> list[str]:
    return [short(entry["model"]), entry["controller"], entry["stage"], str(entry["n"]), interval_text(entry, 1)]


# -- figures, Markdown and HTML --------------------------------------------------------------------


def figures_of(result: Mapping, counts: Mapping, curves: Mapping) -> dict:
    """Name → (title, figure): `gains`, `rules` where some were applied, and `curve-0`, `curve-1`, … of the
    trainings."""
    figures = {"gains": ("improvement of each candidate of each model", _gains(result["summary"]))}
    if counts:
        rules, models = (sorted({key[axis] for key in counts}) for axis in (0, 1))
        figures["rules"] = ("how often each rule was applied to each model", charts.heatmap(rules, models, counts))
    for number, ((model, key), named) in enumerate(curves.items()):
        figures[f"curve-{number}"] = (f"{key}, {model}", charts.curve(named, key))
    return figures


def _gains(entries: Sequence[Mapping]):
    measured = any(entry["measured_percent"]["mean"] is not None for entry in entries)
    planes = ["estimated", *(["measured"] if measured else [])]
    rows = [(name_of(entry), [entry[f"{plane}_percent"] for plane in planes]) for entry in entries]
    return charts.intervals(rows, [f"{plane} improvement (%)" for plane in planes])


def _markdown(result: Mapping, figures: Mapping) -> str:
    pictures = {name: f"![{name}]({name}.png)" for name in figures}
    curves = [f"{escaped(figures[name][0])}\n\n{pictures[name]}" for name in figures if name.startswith("curve")]
    sections = [
        "# Runs compared", NOTE, "## Improvement", _rows(HEAD, map(cells, result["summary"])), pictures["gains"],
        "## Rules applied", RULES, pictures.get("rules", "None."),
        "## Time", _rows(TIME_HEAD, map(time_cells, result["times"])),
        *(["## Training", *curves] if curves else []),
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def _rows(head: Sequence[str], rows) -> str:
    lines_of = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(escaped, row)) + " |" for row in lines_of)


def _html(result: Mapping, figures: Mapping) -> str:
    drawn = {name: charts.svg(figure, name, title) for name, (title, figure) in figures.items()}
    curves = [tag("figure", tag("h3", figures[name][0]), drawn[name]) for name in figures if name.startswith("curve")]
    numbers = (3, 6, 8, 9, 10)
    sections = [
        ("Improvement", [tag("figure", drawn["gains"]), table(HEAD, map(cells, result["summary"]), numbers=numbers)]),
        ("Rules applied", [tag("p", RULES, class_="faint"), tag("figure", drawn.get("rules", "None."))]),
        ("Time", table(TIME_HEAD, map(time_cells, result["times"]), numbers=(3, 4))),
        ("Training", tag("div", curves, class_="charts") if curves else tag("p", "No curves.")),
    ]  # fmt: skip
    body = [tag("section", tag("h2", title), content) for title, content in sections]
    heading = tag("p", "Runs compared", class_="answer")
    return page("RLFlow: runs compared", heading, tag("p", NOTE.replace("*", "")), body)
