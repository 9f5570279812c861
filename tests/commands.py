"""The command line as the tests call it: in this process or in its own, with budgets that take seconds; with the
MDN-RNN but for EDITS.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

ENDING = re.compile(r"(?P<name>\w+): +(?P<text>.+)")
TINY = ("--config", str(ROOT / "tests" / "tiny.yaml"))
EDITS = (*TINY, "world_model.name=edits")
MOST_LINES, LAST_LINES = 25, 5  # of `optimise`, progress left out: all, and those that state the result
WANTED = {  # what each of the last lines says
    "result": r"Measured .* of the original's latency, 95 % interval .*; estimated .* % faster.*|No gain: .*",
    "sure": r".+",
    "model": r".+\.onnx",
    "report": r".+\.html",
    "next": r".*run\.py (validate|bound) .*",
}
PROGRESS = re.compile(r"\[\d+:\d\d(:\d\d)?[<,]")  # of a progress bar: "[00:16<00:14"


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

    @property
    def ending(self) -> dict[str, str]:
        """The last lines, by name (`rlflow.cli.command`); fails if the command did not end as each should, with one
        that
        the program understands.
        """
        from rlflow.cli.main import parse

        lines = self.err.splitlines()
        named = [ENDING.fullmatch(line) for line in lines]
        begins = max((k for k, line in enumerate(named) if line and line["name"] == "result"), default=None)
        assert begins is not None and all(named[begins:]), self.err
        result = {line["name"]: line["text"] for line in named[begins:]}
        assert list(result)[-1] == "next", self.err
        following = shlex.split(result["next"])
        begins = [Path(word).name in ("run.py", "rlflow.cli", "rlflow") for word in following].index(True) + 1
        parse(following[begins:])  # which leaves the program where it does not understand
        return result


def lines_without_progress(text: str) -> list[str]:
    """Return the lines of an output that are not lines of a progress bar."""
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if line and not PROGRESS.search(line)]


def last_lines_hold(lines: list[str]) -> bool:
    """Check that the last lines state the gain, its certainty, the file, the report and the next command."""
    patterns = [rf"{name}: +({text})" for name, text in WANTED.items()]
    last = lines[-LAST_LINES:]
    return len(last) == LAST_LINES and all(map(re.fullmatch, patterns, last))


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


def printed(program: str, hash_seed: str) -> str:
    """What a Python program prints in a process of its own, where texts hash by that seed."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
