"""The curves and pages of a run folder: TensorBoard events of each stage, and the report about a delivered file.

The functions `draw_…` write a complete curve after a stage and replace the curve of an earlier call. A training logs
its curves while it runs, with the writer that `events` returns. In this module `run` is an open run folder.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from rlflow.common.files import read_json
from rlflow.graph.onnx_runtime import machine
from rlflow.reports.run_comparison import STAGES
from worldmodel.fidelity import PREDICTORS


def draw_fidelity(run, fidelity: Mapping) -> None:
    """Write the curves of the errors of the model and the baselines over the horizon to TensorBoard.

    Args:
      run: the run folder.
      fidelity: a result of `worldmodel.fidelity.fidelity`.
    """
    errors = {"error_by_horizon": "cumulative_reward_relative", "masks_exact_by_horizon": "mask_exact"}
    for predictor in PREDICTORS:
        curves = {}
        for name, error in errors.items():
            figures = [(int(horizon), table[predictor][error]) for horizon, table in fidelity["horizons"].items()]
            curves[name] = [(horizon, figure) for horizon, figure in figures if figure is not None]
        _draw(run, f"fidelity-{predictor.replace('_', '-')}", "train-wm", curves)


def draw_iterations(run, iterations: Sequence[Mapping]) -> None:
    """Write the returns and the world model's errors of the iterations of world model and controller to TensorBoard.

    Args:
      run: the run folder.
      iterations: the entries that trained a controller in the result "iterations" of
        `controllers.iterations.learn_in_iterations`.
    """
    drawn = {"dream": [], "real": []}
    for one in iterations:
        drawn["dream"].append((one["iteration"], one["dreamt_return"]))
        drawn["real"].append((one["iteration"], one["before"]["real"][0]))  # the greedy episode is first
    for name, curve in drawn.items():
        _draw(run, f"iterations-{name}", "iterations", {"return": curve})
    for name in ("before", "after"):
        errors = [(one["iteration"], one[name]["relative_error"]) for one in iterations]
        curve = [(number, error) for number, error in errors if error is not None]
        _draw(run, f"iterations-{name}", "iterations", {"world_model_error": curve})


def draw_dream_and_reality(run, training: str, dreamt: Sequence[float], real: Sequence[float]) -> None:
    """Write the dreamt and the real return of one controller's greedy episode, step by step, to TensorBoard.

    Args:
      run: the run folder.
      training: the name of the controller's folder, such as "ppo-1".
      dreamt: the predicted reward of each step.
      real: the real reward of each step.
    """
    for name, rewards in (("dream", dreamt), ("real", real)):
        returns = np.cumsum([0.0, *rewards]).tolist()
        _draw(run, f"eval-{name}-{training}", "eval", {"return": list(enumerate(returns))})


def _draw(run, folder: str, stage: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    from worldmodel.boards import draw, explain

    explain(run.path / "tensorboard")
    draw(run.path / "tensorboard" / folder, stage, curves)


def events(run, name: str, stage: str, anew: bool = False):
    """Return a `worldmodel.boards.StageWriter` for the curves of a stage in the run folder.

    Args:
      run: the run folder.
      name: the name of the folder of TensorBoard events.
      stage: a key of `worldmodel.boards.BOARDS`.
      anew: True to replace the curves of an earlier call, because all points are written again.
    """
    from worldmodel.boards import StageWriter, explain

    explain(run.path / "tensorboard")
    return StageWriter(run.path / "tensorboard" / name, stage, anew)


def write_up(run, outcome: dict) -> dict[str, str]:
    """Write the curves of the candidates and the report of a run.

    Args:
      run: the run folder.
      outcome: the result of the task's `deliver`.

    Returns:
      {name: text}, the last lines of the command.
    """
    from worldmodel.boards import training_curves

    config, folder = run.config, run.path / "eval"
    for name, result in outcome["candidates"].items():
        if "path_ms" in result:  # the estimated runtime after each rewrite of the candidate's path
            _draw(run, f"eval-{name}", "eval", {"runtime_estimated_ms": list(enumerate(result["path_ms"]))})
    stages = {name: result for name in STAGES if (result := run.results(name))}
    results = {
        "model": config.model, "seed": config.seed, "eval": outcome, "stages": stages, "machine": machine(),
        "versions": read_json(run.path / "versions.json"), "curves": training_curves(run.path / "tensorboard"),
    }  # fmt: skip
    return run.spec.report(run.task, results, folder)


def pages(run, outcome: dict) -> dict[str, object]:
    """Write the curves and the report as `write_up` does, unless the cost of the task is unknown.

    Args:
      run: the run folder.
      outcome: the result of the task's `deliver`.

    Returns:
      {name: text}, the last lines of the command.
    """
    if run.task.cost_is_known:
        return write_up(run, outcome)
    return {"result": f"No gain: {outcome['reason']}; the original is returned."}  # there is nothing to draw
