"""Training, description and loading of a world model of any kind (edits, graph-mdn or mdn-rnn).

    from worldmodel.train_and_load import load
    model = load("runs/mine/world-model")

`worldmodel.WORLD_MODELS` contains the classes, which implement `worldmodel.base.WorldModel`. `worldmodel.TRAININGS`
contains for each class a function `train(config, spec, source, folder, seed, log, progress) -> Trained`, which saves
the trained model in the folder. The file model.json contains the options of the model, with its kind, and its encoding
(`EncodingSpec`: the sizes of the task's observations and actions).

This module does not import TensorFlow, because `edits` does not need it. The functions that load a model check that the
values of a file fit together. They never allocate memory of a size that a file states.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash, read_json, write_json
from rlflow.common.messages import say_once
from rlflow.common.task import EncodingSpec
from worldmodel import TRAININGS, WORLD_MODELS
from worldmodel.base import WorldModel
from worldmodel.trainer import Log
from worldmodel.world_model_options import CONFIGS, WorldModelConfig

FILE = "model.json"


def write_description(folder: Path | str, config: WorldModelConfig, spec: EncodingSpec) -> None:
    """Write model.json, from which `read_description` reads the options and the encoding of a world model.

    Args:
      folder: the folder of the model.
      config: the options, with the name of the kind of world model.
      spec: the sizes of the task's observations and actions.
    """
    write_json(Path(folder) / FILE, {"config": config.to_dict(), "spec": spec.to_dict()})


def read_description(folder: Path | str, spec: EncodingSpec | None = None) -> tuple[WorldModelConfig, EncodingSpec]:
    """Read the options and the encoding of a saved world model from its model.json.

    Args:
      folder: the folder of the model.
      spec: the expected encoding; None accepts any encoding.

    Returns:
      (options, encoding).

    Raises:
      RLFlowError: the file is damaged, or the model's encoding differs from `spec`.
    """
    path = Path(folder) / FILE
    described = read_json(path)
    try:
        saved = EncodingSpec(**described["spec"])
        config = CONFIGS.get(described["config"]["name"])(**described["config"])
    except (KeyError, TypeError) as error:
        raise RLFlowError(f"{path} does not describe a world model: {error}") from error
    if spec is not None:
        _refuse_other_spec(saved, spec, str(folder))
    return config, saved


def _refuse_other_spec(saved: EncodingSpec, wanted: EncodingSpec, source: str) -> None:
    differences = [
        f"{field.name} is {getattr(saved, field.name)}, not {getattr(wanted, field.name)}"
        for field in fields(EncodingSpec) if getattr(saved, field.name) != getattr(wanted, field.name)
    ]
    if differences:
        raise RLFlowError(f"the world model in {source} was made for another encoding: {'; '.join(differences)}")


def checked_array(arrays: dict[str, np.ndarray], name: str, dtype: type, *shape: int | None) -> np.ndarray:
    """Return the array with this name after checking its dtype and shape.

    Args:
      arrays: {name: array}, as read from a file.
      name: the name of the array.
      dtype: the expected dtype.
      shape: the expected size of each axis; None accepts any size of the axis.

    Raises:
      KeyError: no array has this name.
      ValueError: the dtype or the shape differs from the expected one.
    """
    result = arrays[name]
    fits = result.dtype == dtype and result.ndim == len(shape)
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, result.shape, strict=True)):
        raise ValueError(f"'{name}' is an array {list(result.shape)} of {result.dtype}")
    return result


HOLDOUT = 0  # second entry of the random seed [seed, HOLDOUT, 0] that chooses the held-out episodes

MiniBatches = Callable[[int, int], Iterator[Sequence[Episode]]]
Source = Sequence[Episode] | MiniBatches


class Trained(NamedTuple):
    """The result of training a world model.

    Attributes:
      model: the trained model.
      held_out: the episodes that were not used for training; may be empty.
      results: {name: figure}, what the training reports, at least "interactions" (see `train`).
    """

    model: WorldModel
    held_out: list[Episode]
    results: dict


def train(
    config: WorldModelConfig, spec: EncodingSpec, source: Source, folder: Path | str, seed: int,
    log: Log | None = None, progress=None,
) -> dict:
    """Train a world model and save it in a folder. Continue from the folder's checkpoint if there is one.

    Args:
      config: the options, with the kind of the world model.
      spec: the sizes of the task's observations and actions.
      source: offline, the episodes. Online, a function (episodes per mini-batch, first) → iterator of mini-batches from
        number `first` on. Each mini-batch is used for one step, and the mini-batch after the last step is held out.
      folder: the folder for model.json, the learned parameters and the checkpoint.
      seed: the seed of the weights, the held-out episodes and the mini-batches.
      log: called as log(step, {name of a curve: value}) every few steps.
      progress: a tqdm-like bar (`update`, `set_description`, `set_postfix`) of `config.total_steps` steps.

    Returns:
      {"name": kind of the world model, "mode": offline or online, "interactions": real steps used, with held-out steps,
      "seconds": duration of this call, "fidelity": …, "fidelity_by_model": …} and further results of the training.
      "fidelity" is the result of `worldmodel.fidelity.fidelity` on the held-out steps that are not copied, because
      copied steps may also be training data. It is None if there are no such steps. "fidelity_by_model" is the result
      of `worldmodel.fidelity.fidelity_by_model` on the same steps.

    Raises:
      RLFlowError: a loss is not finite, the checkpoint belongs to another training, or the episodes use another version
        of the encoding.
    """
    from worldmodel.fidelity import fidelity, fidelity_by_model

    if not callable(source):
        _refuse_other_version(source, spec)
    started = time.monotonic()
    trained = TRAININGS.get(config.name)(config, spec, source, folder, seed, log, progress)
    judged = [episode for episode in trained.held_out if episode.interactions]  # without episodes of copied steps alone
    return {
        "name": config.name, "mode": config.mode, **trained.results, "seconds": time.monotonic() - started,
        "fidelity": fidelity(trained.model, judged, copies=False) if judged else None,
        "fidelity_by_model": fidelity_by_model(trained.model, judged, copies=False),
    }


def _refuse_other_version(episodes: Sequence[Episode], spec: EncodingSpec) -> None:
    others = sorted({episode.version for episode in episodes} - {spec.version})
    if others:
        raise RLFlowError(
            f"the episodes hold observations of version {others[0]}, not {spec.version}; collect them in a new folder"
        )


def load(folder: Path | str, spec: EncodingSpec | None = None) -> WorldModel:
    """Load the world model that `train` saved in a folder.

    Args:
      folder: the folder of the model.
      spec: the expected encoding; None accepts any encoding.

    Raises:
      RLFlowError: a file is damaged, or the model's encoding differs from `spec`.
    """
    config, _ = read_description(folder, spec)
    model = WORLD_MODELS.get(config.name).load(folder, spec)
    model.digest = file_hash(*(Path(folder) / name for name in model.files))
    return model


def split_episodes(episodes: Sequence[Episode], holdout: float, seed: int) -> tuple[list[Episode], list[Episode]]:
    """Split episodes at random into (training episodes, held-out episodes), each in the given order.

    Args:
      episodes: at least two episodes.
      holdout: the fraction of episodes to hold out. A fraction above 0 holds out at least one episode.
      seed: the seed of the random choice.

    Raises:
      RLFlowError: there are fewer than two episodes.
    """
    if len(episodes) < 2:
        raise RLFlowError(f"a world model cannot be trained on {len(episodes)} episode(s); collect at least 2")
    size = min(len(episodes) - 1, max(1, round(holdout * len(episodes)))) if holdout else 0
    random = np.random.default_rng([seed, HOLDOUT, 0])
    held = set(random.permutation(len(episodes))[:size].tolist())
    return [e for i, e in enumerate(episodes) if i not in held], [episodes[i] for i in sorted(held)]


def training_description(config: WorldModelConfig, spec: EncodingSpec, source: Source, seed: int) -> dict:
    """Describe everything that determines the steps of a training.

    A checkpoint stores this description, and only a training with an equal description can resume it.

    Args:
      config: the options; "checkpoint_seconds" and "threads" are left out.
      spec: the sizes of the task's observations and actions.
      source: see `train`; a hash of actions and rewards stands for the episodes.
      seed: the seed of the training.

    Returns:
      {"configuration": options, "encoding": sizes, "seed": seed, "set of episodes": hash, or "stream" if online}.
    """
    options = {name: value for name, value in config.to_dict().items() if name not in ("checkpoint_seconds", "threads")}
    data = "stream"
    if not callable(source):
        digest = hashlib.blake2b(digest_size=16)
        for episode in source:
            digest.update(episode.actions.tobytes() + episode.rewards.tobytes())
        data = digest.hexdigest()
    return {"configuration": options, "encoding": spec.to_dict(), "seed": seed, "set of episodes": data}


def prepare_tensorflow(seed: int, threads: int = 1) -> None:
    """Make TensorFlow's operators deterministic, and seed the initial weights of the networks that are created next.

    Args:
      seed: the seed of the initial weights.
      threads: number of threads within one operator; 0 leaves the choice to TensorFlow. If TensorFlow already runs in
        this process with another number, a line says that this one has no effect.
    """
    import tensorflow as tf

    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        say_once(f"world_model.threads={threads} has no effect: TensorFlow runs already in this process")
    tf.get_logger().setLevel("ERROR")  # hides false warnings about retraced functions
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(seed)
