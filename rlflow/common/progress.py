"""What a command shows while it works, on standard error, so that standard output stays for results: lines for a
person, and progress with a time estimate.

On a terminal progress is a bar, which goes when it is done. In a log it is a line now and then, of long work alone.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_SECONDS = 30.0  # between two lines about one work in a log
CURSOR_UP = "\x1b[A"

_silent = ContextVar("silent", default=False)
_said: set[str] = set()  # by `say_once`


class _Log:
    """The file of a bar that nobody sees move: now and then its state becomes a line."""

    def __init__(self):
        self.next_line = time.monotonic() + LOG_SECONDS

    def write(self, text: str) -> None:
        state = text.replace(CURSOR_UP, "").strip()
        if state and time.monotonic() >= self.next_line:
            sys.stderr.write(f"{state}\n")
            self.next_line = time.monotonic() + LOG_SECONDS

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: int | None, description: str, unit: str) -> "tqdm":
    """A tqdm bar; the one place that decides how progress is shown.

    total: how many units the work takes, None if nobody knows.
    """
    from tqdm import tqdm

    if silent():
        return tqdm(total=total, file=_Log(), disable=True)
    terminal = sys.stderr.isatty()
    file = sys.stderr if terminal else _Log()
    return tqdm(
        total=total, desc=description, unit=unit, file=file, dynamic_ncols=terminal, mininterval=0.2, leave=False
    )


def say(text: str) -> None:
    """A line for a person."""
    from tqdm import tqdm

    if not silent():
        tqdm.write(text, file=sys.stderr)


def say_once(text: str) -> None:
    """A line about something that this process and those that work for it come across again and again."""
    if text not in _said and not silent() and multiprocessing.parent_process() is None:
        _said.add(text)
        say(text)


def silent() -> bool:
    """Whether nothing is shown: somebody wants it so, or there is no standard error, as below a window."""
    return _silent.get() or sys.stderr is None


@contextmanager
def silence() -> Iterator[None]:
    """In the block nothing is shown: neither lines nor progress."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def shown_by(bar) -> Callable[[int, int], None]:
    """What trainings report (iterations done, in all) to, so that the bar shows it."""

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return show
