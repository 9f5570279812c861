"""`run.py optimise`, as a user runs it, on a file that somebody else wrote."""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json


def optimised(source: Path, out: Path, seconds: float | None, options: Sequence[str]) -> dict:
    """What it delivered and why; the folder of its run is removed, which has several copies of the model.

    seconds: what it gets; None for its default.

    Raises RLFlowError: what the command says if it fails, or that nothing was checked in time.
    """
    folder = out.with_suffix(".run")
    command = [sys.executable, "run.py", "optimise", str(source), "--out", str(out), "--run", str(folder)]
    command += ["--seconds", str(seconds)] if seconds is not None else []
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed: going on with it would look faster
    started = time.monotonic()
    try:
        done = subprocess.run([*command, *options], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RLFlowError(done.stderr.strip().splitlines()[-1])
        if not (folder / "eval.json").exists():
            raise RLFlowError("the time was up before anything was checked")
        took, result = time.monotonic() - started, read_json(folder / "eval.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    best = result["candidates"].get(result["delivered"], {})
    return {
        "optimise_seconds": took, "asked_seconds": seconds, "check_seconds": result["seconds"],
        "delivered": result["delivered"], "reason": result["reason"],
        "returned_original": out.read_bytes() == source.read_bytes(),
        "estimated_improvement_percent": best.get("estimated_improvement_percent", 0.0),
        "measured": best.get("measured"), "left_out": best.get("left_out", []), "shares": result.get("shares"),
    }  # fmt: skip
