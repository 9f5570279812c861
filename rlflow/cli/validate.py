"""`validate`: whether two models are the same."""

from rlflow.cli.arguments import add_command, add_shape
from rlflow.cli.wiring import zoo_or_path
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.common.progress import say

TEXT = "whether two models are the same: structure, interface, numerics, receipt; exit status 1 if not"
RECEIPT = "how B was made of A; names the rewrite at which outputs part, and knows the --shape"
TOLERANCE = "largest relative error of an output (default: 1e-4)"


def add(commands) -> None:
    command = add_command(commands, "validate", run, TEXT)
    command.add_argument("original", metavar="A.onnx", help="the original: a path or a zoo name")
    command.add_argument("candidate", metavar="B.onnx", help="what must equal it: a path or a zoo name")
    command.add_argument("--receipt", metavar="R.json", help=RECEIPT)
    command.add_argument(
        "--seed", type=int, action="append", metavar="N", help="of the inputs; repeatable (default: 0, 1 and 2)"
    )
    command.add_argument("--tolerance", type=float, default=1e-4, metavar="X", help=TOLERANCE)
    command.add_argument("--exact", action="store_true", help="equal bit for bit, ONNX Runtime's own optimisations off")
    command.add_argument("--threads", type=int, default=1, metavar="N", help="of ONNX Runtime (default: 1)")
    add_shape(command)


def run(parsed) -> dict:
    from rlflow.deliver.receipt import shapes_of
    from rlflow.deliver.validate import validate
    from rlflow.runs.config import parse_shapes

    seeds = parsed.seed or (0, 1, 2)
    if min(seeds) < 0 or not parsed.tolerance >= 0 or parsed.threads < 1:
        raise RLFlowError("--seed and --tolerance are at least 0, --threads at least 1")
    original, candidate = map(zoo_or_path, (parsed.original, parsed.candidate))
    receipt = read_json(parsed.receipt) if parsed.receipt else None
    shapes = (shapes_of(receipt) if parsed.receipt else {}) | parse_shapes(parsed.shape)
    result = validate(
        original, candidate, seeds, 0.0 if parsed.exact else parsed.tolerance, shapes, parsed.threads,
        not parsed.exact, receipt,
    )  # fmt: skip
    print(result)
    failures, findings = len(result.failures()), len(result.findings)
    say("the two are the same" if result.ok else f"the two are NOT the same: {failures} of {findings} findings failed")
    return result.to_dict()
