"""Measure several files of one model together: each in a process of its own, one of them running at a time.

In every turn each file runs once, in a random order, and is compared with the others of the same turn. A session (new
processes) has many turns. Intervals count pairs of sessions, for the reason that `rlflow.costs.measured` states.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.exports.running import Running
from rlflow.common.errors import RLFlowError
from rlflow.costs.measured import MAX_PAIRS, MIN_PAIRS, MIN_SESSION_PAIRS, SESSION_PAIR, Ratio, ratio_of
from rlflow.optimisation.validate import relative_error

ORIGINAL = "original"


class Contestant(NamedTuple):
    """A file, the runtime that runs it, and a Python that has the runtime."""

    model: Path
    runtime: str
    python: str


class Together(NamedTuple):
    """The results by name.

    Attributes:
        seconds: of every run, a list of turns for each session.
        errors: the largest relative error of an output, compared with the original's.
        failed: the reason why a file could not be run; such a file is in neither of the others.
    """

    seconds: dict[str, list[list[float]]]
    errors: dict[str, float]
    failed: dict[str, str]

    def ms(self, name: str) -> float:
        return 1e3 * float(np.median(np.concatenate(self.seconds[name])))

    def ratio(self, name: str, other: str, seed: int) -> Ratio:
        """Return the ratio of two latencies with its interval.

        Args:
            name: numerator.
            other: denominator.
            seed: of the bootstrap.
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
    enough: Callable[[Together], bool],
) -> Together:
    """Measure all contestants in turns.

    Args:
        contestants: name → file; ORIGINAL is one of them.
        inputs: name → array.
        threads: inside one operator.
        seconds: of all turns of all sessions.
        sessions: how many at most, at least 2.
        seed: of the order within turns.
        enough: called after every pair of sessions, from MIN_SESSION_PAIRS pairs on; True ends the measurement.

    Raises:
        RLFlowError: the original failed, or another contestant failed after its start.
    """
    random = np.random.default_rng(seed)
    result = Together({}, {}, {})
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "inputs.npz")
        np.savez(given, **inputs)
        for number in range(1, sessions + 1):
            alive = {name: one for name, one in contestants.items() if name not in result.failed}
            with ExitStack() as stack:
                running = started(alive, given, threads, stack, result.failed)
                if not result.errors:
                    compare(running, Path(folder), result)
                for name, taken in in_turns(running, seconds / sessions, random).items():
                    result.seconds.setdefault(name, []).append(taken)
            pairs, rest = divmod(number, SESSION_PAIR)
            if not rest and pairs >= MIN_SESSION_PAIRS and enough(result):
                break
    return result


def started(
    contestants: Mapping[str, Contestant], inputs: Path, threads: int, stack: ExitStack, failed: dict[str, str]
) -> dict[str, Running]:
    """Return the processes that started; add the reason of each failure to `failed`."""
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
    """Add the errors to the result. A contestant whose outputs have other shapes fails and runs no more."""
    outputs = {name: process.outputs(folder / f"{name}.npz") for name, process in running.items()}
    wanted = outputs[ORIGINAL]
    for name, made in outputs.items():
        if [array.shape for array in made] == [array.shape for array in wanted]:
            result.errors[name] = max(relative_error(old, new) for old, new in zip(wanted, made, strict=True))
        else:
            result.failed[name] = "an output has another shape"
            del running[name]


def in_turns(running: Mapping[str, Running], seconds: float, random: np.random.Generator) -> dict[str, list[float]]:
    """Return the seconds of every run: at least MIN_PAIRS turns, at most MAX_PAIRS."""
    names, taken = list(running), {name: [] for name in running}
    end = time.monotonic() + seconds
    turns = 0
    while turns < MIN_PAIRS or (turns < MAX_PAIRS and time.monotonic() < end):
        for position in random.permutation(len(names)):
            taken[names[position]].append(running[names[position]].seconds())
        turns += 1
    return taken
