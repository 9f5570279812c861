"""What is said of a stage before `eval`: the lines of its ending, of which `optimise --learn` says the first."""

from collections.abc import Mapping

from rlflow.cli.command import counted
from rlflow.cli.wiring import controller_folder
from rlflow.common.task import ONE_SHOT

FIDELITY_TABLE = "train-wm.md"  # in a run folder, beside train-wm.json


def collect_lines(run, results: Mapping) -> dict[str, object]:
    played = f"{counted(results['episodes'], 'random episode')}, {results['interactions']} interactions"
    text = f"{played}, {results['new_interactions']} of them new"
    if results["measurement_seconds"]:
        text += f"; {results['measurement_seconds']:.1f} s of measurement"
    return {"result": text, "folder": run.path / "episodes"}


def world_model_lines(run, results: Mapping) -> dict[str, object]:
    from worldmodel.fidelity_report import sentence

    fidelity, folder = results["fidelity"], run.path / "world-model"
    lines = {
        "result": f"{run.config.world_model.name} learnt from {results['interactions']} interactions",
        "sure": sentence(fidelity) if fidelity else "no episodes were held out to judge it",
        "folder": folder,
    }
    return lines | ({"table": run.path / FIDELITY_TABLE} if fidelity else {})


def controller_lines(run, results: Mapping) -> dict[str, object]:
    name = results["controller"]
    if run.spec.shape == ONE_SHOT:
        (training,) = results["trainings"]
        text = f"{name} is {training['best_return']:.2f} % below the control, after {training['env_steps']} evaluations"
        return {"result": text, "folder": run.path / "controller" / name}
    returns = []
    for training in results["trainings"]:
        ended = f"stopped by {training['stop_reason']}"
        returns.append(f"{training['best_return']:.3f} (τ={training['temperature']:g}, {ended})")
    where = "in the dream"
    if run.config.controller.train_on == "real":
        seconds = results["trainings"][0]["measurement_seconds"]
        where = "on the real graph" + (f"; {seconds:.1f} s of measurement" if seconds else "")
    return {
        "result": f"{name} came to a return of {', '.join(returns)} {where}",
        "folder": controller_folder(run, results["trainings"][0]["temperature"]),
    }


LINES = {"collect": collect_lines, "train-wm": world_model_lines, "train-controller": controller_lines}
