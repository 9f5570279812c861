"""Building blocks of the stages: name checks, and the world model, controllers and environments of a run folder.

Functions import heavy packages when they are called, so that `check_names` and short commands start fast.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import command, say


def check_names(config, learns: bool | None = None) -> None:
    """Check all registered names and option combinations of a config, without TensorFlow.

    Args:
      config: the resolved config.
      learns: True if the command is a stage of learning, which needs the packages of the run's world model and
        controller; None if `optimise.learn` decides this.

    Raises:
      RLFlowError: a name is unknown, a Python package is not installed, or two options contradict each other.
    """
    from controllers import CONTROLLERS
    from controllers.controller_options import CONFIGS as CONTROLLER_CONFIGS
    from controllers.controller_options import controller_config
    from rlflow.collect.executors import EXECUTORS
    from rlflow.costs import COSTS
    from rlflow.env.rewards import REWARDS
    from rlflow.rules.language import load_rules
    from rlflow.runs.folder import stages_of
    from rlflow.tasks import TASKS
    from worldmodel import WORLD_MODELS
    from worldmodel.world_model_options import world_model_config

    TASKS.check(config.task.name)
    CONTROLLERS.check(config.controller.name)
    COSTS.check(config.cost.name)
    REWARDS.check(config.env.reward)
    EXECUTORS.check(config.collect.executor)
    WORLD_MODELS.check(config.world_model.name)
    load_rules(list(config.env.rules))
    world_model = world_model_config(config.world_model)
    if config.optimise.learn if learns is None else learns:
        if "train-wm" in stages_of(config):
            check_installed(f"the world model '{config.world_model.name}'", world_model.needs)
        name = config.controller.name
        check_installed(f"the controller '{name}'", CONTROLLER_CONFIGS.get(name).needs)
    tag = config.controller.tag or ""
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,100}", tag):
        raise RLFlowError(f"controller.tag has at most 100 letters, digits, '-', '_' and '.', not '{tag}'")
    if config.optimise.learn:
        controller_config(config)  # reports a wrong option before any search begins
        check_temperatures(config)
    if (config.iterations.count or 1) > 1 and config.world_model.mode == "online":
        raise RLFlowError("iterations need episodes on disk: world_model.mode=offline")
    if (config.iterations.count or 1) > 1 and config.controller.train_on == "real":
        raise RLFlowError("in iterations controllers learn in the dream: controller.train_on=dream")


def check_temperatures(config) -> None:
    """Raise RLFlowError if several controllers would be trained that are equal, since no temperature has an effect."""
    count, name = len(config.dream.temperatures), config.controller.name
    if count == 1:
        return
    if config.controller.train_on == "real":
        raise RLFlowError("the real graph has no temperature: pass a single dream.temperatures, or train_on=dream")
    if name == "planner":
        raise RLFlowError(
            f"the planner follows the most likely outcomes, so {count} dream.temperatures would give equal plans. Pass "
            "one temperature, or controller.name=ppo"
        )


def check_has_rewrites(run) -> None:
    """Raise RLFlowError if no rule applies to the run's model, so that there is nothing to learn."""
    if not run.task.initial.counts.any():
        raise RLFlowError(
            f"nothing to learn: no rewrite applies to {run.config.model}. Use another model or other rules (env.rules)"
        )


def check_installed(who: str, needs: Sequence[str]) -> None:
    """Check that Python packages of the extra `learn` are installed.

    Args:
      who: the component that needs the packages, for the error message.
      needs: the import names of the packages.

    Raises:
      RLFlowError: a package is not installed.
    """
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise RLFlowError(f"{who} needs {missing[0]}, which is not installed: pip install 'rlflow[learn]'")


def check_single_moves(run) -> None:
    """Raise RLFlowError if `env.moves` of the run is not "single", since dreams and controllers choose single rewrites.
    """
    if run.config.env.moves != "single":
        raise RLFlowError(
            f"env.moves={run.config.env.moves} is for random play in the real environment; "
            "dreams and controllers choose single rewrites: env.moves=single"
        )


