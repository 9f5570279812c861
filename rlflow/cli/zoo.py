"""`zoo`: the models that need no download."""

from rlflow.cli.arguments import add_command
from rlflow.cli.ending import ending


def add(commands) -> None:
    add_command(commands, "zoo", run, "list the models that need no download")


def run(parsed) -> dict:
    from rlflow.zoo import ZOO

    for name in ZOO:
        print(f"{name:24}  {(ZOO.get(name).__doc__ or '').splitlines()[0]}")
    ending({"result": f"{len(ZOO)} models"}, "optimise", "light_squeezenet", "--out", "light_squeezenet.faster.onnx")
    return {"models": list(ZOO)}
