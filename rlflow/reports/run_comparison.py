"""Compare finished runs: means with 95 % confidence intervals over the runs of one model and controller.

`read_runs` reads the run folders. It refuses runs of one model whose options of environment and cost, shapes or option
`fix` differ, since their estimates are not comparable, and runs of one controller that differ in more than their seed.
`write_comparison` writes report.html, its plots as PNG, and tables as CSV and JSON. Estimated and measured gains are
never mixed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from yaml import YAMLError

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json, write_text
from rlflow.common.options import dotted
from rlflow.costs.measured import STUDENT
from rlflow.optimisation.candidates import measurement_seconds
from rlflow.reports import charts
from rlflow.reports.html import learning_curves
from rlflow.reports.markup import page, short, table, tag
from rlflow.reports.sentences import as_csv

STAGES = ("search", "collect", "train-wm", "train-controller", "eval")
# The sections whose options may not differ between runs whose results are averaged, and their options that may.
AVERAGED = ("collect", "iterations", "world_model", "dream", "controller", "search", "eval", "optimise")
MAY_DIFFER = (
    "collect.also", "collect.executor", "controller.seed", "eval.seeds", "optimise.controller", "optimise.receipt",
    "world_model.threads", "world_model.checkpoint_seconds",
)  # fmt: skip
NONE = "none"  # name of the controller for a run without a controller
FIGURES = (  # the columns of `candidate_rows` whose means over runs are reported
    "estimated_percent", "measured_percent", "interactions", "seconds", "measurement_seconds", "substitutions",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """The content of a run folder.

    Attributes:
      folder: the run folder.
      model: the file name of the model, without folders.
      sha256: the hash of the model's file; None for a model of the zoo, whose weights depend on the seed.
      controller: the experiment (the controller's name and `controller.tag`) whose result is the candidate
        "controller", or NONE.
      seed: the seed of the run.
      task: the options that estimates depend on: `env`, `cost`, `shapes` and `fix`.
      options: dotted name → value of the options that may not differ between runs whose results are averaged; empty if
        the run's stored options belong to another experiment.
      outcome: the result of the stage `eval`.
      stage_seconds: stage → duration in seconds, for the stages that were run.
      curves: name of a training → title → list of (step, value).
    """

    folder: Path
    model: str
    sha256: str | None
    controller: str
    seed: int
    task: Mapping
    options: Mapping
    outcome: Mapping
    stage_seconds: dict[str, float]
    curves: Mapping

    @property
    def shown(self) -> str:
        """The name of the candidate whose rules are shown.

        This is the learned controller's candidate; without it, the delivered candidate; if the original was delivered,
        the candidate with the lowest estimated runtime.
        """
        result = self.outcome["candidates"]
        chosen = [name for name in ("controller", self.outcome["delivered"]) if name in result]
        return chosen[0] if chosen else min(result, key=lambda name: result[name]["estimated_ms"])


def read_run(folder: Path, read_curves: Callable[[Path], Mapping]) -> Run:
    """Read a run folder.

    Args:
      folder: the run folder.
      read_curves: a function that reads a TensorBoard folder and returns `Run.curves`.

    Raises:
      RLFlowError: if the folder has no finished `eval` or is damaged.
    """
    if not (folder / "eval.json").exists():
        raise RLFlowError(f"{folder} has no finished 'eval'; finish the run first")
    outcome, task = read_json(folder / "eval.json"), read_json(folder / "model.json")
    try:
        if task["task"]["task"] != "rewriting":
            raise RLFlowError(f"{folder} is a run of the task {task['task']['task']}; runs of rewriting are compared")
        # Without resolving `${…}`, which could read the environment of the user.
        config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=False)
        controller, options = NONE, averaged_options(config)
        if "controller" in outcome["candidates"]:
            chosen = "-".join(filter(None, (config["controller"]["name"], config["controller"].get("tag"))))
            played = outcome.get("experiments") or [{"experiment": chosen, "cost": 0}]
            controller = min(played, key=lambda row: row["cost"])["experiment"]
            options = options if controller == chosen else {}
        model, seed = Path(config["model"]).name, int(config["seed"])
        estimates = {key: task["task"][key] for key in ("env", "cost", "shapes", "fix")}
        files = {name: folder / f"{name}.json" for name in STAGES}
        seconds = {name: float(read_json(file)["seconds"]) for name, file in files.items() if file.exists()}
        sha256 = task["sha256"] if Path(task["source"]).is_absolute() else None
        curves = read_curves(folder / "tensorboard")
        run = Run(folder, model, sha256, controller, seed, estimates, options, outcome, seconds, curves)
        _ = candidate_rows(run), rule_counts([run])
    except (OSError, KeyError, TypeError, AttributeError, ValueError, YAMLError) as error:
        raise RLFlowError(f"{folder} is damaged: {error!r}") from error
    return run


def averaged_options(config: Mapping) -> dict[str, object]:
    """Return dotted name → value of the options in a stored config that determine a run's results besides its task.

    Seeds, files and options of which only the duration depends are left out, and so are other controllers.
    """
    own, result = config["controller"]["name"], {}
    for section in AVERAGED:
        for name, value in dotted(config.get(section, {}), f"{section}.").items():
            controllers = section == "controller" and name.count(".") > 1
            if name not in MAY_DIFFER and (not controllers or name.startswith(f"controller.{own}.")):
                result[name] = value
    return result


def read_runs(folders: Sequence[Path], read_curves: Callable[[Path], Mapping]) -> list[Run]:
    """Read run folders, and return the runs sorted by model, controller and seed.

    Args:
      folders: the run folders.
      read_curves: a function that reads a TensorBoard folder and returns `Run.curves`.

    Raises:
      RLFlowError: if a folder is named twice, if two models have the same file name, if runs of one model differ in
        options that estimates depend on, or runs of one model and controller in other options.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise RLFlowError("a run is named twice; name each run folder once")
    runs = sorted(
        (read_run(folder, read_curves) for folder in folders),
        key=lambda run: (run.model, run.controller, run.seed, str(run.folder)),
    )
    for one, other in zip(runs, runs[1:], strict=False):
        if one.model == other.model and one.sha256 and other.sha256 and one.sha256 != other.sha256:
            raise RLFlowError(f"{one.folder} and {other.folder} have different models of the name {one.model}")
        if one.model == other.model and one.task != other.task:
            different = next(key for key in one.task if one.task[key] != other.task[key])
            raise RLFlowError(f"{one.folder} and {other.folder} cannot be compared: the option '{different}' differs")
        if (one.model, one.controller) == (other.model, other.controller):
            for name in sorted(one.options.keys() & other.options.keys()):
                if one.options[name] != other.options[name]:
                    raise RLFlowError(
                        f"{one.folder} and {other.folder} cannot be averaged: the option '{name}' differs. Report them "
                        "apart, or give one of them a controller.tag before its training"
                    )
    return runs


def candidate_rows(run: Run) -> list[dict]:
    """Return one row of the table of runs per candidate of a run, as a dictionary; measured columns may be None."""
    rows = []
    for name, result in run.outcome["candidates"].items():
        measured = result["measured"] or {}
        low, high = measured.get("interval", (None, None))
        rows.append({
            "model": run.model, "controller": run.controller, "seed": run.seed, "candidate": name,
            "delivered": name == run.outcome["delivered"],
            "equal": result["equal"], "estimated_ms": result["estimated_ms"],
            "estimated_percent": result["estimated_improvement_percent"],
            "measured_percent": 100 * (1 - measured["ratio"]) if measured else None, "ratio": measured.get("ratio"),
            "ratio_low": low, "ratio_high": high,
            "verdict": measured.get("verdict"), "substitutions": result["substitutions"],
            "interactions": result["interactions"],
            "seconds": result["seconds"], "measurement_seconds": measurement_seconds(result),
        })  # fmt: skip
    return rows


def mean_interval(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Return the mean of the values that are not None, with its 95 % confidence interval (Student's t).

    For more than 11 values the interval uses the larger t of 11 values, so it is never too narrow.

    Returns:
      A dict of `n` (the number of values), `mean` (None if n = 0), and `low` and `high` (None if n < 2).
    """
    there = [value for value in values if value is not None]
    n, mean = len(there), float(np.mean(there)) if there else None
    if n < 2:
        return {"n": n, "mean": mean, "low": None, "high": None}
    half = STUDENT[min(n - 1, len(STUDENT)) - 1] * float(np.std(there, ddof=1)) / n**0.5
    return {"n": n, "mean": mean, "low": mean - half, "high": mean + half}


def summary(rows: Sequence[Mapping]) -> list[dict]:
    """Summarise the rows of `candidate_rows` over the runs of each model and controller.

    Returns:
      One dict for each model, controller and candidate. It also holds `runs` (their number), `verdicts` (verdict →
        number of runs) and, for each name in FIGURES, the result of `mean_interval`.
    """
    result: dict[tuple, list[Mapping]] = {}
    for row in rows:
        result.setdefault((row["model"], row["controller"], row["candidate"]), []).append(row)
    entries = []
    for (model, controller, candidate), group in result.items():
        verdicts = [row["verdict"] for row in group if row["verdict"]]
        entry = {"model": model, "controller": controller, "candidate": candidate, "runs": len(group)}
        entry["verdicts"] = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
        entries.append(entry | {figure: mean_interval([row[figure] for row in group]) for figure in FIGURES})
    return entries


def times(runs: Sequence[Run]) -> list[dict]:
    """Return one row for each model, controller and stage: the `mean_interval` of the stage's seconds over the runs."""
    result: dict[tuple, list[float]] = {}
    for run in runs:
        for stage, seconds in run.stage_seconds.items():
            result.setdefault((run.model, run.controller, stage), []).append(seconds)
    return [
        {"model": m, "controller": c, "stage": stage, **mean_interval(values)}
        for (m, c, stage), values in result.items()
    ]


def rule_counts(runs: Sequence[Run]) -> dict[tuple[str, str], float]:
    """Return (rule, model) → how often `Run.shown` applies the rule, as the mean over the runs of the model."""
    totals: dict[tuple[str, str], int] = {}
    for run in runs:
        for rule, count in run.outcome["candidates"][run.shown]["rules"].items():
            totals[rule, run.model] = totals.get((rule, run.model), 0) + count
    models = [run.model for run in runs]
    return {(rule, model): total / models.count(model) for (rule, model), total in sorted(totals.items())}


NOTE = (
    "Means over runs, with 95 % intervals (Student's t) where there are several. Estimated is a sum of "
    "single-operator costs, measured the "
    "end-to-end latency in ONNX Runtime; the two are never mixed. Both are improvements over the original, in percent."
)
RULES = (
    "How often the learned controller (without training: the delivered candidate) applies each rule, as the mean over "
    "the runs of a model."
)
SHORTEST = 8  # minimum number of characters to which a model's name is cut in a chart
TIME_HEAD = ("model", "controller", "stage", "runs", "seconds")
HEAD = (
    "model", "controller of the runs", "candidate", "runs", "estimated %", "measured %", "runs measured", "verdicts",
    "real interactions",
    "seconds of acting or search", "seconds of measured rewards",
)  # fmt: skip


def write_comparison(folder: Path, runs: Sequence[Run]) -> dict:
    """Write report.html, the charts, and the tables as CSV and JSON.

    Args:
      folder: the folder for the files.
      runs: the runs to compare.

    Returns:
      The content of comparison.json: `runs`, `summary`, `times` and `rules`.
    """
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
    write_text(folder / "report.html", _html(result, figures))
    return result


def flat(entry: Mapping) -> dict:
    """Return a row of the summary without nested dictionaries, with keys such as `estimated_percent.mean`."""
    result = {}
    for key, value in entry.items():
        if isinstance(value, dict) and key != "verdicts":
            result |= {f"{key}.{part}": v for part, v in value.items()}
        else:
            result[key] = value
    return result | {"verdicts": verdicts(entry)}


def verdicts(entry: Mapping) -> str:
    """Return the verdicts in a row of the summary with their counts, such as "2 faster, 1 no difference shown"."""
    return ", ".join(f"{count} {verdict}" for verdict, count in entry["verdicts"].items())


def curves_of(runs: Sequence[Run]) -> dict[tuple[str, str], dict[str, list]]:
    """Return (model, title) → name of a training and its seed → curve. Each (model, title) becomes one figure."""
    result: dict[tuple[str, str], dict[str, list]] = {}
    for run in runs:
        for name, key, curve in learning_curves(run.curves):
            lines_of = result.setdefault((run.model, key), {})
            label = f"{name}, seed {run.seed}"
            lines_of[f"{label} ({run.folder.name})" if label in lines_of else label] = curve
    return result


def interval_text(result: Mapping, digits: int = 2) -> str:
    """Return a mean with its interval as text: "1.50 (1.20 – 1.80)", "1.50" without an interval, "–" without a mean.

    Args:
      result: a result of `mean_interval`.
      digits: number of digits after the decimal point.
    """
    if result["mean"] is None:
        return "–"
    text = f"{result['mean']:.{digits}f}"
    return text if result["low"] is None else f"{text} ({result['low']:.{digits}f} – {result['high']:.{digits}f})"


def name_of(entry: Mapping) -> str:
    """Return the name of a summary row in a chart: the model and the candidate.

    The candidate of a learned controller has the controller's name. The name of another candidate also contains the
    controller of its run. If the whole is too long for a chart, the model's name is cut, so that names stay distinct.
    """
    result = entry["controller"] if entry["candidate"] == "controller" else entry["candidate"]
    beside = (
        f" (beside {entry['controller']})" if entry["candidate"] != "controller" and entry["controller"] != NONE else ""
    )
    candidate = f": {result}{beside}"
    return short(entry["model"], max(SHORTEST, charts.LONGEST - len(candidate))) + candidate


def cells(entry: Mapping) -> list[str]:
    """Return the cells of a summary row as texts, for the columns of HEAD."""
    return [
        short(entry["model"]), entry["controller"], entry["candidate"], str(entry["runs"]),
        interval_text(entry["estimated_percent"]),
        interval_text(entry["measured_percent"]), str(entry["measured_percent"]["n"]), verdicts(entry),
        interval_text(entry["interactions"], 0),
        interval_text(entry["seconds"], 1), interval_text(entry["measurement_seconds"], 1),
    ]  # fmt: skip


def time_cells(entry: Mapping) -> list[str]:
    """Return the cells of a row of `times` as texts, for the columns of TIME_HEAD."""
    return [short(entry["model"]), entry["controller"], entry["stage"], str(entry["n"]), interval_text(entry, 1)]


# -- figures and HTML --------------------------------------------------------------------


def figures_of(result: Mapping, counts: Mapping, curves: Mapping) -> dict:
    """Return name → (title, figure) of all charts.

    The names are `gains`, `rules` (only if rules were applied), and `curve-0`, `curve-1`, … for the training curves.

    Args:
      result: the content of comparison.json.
      counts: the result of `rule_counts`.
      curves: the result of `curves_of`.
    """
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
    return page("RLFlow: runs compared", heading, tag("p", NOTE), body)
