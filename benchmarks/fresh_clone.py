"""The two commands of the README in a fresh clone with a fresh virtual environment: `make demo` and `make test`.

Each with an empty home folder, temporary folder and cache, for every Python that is asked for. Installation is timed
apart, since it depends on the network. The clone is of HEAD: commit first. Resumable: with --folder, what each Python
gave lies there.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import bar, each, finish, markdown, parser

JUDGES = (
    "Makefile", "setup.py", "constraints.txt", "configs/demo.yaml", "rlflow", "worldmodel", "controllers", "tests",
)  # fmt: skip

ROOT = Path(__file__).parent.parent
DEMO_SECONDS, TEST_SECONDS = 360, 600
DEFAULT = "default"  # the Python that the Makefile takes


def timed(command: list[str], clone: Path) -> tuple[float, int, str]:
    """(seconds, exit status, the last lines of the output)."""
    started = time.monotonic()
    done = subprocess.run(
        [".ci/fresh", *command], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = re.split(r"[\r\n]+", done.stdout.replace(f"{clone}/", "").strip())
    return time.monotonic() - started, done.returncode, "\n".join(said[-12:])


def table(figures: dict) -> str:
    """Seconds for each Python."""
    parts = {
        "installation for `make demo`": "install",
        "installation for `make test`": "install_test",
        "`make demo`": "demo",
        "`make test`": "test",
    }
    heads = ["step", *(f"Python {one['python']}" for one in figures.values())]
    rows = [[what, *(f"{one[f'{part}_seconds']:.0f} s" for one in figures.values())] for what, part in parts.items()]
    return markdown(heads, rows)


def measured(python: str) -> dict:
    """What one Python gives, in a clone of its own. "python" is its version; without an installation, what was asked
    for."""
    make = ["make"] if python == DEFAULT else ["make", f"PYTHON={python}"]
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "rlflow"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        install, install_status, install_tail = timed([*make, ".venv/ready"], clone)
        _, version_status, version = timed(
            [".venv/bin/python", "-c", "import platform; print(platform.python_version())"], clone
        )
        demo, demo_status, demo_tail = timed([*make, "demo"], clone)
        install_test, _, _ = timed([*make, ".venv/ready-test"], clone)
        test, test_status, test_tail = timed([*make, "test"], clone)
    return {
        "python": python if version_status else version,
        "install_seconds": install, "install_status": install_status, "install_test_seconds": install_test,
        "demo_seconds": demo, "demo_status": demo_status,
        "test_seconds": test, "test_status": test_status, "test_says": test_tail,
        **({"install_says": install_tail} if install_status else {}),
        **({"demo_says": demo_tail} if demo_status else {}),  # else see benchmarks/demo.py
    }  # fmt: skip


def head() -> str:
    """The commit that is cloned: what another one gave is not gone on with."""
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def bars_of(result: dict[str, dict]) -> list[dict]:
    return [
        bar(f"make {what}, Python {one['python']}", one[f"{what}_seconds"], "s", f"passes, ≤ {limit}",
            one[f"{what}_status"] == 0 and one[f"{what}_seconds"] <= limit)
        for one in result.values()
        for what, limit in (("demo", DEMO_SECONDS), ("test", TEST_SECONDS))
    ]  # fmt: skip


def main() -> int:
    arguments = parser(__doc__, "runs/fresh_clone")
    arguments.add_argument(
        "--python", nargs="+", action="extend", metavar="PYTHON",
        help="as make PYTHON=… takes it; else the one that the Makefile takes",
    )  # fmt: skip
    parsed = arguments.parse_args()
    pythons = {python.replace("/", "-"): python for python in parsed.python or [DEFAULT]}
    result = each(list(pythons), parsed.folder / head(), lambda name: measured(pythons[name]))
    return finish("fresh_clone", parsed, result, bars_of(result))


if __name__ == "__main__":
    sys.exit(main())
