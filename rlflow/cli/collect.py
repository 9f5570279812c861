"""`collect`: random episodes of the real environment, on disk."""

from rlflow.cli.arguments import add_stage
from rlflow.cli.wiring import open_run

TEXT = "play random episodes of the real environment and store them"
EXECUTOR = "local: processes of this machine; ray: the cluster of $RAY_ADDRESS, else one on this machine"


def add(commands) -> None:
    command = add_stage(commands, "collect", run, TEXT)
    command.add_argument("--executor", metavar="NAME", help=EXECUTOR)


def run(parsed) -> dict:
    from rlflow.cli import stages

    chosen = [f"collect.executor={parsed.executor}"] if parsed.executor else []
    return stages.collect(open_run(parsed, parsed.run, chosen))
