"""The folder of a run: its model, its resolved config, and the results of each stage."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlflow.collect.episodes import Episode, read_episodes
from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash, read_json, remove_abandoned, write_bytes, write_json, write_text
from rlflow.common.messages import ROOT, command, say
from rlflow.common.system import lock, usable_cores
from rlflow.common.task import ONE_SHOT, WITHOUT_WORLD_MODEL, Task, TaskSpec
from rlflow.graph import custom_ops
from rlflow.runs.config import kind_of, load_config, other_groups
from rlflow.runs.effects import given_options, without_effect
from rlflow.tasks import TASKS

PACKAGES = (
    "rlflow", "tensorflow-cpu", "tensorflow", "dm-sonnet", "graph_nets", "numpy", "scipy", "onnx", "onnxruntime",
    "gymnasium", "cma", "numba", "ortools",
)  # fmt: skip
LOCK = ".lock"  # file that the working command of a run holds locked
_WORKING: set[Path] = set()  # the folders in which this process works
STAGES = ("collect", "train-wm", "train-controller", "eval")
# Options that may differ between the runs whose episodes train one world model.
OWN_TO_A_RUN = ("seed", "by_rule", "shapes", "fix")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes:
      path: the folder.
      config: the values of all options.
      source: the file of the problem; for rewriting, the file of the model.
    """

    path: Path
    config: DictConfig
    source: Path

    @classmethod
    def open(
        cls, path: Path | str, model: str | None = None, files=(), overrides=(), shapes: dict | None = None,
        seed: int | None = None, check: Callable[[DictConfig], None] | None = None,
    ) -> "RunFolder":
        """Create the folder, or open an existing one with its stored config and the given changes.

        The given changes are stored when a command begins to work in the folder (`working`). If the folder is new and
        the model or an option is refused, no folder is left.

        Args:
          path: the folder.
          model: a zoo name or a path; needed only for a new folder.
          files: YAML files of options.
          overrides: texts KEY=VALUE.
          shapes: symbol or input → typical sizes.
          seed: the seed of all random choices.
          check: a further check of the config, which raises RLFlowError.

        Raises:
          RLFlowError: an option is wrong, no model is named, or the folder was begun with another model or with other
            options of the task.
        """
        path = Path(path)
        held = path / "config.yaml"
        changes = {"model": model, "seed": seed, "shapes": dict(shapes) if shapes else None}
        changes = {key: value for key, value in changes.items() if value is not None}
        config = load_config(files, overrides, held if held.exists() else None, changes)
        if config.cost.database:  # absolute, so that the run finds the file from any working directory
            config = OmegaConf.merge(config, {"cost": {"database": os.path.abspath(config.cost.database)}})
        if config.cost.threads is None:  # the run stores the number, because its costs depend on it
            config = OmegaConf.merge(config, {"cost": {"threads": usable_cores()}})
        _check_libraries(config.custom_ops)
        if not config.model:
            raise RLFlowError("no model: pass --model with a zoo name or the path of an ONNX file")
        if check is not None:
            check(config)
        for line in without_effect(config, given_options(files, overrides)):
            say(line)
        identity, specs = path / "model.json", TASKS.get(config.task.name)
        if identity.exists():
            config, source = _as_begun(path, read_json(identity), config, model)
            known = {"spec": specs.of(config, source)}
        else:
            with _nothing_left_of(path):
                source = specs.fetch(config.model, config.seed, path)
                config = specs.settled(config, source)
                spec = specs.of(config, source)
                known = {"spec": spec, "task": spec.checked_task()}
                digest, task = file_hash(*specs.files(source)), task_of(config)
                write_json(
                    identity, {"model": config.model, "source": _relative(source, path), "sha256": digest, "task": task}
                )
        run = cls(path, config, source)
        vars(run).update(known)  # The model of a new run is loaded and tried only once.
        return run

    @cached_property
    def spec(self) -> TaskSpec:
        """The specification of the run's task."""
        return TASKS.get(self.config.task.name).of(self.config, self.source)

    @cached_property
    def task(self) -> Task:
        """The run's task, loaded at the first access."""
        return self.spec.make_task()

    def with_options(self, options: Mapping) -> "RunFolder":
        """Return this run with changed options of learning, nested as in a config; its task stays the same."""
        run = RunFolder(self.path, OmegaConf.merge(self.config, options), self.source)
        vars(run).update(spec=self.spec, task=self.task)
        return run

    def random_episodes(self, count: int | None = None) -> tuple[list[Episode], list[Episode]]:
        """Read the episodes of the stage `collect` of this run, and of the runs that the option collect.also names.

        Args:
          count: the number of this run's first episodes to read; None for all.

        Returns:
          (the episodes of this run, the episodes of all these runs). The order of the second list depends only on the
          set of runs, so each of these runs gets the same list.

        Raises:
          RLFlowError: one of the runs has no episodes, or was begun with other options of the task.
        """
        self.require("collect")
        own = read_episodes(self.path / "episodes", count or self.config.collect.episodes)
        mine, result = read_json(self.path / "model.json"), {}
        result[mine["sha256"], repr(mine["task"])] = own
        for other in map(Path, self.config.collect.also):
            if not (other / "collect.json").exists():
                raise RLFlowError(f"collect.also: {other} has no finished 'collect'")
            try:
                identity, episodes = read_json(other / "model.json"), read_json(other / "collect.json")["episodes"]
                key, task = (identity["sha256"], repr(identity["task"])), identity["task"]
                different = [
                    name for name in task if name not in OWN_TO_A_RUN and task[name] != mine["task"][name]
                ]
            except (KeyError, TypeError) as error:
                raise RLFlowError(f"collect.also: {other} is damaged: {error!r} is missing") from error
            if different:
                raise RLFlowError(f"collect.also: {other} was begun with other options ('{different[0]}' differs)")
            result[key] = read_episodes(other / "episodes", episodes)
        return own, [episode for key in sorted(result) for episode in result[key]]

    def begin_iterations(self) -> Path:
        """Return iterations/HASH, the folder for the files of `train-wm` in iterations, and store options.json in it.

        HASH is the hash of the options on which these files depend, so iterations with other options begin anew, and
        the files of earlier ones stay as they are.
        """
        options = iteration_options(self.config)
        folder = self.path / "iterations" / sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
        write_json(folder / "options.json", options)
        return folder

    def stage(self, name: str, work: Callable[[], dict]) -> dict:
        """Run a stage and store its results.

        Args:
          name: the name of the stage.
          work: a function that runs the stage and returns its results.

        Returns:
          The stored results with the entries `stage` and `seconds`, the duration without earlier interrupted attempts.
        """
        started = time.monotonic()
        with self.working():
            results = work()
            results = {"stage": name, **results, "seconds": time.monotonic() - started}
            write_json(self.path / f"{name}.json", results)
        return results

    @contextmanager
    def working(self, is_new: bool = False) -> Iterator[None]:
        """Store the config of this run and lock the folder during the `with` block.

        If the block raises an error, the config that was stored before comes back. After a kill or an interruption
        the new config stays, so that the command can be continued. An inner block, such as a stage of `optimise`,
        changes nothing.

        Args:
          is_new: True to remove the folder after an error if it holds no results.

        Raises:
          RLFlowError: another command works in the folder.
        """
        held, folder = self.path / "config.yaml", self.path.resolve()
        if folder in _WORKING:
            yield
            return
        with open(self.path / LOCK, "ab") as file:
            if not _is_free(file):
                raise RLFlowError(
                    f"another command works in {self.path}; wait until it ends, or name another folder with --run"
                )
            before = held.read_bytes() if held.exists() else None
            remove_abandoned(self.path)
            write_text(held, OmegaConf.to_yaml(self.config))
            write_json(self.path / "versions.json", versions())
            _WORKING.add(folder)
            try:
                yield
            except Exception:
                if before is not None:
                    write_bytes(held, before)
                elif is_new and _has_no_results(self.path, self.source.name):
                    shutil.rmtree(self.path, ignore_errors=True)
                raise
            finally:
                _WORKING.remove(folder)

    def results(self, stage: str) -> dict | None:
        """Return the stored results of a stage; None if the stage has not finished."""
        file = self.path / f"{stage}.json"
        return read_json(file) if file.exists() else None

    def require(self, stage: str) -> dict:
        """Return the stored results of a stage. Raise RLFlowError if the stage has not finished."""
        result = self.results(stage)
        if result is None:
            first = command(stage, "--run", self.path)
            raise RLFlowError(f"{self.path} has no finished '{stage}'; run `{first}` first")
        return result


