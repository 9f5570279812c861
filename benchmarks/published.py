"""`run.py optimise`, as a user runs it, on models as people export them.

For each: is it delivered, equal within its own precision on other seeds, or returned unchanged, with exit status 0 and
a reason. The files are made once (`pip install '.[exports]'`) and kept in --folder, as is what each gave.
"""

import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.exports.models import EXPORTS
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from rlflow.common.files import read_json
from rlflow.deliver.validate import validate

JUDGES = (*ENGINE, "rlflow/deliver", "rlflow/search", "rlflow/costs", "benchmarks/exports")


def exported(name: str, folder: Path, seed: int) -> Path:
    """The file of a model; made in a process of its own, as exporters leave much behind."""
    path = folder.parent / f"{name}.onnx"  # whatever the rules are
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part.onnx")
        process = get_context("spawn").Process(target=EXPORTS[name], args=(made, seed))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name} could not be exported")
        made.rename(path)
    return path


def optimised(name: str, parsed) -> dict:
    source, out = exported(name, parsed.folder, parsed.seed), parsed.folder / f"{name}.onnx"
    command = [
        sys.executable, "run.py", "optimise", str(source), "--out", str(out), "--seconds", str(parsed.seconds),
        *parsed.overrides,
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    ended = {
        "exit_status": done.returncode,
        "seconds": time.monotonic() - started,
        "says": done.stderr.strip().splitlines()[-1],
    }
    if done.returncode:
        return ended
    result = read_json(out.with_suffix(".run") / "eval.json")
    findings = validate(source, out, seeds=(100, 101, 102))
    best = result["candidates"].get(result["delivered"], {})
    return ended | {
        "delivered": result["delivered"], "reason": result["reason"], "equal": findings.ok,
        "max_relative_error": findings.max_error,
        "estimated_improvement_percent": best.get("estimated_improvement_percent", 0.0),
        "measured": best.get("measured"),
        "returned_original": out.read_bytes() == source.read_bytes(), "left_out": best.get("left_out", []),
    }  # fmt: skip


def table(figures: dict) -> str:
    rows = []
    for name, one in figures["models"].items():
        measured, rules = (
            one.get("measured"),
            sorted({each["rule"] for each in one.get("left_out", []) if each["blame"] != "needed"}),
        )
        rows.append([
            name, one["exit_status"], one.get("delivered", "–"), f"{one.get('estimated_improvement_percent', 0):.2f} %",
            "{ratio:.3f} ({interval[0]:.3f} – {interval[1]:.3f}), {verdict}".format(**measured) if measured else "–",
            f"{one['max_relative_error']:.1e}" if "max_relative_error" in one else "–",
            f"{len(one['left_out'])} ({', '.join(rules)})" if rules else 0, f"{one['seconds']:.0f}",
        ])  # fmt: skip
    heads = [
        "model", "exit status", "delivered", "estimated gain", "measured, of the original's latency",
        "largest relative error", "rewrites left out", "seconds",
    ]  # fmt: skip
    return markdown(heads, rows)


def main() -> int:
    arguments = parser(__doc__, "runs/published")
    arguments.add_argument("--model", action="append", choices=list(EXPORTS), help="only these")
    arguments.add_argument("--seconds", type=float, default=120.0, help="what `optimise` gets")
    arguments.add_argument("overrides", nargs="*", help="options of run.py")
    parsed = arguments.parse_args()
    result = each(parsed.model or list(EXPORTS), parsed.folder, partial(optimised, parsed=parsed))
    bars = []
    for name, one in result.items():
        bars.append(bar(f"{name}: exit status", one["exit_status"], "", "0", one["exit_status"] == 0))
        bars.append(
            bar(
                f"{name}: equal within its own precision", one.get("max_relative_error"), "relative error",
                "all findings ok", one.get("equal", False),
            )
        )  # fmt: skip
    return finish("published", parsed, {"models": result}, bars)


if __name__ == "__main__":
    sys.exit(main())
