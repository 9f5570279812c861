"""Long checks of correctness, which plain pytest does not collect: `make nightly`, or `python -m tests.nightly`.

Each module here is a program. Its last line of standard output is its outcome, and its exit status is 1 if a check
failed. Samples follow the seed, which is the day by default, so that nights together cover more than one.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context

WORKERS = 2  # processes of a check that samples


def parser(description: str, seconds: float | None = None) -> argparse.ArgumentParser:
    """Return the argument parser of a check.

    Args:
        description: the module docstring.
        seconds: default of `--seconds`, after which no further sample is drawn; None for a check of a fixed size.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=date.today().toordinal(), help="of the samples (default: the day)")
    if seconds:
        help = f"no sample starts later (default {seconds:g})"
        made.add_argument("--seconds", type=float, default=seconds, help=help)
    return made


def sampled(work: Callable, samples: Iterable, seconds: float) -> Iterator:
    """Yield `work(sample)` for all samples that start within some seconds, in WORKERS processes.

    Args:
        work: a function of a module.
        samples: its arguments, possibly without end.
        seconds: after which no further sample starts.
    """
    end, waiting, rest = time.monotonic() + seconds, [], iter(samples)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        while True:
            while len(waiting) <= WORKERS and time.monotonic() < end and (one := next(rest, None)) is not None:
                waiting.append(pool.submit(work, one))
            if not waiting:
                return
            yield waiting.pop(0).result()
