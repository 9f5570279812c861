"""The experiments of a run: several controllers that share its episodes and its world model.

An experiment is a controller with its options, its seed and a tag. It trains once for each temperature of the dream, or
once on the real graph. Each training has a folder controller/EXPERIMENT-TEMPERATURE with its checkpoint. The file
training.json is added when the training ends. It contains the results and the options that determine them:

    {"experiment": "ppo-3-slow", "temperature": 1.0, "world_model": DIGEST, "options": {"controller": …, "dream": …}, …}

The stage `eval` plays the controllers of all these files. A training in dreams also has dream.json from its beginning,
with the options of the dream, so that it never goes on in another one.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from controllers.base import other_options
from controllers.stages.parts import (
    controller_seed,
    experiment_name,
    make_controller,
    needs_no_world_model,
    world_model_of,
)
from rlflow.common.errors import RLFlowError, nearest
from rlflow.common.files import read_json, write_json
from rlflow.common.messages import command, say
from rlflow.common.options import dotted, setting
from rlflow.common.task import ONE_SHOT
from rlflow.runs.config import load_config, other_groups
from rlflow.runs.folder import RunFolder

FILE = "training.json"  # in the folder of a finished training
DREAM = "dream.json"  # in the folder of a training in dreams, from its beginning


class Training(NamedTuple):
    """A finished training.

    Attributes:
      run: the run folder with the options of the training.
      folder: the folder of the checkpoint.
      results: the content of training.json.
    """

    run: RunFolder
    folder: Path
    results: dict

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def experiment(self) -> str:
        return self.results["experiment"]

    @property
    def temperature(self) -> float:
        return self.results["temperature"]

    @property
    def needs_no_world_model(self) -> bool:
        return needs_no_world_model(self.run)

    @property
    def environment(self) -> str:
        """A name that is equal for controllers that can act in the same environment object.

        The observations of a controller without a world model depend on its options, so it has an environment of its
        own. All other controllers share the environment with the name "".
        """
        return self.name if self.needs_no_world_model else ""

    @property
    def is_on_real_graph(self) -> bool:
        return self.run.config.controller.train_on == "real"

    def controller(self, model):
        """Load the trained controller.

        Args:
          model: the world model of the run, or None for a controller that needs none.
        """
        controller = make_controller(self.run, model)
        controller.load(self.folder)
        return controller


def training_options(config) -> dict:
    """Return the options that determine a training besides its temperature, nested as in a config."""
    chosen = OmegaConf.to_container(config)
    name = chosen["controller"]["name"]
    own = {key: value for key, value in chosen["controller"].items() if key == name or not isinstance(value, dict)}
    del own["max_steps"]  # This option limits episodes after the training, not the training itself.
    options = {"controller": own | {"seed": controller_seed(config)}, "dream": chosen["dream"]}
    del options["dream"]["temperatures"]
    for group in other_groups("controller", name):
        section, _, key = group.partition(".")
        options.setdefault(section, {})[key] = chosen[section][key]
    return options


def begin_in_dream(run, model, folder: Path) -> None:
    """Store the options of the dream in which a training begins, or check that it goes on in the same dream.

    The controller itself compares its own options (`controllers.base.Learner.resume`).

    Args:
      run: the run folder.
      model: its world model, or None. A training in another world model begins anew.
      folder: the folder of the training.

    Raises:
      RLFlowError: the folder has a checkpoint of a training in the same world model with other options of the dream.
    """
    if run.config.controller.train_on == "real":
        return
    file, now = folder / DREAM, {"world_model": model.digest, "dream": training_options(run.config)["dream"]}
    if file.exists() and (folder / "controller.json").exists():
        before = read_json(file)
        if before != now and before["world_model"] == now["world_model"]:
            raise RLFlowError(other_options(folder, dotted(before), dotted(now)))
    write_json(file, now)


def store_training(run, folder: Path, results: Mapping) -> dict:
    """Write training.json after a training and return the entry of the training in train-controller.json.

    Args:
      run: the run folder.
      folder: the folder of the checkpoint.
      results: the results of the training, with its temperature.
    """
    described = read_json(folder / "controller.json")
    entry = {"experiment": experiment_name(run.config), **results}
    options = training_options(run.config)
    write_json(folder / FILE, {**entry, "world_model": described["world_model"], "options": options})
    return entry


def finished_trainings(run, only: Sequence[str] = ()) -> list[Training]:
    """Return the finished trainings of a run, in the order of their names.

    Args:
      run: the run folder.
      only: names of experiments; () for all of them.

    Raises:
      RLFlowError: there is no finished training, an experiment is unknown, or a file is damaged.
    """
    run.require("train-controller")
    trainings = [_read(run, file) for file in sorted((run.path / "controller").glob(f"*/{FILE}"))]
    if not trainings:
        first = command("train-controller", "--run", run.path)
        raise RLFlowError(f"{run.path} has no finished controller; run `{first}` first")
    names = list(dict.fromkeys(training.experiment for training in trainings))
    for name in only:
        if name not in names:
            raise RLFlowError(
                f"{run.path} has no finished experiment '{name}'{nearest(name, names)}; finished: {', '.join(names)}"
            )
    if not only and (chosen := experiment_name(run.config)) not in names:
        say(f"note: the training of {chosen} has not finished; evaluated are {', '.join(names)}")
    return [training for training in trainings if not only or training.experiment in only]


def playable_trainings(run, only: Sequence[str] = ()) -> tuple[list[Training], object | None]:
    """Return the finished trainings in the present world model of a run, and this world model.

    Trainings in an earlier world model are left out, and one line about each says how it is trained anew.

    Args:
      run: the run folder of a step-by-step task.
      only: names of experiments; () for all of them.

    Returns:
      (the trainings, the world model, or None if no controller needs a world model).

    Raises:
      RLFlowError: there is no finished training, or an experiment in `only` is unknown or outdated.
    """
    trainings = finished_trainings(run, only)
    latent = [training for training in trainings if not training.needs_no_world_model]
    if not latent:
        return trainings, None
    model = world_model_of(latent[0].run)
    outdated = [training for training in latent if training.results["world_model"] != model.digest]
    for training in outdated:
        again = command("train-controller", "--run", run.path, *_changed_settings(run, training))
        line = f"the controller {training.name} was trained in another world model; train it anew with `{again}`"
        if only:
            raise RLFlowError(line)
        say(f"left out: {line}")
    return [training for training in trainings if training not in outdated], model


def _changed_settings(run, training: Training) -> list[str]:
    """Return the options of a training that differ from the options of its run, as KEY=VALUE."""
    own = OmegaConf.to_container(run.config)
    own["controller"]["seed"] = controller_seed(run.config)
    changed = list(_differing(training.results["options"], own))
    if not training.is_on_real_graph and training.temperature not in own["dream"]["temperatures"]:
        changed.append(setting("dream.temperatures", [training.temperature]))
    return changed


def _differing(options: Mapping, others: Mapping, prefix: str = "") -> Iterator[str]:
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _differing(value, others[key], f"{prefix}{key}.")
        elif value != others[key]:
            yield setting(f"{prefix}{key}", value)


def _read(run, file: Path) -> Training:
    results = read_json(file)
    try:
        load_config(changes=results["options"])  # checks names and values
        found = Training(run.with_options(results["options"]), file.parent, results)
        numbers = [results[key] for key in ("best_return", "env_steps", "seconds")]
        if run.spec.shape != ONE_SHOT:
            numbers += [found.temperature, found.run.config.dream.max_steps, results["world_model"] is None]
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError(f"one of {numbers} is no number")
        if not isinstance(found.experiment, str):
            raise TypeError(f"the experiment is {found.experiment!r}")
    except (KeyError, TypeError, ValueError, RLFlowError) as error:
        raise RLFlowError(f"{file} is damaged: {error}") from error
    return found
