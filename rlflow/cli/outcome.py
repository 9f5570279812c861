"""What becomes of a delivery: events, pages and the file for the user."""

from pathlib import Path

from rlflow.cli.wiring import events
from rlflow.common.files import copy_file, read_json
from rlflow.common.progress import say
from rlflow.graph.onnx_copy import copy_model
from rlflow.graph.onnx_runtime import machine
from rlflow.reports.comparison import STAGES


def write_up(run, outcome: dict) -> None:
    """Events, pages and some lines about what a delivery and the stages before left."""
    from worldmodel.curves import read_curves

    config, folder = run.config, run.path / "eval"
    for name, result in outcome["candidates"].items():
        with events(run, f"eval-{name}") as writer:
            for step, milliseconds in enumerate(result.get("path_ms", ())):
                writer.scalars(step, {"eval/estimated_ms": milliseconds})
    stages = {name: result for name in STAGES if (result := run.results(name))}
    results = {
        "model": config.model, "seed": config.seed, "eval": outcome, "stages": stages, "machine": machine(),
        "versions": read_json(run.path / "versions.json"), "curves": read_curves(run.path / "tensorboard"),
    }  # fmt: skip
    for line in run.spec.report(run.task, results, folder):
        say(line)


def copy_delivery(outcome: dict, out: Path) -> None:
    """Copies what was delivered to `out`, external weights and its fault report with it."""
    copy_model(Path(outcome["optimised"]), out, same=outcome["delivered"] == "original")
    copy_fault_report(outcome, out)


def copy_receipt(outcome: dict, out: Path) -> None:
    """Puts the receipt beside the file that is delivered, and takes away that of an earlier one."""
    beside = out.with_suffix(".receipt.json")
    if outcome["delivered"] == "original":
        beside.unlink(missing_ok=True)
    else:
        copy_file(Path(outcome["optimised"]).with_name("receipt.json"), beside)


def copy_fault_report(outcome: dict, out: Path) -> None:
    """Puts it beside the file that is delivered, and takes away that of an earlier one."""
    beside = out.with_suffix(".fault-report.md")
    if outcome["fault_report"] is None:
        beside.unlink(missing_ok=True)
    else:
        copy_file(Path(outcome["fault_report"]), beside)
