"""Whether two versions of the code make the same receipts, byte for byte, on the fifteen graphs.

    python -m benchmarks.same_receipts --json BEFORE.json                         in the one version
    python -m benchmarks.same_receipts --json AFTER.json --before BEFORE.json     in the other

For every graph `optimise --seed 0`, and collect → train-wm → train-controller → eval with the planner; both with the
analytic cost and with limits that count steps, not seconds, so that every byte is decided by the seed. Each of them is
the `python run.py` of the folder that the command is started in. Besides the receipts, the actions of all candidates
are compared, and the file.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import bar, each, finish, parser
from benchmarks.judged import ENGINE
from benchmarks.locations import PAPER
from benchmarks.optimise import LIGHT
from rlflow.common.files import read_json

JUDGES = (*ENGINE, "rlflow/search", "rlflow/optimisation/receipt.py")

MODELS = (*LIGHT, *PAPER)
COMMON = ["cost.name=analytic", "eval.measure_seconds=0", "eval.seeds=[0]", "workers=1"]
SEARCH = ["search.interactions=2000", "search.seconds=3600"]
STAGES = [
    "collect.episodes=12", "env.max_steps=30", "controller.planner.steps=1500", "eval.samples=1", "eval.greedy_steps=5",
]  # fmt: skip


def main() -> int:
    made = parser(__doc__, "runs/same_receipts")
    made.add_argument("--before", metavar="FILE", help="the JSON of the other version")
    made.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    arguments = made.parse_args()
    folder = arguments.folder / f"seed-{arguments.seed}"

    def work(model: str) -> dict:
        return fingerprints(model, folder / model, arguments.seed)

    figures = {"receipts": each(list(arguments.models), folder, work), "options": [*COMMON, *SEARCH, *STAGES]}
    before = read_json(arguments.before)["figures"]["receipts"] if arguments.before else {}
    bars = []
    for model in arguments.models if before else ():
        same = before.get(model) == figures["receipts"][model]
        bars.append(bar(f"{model}: receipts, actions and files as before", same, "", "true", same))
    return finish("same_receipts", arguments, figures, bars)


def fingerprints(model: str, folder: Path, seed: int) -> dict:
    """SHA-256 of what both ways leave."""
    folder.mkdir(parents=True, exist_ok=True)
    out, run = folder / "optimised.onnx", folder / "run"
    _command(
        "optimise", model, "--out", out, "--run", folder / "optimise", "--seed", seed, "--seconds", 5400, *COMMON,
        *SEARCH,
    )  # fmt: skip
    _command("collect", "--model", model, "--run", run, "--seed", seed, *COMMON, *STAGES)
    for stage in ("train-wm", "train-controller", "eval"):
        _command(stage, "--run", run)
    result = {"optimise": _left(folder / "optimise"), "stages": _left(run)}
    return result | {"file": _sha256(out.read_bytes())}


def _left(run: Path) -> dict:
    evaluated, receipt = read_json(run / "eval.json"), run / "eval" / "receipt.json"
    return {
        "delivered": evaluated["delivered"],
        "actions": _sha256(json.dumps(evaluated["actions"], sort_keys=True).encode()),
        "receipt": _sha256(receipt.read_bytes()) if evaluated["delivered"] != "original" else None,
    }


def _command(*arguments) -> None:
    subprocess.run(
        [sys.executable, "run.py", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
