"""`train-controller`: a controller learns inside the dream."""

from rlflow.cli.arguments import add_stage
from rlflow.cli.wiring import open_run


def add(commands) -> None:
    add_stage(commands, "train-controller", run, "train the controller inside the dream")


def run(parsed) -> dict:
    from rlflow.cli import stages

    return stages.train_controller(open_run(parsed, parsed.run))
