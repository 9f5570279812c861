"""The tables of a sweep: CSV and JSON with one row for each run, and a page with plots and the means over the seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlflow.common.files import write_json, write_text
from rlflow.common.messages import markdown_table
from rlflow.reports import charts
from rlflow.reports.sentences import as_csv
from rlflow.runs.sweeps.definition import Parameter, Sweep
from rlflow.runs.sweeps.runs import FIGURES
from rlflow.runs.sweeps.trials import Trial

SHOWN = (  # the columns of the summary table in report.md
    "dreamt", "real", "improvement", "interactions", "measurement_seconds", "training_seconds", "acting_seconds",
)  # fmt: skip
FORMATS = {
    "interactions": "{:.0f}", "measurement_seconds": "{:.1f}", "training_seconds": "{:.1f}", "acting_seconds": "{:.2f}",
}  # fmt: skip


def write_tables(folder: Path, sweep: Sweep, trials: Sequence[Trial], name: str) -> dict:
    """Write trials.csv, trials.json and report.md with its plots.

    Args:
      folder: the folder of the sweep.
      sweep: the sweep.
      trials: the trials that have been run so far.
      name: the title of the report.

    Returns:
      The content of trials.json.
    """
    result = {"sweep": name, "figures": FIGURES, "rows": rows(sweep, trials, folder), "summary": summary(trials)}
    write_text(folder / "trials.csv", as_csv(result["rows"]))
    write_json(folder / "trials.json", result)
    plots = [_plot(folder, parameter, trials) for parameter in sweep.parameters]
    write_text(folder / "report.md", _page(sweep, result["summary"], name, plots))
    return result


def rows(sweep: Sweep, trials: Sequence[Trial], folder: Path) -> list[dict]:
    """Return one dictionary for each run of the trials.

    Args:
      sweep: the sweep.
      trials: the trials that have been run so far. A pruned trial has no runs for its last seeds.
      folder: the folder of the sweep.

    Returns:
      Dictionaries of `trial` (its number), `seed`, `state` ("finished", "pruned", "diverged" or "failed"), each
        parameter, each name in FIGURES (None for a failed run), `folder` (relative to the sweep's) and `error` (None
        for no error).
    """
    result = []
    for trial in trials:
        for seed in [seed for seed in sweep.seeds if seed in trial.folders]:
            error = trial.errors.get(seed)
            ended = "failed" if error else "pruned" if trial.pruned else "finished"
            state = "diverged" if seed in trial.diverged else ended
            figures = trial.figures.get(seed, dict.fromkeys(FIGURES))
            position = trial.folders[seed].relative_to(folder.resolve()).as_posix()
            result.append(
                {
                    "trial": trial.number,
                    "seed": seed,
                    "state": state,
                    **trial.values,
                    **figures,
                    "folder": position,
                    "error": error,
                }
            )
    return result


def summary(trials: Sequence[Trial]) -> list[dict]:
    """Return one dictionary for each trial, with means over its finished runs.

    Returns:
      Dictionaries of `trial` (its number), `state`, `parameters`, `runs` (their number), the result of `mean_and_sd`
        for each name in FIGURES, and `gap_percent`: 100 · (mean dreamt return − mean real return) / |mean real return|,
        or None if the real return is 0 or unknown.
    """
    result = []
    for trial in trials:
        entry = {"trial": trial.number, "state": trial.state, "parameters": trial.values, "runs": len(trial.figures)}
        for name in FIGURES:
            entry[name] = mean_and_sd(_known(name, [trial]))
        dreamt, real = entry["dreamt"]["mean"], entry["real"]["mean"]
        entry["gap_percent"] = 100.0 * (dreamt - real) / abs(real) if real else None
        result.append(entry)
    return result


def _known(figure: str, trials: Sequence[Trial]) -> list[float]:
    """Return the values of a figure in all finished runs of the trials, without None."""
    values = [figures[figure] for trial in trials for figures in trial.figures.values()]
    return [value for value in values if value is not None]


def mean_and_sd(values: Sequence[float]) -> dict[str, float | None]:
    """Return `mean` and the sample standard deviation `sd`; None if there are too few values."""
    return {
        "mean": float(np.mean(values)) if values else None,
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    }


def best(sweep: Sweep, entries: Sequence[Mapping]) -> Mapping | None:
    """Return the finished trial with the best mean objective, the first one of equal trials; None without such a trial.

    Args:
      sweep: the sweep.
      entries: the result of `summary`.
    """
    finished = [entry for entry in entries if entry["state"] == "finished"]
    sign = 1.0 if sweep.direction == "maximize" else -1.0
    return max(finished, key=lambda entry: sign * entry[sweep.figure]["mean"], default=None)


def _page(sweep: Sweep, entries: Sequence[Mapping], name: str, plots: Sequence[Path]) -> str:
    names, winner = [parameter.name for parameter in sweep.parameters], best(sweep, entries)
    head = [*names, "runs", *SHOWN, "dream above reality, %", ""]
    table = []
    for entry in entries:
        cells = [_value(entry["parameters"][name]) for name in names] + [str(entry["runs"])]
        cells += [_cell(figure, entry[figure]) for figure in SHOWN]
        cells.append("–" if entry["gap_percent"] is None else f"{entry['gap_percent']:.1f}")
        cells = [f"**{cell}**" for cell in cells] if entry is winner else cells
        table.append([*cells, "" if entry["state"] == "finished" else entry["state"]])
    meaning = "\n".join(f"- *{figure}*: {FIGURES[figure]}" for figure in SHOWN)
    aim = "most" if sweep.direction == "maximize" else "least"
    return "\n\n".join([
        f"# Sweep {name}",
        f"Mean ± standard deviation over seeds {', '.join(map(str, sweep.seeds))}; in bold the trial with the {aim} "
        f"*{sweep.figure}*. Trials that failed or diverged are not ranked.",
        markdown_table(head, table, numbers=range(len(names), len(head) - 1)), meaning,
        *(f"![{plot.stem}]({plot.relative_to(plot.parents[1]).as_posix()})" for plot in plots),
        "One row for each run: trials.csv, trials.json.",
    ]) + "\n"  # fmt: skip


def _cell(figure: str, result: Mapping) -> str:
    if result["mean"] is None:
        return "–"
    form = FORMATS.get(figure, "{:.2f}")
    return form.format(result["mean"]) + (f" ± {form.format(result['sd'])}" if result["sd"] is not None else "")


def _value(value) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)


@charts.styled()
def _plot(folder: Path, parameter: Parameter, trials: Sequence[Trial]) -> Path:
    """Plot the dreamt and the real return, and the improvement, over the values of a parameter.

    Each run is a dot. A value with several runs also has the mean and the sample standard deviation. The plot is
    written to plots/NAME.png in the folder of the sweep, and its path is returned.
    """
    figure = charts.new_figure(9, 3.5)
    values = list(dict.fromkeys(trial.values[parameter.name] for trial in trials))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    for axes, shown, label in zip(
        figure.subplots(1, 2), (("dreamt", "real"), ("improvement",)), ("return", "improvement (%)"), strict=True
    ):
        for k, name in enumerate(shown):
            for index, value in enumerate(values):
                result = _known(name, [trial for trial in trials if trial.values[parameter.name] == value])
                at = value if numeric else index
                axes.plot([at] * len(result), result, ".", color=f"C{k}", alpha=0.4, label=name if not index else None)
                if len(result) > 1:
                    stats = mean_and_sd(result)
                    axes.errorbar([at], [stats["mean"]], [stats["sd"]], fmt="_", color=f"C{k}", capsize=3)
        if not numeric:
            names = [charts.label(_value(value)) for value in values]
            axes.set_xticks(range(len(values)), names, rotation=45, ha="right")
        if parameter.log:
            axes.set_xscale("log")
        axes.set(xlabel=charts.label(parameter.name), ylabel=label)
        if len(shown) > 1:
            axes.legend()
    return charts.save(figure, folder / "plots" / f"{parameter.name}.png")
