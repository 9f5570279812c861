"""What real sessions do: the memory that their runs add to a process, and whether they give the same bits."""

from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.processes import fresh_processes
from rlflow.common.system import give_back, peak_while
from rlflow.graph.onnx_runtime import Setup, run, session

RUNS = 3  # the first one allocates, the second may lay out anew what the first one needed

Inputs = dict[str, np.ndarray]


def added_by_runs(path: Path, inputs: Inputs, threads: int, setup: Setup) -> int | None:
    """Bytes that runs add to the resident memory of a fresh process, its session made, at their fullest moment.

    That is activations, outputs and what kernels take while they run; weights are there before. None where the system
    does not say (other than Linux with glibc). Raises RLFlowError if the model cannot be run.
    """
    return in_a_users_process(setup, _added, path, inputs, threads, setup)


def _added(path: Path, inputs: Inputs, threads: int, setup: Setup) -> int | None:
    run(session(path, threads, setup=setup), inputs)  # brings the code that runs need; gone with all that it took
    running = session(path, threads, setup=setup)

    def runs() -> None:
        for _ in range(RUNS):
            run(running, inputs)

    before = peak_while(lambda: None)
    after = peak_while(runs)
    return None if before is None or after is None else after - before


def in_a_users_process(setup: Setup, act: Callable, *given):
    """What act(*given) returns in a fresh process, which gives back what is freed if sessions have no arena.

    Raises RLFlowError as `act` does, and if the process dies.
    """
    try:
        with fresh_processes(1, None if setup.arena else give_back) as process:
            return process.submit(act, *given).result()
    except BrokenProcessPool as error:
        raise RLFlowError("the process that measured a model died; out of memory?") from error


def same_bits(sides: Sequence[tuple[Path, Setup]], inputs: Sequence[Inputs], threads: int) -> bool:
    """Whether two models give the same bits on all inputs. One session lives at a time."""
    results = []
    for path, setup in sides:
        running = session(path, threads, setup=setup)
        results.append([_bits(value) for one in inputs for value in run(running, one)])
    return results[0] == results[1]


def _bits(value) -> tuple:
    """Of an array its type, its sizes and its bytes; of a sequence that of all in it; of a map its text."""
    if isinstance(value, list):
        return tuple(map(_bits, value))
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (repr(value),)