def _is_free(file) -> bool:
    """Lock an open file, and return False if another process has locked it."""
    try:
        return lock(file, wait=False)
    except OSError:  # a file system without locks
        return True


def _has_no_results(path: Path, source: str) -> bool:
    """Return True if a run folder holds only the files with which a run begins.

    Args:
      path: the run folder.
      source: the name of the file of the problem, which may have further files with this name as a prefix.
    """
    begun = ("config.yaml", "model.json", "versions.json", LOCK)
    others = [file for file in path.iterdir() if file.name not in begun and not file.name.startswith(source)]
    return all(file.name == "tensorboard" and [page.name for page in file.iterdir()] == ["about"] for file in others)


@contextmanager
def _nothing_left_of(path: Path) -> Iterator[None]:
    """Remove a folder that the `with` block has created if the block raises an exception."""
    was_there = path.exists()
    try:
        yield
    except BaseException:
        if not was_there:
            shutil.rmtree(path, ignore_errors=True)
        raise


def task_of(config: DictConfig) -> dict:
    """Return the settings that a run's episodes depend on, such as its seed and its rules.

    A run folder can only be opened with equal settings.
    """
    depends = TASKS.get(config.task.name).depends_on(config)
    return {"task": config.task.name, "seed": config.seed, "by_rule": config.collect.by_rule, **depends}


