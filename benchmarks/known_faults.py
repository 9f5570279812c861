"""Writes docs/FAULTS.md: what ONNX Runtime's own optimisations get wrong, each by its smallest model.

Each model is run as it is written, and as ONNX Runtime optimises it, on negative inputs.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from benchmarks.harness import bar, finish, parser
from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import write_text
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import random_inputs, run, session
from rlflow.optimisation.validate.findings import json_number
from rlflow.optimisation.validate.known_faults import KNOWN, KnownFault, known_faults

JUDGES = ("rlflow/optimisation/validate/known_faults.py",)

ROUNDING = 1e-9  # what optimised models in float64 may differ by; those in float32 here differ by much more
PAGE = Path(__file__).parent.parent / "docs" / "FAULTS.md"
HEAD = """# Known faults of ONNX Runtime {version}

This page is written by `python -m benchmarks.known_faults`. Each model is valid, and ONNX Runtime gives other
outputs for it, or no session, as soon as its own optimisations are on (`ORT_ENABLE_ALL`, CPU). A result of RLFlow that
would trigger one of them loses the rewrites that lead there, and only those. Each section is ready to be reported.
"""


def shown(fault: KnownFault) -> dict:
    """What the smallest model gives: `error`, the largest difference between both runs ("nan": one is not a number), or
    `refused`, the reason."""
    model = onnx.parser.parse_model(fault.model)
    inputs = {name: -np.abs(array) for name, array in random_inputs(model, 0).items()}
    wanted = run(session(model, 1, optimise=False), inputs)
    result = {
        "name": fault.name,
        "what": fault.what,
        "triggers": known_faults(load_graph(model))[fault.name],
        "error": None,
        "refused": None,
    }
    try:
        given = run(session(model, 1, optimise=True), inputs)
    except RLFlowError as error:
        return result | {"refused": first_line(error)}
    error = max(float(np.abs(a - b).max()) for a, b in zip(wanted, given, strict=True))
    return result | {"error": json_number(error)}


def section(fault: KnownFault, result: dict) -> str:
    seen = (
        f"`{result['refused']}`"
        if result["refused"]
        else f"the largest difference of an output is {float(result['error']):.3g}"
    )
    return (
        f"\n## {fault.name}\n\n{fault.what[0].upper()}{fault.what[1:]}.\n\nSeen: {seen}.\n\n```\n{fault.model}\n```\n"
    )


def main() -> int:
    arguments = parser(__doc__).parse_args()
    result = [shown(fault) for fault in KNOWN]
    page = HEAD.format(version=onnxruntime.__version__) + "".join(
        section(*pair) for pair in zip(KNOWN, result, strict=True)
    )
    write_text(PAGE, page)
    wrong = [one["name"] for one in result if one["refused"] or not float(one["error"]) <= ROUNDING]
    bars = [bar("known faults that are still there", len(wrong), "", f"all {len(KNOWN)}", len(wrong) == len(KNOWN))]
    return finish("known_faults", arguments, {"faults": result}, bars, by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
