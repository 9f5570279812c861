"""Results of a first use of RLFlow: `optimise --seconds 30` with an empty timing database, by predictions and timings.

    python -m benchmarks.first_use [--prior FILE] [--model NAME] [--seeds N]

The first table compares cost.name=predicted (the default) with cost.name=profiled, which times every kernel that a
search asks for and runs with seed 0 only. The shipped prior was trained on kernels of the same models, so a fair
comparison names a prior that was trained without them: `python -m benchmarks.kernel_prior --database FILE
--without-zoo PRIOR` writes one.

The second table compares the results of four models with those of `--seconds 600`, which also begin with an empty
database, but have the time to time every kernel. The share is ln(latency) / ln(latency of 600 seconds).

The third table has the runs that kept the original, with the measurement of their best candidate.

The fourth table has the seconds of `make demo`, of `make test` and of the installations before them, which depend on
the network. All of them run in a fresh clone of the last commit, with a fresh virtual environment, an empty home folder
and no cache.
"""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.optimise import optimise
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, NOTHING, ROOT, number, ratio
from rlflow.common.errors import RLFlowError
from rlflow.reports.run_comparison import mean_interval

SECONDS = 30  # value of `--seconds`; the page of `benchmarks.optimise` has the results for the default
COSTS = ("predicted", "profiled")
LONG, LONG_SECONDS = ("resnet18", "bert_base", "light_densenet121", "light_vgg19"), 600  # of the second table
COLUMNS = ("latency", "rewrites", "fewest", "s of timing", "s in all")  # of each cost
SHIPPED = "The prior is the shipped one, which was trained on kernels of these models, too."
LEFT_OUT = "The prior was trained without any kernel of these models."
STEPS = {  # name of the step in the table → make target that is timed in the clone
    "installation for `make demo`": ".venv/ready-demo",
    "`make demo`": "demo",
    "installation for `make test`": ".venv/ready-test",
    "`make test`": "test",
}


def first_run(model: str, cost: str, seed: int, prior: str | None, seconds: int = SECONDS) -> dict:
    """Return the result of `benchmarks.optimise.optimise` on a model with an empty timing database.

    Args:
        model: name of a model of the zoo.
        cost: value of cost.name.
        seed: seed of the run.
        prior: file of the prior of kernels; None for the shipped one.
        seconds: value of `--seconds`.
    """
    return optimise(model, seed, "--seconds", str(seconds), f"cost.name={cost}", prior=prior)


def head() -> str:
    """Return the hash of the last commit, which may have changed tests only."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def fresh_clone(commit: str) -> dict:
    """Run the make targets of STEPS in a fresh clone of the last commit and return name of the step → seconds.

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


def log_latency(run: dict) -> float:
    """Return the logarithm of the measured latency, as a share of the original's; 0 if the original was kept."""
    return math.log(run["measured"]["ratio"]) if run["measured"] else 0.0


def latency(runs: list[dict]) -> str:
    """Return the cell of the latency of one run, or of the geometric mean of several runs, with its interval.

    Args:
        runs: results of `first_run` with different seeds.
    """
    if len(runs) == 1:
        return ratio(runs[0]["measured"]) if runs[0]["measured"] else "1"
    logs = mean_interval([log_latency(run) for run in runs])
    return ratio({"ratio": math.exp(logs["mean"]), "interval": [math.exp(logs["low"]), math.exp(logs["high"])]})


def mean(values: Iterable[float]) -> float:
    return mean_interval(list(values))["mean"]


def cells(runs: list[dict]) -> list[str]:
    """Return the cells of COLUMNS: the latency, the fewest rewrites, and means of the other values.

    Args:
        runs: results of `first_run` with different seeds.
    """
    return [
        latency(runs), number(mean(run["rewrites"] for run in runs), 0),
        number(min((fewest for run in runs for fewest in run["unfinished"]), default=None), 0),
        number(mean(run["spent"].get("kernels", 0.0) for run in runs), 1),
        number(mean(run["seconds"] for run in runs), 0),
    ]  # fmt: skip


