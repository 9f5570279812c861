"""The command `sweep`: compare combinations of options over several seeds."""

import sys
from collections import Counter
from functools import partial
from pathlib import Path

from rlflow.cli.command import add_command, add_custom_ops, ending
from rlflow.common.errors import RLFlowError
from rlflow.common.files import check_writable
from rlflow.common.messages import ROOT, counted

TEXT = "compare combinations of options, all or those that a sampler proposes, over several seeds"
PAGE = """\
Runs a sweep: all combinations of some options, or a number of combinations that a sampler proposes, with several
seeds each.

  %(prog)s configs/sweeps/temperature.yaml --run runs/temperature

The keys of a sweep file:

  model        zoo name or path of an ONNX file
  base         options of all trials
  parameters   option: list of values, or {low, high, log} for samplers; or a new name with cases
               {NAME: {OPTION: value}}
  seeds        list of seeds
  sampler      grid, random or tpe, with `trials` and `sampler_seed`
  pruner       none, or median: a trial whose first seeds are worse than the median of the earlier trials gets no
               further seeds, from the sixth trial on
  objective    {figure, direction}
  executor     local or ray, with `workers`

Each run has a folder in DIR/trials. Episodes and world models that several runs share are made once, in DIR/shared. A
killed sweep continues with the same command, also with a longer file.

A run whose training diverged has the state `diverged`. Neither failed nor diverged trials are ranked.

DIR/report.md holds the table and plots, trials.csv and trials.json one row for each run, and optuna.db Optuna's study.
`tensorboard --logdir DIR/tensorboard` shows the HParams view."""


def add(commands) -> None:
    command = add_command(commands, "sweep", run, TEXT, PAGE, resumes=True)
    command.add_argument("file", metavar="SWEEP.yaml", help="a sweep file, for example one in configs/sweeps/")
    command.add_argument("--run", required=True, metavar="DIR", help="folder of the sweep, for all its files")
    add_custom_ops(command)


def run(parsed) -> dict:
    """Run all trials of a sweep, and write the tables and pages again after every block of trials."""
    from controllers.stages.parts import check_names
    from rlflow.graph import custom_ops
    from rlflow.runs.sweeps.definition import load_sweep
    from rlflow.runs.sweeps.tables import best, write_tables
    from rlflow.runs.sweeps.trials import BEGUN, run_sweep

    options, folder = load_sweep(parsed.file, partial(check_names, learns=True)), Path(parsed.run)
    if (folder / "model.json").exists():  # its curves would count as earlier ones of the sweep
        raise RLFlowError(f"{folder} is the folder of a run. Pass another --run: a sweep needs a folder of its own")
    if (folder / "tensorboard").exists() and not any((folder / name).exists() for name in (BEGUN, "trials.json")):
        raise RLFlowError(f"{folder}/tensorboard is of no sweep and would be replaced. Pass another --run")
    check_writable(folder / "report.md")
    results = {}

    def write(trials) -> None:
        results.update(write_tables(folder, options, trials, Path(parsed.file).stem))
        write_parameters(folder / "tensorboard", options, results["rows"])

    libraries = [word for path in custom_ops.loaded() for word in ("--custom-ops", path)]
    run_sweep(options, folder, this_program(), write, libraries)
    winner = best(options, results["summary"])
    end_with(results["rows"], winner, folder, parsed.file)
    return {"ok": winner is not None and not any(row["state"] == "failed" for row in results["rows"]), **results}


def end_with(rows: list[dict], winner: dict | None, folder: Path, file: str) -> None:
    """Print the last lines of the command.

    Args:
      rows: the rows of trials.json, one for each run.
      winner: the summary of the best trial, or None if no trial is finished.
      folder: the folder of the sweep.
      file: the sweep file.
    """
    states = Counter(row["state"] for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    result = f"{counted(len(rows), 'run')}: {counts}"
    lines = {"result": result, "report": folder / "report.md", "table": folder / "trials.csv"}
    if states["failed"] or winner is None:
        ending(lines, "sweep", file, "--run", folder)  # runs the failed trials again
    else:
        seeds = [folder / row["folder"] for row in rows if row["trial"] == winner["trial"]]
        ending(lines, "report", *seeds, "--out", folder / "best")


def this_program() -> tuple[str, ...]:
    """Return the words that start this program in a new process: run.py of a checkout, or the installed package.

    With `-P`, Python does not import a package `rlflow` from the working directory.
    """
    if (ROOT / "pyproject.toml").exists():
        return sys.executable, str(ROOT / "run.py")
    return sys.executable, "-P", "-m", "rlflow.cli"


def write_parameters(folder: Path, options, rows: list[dict]) -> None:
    """Write the files of TensorBoard's HParams view, and delete earlier ones.

    Args:
      folder: the folder for the files.
      options: the `Sweep`.
      rows: the rows of trials.json, one for each run. A run that failed or diverged has the status failure.
    """
    from shutil import rmtree

    from rlflow.runs.sweeps.runs import FIGURES
    from worldmodel.boards import EventWriter

    rmtree(folder, ignore_errors=True)
    for row in rows:
        name = f"trial-{row['trial']:04d}"
        with EventWriter(folder / f"{name}-seed-{row['seed']}") as writer:
            writer.parameters(name, {parameter.name: row[parameter.name] for parameter in options.parameters})
            writer.scalars(0, {name: row[name] for name in FIGURES if row[name] is not None})
            writer.status(row["state"] in ("finished", "pruned"))
