"""`run.py optimise` with its defaults on the zoo: the six graphs of the papers and nine light models.

    python -m benchmarks.optimise [--model NAME]

Each run begins with an empty timing database. The delivered file is then judged from outside. It is measured beside the
original with other inputs, its outputs are compared on three other seeds, and the ONNX checker reads it. A replay of
the receipt in another process must write the same bytes.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, NOTHING, THREADS, number, ratio, run_rlflow
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.costs.measured import measure
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.validate import validate

MEASURE_SECONDS = 20.0
SEEDS = (100, 101, 102)  # of inputs that the run has not seen


def optimise(model: str, seed: int, *options: str) -> dict:
    """Return what `optimise` found for a model, and what an independent check says of the file.

    Args:
        model: a name of the zoo.
        seed: of the run.
        options: further options of the command.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        out, run_folder = folder / "out.onnx", folder / "run"
        seconds = run_rlflow(
            "optimise", model, "--out", out, "--run", run_folder, "--seed", seed, "--threads", THREADS,
            f"cost.database={folder / 'costs.sqlite'}", *options,
        )  # fmt: skip
        original, result = run_folder / "model.onnx", read_json(run_folder / "eval.json")
        best = result["candidates"].get(result["delivered"], {})
        is_original = out.read_bytes() == original.read_bytes()
        findings = validate(original, out, seeds=SEEDS)
        return {
            "seconds": seconds,
            "delivered": result["delivered"],
            "estimated": best.get("estimated_improvement_percent"),
            "measured": None if is_original else measure(original, out, THREADS, MEASURE_SECONDS, seed=1000 + seed),
            "equal": findings.ok and is_valid(out),
            "replayed": None if is_original else is_replayed(run_folder, original, out),
            "nodes": [len(load_graph(path).nodes) for path in (original, out)],
        }


def is_valid(path: Path) -> bool:
    """Check the model with ONNX's own full checker."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
        return True
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False


def is_replayed(run_folder: Path, original: Path, out: Path) -> bool:
    """Check that another process, with another hash seed, writes the same bytes from the receipt."""
    again, receipt = out.with_name("again.onnx"), run_folder / "eval" / "receipt.json"
    try:
        run_rlflow(
            "replay", receipt, "--model", original, "--out", again, env={**os.environ, "PYTHONHASHSEED": "12345"}
        )
    except RLFlowError:
        return False
    return again.read_bytes() == out.read_bytes()


def tables(figures: dict[str, dict]) -> dict[str, Table]:
    """Return the table of the page and the short one of README.md.

    Args:
        figures: model → result of `optimise`.
    """
    heads = ["model", "estimated gain", "measured latency, share of the original's (95 %)", "verdict", "nodes"]
    heads += ["added memory, MB", "equal outputs", "receipt replays", "seconds"]
    long, short = [], []
    for name, one in figures.items():
        measured = one["measured"]
        sizes = [measured[f"{side}_memory_bytes"] for side in ("original", "candidate")] if measured else [None]
        memory = NOTHING if None in sizes else "{:.0f} → {:.0f}".format(*(size / 1e6 for size in sizes))
        estimated = number(one["estimated"], 1, " %")
        verdict = measured["verdict"] if measured else "the original was kept"
        replays = NOTHING if one["replayed"] is None else "yes" if one["replayed"] else "no"
        equal = "yes" if one["equal"] else "no"
        nodes, seconds = "{} → {}".format(*one["nodes"]), number(one["seconds"], 0)
        long.append([name, estimated, ratio(measured), verdict, nodes, memory, equal, replays, seconds])
        short.append([name, estimated, ratio(measured), verdict])
    return {"measured": Table(heads, long), "short": Table(heads[:4], short)}


def main() -> int:
    arguments = parser(__doc__)
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