def stages_of(config: DictConfig) -> tuple[str, ...]:
    """Return the names of the stages of a run, in order.

    The stages `collect` and `train-wm` are missing for one-shot tasks and for controllers that need no world
    model. `collect` is missing for a world model that plays its own episodes online.
    """
    seen = kind_of("controller", config.controller.name).observes
    if seen in WITHOUT_WORLD_MODEL or TASKS.get(config.task.name).shape == ONE_SHOT:
        return STAGES[2:]
    return STAGES[1:] if config.world_model.mode == "online" else STAGES


def iterations_of(config: DictConfig) -> int:
    """Return the number of iterations in which the world model of a run learns (`iterations.count`)."""
    if config.iterations.count is not None:
        return config.iterations.count
    if config.controller.train_on != "dream" or config.world_model.mode != "offline":
        return 1
    return kind_of("controller", config.controller.name).iterations


def iteration_options(config: DictConfig) -> dict:
    """Return the options that the results of `train-wm --iterations` depend on, besides the settings of `task_of`.

    Returns:
      Dotted name of an option → its value.
    """
    chosen = OmegaConf.to_container(config)
    options = {f"{group}.{key}": v for group in ("iterations", "dream") for key, v in chosen[group].items()}
    options |= {f"collect.{key}": chosen["collect"][key] for key in ("episodes", "also")}
    for group in ("world_model", "controller"):
        section = chosen[group]
        options |= {
            f"{group}.{key}": v
            for key, v in section.items()
            if not isinstance(v, dict) and key not in ("threads", "checkpoint_seconds", "tag")
        }
        options |= {f"{group}.{section['name']}.{key}": v for key, v in section[section["name"]].items()}
        for other in other_groups(group, section["name"]):
            options |= {f"{other}.{key}": v for key, v in OmegaConf.select(config, other).items()}
    return options


def _as_begun(path: Path, identity: dict, config: DictConfig, model: str | None) -> tuple[DictConfig, Path]:
    """Return the config and the model's file of a run that was begun.

    Args:
      path: the run folder.
      identity: the content of its model.json.
      config: the config, which gets the settled options if the first command was stopped before it stored them.
      model: the zoo name or path that the arguments of the present command name, or None.

    Raises:
      RLFlowError: the model or the settings of `task_of` differ, or model.json is damaged.
    """
    try:
        source, wanted, begun = path / identity["source"], identity["sha256"], identity["task"]
        named = config.model if model is None else model
        if (model is not None or named != identity["model"]) and not _is_named(named, identity, source):
            raise RLFlowError(
                f"{path} belongs to the model '{identity['model']}'; use another --run for '{named}'"
            )
        config = OmegaConf.merge(config, {"model": identity["model"]})
        if not (path / "config.yaml").exists() and begun["task"] == config.task.name:
            config = TASKS.get(config.task.name).settled(config, source, begun)
        for key, value in task_of(config).items():
            if begun[key] != value:
                raise RLFlowError(f"{path} was begun with other options ('{key}' differs); use another --run")
    except (KeyError, TypeError) as error:
        raise RLFlowError(f"{path / 'model.json'} is damaged: {error!r} is missing") from error
    if not source.is_file():
        raise RLFlowError(f"the model of {path} is gone: {source}. Restore this file, or use another --run")
    if file_hash(*TASKS.get(config.task.name).files(source)) != wanted:
        raise RLFlowError(f"{source} has changed since {path} was begun; use another --run")
    return config, source


def _is_named(model: str, identity: dict, source: Path) -> bool:
    """Return True if a zoo name or path names the model of a run: the same file, whatever its path is called.

    Args:
      model: the name or path, relative to the working directory.
      identity: the content of the run's model.json.
      source: the file of the run's model.
    """
    if not Path(identity["source"]).is_absolute():  # the run wrote the file of a zoo model, or a text
        return model == identity["model"]
    if not source.is_file():  # the message that the file is gone comes later
        return model == identity["model"] or os.path.abspath(model) == str(source)
    return Path(model).is_file() and Path(model).samefile(source)


def _check_libraries(named: Sequence[str]) -> None:
    """Raise RLFlowError if a config names a library of custom operators that this command was not told to load.

    A library is native code, and the config may come from someone else.

    Args:
      named: the option `custom_ops`.
    """
    if missing := [library for library in named if str(Path(library).absolute()) not in custom_ops.loaded()]:
        raise RLFlowError(
            f"the options name the library {missing[0]}, which is native code. If you trust it, pass it to each "
            f"command: --custom-ops {missing[0]}"
        )


def _relative(source: Path, folder: Path) -> str:
    return source.name if source.parent == folder else os.path.abspath(source)


@cache
def versions() -> dict[str, str]:
    """Return the version of Python and of each installed package in PACKAGES, and the git commit of a checkout.

    A process keeps the first answer, because it runs the code that it imported.
    """
    result = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            continue
    result["git_commit"] = _git_commit()
    return result


def _git_commit() -> str:
    if not (ROOT / ".git").exists():  # an installed package: a repository around it is another project
        return "unknown"

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        commit, dirty = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + (" with changes" if dirty else "")
