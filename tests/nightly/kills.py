"""Check that commands which are killed at random moments and restarted leave the same files as undisturbed commands.

    python -m tests.nightly.kills [--rounds N]

The checks are in tests/cli/test_kill.py, which draws the moments from a seed. Each round has another seed.
"""

import os
import re
import subprocess
import sys

from tests.nightly import parser

FILE = "tests/cli/test_kill.py"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=2, help="how often all stages are killed (default 2)")
    parsed = arguments.parse_args()
    passed, failed = 0, 0
    for number in range(parsed.rounds):
        seed = parsed.seed * 100 + number
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-o", "addopts=-p no:cacheprovider", FILE]
        environment = {**os.environ, "KILL_SEED": str(seed), "RLFLOW_NIGHTLY": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        print(done.stdout, done.stderr, file=sys.stderr)
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
        passed += counts.get("passed", 0)
        failed += counts.get("failed", 0) + counts.get("error", 0) + (done.returncode != 0 and not counts)
    print(f"{passed} of {passed + failed} killed commands end as undisturbed ones (seed {parsed.seed})")
    return int(bool(failed) or not passed)


if __name__ == "__main__":
    sys.exit(main())
