"""Check that all test files that `make test` shortens pass with all of their cases.

    python -m tests.nightly.slow_tests

A file is shortened if it marks a test `nightly`, takes the number of its cases from tests/suite.py, lets Hypothesis
draw them, runs TensorFlow eagerly, or needs a library that only `make nightly` installs (`importorskip`). The kill
tests of the command line have a check of their own, tests/nightly/kills.py.

The output of pytest is printed while the tests run. If the check is interrupted, its outcome names the tests that were
running, and the slowest tests so far are listed before it.
"""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.nightly import parser

ROOT = Path(__file__).parents[2]
SHORTENED = re.compile(r"\bmark\.nightly\b|\bat_night\(|\bslow\(|\beager\b|\boptimised\b|@given\b|\bimportorskip\b")
# Lines of `pytest -v` with pytest-xdist: how many tests there are, that a test starts, and how a test ended.
COUNT = re.compile(r"\d+ workers \[(?P<tests>\d+) items?\]")
STARTED = re.compile(r"(?P<name>\S+\.py::.+?) *$")
RESULT = re.compile(r"\[gw\d+\] \[ *\d+%\] (?P<result>[A-Z]+) (?P<name>.+?) *$")
KILLS = ROOT / "tests" / "cli" / "test_kill.py"


def shortened_files() -> list[str]:
    """Return the paths of all test files, except KILLS, that `make test` shortens (see the module docstring)."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if path != KILLS and SHORTENED.search(path.read_text(encoding="utf-8"))]


def outcome(lines: Iterable[str]) -> tuple[str, bool]:
    """Print the output of `pytest -v` to standard error, line by line, and count its results.

    Args:
        lines: the lines that pytest-xdist prints while the tests run.

    Returns:
        (counts of tests, with the names of tests that started and did not end; True if all tests passed).
    """
    results, running, total, is_summary = Counter(), {}, 0, False
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)
        is_summary |= bool(total) and line.startswith("===")
        if is_summary:
            continue  # a line of the warnings looks like the start of a test
        if found := RESULT.match(line):
            results[found["result"]] += 1
            running.pop(found["name"], None)
        elif found := STARTED.match(line):
            running[found["name"]] = None  # a dictionary, for the order of starts
        elif found := COUNT.match(line):
            total = int(found["tests"])
    failed = results["FAILED"] + results["ERROR"]
    text = f"{results['PASSED']} of {total - results['SKIPPED']} tests pass with all of their cases, {failed} fail"
    if running:
        text += f"; stopped at {', '.join(running)}"
    return text, bool(results["PASSED"]) and not failed and not running


def main() -> int:
    parser(__doc__).parse_args()
    options = ["-v", "--durations", "60", "-n", "2", "--dist", "worksteal", "-o", "addopts=-p no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *shortened_files()]
    environment = {**os.environ, "RLFLOW_NIGHTLY": "1"}
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest, which is interrupted too, prints its summary and ends
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as pytest:
        text, passed = outcome(pytest.stdout)
    print(text)
    return int(not passed or pytest.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
