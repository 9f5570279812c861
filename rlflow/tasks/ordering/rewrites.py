"""A model rewritten until its best order needs less memory."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rlflow.common.errors import RLFlowError
from rlflow.costs import graph_cost
from rlflow.costs.memory.cost import FRACTIONS, MemoryCost
from rlflow.deliver.receipt import make_receipt, replay
from rlflow.deliver.validate import validate
from rlflow.deliver.validate.findings import checks_text
from rlflow.env.alike import start_of
from rlflow.env.state import Task
from rlflow.graph.onnx_writer import save_graph
from rlflow.graph.typical import Shapes, load_at
from rlflow.rules.language import load_rules
from rlflow.search.search import Limits, run_search

FAMILIES = ["concat", "memory"]
SEARCH = {"width": 4, "depth": 10, "radius": 1}  # a beam; a part that is taken out may need many rewrites to pay


class Rewritten(NamedTuple):
    """path: the file.  receipt: of `rlflow.deliver.receipt`.  checks: what was compared with the model, for people."""

    path: Path
    receipt: dict
    checks: str

    @property
    def rules(self) -> dict[str, int]:
        """How often each was applied."""
        return dict(Counter(action["rule"] for action in self.receipt["actions"]))


def rewrite(source: Path, path: Path, shapes: Shapes, fix: bool, seconds: float, threads: int) -> Rewritten | None:
    """Writes what a search of so many seconds makes of a model; None if it finds nothing that needs less.

    Raises RLFlowError if the file is not equal to the model within the tolerance of `optimise`, or cannot be read.
    """
    graph, sizes = load_at(source, shapes, fix)
    task = Task(graph, load_rules(FAMILIES), MemoryCost(), sizes=sizes)
    result = run_search("beam", start_of(task, "single"), Limits(seconds), **SEARCH)
    if result.state.objective // FRACTIONS >= task.initial.objective // FRACTIONS:
        return None
    save_graph(result.state.graph, path)
    costs = {"peak": graph_cost(task.cost, graph).runtime_ps // FRACTIONS, "after": result.state.objective // FRACTIONS}
    bound = shapes if fix else {}
    receipt = make_receipt(graph, task.rules, FAMILIES, result.actions, result.state.graph, costs, bound, sizes=sizes)
    return Rewritten(path, receipt, checked(source, path, receipt, shapes, fix, threads))


def again(source: Path, path: Path, receipt: dict, shapes: Shapes, fix: bool, threads: int) -> Rewritten:
    """Writes what a receipt makes of a model; the same bytes. Raises RLFlowError as `rewrite` and `replay` do."""
    save_graph(replay(receipt, source), path)
    return Rewritten(path, receipt, checked(source, path, receipt, shapes, fix, threads))


def checked(source: Path, path: Path, receipt: dict, shapes: Shapes, fix: bool, threads: int) -> str:
    """What was compared, for people. Raises RLFlowError if something is not equal."""
    findings = validate(source, path, shapes=shapes, threads=threads, receipt=receipt, fix=fix)
    if not findings.ok:
        raise RLFlowError(f"the rewritten model differs from the model: {findings.failures()[0].message}; not written")
    return checks_text(findings.to_dict()["findings"])
