"""Check that the wheel works in a clean environment without TensorFlow: command line, library and third-party agent.

    python -m tests.nightly.installation

pip installs the wheel of the checkout and the packages that it requires. It then adds the packages of the extra
`agents`, and the script of docs/TRAIN_AN_AGENT.md runs with sb3-contrib's MaskablePPO. The check fails if a step fails
or cannot run.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.validate import validate
from rlflow.zoo import load
from tests.docs.steps import steps_of
from tests.installation import ROOT, build_wheel
from tests.nightly import parser

MODEL, PAGE, SCRIPT = "tiny_resnet18", "docs/TRAIN_AN_AGENT.md", "ppo.py"
LIBRARY = f"""
import sys, rlflow
result = rlflow.optimise("{MODEL}", seconds=20, threads=1, quiet=True)
assert "tensorflow" not in sys.modules
"""


def called(folder: Path, *command) -> str | None:
    """Run a command in a folder; return None if it succeeds, otherwise the last line of its standard error."""
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    print(done.stdout, done.stderr, file=sys.stderr)
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def agent_script() -> str:
    """Return the text of the script SCRIPT in the page PAGE."""
    steps = steps_of(PAGE, (ROOT / PAGE).read_text(encoding="utf-8"))
    return next(step.script for step in steps if step.script and step.file == SCRIPT)


def main() -> int:
    parser(__doc__).parse_args()
    failures, skipped, checks = [], [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, binaries = build_wheel(folder), folder / "environment" / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        python = binaries / "python"
        if error := called(folder, python, "-m", "pip", "install", "--quiet", wheel):
            print(f"the wheel was not installed: {error}")
            return 1
        steps = {
            "rlflow --help": (binaries / "rlflow", "--help"),
            "rlflow optimise": (binaries / "rlflow", "optimise", MODEL, "--out", "out.onnx", "--seconds", "20"),
            "rlflow bound": (binaries / "rlflow", "bound", "--model", MODEL, "--seconds", "5"),
            "rlflow.optimise": (python, "-c", LIBRARY),
        }
        for step, command in steps.items():
            checks += 1
            if error := called(folder, *command):
                failures.append(f"{step}: {error}")
        if error := called(folder, python, "-m", "pip", "install", "--quiet", f"{wheel}[agents]"):
            skipped.append(f"the extra `agents`: {error}")
        else:
            checks += 1
            (folder / SCRIPT).write_text(agent_script(), encoding="utf-8")
            save_model(load(MODEL), folder / "original.onnx")
            error = called(folder, python, SCRIPT)
            written = folder / "faster_ppo.onnx"
            if error or not written.exists() or not validate(folder / "original.onnx", written).ok:
                failures.append(f"MaskablePPO: {error or 'its file is not equal to the original'}")
    print(*failures, *skipped, sep="\n", file=sys.stderr)
    text = f"{checks - len(failures)} of {checks} steps succeed without TensorFlow"
    print("; not run: ".join([text, *skipped]))
    return int(bool(failures or skipped))


if __name__ == "__main__":
    sys.exit(main())
