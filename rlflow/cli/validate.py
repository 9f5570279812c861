"""The command `validate`: check that two models compute the same."""

from rlflow.cli.command import (
    add_command,
    add_custom_ops,
    add_inputs,
    add_sizes,
    add_threads,
    ending,
    input_words,
    threads_of,
)
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.common.messages import shape_words

TEXT = "check that two models compute the same; exit status 1 if they do not"
RECEIPT = "receipt of B: names the rewrite after which outputs differ, and sets --shape and --fix"
PAGE = """\
Checks that two models compute the same: structure, interface, numerics on ordinary and special inputs, and the receipt.
Prints one line for each kind of finding and one for each failure. The exit status is 1 if a finding failed.

--inputs DATA: the models are also compared on these inputs, before drawn ones. If A does not run on drawn inputs, the
given ones suffice.

Models with symbolic sizes are compared at the sizes of --shape and at five more. B must run wherever A does. With --fix
B may accept only the sizes of --shape."""
TOLERANCE = "largest accepted relative error of an output (default: 1e-4)"


def add(commands) -> None:
    command = add_command(commands, "validate", run, TEXT, PAGE)
    command.add_argument("original", metavar="A.onnx", help="the original: a path or a zoo name")
    command.add_argument("candidate", metavar="B.onnx", help="the model to check: a path or a zoo name")
    command.add_argument("--receipt", metavar="R.json", help=RECEIPT)
    command.add_argument(
        "--seed", type=int, action="append", metavar="N", help="seed of the inputs; repeatable (default: 0, 1 and 2)"
    )
    command.add_argument("--tolerance", type=float, default=1e-4, metavar="X", help=TOLERANCE)
    command.add_argument("--exact", action="store_true", help="require equal bits, ONNX Runtime's optimisations off")
    add_threads(command)
    command.add_argument("--all", action="store_true", help="show every finding, not only failures")
    add_sizes(command)
    add_inputs(command)
    add_custom_ops(command)


def run(parsed) -> dict:
    from rlflow.graph.feeds import tried_feeds
    from rlflow.optimisation.choice import EvalOptions
    from rlflow.optimisation.receipt import shapes_of, sizes_of
    from rlflow.optimisation.validate import validate
    from rlflow.optimisation.validate.onnx_model import Model
    from rlflow.runs.config import parse_shapes
    from rlflow.zoo import zoo_or_path

    seeds = parsed.seed or EvalOptions.seeds
    if min(seeds) < 0 or not parsed.tolerance >= 0:
        raise RLFlowError("pass --seed and --tolerance of at least 0")
    original, candidate = map(zoo_or_path, (parsed.original, parsed.candidate))
    receipt = read_json(parsed.receipt) if parsed.receipt else None
    bound, typical = (shapes_of(receipt), sizes_of(receipt)) if parsed.receipt else ({}, {})
    shapes, fix = bound | typical | parse_shapes(parsed.shape), parsed.fix or bool(bound)
    feeds = tried_feeds(original, parsed.inputs, shapes, threads_of(parsed), Model.read(original).proto)
    shapes = feeds.named_sizes(shapes)
    result = validate(
        original, candidate, seeds, 0.0 if parsed.exact else parsed.tolerance, shapes, threads_of(parsed),
        not parsed.exact, receipt, fix=fix, feeds=feeds,
    )  # fmt: skip
    print(result if parsed.all else result.in_short())
    end_with(result, parsed, shape_words(shapes, fix))
    return result.to_dict()


def end_with(result, parsed, shapes: list[str]) -> None:
    """Print the last lines of the command.

    Args:
      result: the result of `validate`.
      parsed: the parsed arguments.
      shapes: the arguments --shape and --fix for the next command, including the sizes in the receipt.
    """
    if result.ok:
        lines = {"result": "the two models compute the same", "sure": sure(result)}
        if not result.compared:
            lines["result"] = "no difference was found, but no output could be compared"
        ending(lines, "bound", "--model", parsed.original, *shapes)
        return
    text = f"the two models do NOT compute the same: {len(result.failures())} of {len(result.findings)} findings failed"
    if parsed.receipt:
        ending({"result": text}, "replay", parsed.receipt, "--model", parsed.original, "--out", "replayed.onnx")
    else:
        inputs = input_words(parsed.inputs)
        ending({"result": text}, "optimise", parsed.original, "--out", "equal.onnx", *shapes, *inputs)


def sure(result) -> str:
    """Return one line about the evidence of a validation without failures: checks, largest error, compared sizes."""
    from rlflow.optimisation.validate.findings import checks_text, equal_sizes_text, fixed_text, notes_text

    findings = result.to_dict()["findings"]
    error = "no output differs" if result.compared else "no output was compared"
    if result.max_error:
        error = f"largest relative error {result.max_error:.1e}"
    about = equal_sizes_text(findings), fixed_text(findings), notes_text(findings)
    return "; ".join(filter(None, (checks_text(findings), error, *about)))
