"""The trials of a sweep: proposals of parameters, pruning, and the execution of all runs.

Trials are run in blocks. The parameters of a trial and its pruning depend only on the sweep file and the results of
earlier blocks. A killed sweep is continued by repeating it: the results of finished runs are read from their folders,
and lead to the same parameters of all later trials.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from rlflow.collect.executors import Job, Workers
from rlflow.common.errors import RLFlowError
from rlflow.common.files import copy_file, read_json, write_json
from rlflow.common.messages import progress_bar, say
from rlflow.common.system import usable_cores
from rlflow.runs.sweeps.definition import Sweep
from rlflow.runs.sweeps.runs import Run, figures, has_diverged, plan, run_stages

BEGUN = "begun.json"  # file in the folder of a sweep that has begun
DoAll = Callable[[Sequence[Run]], dict[Path, str | None]]  # executes runs; returns folder → error in one line, or None


@dataclass
class Trial:
    """One combination of values of the parameters, and the results of its runs.

    Attributes:
      number: the position in the sweep, from 0.
      values: parameter → value.
      figures: seed → result of `rlflow.runs.sweeps.runs.figures`, for the finished runs.
      errors: seed → error in one line, for the runs that failed.
      folders: seed → run folder, for all runs that were executed.
      pruned: True if the pruner ended the trial.
      diverged: the seeds with a training that diverged.
    """

    number: int
    values: dict[str, object]
    figures: dict[int, dict[str, float]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    folders: dict[int, Path] = field(default_factory=dict)
    pruned: bool = False
    diverged: set[int] = field(default_factory=set)

    @property
    def state(self) -> str:
        """The first of these that holds: "failed", "diverged", "pruned", "finished" (no run has failed so far)."""
        if self.errors.keys() - self.diverged:
            return "failed"
        return "diverged" if self.diverged else "pruned" if self.pruned else "finished"


def run_sweep(
    sweep: Sweep, folder: Path, command: Sequence[str], report: Callable[[list[Trial]], None],
    arguments: Sequence[str] = (),
) -> list[Trial]:  # fmt: skip
    """Run all trials of a sweep; stages that are already finished are not repeated.

    All runs use the number of threads with which the sweep was begun, also where fewer or more cores are usable.

    Args:
      sweep: the sweep.
      folder: the folder of the sweep.
      command: the words that start the program, e.g. ("python", "run.py").
      report: called after every block with all trials that have been run so far.
      arguments: further words for each stage, after its name.

    Returns:
      All trials.
    """
    folder = folder.resolve()
    begun = folder / BEGUN
    if not begun.exists():
        write_json(begun, {"threads": usable_cores()})
    sweep = replace(sweep, base={"cost.threads": read_json(begun)["threads"]} | sweep.base)
    with (
        progress_bar(sweep.trials * len(sweep.seeds), "sweep", "run") as bar,
        Workers(sweep.executor, sweep.workers) as workers,
    ):

        def after_block(trials: list[Trial], study: Study) -> None:
            study.save(folder / "optuna.db")
            report(trials)

        run_block = partial(run_all, workers, sweep.workers, tuple(command), tuple(arguments), bar)
        return play(sweep, folder, run_block, after_block)


def run_all(
    workers: Workers, ahead: int, command: tuple[str, ...], arguments: tuple[str, ...], bar, runs: Sequence[Run]
) -> dict[Path, str | None]:
    """Execute runs, each after the runs in its `chain`. A run that several runs share is executed once.

    Args:
      workers: the pool of workers.
      ahead: number of runs that are started before earlier results are needed.
      command: the words that start the program.
      arguments: further words for each stage, after its name.
      bar: progress bar that counts the given runs.
      runs: the runs.

    Returns:
      Folder of each executed run → its error in one line, or None.
    """
    errors: dict[Path, str | None] = {}
    depth = max((len(run.chain) for run in runs), default=0)
    for level in range(depth):
        unique = {run.chain[level].folder: run.chain[level] for run in runs if level < len(run.chain)}
        jobs = [Job(folder.name, run_stages, (run, command, os.getcwd(), arguments)) for folder, run in unique.items()]
        for folder, error in zip(unique, workers.results(jobs, ahead), strict=True):
            errors[folder] = error
            bar.update(sum(run.folder == folder for run in runs))
            if error:
                say(f"{folder.name} failed: {error}")
    return errors


def play(sweep: Sweep, folder: Path, all_done: DoAll, report: "Callable[[list[Trial], Study], None]") -> list[Trial]:
    """Run all trials of a sweep in blocks, and return them.

    If the sampler is tpe or a pruner is used, later trials depend on earlier ones, and a block contains as many trials
    as there are workers. Otherwise one block contains all trials.

    Args:
      sweep: the sweep.
      folder: the folder of the sweep.
      all_done: executes runs, see `DoAll`.
      report: called after every block with the trials that have been run so far and the study.
    """
    learns = sweep.sampler == "tpe" or sweep.pruner != "none"
    size = sweep.workers if learns else sweep.trials
    steps = [sweep.seeds] if sweep.pruner == "none" else [(seed,) for seed in sweep.seeds]
    study, trials = Study(sweep), []
    for start in range(0, sweep.trials, size):
        block = [Trial(number, study.values(number)) for number in range(start, min(start + size, sweep.trials))]
        for seeds in steps:
            going_on = [trial for trial in block if trial.state == "finished"]
            _play(sweep, folder, all_done, going_on, seeds)
            for trial in going_on:
                last = seeds[-1] == sweep.seeds[-1]
                trial.pruned = trial.state == "finished" and not last and study.prunes(trial)
        for trial in block:
            study.add(trial)
        trials += block
        report(trials, study)
    return trials


def _play(sweep: Sweep, folder: Path, all_done: DoAll, trials: list[Trial], seeds: Sequence[int]) -> None:
    runs = {(trial.number, seed): plan(folder, sweep.options(trial.values, seed)) for trial in trials for seed in seeds}
    errors = all_done(list(runs.values()))
    for trial in trials:
        for seed in seeds:
            run = runs[trial.number, seed]
            trial.folders[seed] = run.folder
            if error := errors[run.folder]:
                trial.errors[seed] = error
            else:
                trial.figures[seed] = figures(run)
            if has_diverged(run, error):
                trial.diverged.add(seed)


class Study:
    """An Optuna study that proposes the parameters of trials and decides about pruning.

    A proposal depends only on the trials added so far, the sampler's seed and the number of the new trial.
    """

    def __init__(self, sweep: Sweep):
        try:
            import optuna
        except ImportError as error:
            raise RLFlowError("sweeps need Optuna: pip install 'rlflow[learn]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.sweep = optuna, sweep
        self._study = optuna.create_study(direction=sweep.direction)
        self._pruner = optuna.pruners.MedianPruner() if sweep.pruner == "median" else optuna.pruners.NopPruner()
        self._distributions = {parameter.name: self._distribution(parameter) for parameter in sweep.parameters}

    def _distribution(self, parameter):
        kinds = self.optuna.distributions
        if parameter.choices:
            return kinds.CategoricalDistribution(parameter.choices)
        kind = kinds.IntDistribution if parameter.whole else kinds.FloatDistribution
        return kind(parameter.low, parameter.high, log=parameter.log)

    def values(self, number: int) -> dict[str, object]:
        """Return parameter → value for trial `number`, as the sampler proposes them from the trials added so far."""
        if self.sweep.sampler == "grid":
            return self.sweep.grid(number)
        samplers = self.optuna.samplers
        kind = samplers.RandomSampler if self.sweep.sampler == "random" else samplers.TPESampler
        seed = int(np.random.SeedSequence((self.sweep.sampler_seed, number)).generate_state(1)[0])
        asked = self.optuna.create_study(direction=self.sweep.direction, sampler=kind(seed=seed))
        asked.add_trials(self._study.get_trials(deepcopy=False))
        return dict(asked.ask(self._distributions).params)

    def prunes(self, trial: Trial) -> bool:
        """Return whether the pruner ends a trial.

        The pruner compares the trial's mean objective over its seeds so far with the means of the added trials over
        equally many seeds. It ends no trial before five trials have been added.
        """
        return self._pruner.prune(self._study, self._frozen(trial, self.optuna.trial.TrialState.RUNNING))

    def add(self, trial: Trial) -> None:
        """Add a trial that has ended, on which later proposals and the pruner depend."""
        states = self.optuna.trial.TrialState
        self._study.add_trial(
            self._frozen(
                trial, {"finished": states.COMPLETE, "pruned": states.PRUNED}.get(trial.state, states.FAIL)
            )
        )

    def _frozen(self, trial: Trial, state):
        values = [result[self.sweep.figure] for result in trial.figures.values()]
        means = {step: float(np.mean(values[: step + 1])) for step in range(len(values))}
        value = means[len(values) - 1] if state == self.optuna.trial.TrialState.COMPLETE else None
        if state == self.optuna.trial.TrialState.RUNNING:  # else Optuna would judge the trial by its best mean so far
            means = {len(values) - 1: means[len(values) - 1]}
        return self.optuna.trial.create_trial(
            state=state, value=value, params=trial.values, distributions=self._distributions, intermediate_values=means,
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the study as an SQLite file of Optuna, e.g. for optuna-dashboard, and replace an existing file."""
        with tempfile.TemporaryDirectory() as folder:
            storage = self.optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
            copy = self.optuna.create_study(storage=storage, study_name="sweep", direction=self.sweep.direction)
            copy.add_trials(self._study.get_trials(deepcopy=False))
            storage.remove_session()
            storage.engine.dispose()
            copy_file(f"{folder}/study.db", path)
