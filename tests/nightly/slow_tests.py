"""Check that all test files that `make test` shortens pass with all of their cases.

    python -m tests.nightly.slow_tests

A file is shortened if it marks a test `nightly`, takes the number of its cases from tests/suite.py, lets Hypothesis
draw them, runs TensorFlow eagerly, or needs a library that only `make nightly` installs (`importorskip`). The kill
tests of the command line have a check of their own, tests/nightly/kills.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.nightly import parser

ROOT = Path(__file__).parents[2]
SHORTENED = re.compile(r"\bmark\.nightly\b|\bat_night\(|\bslow\(|\beager\b|\boptimised\b|@given\b|\bimportorskip\b")
KILLS = ROOT / "tests" / "cli" / "test_kill.py"


def shortened_files() -> list[str]:
    """Return the paths of all test files, except KILLS, that `make test` shortens (see the module docstring)."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if path != KILLS and SHORTENED.search(path.read_text(encoding="utf-8"))]


def main() -> int:
    parser(__doc__).parse_args()
    options = ["-n", "2", "--dist", "worksteal", "-o", "addopts=-p no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *options, *shortened_files()]
    environment = {**os.environ, "RLFLOW_NIGHTLY": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    failed = counts.get("failed", 0) + counts.get("error", 0) + (done.returncode != 0 and not counts)
    print(f"{counts.get('passed', 0)} of {counts.get('passed', 0) + failed} tests pass with all of their cases")
    return int(bool(failed) or not counts.get("passed"))


if __name__ == "__main__":
    sys.exit(main())
