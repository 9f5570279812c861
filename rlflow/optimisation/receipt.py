"""Receipts: repeat a result bit for bit, or apply its rewrites to a similar model.

A receipt holds the hashes of the original, the rule set and the result, the list of actions, and the versions of the
packages. `replay` repeats the actions on the same model and checks that the result has the same bytes.

`carried_over` applies the rewrites to a similar model, such as the same architecture at another size or with other
weights. A rewrite is applied if its rule has the recorded location in the current state, and left out otherwise. The
result is always correct, because every rule is proved; at worst nothing is gained.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.costs import TimeIsUp
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import model_hash
from rlflow.optimisation.candidates import Candidate
from rlflow.rules.apply import apply
from rlflow.rules.exactness import exactness, only_exact
from rlflow.rules.language import RuleSet, load_rules
from rlflow.rules.locations import PREPARING_FAMILY, MatchTable

FORMAT = 3
UNNAMED = 2  # the format before new nodes had names; a replay gives the same graph, but other bytes
FIXED = 1  # the format before symbolic sizes; receipts of this format can still be read


def versions() -> dict[str, str]:
    """Return package → version for the packages that influence the result of a replay."""
    return {"numpy": np.__version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def make_receipt(
    original: Graph, rules: RuleSet, families: list[str], actions, result: Graph, costs: dict,
    shapes: Mapping | None = None, exact: bool = False, sizes: Sequence[Mapping[str, int]] = ({},),
    widened: Graph | None = None, sha256: str | None = None,
) -> dict:  # fmt: skip
    """Make the receipt of a result.

    Args:
      original: the graph of the original model, before the actions.
      rules: the rule set of the actions.
      families: the rule families from which `rules` was loaded; an empty list stands for all families.
      actions: (xfer_id, location) pairs that lead from `widened` or `original` to `result`.
      result: the graph after the actions; a replay must export the same bytes.
      costs: costs to record; a replay does not check them.
      shapes: symbol or input → the sizes to which `original` was bound by `fix`; all other symbols remain symbolic.
      exact: True if `rules` holds only the exact rules of the families.
      sizes: the typical sizes of the remaining symbols, at which `costs` were estimated and measured.
      widened: the original with float32 between its inputs and outputs, if the actions begin there; else None.
      sha256: the hash of the exported `result`, which `save_graph` returns; None to export it once more.

    Returns:
      A JSON-able dictionary. An action inside a body of an If, Loop or Scan names the body, such as "loop_3/body".
    """
    actions = list(actions)
    return {
        "format": FORMAT,
        "original_hash": original.hash,
        "rules_hash": rules.hash,
        "rule_families": list(families),
        "exact_rules_only": exact,
        "bodies": True,
        "widened": widened is not None,
        "shapes": {name: list(size) if isinstance(size, tuple) else size for name, size in (shapes or {}).items()},
        "symbols": dict(original.interface.symbols),
        "keep": [*original.interface.keep],
        "sizes": [dict(each) for each in sizes],
        "actions": [
            {"rule": rules[x].name, "exactness": exactness(rules[x]), "xfer_id": int(x), "location": int(k)}
            | ({"body": path} if path else {})
            for (x, k), path in zip(actions, bodies_of(widened or original, rules, actions), strict=True)
        ],
        "result_hash": result.hash,
        "model_sha256": sha256 or model_hash(result),
        "costs": costs,
        "versions": versions(),
    }


def bodies_of(original: Graph, rules: RuleSet, actions: Sequence[tuple[int, int]]) -> list[str]:
    """Return for each action the path of the body that it rewrites (`Body.path`), "" for the main graph.

    Args:
      original: the graph before the actions.
      rules: the rule set of the actions.
      actions: (xfer_id, location) pairs.
    """
    if not original.interface.bodies:
        return [""] * len(actions)
    graph, table, paths = original, MatchTable(rules, original), []
    for xfer_id, location in actions:
        match = table.location(xfer_id, location)
        paths.append(graph.path(match.nodes[0]))
        graph = apply(graph, rules[xfer_id], match)
        table = MatchTable(rules, graph, table)
    return paths


@contextmanager
def reading_receipt() -> Iterator[None]:
    """Turn the exceptions that reading a malformed receipt raises in the `with` block into RLFlowError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise RLFlowError(f"not a receipt: {error!r} is missing or malformed") from error


