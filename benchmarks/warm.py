"""Results of `optimise --seconds 120` with a timing database that an earlier run has filled.

    python -m benchmarks.warm [--model NAME] [--seeds N]

For each model and seed, a run with cost.name=profiled fills a database: it times every kernel that its searches ask
for. Two runs with another seed then begin with equal copies of this database, one with cost.name=predicted (the
default), the other with cost.name=profiled, which needed a full database to search as far. The table shows whether
predictions lose anything where timings are known.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.first_use import COSTS, LONG, latency, mean
from benchmarks.optimise import optimise
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, number

SECONDS = 120  # value of `--seconds`
FIRST_SEED = 1000  # seed of the run that fills the database for seed 0


def warm_runs(model: str, seed: int) -> dict[str, dict]:
    """Fill a database, and return name of the cost → result of `benchmarks.optimise.optimise` with a copy of it.

    Args:
        model: name of a model of the zoo.
        seed: seed of the runs that are compared.
    """
    options = "--seconds", str(SECONDS)
    with TemporaryDirectory() as name:
        filled = Path(name) / "costs.sqlite"
        optimise(model, FIRST_SEED + seed, *options, "cost.name=profiled", database=filled)
        results = {}
        for cost in COSTS:
            database = filled.with_name(f"{cost}.sqlite")
            shutil.copy(filled, database)
            results[cost] = optimise(model, seed, *options, f"cost.name={cost}", database=database)
        return results


def tables(figures: dict[str, list[dict]]) -> dict[str, Table]:
    """Return the table of the page.

    Args:
        figures: model → results of `warm_runs` with different seeds.
    """
    columns = ("latency", "rewrites", "s of timing", "s in all")
    rows = []
    for model, seeds in figures.items():
        runs = {cost: [one[cost] for one in seeds] for cost in COSTS}
        cells = [
            [
                latency(of), number(mean(one["rewrites"] for one in of), 0),
                number(mean(one["spent"].get("kernels", 0.0) for one in of), 1),
                number(mean(one["seconds"] for one in of), 0),
            ]
            for of in runs.values()
        ]  # fmt: skip
        rows.append([model, *(cell for column in zip(*cells, strict=True) for cell in column)])
    return {"warm": Table(["model", *(f"{cost}: {what}" for what in columns for cost in COSTS)], rows)}


def main() -> int:
    arguments = parser(__doc__, seeds=1)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    parsed = arguments.parse_args()
    record, models = Record("warm", parsed), parsed.model or LONG
    figures: dict[str, list[dict]] = {}
    calls = {f"{model}-{seed}": (warm_runs, model, seed) for seed in range(parsed.seeds) for model in models}
    for key, result in record.all_parts(calls).items():
        figures.setdefault(key.rpartition("-")[0], []).append(result)
    note = (
        f"`optimise --seconds {SECONDS}` with one thread. Latency is measured, as a share of the original's; 1: the "
        "original was kept. The prior is the shipped one."
    )
    record.publish(tables(figures), note)
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
