"""The runs of a sweep. A folder's name has a hash of the options, and contents of files, that its results depend on.

    DIR/shared/collect-HASH     episodes, for all runs with the same model, seed, options of the task and episode count
    DIR/shared/train-wm-HASH    a world model, for all runs that train it in the same way
    DIR/trials/HASH-seed-N      a controller and its evaluation

Finished runs are found by these names, so they are reused after a kill, in a sweep with more trials, and by other
trials.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from rlflow.common.errors import DIVERGED, RLFlowError
from rlflow.common.files import copy_file, file_hash, read_json, write_text
from rlflow.common.options import dotted
from rlflow.common.processes import run_child
from rlflow.common.system import inherited_lock, locked, wait_for_orphans
from rlflow.optimisation.candidates import improvement, measurement_seconds
from rlflow.runs.config import load_config, other_groups
from rlflow.runs.folder import STAGES, iteration_options, iterations_of, stages_of, task_of
from rlflow.tasks import TASKS

LOG = "log.txt"  # file with the output of the stages
# Files that a run folder does not link from its parent.
OWN = ("config.yaml", "options.yaml", LOG, "lock", "tensorboard")
# Large files that are deleted after a run; `replay` makes them again from eval/receipt.json.
BULKY = ("eval/optimised.onnx", "eval/optimised.onnx.data")
OF_DREAMS = ("dreamt", "real")  # figures that only a run with a world model has
FIGURES = {
    "dreamt": "mean return of the best controller of the training in its dreams",
    "real": "return of its greedy episode on the real graph, over the same number of steps",
    "improvement": "improvement of the (estimated) objective over the original by its best result, in percent",
    "interactions": "steps of the real environment in all stages",
    "measurement_seconds": "seconds of measured rewards in all stages",
    "training_seconds": "seconds of the controller's training",
    "acting_seconds": "seconds of the trained controller on the real graph",
    "seconds": "seconds of all stages, including those shared with other runs",
}


class Run(NamedTuple):
    """One or several stages that run in the same folder.

    Attributes:
      folder: the run folder.
      stages: the names of the stages to run in this folder.
      options: the options of the run, nested as in a config.
      parent: the run that makes the episodes or the world model that this run uses, or None.
    """

    folder: Path
    stages: tuple[str, ...]
    options: dict
    parent: "Run | None"

    @property
    def finished(self) -> bool:
        """True if the results of the last stage are stored."""
        return (self.folder / f"{self.stages[-1]}.json").exists()

    @property
    def chain(self) -> list["Run"]:
        """This run, preceded by the runs whose results it needs, in the order in which they must be executed."""
        return ([] if self.parent is None else self.parent.chain) + [self]


def plan(folder: Path, options: dict) -> Run:
    """Return the run of a trial for one seed. Its `chain` contains the shared runs that it needs.

    Args:
      folder: the folder of the sweep.
      options: the options of the run with its seed, nested as in a config.
    """
    config = load_config(changes=options)
    contents = _contents(config)
    task = {"model": config.model, **task_of(config), **contents}
    learning = iteration_options(config)
    if iterations_of(config) == 1:
        learning = {key: value for key, value in learning.items() if key.startswith(("collect.", "world_model."))}
    shared = {"collect": {"episodes": config.collect.episodes}, "train-wm": learning}  # stage: what it depends on
    run = None
    for stage in [stage for stage in stages_of(config) if stage in shared]:
        run = Run(folder / "shared" / f"{stage}-{_hash({**task, **shared[stage]})}", (stage,), options, run)
    name = f"{_hash(_decisive(config) | contents)}-seed-{config.seed}"
    return Run(folder / "trials" / name, STAGES[-2:], options, run)


def run_stages(run: Run, command: Sequence[str], cwd: str, arguments: Sequence[str] = ()) -> str | None:
    """Run the unfinished stages of a run, each as a command in its own process, and then delete the files in BULKY.

    A lock lets only one sweep at a time work in the folder. If a sweep is killed, its stages end with it. Each stage
    inherits the lock, so the next sweep waits until the stage has ended.

    Args:
      run: the run.
      command: the words that start the program, without the name of the stage.
      cwd: the working directory of the stages.
      arguments: further words for each stage, after its name.

    Returns:
      None, or the error in one line.
    """
    if run.parent is not None and not run.parent.finished:
        return f"its '{run.parent.stages[-1]}' failed: {_last_error(run.parent.folder / LOG)}"
    run.folder.mkdir(parents=True, exist_ok=True)
    with locked(run.folder / "lock") as lock:
        for stage in run.stages:
            options, log = run.folder / "options.yaml", run.folder / LOG
            words = [*command, stage, *arguments, "--run", str(run.folder), "--config", str(options)]
            wait_for_orphans(words)
            if (run.folder / f"{stage}.json").exists():
                continue
            if run.parent is not None:
                _take_over(run.parent.folder, run.folder)
            write_text(options, OmegaConf.to_yaml(OmegaConf.create(run.options)))
            if log.is_symlink():  # Its target may lie outside the folder.
                raise RLFlowError(f"cannot write {log}: it is a symbolic link")
            with open(log, "ab") as output:
                status = run_child(words, output, cwd, **inherited_lock(lock))
            if status and not (run.folder / f"{stage}.json").exists():
                return _error(log, stage, status)
        for name in BULKY:
            (run.folder / name).unlink(missing_ok=True)
    return None


def has_diverged(run: Run, error: str | None) -> bool:
    """Return True if the training of the run's world model or of its controller diverged.

    Args:
      run: the run.
      error: its error, or None if the run is finished.
    """
    if error is not None:
        return DIVERGED in error
    return read_json(run.folder / "train-controller.json").get("ok") is False


def figures(run: Run) -> dict[str, float | None]:
    """Return name in `FIGURES` → value for a finished run.

    The figures in OF_DREAMS are None for a run without a world model.

    Raises:
      RLFlowError: a value is missing in the results of the stages.
    """
    stages = {stage: read_json(path) for stage in STAGES if (path := run.folder / f"{stage}.json").exists()}
    try:
        outcome, controller = stages["eval"], stages["eval"]["candidates"]["controller"]
        (row,) = outcome["experiments"]
        dreams = "train-wm" in stages
        return {
            "dreamt": row["trained_return"] if dreams else None,
            "real": row["real_return"] if dreams else None,
            "improvement": improvement(outcome["original"]["objective"], controller["objective"]),
            "interactions": controller["interactions"],
            "measurement_seconds": measurement_seconds(controller),
            "training_seconds": stages["train-controller"]["seconds"],
            "acting_seconds": controller["seconds"],
            "seconds": sum(stage["seconds"] for stage in stages.values()),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RLFlowError(f"the results in {run.folder} are damaged: {error!r}") from error


def _hash(options: dict) -> str:
    plain = {
        key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value for key, value in options.items()
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def _decisive(config: DictConfig) -> dict:
    """Return all options on which the results of a run depend, except its seed."""
    options = OmegaConf.to_container(config)
    for name in ("seed", "workers", "search", "optimise"):
        options.pop(name, None)
    for group in other_groups("controller", config.controller.name):
        options[group] = OmegaConf.to_container(OmegaConf.select(config, group))
    del options["collect"]["executor"], options["world_model"]["threads"], options["world_model"]["checkpoint_seconds"]
    return options


def _contents(config: DictConfig) -> dict[str, str]:
    """Return "contents of FILE" → hash, for the files that options name, including the external weights of a model.

    The database of timings is left out, because runs write to it.
    """
    result, options = {}, dotted(OmegaConf.to_container(config))
    del options["cost.database"]
    values = (one for value in options.values() for one in (value if isinstance(value, list) else [value]))
    for path in (Path(value) for value in values if isinstance(value, str) and Path(value).is_file()):
        files = TASKS.get(config.task.name).files(path) if str(path) == config.model else [path]
        result[f"contents of {path}"] = file_hash(*files)
    return result


def _take_over(source: Path, target: Path) -> None:
    """Put the files of one run folder into another one, except the files in OWN and files that exist there.

    The files become hard links, or copies if the file system has no links. Links are safe, because the files of a run
    are replaced and never changed (rlflow/common/files.py).
    """
    for file in sorted(source.rglob("*")):
        position = target / file.relative_to(source)
        if file.is_dir() or file.relative_to(source).parts[0] in OWN or file.name.startswith(".") or position.exists():
            continue
        position.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, position)
        except OSError:
            copy_file(file, position)


def _error(log: Path, stage: str, code: int) -> str:
    error = _last_error(log)
    return f"{stage}: {error}" if error and code > 0 else f"{stage}: ended with status {code}; see {log}"


def _last_error(log: Path) -> str:
    """Return the last error in the log of a run; "" without one."""
    said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    lines = [line for line in said if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else ""
