"""Receipts: enough to replay a result bit for bit, by anyone, without trusting anyone."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from rlflow.errors import RLFlowError
from rlflow.graph.model import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import RuleSet, load_rules
from rlflow.rules.locations import MatchTable

FORMAT = 1


def file_hash(path: Path | str) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of the packages that decide what a replay gives."""
    return {"numpy": np.__version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def make_receipt(
    original: Graph, rules: RuleSet, families: list[str], actions, result: Graph, model: onnx.ModelProto, costs: dict,
    shapes: Mapping | None = None,
) -> dict:
    """The receipt of a result.

    Args:
      original, result: the graphs before and after.
      families: the rule families that `rules` was loaded from (empty: all).
      actions: (xfer_id, location) pairs that lead from one to the other.
      model: the exported model, whose bytes the replay must reach.
      costs: figures to state; a replay does not check them.
      shapes: how symbolic dimensions were bound.
    """
    return {
        "format": FORMAT,
        "original_hash": original.hash,
        "rules_hash": rules.hash,
        "rule_families": list(families),
        "shapes": {name: list(size) if isinstance(size, tuple) else size for name, size in (shapes or {}).items()},
        "actions": [{"rule": rules[x].name, "xfer_id": int(x), "location": int(k)} for x, k in actions],
        "result_hash": result.hash,
        "model_sha256": hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest(),
        "costs": costs,
        "versions": versions(),
    }


def replay(receipt: dict, source: Path | str | onnx.ModelProto) -> tuple[Graph, onnx.ModelProto]:
    """Repeats the actions of a receipt on the model it speaks of.

    Raises RLFlowError if the model or the rules are others, an action is not valid, or the result differs.
    """
    try:
        shapes = {n: tuple(s) if isinstance(s, list) else s for n, s in receipt["shapes"].items()}
        actions = [(action["rule"], int(action["location"])) for action in receipt["actions"]]
        families, rules_hash, format_ = receipt["rule_families"], receipt["rules_hash"], receipt["format"]
        original_hash, result_hash, model_hash = (receipt[k] for k in ("original_hash", "result_hash", "model_sha256"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RLFlowError(f"not a receipt: {error!r} is missing or malformed") from error
    if format_ != FORMAT:
        raise RLFlowError(f"the receipt has format {format_}, this version reads {FORMAT}")
    rules, graph = load_rules(families), load_graph(source, shapes)
    if graph.hash != original_hash:
        raise RLFlowError("the receipt belongs to another model")
    if rules.hash != rules_hash:
        raise RLFlowError("the receipt was made with another rule set")
    table = MatchTable(rules, graph)
    for step, (name, location) in enumerate(actions):
        xfer_id = rules.index(name)
        matches = table.locations[xfer_id]
        if not 0 <= location < len(matches):
            raise RLFlowError(f"step {step} of the receipt: rule {name} has no location {location}")
        graph = apply(graph, rules[xfer_id], matches[location])
        table = MatchTable(rules, graph, table)
    if graph.hash != result_hash:
        raise RLFlowError("the replay ends at another graph than the receipt says")
    model = to_model(graph)
    if hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest() != model_hash:
        raise RLFlowError(
            f"the replay ends at the same graph but its folded weights differ; the receipt was made with {receipt['versions']}"
        )
    return graph, model
