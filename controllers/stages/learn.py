"""The stages of learning on a run folder: collect, train-wm, train-controller, then `eval` (acting.py).

A stage that was stopped or killed continues where it stopped. `learn` runs all stages that the run needs.
`learn_world_model` and `learn_to_act` perform one training each. `RunIterations` implements the steps of learning in
iterations (controllers/iterations.py); iterations/HASH/K/ in the run folder holds the results of iteration K. The
functions `*_lines` return the lines that a command prints after a stage.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from controllers.base import StopReason
from controllers.iterations import learn_in_iterations
from controllers.real_env import ChargedEnv, Measurements, train_for_real
from controllers.recording import Player, demonstrate, play_iteration
from controllers.stages import one_shot
from controllers.stages.acting import evaluate
from controllers.stages.experiments import begin_in_dream, store_training
from controllers.stages.parts import (
    as_seen,
    check_has_rewrites,
    check_single_moves,
    check_temperatures,
    controller_folder,
    controller_seed,
    controllers_environment,
    dream_options,
    experiment_name,
    iteration_episodes,
    load_world_model,
    make_controller,
    needs_no_world_model,
    world_model_of,
)
from rlflow.collect import rollouts
from rlflow.collect.episodes import Episode, read_episodes
from rlflow.common.errors import RLFlowError
from rlflow.common.files import copy_file, read_json, write_text
from rlflow.common.messages import bar_updater, counted, progress_bar, say
from rlflow.common.task import ONE_SHOT
from rlflow.env.step import MultiModelEnv
from rlflow.runs.folder import iterations_of, stages_of
from worldmodel.base import UnpredictableRewardError
from worldmodel.dream import DreamVectorEnv
from worldmodel.fidelity import model_key
from worldmodel.fidelity_report import sentence, training_page, worst_model
from worldmodel.run_pages import draw_fidelity, draw_iterations, events
from worldmodel.train_and_load import train
from worldmodel.trainer import Diverged
from worldmodel.world_model_options import world_model_config

FIDELITY_TABLE = "train-wm.md"  # in a run folder, beside train-wm.json
LEAST_STEPS = 10  # mean number of real steps of an iteration's episodes, below which their number ends the iteration


def collect_lines(run, results: Mapping) -> dict[str, object]:
    played = f"{counted(results['episodes'], 'random episode')}, {results['interactions']} interactions"
    text = f"{played}, {results['new_interactions']} of them new"
    if results["measurement_seconds"]:
        text += f"; {results['measurement_seconds']:.1f} s of measurement"
    return {"result": text, "folder": run.path / "episodes"}


def world_model_lines(run, results: Mapping) -> dict[str, object]:
    fidelity, folder = results["fidelity"], run.path / "world-model"
    lines = {
        "result": f"{run.config.world_model.name} learnt from {results['interactions']} interactions",
        "sure": sentence(fidelity) if fidelity else "no episodes were held out to judge it",
        "folder": folder,
    }
    if results.get("fidelity_by_model"):
        name, worst = worst_model(results["fidelity_by_model"])
        lines["least sure"] = f"{name}: {sentence(worst)}"
    return lines | ({"table": run.path / FIDELITY_TABLE} if fidelity else {})


def controller_lines(run, results: Mapping) -> dict[str, object]:
    name = results["controller"]
    if run.spec.shape == ONE_SHOT:
        (training,) = results["trainings"]
        text = f"{name} is {training['best_return']:.2f} % below the control, after {training['env_steps']} evaluations"
        return {"result": text, "folder": run.path / "controller" / experiment_name(run.config)}
    returns = []
    for training in results["trainings"]:
        ended = f"stopped by {training['stop_reason']}"
        if training["stop_reason"] == StopReason.DIVERGED:
            ended = f"diverged: {training['detail']}"
        returns.append(f"{training['best_return']:.3f} (τ={training['temperature']:g}, {ended})")
    where = "in the dream"
    if run.config.controller.train_on == "real":
        seconds = results["trainings"][0]["measurement_seconds"]
        where = "on the real graph" + (f"; {seconds:.1f} s of measurement" if seconds else "")
    return {
        "result": f"{name} reached a return of {', '.join(returns)} {where}",
        "folder": controller_folder(run, results["trainings"][0]["temperature"]),
    }


LINES = {"collect": collect_lines, "train-wm": world_model_lines, "train-controller": controller_lines}


def learn_world_model(run, source, folder: Path, name: str = "train-wm") -> dict:
    """Train the run's world model and return the results of the training.

    Args:
      run: the run folder.
      source: the episodes or, for online training, a function that streams mini-batches of new episodes (see
        `worldmodel.train_and_load.train`).
      folder: the folder of the checkpoint.
      name: the name of the TensorBoard log.

    Raises:
      RLFlowError: the world model cannot predict the run's reward.
    """
    check_single_moves(run)
    config = world_model_config(run.config.world_model)
    with progress_bar(config.total_steps, "train-wm", "step") as bar, events(run, name, "train-wm") as writer:
        try:
            results = train(config, run.task.encoding_spec, source, folder, run.config.seed, writer.scalars, bar)
        except Diverged as error:
            writer.scalars(error.step, {"diverged": 1.0})
            raise
        except UnpredictableRewardError as error:
            raise RLFlowError(f"env.reward={run.config.env.reward}: {error}") from error
    names = _model_names(run) if results["fidelity_by_model"] else {}
    results["fidelity_by_model"] = {names.get(key, key): of for key, of in results["fidelity_by_model"].items()}
    if results["fidelity"]:
        draw_fidelity(run, results["fidelity"])
    return results


def _model_names(run) -> dict[str, str]:
    """Return {`model_key` of the episodes: model} for this run and for the runs that collect.also names."""
    names = {}
    for folder in (run.path, *map(Path, run.config.collect.also)):
        for first in read_episodes(folder / "episodes", 1):
            names[model_key(first)] = read_json(folder / "model.json")["model"]
    return names


def learn_to_act(run, model, temperature: float, folder: Path, name: str, known: Sequence[Episode] = ()) -> tuple:
    """Train a controller in the dreams of a world model, or on the real graph.

    Args:
      run: the run folder.
      model: the world model, or None for a controller that needs none.
      temperature: the temperature τ of the dreams.
      folder: the folder of the checkpoint.
      name: the name of the TensorBoard log.
      known: episodes on the real graph, the best one of which a controller in a dream may imitate.

    Returns:
      (the controller, the results of its training).
    """
    options = run.config.controller

    def make_dream(n):
        return DreamVectorEnv(model, run.task.initial, n, **dream_options(run, temperature))

    def make_real():
        own, *others = [run.spec.make_env(task, run.spec.max_steps) for task in (run.task, *other_tasks)]
        charged = [ChargedEnv(own, measurements), *(ChargedEnv(env, measurements, own=False) for env in others)]
        seen = [as_seen(run, env, model) for env in charged]
        return MultiModelEnv(seen) if others else seen[0]

    def log(step, scalars):
        writer.scalars(step, scalars | ({"measurement_seconds": measurements.seconds} if measurements.seconds else {}))

    controller = make_controller(run, model)
    is_outdated = controller.is_outdated(folder)
    if is_outdated:
        say(f"the world model has changed since the training of {folder.name}; the controller is trained anew")
        (folder / "measurements.json").unlink(missing_ok=True)
    measurements = Measurements(folder / "measurements.json", options.measurement_seconds)
    also = controller.config.also if needs_no_world_model(run) else ()
    other_tasks = [run.spec.other_task(name) for name in also]
    with (
        progress_bar(1, f"train-controller τ={temperature:g}", "iteration") as bar,
        events(run, name, "train-controller", anew=is_outdated) as writer,
    ):
        common = controller_seed(run.config), folder, log, bar_updater(bar)
        if options.train_on == "real":
            results = train_for_real(controller, make_real, options.interactions, *common)
            results |= {"measurement_seconds": measurements.seconds, "measured": measurements.best}
        else:
            if known:
                demonstrate(controller, known, controllers_environment(run), model)
            results = controller.train(make_dream, *common)
        if results["stop_reason"] == StopReason.DIVERGED:
            log(results["env_steps"], {"diverged": 1.0})
        return controller, results


class RunIterations:
    """The implementation of `controllers.iterations.Steps` on a run folder; `own` are the run's random episodes."""

    def __init__(self, run, own: Sequence[Episode]):
        self.run, self.path, self.done = run, run.begin_iterations(), []
        self.known = list(own)  # all episodes on the graph of this run so far

    def learn(self, number: int, episodes) -> dict:
        """Train the world model; in the last iteration, copy the result to the run's folder `world-model`."""
        folder = self.path / str(number) / "world-model"
        results = learn_world_model(self.run, episodes, folder, f"iteration-{number}-train-wm")
        if number == iterations_of(self.run.config):
            whole = [file for file in folder.iterdir() if not file.name.startswith(".")]  # skips half-written files
            for file in sorted(whole):
                copy_file(file, self.run.path / "world-model" / file.name)
        return results

    def model(self, number: int):
        return load_world_model(self.run, self.path / str(number))

    def dream(self, number: int, model) -> tuple:
        config = self.run.config
        folder, name = self.path / str(number) / "controller", f"iteration-{number}-{config.controller.name}"
        controller, results = learn_to_act(self.run, model, config.dream.temperatures[0], folder, name, self.known)
        return controller, results["best_return"]

    def play(self, number: int, controller, model, interactions: int) -> list:
        config = self.run.config
        player = Player(controller, controllers_environment(self.run), model, make_controller(self.run, model))
        folder, seed = self.path / str(number) / "episodes", (config.seed, number)
        most = max(config.collect.episodes, interactions // LEAST_STEPS)
        with progress_bar(interactions, f"iteration {number}", "interaction") as bar:
            episodes = play_iteration(player, folder, interactions, most, seed, bar)
        self.known += episodes
        return episodes

    def report(self, result: dict) -> None:
        """Print a line on one entry of "iterations" (see `learn_in_iterations`), and redraw the curves of all entries.
        """
        self.done.append(result)
        draw_iterations(self.run, self.done)
        _say_iteration(result)


def _say_iteration(result: dict) -> None:
    before, after = (_percent(result[key]["relative_error"]) for key in ("before", "after"))
    say(
        f"iteration {result['iteration']}: {result['episodes']} episodes of the controller, "
        f"{result['interactions']} interactions; the world model was {before} off about what they gain, now {after}"
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def learn(run, result=None) -> dict:
    """Run all stages that the run needs.

    Args:
      run: the run folder.
      result: the best candidates of earlier searches, or None; see `evaluate`.

    Returns:
      The results of each stage, by the name of the stage.
    """
    stages = {
        "collect": collect, "train-wm": train_world_model, "train-controller": train_controller,
        "eval": partial(evaluate, result=result),
    }  # fmt: skip
    results = {}
    for name in stages_of(run.config):
        results[name] = stages[name](run)
        if name in LINES:
            say(f"{name}: {LINES[name](run, results[name])['result']}")
    return results


def collect(run) -> dict:
    """Run the stage `collect`: play random episodes of the real environment and store them."""
    one_shot.refuse(run, "collect")
    check_has_rewrites(run)
    options = run.config.collect

    def work() -> dict:
        with (
            progress_bar(options.episodes, "collect", "episode") as bar,
            events(run, "collect", "collect", anew=True) as writer,
        ):
            return rollouts.collect(
                run.spec, run.path / "episodes", options.episodes, run.config.workers, run.config.seed, bar,
                writer.scalars, options.executor, options.by_rule,
            )  # fmt: skip

    return run.stage("collect", work)


def train_world_model(run) -> dict:
    """Run the stage `train-wm`: train the world model once, or in several iterations (controllers/iterations.py)."""
    one_shot.refuse(run, "train-wm")
    check_has_rewrites(run)
    spec, config, options = run.spec, run.config, run.config.iterations

    def stream(batch: int, first: int) -> Iterator:
        options = config.collect
        return rollouts.online_batches(
            spec, batch, config.workers, config.seed, first, options.executor, options.by_rule
        )  # fmt: skip

    def work() -> dict:
        if config.world_model.mode == "online":
            episodes, known = stream, {}
        else:
            own, episodes = run.random_episodes()
            known = {"episodes": len(own)}
        if (count := iterations_of(config)) == 1:
            return known | learn_world_model(run, episodes, run.path / "world-model")
        steps = RunIterations(run, own)
        known["folder"] = steps.path.name
        return known | learn_in_iterations(steps, episodes, count, options.interactions, steps.report)

    results = run.stage("train-wm", work)
    if results["fidelity"]:
        write_text(run.path / FIDELITY_TABLE, training_page(results["fidelity"], results["fidelity_by_model"]))
    return results


def _known_episodes(run) -> list[Episode]:
    """Return the stored episodes on the graph of a run that its world model learnt from."""
    if run.config.world_model.mode == "online":
        return []
    return [*run.random_episodes(run.require("train-wm")["episodes"])[0], *iteration_episodes(run)]


def train_controller(run) -> dict:
    """Run the stage `train-controller`.

    The stage trains one controller for each temperature of the dream, or on the real graph if `controller.train_on` is
    "real". In a one-shot task it trains one controller on instances. The trainings of other experiments stay
    (controllers/stages/experiments.py). A controller that was trained in another world model is trained anew.

    Returns:
      {"controller": its name, "trainings": the results of each training, "ok": False if a training diverged}.
    """
    if run.spec.shape == ONE_SHOT:
        return one_shot.train_controller(run)
    check_temperatures(run.config)
    if not run.config.controller[run.config.controller.name].get("also"):  # the other problems may have rewrites
        check_has_rewrites(run)
    config, model = run.config, world_model_of(run)
    known = _known_episodes(run) if config.controller.train_on == "dream" else []

    def work() -> dict:
        trainings = []
        for temperature in config.dream.temperatures:
            folder, started = controller_folder(run, temperature), time.monotonic()
            begin_in_dream(run, model, folder)
            _, results = learn_to_act(run, model, temperature, folder, folder.name, known)
            results |= {"temperature": temperature, "seconds": time.monotonic() - started}
            trainings.append(store_training(run, folder, results))
        diverged = any(training["stop_reason"] == StopReason.DIVERGED for training in trainings)
        ended = {"ok": False} if diverged else {}
        return {"controller": config.controller.name, "trainings": trainings, **ended}

    return run.stage("train-controller", work)
