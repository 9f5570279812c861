"""The receipt of a candidate: can it be repeated, does it lead there, and which rewrite is to blame if not?"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rlflow.common.errors import RLFlowError
from rlflow.deliver.receipt import check_result, retrace, shapes_of
from rlflow.deliver.validate.findings import Finding
from rlflow.deliver.validate.models import Model
from rlflow.deliver.validate.numerics import Expected
from rlflow.graph.model import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import save_graph
from rlflow.rules.language import RuleSet

ONE_BY_ONE = 64  # rewrites; of more, halves are looked at, since each is a file and a session


def receipt_findings(
    receipt: dict, left: Model, right: Model | None, expected: Sequence[Expected], equal: bool, rules: RuleSet | None
) -> Iterator[Finding]:
    """What a receipt says about two models.

    Args:
      right: the candidate; None if it is refused. Its weights may then lie in any file, or one without end.
      expected: the outputs of the original, as written and as ONNX Runtime optimises it.
      equal: whether the candidate was found to give them.
      rules: the set that the receipt was made with; the shipped one if None.
    """
    try:
        graphs = list(retrace(receipt, left.source, rules))
        yield Finding("receipt", True, f"its {len(graphs) - 1} rewrites can be made on the original")
        check_result(receipt, graphs[-1])
        yield Finding("receipt", True, "they lead to the result that it states, weights included")
    except RLFlowError as error:
        yield Finding("receipt", False, str(error))
        return
    refused = Finding("receipt", False, "the candidate is refused, so that it is not compared with its result")
    is_result = refused if right is None else _is_result(receipt, graphs[-1], right)
    yield is_result
    if not (equal and is_result.ok):
        yield _first_parting(receipt, graphs, expected)


def _is_result(receipt: dict, graph: Graph, candidate: Model) -> Finding:
    try:
        if candidate.sha256() == receipt["model_sha256"]:
            return Finding("receipt", True, "the candidate is its result, byte for byte")
        with TemporaryDirectory() as folder:
            hashes = {_graph_hash(model, shapes_of(receipt)) for model in (candidate, _exported(graph, Path(folder)))}
    except RLFlowError as error:
        return Finding("receipt", False, f"the candidate is not its result: {error}")
    if len(hashes) == 1:
        return Finding("receipt", True, "the candidate is the same graph as its result, in other bytes")
    return Finding("receipt", False, "the candidate is not its result: it was changed afterwards, or made otherwise")


def _graph_hash(model: Model, shapes: dict[str, object]) -> str:
    return load_graph(model.source, model.known(shapes)).hash


def _exported(graph: Graph, folder: Path) -> Model:
    save_graph(graph, folder / "step.onnx")
    return Model.read(folder / "step.onnx")


def _first_parting(receipt: dict, graphs: Sequence[Graph], expected: Sequence[Expected]) -> Finding:
    """The first rewrite after which the outputs are not the original's.

    Of very many, one before which they are and after which they are not.
    """

    def parting(step: int) -> Finding | None:
        """What is wrong with the graph after `step` rewrites."""
        with TemporaryDirectory() as folder:
            model = _exported(graphs[step], Path(folder))
            return next((f for each in expected for f in each.against(model) if not f.ok), None)

    last = len(graphs) - 1
    if parting(last) is None:
        return Finding("receipt", True, "its result gives the original's outputs: no rewrite is to blame")
    if parting(0) is not None:
        return Finding(
            "receipt", False, "outputs part before the first rewrite: reading and writing the original changes it"
        )
    if last <= ONE_BY_ONE:
        step = next(step for step in range(1, last + 1) if parting(step) is not None)
    else:
        same, step = 0, last
        while step - same > 1:
            middle = (same + step) // 2
            same, step = (middle, step) if parting(middle) is None else (same, middle)
    action, result = receipt["actions"][step - 1], parting(step)
    where = f"after step {step - 1}, rule {action['rule']} at location {action['location']}"
    return Finding("receipt", False, f"{where}, outputs part: {result.message}", result.value)
