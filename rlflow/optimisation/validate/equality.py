"""Compare one original with any number of candidates, and a candidate with its receipt.

`Comparison` runs the original once and keeps its outputs. At the first of the named sizes, or for a model without
symbolic sizes, it uses ordinary inputs of all seeds and special inputs. At the other named sizes, and at sizes that the
user did not name (`inputs.py`), it uses ordinary inputs of one seed.

`receipt_findings` checks that the rewrites of a receipt apply to the original and lead to the candidate. If outputs
differ, it names the rewrite after which they begin to differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph.dequantised import dequantised
from rlflow.graph.feeds import Feeds, tried_feeds
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run
from rlflow.graph.onnx_writer import save_graph
from rlflow.graph.typical import input_shapes, typical_sizes
from rlflow.optimisation.receipt import check_result, retrace, shapes_of
from rlflow.optimisation.validate.findings import Finding, Findings
from rlflow.optimisation.validate.inputs import InputSet, Others, ladders, ordinary_inputs, special_inputs
from rlflow.optimisation.validate.numerics import Expected, precise_runs, relative_error
from rlflow.optimisation.validate.onnx_model import Model
from rlflow.optimisation.validate.structure import interface, kept_draws, kept_weights, structure
from rlflow.rules.language import RuleSet

# Largest number of rewrites that are tried in order. More rewrites are bisected, because each trial makes a session.
ONE_BY_ONE = 64


def receipt_findings(
    receipt: dict, left: Model, right: Model | None, expected: Sequence[Expected], equal: bool, rules: RuleSet | None
) -> Iterator[Finding]:
    """Check that the rewrites of a receipt apply to the original and lead to the candidate.

    Args:
      receipt: the receipt, see `make_receipt`.
      left: the original.
      right: the candidate; None if the ONNX checker refuses it, because its weights may then point to any file.
      expected: the outputs of the original, without and (if they are compared) with ONNX Runtime's optimisations.
      equal: True if all earlier checks of the candidate passed; if not, the rewrite at fault is searched.
      rules: the rule set of the receipt; None for the shipped rules that the receipt names.
    """
    try:
        graphs = list(retrace(receipt, left.source, rules))
        yield Finding("receipt", True, f"its {len(graphs) - 1} rewrites can be made on the original")
        check_result(receipt, graphs[-1])
        yield Finding("receipt", True, "they lead to the recorded result, weights included")
    except RLFlowError as error:
        yield Finding("receipt", False, str(error))
        return
    refused = Finding("receipt", False, "the candidate is refused, and is not compared with the recorded result")
    is_result = refused if right is None else _is_result(receipt, graphs[-1], right)
    yield is_result
    if not (equal and is_result.ok):
        yield _first_faulty_rewrite(receipt, graphs, expected)


def _is_result(receipt: dict, graph: Graph, candidate: Model) -> Finding:
    try:
        if candidate.sha256() == receipt["model_sha256"]:
            return Finding("receipt", True, "the candidate is the recorded result, byte for byte")
        with TemporaryDirectory() as folder:
            hashes = {_graph_hash(model, shapes_of(receipt)) for model in (candidate, _exported(graph, Path(folder)))}
    except RLFlowError as error:
        return Finding("receipt", False, f"the candidate is not the recorded result: {error}")
    if len(hashes) == 1:
        return Finding("receipt", True, "the candidate is the graph of the recorded result, in other bytes")
    return Finding("receipt", False, "the candidate is not the recorded result: it was changed or made differently")


def _graph_hash(model: Model, shapes: dict[str, object]) -> str:
    return load_graph(model.source, model.known(shapes)).hash


def _exported(graph: Graph, folder: Path) -> Model:
    save_graph(graph, folder / "step.onnx")
    return Model.read(folder / "step.onnx")


def _first_faulty_rewrite(receipt: dict, graphs: Sequence[Graph], expected: Sequence[Expected]) -> Finding:
    """Return a finding that names the first rewrite after which the outputs differ from the original's.

    With more than ONE_BY_ONE rewrites, bisection finds a rewrite with equal outputs before it and different outputs
    after it.

    Args:
      receipt: the receipt.
      graphs: the graph of the original, and the graph after each rewrite.
      expected: the outputs of the original.
    """

    def parting(step: int) -> Finding | None:
        """Return the first failed finding about the graph after `step` rewrites, or None if its outputs are equal."""
        with TemporaryDirectory() as folder:
            model = _exported(graphs[step], Path(folder))
            return next((f for each in expected for f in each.against(model) if not f.ok), None)

    last = len(graphs) - 1
    if parting(last) is None:
        return Finding("receipt", True, "its result gives the original's outputs: no rewrite is at fault")
    if parting(0) is not None:
        return Finding(
            "receipt", False, "outputs differ before the first rewrite: reading and writing the original changes it"
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
    return Finding("receipt", False, f"{where}, outputs differ: {result.message}", result.value)


MOST_BYTES = 1 << 30  # bytes of the largest tensor at sizes that the user did not name; larger sizes are not compared
OPTIMISED_SIZES = (
    2  # unnamed sizes compared with optimisations; few suffice, as ONNX Runtime optimises a graph once for all sizes
)
UNSAFE = "not compared: a model with this structure is not run, because ONNX Runtime may end the process"


class Comparison:
    """The original of a validation with its outputs, with which any number of candidates can be compared.

    The constructor runs the original. Its arguments and exceptions are described at `validate`, except `dequantise`:
    True if candidates are compared with the dequantised original instead of the original itself.

    Attributes:
      left: the original.
      reference: the model whose outputs and weights a candidate must have: the original or the dequantised original.
      sizes: the named assignments symbol → size.
      expected: the outputs of the reference without, and if requested also with, ONNX Runtime's optimisations.
      rounding: a finding about the difference between the original and the dequantised original; empty without it.
    """

    def __init__(
        self, original: onnx.ModelProto | Path | str, seeds: Sequence[int], tolerance: float,
        shapes: Mapping[str, object] | None = None,
        threads: int = 1, optimise: bool = True, fix: bool = False, feeds: Feeds | None = None,
        dequantise: bool = False,
    ):  # fmt: skip
        self.shapes, self.fix, self.tolerance, self.left = shapes or {}, fix, tolerance, Model.read(original)
        self.left = self.left.with_ranks(self.shapes)
        self.reference = self.left  # the model whose outputs and weights a candidate must have
        if dequantise:
            real = dequantised(self.left.proto, str(self.left.folder or ""))
            self.reference = Model(real, real, self.left.folder)
        self.seeds, ports = seeds, self.left.interface
        first, *more = self.sizes = typical_sizes(ports, self.shapes)
        self.feeds = feeds or tried_feeds(self.left.source, (), self.shapes, threads, self.left.proto)
        self.graph = self.left.graph() if ports.symbols else None
        bound = input_shapes(ports, first)
        ordinary = [InputSet(f"inputs {one.name}", one.arrays).at(one.sizes) for one in self.feeds.given]
        special, rungs = [], []
        if self.feeds.refused is None:
            ordinary += [drawn.at(first) for drawn in ordinary_inputs(self.feeds, seeds, bound)]
            ordinary += map(self.draw, more)
            special = [drawn.at(first) for drawn in special_inputs(self.feeds, seeds[0], bound)]
            rungs = list(ladders(ports.symbols, first))
        precise = precise_runs(self.reference, ordinary, threads)
        others = Others(rungs, self.sizes, self.draw)
        written = Expected(self.reference, ordinary, special, tolerance, threads, False, precise, others)
        self.expected = [written]
        if optimise:
            others = Others([(sizes,) for sizes in written.elsewhere[:OPTIMISED_SIZES]], self.sizes, self.draw)
            self.expected.append(Expected(self.reference, ordinary, [], tolerance, threads, True, precise, others))
        self.rounding = self.errors_of_rounding(written, len(ordinary)) if dequantise else []
        self.graph = None  # frees its weights

    def errors_of_rounding(self, written: Expected, count: int) -> list[Finding]:
        """Return a finding with the largest difference of the quantised original from the model without rounding.

        Args:
          written: the outputs of the model without rounding.
          count: the number of ordinary sets of inputs, which come first.
        """
        running, largest = self.left.session_with([], 1, True), 0.0
        for given, wanted in written.sets[:count]:
            values = dict(zip(self.left.outputs, run(running, given.arrays), strict=True))
            pairs = [(one.value, values[slot.tensor]) for slot, one in zip(written.slots, wanted, strict=True)
                     if slot.before is None and one.value is not None]  # fmt: skip
            largest = max([largest, *(relative_error(a, b) for a, b in pairs if a.dtype.kind == "f")])
        note = f"compared with the model without rounding, from which the original differs by {largest:.1e}"
        return [Finding("numerics", True, f"the outputs are {note} of an output's largest value", note=note)]

    def draw(self, sizes: Mapping[str, int]) -> InputSet:
        """Return one set of ordinary inputs at the sizes; the sizes decide which seed and shift are used.

        Raise RLFlowError if the user did not name the sizes and a tensor would have more than MOST_BYTES.

        Args:
          sizes: symbol → size.
        """
        largest = self.largest_tensor(sizes)
        if sizes not in self.sizes and largest > MOST_BYTES:
            raise RLFlowError(f"one of its tensors would need {largest / 2**30:.1f} GiB")
        drawn = ordinary_inputs(self.feeds, self.seeds, input_shapes(self.left.interface, sizes))
        return drawn[sum(sizes.values()) % len(drawn)].at(sizes)

    def largest_tensor(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of the original's largest tensor of known shape at the sizes.

        Return 0 if the model has no symbols or cannot be read as a graph.

        Args:
          sizes: symbol → size.
        """
        if self.graph is None:
            return 0
        types = self.graph.at(sizes).types
        return max(types[tensor].nbytes for tensor in types)

    def against(
        self, candidate: onnx.ModelProto | Path | str, receipt: dict | None = None, rules: RuleSet | None = None
    ) -> Findings:
        """Compare the original with one candidate, and return the findings of all checks.

        Args:
          candidate: a path or a model.
          receipt: the receipt of the candidate, see `make_receipt`; None to check no receipt.
          rules: the rule set of the receipt; None for the shipped rules that the receipt names.
        """
        result = Findings()
        try:
            right = Model.read(candidate)
        except RLFlowError as error:
            result.findings.append(Finding("structure", False, str(error)))
            return result
        result.findings += structure(self.left, right)
        is_model = result.ok
        result.findings += kept_draws(self.left, right)
        result.findings += interface(self.left, right, self.shapes if self.fix else {})
        if self.feeds.refused is not None:
            only = f"only {len(self.feeds.given)} given input set" + "s" * (len(self.feeds.given) > 1)
            message = f"drawn inputs were not compared: {self.feeds.refused}"
            result.findings.append(Finding("numerics", True, message, compared=False, note=f"{only} compared"))
        if is_model:
            for each in self.expected:
                result.findings += each.against(right)
            result.findings += self.rounding
            result.findings += kept_weights(self.reference, right, self.tolerance)
        else:
            result.findings.append(Finding("numerics", False, UNSAFE, compared=False))
        if receipt is not None:
            accepted = right if is_model else None
            result.findings += receipt_findings(receipt, self.left, accepted, self.expected, result.ok, rules)
        return result
