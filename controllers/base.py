"""The interface of a controller, and the checkpoint that all controllers share.

A controller receives a batch of B latent observations as a dict of NumPy arrays:

    z       float32 [B, Z]      the latent vector into which the world model encodes the graph
    h       float32 [B, H]      the recurrent state of the world model
    counts  int32   [B, N + 1]  number of locations (matches) of each of the N rules; the valid locations of a rule
                                are 0 to count - 1. The last entry is for NO-OP: 1, or 0 in a task without NO-OP
    class_counts
            int32   [B, K]      number of matches of each match class (worldmodel/base.py). The locations of a
                                rule are ordered by match class
    step    int32   [B]         number of steps since the reset

The controller returns actions int64 [B, 2]: (xfer_id, location). A controller keeps no state between two calls,
because `h` and `step` hold everything that it has to remember of an episode.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from controllers.controller_options import LearnerConfig
from rlflow.common import files
from rlflow.common.errors import RLFlowError
from rlflow.common.task import Observes
from worldmodel.trainer import Log, Trainer

MakeEnv = Callable[[int], VectorEnv]  # n -> n copies of the environment
Progress = Callable[[int, int], None]  # (iterations done, iterations in all)


class StopReason(StrEnum):
    """The reasons why a training can end."""

    BUDGET = "budget"  # the configured number of iterations was played
    CONVERGED = "converged"  # the search has met a stopping criterion; `detail` names the criterion
    DIVERGED = "diverged"  # the gradients are not finite; the best controller before that is kept
    NOTHING_TO_TRAIN = "nothing to train"


def derive_seed(*keys: int) -> int:
    """Return a seed below 2³¹ that depends on the keys alone, e.g. on (seed, iteration)."""
    return int(np.random.SeedSequence(keys).generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class LatentShapes:
    """The sizes of latent observations and actions; a checkpoint fits only a controller with equal sizes."""

    z: int
    h: int
    n_xfer_ids: int  # N + 1: the rules and NO-OP
    locations: int  # L, the largest number of locations of a rule
    n_match_classes: int  # K
    stop: bool  # the task has a NO-OP action
    table: str  # digest of the rule and the median reward of each match class

    @classmethod
    def of(cls, observation_space: gym.spaces.Dict, action_space: gym.spaces.MultiDiscrete) -> "LatentShapes":
        """Return the sizes of a latent environment from its spaces.

        Args:
          observation_space: Dict with the keys z, h, counts and class_counts (see the module docstring).
          action_space: MultiDiscrete([N + 1, L]).

        Raises:
          RLFlowError: a key is missing, or the shapes of the spaces do not agree.
        """
        try:
            (z,), (h,) = observation_space["z"].shape, observation_space["h"].shape
            counts, class_counts = observation_space["counts"], observation_space["class_counts"]
            (n_match_classes,) = class_counts.shape
            n_xfer_ids, locations = action_space.nvec.tolist()
            table = class_counts.match_classes, class_counts.usual_rewards
            stop = bool(counts.low[-1])
            agree = counts.shape == (n_xfer_ids,) and all(column.shape == (n_match_classes,) for column in table)
        except (KeyError, TypeError, ValueError, AttributeError):
            agree = False
        if not agree:
            raise RLFlowError(
                "a controller needs the observation Dict(z [Z], h [H], counts [N+1], class_counts [K] with their "
                "match_classes and usual_rewards) and "
                f"the action MultiDiscrete([N+1, L]); got {observation_space} and {action_space}"
            )
        digest = hashlib.sha256(b"".join(column.tobytes() for column in table)).hexdigest()
        return cls(z, h, n_xfer_ids, locations, n_match_classes, stop, digest[:16])


def check_observes(controller: type, wanted: Observes, shape: str) -> None:
    """Check that a controller accepts the observations of the task.

    Args:
      controller: the controller's class.
      wanted: the kind of observation that the task provides.
      shape: the shape of the task for the error message, "step by step" or "one-shot".

    Raises:
      RLFlowError: the controller needs another kind of observation.
    """
    observes = controller.Config.observes
    if observes != wanted:
        raise RLFlowError(
            f"the controller '{controller.name}' observes {observes}, and a task that is {shape} shows "
            f"{wanted}; choose another controller.name"
        )


class Learner:
    """The base class of all controllers. It stores options and learned arrays, and resumes trainings from checkpoints.

    A subclass sets `name` and `Config` and implements the methods that raise NotImplementedError.

    Attributes:
      config: the options, an instance of `Config`.
      sizes: {name: value} of all sizes that the shapes of the learned arrays depend on.
      seed: the seed of the initial weights and of `rng`.
      training_seed: the seed of the training; None before a training.
      world_model: the digest of the world model that encodes the observations (`worldmodel.base.WorldModel.digest`);
        None without a world model. A training in another world model is not resumed; it begins anew.
    """

    name: str  # as registered in controllers/__init__.py
    Config: type[LearnerConfig]  # the dataclass of its options
    acting_steps = 0  # number of rewrites that `act` itself has tried, besides the steps of the environment
    BUDGET: tuple[str, ...] = ()  # options that may change when a training resumes

    def __init__(self, config, sizes: dict[str, int | str], seed: int = 0):
        self.config, self.sizes, self.seed = config, sizes, seed
        self.rng = np.random.default_rng(seed)  # used by `act` if the caller passes no generator
        self.training_seed: int | None = None
        self.world_model: str | None = None

    def players(self) -> list["Learner"]:
        """Return the controllers that take turns in playing evaluation episodes; by default only this controller."""
        return [self]

    def without_prior(self) -> "Learner | None":
        """Return an untrained controller of this kind that does not know the median rewards of match classes.

        The result is None if the initial policy of this kind does not depend on these rewards.
        """
        return None

    def first_checkpoint(self) -> int:
        """Return the number of environment steps that a training needs until its first checkpoint with trained weights.

        `controllers.real_env.train_for_real` refuses a smaller budget of steps. The steps of all parallel environments
        are summed; steps of evaluations are left out. 0 means that every checkpoint counts as trained.
        """
        return 0

    def results(self, stop_reason: StopReason, detail: str) -> dict:
        """Return the results of a training, as `Controller.train` describes them.

        The attributes `best_return`, `iterations` and `env_steps` of this controller give the other results.

        Args:
          stop_reason: the reason why the training ended.
          detail: a text that explains the reason.
        """
        return {
            "stop_reason": stop_reason, "detail": detail, "best_return": self.best_return,
            "iterations": self.iterations, "env_steps": self.env_steps,
        }  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the learned arrays, and all counters and statistics that a resumed training needs, by name."""
        raise NotImplementedError("arrays() -> {name: array}")

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Set the state of this controller from the result of `arrays`. Raise RLFlowError if a shape differs."""
        raise NotImplementedError("restore({name: array}) -> None")

    def save(self, folder: Path | str) -> None:
        """Write controller.npz (the arrays), then controller.json.

        controller.json contains the name, the shapes, the options, the seed of the training and the digest of the world
        model. It comes last, so a folder with this file holds a complete checkpoint.
        """
        files.write_arrays(Path(folder) / "controller.npz", self.arrays())
        description = {
            "controller": self.name,
            "shapes": self.sizes,
            "config": asdict(self.config),
            "training_seed": self.training_seed,
            "world_model": self.world_model,
        }
        files.write_json(Path(folder) / "controller.json", description)

    def load(self, folder: Path | str) -> None:
        """Restore this controller from a checkpoint. Raise RLFlowError if the name or the shapes there differ."""
        self.restore(self.saved(folder))
        self.training_seed = read_description(folder)["training_seed"]

    def saved(self, folder: Path | str) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint. Raise RLFlowError if its controller has another name or other shapes."""
        description = read_description(folder)
        if description.get("controller") != self.name:
            raise RLFlowError(f"{folder} holds the controller '{description.get('controller')}', not '{self.name}'")
        if description["shapes"] != self.sizes:
            raise RLFlowError(
                f"the controller in {folder} is of another shape: {differences(description['shapes'], self.sizes)}"
            )
        return files.read_arrays(Path(folder) / "controller.npz")

    def is_outdated(self, folder: Path | str) -> bool:
        """Return True if the folder holds a checkpoint of a training in another world model.

        The result is False for a controller without a world model, and for a folder without a checkpoint.
        """
        if self.world_model is None or not (Path(folder) / "controller.json").exists():
            return False
        description = read_description(folder)
        if "world_model" not in description:  # written by RLFlow 0.2
            return description["controller"] == self.name and description["shapes"] != self.sizes
        return description["world_model"] != self.world_model

    def has_checkpoint(self, folder: Path | str) -> bool:
        """Return True if the folder holds a checkpoint from which the training of this controller can go on."""
        return (Path(folder) / "controller.json").exists() and not self.is_outdated(folder)

    def resume(self, folder: Path | str, seed: int) -> None:
        """Restore the checkpoint in a folder, if there is one, and set `training_seed`.

        A checkpoint of a training in another world model is left as it is; the new training replaces it.

        Args:
          folder: the folder of the checkpoint; it may be empty or missing.
          seed: the seed of the training.

        Raises:
          RLFlowError: the checkpoint belongs to another controller, or to a training with another seed or other
            options. The options in `BUDGET` may differ.
        """
        if self.has_checkpoint(folder):
            description = read_description(folder)
            before = {**description.get("config", {}), "seed": description.get("training_seed")}
            now = {**json.loads(json.dumps(asdict(self.config))), "seed": seed}  # tuples become lists, as in the file
            before |= {key: now[key] for key in self.BUDGET}
            if description.get("controller") == self.name and before != now:
                raise RLFlowError(other_options(folder, before, now))
            self.load(folder)
        self.training_seed = seed

    def trainer(
        self, folder: Path | str, seed: int, total: int, log: Log | None = None, progress: Progress | None = None,
        every: int = 1,
    ) -> Trainer:  # fmt: skip
        """Return a trainer that resumes the training in the folder, if there is one.

        The position of a training is the number of iterations (or steps) that it has completed.

        Args:
          folder: the folder of the checkpoint.
          seed: the seed of the training.
          total: the position at which the training is complete; it is only passed to `progress`.
          log: called as log(environment steps so far, {name: scalar}) after every update.
          progress: called as progress(position, total) after every update.
          every: a checkpoint is written when the position passes a multiple of this number.
        """
        report = None if progress is None else lambda done, _: progress(done, total)
        return Trainer(_Saved(self, folder, seed), every=every, log=log, progress=report)


