"""The parts that a stage is built from: checked names, the world model, controllers and environments of a run folder.

Heavy packages are imported inside the functions, so that `check_names` and the small commands do not wait for them.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rlflow.common.errors import RLFlowError


def check_names(config) -> None:
    """Refuses what names nothing before anything is done with it. Imports no TensorFlow."""
    from controllers import CONTROLLERS
    from controllers.controller_options import CONFIGS as CONTROLLER_CONFIGS
    from controllers.controller_options import controller_config
    from rlflow.collect.executors import EXECUTORS
    from rlflow.costs import COSTS
    from rlflow.env.rewards import REWARDS
    from rlflow.rules.language import load_rules
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
    check_installed(f"the world model '{config.world_model.name}'", world_model_config(config.world_model).needs)
    kind = CONTROLLER_CONFIGS.get(config.controller.name)
    check_installed(f"the controller '{config.controller.name}'", kind.needs)
    if config.optimise.learn:
        controller_config(config)  # a wrong option is reported before anything is searched
    if config.iterations.count > 1 and config.world_model.mode == "online":
        raise RLFlowError("iterations need episodes on disk: world_model.mode=offline")
    if config.iterations.count > 1 and config.controller.train_on == "real":
        raise RLFlowError("in iterations controllers learn in the dream: controller.train_on=dream")


def check_installed(who: str, needs: Sequence[str]) -> None:
    """Raises RLFlowError if one of the modules of the extra `learn` that somebody needs is not there."""
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise RLFlowError(f"{who} needs {missing[0]}, which is not installed: pip install 'rlflow[learn]'")


def check_single_moves(run) -> None:
    """Raises RLFlowError if an action of the run is several rewrites: dreams and controllers choose single ones."""
    if run.config.env.moves != "single":
        raise RLFlowError(
            f"env.moves={run.config.env.moves} is for random play in the real environment; "
            "dreams and controllers choose single rewrites: env.moves=single"
        )


def load_world_model(run, folder: Path | None = None):
    """The one in the folder, by default that of the run."""
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
    """The real environment, in episodes as long as a controller's may be."""
    return run.spec.make_env(run.task, run.config.controller.max_steps)


def sees_candidates(run) -> bool:
    """Whether the run's controller sees the graph and all candidates, and so needs no world model. Raises RLFlowError
    if it is to learn in the dream, which has none.
    """
    from controllers.controller_options import CONFIGS
    from rlflow.common.task import Observes

    options = run.config.controller
    sees = CONFIGS.get(options.name).observes == Observes.CANDIDATES
    if sees and options.train_on != "real":
        raise RLFlowError(
            f"the controller '{options.name}' observes candidates, which only the real graph has: "
            "controller.train_on=real"
        )
    return sees


def as_seen(run, env, model):
    """A real environment as the run's controller sees it. model: None where it sees candidates."""
    from controllers.controller_options import controller_config
    from worldmodel.latent_env import LatentEnv

    if model is not None:
        return LatentEnv(env, model)
    return with_candidates(env, controller_config(run.config))


def with_candidates(env, config):
    """A real environment as a controller with these options sees it that sees candidates."""
    from rlflow.env.candidates import CandidateEnv

    return CandidateEnv(env, config.layers if config.encoding == "local" else None, config.gains)


def make_controller(run, model):
    """An untrained one, for the spaces of the world model. model: None where it sees candidates."""
    from controllers import CONTROLLERS
    from controllers.base import check_observes
    from controllers.controller_options import controller_config
    from rlflow.common.task import Observes
    from worldmodel import spaces
    from worldmodel.train_and_load import prepare_tensorflow

    kind = CONTROLLERS.get(run.config.controller.name)
    check_observes(kind, Observes.CANDIDATES if model is None else Observes.LATENT, "step by step")
    config = controller_config(run.config)
    if "tensorflow" in config.needs:
        prepare_tensorflow(run.config.seed, run.config.world_model.threads)
    if model is None:
        return kind(config, run.config.seed)
    return kind(config, spaces.observation_space(model), spaces.action_space(model.spec), run.config.seed)


def controller_folder(run, temperature: float) -> Path:
    """Where the controller lies that learnt at this temperature (or on the real graph)."""
    options = run.config.controller
    where = "real" if options.train_on == "real" else format(temperature, "g")
    return run.path / "controller" / f"{options.name}-{where}"


def trained_controller(run, model, temperature: float):
    """The one in its folder."""
    controller = make_controller(run, model)
    controller.load(controller_folder(run, temperature))
    return controller


def controller_from(folder: Path | str, seed: int):
    """A trained controller that sees candidates, and so acts on any model. Raises RLFlowError for any other."""
    from controllers import CONTROLLERS
    from controllers.base import read_description
    from rlflow.common.task import Observes

    description = read_description(folder)
    kind = CONTROLLERS.get(description["controller"])
    if kind.Config.observes != Observes.CANDIDATES:
        raise RLFlowError(f"the controller in {folder} observes {kind.Config.observes}, which is of one model alone")
    check_installed(f"the controller '{kind.name}'", kind.Config.needs)
    try:
        controller = kind(kind.Config(**description["config"]), seed)
    except TypeError as error:
        raise RLFlowError(f"{folder}/controller.json is damaged: {error}") from error
    controller.load(folder)
    return controller


def world_model_of(run):
    """What the run's controller sees the graph through; None if it sees candidates."""
    if sees_candidates(run):
        return None
    run.require("train-wm")
    return load_world_model(run)


def dream_options(run, temperature: float) -> dict:
    """How the dreams of this run end and pay: arguments of `worldmodel.dream`."""
    options = run.config.dream
    return {
        "max_steps": options.max_steps, "temperature": temperature, "uncertainty_limit": options.uncertainty_limit,
        "uncertainty_penalty": options.uncertainty_penalty,
    }  # fmt: skip
