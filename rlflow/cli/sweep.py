"""`sweep`: every combination of some options, or what a sampler proposes, over several seeds."""

import sys
from pathlib import Path

from rlflow.cli.arguments import add_command
from rlflow.cli.wiring import check_names
from rlflow.common.files import check_writable
from rlflow.common.program import ROOT
from rlflow.common.progress import say

TEXT = "compare options: every combination, or what a sampler proposes, over several seeds"
PAGE = """\
Runs a sweep: every combination of some options (or so many that a sampler proposes), each with several seeds.

  python run.py sweep configs/sweeps/temperature.yaml --run runs/temperature

A sweep file says `model`, `base` (options of all trials), `parameters` (option: list, or {low, high, log} for
samplers; or a name of one's own with cases {NAME: {OPTION: value}}), `seeds`, `sampler` (grid, random or tpe, with
`trials` and `sampler_seed`), `pruner` (none, or median: a trial that is behind after its first seeds gets no more),
`objective` ({figure, direction}), `executor` (local or ray) and `workers`. Each run is a run folder in DIR/trials; what
runs have in common (episodes, world models) is made once, in DIR/shared. Killed at any moment, the same command goes
on, and so does one with a longer file.

DIR/report.md has the table and plots, trials.csv and trials.json one row a run, optuna.db Optuna's study;
`tensorboard --logdir DIR/tensorboard` shows the HParams view."""


def add(commands) -> None:
    command = add_command(commands, "sweep", run, TEXT, PAGE)
    command.add_argument("file", metavar="SWEEP.yaml", help="for example one of configs/sweeps/")
    command.add_argument("--run", required=True, metavar="DIR", help="folder of the sweep; everything goes there")


def run(parsed) -> dict:
    """All trials of a sweep; tables and pages are written after every block of trials."""
    from rlflow.runs.sweeps.file import load_sweep
    from rlflow.runs.sweeps.report import write_tables
    from rlflow.runs.sweeps.trials import run_sweep

    options, folder = load_sweep(parsed.file, check_names), Path(parsed.run)
    check_writable(folder / "report.md")
    results = {}

    def write(trials) -> None:
        results.update(write_tables(folder, options, trials, Path(parsed.file).stem))
        write_parameters(folder / "tensorboard", options, results["rows"])

    run_sweep(options, folder, this_program(), write)
    failed = sum(row["state"] == "failed" for row in results["rows"])
    again = f"; {failed} runs failed, the same command tries them again" if failed else ""
    say(f"report: {folder / 'report.md'}{again}")
    return {"ok": not failed, **results}


def this_program() -> tuple[str, ...]:
    """What a trial is begun with: the run.py of this checkout, or the installed package (-P: no other of that name)."""
    if (ROOT / "pyproject.toml").exists():
        return sys.executable, str(ROOT / "run.py")
    return sys.executable, "-P", "-m", "rlflow.cli"


def write_parameters(folder: Path, options, rows: list[dict]) -> None:
    """TensorBoard's HParams view of the rows, written anew."""
    from shutil import rmtree

    from rlflow.runs.sweeps.runs import FIGURES
    from worldmodel.monitor import EventWriter

    rmtree(folder, ignore_errors=True)
    for row in rows:
        if row["state"] == "failed":
            continue
        name = f"trial-{row['trial']:04d}"
        with EventWriter(folder / f"{name}-seed-{row['seed']}") as writer:
            writer.parameters(name, {parameter.name: row[parameter.name] for parameter in options.parameters})
            writer.scalars(0, {figure: row[figure] for figure in FIGURES})
