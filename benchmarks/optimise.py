"""`run.py optimise` with its defaults on whole models: the paper's six and the nine light ones.

For every model: does it end in time, is the result a valid model that ONNX Runtime runs, equal to the original on three
seeds (relative error ≤ 1e-4, the tensors before saturating outputs too), with the same inputs and outputs, with an
estimated cost that is not above the original's, does its receipt replay to the same bytes in another process, and is
it, in a measurement of its own with other inputs, not slower? `--learn` lets a controller learn, too. `--table` prints
the Markdown of docs/results/optimise.md instead of JSON.

Resumable: what each model gave lies in --folder, and each run can be killed and goes on.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import onnx

from benchmarks.harness import THREADS, bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from benchmarks.locations import PAPER
from rlflow.common.files import read_json
from rlflow.costs.measured import measure
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.validate import validate

JUDGES = (*ENGINE, "rlflow/deliver", "rlflow/search", "rlflow/costs")

STAGES = ("search", "collect", "train-wm", "train-controller", "eval")
LIGHT = [
    "light_squeezenet", "light_resnet50", "light_inception_v1", "light_inception_v2", "light_densenet121",
    "light_shufflenet", "light_vgg19", "light_bvlc_alexnet", "light_zfnet512",
]  # fmt: skip
MODELS = [*PAPER, *LIGHT]
SECONDS = {False: 120, True: 900}  # with --learn or without
CHECKS = 1.5  # times that: checks that have begun are finished
MEASURE = 20.0  # seconds of the measurement of its own


def optimise(name: str, parsed) -> dict:
    """Runs the command as a user would, then checks what it wrote with nothing taken from the run itself."""
    run, out = parsed.folder / f"{name}.run", parsed.folder / f"{name}.onnx"
    command = [
        sys.executable, "run.py", "optimise", name, "--out", str(out), "--run", str(run), "--seed", str(parsed.seed),
        "--threads", str(THREADS),
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(
        [*command, *(["--learn"] if parsed.learn else []), *parsed.overrides], stderr=subprocess.PIPE, text=True
    )
    seconds = time.monotonic() - started
    if done.returncode:
        return {"seconds": seconds, "error": done.stderr.strip().splitlines()[-1]}
    original, result = run / "model.onnx", read_json(run / "eval.json")
    if parsed.learn and "controller" not in result["candidates"]:
        return {"seconds": seconds, "error": "the time was up before a controller had learnt"}
    findings, same = validate(original, out, seeds=(100, 101, 102)), out.read_bytes() == original.read_bytes()
    spec = EnvSpec(str(original), cost=result_cost(run), threads=THREADS)
    cost, before = spec.make_task(), load_graph(original)
    after = EnvSpec(str(out), cost=spec.cost, threads=THREADS).make_task()
    return {
        "seconds": seconds,
        "stages": {s: read_json(run / f"{s}.json")["seconds"] for s in STAGES if (run / f"{s}.json").exists()},
        "equal": findings.ok,
        "max_relative_error": findings.max_error,
        "checker": checked(out),
        "estimated_ratio": after.initial.runtime_ms / cost.initial.runtime_ms,
        "delivered": result["delivered"],
        "reason": result["reason"],
        "dreamt": result["dreamt"],
        "candidates": {
            who: {
                key: outcome[key]
                for key in ("estimated_improvement_percent", "measured", "substitutions", "interactions", "equal")
            }
            for who, outcome in result["candidates"].items()
        },
        "again": None if same else measure(original, out, seconds=MEASURE, seed=1000 + parsed.seed),
        "replayed": replayed(run, original, out, parsed.folder) if result["delivered"] != "original" else None,
        "returned_original": same,
        "nodes": [len(before.nodes), len(load_graph(out).nodes)],
    }


def result_cost(run: Path) -> str:
    return read_json(run / "model.json")["task"]["cost"]["name"]


def checked(path: Path) -> bool:
    try:
        onnx.checker.check_model(str(path), full_check=True)
        return True
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False


def replayed(run: Path, original: Path, out: Path, folder: Path) -> bool:
    """Whether another process, with another hash seed, makes the same bytes from the receipt."""
    again = folder / "replayed.onnx"
    command = [
        sys.executable, "run.py", "replay", str(run / "eval" / "receipt.json"), "--model", str(original), "--out",
        str(again),
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "12345"}, capture_output=True)
    same = done.returncode == 0 and again.read_bytes() == out.read_bytes()
    again.unlink(missing_ok=True)
    return same


def bars_of(name: str, result: dict, limit: float) -> list[dict]:
    if "error" in result:
        return [bar(f"{name}: completes", None, "", result["error"], False)]
    gained, again = result["delivered"] != "original", result["again"]
    return [
        bar(f"{name}: time", result["seconds"], "s", f"≤ {limit:.0f}", result["seconds"] <= limit),
        bar(f"{name}: passes the checker", result["checker"], "", "true", result["checker"]),
        bar(
            f"{name}: equal, same interface", result["max_relative_error"], "relative error", "≤ 1e-4", result["equal"],
        ),
        bar(
            f"{name}: estimated cost", result["estimated_ratio"], "of the original's", "≤ 1",
            result["estimated_ratio"] <= 1,
        ),
        bar(
            f"{name}: receipt replays, or the original is returned", result["replayed"] if gained else None, "", "true",
            result["replayed"] if gained else result["returned_original"],
        ),
        bar(
            f"{name}: measured anew", again["ratio"] if again else None, "of the original's latency",
            "not shown to be slower",
            again is None or again["verdict"] != "slower",
        ),
    ]  # fmt: skip


def table(figures: dict) -> str:
    """The rows of its page."""
    lines = [
        "| model | delivered | estimated gain | measured by `optimise` | measured anew | ms | MB | nodes | seconds |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, result in figures.items():
        if "error" in result:
            lines.append(f"| {name} | {result['error']} |")
            continue
        best, again = result["candidates"].get(result["delivered"]), result["again"]
        cells = [
            name, result["delivered"], f"{best['estimated_improvement_percent']:.2f} %" if best else "–",
            ratio(best and best["measured"]), ratio(again),
            f"{again['original_ms']:.2f} → {again['candidate_ms']:.2f}" if again else "–", memory(again),
            "{} → {}".format(*result["nodes"]), f"{result['seconds']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(figures: dict) -> str:
    """What the README shows of each model: the estimate and the measurement anew of what was delivered."""
    rows = []
    for name, result in figures.items():
        best = result["candidates"].get(result["delivered"])
        estimated = f"{best['estimated_improvement_percent']:.1f} % faster" if best else "no gain: the original"
        rows.append([name, estimated, ratio(result["again"])])
    return markdown(["model", "estimated", "measured, of the original's latency"], rows, words=3)


def ratio(measured: dict | None) -> str:
    """Candidate / original latency with its 95 % interval, and what may be said of it."""
    return (
        "{:.3f} ({:.3f} – {:.3f}), {}".format(measured["ratio"], *measured["interval"], measured["verdict"])
        if measured
        else "–"
    )


def memory(measured: dict | None) -> str:
    """What a session of each adds to the process."""
    memory = [measured[f"{side}_memory_bytes"] for side in ("original", "candidate")] if measured else [None]
    return "–" if None in memory else "{:.0f} → {:.0f}".format(*[n / 1e6 for n in memory])


def main() -> int:
    arguments = parser(__doc__, "runs/optimise")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--learn", action="store_true", help="optimise --learn")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    names = parsed.model or MODELS
    figures = each(names, parsed.folder, lambda name: optimise(name, parsed))
    if parsed.table:
        print(table(figures))
        return 0
    limit = CHECKS * SECONDS[parsed.learn]
    return finish("optimise", parsed, figures, [b for name in names for b in bars_of(name, figures[name], limit)])


if __name__ == "__main__":
    sys.exit(main())
