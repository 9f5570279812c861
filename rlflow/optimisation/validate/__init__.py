"""Is the candidate the same model as the original? Structure, interface, numerics and the receipt, each on its own.

A candidate is judged as it is written, and as ONNX Runtime optimises it, since a run with optimisations alone hides
faults (numerics.py). Special values are compared too (inputs.py), with a limit that comes from the original; where that
compares nothing, a finding says so. What enters a last Softmax is compared less its maximum, since Softmax is blind to
a common shift. A weight that is nearly what it was under its name is damaged, whether an output shows it or not. A
candidate that the checker refuses, or in which a tensor lost all its elements, is not run: ONNX Runtime may end the
process over it.

Where sizes are symbols, equality at one size shows little: a rewrite may have taken `seq` for the 128 that it was seen
at. So the two are compared at the named sizes and at five more, a candidate must run wherever the original does, and at
a size at which that does not run itself, or for which there is no time or memory, nothing is said to be equal.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from rlflow.optimisation.choice import EvalOptions
from rlflow.optimisation.validate.equality import Comparison
from rlflow.optimisation.validate.findings import Finding, Findings
from rlflow.optimisation.validate.numerics import relative_error
from rlflow.rules.language import RuleSet

__all__ = ["Comparison", "Finding", "Findings", "relative_error", "validate"]


def validate(
    original: onnx.ModelProto | Path | str,
    candidate: onnx.ModelProto | Path | str,
    seeds: Sequence[int] = EvalOptions.seeds,
    tolerance: float = EvalOptions.tolerance,
    shapes: Mapping[str, object] | None = None,
    threads: int = 1,
    optimise: bool = True,
    receipt: dict | None = None,
    rules: RuleSet | None = None,
    fix: bool = False,
) -> Findings:
    """Compares two models; every check leaves a finding, and what could not be compared leaves one too.

    Structure: the ONNX checker (with shape inference where the original passes it) and ONNX Runtime accept
    the candidate, no tensor lost all its elements, and weights that are nearly those of the original under the same
    name are so within the tolerance. Interface: names, types, shapes and order of inputs and outputs, names of
    symbolic dimensions included; with `fix` one may have become the size that `shapes` gives it. Numerics: both run in
    ONNX Runtime as they are written, on ordinary draws and special values (`inputs.py`), and as it optimises them, on
    the ordinary draws, and at other sizes too where dimensions are symbolic (`sizes.py`); the relative error of an
    output is max |candidate − original| / max |original| (the absolute error where the original is all zero; on special
    values no less than an ordinary output is divided by). NaN and infinity must stand at the same
    indices with the same sign; integers, booleans and strings must be equal. Where an output comes from Softmax,
    LogSoftmax, Sigmoid or Tanh (through views), the tensor before it is compared too: saturated outputs hide errors.
    Receipt: it can be repeated on the original and leads to the candidate; where outputs part, the first rewrite after
    which they do is named.

    Args:
      original, candidate: paths, or models; above 2 GB paths.
      seeds: of the inputs.
      tolerance: the largest relative error of a float output that passes; 0 asks for equality bit for bit. An original
        in half precision is run in float32 too: an output may be as far from that as ONNX Runtime's own sessions of the
        original are, times `OWN_MARGIN`, where that is more; one that is quantised, from itself as it is written.
      shapes: the sizes of symbolic dimensions at which the two are compared, as `typical_sizes` takes them; five more
        come on top, and a candidate must run wherever the original does.
      optimise: whether both are compared as ONNX Runtime rewrites them for a user, too; it rounds as it likes where it
        does.
      receipt: of the candidate, as `make_receipt` gives it.
      rules: the set that the receipt was made with; the shipped one if None.
      fix: whether the candidate may take the sizes of `shapes` alone.

    Raises:
      RLFlowError: the original cannot be read or run, or its inputs cannot be made.
    """
    return Comparison(original, seeds, tolerance, shapes, threads, optimise, fix).against(candidate, receipt, rules)
