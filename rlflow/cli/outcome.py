"""What becomes of candidates: checks, measurements and the choice; then events, pages and the file for the user."""

from pathlib import Path

from rlflow.cli.wiring import events
from rlflow.common.files import copy_file, read_json
from rlflow.common.progress import say
from rlflow.deliver.delivery import DeliveryOptions, deliver
from rlflow.graph.onnx_runtime import machine
from rlflow.reports.comparison import STAGES


def check_and_choose(run, candidates, folder: Path, measure_seconds: float, **options) -> dict:
    """What `deliver` makes of the candidates. options: further ones of `deliver`."""
    config = run.config
    checks = DeliveryOptions(
        list(config.eval.seeds), config.eval.tolerance, measure_seconds, config.eval.sessions, config.cost.threads,
        config.seed, config.env.exact,
    )  # fmt: skip
    return deliver(run.task, run.source, candidates, folder, checks, run.shapes, list(config.env.rules), **options)


def write_up(run, outcome: dict) -> None:
    """Events, pages and a line about what `check_and_choose` and the stages before left."""
    from rlflow.reports.html import write_html
    from rlflow.reports.markdown import summary_line, write_report
    from worldmodel.curves import read_curves

    config, folder = run.config, run.path / "eval"
    for name, result in outcome["candidates"].items():
        with events(run, f"eval-{name}") as writer:
            for step, milliseconds in enumerate(result["path_ms"]):
                writer.scalars(step, {"eval/estimated_ms": milliseconds})
    stages = {name: result for name in STAGES if (result := run.results(name))}
    results = {
        "model": config.model, "seed": config.seed, "eval": outcome, "stages": stages, "machine": machine(),
        "versions": read_json(run.path / "versions.json"), "curves": read_curves(run.path / "tensorboard"),
    }  # fmt: skip
    write_report(folder, results)
    say(summary_line(outcome))
    say(f"model:  {outcome['optimised']}\nreport: {write_html(folder, results, run.task)}")


def copy_fault_report(outcome: dict, out: Path) -> None:
    """Puts it beside the file that is delivered, and takes away that of an earlier one."""
    beside = out.with_suffix(".fault-report.md")
    if outcome["fault_report"] is None:
        beside.unlink(missing_ok=True)
    else:
        copy_file(Path(outcome["fault_report"]), beside)