def shapes_of(receipt: dict) -> dict[str, object]:
    """Return symbol or input → the sizes to which the original was bound, in the form that `load_graph` takes.

    Raise RLFlowError if the dictionary is not a receipt.
    """
    with reading_receipt():
        shapes = {name: tuple(size) if isinstance(size, list) else size for name, size in receipt["shapes"].items()}
    for size in shapes.values():
        if not all(type(one) is int and one > 0 for one in (size if isinstance(size, tuple) else (size,))):
            raise RLFlowError(f"not a receipt: {size!r} is not a size")
    return shapes


def sizes_of(receipt: dict) -> dict[str, tuple[int, ...]]:
    """Return symbol → typical sizes, in the form that `rlflow.graph.typical.typical_sizes` takes.

    Raise RLFlowError if the dictionary is not a receipt.
    """
    with reading_receipt():
        combinations = receipt["sizes"] if receipt["format"] != FIXED else []
        sizes: dict[str, dict[int, None]] = {}
        for name, size in (pair for each in combinations for pair in each.items()):
            sizes.setdefault(name, {})[size] = None
    for size in (size for several in sizes.values() for size in several):
        if type(size) is not int or size < 1:
            raise RLFlowError(f"not a receipt: {size!r} is not a size")
    return {name: tuple(several) for name, several in sizes.items()}


def rewrites_of(receipt: dict) -> list[tuple[str, int]]:
    """Return (rule name, location) of each action. Raise RLFlowError if the dictionary is not a receipt."""
    with reading_receipt():
        return [(str(action["rule"]), int(action["location"])) for action in receipt["actions"]]


def replay(receipt: dict, source: Path | str | onnx.ModelProto) -> Graph:
    """Repeat the actions of a receipt and return the graph, which is exported to the same bytes as the recorded result.

    Args:
      receipt: the receipt, see `make_receipt`.
      source: the original model or its path.

    Raises:
      RLFlowError: the receipt belongs to another model or another rule set, an action is not valid, or the
        result differs from the recorded result.
    """
    graph = deque(retrace(receipt, source), maxlen=1).pop()
    check_result(receipt, graph)
    return graph


def retrace(receipt: dict, source: Path | str | onnx.ModelProto, rules: RuleSet | None = None) -> Iterator[Graph]:
    """Yield the graph of the original model, widened if the receipt says so, then the graph after each action.

    Args:
      receipt: the receipt, see `make_receipt`.
      source: the original model or its path.
      rules: the rule set of the receipt; None to load the shipped rule families that the receipt names.

    Raises:
      RLFlowError: the receipt belongs to another model or another rule set, or an action is not valid. The final graph
        is not compared with the recorded result.
    """
    shapes, actions = shapes_of(receipt), rewrites_of(receipt)
    with reading_receipt():
        families, exact = receipt["rule_families"], receipt.get("exact_rules_only", False)  # absent in old receipts
        rules_hash, original_hash, format_ = (receipt[key] for key in ("rules_hash", "original_hash", "format"))
        _ = receipt["result_hash"], receipt["model_sha256"]
        symbols = {} if format_ == FIXED else dict(receipt["symbols"])
        bodies = bool(receipt.get("bodies", False))  # absent in old receipts, which rewrite the main graph only
        keep = [str(name) for name in receipt["keep"]] if format_ == FORMAT else []
        widen = bool(receipt.get("widened", False))  # absent in old receipts
    if format_ not in (FIXED, UNNAMED, FORMAT):
        raise RLFlowError(f"the receipt has format {format_}; this version reads {FIXED} to {FORMAT}. Update RLFlow")
    if rules is None:
        rules = only_exact(load_rules(families)) if exact else load_rules(families)
    graph = load_graph(source, shapes, bodies, keep)
    if graph.hash != original_hash or graph.interface.symbols != symbols:
        raise RLFlowError("the receipt belongs to another model. Pass the original file, with the sizes of the receipt")
    if rules.hash != rules_hash:
        raise RLFlowError("the receipt was made with another rule set. Use the version of RLFlow that wrote it")
    if widen:
        graph = load_graph(source, shapes, bodies, keep, widen=True)
    yield graph
    table = MatchTable(rules, graph)
    for step, (name, location) in enumerate(actions):
        xfer_id = rules.index(name)
        if not 0 <= location < table.counts[xfer_id]:
            raise RLFlowError(f"step {step} of the receipt: rule {name} has no location {location}")
        graph = apply(graph, rules[xfer_id], table.location(xfer_id, location))
        yield graph
        table = MatchTable(rules, graph, table)


