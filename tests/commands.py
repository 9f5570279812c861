"""The command line as the tests call it: in this process or in its own, with budgets that take seconds; with the
MDN-RNN but for EDITS.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

TINY = ("--config", str(ROOT / "tests" / "tiny.yaml"))
EDITS = (*TINY, "world_model.name=edits")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of the error; fails if the command did not fail as it should."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 1 and len(lines) == 1, self
        assert "Traceback" not in self.err and "unexpected" not in lines[0], self.err
        assert self.err.rstrip().endswith(lines[0]), self.err  # nothing follows it
        return lines[0].removeprefix("error: ")


def in_process(capsys, *arguments) -> Done:
    """main() in this process, so that TensorFlow is imported only once."""
    from rlflow.cli.main import main

    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = exit.code
    return Done(code, *capsys.readouterr())


def in_its_own(*arguments, cwd: Path = ROOT, without: str = "", **environment) -> Done:
    """without: a package that this process cannot import."""
    program = [str(ROOT / "run.py")]
    if without:
        program = [
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules[{without!r}] = None; "
            "from rlflow.cli.main import main; sys.exit(main())",
        ]
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})
    return Done(done.returncode, done.stdout, done.stderr)
