"""How easily one finds one's way: what `ls rlflow` shows, how long files are, and how long the tests take.

    python -m benchmarks.house                   counts alone
    python -m benchmarks.house --tests           and `python -m pytest -n 2`, as `make test` runs it: some minutes

Seconds are those of a machine that does nothing else; on a busy one they say nothing.
"""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import bar, finish, parser

JUDGES = ("rlflow", "worldmodel", "controllers", "run.py", "tests")

ROOT = Path(__file__).parent.parent
PRODUCT = ("rlflow", "worldmodel", "controllers")
ENTRIES, LINES, RUN_LINES, MINUTES = 14, 450, 15, 8.0


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def counts() -> dict:
    entries = sorted(path.name for path in (ROOT / "rlflow").iterdir() if path.name != "__pycache__")
    files = {str(path.relative_to(ROOT)): lines(path) for room in PRODUCT for path in (ROOT / room).rglob("*.py")}
    longest = max(files, key=lambda name: (files[name], name))
    return {
        "entries": entries, "files": len(files), "lines": sum(files.values()), "longest": longest,
        "longest_lines": files[longest], "run_lines": lines(ROOT / "run.py"),
    }  # fmt: skip


def tests() -> dict:
    """What the Makefile's target `test` does after the installation and the linter."""
    (recipe,) = [line.strip() for line in (ROOT / "Makefile").read_text().splitlines() if "-m pytest" in line]
    started = time.monotonic()
    command = shlex.split(recipe.replace("$(BIN)/python", sys.executable))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = done.stdout.splitlines()
    return {
        "minutes": (time.monotonic() - started) / 60, "passed": done.returncode == 0, "summary": said[-1],
        "failed": [line for line in said if line.startswith(("FAILED", "ERROR"))],
        "slowest": [" ".join(line.split()) for line in said if re.match(r"\d+\.\d+s (call|setup)", line.strip())],
    }  # fmt: skip


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--tests", action="store_true", help="run the tests and time them")
    arguments = made.parse_args()
    sizes = counts()
    figures = {"counts": sizes}
    entries, longest, run = len(sizes["entries"]), sizes["longest_lines"], sizes["run_lines"]
    bars = [
        bar("entries of `ls rlflow`", entries, "", f"≤ {ENTRIES}", entries <= ENTRIES),
        bar("longest file of the product", longest, "lines", f"≤ {LINES}", longest <= LINES),
        bar("run.py", run, "lines", f"≤ {RUN_LINES}", run <= RUN_LINES),
    ]
    if arguments.tests:
        figures["tests"] = took = tests()
        holds = took["passed"] and took["minutes"] <= MINUTES
        bars.append(bar("the tests, two cores", took["minutes"], "min", f"pass, ≤ {MINUTES:g}", holds))
    return finish("house", arguments, figures, bars, by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
