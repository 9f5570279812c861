"""The command `report`: compare finished runs."""

from pathlib import Path

from rlflow.cli.command import add_command, ending
from rlflow.common.files import check_writable, read_json
from rlflow.common.messages import counted

TEXT = "compare finished runs by model, controller and seed: one HTML page, PNG, CSV and JSON"


def add(commands) -> None:
    command = add_command(commands, "report", run, TEXT)
    command.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs in which eval has finished")
    command.add_argument("--out", required=True, dest="folder", metavar="FOLDER", help="folder for the report")


def run(parsed) -> dict:
    from rlflow.reports.run_comparison import read_runs, write_comparison
    from worldmodel.boards import training_curves

    folder = Path(parsed.folder)
    check_writable(folder / "report.html")
    result = write_comparison(folder, read_runs([Path(run) for run in parsed.runs], training_curves))
    models = {row["model"] for row in result["runs"]}
    lines = {
        "result": f"{counted(len(parsed.runs), 'run')} of {counted(len(models), 'model')} side by side",
        "report": folder / "report.html",
        "table": folder / "summary.csv",
    }
    ending(lines, *following(Path(parsed.runs[0])))
    return result


def following(run: Path) -> tuple:
    """Return the words of the suggested next command: `bound` for the model of a run.

    Args:
      run: the folder of the first run that is compared.
    """
    from omegaconf import OmegaConf

    from rlflow.cli.command import model_words
    from rlflow.runs.config import read_options

    config = OmegaConf.create(read_options(run / "config.yaml"))  # refuses `${…}`, which reads the environment
    return ("bound", "--model", *model_words(config, run / read_json(run / "model.json")["source"]))
