"""One training of a world model, and one of a controller; stages and iterations are made of them."""

from pathlib import Path

from controllers.real_env import ChargedEnv, Measurements, train_for_real
from rlflow.cli.curves import draw_fidelity
from rlflow.cli.wiring import as_seen, check_single_moves, events, make_controller, sees_candidates, zoo_or_path
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import bar_updater, progress_bar
from rlflow.env.step import InTurn
from worldmodel.base import UnpredictableRewardError
from worldmodel.dream import DreamVectorEnv
from worldmodel.train_and_load import train
from worldmodel.world_model_options import world_model_config


def learn_world_model(run, source, folder: Path, name: str = "train-wm") -> dict:
    """What the training reports.

    source: episodes, or online a stream of them (see `worldmodel.train_and_load.train`).  name: of its events.
    """
    check_single_moves(run)
    config = world_model_config(run.config.world_model)
    with progress_bar(config.total_steps, "train-wm", "step") as bar, events(run, name, "train-wm") as writer:
        try:
            results = train(config, run.task.encoding_spec, source, folder, run.config.seed, writer.scalars, bar)
        except UnpredictableRewardError as error:
            raise RLFlowError(f"env.reward={run.config.env.reward}: {error}") from error
    if results["fidelity"]:
        draw_fidelity(run, results["fidelity"])
    return results


def learn_to_act(run, model, temperature: float, folder: Path, name: str) -> tuple:
    """(the controller that learnt in the model's dreams, or on the real graph; what its training reports).

    model: None where it sees candidates.  folder: where its checkpoint lies.  name: of its events.
    """
    options = run.config.controller

    def make_dream(n):
        return DreamVectorEnv(model, run.task.initial, n, **dream_options(run, temperature))

    measurements = Measurements(folder / "measurements.json", options.measurement_seconds)

    def make_real():
        own, *others = [run.spec.make_env(task, run.spec.max_steps) for task in (run.task, *other_tasks)]
        charged = [ChargedEnv(own, measurements), *(ChargedEnv(env, measurements, own=False) for env in others)]
        seen = [as_seen(run, env, model) for env in charged]
        return InTurn(seen) if others else seen[0]

    def log(step, scalars):
        writer.scalars(step, scalars | ({"measurement_seconds": measurements.seconds} if measurements.seconds else {}))

    controller = make_controller(run, model)
    also = controller.config.also if sees_candidates(run) else ()
    other_tasks = [run.spec.open(zoo_or_path(name)) for name in also]
    with (
        progress_bar(1, f"train-controller τ={temperature:g}", "iteration") as bar,
        events(run, name, "train-controller") as writer,
    ):
        common = run.config.seed, folder, log, bar_updater(bar)
        if options.train_on == "real":
            results = train_for_real(controller, make_real, options.interactions, *common)
            return controller, results | {"measurement_seconds": measurements.seconds, "measured": measurements.best}
        return controller, controller.train(make_dream, *common)


def dream_options(run, temperature: float) -> dict:
    """How the dreams of this run end and pay: arguments of `worldmodel.dream`."""
    options = run.config.dream
    return {
        "max_steps": options.max_steps, "temperature": temperature, "uncertainty_limit": options.uncertainty_limit,
        "uncertainty_penalty": options.uncertainty_penalty,
    }  # fmt: skip
