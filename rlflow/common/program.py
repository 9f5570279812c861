"""How this program was called: what a person types to call it again."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """As pages of help name it: `rlflow` where it is installed, `python run.py` in a checkout."""
    return shlex.join(_words())


def command(*arguments: object) -> str:
    """A command line of this program, to be typed as it stands: with paths where the bare names lead elsewhere."""
    first, *others = _words()
    this = Path(sys.argv[0] if first == "rlflow" else sys.executable)
    return shlex.join([_typed(first, this), *others, *map(str, arguments)])


def _words() -> list[str]:
    called = Path(sys.argv[0])
    if called.stem == "rlflow":
        return ["rlflow"]
    return ["python", str(called)] if called.name == "run.py" else ["python", "-m", "rlflow.cli"]


def _typed(name: str, path: Path) -> str:
    """The name, if a shell finds that file by it; else its path, short if it lies in a folder of this one."""
    by_name = shutil.which(name)
    if by_name and os.path.abspath(by_name) == os.path.abspath(path):
        return name
    return str(path.relative_to(Path.cwd()) if Path.cwd() in path.parent.parents else path)
