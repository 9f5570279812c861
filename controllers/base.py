"""The interface of a controller, and the checkpoint that all of them share.

A controller sees batched latent observations, a dict of NumPy arrays

    z       float32 [B, Z]      the latent of the graph
    h       float32 [B, H]      the recurrent state of the world model
    counts  int32   [B, N + 1]  locations per rule, of which those below the count are valid; 0: the rule is not
                                valid now. The last entry is NO-OP: 1, or 0 in a task without it
    class_counts
            int32   [B, K]      the same by match class (worldmodel/base.py); a rule's locations are ordered by it
    step    int32   [B]         how many steps the episode has had

and answers with int64 [B, 2]: (xfer_id, location). The memory is in `h` and `step`, so a controller has no
state of its own between two calls.
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
    BUDGET = "budget"  # the configured number of iterations was played
    CONVERGED = "converged"  # the search can no longer move; `detail` says which criterion
    DIVERGED = "diverged"  # the loss stopped being finite; the best controller before that is kept
    NOTHING_TO_TRAIN = "nothing to train"


def derive_seed(*keys: int) -> int:
    """A seed below 2³¹ that is a function of the keys, e.g. of (seed, iteration)."""
    return int(np.random.SeedSequence(keys).generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class LatentShapes:
    """The sizes that a controller depends on."""

    z: int
    h: int
    n_xfer_ids: int  # N + 1, with NO-OP
    locations: int  # L
    n_match_classes: int  # K
    stop: bool  # whether there is a NO-OP
    table: str  # a digest of each match class's rule and usual reward

    @classmethod
    def of(cls, observation_space: gym.spaces.Dict, action_space: gym.spaces.MultiDiscrete) -> "LatentShapes":
        """Raises RLFlowError if the spaces are not the latent ones."""
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
    """Raises RLFlowError if a controller is shown something else than what a task of this shape shows."""
    observes = controller.Config.observes
    if observes != wanted:
        raise RLFlowError(
            f"the controller '{controller.name}' observes {observes}, and a task that is {shape} shows "
            f"{wanted}; choose another controller.name"
        )


class Learner:
    """What all controllers are: something with options that learns, and whose training goes on after a kill.

    A subclass states `name` and `Config` and fills the methods that raise NotImplementedError. `shapes` is a dataclass
    of the sizes that it depends on.
    """

    name: str  # as registered in controllers/__init__.py
    Config: type[LearnerConfig]  # its dataclass of options
    BUDGET: tuple[str, ...] = ()  # the options that a resumed training may change

    def __init__(self, config, shapes, seed: int = 0):
        self.config, self.shapes, self.seed = config, shapes, seed
        self.rng = np.random.default_rng(seed)  # what `act` draws from when it is given no other
        self.training_seed: int | None = None

    def players(self) -> list["Learner"]:
        """Who plays when it acts on a real graph, each in turn."""
        return [self]

    def first_checkpoint(self) -> int:
        """Steps of all copies, evaluations left out, before which nothing that was learnt is kept."""
        return 0

    def arrays(self) -> dict[str, np.ndarray]:
        """All that was learnt, and all that is needed to go on learning bit for bit."""
        raise NotImplementedError("arrays() -> {name: array}")

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes what `arrays` gave. Raises RLFlowError if a shape does not fit."""
        raise NotImplementedError("restore({name: array}) -> None")

    def save(self, folder: Path | str) -> None:
        """Writes controller.npz and then controller.json, so that the JSON is there only if all of it is."""
        files.write_arrays(Path(folder) / "controller.npz", self.arrays())
        description = {
            "controller": self.name,
            "shapes": asdict(self.shapes),
            "config": asdict(self.config),
            "training_seed": self.training_seed,
        }
        files.write_json(Path(folder) / "controller.json", description)

    def load(self, folder: Path | str) -> None:
        """Takes over a saved controller. Raises RLFlowError if it is of another controller or shape."""
        self.restore(self.saved(folder))
        self.training_seed = read_description(folder)["training_seed"]

    def saved(self, folder: Path | str) -> dict[str, np.ndarray]:
        """The arrays of a saved controller. Raises RLFlowError if it is of another controller or shape."""
        description = read_description(folder)
        if description.get("controller") != self.name:
            raise RLFlowError(f"{folder} holds the controller '{description.get('controller')}', not '{self.name}'")
        if description["shapes"] != asdict(self.shapes):
            raise RLFlowError(
                f"the controller in {folder} is of another shape: "
                f"{differences(description['shapes'], asdict(self.shapes))}"
            )
        return files.read_arrays(Path(folder) / "controller.npz")

    def resume(self, folder: Path | str, seed: int) -> None:
        """Goes on with the training that `folder` holds, if any; refuses one of another config or seed."""
        if (Path(folder) / "controller.json").exists():
            description = read_description(folder)
            before = {**description.get("config", {}), "seed": description.get("training_seed")}
            now = {**json.loads(json.dumps(asdict(self.config))), "seed": seed}  # lists, as they were written
            before |= {key: now[key] for key in self.BUDGET}
            if description.get("controller") == self.name and before != now:
                raise RLFlowError(
                    f"{folder} holds a training with other options ({differences(before, now)}); "
                    "use the same ones to go on, or an empty folder"
                )
            self.load(folder)
        self.training_seed = seed

    def trainer(
        self, folder: Path | str, seed: int, total: int, log: Log | None = None, progress: Progress | None = None,
        every: int = 1,
    ) -> Trainer:  # fmt: skip
        """Return the trainer of a training in the folder, which goes on with the one that the folder holds.

        total: the position that `progress` is told as the end. every: positions between two checkpoints.
        """
        report = None if progress is None else lambda done, _: progress(done, total)
        return Trainer(_Saved(self, folder, seed), every=every, log=log, progress=report)


