"""Results of `run.py optimise` with default options on six graphs of the papers and nine light models of the zoo.

    python -m benchmarks.optimise [--model NAME]

Each run begins with an empty timing database. The delivered file is then checked independently of the run: its latency
is compared with the original's on other inputs, its outputs are compared with the original's for three further seeds,
and the ONNX checker checks it. A replay of the receipt in another process must write the same bytes.
"""

import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, NOTHING, THREADS, number, ratio, run_rlflow
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.costs.measured import measure
from rlflow.costs.predicted import prior_path
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.validate import validate

MEASURE_SECONDS = 20.0
SEEDS = (100, 101, 102)  # seeds of random inputs that the run has not used


def optimise(model: str, seed: int, *options: str, prior: str | None = None, database: Path | None = None) -> dict:
    """Run `run.py optimise` on a model and check the delivered file.

    Args:
        model: name of a model of the zoo.
        seed: seed of the run.
        options: further options of the command.
        prior: file of a prior of kernels, which replaces the shipped one; None for the shipped one.
        database: file of the timings; None for an empty database.

    Returns:
        "seconds": duration of the command. "spent": part of the run → seconds (`rlflow.common.spending`). "rewrites":
            rewrites that the searches carried out. "unfinished": rewrites of each search that the time limit ended
            in its last round, in all rounds together.
            "delivered": name of the delivered candidate, or "original". "reason": why it was delivered. "verdicts":
            name of each measured candidate → the ratio of its latency to the original's and its 95 % interval, as the
            run measured them. "estimated": estimated gain of this candidate in percent, or None. "measured": result of
            `rlflow.costs.measured.measure`, or None for the original. "replayed": True if the replay of the receipt
            writes the same bytes, or None for the original. "equal": True if the outputs are equal and the ONNX
            checker accepts the file. "nodes": number of nodes of the original and of the file.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        out, run_folder, database = folder / "out.onnx", folder / "run", database or folder / "costs.sqlite"
        if prior is not None:
            shutil.copy(prior, prior_path(database))
        seconds = run_rlflow(
            "optimise", model, "--out", out, "--run", run_folder, "--seed", seed, "--threads", THREADS,
            f"cost.database={database}", *options,
        )  # fmt: skip
        original, result = run_folder / "model.onnx", read_json(run_folder / "eval.json")
        searches = read_json(run_folder / "search.json")
        rewrites = Counter()
        for one in searches.get("rounds", []):  # with the predicted cost
            rewrites.update(one["rewrites"])
        rewrites = rewrites or Counter({name: one["interactions"] for name, one in searches["methods"].items()})
        best = result["candidates"].get(result["delivered"], {})
        is_original = out.read_bytes() == original.read_bytes()
        findings = validate(original, out, seeds=SEEDS)
        return {
            "seconds": seconds,
            "spent": result["spent"],
            "rewrites": rewrites.total(),
            "unfinished": [rewrites[name] for name, one in searches["methods"].items() if one["stop"] == "seconds"],
            "delivered": result["delivered"],
            "reason": result["reason"],
            "verdicts": {
                candidate: {key: one["measured"][key] for key in ("ratio", "interval")}
                for candidate, one in result["candidates"].items() if one["measured"]
            },
            "estimated": best.get("estimated_improvement_percent"),
            "measured": None if is_original else measure(original, out, THREADS, MEASURE_SECONDS, seed=1000 + seed),
            "equal": findings.ok and is_valid(out),
            "replayed": None if is_original else is_replayed(run_folder, original, out),
            "nodes": [len(load_graph(path).nodes) for path in (original, out)],
        }


def is_valid(path: Path) -> bool:
    """Return True if `onnx.checker.check_model` with full_check=True accepts the file."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
        return True
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False


def is_replayed(run_folder: Path, original: Path, out: Path) -> bool:
    """Return True if `run.py replay` of the receipt, in a process with another hash seed, writes the same bytes.

    Args:
        run_folder: run folder with eval/receipt.json.
        original: file of the original model.
        out: delivered file; the replayed file is written to the same folder.
    """
    again, receipt = out.with_name("again.onnx"), run_folder / "eval" / "receipt.json"
    try:
        run_rlflow(
            "replay", receipt, "--model", original, "--out", again, env={**os.environ, "PYTHONHASHSEED": "12345"}
        )
    except RLFlowError:
        return False
    return again.read_bytes() == out.read_bytes()


def tables(figures: dict[str, dict]) -> dict[str, Table]:
    """Return the table of the page.

    Args:
        figures: model → result of `optimise`.
    """
    heads = ["model", "estimated gain", "measured latency, share of the original's (95 %)", "verdict", "nodes"]
    heads += ["added memory, MB", "equal outputs", "receipt replays", "seconds"]
    rows = []
    for name, one in figures.items():
        measured = one["measured"]
        sizes = [measured[f"{side}_memory_bytes"] for side in ("original", "candidate")] if measured else [None]
        memory = NOTHING if None in sizes else "{:.0f} → {:.0f}".format(*(size / 1e6 for size in sizes))
        estimated = number(one["estimated"], 1, " %")
        verdict = measured["verdict"] if measured else "the original was kept"
        replays = NOTHING if one["replayed"] is None else "yes" if one["replayed"] else "no"
        equal = "yes" if one["equal"] else "no"
        nodes, seconds = "{} → {}".format(*one["nodes"]), number(one["seconds"], 0)
        rows.append([name, estimated, ratio(measured), verdict, nodes, memory, equal, replays, seconds])
    return {"measured": Table(heads, rows)}


def main() -> int:
    arguments = parser(__doc__, seeds=1)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    parsed = arguments.parse_args()
    record = Record("optimise", parsed)
    models, seeds = parsed.model or MODELS, range(parsed.seeds)
    figures = record.all_parts({f"{name}-{seed}": (optimise, name, seed) for name in models for seed in seeds})
    if parsed.seeds == 1:
        figures = {key.removesuffix("-0"): one for key, one in figures.items()}
    record.publish(tables(figures), "Each run began with an empty timing database and measured with one thread.")
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
