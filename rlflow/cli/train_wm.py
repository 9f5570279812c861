"""`train-wm`: the world model learns from the episodes, or online."""

from rlflow.cli.arguments import ITERATIONS, add_iterations, add_stage, chosen_iterations
from rlflow.cli.wiring import open_run

TEXT = "train the world model on the episodes (or online)"


def add(commands) -> None:
    command = add_stage(commands, "train-wm", run, TEXT, TEXT + ITERATIONS)
    add_iterations(command)


def run(parsed) -> dict:
    from rlflow.cli import stages

    return stages.train_world_model(open_run(parsed, parsed.run, chosen_iterations(parsed)))
