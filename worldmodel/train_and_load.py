"""Train, describe and load a world model of any kind. This module imports no TensorFlow, which not every kind needs.

    from worldmodel.train_and_load import load
    model = load("runs/mine/world-model")

`worldmodel.WORLD_MODELS` holds the classes, with the methods of `worldmodel.base.WorldModel`. `worldmodel.TRAININGS`
holds for each a `train(config, spec, source, folder, seed, log, progress) -> Trained`, which leaves the trained model
in the folder. Its model.json says which kind the model is, its options, and the encoding that it was made for.

The values in a file are believed only if they fit together, and lengths in a file allocate nothing.
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
    """What `write_description` wrote. Raises RLFlowError if it is damaged, or of another spec than the one given."""
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
    """The array of that name; None in the shape: any size. Raises KeyError or ValueError if there is none such."""
    result = arrays[name]
    fits = result.dtype == dtype and result.ndim == len(shape)
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, result.shape, strict=True)):
        raise ValueError(f"'{name}' is an array {list(result.shape)} of {result.dtype}")
    return result


HOLDOUT = 0  # the stream of random numbers that chooses the held-out episodes

MiniBatches = Callable[[int, int], Iterator[Sequence[Episode]]]
Source = Sequence[Episode] | MiniBatches


class Trained(NamedTuple):
    """A finished training: the model, the episodes kept from it (perhaps none), and what its training has to report."""

    model: WorldModel
    held_out: list[Episode]
    results: dict


def train(
    config: WorldModelConfig, spec: EncodingSpec, source: Source, folder: Path | str, seed: int,
    log: Log | None = None, progress=None,
) -> dict:
    """Trains a world model and saves it in the folder; goes on from the checkpoint there, if there is one.

    Args:
      config, spec: the options, which name the world model; the sizes of the encoding.
      source: offline, the episodes. Online, a function (episodes in a mini-batch, first) → iterator over the
        mini-batches from that one on; each is used once, and the one after the last step is the held-out one.
      folder: gets model.json, what was learnt, and the checkpoint.
      seed: decides the weights, the held-out episodes and the mini-batches.
      log: called as log(step, {name: scalar}) every few steps.
      progress: like tqdm (`update`, `set_description`, `set_postfix`), of `config.total_steps` steps.

    Returns:
      {"name", "mode", "seconds" (of this call), "fidelity" (see `worldmodel.fidelity`; without copied
      steps, which may have been learnt from; None if nothing else is held out)}
      and what its training reports: at least "interactions" (real steps used, held-out ones included).

    Raises:
      RLFlowError: a loss is not finite, the folder's checkpoint belongs to another run, or the episodes hold graphs of
        another version of the encoding.
    """
    from worldmodel.fidelity import fidelity

    if not callable(source):
        _refuse_other_version(source, spec)
    started = time.monotonic()
    trained = TRAININGS.get(config.name)(config, spec, source, folder, seed, log, progress)
    judged = [episode for episode in trained.held_out if episode.interactions]  # others hold copied steps alone
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
    """The model that a training left in the folder. Raises RLFlowError if it is damaged or of another spec."""
    config, _ = read_description(folder, spec)
    return WORLD_MODELS.get(config.name).load(folder, spec)


def split_episodes(episodes: Sequence[Episode], holdout: float, seed: int) -> tuple[list[Episode], list[Episode]]:
    """(training, held-out), each in the order given; at least one is held out if holdout > 0."""
    if len(episodes) < 2:
        raise RLFlowError(f"a world model cannot be trained on {len(episodes)} episode(s); collect more")
    size = min(len(episodes) - 1, max(1, round(holdout * len(episodes)))) if holdout else 0
    random = np.random.default_rng([seed, HOLDOUT, 0])
    held = set(random.permutation(len(episodes))[:size].tolist())
    return [e for i, e in enumerate(episodes) if i not in held], [episodes[i] for i in sorted(held)]


def training_description(config: WorldModelConfig, spec: EncodingSpec, source: Source, seed: int) -> dict:
    """Return all that the steps of a training depend on, by name: what a resumed training must have in common with the
    one that wrote the checkpoint."""
    options = {name: value for name, value in config.to_dict().items() if name not in ("checkpoint_seconds", "threads")}
    data = "stream"
    if not callable(source):
        digest = hashlib.blake2b(digest_size=16)
        for episode in source:
            digest.update(episode.actions.tobytes() + episode.rewards.tobytes())
        data = digest.hexdigest()
    return {"configuration": options, "encoding": spec.to_dict(), "seed": seed, "set of episodes": data}


def prepare_tensorflow(seed: int, threads: int = 0) -> None:
    """Makes TensorFlow deterministic, and seeds the weights that are created next."""
    import tensorflow as tf

    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise RLFlowError("threads can only be set before TensorFlow has run anything in this process") from error
    tf.get_logger().setLevel("ERROR")  # it mistakes methods of one name for one function that is traced anew
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(seed)
