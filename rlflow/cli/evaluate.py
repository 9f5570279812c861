"""`eval`: the controller acts on the real graph; or the world model is judged."""

from rlflow.cli.arguments import add_stage
from rlflow.cli.wiring import open_run

TEXT = "let the controller act on the real graph, with controls, checks and a report; or judge the world model"
WHAT = "controllers (the default), or world-model: how far its predictions are from reality"


def add(commands) -> None:
    command = add_stage(commands, "eval", run, TEXT)
    command.add_argument("--what", choices=("controllers", "world-model"), default="controllers", help=WHAT)


def run(parsed) -> dict:
    from rlflow.cli import stages

    opened = open_run(parsed, parsed.run)
    return stages.evaluate_world_model(opened) if parsed.what == "world-model" else stages.evaluate(opened)
