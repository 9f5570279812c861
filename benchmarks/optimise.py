"""`run.py optimise --learn` with its defaults on whole models: the nine light ones and BERT-Base.

For every model: does it end within 15 minutes, is the result a valid model that ONNX Runtime runs, equal to the
original on three seeds (relative error ≤ 1e-4, the tensors before saturating outputs too), with the same inputs
and outputs, with an estimated cost that is not above the original's, and does its receipt replay to the same
bytes in another process? `--table` prints the Markdown of docs/RESULTS.md instead of JSON.

Resumable: what each model gave lies in --folder, and each run can be killed and goes on.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import onnx

from benchmarks.harness import bar, each, finish, parser
from rlflow.files import read_json
from rlflow.graph.onnx_reader import load_graph
from rlflow.rollouts import EnvSpec
from rlflow.validate import validate

LIGHT = [
    "light_squeezenet", "light_resnet50", "light_inception_v1", "light_inception_v2", "light_densenet121",
    "light_shufflenet", "light_vgg19", "light_bvlc_alexnet", "light_zfnet512",
]  # fmt: skip
MODELS = [*LIGHT, "bert_base"]
SECONDS = 900


def optimise(name: str, folder: Path, seed: int, overrides: list[str]) -> dict:
    """Runs the command as a user would, then checks what it wrote with nothing taken from the run itself."""
    run, out = folder / f"{name}.run", folder / f"{name}.onnx"
    command = [sys.executable, "run.py", "optimise", name, "--learn", "--out", str(out), "--run", str(run), "--seed", str(seed)]
    started = time.monotonic()
    done = subprocess.run([*command, *overrides], stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - started
    if done.returncode:
        return {"seconds": seconds, "error": done.stderr.strip().splitlines()[-1]}
    original, result = run / "model.onnx", read_json(run / "eval.json")
    if "controller" not in result["candidates"]:
        return {"seconds": seconds, "error": "the time was up before a controller had learnt"}
    findings = validate(original, out, seeds=(100, 101, 102))
    spec = EnvSpec(str(original), cost=result_cost(run), database=None)
    cost, before = spec.make_task(), load_graph(original)
    after = EnvSpec(str(out), cost=spec.cost).make_task()
    return {
        "seconds": seconds,
        "stages": {s: read_json(run / f"{s}.json")["seconds"] for s in ("collect", "train-wm", "train-controller", "eval")},
        "equal": findings.ok,
        "max_relative_error": findings.max_error,
        "checker": checked(out),
        "estimated_ratio": after.initial.runtime_ms / cost.initial.runtime_ms,
        "interactions": result["candidates"]["controller"]["interactions"],
        "delivered": result["delivered"],
        "reason": result["reason"],
        "dreamt": result["dreamt"],
        "fidelity_5": fidelity_at(run, "5"),
        "candidates": {
            who: {
                key: found[key]
                for key in ("estimated_improvement_percent", "measured", "substitutions", "interactions", "equal")
            }
            for who, found in result["candidates"].items()
        },
        "replayed": replayed(run, original, out, folder) if result["delivered"] != "original" else None,
        "returned_original": out.read_bytes() == original.read_bytes(),
        "nodes": [len(before.nodes), len(load_graph(out).nodes)],
    }


def result_cost(run: Path) -> str:
    return read_json(run / "model.json")["task"]["cost"]["name"]


def fidelity_at(run: Path, horizon: str) -> dict | None:
    fidelity = read_json(run / "train-wm.json")["fidelity"]
    return fidelity["horizons"].get(horizon) if fidelity else None


def checked(path: Path) -> bool:
    try:
        onnx.checker.check_model(str(path), full_check=True)
        return True
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False


def replayed(run: Path, original: Path, out: Path, folder: Path) -> bool:
    """Whether another process, with another hash seed, makes the same bytes from the receipt."""
    again = folder / "replayed.onnx"
    command = [sys.executable, "run.py", "replay", str(run / "eval" / "receipt.json"), "--model", str(original), "--out", str(again)]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "12345"}, capture_output=True)
    same = done.returncode == 0 and again.read_bytes() == out.read_bytes()
    again.unlink(missing_ok=True)
    return same


def bars_of(name: str, found: dict) -> list[dict]:
    if "error" in found:
        return [bar(f"{name}: completes", None, "", found["error"], False)]
    gained = found["delivered"] != "original"
    return [
        bar(f"{name}: time", found["seconds"], "s", f"≤ {SECONDS}", found["seconds"] <= SECONDS),
        bar(f"{name}: passes the checker", found["checker"], "", "true", found["checker"]),
        bar(f"{name}: equal, same interface", found["max_relative_error"], "relative error", "≤ 1e-4", found["equal"]),
        bar(f"{name}: estimated cost", found["estimated_ratio"], "of the original's", "≤ 1", found["estimated_ratio"] <= 1),
        bar(
            f"{name}: receipt replays, or the original is returned", found["replayed"] if gained else None, "", "true",
            found["replayed"] if gained else found["returned_original"],
        ),
    ]  # fmt: skip


def table(figures: dict) -> str:
    """The rows of docs/RESULTS.md."""
    lines = [
        "| model | real interactions | dreamt gain (real, as many steps) | controller | greedy | random | delivered "
        "| collect / train-wm / train-controller / eval (s) |",
        "| --- | ---: | ---: | --- | --- | --- | --- | --- |",
    ]
    for name, found in figures.items():
        if "error" in found:
            lines.append(f"| {name} | {found['error']} |")
            continue
        cells = " | ".join(outcome(found["candidates"][who]) for who in ("controller", "greedy", "random"))
        dreamt = ", ".join(f"{d['dreamt_return']:.2f} % ({d['real_return']:.2f} %)" for d in found["dreamt"])
        seconds = " / ".join(f"{s:.0f}" for s in found["stages"].values())
        lines.append(f"| {name} | {found['interactions']} | {dreamt} | {cells} | {found['delivered']} | {seconds} |")
    return "\n".join(lines)


def outcome(candidate: dict) -> str:
    """Estimated gain, then the measured ratio of latencies with its 95 % interval."""
    gain, measured = f"{candidate['estimated_improvement_percent']:.2f} %", candidate["measured"]
    if not measured:
        return f"{gain}; not measured"
    return f"{gain}; {measured['ratio']:.3f} ({measured['interval'][0]:.3f} – {measured['interval'][1]:.3f})"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--folder", type=Path, default=Path("runs/optimise"), help="where runs and results are kept")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    names = parsed.model or MODELS
    figures = each(names, parsed.folder, lambda name: optimise(name, parsed.folder, parsed.seed, parsed.overrides))
    if parsed.table:
        print(table(figures))
        return 0
    return finish("optimise", parsed, figures, [b for name in names for b in bars_of(name, figures[name])])


if __name__ == "__main__":
    sys.exit(main())
