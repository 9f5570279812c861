"""Messages for the user: lines, progress bars, command lines to run next, and escaped text for Markdown.

`say` and `progress_bar` write to standard error by default, so that standard output contains only results. On a
terminal, progress is a bar that disappears at the end. If standard error is a log file, progress is one line every
LOG_SECONDS. `program` and `command` return the name of this program as the user called it: `rlflow`, `python run.py` or
`python -m rlflow.cli`. `escaped` makes names from untrusted models safe in Markdown.
"""

import multiprocessing
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_SECONDS = 30.0  # time between two progress lines in a log
CURSOR_UP = "\x1b[A"  # a control sequence that tqdm writes for nested bars

_silent = ContextVar("silent", default=False)
_shown_lines: set[str] = set()  # the lines that `say_once` has shown


class _Log:
    """A file object for tqdm that writes the state of the progress bar to standard error, one line every LOG_SECONDS.
    """

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
    """Return a tqdm progress bar, which becomes single lines if standard error is not a terminal.

    Args:
      total: number of units of the work; None if unknown.
      description: text before the bar.
      unit: name of one unit.
    """
    from tqdm import tqdm

    if is_silent():
        return tqdm(total=total, file=_Log(), disable=True)
    terminal = sys.stderr.isatty()
    file = sys.stderr if terminal else _Log()
    return tqdm(
        total=total, desc=description, unit=unit, file=file, dynamic_ncols=terminal, mininterval=0.2, leave=False
    )


def say(text: str, output: IO[str] | None = None) -> None:
    """Write a line for the user above the progress bars.

    Args:
      text: the line.
      output: the stream; standard error by default.
    """
    from tqdm import tqdm

    if not is_silent():
        tqdm.write(text, file=output or sys.stderr)


def say_once(text: str) -> None:
    """Write a line for the user unless `say_once` has written the same line before; worker processes write nothing."""
    if text not in _shown_lines and not is_silent() and multiprocessing.parent_process() is None:
        _shown_lines.add(text)
        say(text)


def is_silent() -> bool:
    """Return True inside `silence`, and if the process has no standard error (a GUI program)."""
    return _silent.get() or sys.stderr is None


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the lines of `say` and all progress bars inside the `with` block."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def bar_updater(bar) -> Callable[[int, int], None]:
    """Return a callback that updates a tqdm bar; its arguments are the numbers of units done and of units in total."""

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return show


ROOT = Path(__file__).resolve().parents[2]  # folder of the checkout, or of the installed packages


def program() -> str:
    """Return the name of this program in help texts, such as `rlflow` or `python run.py`."""
    return shlex.join(_program_words())


def command(*arguments: object) -> str:
    """Return a command line of this program with the given arguments, quoted for a shell.

    The first word is a path if a shell would find another file under the program's name.
    """
    first, *others = _program_words()
    this = _script() if first == "rlflow" else Path(sys.executable)
    return shlex.join([_shell_name(first, this), *others, *map(str, arguments)])


def shape_words(shapes: Mapping[str, int | Sequence[int]], fix: bool) -> list[str]:
    """Return the arguments `--shape NAME=SIZES` (two words each) for a command line.

    Args:
      shapes: name of a dimension or input → one size, or several sizes of the dimension.
      fix: True to append `--fix`, which freezes the sizes.
    """
    words = []
    for name, sizes in shapes.items():
        words += ["--shape", f"{name}={','.join(map(str, sizes)) if isinstance(sizes, Sequence) else sizes}"]
    return [*words, "--fix"] if fix else words


def _program_words() -> list[str]:
    called = Path(sys.argv[0])
    if called.resolve() == ROOT / "run.py":
        return ["python", str(called)]
    ours = called.resolve() == ROOT / "rlflow" / "cli" / "__main__.py"
    if ours or (called.stem != "rlflow" and shutil.which(_script()) is None):
        return ["python", "-m", "rlflow.cli"]
    return ["rlflow"]  # the installed command, or a program that uses the library


def _script() -> Path:
    """Return the path of the running `rlflow` script; otherwise the path of `rlflow` beside this Python interpreter."""
    called = Path(sys.argv[0])
    return called if called.stem == "rlflow" else Path(sys.executable).with_name("rlflow")


def _shell_name(name: str, path: Path) -> str:
    """Return the word with which a shell runs a program.

    Args:
      name: the name of the program; returned if PATH leads a shell from this name to `path`.
      path: the file of the program; returned otherwise, relative to the working directory if it lies in a subfolder.
    """
    by_name = shutil.which(name)
    if by_name and os.path.abspath(by_name) == os.path.abspath(path):
        return name
    return str(path.relative_to(Path.cwd()) if Path.cwd() in path.parent.parents else path)


MARKDOWN_SPECIAL = re.compile(r"[\\|<\[!]")  # characters that begin an escape, a table cell, HTML, a link or an image


def escaped(text: str) -> str:
    """Escape text for a Markdown line or table cell, so that a viewer shows it literally and loads nothing."""
    return MARKDOWN_SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> str:
    """Return a Markdown table.

    Args:
      head: the titles of the columns.
      rows: the cells of each row; texts are not escaped.
      numbers: the columns that are aligned to the right.
    """
    rules = ["---:" if column in numbers else "---" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rules, *rows))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say_lines(lines: Mapping[str, object], output: IO[str] | None = None) -> None:
    """Write named lines, such as the result and the files of a command.

    Args:
      lines: name of a line → its text.
      output: the stream; standard error by default.
    """
    for name, text in lines.items():
        say(f"{name + ':':8} {text}", output)
