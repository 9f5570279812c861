"""What becomes of a delivery: events, pages, the file for the user, and what to do with it."""

from collections.abc import Mapping
from pathlib import Path

from rlflow.cli.curves import draw_candidates
from rlflow.common.files import copy_file, read_json
from rlflow.common.messages import shape_words
from rlflow.common.task import ONE_SHOT
from rlflow.graph.onnx_runtime import machine
from rlflow.graph.onnx_writer import copy_model
from rlflow.reports.run_comparison import STAGES
from rlflow.zoo import ZOO


def write_up(run, outcome: dict) -> dict[str, str]:
    """Writes events and pages about what a delivery and the stages before left; the lines of the ending."""
    from worldmodel.boards import training_curves

    config, folder = run.config, run.path / "eval"
    draw_candidates(run, outcome["candidates"])
    stages = {name: result for name in STAGES if (result := run.results(name))}
    results = {
        "model": config.model, "seed": config.seed, "eval": outcome, "stages": stages, "machine": machine(),
        "versions": read_json(run.path / "versions.json"), "curves": training_curves(run.path / "tensorboard"),
    }  # fmt: skip
    return run.spec.report(run.task, results, folder)


def following(run, outcome: dict, out: Path | str) -> tuple:
    """The words of the command after a delivery: it checks the file, measures it on the machine that it is for, or says
    how much there was to gain at all.

    out: the delivered file.
    """
    if run.spec.shape == ONE_SHOT:
        seed = run.config.seed + 1
        again = f"{run.path}-seed-{seed}"
        return ("train-controller", "--run", again, "--config", run.path / "config.yaml", "--seed", seed)
    if run.config.task.name != "rewriting":
        return ("eval", "--run", run.path, "--what", "world-model")
    model, *shapes = model_words(run.config, run.source)
    if outcome["delivered"] == "original":
        return ("bound", "--model", model, *shapes)
    if outcome["target"] is not None:
        sizes = shape_words(run.config.shapes, fix=False)
        return ("measure", model, out, *sizes, "--threads", run.config.cost.threads)
    return ("validate", model, out, *shapes, *(["--exact"] if run.config.env.exact else []))


def model_words(config: Mapping, source: Path) -> list:
    """The model of a run and its sizes, for another command. source: its file, named where the zoo has none."""
    return [config.model if config.model in ZOO else source, *shape_words(config.shapes, config.fix)]


def copy_delivery(outcome: dict, out: Path) -> None:
    """Copies what was delivered to `out`, external weights and its fault report with it."""
    copy_model(Path(outcome["optimised"]), out, same=outcome["delivered"] == "original")
    copy_fault_report(outcome, out)


def copy_with_receipt(outcome: dict, out: Path) -> None:
    """As `copy_delivery`, and its receipt. That of an earlier one goes first: no model lies beside another's."""
    beside = out.with_suffix(".receipt.json")
    beside.unlink(missing_ok=True)
    copy_delivery(outcome, out)
    if outcome["delivered"] != "original":
        copy_file(Path(outcome["optimised"]).with_name("receipt.json"), beside)


def copy_fault_report(outcome: dict, out: Path) -> None:
    """Puts it beside the file that is delivered, and takes away that of an earlier one."""
    beside = out.with_suffix(".fault-report.md")
    if outcome["fault_report"] is None:
        beside.unlink(missing_ok=True)
    else:
        copy_file(Path(outcome["fault_report"]), beside)
