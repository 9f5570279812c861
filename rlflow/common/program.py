"""How this program was called: what a person types to call it again."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
