"""The curves and pages of a run folder: TensorBoard events of each stage, and the report about a delivery.

A curve is drawn as a whole when its stage has ended, and replaces the curve of an earlier call. Training logs its own
curves while it runs (`events`).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from rlflow.common.files import read_json
from rlflow.graph.onnx_runtime import machine
from rlflow.reports.run_comparison import STAGES
from worldmodel.fidelity import PREDICTORS


def draw_fidelity(run, fidelity: Mapping) -> None:
    """Draw the errors by horizon of the model and its baselines, from the result of `worldmodel.fidelity.fidelity`."""
    errors = {"error_by_horizon": "cumulative_reward_relative", "masks_exact_by_horizon": "mask_exact"}
    for predictor in PREDICTORS:
        curves = {}
        for name, error in errors.items():
            figures = [(int(horizon), table[predictor][error]) for horizon, table in fidelity["horizons"].items()]
            curves[name] = [(horizon, figure) for horizon, figure in figures if figure is not None]
        _draw(run, f"fidelity-{predictor.replace('_', '-')}", "train-wm", curves)


def draw_iterations(run, iterations: Sequence[Mapping]) -> None:
    """Draw the iterations that trained a controller.

    Args:
      run: the run folder.
      iterations: entries of "iterations" in the result of `controllers.iterations.learn_in_iterations`.
    """
    drawn = {"dream": [], "real": []}
    for one in iterations:
        drawn["dream"].append((one["iteration"], one["dreamt_return"]))
        drawn["real"].append((one["iteration"], one["before"]["improvement"]["real"][0]))  # the greedy episode is first
    for name, curve in drawn.items():
        _draw(run, f"iterations-{name}", "iterations", {"return": curve})
    for name in ("before", "after"):
        errors = [(one["iteration"], one[name]["improvement"]["relative_error"]) for one in iterations]
        curve = [(number, error) for number, error in errors if error is not None]
        _draw(run, f"iterations-{name}", "iterations", {"world_model_error": curve})


def draw_dream_and_reality(run, temperature: float, dreamt: Sequence[float], real: Sequence[float]) -> None:
    """Draw the dreamt and real returns of one controller's greedy episode.

    Args:
      run: the run folder.
      temperature: τ of the dream.
      dreamt: rewards per step.
      real: rewards per step.
    """
    for name, rewards in (("dream", dreamt), ("real", real)):
        returns = np.cumsum([0.0, *rewards]).tolist()
        _draw(run, f"eval-{name}-{temperature:g}", "eval", {"return": list(enumerate(returns))})


def draw_candidates(run, candidates: Mapping[str, Mapping]) -> None:
    """Draw the estimated runtime (ms) after each rewrite, for each candidate that has one."""
    for name, result in candidates.items():
        if "path_ms" in result:
            _draw(run, f"eval-{name}", "eval", {"runtime_estimated_ms": list(enumerate(result["path_ms"]))})


def _draw(run, folder: str, stage: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    from worldmodel.boards import draw, explain

    explain(run.path / "tensorboard")
    draw(run.path / "tensorboard" / folder, stage, curves)


def events(run, name: str, stage: str):
    """Return a writer of a stage's curves (`worldmodel.boards`) in the run folder.

    Args:
      run: the run folder.
      name: the folder of TensorBoard events.
      stage: the stage.
    """
    from worldmodel.boards import StageWriter, explain

    explain(run.path / "tensorboard")
    return StageWriter(run.path / "tensorboard" / name, stage)


def write_up(run, outcome: dict) -> dict[str, str]:
    """Write events and pages about a delivery and the earlier stages; return the lines of the command's summary."""
    from worldmodel.boards import training_curves

    config, folder = run.config, run.path / "eval"
    draw_candidates(run, outcome["candidates"])
    stages = {name: result for name in STAGES if (result := run.results(name))}
    results = {
        "model": config.model, "seed": config.seed, "eval": outcome, "stages": stages, "machine": machine(),
        "versions": read_json(run.path / "versions.json"), "curves": training_curves(run.path / "tensorboard"),
    }  # fmt: skip
    return run.spec.report(run.task, results, folder)


def pages(run, outcome: dict) -> dict[str, object]:
    """Write the pages about a delivery if there is a cost; return the lines of the command's summary."""
    if run.task.cost_is_known:
        return write_up(run, outcome)
    return {"result": f"No gain: {outcome['reason']}; the original is returned."}  # there is nothing to draw
