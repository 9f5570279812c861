"""Train, describe and load a world model of any kind. This module does not import TensorFlow; not every kind needs it.

    from worldmodel.train_and_load import load
    model = load("runs/mine/world-model")

`worldmodel.WORLD_MODELS` holds the classes, which implement `worldmodel.base.WorldModel`. `worldmodel.TRAININGS` holds
for each a `train(config, spec, source, folder, seed, log, progress) -> Trained`, which saves the trained model in the
folder. model.json holds the kind of the model, its options and its encoding.

A loader checks that the values of a file fit together, and allocates nothing from a length in a file.
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
from rlflow.common.files import read_json, write_json
from rlflow.common.task import EncodingSpec
from worldmodel import TRAININGS, WORLD_MODELS
from worldmodel.base import WorldModel
from worldmodel.trainer import Log
from worldmodel.world_model_options import CONFIGS, WorldModelConfig

FILE = "model.json"


def write_description(folder: Path | str, config: WorldModelConfig, spec: EncodingSpec) -> None:
    write_json(Path(folder) / FILE, {"config": config.to_dict(), "spec": spec.to_dict()})


def read_description(folder: Path | str, spec: EncodingSpec | None = None) -> tuple[WorldModelConfig, EncodingSpec]:
    """Read what `write_description` wrote.

    Args:
      folder: the folder of the model.
      spec: the expected encoding; None accepts any.

    Returns:
      The options and the encoding.

    Raises:
      RLFlowError: the file is damaged, or the model was made for another encoding.
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
    """Return a named array after checking its type and shape.

    Args:
      arrays: {name: array}, as read from a file.
      name: the name of the array.
      dtype: the expected dtype.
      shape: the expected size of each dimension; None accepts any size.

    Raises:
      KeyError: the array is missing.
      ValueError: its dtype or shape differs.
    """
    result = arrays[name]
    fits = result.dtype == dtype and result.ndim == len(shape)
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, result.shape, strict=True)):
        raise ValueError(f"'{name}' is an array {list(result.shape)} of {result.dtype}")
    return result


HOLDOUT = 0  # the stream of random numbers that chooses the held-out episodes

MiniBatches = Callable[[int, int], Iterator[Sequence[Episode]]]
Source = Sequence[Episode] | MiniBatches


class Trained(NamedTuple):
    """The result of a training.

    Attributes:
      model: the trained model.
      held_out: the episodes that were not used for training; may be empty.
      results: figures that the training reports.
    """

    model: WorldModel
    held_out: list[Episode]
    results: dict


def train(
    config: WorldModelConfig, spec: EncodingSpec, source: Source, folder: Path | str, seed: int,
    log: Log | None = None, progress=None,
) -> dict:
    """Train a world model and save it in the folder. Continue from the folder's checkpoint if there is one.

    Args:
      config: the options; they name the world model.
      spec: the sizes of the encoding.
      source: the episodes (offline), or a function (episodes per mini-batch, first) → iterator of mini-batches from
        number `first` on (online). Each mini-batch is used once; the one after the last step is held out.
      folder: receives model.json, the learned parameters and the checkpoint.
      seed: determines the weights, the held-out episodes and the mini-batches.
      log: called as log(step, {name: scalar}) every few steps.
      progress: a tqdm-like bar (`update`, `set_description`, `set_postfix`) of `config.total_steps` steps.

    Returns:
      {"name", "mode", "seconds" (of this call), "fidelity"} and the results of the training, at least "interactions"
      (real steps used, held-out ones included). "fidelity" is the result of `worldmodel.fidelity.fidelity` without
      copied steps, which may be training data; None if no other steps are held out.

    Raises:
      RLFlowError: a loss is not finite, the checkpoint belongs to another run, or the episodes use another version of
        the encoding.
    """
    from worldmodel.fidelity import fidelity

    if not callable(source):
        _refuse_other_version(source, spec)
    started = time.monotonic()
    trained = TRAININGS.get(config.name)(config, spec, source, folder, seed, log, progress)
    judged = [episode for episode in trained.held_out if episode.interactions]  # the rest are only copied steps
    return {
        "name": config.name, "mode": config.mode, **trained.results, "seconds": time.monotonic() - started,
        "fidelity": fidelity(trained.model, judged, copies=False) if judged else None,
    }


def _refuse_other_version(episodes: Sequence[Episode], spec: EncodingSpec) -> None:
    others = sorted({episode.version for episode in episodes} - {spec.version})
    if others:
        raise RLFlowError(
            f"the episodes hold observations of version {others[0]}, not {spec.version}; collect them in a new folder"
        )


def load(folder: Path | str, spec: EncodingSpec | None = None) -> WorldModel:
    """Load the model that a training saved in the folder.

    Args:
      folder: the folder of the model.
      spec: the expected encoding; None accepts any.

    Raises:
      RLFlowError: a file is damaged, or the model was made for another encoding.
    """
    config, _ = read_description(folder, spec)
    return WORLD_MODELS.get(config.name).load(folder, spec)


def split_episodes(episodes: Sequence[Episode], holdout: float, seed: int) -> tuple[list[Episode], list[Episode]]:
    """Split episodes at random into (training, held-out), each in the given order.

    Args:
      episodes: at least two.
      holdout: the fraction to hold out; above 0 at least one episode is held out.
      seed: determines the choice.

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
    """Return everything that the steps of a training depend on, by name.

    A checkpoint is resumed only by a training with an equal description.
    """
    options = {name: value for name, value in config.to_dict().items() if name not in ("checkpoint_seconds", "threads")}
    data = "stream"
    if not callable(source):
        digest = hashlib.blake2b(digest_size=16)
        for episode in source:
            digest.update(episode.actions.tobytes() + episode.rewards.tobytes())
        data = digest.hexdigest()
    return {"configuration": options, "encoding": spec.to_dict(), "seed": seed, "set of episodes": data}


def prepare_tensorflow(seed: int, threads: int = 0) -> None:
    """Make TensorFlow deterministic, and seed the weights that are created next.

    Args:
      seed: the seed.
      threads: threads within one operator; 0 leaves the choice to TensorFlow.

    Raises:
      RLFlowError: TensorFlow already runs with another number of threads.
    """
    import tensorflow as tf

    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise RLFlowError(
            "world_model.threads cannot change after TensorFlow has run in this process. Start a new process"
        ) from error
    tf.get_logger().setLevel("ERROR")  # hides false warnings about retraced functions
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(seed)
