"""Long checks of correctness, run by `make nightly` or `python -m tests.nightly`; plain pytest does not collect them.

Most modules of this package are programs. The last line of a program's standard output states its outcome, and its exit
status is 1 if the check failed. The seed decides which samples are drawn. Its default is the number of the day, so each
night checks other samples.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context

WORKERS = 2  # number of processes of a check


def parser(description: str, seconds: float | None = None) -> argparse.ArgumentParser:
    """Return the argument parser of a check.

    Args:
        description: the docstring of the check's module, as the text of `--help`.
        seconds: default of the option `--seconds`, the time after which no further sample starts; None for a check
            without this option.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=date.today().toordinal(), help="of the samples (default: the day)")
    if seconds:
        help = f"no sample starts later (default {seconds:g})"
        made.add_argument("--seconds", type=float, default=seconds, help=help)
    return made


def sampled(work: Callable, samples: Iterable, seconds: float) -> Iterator:
    """Yield `work(sample)` for each sample, in the order of samples, computed in WORKERS processes.

    Args:
        work: a module-level function of one argument.
        samples: the arguments of `work`; the iterable may be endless.
        seconds: time after which no further sample starts.
    """
    end, waiting, rest = time.monotonic() + seconds, [], iter(samples)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        while True:
            while len(waiting) <= WORKERS and time.monotonic() < end and (one := next(rest, None)) is not None:
                waiting.append(pool.submit(work, one))
            if not waiting:
                return
            yield waiting.pop(0).result()