def tables(figures: dict[str, list[dict]], long: dict[str, dict], clone: dict | None) -> dict[str, Table]:
    """Return the tables of the page.

    Args:
        figures: "MODEL-COST" → results of `first_run` with different seeds, which are their "seed".
        long: model → result of `first_run` with LONG_SECONDS.
        clone: result of `fresh_clone`; None if this part failed.
    """
    heads = ["model", *(f"{cost}: {what}" for what in COLUMNS for cost in COSTS)]
    rows, logs, shares = [], {cost: [] for cost in COSTS}, []
    for model in dict.fromkeys(key.rpartition("-")[0] for key in figures):
        runs = {cost: figures.get(f"{model}-{cost}") for cost in COSTS}
        if not all(runs.values()):
            continue
        rows.append([model, *(cell for column in zip(*map(cells, runs.values()), strict=True) for cell in column)])
        for cost in COSTS:
            logs[cost].append(mean(map(log_latency, runs[cost])))
        if model in long:
            short, best = logs["predicted"][-1], log_latency(long[model])
            share = f"{short / best:.0%}" if best else NOTHING
            shares.append([model, latency(runs["predicted"]), latency([long[model]]), share])
    if rows:
        means = [f"{math.exp(mean(values)):.3f}" for values in logs.values()]
        rows.append(["geometric mean", *means, *[NOTHING] * (len(heads) - 1 - len(means))])
    kept = [
        [*key.rsplit("-", 1), run["seed"], run["reason"], ", ".join(map(ratio, run["verdicts"].values())) or NOTHING]
        for key, runs in figures.items() for run in runs if not run["measured"]
    ]  # fmt: skip
    kept_heads = ["model", "cost", "seed", "reason", "latency of the candidates in the run"]
    steps = Table(["step", "seconds"], [[step, number(taken, 0)] for step, taken in (clone or {}).items()])
    share_heads = ["model", f"latency after {SECONDS} s", f"latency after {LONG_SECONDS} s", "share of the log gain"]
    tables = {"found": Table(heads, rows), "long": Table(share_heads, shares)}
    return tables | {"kept": Table(kept_heads, kept, text_columns=4), "clone": steps}


def main() -> int:
    arguments = parser(__doc__, seeds=1)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--prior", metavar="FILE", help="file of the prior of kernels (default: the shipped one)")
    parsed = arguments.parse_args()
    record = Record("first_use", parsed)
    clone = record.part("clone", fresh_clone, head())
    models, seeds = parsed.model or MODELS, range(parsed.seeds)
    predicted, profiled = COSTS
    calls = {
        f"{one}-{predicted}-{seed}": (first_run, one, predicted, seed, parsed.prior)
        for seed in seeds for one in models
    }  # fmt: skip
    longer = [one for one in models if one in LONG]
    calls |= {f"{one}-long": (first_run, one, predicted, 0, parsed.prior, LONG_SECONDS) for one in longer}
    calls |= {f"{one}-{profiled}-0": (first_run, one, profiled, 0, parsed.prior) for one in models}
    parts = record.all_parts(calls)
    long = {one: parts.pop(f"{one}-long") for one in LONG if f"{one}-long" in parts}
    figures = {}
    for key, result in parts.items():
        name, _, seed = key.rpartition("-")
        figures.setdefault(name, []).append(result | {"seed": int(seed)})
    note = (
        f"`optimise --seconds {SECONDS}` with an empty timing database and one thread. Latency is measured, as a share "
        "of the original's; 1: the original was kept. Rewrites are those that the searches carried out; the fewest "
        "are those of one search that the time limit ended, in all rounds (–: all of them ended by themselves). "
        "With several seeds, a latency is the geometric mean of the runs and its 95 % interval, the other values are "
        "means. Profiled: seed 0 alone. "
    )
    record.publish(tables(figures, long, clone), note + (LEFT_OUT if parsed.prior else SHIPPED))
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
