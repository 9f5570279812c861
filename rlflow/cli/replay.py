"""The command `replay`: apply the rewrites of a receipt again and write the same model, byte for byte."""

from rlflow.cli.command import add_command, add_custom_ops, ending
from rlflow.common.files import read_json


def add(commands) -> None:
    command = add_command(commands, "replay", run, "repeat a receipt and write the same model again, byte for byte")
    command.add_argument("receipt", metavar="RECEIPT.json", help="the receipt")
    command.add_argument("--model", required=True, metavar="MODEL", help="the original ONNX file, or a zoo name")
    command.add_argument("--out", required=True, metavar="FILE", help="file for the model")
    add_custom_ops(command)


def run(parsed) -> dict:
    from rlflow.graph.onnx_writer import check_apart, save_graph
    from rlflow.optimisation.receipt import replay
    from rlflow.zoo import ZOO, zoo_or_path

    receipt = read_json(parsed.receipt)
    if parsed.model not in ZOO:
        check_apart(parsed.model, parsed.out)
    save_graph(replay(receipt, zoo_or_path(parsed.model)), parsed.out)
    result = f"{len(receipt['actions'])} rewrites repeated; the model is the same, byte for byte"
    ending({"result": result, "model": parsed.out}, "validate", parsed.model, parsed.out, "--receipt", parsed.receipt)
    return {"substitutions": len(receipt["actions"]), "model_sha256": receipt["model_sha256"]}
