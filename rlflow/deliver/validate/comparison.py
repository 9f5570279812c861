"""One original beside any number of candidates: it is run once.

Where it has symbols it is run at the named sizes, each of them with ordinary inputs, the first with special values too,
and then at sizes that nobody named (sizes.py), with ordinary inputs of one seed each.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.deliver.validate.findings import Finding, Findings
from rlflow.deliver.validate.inputs import InputSet, ordinary_inputs, special_inputs
from rlflow.deliver.validate.models import Model
from rlflow.deliver.validate.numerics import Expected, precise_runs
from rlflow.deliver.validate.sizes import Others, ladders
from rlflow.deliver.validate.steps import receipt_findings
from rlflow.deliver.validate.structure import interface, kept_weights, structure
from rlflow.graph.typical import input_shapes, typical_sizes
from rlflow.rules.language import RuleSet

MOST_BYTES = 1 << 30  # of one tensor: where nobody named a size, none is taken at which one is larger
OPTIMISED = 2  # sizes that nobody named; what ONNX Runtime makes of a graph with symbols is the same for all sizes
UNSAFE = "not compared: a model of such a structure is not run, since ONNX Runtime may end this process over it"


class Comparison:
    """What `validate` does with the original, kept for all candidates; arguments and errors are those of `validate`."""

    def __init__(
        self, original: onnx.ModelProto | Path | str, seeds: Sequence[int], tolerance: float,
        shapes: Mapping[str, object] | None = None,
        threads: int = 1, optimise: bool = True, fix: bool = False,
    ):  # fmt: skip
        self.shapes, self.fix, self.tolerance, self.left = shapes or {}, fix, tolerance, Model.read(original)
        self.seeds, ports = seeds, self.left.interface
        first, *more = self.sizes = typical_sizes(ports, self.shapes)
        self.graph = self.left.graph() if ports.symbols else None
        bound = input_shapes(ports, first)
        ordinary = [given.at(first) for given in ordinary_inputs(self.left.proto, seeds, bound)]
        ordinary += map(self.draw, more)
        special = [given.at(first) for given in special_inputs(self.left.proto, seeds[0], bound)]
        precise = precise_runs(self.left, ordinary, threads)
        others = Others(list(ladders(ports.symbols, first)), self.sizes, self.draw)
        written = Expected(self.left, ordinary, special, tolerance, threads, False, precise, others)
        self.expected = [written]
        if optimise:
            others = Others([(sizes,) for sizes in written.elsewhere[:OPTIMISED]], self.sizes, self.draw)
            self.expected.append(Expected(self.left, ordinary, [], tolerance, threads, True, precise, others))
        self.graph = None  # whose weights are let go

    def draw(self, sizes: Mapping[str, int]) -> InputSet:
        """Ordinary inputs of these sizes. The seed, and the shift with it, differs from size to size.

        Raises RLFlowError where nobody named the sizes and a tensor would be too large.
        """
        largest = self.largest_tensor(sizes)
        if sizes not in self.sizes and largest > MOST_BYTES:
            raise RLFlowError(f"one of its tensors would take {largest / 2**30:.1f} GiB")
        drawn = ordinary_inputs(self.left.proto, self.seeds, input_shapes(self.left.interface, sizes))
        return drawn[sum(sizes.values()) % len(drawn)].at(sizes)

    def largest_tensor(self, sizes: Mapping[str, int]) -> int:
        """In bytes, as far as shapes of the original are known."""
        if self.graph is None:
            return 0
        types = self.graph.at(sizes).types
        return max(types[tensor].nbytes for tensor in types)

    def against(
        self, candidate: onnx.ModelProto | Path | str, receipt: dict | None = None, rules: RuleSet | None = None
    ) -> Findings:
        """All findings about one candidate."""
        result = Findings()
        try:
            right = Model.read(candidate)
        except RLFlowError as error:
            result.findings.append(Finding("structure", False, str(error)))
            return result
        result.findings += structure(self.left, right)
        is_model = result.ok
        result.findings += interface(self.left, right, self.shapes if self.fix else {})
        if is_model:
            for each in self.expected:
                result.findings += each.against(right)
            result.findings += kept_weights(self.left, right, self.tolerance)
        else:
            result.findings.append(Finding("numerics", False, UNSAFE, compared=False))
        if receipt is not None:
            accepted = right if is_model else None
            result.findings += receipt_findings(receipt, self.left, accepted, self.expected, result.ok, rules)
        return result