def load_world_model(run, folder: Path | None = None):
    """Load a trained world model of a run.

    Args:
      run: the run folder.
      folder: the folder that contains the folder `world-model`, by default the run folder itself.

    Raises:
      RLFlowError: the options of the model differ from the options of the run.
    """
    from worldmodel.train_and_load import load, prepare_tensorflow
    from worldmodel.world_model_options import option_key, world_model_config

    check_single_moves(run)
    wanted = world_model_config(run.config.world_model)
    if "tensorflow" in wanted.needs:
        prepare_tensorflow(run.config.seed, wanted.threads)
    model = load((folder or run.path) / "world-model", run.task.encoding_spec)
    for name, value in model.config.to_dict().items():
        if name not in ("checkpoint_seconds", "threads") and getattr(wanted, name) != value:
            key = option_key(model.config, name)
            raise RLFlowError(
                f"the world model in {run.path} was trained with {key}={value}, not {getattr(wanted, name)}; "
                f"say {key}={value}, or use another --run"
            )
    return model


def controllers_environment(run):
    """Return the real environment of a run, with episodes of at most `controller.max_steps` steps."""
    return run.spec.make_env(run.task, run.config.controller.max_steps)


def needs_no_world_model(run) -> bool:
    """Return True if the run's controller observes real states or successor graphs, and thus needs no world model.

    Raises:
      RLFlowError: such a controller is configured to train in the dream, which has neither.
    """
    from controllers.controller_options import CONFIGS
    from rlflow.common.task import WITHOUT_WORLD_MODEL

    options = run.config.controller
    observes = CONFIGS.get(options.name).observes
    if observes in WITHOUT_WORLD_MODEL and options.train_on != "real":
        raise RLFlowError(
            f"the controller '{options.name}' observes {observes}, which only the real graph has: "
            "controller.train_on=real"
        )
    return observes in WITHOUT_WORLD_MODEL


def iteration_episodes(run) -> list:
    """Return the episodes that controllers played on the real graph in the iterations of `train-wm`."""
    from rlflow.collect.episodes import read_episodes

    learnt, result = run.results("train-wm") or {}, []
    for played in learnt.get("iterations", ())[1:]:
        folder = run.path / "iterations" / learnt.get("folder", "") / str(played["iteration"])
        result += read_episodes(folder / "episodes", played["episodes"])
    return result


def as_seen(run, env, model, acts: bool = False):
    """Wrap a real environment so that it returns the observations that the run's controller needs.

    Args:
      run: the run folder.
      env: the real environment.
      model: the world model that encodes observations, or None for a controller that needs none.
      acts: True if a trained controller acts, which then leaves circles (see `worldmodel.latent_env`).
    """
    from controllers.controller_options import controller_config
    from worldmodel.latent_env import LatentEnv

    if model is not None:
        return LatentEnv(env, model, leaves_circles=acts)
    return with_real_observations(env, controller_config(run.config))


def with_real_observations(env, config):
    """Wrap a real environment in the `StateEnv` or `CandidateEnv` that a controller with these options needs.

    Args:
      env: the real environment.
      config: the options of a controller that needs no world model.
    """
    from rlflow.common.task import Observes
    from rlflow.env.candidates import CandidateEnv
    from rlflow.env.states import StateEnv

    if config.observes == Observes.STATES:
        return StateEnv(env)
    return CandidateEnv(env, config.layers if config.encoding == "local" else None, config.gains)


def controller_and_config(run, observes, shape: str) -> tuple:
    """Return the class and the options of the run's controller, and prepare TensorFlow if the controller needs it.

    Args:
      run: the run folder.
      observes: the kind of observation (`rlflow.common.task.Observes`) that the task provides.
      shape: the shape of the task for error messages, "step by step" or "one-shot".

    Raises:
      RLFlowError: the controller needs another kind of observation.
    """
    from controllers import CONTROLLERS
    from controllers.base import check_observes
    from controllers.controller_options import controller_config
    from worldmodel.train_and_load import prepare_tensorflow

    kind = CONTROLLERS.get(run.config.controller.name)
    check_observes(kind, observes, shape)
    config = controller_config(run.config)
    if "tensorflow" in config.needs:
        prepare_tensorflow(controller_seed(run.config), run.config.world_model.threads)
    return kind, config


