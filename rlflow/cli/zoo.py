"""The command `zoo`: list the models that need no download."""

from rlflow.cli.command import EXAMPLE, add_command, ending
from rlflow.common.messages import counted


def add(commands) -> None:
    add_command(commands, "zoo", run, "list the models that need no download")


def run(parsed) -> dict:
    from rlflow.zoo import ZOO

    names = list(ZOO)
    for name in names:
        print(f"{name:24}  {(ZOO.get(name).__doc__ or '').splitlines()[0].removeprefix('Build ')}")
    ending({"result": counted(len(names), "model")}, *EXAMPLE)
    return {"models": names}
