"""The same seed twice: the same episodes, the same world model, the same actions, byte for byte.

One worker, the analytic cost (the profiled one depends on the machine), separate processes with different
hash seeds, on a real model with a shortened training.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import bar, finish, parser
from rlflow.common.files import read_json

JUDGES = ("rlflow/collect", "rlflow/env", "worldmodel", "controllers", "rlflow/optimisation/receipt.py")

MODEL = "light_squeezenet"
OPTIONS = [
    "workers=1", "cost.name=analytic", "collect.episodes=16",
    "controller.ppo.updates=10", "eval.samples=2", "eval.measure_seconds=0", "env.max_steps=20",
    # they end by themselves, not by the clock
    "search.beam.width=2", "search.beam.depth=2", "search.annealing.restarts=2",
]  # fmt: skip


def fingerprint(folder: Path, seed: int, hash_seed: str) -> dict[str, str]:
    """SHA-256 of what each stage left."""
    command = [
        sys.executable, "run.py", "optimise", MODEL, "--out", str(folder / "out.onnx"), "--run", str(folder / "run"),
        "--seed", str(seed),
    ]  # fmt: skip
    subprocess.run(
        [*command, *OPTIONS], check=True, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONHASHSEED": hash_seed}
    )
    run = folder / "run"
    result = read_json(run / "eval.json")

    def digest(*paths: Path) -> str:
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()

    return {
        "episodes": digest(*sorted((run / "episodes").glob("*.npz"))),
        "world_model": digest(*sorted((run / "world-model").iterdir())),
        "controller": digest(next((run / "controller").glob("*/controller.npz"))),
        "actions": hashlib.sha256(
            repr([(n, c["path_ms"], c["rules"]) for n, c in result["candidates"].items()]).encode()
        ).hexdigest(),
        "model": digest(folder / "out.onnx"),
    }


def main() -> int:
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for name, seed, hash_seed in (("a", 0, "1"), ("b", 0, "2"), ("c", 1, "1")):
            (Path(folder) / name).mkdir()
            runs.append(fingerprint(Path(folder) / name, arguments.seed + seed, hash_seed))
    first, second, other = runs
    bars = [
        bar(f"the same {key} twice", first[key] == second[key], "", "true", first[key] == second[key]) for key in first
    ]
    bars.append(
        bar(
            "another seed gives other episodes", first["episodes"] != other["episodes"], "", "true",
            first["episodes"] != other["episodes"],
        )
    )  # fmt: skip
    return finish("determinism", arguments, {"first": first, "second": second, "other_seed": other}, bars)


if __name__ == "__main__":
    sys.exit(main())