def make_controller(run, model):
    """Return a new, untrained controller with the options and the seed of the run's experiment.

    Args:
      run: the run folder.
      model: the world model that defines the latent spaces, or None for a controller that needs none.
    """
    from controllers.controller_options import CONFIGS
    from rlflow.common.task import Observes
    from worldmodel import spaces

    observes = Observes.LATENT if model is not None else CONFIGS.get(run.config.controller.name).observes
    kind, config = controller_and_config(run, observes, "step by step")
    seed = controller_seed(run.config)
    if model is None:
        return without_world_model(kind, config, run.task.encoding_spec, seed)
    controller = kind(config, spaces.observation_space(model), spaces.action_space(model.spec), seed)
    controller.world_model = model.digest
    return controller


def controller_seed(config) -> int:
    """Return the seed of the controller's training: `controller.seed`, or by default the seed of the run."""
    return config.seed if config.controller.seed is None else config.controller.seed


def experiment_name(config) -> str:
    """Return the name of the experiment that a config describes.

    The name consists of the controller's name, its seed if this is not the seed of the run, and `controller.tag`.
    """
    name, seed, tag = config.controller.name, controller_seed(config), config.controller.tag
    return "-".join([name, *([str(seed)] if seed != config.seed else []), *([tag] if tag else [])])


def controller_folder(run, temperature: float) -> Path:
    """Return controller/EXPERIMENT-TEMPERATURE in the run folder.

    If `controller.train_on` is "real", the folder is controller/EXPERIMENT-real.
    """
    short = format(temperature, "g")
    exact = short if float(short) == temperature else repr(temperature)
    where = "real" if run.config.controller.train_on == "real" else exact
    return run.path / "controller" / f"{experiment_name(run.config)}-{where}"


def without_world_model(kind, config, spec, seed: int):
    """Return a new controller that needs no world model.

    Args:
      kind: the class of the controller.
      config: its options.
      spec: the `EncodingSpec` of the task; candidates have an encoding of their own.
      seed: the seed of the controller.
    """
    from rlflow.common.task import Observes

    return kind(config, spec, seed) if config.observes == Observes.STATES else kind(config, seed)


def controller_from(folder: Path | str, spec, seed: int):
    """Load a trained controller that needs no world model and therefore acts on any problem of its task.

    Args:
      folder: the folder of the controller.
      spec: the `EncodingSpec` of the task.
      seed: the seed with which the controller samples actions.

    Raises:
      RLFlowError: the controller needs a world model, or the folder is damaged.
    """
    from controllers import CONTROLLERS
    from controllers.base import read_description
    from rlflow.common.task import WITHOUT_WORLD_MODEL

    description = read_description(folder)
    kind = CONTROLLERS.get(description["controller"])
    if kind.Config.observes not in WITHOUT_WORLD_MODEL:
        raise RLFlowError(f"the controller in {folder} observes {kind.Config.observes}, which is of one model alone")
    check_installed(f"the controller '{kind.name}'", kind.Config.needs)
    try:
        controller = without_world_model(kind, kind.Config(**description["config"]), spec, seed)
    except TypeError as error:
        raise RLFlowError(f"{folder}/controller.json is damaged: {error}") from error
    controller.load(folder)
    return controller


def world_model_of(run):
    """Return the run's trained world model, or None if the run's controller needs none."""
    if needs_no_world_model(run):
        return None
    learnt = run.require("train-wm").get("episodes")  # None if the world model plays its own episodes
    collected = (run.results("collect") or {}).get("episodes")
    if learnt and collected and learnt < collected:
        again = command("train-wm", "--run", run.path)
        say(f"the world model learnt from {learnt} episodes, the run has {collected} now; `{again}` learns from all")
    return load_world_model(run)


def dream_options(run, temperature: float) -> dict:
    """Return the keyword arguments of `DreamEnv` and `DreamVectorEnv` that the run's options determine.

    The planner would plan for lucky outcomes, so its dreams have the temperature 0 (`SAMPLING`).
    """
    from worldmodel.world_model_options import SAMPLING

    options, samples = run.config.dream, run.config.controller.name in SAMPLING
    return {
        "max_steps": options.max_steps, "temperature": temperature if samples else 0.0,
        "uncertainty_limit": options.uncertainty_limit, "uncertainty_penalty": options.uncertainty_penalty,
    }  # fmt: skip
