"""Check that a candidate computes the same as the original: structure, interface, numerics and receipt.

Numerics: both models are run with and without ONNX Runtime's optimisations, because a run with optimisations hides some
faults (numerics.py). Special input values are compared too (inputs.py); the accepted error is then derived from how
sensitive the original is. If this error is too large to show anything, a finding says so. The input of a last Softmax
is compared after its maximum is subtracted, because Softmax does not change if all its inputs are shifted alike.

Structure: a weight that differs slightly from the original weight of the same name counts as damaged, even if no output
shows the difference. A candidate is not run if the ONNX checker refuses it, or if one of its tensors lost all elements,
because ONNX Runtime may end the process.

With symbolic sizes, equality at one size shows little, because a rewrite may be right only for one size of a symbol.
Both models are therefore run at the named sizes and at up to five more, and the candidate must run at every size at
which the original runs. Sizes at which the original does not run, or that need too much time or memory, are reported
as not compared.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from rlflow.graph.dequantised import is_quantised
from rlflow.graph.feeds import Feeds
from rlflow.graph.half_precision import is_half
from rlflow.optimisation.choice import EvalOptions
from rlflow.optimisation.validate.equality import Comparison
from rlflow.optimisation.validate.findings import Finding, Findings
from rlflow.optimisation.validate.numerics import relative_error
from rlflow.optimisation.validate.onnx_model import Model
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
    feeds: Feeds | None = None,
) -> Findings:
    """Compare a candidate with the original. Every check leaves a finding, even if it could not compare anything.

    Structure: the ONNX checker and ONNX Runtime must accept the candidate; the checker infers shapes unless it then
    refuses the original too. No tensor may lose all its elements. A weight that is nearly equal to the original's
    weight of the same name must be equal within the tolerance.

    Interface: names, types, shapes and order of inputs and outputs must be equal, names of symbolic dimensions
    included. With `fix` a symbolic dimension may have become the size in `shapes`.

    Numerics: both models run in ONNX Runtime without optimisations on ordinary and special inputs (`inputs.py`), and
    with optimisations on ordinary inputs. With symbolic dimensions they also run at other sizes. The relative error of
    an output is max |candidate − original| / max |original|; the error is absolute if the original is zero everywhere.
    On special inputs the divisor is at least the largest magnitude of the output on ordinary inputs. NaN and infinity
    must stand at the same indices with the same sign; integers, booleans and strings must be equal. If an output comes
    from Softmax, LogSoftmax, Sigmoid or Tanh, directly or through views, the input of this operator is compared too,
    because saturated outputs hide errors.

    Receipt: its rewrites must apply to the original and lead to the candidate. If outputs differ, a finding names a
    rewrite with equal outputs before it and different outputs after it.

    Args:
      original: a path or a model; a model above 2 GB must be given as a path.
      candidate: a path or a model; a model above 2 GB must be given as a path.
      seeds: the seeds of the random inputs.
      tolerance: the largest accepted relative error of a float output; 0 requires equality bit for bit. The outputs of
        a half-precision model are compared with a float32 run of the original. Their accepted error is at least
        `OWN_MARGIN` times the error of ONNX Runtime's own sessions of the original, up to 0.1. The reference for a
        quantised model is a run of the original without optimisations. If the receipt begins at the dequantised model
        (rlflow/graph/dequantised.py), this model is the reference, and a finding states its difference from the
        original.
      shapes: the sizes of symbolic dimensions, in the form of `typical_sizes`; up to five more sizes are added.
      threads: the number of threads of ONNX Runtime.
      optimise: True to compare the models also with ONNX Runtime's optimisations, which may change roundings.
      receipt: the receipt of the candidate, see `make_receipt`; None to check no receipt.
      rules: the rule set of the receipt; None for the shipped rules that the receipt names.
      fix: True if the candidate may accept only the sizes in `shapes`.
      feeds: the inputs of the original; None to draw them.

    Returns:
      The findings of all checks.

    Raises:
      RLFlowError: the original cannot be read or run, or its inputs cannot be made.
    """
    proto = Model.read(original).proto
    dequantise = bool(receipt and receipt.get("widened")) and is_quantised(proto) and not is_half(proto)
    comparison = Comparison(original, seeds, tolerance, shapes, threads, optimise, fix, feeds, dequantise)
    return comparison.against(candidate, receipt, rules)
