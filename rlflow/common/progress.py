"""Progress of long work with a time estimate: a bar on a terminal, a line now and then in a log."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_SECONDS = 10.0
_silent = ContextVar("silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """In the block nothing is shown."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def progress_bar(total: int, description: str, unit: str) -> "tqdm":
    """A tqdm bar on standard error."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    return tqdm(
        total=total, desc=description, unit=unit, file=sys.stderr, dynamic_ncols=terminal, disable=_silent.get(),
        mininterval=0.2 if terminal else LOG_SECONDS, maxinterval=LOG_SECONDS,
    )  # fmt: skip


def say(text: str) -> None:
    """A line for a person, on standard error so that standard output stays for results."""
    from tqdm import tqdm

    if not _silent.get():
        tqdm.write(text, file=sys.stderr)


def shown_by(bar) -> Callable[[int, int], None]:
    """What trainings report (iterations done, in all) to, so that the bar shows it."""

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return show
