"""The two commands of the README in a fresh clone with a fresh virtual environment: `make demo` and `make test`.

Installation is timed apart, since it depends on the network. The clone is of HEAD: commit first.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import bar, finish, markdown, parser

DEMO_SECONDS, TEST_SECONDS = 360, 600


def timed(command: list[str], folder: Path) -> tuple[float, int, str]:
    """(seconds, exit status, the last lines of the output)."""
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = re.split(r"[\r\n]+", done.stdout.replace(f"{folder}/", "").strip())
    return time.monotonic() - started, done.returncode, "\n".join(said[-12:])


def table(figures: dict) -> str:
    """Seconds, and how the demo ended."""
    parts = {"installation for `make demo`": "install", "installation for `make test`": "install_test", "`make demo`": "demo", "`make test`": "test"}
    rows = [[what, f"{figures[f'{part}_seconds']:.0f} s"] for what, part in parts.items()]
    said = figures["demo_says"].splitlines()[-4:]
    return markdown(["step", "time"], rows) + "\n\nThe demo ended with:\n\n" + "\n".join(["```", *said, "```"])


def main() -> int:
    arguments = parser(__doc__).parse_args()
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "rlflow"
        subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
        install, install_status, install_tail = timed(["make", ".venv/ready"], clone)
        demo, demo_status, demo_tail = timed(["make", "demo"], clone)
        install_test, _, _ = timed(["make", ".venv/ready-test"], clone)
        test, test_status, test_tail = timed(["make", "test"], clone)
    figures = {
        "install_seconds": install, "install_status": install_status, "install_test_seconds": install_test,
        "demo_seconds": demo, "demo_says": demo_tail, "test_seconds": test, "test_says": test_tail,
        **({"install_says": install_tail} if install_status else {}),
    }  # fmt: skip
    bars = [
        bar("make demo", demo, "s", f"passes, ≤ {DEMO_SECONDS}", demo_status == 0 and demo <= DEMO_SECONDS),
        bar("make test", test, "s", f"passes, ≤ {TEST_SECONDS}", test_status == 0 and test <= TEST_SECONDS),
    ]
    return finish("fresh_clone", arguments, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
