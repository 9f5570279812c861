"""Does the script with sb3-contrib's MaskablePPO run as its page shows it, in an environment with the extra `agents`?

The environment is a new one outside the checkout, without TensorFlow, as docs/TRAIN_AN_AGENT.md says. What the script
writes is checked to be equal to the original. It learns for seconds: this shows that the agent trains, not how well.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import bar, finish, parser
from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.validate import validate
from rlflow.zoo import load
from tests.docs.steps import steps_of
from tests.installation import build_wheel

JUDGES = ("rlflow/env", "docs/TRAIN_AN_AGENT.md")

ROOT = Path(__file__).parent.parent
PAGE, SCRIPT, MODEL = "docs/TRAIN_AN_AGENT.md", "ppo.py", "tiny_resnet18"
SAID = re.compile(r"estimated: (\S+) ms, then (\S+) ms")


def trained(folder: Path) -> dict:
    """What the script says and writes in the folder."""
    steps = steps_of(PAGE, (ROOT / PAGE).read_text(encoding="utf-8"))
    (step,) = [step for step in steps if step.script and step.file == SCRIPT]
    (folder / SCRIPT).write_text(step.script, encoding="utf-8")
    environment = folder / "environment"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{build_wheel(folder)}[agents]"], check=True)
    done = subprocess.run([python, SCRIPT], cwd=folder, capture_output=True, text=True)
    estimates = [float(number) for pair in SAID.findall(done.stdout) for number in pair]
    save_model(load(MODEL), folder / "original.onnx")
    written = folder / "faster_ppo.onnx"
    equal = written.exists() and validate(folder / "original.onnx", written).ok
    return {"status": done.returncode, "estimated_ms": estimates, "equal": equal}


def bars_of(figures: dict) -> list[dict]:
    before_and_after = figures["estimated_ms"]
    not_costlier = len(before_and_after) == 2 and before_and_after[1] <= before_and_after[0]
    return [
        bar("the script runs", figures["status"] == 0, "", "true", figures["status"] == 0),
        bar("its best graph is not costlier", not_costlier, "", "true", not_costlier),
        bar("its file is equal to the original", figures["equal"], "", "true", figures["equal"]),
    ]


def main() -> int:
    parsed = parser(__doc__, seeded=False).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = trained(Path(folder))
    return finish("agents", parsed, figures, bars_of(figures), by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
