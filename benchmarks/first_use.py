"""Results of a first use of RLFlow: `optimise --seconds 30` with an empty timing database, by predictions and timings.

    python -m benchmarks.first_use [--prior FILE] [--model NAME]

The first table compares cost.name=predicted (the default) with cost.name=profiled, which times every kernel that a
search asks for. The shipped prior was trained on kernels of the same models, so a fair comparison names a prior that
was trained without them: `python -m benchmarks.kernel_prior --database FILE --without-zoo PRIOR` writes one.

The second table has the seconds of `make demo`, of `make test` and of the installations before them, which depend on
the network. All of them run in a fresh clone of the last commit, with a fresh virtual environment, an empty home folder
and no cache.
"""

import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.optimise import optimise
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, NOTHING, ROOT, number, ratio
from rlflow.common.errors import RLFlowError

SECONDS = 30  # value of `--seconds`; the page of `benchmarks.optimise` has the results for the default
COSTS = ("predicted", "profiled")
COLUMNS = ("latency", "rewrites", "fewest", "s of timing", "s in all")  # of each cost
SHIPPED = "The prior is the shipped one, which was trained on kernels of these models, too."
LEFT_OUT = "The prior was trained without any kernel of these models."
STEPS = {  # name of the step in the table → make target that is timed in the clone
    "installation for `make demo`": ".venv/ready",
    "`make demo`": "demo",
    "installation for `make test`": ".venv/ready-test",
    "`make test`": "test",
}


def first_run(model: str, cost: str, prior: str | None) -> dict:
    """Return the result of `benchmarks.optimise.optimise` on a model with `--seconds SECONDS` and seed 0.

    Args:
        model: name of a model of the zoo.
        cost: value of cost.name.
        prior: file of the prior of kernels; None for the shipped one.
    """
    return optimise(model, 0, "--seconds", str(SECONDS), f"cost.name={cost}", prior=prior)


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
        figures: "MODEL-COST" → result of `first_run`.
        clone: result of `fresh_clone`; None if this part failed.
    """
    heads = ["model", *(f"{cost}: {what}" for what in COLUMNS for cost in COSTS)]
    rows, logs = [], {cost: [] for cost in COSTS}
    for model in dict.fromkeys(key.rpartition("-")[0] for key in figures):
        runs = [figures.get(f"{model}-{cost}") for cost in COSTS]
        if None in runs:
            continue
        cells = [
            (latency(one["measured"]), number(one["rewrites"], 0),
             number(min(one["unfinished"], default=None), 0), number(one["spent"].get("kernels", 0.0), 1),
             number(one["seconds"], 0)) for one in runs
        ]  # fmt: skip
        rows.append([model, *(cell for column in zip(*cells, strict=True) for cell in column)])
        for cost, one in zip(COSTS, runs, strict=True):
            logs[cost].append(math.log(one["measured"]["ratio"]) if one["measured"] else 0.0)
    if rows:
        means = [f"{math.exp(sum(values) / len(values)):.3f}" for values in logs.values()]
        rows.append(["geometric mean", *means, *[NOTHING] * (len(heads) - 1 - len(means))])
    steps = Table(["step", "seconds"], [[step, number(taken, 0)] for step, taken in (clone or {}).items()])
    return {"found": Table(heads, rows), "clone": steps}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--prior", metavar="FILE", help="file of the prior of kernels (default: the shipped one)")
    parsed = arguments.parse_args()
    record = Record("first_use", parsed)
    calls = {f"{one}-{cost}": (first_run, one, cost, parsed.prior) for one in parsed.model or MODELS for cost in COSTS}
    figures = record.all_parts(calls)
    clone = record.part("clone", fresh_clone)
    note = (
        f"`optimise --seconds {SECONDS}` with an empty timing database and one thread. Latency is measured, as a share "
        "of the original's; 1: the original was kept. Rewrites are those that the searches carried out; the fewest "
        "are those of one search of the last round that the time limit ended (–: all of them ended by themselves). "
    )
    record.publish(tables(figures, clone), note + (LEFT_OUT if parsed.prior else SHIPPED))
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
