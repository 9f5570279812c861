"""Receipts of written orders: enough to make the same file again, byte for byte, and to check what is said of it."""

from collections.abc import Sequence

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.deliver.receipt import shapes_of, versions
from rlflow.graph.onnx_reader import model_files
from rlflow.graph.onnx_runtime import Setup, machine
from rlflow.graph.typical import Shapes
from rlflow.tasks.ordering.memory import Optimised, Ordered, write_in_order

FORMAT = 1


def make_receipt(
    before: Optimised, model: Optimised, ordered: Ordered, executed: Sequence[str], setup: Setup, shapes: Shapes,
    fix: bool, rewrites: dict | None = None,
) -> dict:  # fmt: skip
    """The receipt of a file that was written and checked.

    Args:
      before: what it is compared with; the same as the model, where that is not rewritten.
      ordered: its orders.  executed: the order in which sessions run the file.
      setup: with which its session needs least.
      shapes, fix: as `Optimised` was given them.
      rewrites: the receipt of what was rewritten first.
    """
    return {
        "format": FORMAT,
        "task": "ordering",
        "original_sha256": file_hash(*model_files(model.original)),
        "shapes": dict(shapes),
        "fix": fix,
        "sizes": dict(before.sizes),
        "rewrites": rewrites,
        "usual_order": ordered.usual,
        "order": ordered.best,
        "bytes": claims(before, model, ordered.usual, executed) | {"bound": ordered.bound},
        "session": {name: getattr(value, "name", value) for name, value in setup.options().items()},
        "model_sha256": file_hash(*model_files(model.path)),
        "versions": versions() | {"machine": machine()},
    }


def claims(before: Optimised, model: Optimised, usual: Sequence[str], executed: Sequence[str]) -> dict[str, int]:
    """Bytes at the peak of both orders, the usual one of what was before, and those of the block that a session with
    its defaults plans.
    """
    return {
        "usual_peak": before.peak(usual),
        "peak": model.peak(executed),
        "usual_block": before.block(usual),
        "block": model.block(executed),
    }


def named_sizes(receipt: dict) -> tuple[Shapes, bool]:
    """The sizes that were named, and whether they were frozen. Raises RLFlowError if the receipt is none."""
    if not isinstance(receipt, dict) or (receipt.get("task"), receipt.get("format")) != ("ordering", FORMAT):
        raise RLFlowError(f"not a receipt of `memory` of format {FORMAT}")
    return shapes_of(receipt), receipt.get("fix") is True


def repeat(receipt: dict, before: Optimised, model: Optimised, threads: int) -> list[str]:
    """Writes the file of the model in the order of its receipt and checks all that the receipt says; the order in which
    sessions run it. before: as of `make_receipt`.

    Raises RLFlowError if the receipt belongs to another model, says what is not so, or leads to another file.
    """
    try:
        usual, order, claimed = list(receipt["usual_order"]), list(receipt["order"]), dict(receipt["bytes"])
        original, written, made_by = (receipt[key] for key in ("original_sha256", "model_sha256", "versions"))
    except (KeyError, TypeError, ValueError) as error:
        raise RLFlowError(f"not a receipt: {error!r} is missing or malformed") from error
    if file_hash(*model_files(before.source)) != original:
        raise RLFlowError("the receipt belongs to another model")
    model.positions(order)
    executed = write_in_order(model, order, threads)
    for name, size in claims(before, model, usual, executed).items():
        if claimed.get(name) != size:
            raise RLFlowError(f"the receipt says {name} = {claimed.get(name)} bytes, its orders need {size}")
    if file_hash(*model_files(model.path)) != written:
        raise RLFlowError(f"the same order gives another file here; the receipt was made with {made_by}")
    return executed
