"""What stages draw in TensorBoard when they have ended; what learns logs its own curves on its way.

Each curve is drawn whole, instead of the one that an earlier call of the stage drew.
"""

from collections.abc import Mapping, Sequence

import numpy as np


def draw_fidelity(run, fidelity: Mapping) -> None:
    """What `worldmodel.fidelity.fidelity` says by horizon, of the model and of its baselines."""
    from worldmodel.fidelity import PREDICTORS

    errors = {"error_by_horizon": "cumulative_reward_relative", "masks_exact_by_horizon": "mask_exact"}
    for predictor in PREDICTORS:
        curves = {}
        for name, error in errors.items():
            figures = [(int(horizon), table[predictor][error]) for horizon, table in fidelity["horizons"].items()]
            curves[name] = [(horizon, figure) for horizon, figure in figures if figure is not None]
        _draw(run, f"fidelity-{predictor.replace('_', '-')}", "train-wm", curves)


def draw_iterations(run, iterations: Sequence[Mapping]) -> None:
    """Those that had a controller: entries of "iterations" of `controllers.iterations.learn_in_iterations`."""
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
    """The rewards of one controller's greedy episode, dreamt and real."""
    for name, rewards in (("dream", dreamt), ("real", real)):
        returns = np.cumsum([0.0, *rewards]).tolist()
        _draw(run, f"eval-{name}-{temperature:g}", "eval", {"return": list(enumerate(returns))})


def draw_candidates(run, candidates: Mapping[str, Mapping]) -> None:
    """The estimated runtime along the way of each, where the task says it."""
    for name, result in candidates.items():
        if "path_ms" in result:
            _draw(run, f"eval-{name}", "eval", {"runtime_estimated_ms": list(enumerate(result["path_ms"]))})


def _draw(run, folder: str, stage: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    from worldmodel.boards import draw, explain

    explain(run.path / "tensorboard")
    draw(run.path / "tensorboard" / folder, stage, curves)
