"""What `make demo` prints: its command in a run folder of its own, the lines counted, the last ones kept.

Lines of progress do not count, which a log has now and then. In what is kept the folder is called as in the Makefile.
"""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import bar, finish, parser

JUDGES = (
    "Makefile", "configs/demo.yaml", "rlflow/cli/command.py", "rlflow/cli/optimisation.py", "rlflow/cli/stage_lines.py",
    "rlflow/cli/stages.py", "rlflow/common/messages.py", "rlflow/costs", "rlflow/deliver", "rlflow/reports/markdown.py",
    "rlflow/search",
)  # fmt: skip

ROOT = Path(__file__).parent.parent
RUN, PYTHON = "runs/demo", ".venv/bin/python"  # as the Makefile names them
MOST, LAST = 25, 5  # lines: of all, and those that say it all
WANTED = {  # what each of the last lines says
    "result": r"Measured .* of the original's latency, 95 % interval .*; estimated .* % faster.*|No gain: .*",
    "sure": r".+",
    "model": r".+\.onnx",
    "report": r".+\.html",
    "next": r".*run\.py (validate|bound) .*",
}
PROGRESS = re.compile(r"\[\d+:\d\d(:\d\d)?[<,]")  # of a bar: "[00:16<00:14"


def demo_command(folder: str) -> list[str]:
    """The recipe of `make demo`, for this Python and that run folder."""
    recipe = re.search(r"^demo:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    return shlex.split(recipe.replace("$(BIN)/python", sys.executable).replace(RUN, folder))


def said(text: str) -> list[str]:
    """The lines of an output without progress."""
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if line and not PROGRESS.search(line)]


def last_lines_hold(lines: list[str]) -> bool:
    """Whether the last lines say what was gained, how sure it is, where it lies and what to do next."""
    patterns = [rf"{name}: +({text})" for name, text in WANTED.items()]
    last = lines[-LAST:]
    return len(last) == LAST and all(map(re.fullmatch, patterns, last))


def bars_of(figures: dict) -> list[dict]:
    said_all = figures["status"] == 0 and last_lines_hold(figures["says"])
    return [
        bar("lines of make demo, progress left out", figures["lines"], "", f"≤ {MOST}", figures["lines"] <= MOST),
        bar(f"the last {LAST} say gain, certainty, file, report and next command", said_all, "", "true", said_all),
    ]


def table(figures: dict) -> str:
    """How the demo ends."""
    return "\n".join(["```", *figures["says"][-LAST:], "```"])


def main() -> int:
    parsed = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command, started = demo_command(f"{folder}/demo"), time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seconds = time.monotonic() - started
    text = re.sub(r"\S*python\S* run\.py", f"{PYTHON} run.py", done.stdout.replace(f"{folder}/demo", RUN))
    lines = said(text)
    figures = {"status": done.returncode, "seconds": seconds, "lines": len(lines), "says": lines}
    return finish("demo", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
