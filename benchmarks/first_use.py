"""Results of a first use of RLFlow: `optimise` with 10, 30 and 60 seconds and an empty timing database.

    python -m benchmarks.first_use [--model NAME]

The second table has the seconds of `make demo`, of `make test` and of the installations before them, which depend on
the network. All of them run in a fresh clone of the last commit, with a fresh virtual environment, an empty home folder
and no cache.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.optimise import optimise
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import ROOT, number, ratio
from rlflow.common.errors import RLFlowError

MODELS = ("squeezenet1_1", "vit_base", "light_densenet121")
BUDGETS = (10, 30, 60)  # values of `--seconds`; the page of `benchmarks.optimise` has the results for the default
STEPS = {  # name of the step in the table → make target that is timed in the clone
    "installation for `make demo`": ".venv/ready",
    "`make demo`": "demo",
    "installation for `make test`": ".venv/ready-test",
    "`make test`": "test",
}


def first_run(model: str, seconds: int) -> dict:
    """Return the result of `benchmarks.optimise.optimise` on a model with `--seconds SECONDS` and seed 0."""
    return optimise(model, 0, "--seconds", str(seconds))


def fresh_clone() -> dict:
    """Run the make targets of STEPS in a fresh clone and return name of the step → seconds.

    Raises:
        RLFlowError: a make target failed; the message has the last three lines of its output.
    """
    taken = {}
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name) / "rlflow"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for step, target in STEPS.items():
            started = time.monotonic()
            command = [".ci/fresh", "make", target]
            done = subprocess.run(command, cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            taken[step] = time.monotonic() - started
            if done.returncode:
                last = " / ".join(done.stdout.strip().splitlines()[-3:])
                raise RLFlowError(f"make {target} failed: {last}")
    return taken


def latency(measured: dict | None) -> str:
    return ratio(measured) if measured else "1"


def tables(figures: dict[str, dict], clone: dict | None) -> dict[str, Table]:
    """Return the tables of the page.

    Args:
        figures: "MODEL-SECONDS" → result of `first_run`.
        clone: result of `fresh_clone`; None if this part failed.
    """
    rows = []
    for model in dict.fromkeys(key.rpartition("-")[0] for key in figures):
        runs = [figures.get(f"{model}-{seconds}") for seconds in BUDGETS]
        rows.append([model, *("–" if one is None else latency(one["measured"]) for one in runs)])
    found = Table(["model", *(f"{seconds} s" for seconds in BUDGETS)], rows)
    steps = Table(["step", "seconds"], [[step, number(taken, 0)] for step, taken in (clone or {}).items()])
    return {"found": found, "clone": steps}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    parsed = arguments.parse_args()
    record = Record("first_use", parsed)
    models = parsed.model or MODELS
    figures = record.all_parts({f"{one}-{seconds}": (first_run, one, seconds) for one in models for seconds in BUDGETS})
    clone = record.part("clone", fresh_clone)
    note = "The first table shows the measured latency as a share of the original's; 1: the original was kept."
    record.publish(tables(figures, clone), note)
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
