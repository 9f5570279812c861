"""`report`: finished runs side by side."""

from pathlib import Path

from rlflow.cli.command import add_command, ending
from rlflow.common.files import check_writable, read_json
from rlflow.common.messages import counted

TEXT = "one report over several finished runs: models × controllers × seeds, as Markdown, PNG, CSV and one HTML page"


def add(commands) -> None:
    command = add_command(commands, "report", run, TEXT)
    command.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs with a finished eval")
    command.add_argument("--out", required=True, dest="folder", metavar="FOLDER", help="where the report goes")


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
    """The words of the next command, about the first of the runs: how far its results are from the best."""
    from omegaconf import OmegaConf

    from rlflow.cli.command import model_words

    source = read_json(run / "model.json").get("source")
    if source is None:  # no model, but another task's problem
        return ("eval", "--run", run)
    return ("bound", "--model", *model_words(OmegaConf.load(run / "config.yaml"), run / source))