class _Saved:
    """An adapter through which a `Trainer` reads and writes the checkpoint of a learner.

    The trainer's own record is not stored, because the learner's arrays contain all counters.
    """

    def __init__(self, learner: Learner, folder: Path | str, seed: int):
        self.learner, self.folder, self.seed = learner, folder, seed

    def read(self) -> dict:
        self.learner.resume(self.folder, self.seed)
        return {}

    def write(self, record: dict) -> None:
        self.learner.save(self.folder)


class Controller(Learner):
    """The base class of controllers that act step by step on latent observations."""

    def __init__(self, config, observation_space, action_space, seed: int = 0):
        self.shapes = LatentShapes.of(observation_space, action_space)
        super().__init__(config, asdict(self.shapes), seed)
        counted = observation_space["class_counts"]
        self.match_classes, self.usual_rewards = counted.match_classes, counted.usual_rewards  # [K] each
        self.spaces = observation_space, action_space

    def act(self, observation, greedy: bool = True, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return one action for each row of a batch.

        Args:
          observation: the dict of arrays that the docstring of controllers/base.py describes.
          greedy: True to take the most probable action, False to sample an action.
          rng: the generator to sample with, by default the controller's own.

        Returns:
          int64 [B, 2], (xfer_id, location).
        """
        raise NotImplementedError("act(observation, greedy=True, rng=None) -> int64 [B, 2] (xfer_id, location)")

    def imitate_first(self, observations: Mapping[str, np.ndarray], actions: np.ndarray, returned: float) -> None:
        """Imitate an episode in the coming training, until a better one is sampled; by default do nothing.

        Args:
          observations: the observations of T states, as in `act`; the last action is NO-OP.
          actions: int64 [T, 2], the actions that were taken there.
          returned: the return of the episode.
        """

    def train(
        self, make_env: MakeEnv, seed: int, folder: Path, log: Log | None = None, progress: Progress | None = None
    ) -> dict:
        """Train on copies of an environment; resume if the folder holds a checkpoint.

        Afterwards `act` uses the best policy that the training found, and the folder holds that policy.

        Args:
          make_env: a function from n to a vector environment with n copies of the environment.
          seed: the seed of all randomness of the training.
          folder: the folder of the checkpoint.
          log: called as log(environment steps so far, {name: scalar}).
          progress: called as progress(iterations done, total number of iterations).

        Returns:
          A dict with "stop_reason" (StopReason), "detail" (str, explains the reason), "best_return" (mean return of the
          best policy), "iterations" (number of updates or generations) and "env_steps" (number of steps of all
          environments, evaluations included).
        """
        raise NotImplementedError("train(make_env, seed, folder, log=None, progress=None) -> dict of results")

    def open(self, make_env: MakeEnv, n: int) -> VectorEnv:
        """Create a vector environment, check that it fits this controller, and return it.

        Args:
          make_env: a function from n to a vector environment with n copies of the environment.
          n: the number of copies.

        Raises:
          RLFlowError: the spaces of the environment have other sizes than `shapes`, the number of copies is not n, or
            the autoreset mode is not SAME_STEP.
        """
        env = make_env(n)
        shapes = LatentShapes.of(env.single_observation_space, env.single_action_space)
        if shapes != self.shapes:
            raise RLFlowError(f"the environment is not the controller's: {differences(asdict(shapes), self.sizes)}")
        if env.num_envs != n or env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise RLFlowError(f"make_env({n}) must give {n} copies with metadata autoreset_mode SAME_STEP")
        return env

    def batch(self, observation: Mapping[str, np.ndarray], counted: str = "counts") -> list[np.ndarray]:
        """Return the arrays z, h and one array of counts from an observation, with checked shapes and fixed dtypes.

        Args:
          observation: the dict of arrays that the docstring of controllers/base.py describes.
          counted: the key of the counts, "counts" (by rule) or "class_counts" (by match class).

        Returns:
          [z float32 [B, Z], h float32 [B, H], counts int32 [B, N + 1] or class_counts int32 [B, K]].

        Raises:
          RLFlowError: an array has no batch axis or another shape, or "counts" has a wrong entry for NO-OP.
        """
        s = self.shapes
        size = {"counts": s.n_xfer_ids, "class_counts": s.n_match_classes}[counted]
        expected = {"z": (np.float32, (s.z,)), "h": (np.float32, (s.h,)), counted: (np.int32, (size,))}
        arrays = [np.asarray(observation[key], dtype) for key, (dtype, _) in expected.items()]
        for (key, (_, shape)), array in zip(expected.items(), arrays, strict=True):
            if array.shape[1:] != shape or len(array) != len(arrays[0]):
                raise RLFlowError(f"act takes batched observations: {key} of shape (B, *{shape}), got {array.shape}")
        if (np.asarray(observation["counts"])[:, -1] != s.stop).any():
            raise RLFlowError(f"counts must give NO-OP, the last rule, {int(s.stop)} locations")
        return arrays


def read_description(folder: Path | str) -> dict:
    """Return the content of controller.json.

    The keys are "controller" (name), "shapes", "config", "training_seed" and "world_model" (digest or None). A file of
    RLFlow 0.2 has no "world_model".

    Raises:
      RLFlowError: the file is missing or damaged.
    """
    description = files.read_json(Path(folder) / "controller.json")
    kinds = {"controller": str, "shapes": dict, "config": dict, "training_seed": int | None}
    if not isinstance(description, dict) or not all(
        key in description and isinstance(description[key], kind) for key, kind in kinds.items()
    ):
        raise RLFlowError(f"{folder}/controller.json does not describe a controller")
    return description


def other_options(folder: Path | str, before: Mapping, now: Mapping) -> str:
    """Return the error message for a training whose folder holds a training with other options.

    Args:
      folder: the folder.
      before: name → value of the options of the training in the folder.
      now: name → value of the options of the new training.
    """
    return (
        f"{folder} holds a training with other options ({differences(before, now)}). Use the same ones to go on, or "
        "controller.tag=NAME for another experiment in this run"
    )


def differences(result: Mapping, expected: Mapping) -> str:
    """Describe the entries in which two mappings differ, for example 'z 32, not 64; h 8, not 16'.

    Args:
      result: the actual values.
      expected: the expected values.
    """
    keys = [key for key in {**expected, **result} if result.get(key) != expected.get(key)]
    return "; ".join(f"{key} {result.get(key)}, not {expected.get(key)}" for key in keys)


def same_shapes(result: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check the names and shapes of the arrays of a checkpoint.

    Args:
      result: the arrays of the checkpoint, by name.
      expected: the expected shapes, by name.

    Raises:
      RLFlowError: an array is missing, superfluous or has another shape; the message names it.
    """
    shapes = {key: tuple(array.shape) for key, array in result.items()}
    if shapes != dict(expected):
        raise RLFlowError(f"the checkpoint is of another shape: {differences(shapes, expected)}")
