"""Messages for people: lines and progress, command lines to type next, and foreign text in Markdown.

`say` and `progress_bar` write to standard error, so that standard output stays free for results. On a terminal progress
is a bar that disappears at the end. In a log it is one line every LOG_SECONDS, for long work only. `program` and
`command` name this program as the user called it: `rlflow`, `python run.py` or `python -m rlflow.cli`. `escaped` makes
names from foreign models safe in Markdown.
"""

import multiprocessing
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
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


ROOT = Path(__file__).resolve().parents[2]  # of the checkout, or of the installed packages


def program() -> str:
    """As pages of help name it: `rlflow` where it is installed, `python run.py` in a checkout."""
    return shlex.join(_words())


def command(*arguments: object) -> str:
    """A command line of this program, to be typed as it stands: with paths where the bare names lead elsewhere."""
    first, *others = _words()
    this = _script() if first == "rlflow" else Path(sys.executable)
    return shlex.join([_typed(first, this), *others, *map(str, arguments)])


def shape_words(shapes: Mapping[str, int | Sequence[int]], fix: bool) -> list[str]:
    """--shape for each name: NAME=4, or NAME=1,128 for the axes of an input and for several sizes of a dimension.

    fix: whether these sizes are frozen.
    """
    words = []
    for name, sizes in shapes.items():
        words += ["--shape", f"{name}={','.join(map(str, sizes)) if isinstance(sizes, Sequence) else sizes}"]
    return [*words, "--fix"] if fix else words


def _words() -> list[str]:
    called = Path(sys.argv[0])
    if called.resolve() == ROOT / "run.py":
        return ["python", str(called)]
    ours = called.resolve() == ROOT / "rlflow" / "cli" / "__main__.py"
    if ours or (called.stem != "rlflow" and shutil.which(_script()) is None):
        return ["python", "-m", "rlflow.cli"]
    return ["rlflow"]  # called as a library, too


def _script() -> Path:
    """The installed command: the one that was called, else that beside this Python."""
    called = Path(sys.argv[0])
    return called if called.stem == "rlflow" else Path(sys.executable).with_name("rlflow")


def _typed(name: str, path: Path) -> str:
    """The name, if a shell finds that file by it; else its path, short if it lies in a folder of this one."""
    by_name = shutil.which(name)
    if by_name and os.path.abspath(by_name) == os.path.abspath(path):
        return name
    return str(path.relative_to(Path.cwd()) if Path.cwd() in path.parent.parents else path)


MEANS_SOMETHING = re.compile(r"[\\|<\[!]")  # begins a cell, HTML, a link or a picture


def escaped(text: str) -> str:
    """A text that is read as it stands, in a line or a cell of a table; nobody's viewer fetches anything for it."""
    return MEANS_SOMETHING.sub(r"\\\g<0>", " ".join(text.split()))
