"""One original beside any number of candidates: it is run once."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.deliver.validate.findings import Finding, Findings
from rlflow.deliver.validate.inputs import ordinary_inputs, special_inputs
from rlflow.deliver.validate.models import Model
from rlflow.deliver.validate.numerics import Expected, precise_runs
from rlflow.deliver.validate.steps import receipt_findings
from rlflow.deliver.validate.structure import interface, kept_weights, structure
from rlflow.rules.language import RuleSet

UNSAFE = "not compared: a model of such a structure is not run, since ONNX Runtime may end this process over it"


class Comparison:
    """What `validate` does with the original, kept for all candidates; arguments and errors are those of `validate`."""

    def __init__(
        self, original: onnx.ModelProto | Path | str, seeds: Sequence[int], tolerance: float,
        shapes: Mapping[str, object] | None = None,
        threads: int = 1, optimise: bool = True,
    ):  # fmt: skip
        self.shapes, self.tolerance, self.left = shapes or {}, tolerance, Model.read(original)
        ordinary = ordinary_inputs(self.left.proto, seeds, self.shapes)
        self.bound = ordinary[0].arrays
        special, precise = (
            special_inputs(self.left.proto, seeds[0], self.shapes),
            precise_runs(self.left, ordinary, threads),
        )
        self.expected = [Expected(self.left, ordinary, special, tolerance, threads, False, precise)]
        if optimise:
            self.expected.append(Expected(self.left, ordinary, [], tolerance, threads, True, precise))

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
        result.findings += interface(self.left, right, self.bound, self.shapes)
        if is_model:
            for each in self.expected:
                result.findings += each.against(right)
            result.findings += kept_weights(self.left, right, self.tolerance)
        else:
            result.findings.append(Finding("numerics", False, UNSAFE, compared=False))
        if receipt is not None:
            result.findings += receipt_findings(receipt, self.left, right, self.expected, result.ok, rules)
        return result