class _Saved:
    """The folder of a learner as the checkpoint of its trainer. Its counters are among its arrays."""

    def __init__(self, learner: Learner, folder: Path | str, seed: int):
        self.learner, self.folder, self.seed = learner, folder, seed

    def read(self) -> dict:
        self.learner.resume(self.folder, self.seed)
        return {}

    def write(self, record: dict) -> None:
        self.learner.save(self.folder)


class Controller(Learner):
    """Who acts step by step, by the latent observation."""

    def __init__(self, config, observation_space, action_space, seed: int = 0):
        super().__init__(config, LatentShapes.of(observation_space, action_space), seed)
        counted = observation_space["class_counts"]
        self.match_classes, self.usual_rewards = counted.match_classes, counted.usual_rewards  # [K] each

    def act(self, observation, greedy: bool = True, rng: np.random.Generator | None = None) -> np.ndarray:
        """The actions, int64 [B, 2]: the most probable ones, or sampled with `rng`."""
        raise NotImplementedError("act(observation, greedy=True, rng=None) -> int64 [B, 2] (xfer_id, location)")

    def train(
        self, make_env: MakeEnv, seed: int, folder: Path, log: Log | None = None, progress: Progress | None = None
    ) -> dict:
        """Trains on copies of an environment until a typed stop, and goes on where `folder` holds a checkpoint.

        Returns {"stop_reason": StopReason, "detail": str, "best_return": float, "iterations": int,
        "env_steps": int}: the mean return of the best controller, the updates or generations, and all steps
        that were played, evaluations included. Afterwards `act` plays the best controller that was seen, and
        `folder` holds it.
        """
        raise NotImplementedError("train(make_env, seed, folder, log=None, progress=None) -> dict of results")

    def open(self, make_env: MakeEnv, n: int) -> VectorEnv:
        """n copies, checked to be of the shapes and of the autoreset mode that training relies on."""
        env = make_env(n)
        shapes = LatentShapes.of(env.single_observation_space, env.single_action_space)
        if shapes != self.shapes:
            raise RLFlowError(
                f"the environment is not the controller's: {differences(asdict(shapes), asdict(self.shapes))}"
            )
        if env.num_envs != n or env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise RLFlowError(f"make_env({n}) must give {n} copies with metadata autoreset_mode SAME_STEP")
        return env

    def batch(self, observation: Mapping[str, np.ndarray], counted: str = "counts") -> list[np.ndarray]:
        """[z, h, counts] in the dtypes stated above, checked to be batched.

        counted: "counts", or "class_counts" for those by match class.
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
    """What is saved of a controller besides its arrays. Raises RLFlowError if it is not there, or damaged."""
    description = files.read_json(Path(folder) / "controller.json")
    keys = {"controller", "shapes", "config", "training_seed"}
    if not isinstance(description, dict) or not keys <= description.keys():
        raise RLFlowError(f"{folder}/controller.json does not describe a controller")
    return description


def differences(result: Mapping, expected: Mapping) -> str:
    """'z 32, not 64; …' for the keys in which two mappings differ."""
    keys = [key for key in {**expected, **result} if result.get(key) != expected.get(key)]
    return "; ".join(f"{key} {result.get(key)}, not {expected.get(key)}" for key in keys)


def same_shapes(result: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises RLFlowError naming the arrays of a checkpoint that are missing, superfluous or of another shape."""
    shapes = {key: tuple(array.shape) for key, array in result.items()}
    if shapes != dict(expected):
        raise RLFlowError(f"the checkpoint is of another shape: {differences(shapes, expected)}")
