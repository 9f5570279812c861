"""All tests pass with as many cases as `at_night` gives them, those with the marker `nightly` too.

    python -m tests.nightly.slow_tests

The kill tests of the command line have a check of their own, tests/nightly/kills.py.
"""

import os
import re
import subprocess
import sys

from tests.nightly import parser


def main() -> int:
    parser(__doc__).parse_args()
    options = ["-n", "2", "--dist", "worksteal", "-o", "addopts=-p no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *options, "--ignore", "tests/cli/test_kill.py", "tests"]
    done = subprocess.run(command, env={**os.environ, "RLFLOW_NIGHTLY": "1"}, capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    failed = counts.get("failed", 0) + counts.get("error", 0) + (done.returncode != 0 and not counts)
    print(f"{counts.get('passed', 0)} of {counts.get('passed', 0) + failed} tests pass")
    return int(bool(failed) or not counts.get("passed"))


if __name__ == "__main__":
    sys.exit(main())
