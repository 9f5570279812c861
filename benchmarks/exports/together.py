"""Measurement of several files of one model in turns; each file has its own process, and one process runs at a time.

In every turn each file runs once, in random order, and latencies are compared within a turn. A session starts new
processes and consists of many turns. The confidence intervals are computed by a bootstrap over pairs of sessions; the
docstring of `rlflow.costs.measured.ratio_of` explains the reason.
"""

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.exports.running import Running
from rlflow.common.errors import RLFlowError
from rlflow.costs.measured import MAX_PAIRS, MIN_PAIRS, Ratio, ratio_of
from rlflow.optimisation.validate import relative_error

ORIGINAL = "original"


class Contestant(NamedTuple):
    """A file that takes part in a measurement.

    Attributes:
        model: the file.
        runtime: key of `benchmarks.exports.running.RUNTIMES`.
        python: path of the Python interpreter that has the runtime.
    """

    model: Path
    runtime: str
    python: str


class Together(NamedTuple):
    """The results of a measurement, by names of contestants.

    Attributes:
        seconds: contestant → for each session, the seconds of its run in each turn.
        errors: contestant → the largest relative error of its outputs, compared with the outputs of the original.
        failed: contestant → the reason why it could not be run, or why its outputs could not be compared.
    """

    seconds: dict[str, list[list[float]]]
    errors: dict[str, float]
    failed: dict[str, str]

    def ms(self, name: str) -> float:
        return 1e3 * float(np.median(np.concatenate(self.seconds[name])))

    def ratio(self, name: str, other: str, seed: int) -> Ratio:
        """Return the ratio of the latencies of two contestants with its 95 % confidence interval.

        Args:
            name: contestant whose latency is the numerator.
            other: contestant whose latency is the denominator.
            seed: seed of the bootstrap.
        """
        sessions = zip(self.seconds[name], self.seconds[other], strict=True)
        return ratio_of([np.divide(one, two) for one, two in sessions], seed)


def together(
    contestants: Mapping[str, Contestant],
    inputs: Mapping[str, np.ndarray],
    threads: int,
    seconds: float,
    sessions: int,
    seed: int,
) -> Together:
    """Measure all contestants in turns.

    Args:
        contestants: name → contestant; the name ORIGINAL must be present.
        inputs: name of each input → array.
        threads: number of threads inside one operator.
        seconds: duration of all turns; starting processes takes additional time.
        sessions: number of sessions, at least 2.
        seed: seed of the order of contestants within turns.

    Raises:
        RLFlowError: the process of the original failed, or another process failed after it had loaded its model.
    """
    random = np.random.default_rng(seed)
    result = Together({}, {}, {})
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "inputs.npz")
        np.savez(given, **inputs)
        for _ in range(sessions):
            alive = {name: one for name, one in contestants.items() if name not in result.failed}
            with ExitStack() as stack:
                running = started(alive, given, threads, stack, result.failed)
                if not result.errors:
                    compare(running, Path(folder), result)
                for name, taken in in_turns(running, seconds / sessions, random).items():
                    result.seconds.setdefault(name, []).append(taken)
    return result


def started(
    contestants: Mapping[str, Contestant], inputs: Path, threads: int, stack: ExitStack, failed: dict[str, str]
) -> dict[str, Running]:
    """Start one process for each contestant and return the processes that have loaded their models.

    Args:
        contestants: name → contestant.
        inputs: .npz file with one array for each input name.
        threads: number of threads inside one operator.
        stack: closes all processes when it exits.
        failed: receives contestant → reason for each process that failed.

    Raises:
        RLFlowError: the process of the original failed.
    """
    running = {}
    for name, one in contestants.items():
        running[name] = Running(one.runtime, one.model, inputs, threads, one.python)
        stack.callback(running[name].close)
    for name, process in list(running.items()):
        try:
            process.ready()
        except RLFlowError as error:
            if name == ORIGINAL:
                raise
            failed[name] = str(error)
            del running[name]
    return running


def compare(running: dict[str, Running], folder: Path, result: Together) -> None:
    """Run each contestant once and add the errors of its outputs to `result.errors`.

    A contestant whose outputs differ in number or shapes from the original's is added to `result.failed` and removed
    from `running`.

    Args:
        running: name → process.
        folder: folder for the files with outputs.
        result: the results, which are changed.
    """
    outputs = {name: process.outputs(folder / f"{name}.npz") for name, process in running.items()}
    wanted = outputs[ORIGINAL]
    for name, made in outputs.items():
        if [array.shape for array in made] == [array.shape for array in wanted]:
            result.errors[name] = max(relative_error(old, new) for old, new in zip(wanted, made, strict=True))
        else:
            result.failed[name] = "an output has another shape"
            del running[name]


def in_turns(running: Mapping[str, Running], seconds: float, random: np.random.Generator) -> dict[str, list[float]]:
    """Run the contestants in turns and return contestant → seconds of its run in each turn.

    Args:
        running: name → process.
        seconds: duration of all turns; there are at least MIN_PAIRS and at most MAX_PAIRS turns.
        random: generator of the order of contestants within turns.
    """
    names, taken = list(running), {name: [] for name in running}
    end = time.monotonic() + seconds
    turns = 0
    while turns < MIN_PAIRS or (turns < MAX_PAIRS and time.monotonic() < end):
        for position in random.permutation(len(names)):
            taken[names[position]].append(running[names[position]].seconds())
        turns += 1
    return taken
