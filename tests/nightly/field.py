"""Check that `run.py optimise` ends as documented, and in time, on the models of tests/field.

    python -m tests.nightly.field [--seconds S] [--all]

Every command runs in a process of its own, as a user starts it, with the default cost and with measurements. Each must
end with the exit status and the line that its case names. By default the check takes the first cases of each kind; with
`--all` it takes all of them. A delivered file must pass `run.py validate`. A command fails that takes more processor
seconds than two times its `--seconds` on each core. The outcome names the command that takes most of them.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

from rlflow.common.system import usable_cores
from tests.field import Case, kinds
from tests.nightly import parser

FIRST = 5  # number of cases of each kind


def run(*words) -> tuple[int, str, float]:
    """Run a command of run.py and return (exit status, all its output, processor seconds)."""
    before = processor_seconds()
    command = [sys.executable, "run.py", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout, processor_seconds() - before


def processor_seconds() -> float:
    """Return the processor seconds of all commands so far; other work on the machine does not change them."""
    used = os.times()
    return used.children_user + used.children_system


def faults(case: Case, folder: Path, seconds: float) -> tuple[list[str], float]:
    """Optimise the model of a case.

    Args:
        case: the case.
        folder: an empty folder for files.
        seconds: the budget of the command.

    Returns:
        (one text for each deviation from the documented end, processor seconds of `optimise`).
    """
    model, out = folder / "model.onnx", folder / "out.onnx"
    onnx.save(case.make(), model)
    given: list = [word for library in case.custom_ops for word in ("--custom-ops", library)]
    if case.inputs is not None:
        np.savez(folder / "data.npz", **case.inputs)
        given += ["--inputs", folder / "data.npz"]
    status, output, taken = run("optimise", model, "--out", out, "--seconds", seconds, *given, *case.options)
    found = [] if taken <= 2 * seconds * usable_cores() else [f"took {taken:.1f} processor seconds"]
    kind = "error" if case.status else "result"
    lines = [line for line in output.splitlines() if line.startswith(f"{kind}: ")]
    if status != case.status or "Traceback" in output:
        found.append(f"exit status {status}, not {case.status}: {output.strip().splitlines()[-1]}")
    elif len(lines) != 1 or not re.search(case.says, lines[0]):
        found.append(f"says {lines}, not {case.says!r}")
    if case.status and (out.exists() or out.with_suffix(".run").exists()):
        found.append("was refused and left files behind")
    if not status:
        sizes = case.options if "--shape" in case.options else ()
        status, output, _ = run("validate", model, out, *given, *sizes)
        if status:
            found.append(f"validate ends with {status}: {output.strip().splitlines()[-1]}")
    return found, taken


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=5.0, help="budget of each command (default 5)")
    arguments.add_argument("--all", action="store_true", help="all cases, not the first of each kind")
    parsed = arguments.parse_args()
    times, failed = {}, 0
    for kind, named in kinds().items():
        for name in list(named)[: None if parsed.all else FIRST]:
            with tempfile.TemporaryDirectory() as folder:
                found, times[f"{kind} {name}"] = faults(named[name], Path(folder), parsed.seconds)
            failed += bool(found)
            line = f"{kind} {name}: {times[f'{kind} {name}']:.1f} processor seconds"
            print(line, *found, sep="\n  ", file=sys.stderr, flush=True)
    slowest = max(times, key=times.__getitem__, default="")
    print(f"{len(times)} files, {failed} failures; {slowest} took most, {times.get(slowest, 0):.1f} processor seconds")
    return int(bool(failed) or not times)


if __name__ == "__main__":
    sys.exit(main())
