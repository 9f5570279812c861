"""`sweep`: every combination of some options, or what a sampler proposes, over several seeds."""

import sys
from collections import Counter
from pathlib import Path

from rlflow.cli.command import add_command, ending
from rlflow.common.errors import RLFlowError
from rlflow.common.files import check_writable
from rlflow.common.messages import ROOT, counted

TEXT = "compare options: every combination, or what a sampler proposes, over several seeds"
PAGE = """\
Runs a sweep: every combination of some options (or so many that a sampler proposes), each with several seeds.

  %(prog)s configs/sweeps/temperature.yaml --run runs/temperature

A sweep file says `model`, `base` (options of all trials), `parameters` (option: list, or {low, high, log} for
samplers; or a name of one's own with cases {NAME: {OPTION: value}}), `seeds`, `sampler` (grid, random or tpe, with
`trials` and `sampler_seed`), `pruner` (none, or median: a trial that is behind after its first seeds gets no more),
`objective` ({figure, direction}), `executor` (local or ray) and `workers`. Each run is a run folder in DIR/trials; what
runs have in common (episodes, world models) is made once, in DIR/shared. Killed at any moment, the same command goes
on, and so does one with a longer file.

DIR/report.md has the table and plots, trials.csv and trials.json one row a run, optuna.db Optuna's study;
`tensorboard --logdir DIR/tensorboard` shows the HParams view."""


def add(commands) -> None:
    command = add_command(commands, "sweep", run, TEXT, PAGE, resumes=True)
    command.add_argument("file", metavar="SWEEP.yaml", help="for example one of configs/sweeps/")
    command.add_argument("--run", required=True, metavar="DIR", help="folder of the sweep; everything goes there")


def run(parsed) -> dict:
    """All trials of a sweep; tables and pages are written after every block of trials."""
    from controllers.stages.parts import check_names
    from rlflow.runs.sweeps.definition import load_sweep
    from rlflow.runs.sweeps.tables import best, write_tables
    from rlflow.runs.sweeps.trials import run_sweep

    options, folder = load_sweep(parsed.file, check_names), Path(parsed.run)
    if (folder / "model.json").exists():  # whose curves would be taken for earlier ones of the sweep
        raise RLFlowError(f"{folder} is the folder of a run; a sweep needs one of its own")
    check_writable(folder / "report.md")
    results = {}

    def write(trials) -> None:
        results.update(write_tables(folder, options, trials, Path(parsed.file).stem))
        write_parameters(folder / "tensorboard", options, results["rows"])

    run_sweep(options, folder, this_program(), write)
    end_with(results["rows"], best(options, results["summary"]), folder, parsed.file)
    return {"ok": not any(row["state"] == "failed" for row in results["rows"]), **results}


def end_with(rows: list[dict], winner: dict | None, folder: Path, file: str) -> None:
    """winner: the best of the trials' summaries, None if none is finished."""
    states = Counter(row["state"] for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    result = f"{counted(len(rows), 'run')}: {counts}"
    lines = {"result": result, "report": folder / "report.md", "table": folder / "trials.csv"}
    if states["failed"] or winner is None:
        ending(lines, "sweep", file, "--run", folder)  # which tries again what failed
    else:
        seeds = [folder / row["folder"] for row in rows if row["trial"] == winner["trial"]]
        ending(lines, "report", *seeds, "--out", folder / "best")


def this_program() -> tuple[str, ...]:
    """What a trial is begun with: the run.py of this checkout, or the installed package (-P: no other of that name)."""
    if (ROOT / "pyproject.toml").exists():
        return sys.executable, str(ROOT / "run.py")
    return sys.executable, "-P", "-m", "rlflow.cli"


def write_parameters(folder: Path, options, rows: list[dict]) -> None:
    """TensorBoard's HParams view of the rows, written anew."""
    from shutil import rmtree

    from rlflow.runs.sweeps.runs import FIGURES
    from worldmodel.boards import EventWriter

    rmtree(folder, ignore_errors=True)
    for row in rows:
        if row["state"] == "failed":
            continue
        name = f"trial-{row['trial']:04d}"
        with EventWriter(folder / f"{name}-seed-{row['seed']}") as writer:
            writer.parameters(name, {parameter.name: row[parameter.name] for parameter in options.parameters})
            writer.scalars(0, {name: row[name] for name in FIGURES if row[name] is not None})
