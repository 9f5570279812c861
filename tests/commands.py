"""Calls of the command line for tests, in the process of the test or in a new process, and checks of its output.

With the options TINY a command takes seconds; the world model is the MDN-RNN. The options EDITS choose the world model
`edits` instead.
"""

import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from tests.suite import at_night, eager

ROOT = Path(__file__).parent.parent

ENDING = re.compile(r"(?P<name>\w+): +(?P<text>.+)")
TINY = ("--config", str(ROOT / "tests" / "tiny.yaml"))
EDITS = (*TINY, "world_model.name=edits")
# Further options for the MDN-RNN, which encodes every state of an episode: fewer episodes and steps in `make test`.
SHORT_EPISODES = at_night((), ("eval.samples=1", "controller.max_steps=3"))
# Lines of `optimise` without progress bars: the largest number of all lines; the number of lines that state the result.
MOST_LINES, LAST_LINES = 25, 5
WANTED = {  # name of each line that states the result → pattern of its text
    "result": r"Measured .* of the original's latency, 95 % interval .*; estimated .* % faster.*|No gain: .*",
    "sure": r".+",
    "model": r".+\.onnx",
    "report": r".+\.html",
    "next": r".*run\.py (validate|bound) .*",
}
PROGRESS = re.compile(r"\[\d+:\d\d(:\d\d)?[<,]")  # part of a progress bar, such as "[00:16<00:14"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The message of the error; AssertionError unless the command printed one error line last and exited with 1."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 1 and len(lines) == 1, self
        assert "Traceback" not in self.err and "unexpected" not in lines[0], self.err
        assert self.err.rstrip().endswith(lines[0]), self.err  # nothing follows it
        return lines[0].removeprefix("error: ")

    @property
    def ending(self) -> dict[str, str]:
        """Name → text of the last lines, from the line "result" on (see `rlflow.cli.command`).

        Raises AssertionError or SystemExit unless the last line is "next" with a command that the parser accepts.
        """
        from rlflow.cli.main import parse

        lines = (
            self.out if "result:" in self.out else self.err
        ).splitlines()  # if the output is a page: standard error
        named = [ENDING.fullmatch(line) for line in lines]
        begins = max((k for k, line in enumerate(named) if line and line["name"] == "result"), default=None)
        assert begins is not None and all(named[begins:]), self
        result = {line["name"]: line["text"] for line in named[begins:]}
        assert list(result)[-1] == "next", self
        following = shlex.split(result["next"])
        begins = [Path(word).name in ("run.py", "rlflow.cli", "rlflow") for word in following].index(True) + 1
        parse(following[begins:])  # exits if it does not accept the command
        return result


def lines_without_progress(text: str) -> list[str]:
    """Return the lines of an output that are not lines of a progress bar."""
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if line and not PROGRESS.search(line)]


def last_lines_hold(lines: list[str]) -> bool:
    """Return True if the last LAST_LINES lines match the patterns of WANTED in their order."""
    patterns = [rf"{name}: +({text})" for name, text in WANTED.items()]
    last = lines[-LAST_LINES:]
    return len(last) == LAST_LINES and all(map(re.fullmatch, patterns, last))


def in_process(capsys, *arguments) -> Done:
    """Run the command line in this process, in which TensorFlow is imported only once.

    Args:
        capsys: the fixture of pytest.
        arguments: the arguments; each is converted to a string.
    """
    from rlflow.cli.main import main

    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = exit.code
    return Done(code, *capsys.readouterr())


def redirected(*arguments) -> Done:
    """Run the command line in this process, eagerly; for fixtures of a session, which cannot ask for `capsys`."""
    from rlflow.cli.main import main

    out, err = StringIO(), StringIO()
    with eager(), redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Done(code, out.getvalue(), err.getvalue())


def in_its_own(*arguments, cwd: Path = ROOT, without: str = "", **environment) -> Done:
    """Run the command line in a new process.

    Args:
        arguments: the arguments; each is converted to a string.
        cwd: the working folder.
        without: name of a package that the process cannot import; "" for none.
        environment: environment variables in addition to the variables of this process.
    """
    program = [str(ROOT / "run.py")]
    if without:
        program = [
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules[{without!r}] = None; "
            "from rlflow.cli.main import main; sys.exit(main())",
        ]
    return _ended([*program, *map(str, arguments)], cwd, environment)


def _ended(arguments: list[str], cwd: Path, environment: dict[str, str]) -> Done:
    """Run Python with these arguments and environment variables, and return how it ended."""
    command, variables = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=variables)
    return Done(done.returncode, done.stdout, done.stderr)


def printed(program: str, hash_seed: str) -> str:
    """Run a Python program in a new process and return its standard output.

    Args:
        program: text of the program.
        hash_seed: value of PYTHONHASHSEED.
    """
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
