"""Check that a candidate computes the same as the original: structure, interface, numerics and receipt.

Numerics: the candidate is compared as it is written and as ONNX Runtime optimises it, because a run with optimisations
alone hides faults (numerics.py). Special input values are compared too (inputs.py), with a limit derived from the
original. If the limit is too wide to show anything, a finding says so. The input of a last Softmax is compared after
its maximum is subtracted, because Softmax does not depend on a common shift.

Structure: a weight that differs slightly from the original weight of the same name counts as damaged, even if no output
shows it. A candidate that the ONNX checker refuses, or in which a tensor lost all its elements, is not run: ONNX
Runtime may end the process.

With symbolic sizes, equality at one size shows little: a rewrite may have taken `seq` for its typical size 128. Both
models are therefore run at the named sizes and at five more, and the candidate must run wherever the original does.
Sizes at which the original does not run, or that need too much time or memory, are reported as not compared.
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
    """Compare two models. Every check leaves a finding, also if it could not compare anything.

    Structure: the ONNX checker (with shape inference if the original passes it) and ONNX Runtime accept the candidate.
    No tensor lost all its elements. Weights that are nearly equal to the original's of the same name are equal within
    the tolerance.

    Interface: names, types, shapes and order of inputs and outputs are equal, names of symbolic dimensions included.
    With `fix` a symbolic dimension may have become the size in `shapes`.

    Numerics: both models run in ONNX Runtime as they are written, on ordinary and special inputs (`inputs.py`), and as
    ONNX Runtime optimises them, on ordinary inputs. With symbolic dimensions they also run at other sizes. The relative
    error of an output is max |candidate − original| / max |original|. The error is absolute if the original is zero
    everywhere. On special inputs the divisor is at least that of an ordinary output. NaN and infinity must stand at the
    same indices with the same sign; integers, booleans and strings must be equal. If an output comes from Softmax,
    LogSoftmax, Sigmoid or Tanh (through views), the tensor before it is compared too, because saturated outputs hide
    errors.

    Receipt: its rewrites can be repeated on the original and lead to the candidate. If outputs differ, the first
    rewrite after which they differ is named.

    Args:
      original: a path or a model; a path if it is above 2 GB.
      candidate: a path or a model; a path if it is above 2 GB.
      seeds: of the inputs.
      tolerance: the largest accepted relative error of a float output; 0 requires equality bit for bit. A
        half-precision original is also run in float32: an output may differ from that result by `OWN_MARGIN` times the
        error of ONNX Runtime's own sessions of the original, if that is more. A quantised original is compared with
        itself as it is written.
      shapes: the sizes of symbolic dimensions, in the form of `typical_sizes`; five more sizes are added.
      threads: threads of ONNX Runtime.
      optimise: whether the models are also compared as ONNX Runtime optimises them, which may change roundings.
      receipt: the receipt of the candidate, see `make_receipt`.
      rules: the rule set of the receipt; None for the shipped one.
      fix: whether the candidate may accept only the sizes in `shapes`.

    Returns:
      All findings.

    Raises:
      RLFlowError: the original cannot be read or run, or its inputs cannot be made.
    """
    return Comparison(original, seeds, tolerance, shapes, threads, optimise, fix).against(candidate, receipt, rules)
