"""Several finished runs side by side; means with 95 % intervals over the runs of one model and controller."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.costs.measured import STUDENT
from rlflow.deliver.candidates import measurement_seconds

STAGES = ("search", "collect", "train-wm", "train-controller", "eval")
NONE = "none"  # the controller of a run in which none was trained
FIGURES = (  # of a candidate
    "estimated_percent", "measured_percent", "interactions", "seconds", "measurement_seconds", "substitutions",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What is read of a run folder.

    Attributes:
      model, controller: names; the model's is that of its file, without folders.
      task: the options of the environment and the cost, which estimates depend on.
      outcome: the result of `eval`.
      stage_seconds: stage → seconds, of those that were run.
      curves: name → title → list of (step, value).
    """

    folder: Path
    model: str
    controller: str
    seed: int
    task: Mapping
    outcome: Mapping
    stage_seconds: dict[str, float]
    curves: Mapping

    @property
    def shown(self) -> str:
        """The candidate whose rules are shown: the learned controller's, else the delivered one, else the cheapest."""
        result = self.outcome["candidates"]
        chosen = [name for name in ("controller", self.outcome["delivered"]) if name in result]
        return chosen[0] if chosen else min(result, key=lambda name: result[name]["estimated_ms"])


def read_run(folder: Path, read_curves: Callable[[Path], Mapping]) -> Run:
    """Raises RLFlowError if the folder has no finished `eval`, or is damaged."""
    if not (folder / "eval.json").exists():
        raise RLFlowError(f"{folder} has no finished 'eval'")
    outcome, task = read_json(folder / "eval.json"), read_json(folder / "model.json")
    try:
        config = OmegaConf.load(folder / "config.yaml")
        controller = config.controller.name if "controller" in outcome["candidates"] else NONE
        model, seed, task = (
            Path(config.model).name,
            int(config.seed),
            {key: task["task"][key] for key in ("env", "cost", "shapes", "fix")},
        )
        seconds = {
            name: float(read_json(folder / f"{name}.json")["seconds"])
            for name in STAGES
            if (folder / f"{name}.json").exists()
        }
        run = Run(folder, model, controller, seed, task, outcome, seconds, read_curves(folder / "tensorboard"))
        candidate_rows(run)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise RLFlowError(f"{folder} is damaged: {error!r}") from error
    return run


def read_runs(folders: Sequence[Path], read_curves: Callable[[Path], Mapping]) -> list[Run]:
    """The runs, sorted by model, controller and seed.

    Raises RLFlowError if a folder is named twice, or runs of one model differ in what estimates depend on.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise RLFlowError("a run is named twice")
    runs = sorted(
        (read_run(folder, read_curves) for folder in folders),
        key=lambda run: (run.model, run.controller, run.seed, str(run.folder)),
    )
    for one, other in zip(runs, runs[1:], strict=False):
        if one.model == other.model and one.task != other.task:
            different = next(key for key in one.task if one.task[key] != other.task[key])
            raise RLFlowError(f"{one.folder} and {other.folder} cannot be compared: '{different}' differs")
    return runs


def candidate_rows(run: Run) -> list[dict]:
    """One dict for each candidate of a run; what was not measured is None."""
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
    """n, mean, low and high of its 95 % interval (Student's t), over the values that are there; None for too few.

    Above ten degrees of freedom the interval is as wide as with ten, hence not too narrow.
    """
    there = [value for value in values if value is not None]
    n, mean = len(there), float(np.mean(there)) if there else None
    if n < 2:
        return {"n": n, "mean": mean, "low": None, "high": None}
    half = STUDENT[min(n - 1, len(STUDENT)) - 1] * float(np.std(there, ddof=1)) / n**0.5
    return {"n": n, "mean": mean, "low": mean - half, "high": mean + half}


def summary(rows: Sequence[Mapping]) -> list[dict]:
    """By model, controller and candidate: `runs`, `verdicts` (verdict → runs), `mean_interval` of each of FIGURES."""
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
    """One dict for each model, controller and stage: `mean_interval` of its seconds."""
    result: dict[tuple, list[float]] = {}
    for run in runs:
        for stage, seconds in run.stage_seconds.items():
            result.setdefault((run.model, run.controller, stage), []).append(seconds)
    return [
        {"model": m, "controller": c, "stage": stage, **mean_interval(values)}
        for (m, c, stage), values in result.items()
    ]


def rule_counts(runs: Sequence[Run]) -> dict[tuple[str, str], float]:
    """(rule, model) → how often a run's shown candidate applies it, the mean over the model's runs."""
    totals: dict[tuple[str, str], int] = {}
    for run in runs:
        for rule, count in run.outcome["candidates"][run.shown]["rules"].items():
            totals[rule, run.model] = totals.get((rule, run.model), 0) + count
    models = [run.model for run in runs]
    return {(rule, model): total / models.count(model) for (rule, model), total in sorted(totals.items())}
