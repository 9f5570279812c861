"""Check that all test files that `make test` shortens pass with all of their cases.

    python -m tests.nightly.slow_tests

A file is shortened if it marks a test `nightly`, takes the number of its cases from tests/suite.py, lets Hypothesis
draw them, or runs TensorFlow eagerly. So is a file with a fixture or options that are smaller by day (FIXTURES,
`SHORT_EPISODES`), and a file that needs a library which only `make nightly` installs (`importorskip`). The kill tests
of the command line have a check of their own, tests/nightly/kills.py.

The output of pytest is printed while the tests run. The outcome names the tests that were skipped, and the check fails
if all tests of a file were skipped. If the check is interrupted, its outcome names the tests that were running, and the
slowest tests so far are listed before it.
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
FIXTURES = ("optimised", "trained", "start")  # fixtures of tests/conftest.py that are smaller by day
SHORTENED = re.compile(
    r"\bmark\.nightly\b|\bat_night\(|\bslow\(|\beager\b|@given\b|\bimportorskip\b|\bSHORT_EPISODES\b"
    rf"|^def \w+\([^)]*\b({'|'.join(FIXTURES)})\b",
    re.MULTILINE,
)
# Lines of `pytest -v -rs` with pytest-xdist: how many tests there are, that a test starts, how a test ended, and in the
# summary the place of a skip.
COUNT = re.compile(r"\d+ workers \[(?P<tests>\d+) items?\]")
STARTED = re.compile(r"(?P<name>\S+\.py::.+?) *$")
RESULT = re.compile(r"\[gw\d+\] \[ *\d+%\] (?P<result>[A-Z]+) (?P<name>.+?) *$")
SKIP = re.compile(r"SKIPPED \[\d+\] (?P<file>\S+\.py)(:\d+)?: (?P<reason>.*)")
KILLS = ROOT / "tests" / "cli" / "test_kill.py"


def shortened_files() -> list[str]:
    """Return the paths of all test files, except KILLS, that `make test` shortens (see the module docstring)."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if path != KILLS and SHORTENED.search(path.read_text(encoding="utf-8"))]


def outcome(lines: Iterable[str]) -> tuple[str, bool]:
    """Print the output of `pytest -v -rs` to standard error, line by line, and count its results.

    Args:
        lines: the lines that pytest-xdist prints while the tests run.

    Returns:
        (counts of tests, with the names of tests that were skipped and of tests that started and did not end; True if
        no test failed and some test of each file ran).
    """
    results, running, total, is_summary = Counter(), {}, 0, False
    ran, skipped = set(), {}  # files with a test that ran; name of a skipped test or file → path of the file
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)
        is_summary |= bool(total) and line.startswith("===")
        if is_summary:  # a line of the warnings looks like the start of a test
            found = SKIP.match(line)
            if found and found["file"] not in {*ran, *skipped.values()}:
                skipped[f"{found['file']} ({found['reason']})"] = found["file"]  # skipped while it was collected
            continue
        if found := RESULT.match(line):
            results[found["result"]] += 1
            running.pop(found["name"], None)
            file = found["name"].partition("::")[0]
            if found["result"] == "SKIPPED":
                skipped[found["name"]] = file
            else:
                ran.add(file)
        elif found := STARTED.match(line):
            running[found["name"]] = None  # a dictionary, for the order of starts
        elif found := COUNT.match(line):
            total = int(found["tests"])
    failed = results["FAILED"] + results["ERROR"]
    text = f"{results['PASSED']} of {total} tests pass with all of their cases, {failed} fail"
    if skipped:
        text += f", {len(skipped)} skipped: {', '.join(skipped)}"
    if absent := sorted({*skipped.values()} - ran):
        text += f"; nothing ran of {', '.join(absent)}"
    if running:
        text += f"; stopped at {', '.join(running)}"
    return text, bool(results["PASSED"]) and not failed and not absent and not running


def main() -> int:
    parser(__doc__).parse_args()
    options = ["-v", "-rs", "--durations", "60", "-n", "2", "--dist", "worksteal", "-o", "addopts=-p no:cacheprovider"]
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