def check_result(receipt: dict, graph: Graph) -> None:
    """Check that a graph is the recorded result of a receipt.

    Args:
      receipt: the receipt, see `make_receipt`.
      graph: the graph after the last action.

    Raises:
      RLFlowError: the graph differs from the recorded result, or is exported to other bytes.
    """
    if graph.hash != receipt["result_hash"]:
        raise RLFlowError("the replay ends at another graph than the receipt states")
    if model_hash(graph) == receipt["model_sha256"]:
        return
    if receipt["format"] != FORMAT:
        raise RLFlowError(
            "the replay ends at the same graph, but the version of RLFlow that wrote the receipt gave new nodes other "
            "names. Use that version for the same bytes"
        )
    raise RLFlowError(
        "the replay ends at the same graph, but its folded weights differ. Use the versions of the receipt: "
        f"{receipt.get('versions')}"
    )


class CarriedOver(NamedTuple):
    """The result of applying a receipt's rewrites to another model.

    Attributes:
      actions: (xfer_id, location) pairs that lead from the initial state to `state`.
      state: the cheapest of the initial state and the states after each applied rewrite.
      carried_out: the number of applied rewrites.
      left_out: the number of rewrites whose rule did not have the recorded location.
      interrupted: True if the time for new timings was over before the last rewrite.
    """

    actions: list[tuple[int, int]]
    state: RewriteState
    carried_out: int
    left_out: int
    interrupted: bool

    def candidate(self, seconds: float) -> Candidate:
        """Return the cheapest state as the candidate "receipt"; `seconds` is the duration of `carried_over`."""
        return Candidate("receipt", self.state, self.actions, self.carried_out, seconds)


def carried_over(task: Task, rewrites: Sequence[tuple[str, int]]) -> CarriedOver:
    """Apply the rewrites of a receipt to the initial state of another model's task, and keep the cheapest state.

    Args:
      task: the rewriting task of the other model.
      rewrites: (rule name, location) pairs, see `rewrites_of`. Leading rewrites of the family PREPARING_FAMILY are
        skipped, because the task has already prepared its model.
    """
    xfer_ids = {rule.name: xfer_id for xfer_id, rule in enumerate(task.rules)}
    preparing = {rule.name for rule in task.rules if rule.family == PREPARING_FAMILY}
    state = cheapest = task.initial
    actions, best, left_out, interrupted = [], 0, 0, False
    for name, location in dropwhile(lambda rewrite: rewrite[0] in preparing, rewrites):
        xfer_id = xfer_ids.get(name, task.no_op)
        if not state.is_valid(xfer_id, location):
            left_out += 1
            continue
        try:
            state = state.apply(xfer_id, location)
        except TimeIsUp:
            interrupted = True
            break
        actions.append((xfer_id, location))
        if state.objective < cheapest.objective:
            cheapest, best = state, len(actions)
    return CarriedOver(actions[:best], cheapest, len(actions), left_out, interrupted)
