"""`run.py optimise` on a model of 3 GB with external data: how much memory does it take?

The model is a chain of gated blocks, with weights of 59 MB each, written one weight at a time. The command runs in
a process of its own with the standard checks and measurement and a shortened training, and the memory of its whole
process tree is sampled up to 20 times a second. `total` is the proportional set size (PSS): anonymous memory plus
mapped files, what several processes share counted once. `anonymous` is the part of it that no file stands behind. The
page cache is not counted: the system gives it back when it is needed. TensorFlow's own memory is counted.

The receipt is then replayed, in a process whose memory is sampled too. --gigabytes gives a smaller model, for which
the fixed part weighs more.
"""

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness import THREADS, bar, finish, parser
from rlflow.common.files import file_hash, read_json
from rlflow.graph.onnx_reader import model_files
from rlflow.optimisation.validate import validate

JUDGES = ("rlflow/graph", "rlflow/deliver")

WIDTH, ROWS = 3840, 8
LIMIT = 1.5  # times the size of the model
OPTIONS = [
    "collect.episodes=8", "env.max_steps=20", "controller.ppo.updates=10", "eval.samples=2",
]  # fmt: skip


def write_model(path: Path, gigabytes: float, seed: int) -> int:
    """Writes the model and returns its size in bytes, weights included."""
    rng, nodes, position = np.random.default_rng(seed), [], "x0"
    weights = [numpy_helper.from_array(np.float32(0.5), "half")]
    blocks = round(gigabytes * 1e9 / (3 * 4 * WIDTH * WIDTH))
    with open(path.with_name(f"{path.name}.data"), "wb") as data:
        def matrix(name: str) -> str:
            array = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
            tensor = TensorProto(
                name=name, data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL
            )
            for key, value in (("location", Path(data.name).name), ("offset", data.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            data.write(array)
            weights.append(tensor)
            return name

        def vector(name: str) -> str:
            weights.append(numpy_helper.from_array(rng.standard_normal(WIDTH, np.float32), name))
            return name

        def node(op: str, *inputs: str, output: str) -> str:
            nodes.append(helper.make_node(op, inputs, [output]))
            return output

        for k in range(blocks):
            normal = node("LayerNormalization", position, vector(f"scale{k}"), vector(f"shift{k}"), output=f"normal{k}")
            branches = []
            for name in ("value", "gate"):
                product = node("MatMul", normal, matrix(f"w_{name}{k}"), output=f"{name}{k}")
                branches.append(node("Add", product, vector(f"b_{name}{k}"), output=f"{name}_biased{k}"))
            value, gate = branches
            value = node("Identity", value, output=f"same{k}")
            gated = node("Mul", value, node("Sigmoid", gate, output=f"open{k}"), output=f"gated{k}")
            back = node(
                "Mul", node("MatMul", gated, matrix(f"w_back{k}"), output=f"back{k}"), "half", output=f"halved{k}"
            )
            position = node("Add", position, node("Relu", back, output=f"positive{k}"), output=f"x{k + 1}")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in ("x0", position))
    graph = helper.make_graph(nodes, "large", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return sum(file.stat().st_size for file in model_files(path))


class Peak(threading.Thread):
    """Samples the memory of a process and its descendants until it ends: most bytes, total and anonymous, and when."""

    def __init__(self, process: subprocess.Popen):
        super().__init__()
        self.process, self.total, self.anonymous, self.samples, self.when = process, 0, 0, 0, 0.0

    def run(self) -> None:
        started = time.monotonic()
        while self.process.poll() is None:
            tree = _tree(self.process.pid)
            bound, anonymous = map(sum, zip((0, 0), *map(_resident, tree), strict=True))
            self.anonymous = max(self.anonymous, anonymous)
            if bound > self.total:  # a look at the PSS holds the process up, so only where it may be a new peak
                total = sum(map(_proportional, tree))
                if total > self.total:
                    self.total, self.when = total, time.monotonic() - started
            self.samples += 1
            time.sleep(0.05)


def _tree(root: int) -> list[psutil.Process]:
    """A process and all its descendants; none if it has ended."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident(process: psutil.Process) -> tuple[int, int]:
    """Bytes of the resident set, of which pages that other processes share count in full, and of its anonymous part;
    0 if the process has ended."""
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0, 0
    return memory.rss, memory.rss - memory.shared


def _proportional(process: psutil.Process) -> int:
    """Bytes of the proportional set; 0 if the process has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0


def watched(command: list[str]) -> dict:
    """Runs a command; its peak memory and time. Raises RuntimeError with the last line of its errors."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        peak = Peak(process)
        peak.start()
        peak.join()
        seconds = time.monotonic() - started
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(errors.read().strip().splitlines()[-1])
    return {
        "seconds": seconds, "total": peak.total, "anonymous": peak.anonymous, "at_seconds": peak.when,
        "samples": peak.samples,
    }  # fmt: skip


def optimise(folder: Path, gigabytes: float, seed: int, overrides: list[str]) -> dict:
    model, out, run, again = (folder / name for name in ("large.onnx", "out.onnx", "run", "again.onnx"))
    size = write_model(model, gigabytes, seed)
    command = [
        sys.executable, "run.py", "optimise", str(model), "--out", str(out), "--run", str(run), "--seed", str(seed),
        "--threads", str(THREADS),
    ]  # fmt: skip
    memory = watched([*command, *OPTIONS, *overrides])
    result = read_json(run / "eval.json")
    figures = {
        "model_bytes": size,
        "optimise": memory,
        "ratio_total": memory["total"] / size,
        "ratio_anonymous": memory["anonymous"] / size,
        "stages": {
            s: read_json(run / f"{s}.json")["seconds"] for s in ("collect", "train-wm", "train-controller", "eval")
        },
        "delivered": result["delivered"],
        "substitutions": {name: outcome["rules"] for name, outcome in result["candidates"].items()},
        "measured": {name: outcome["measured"] for name, outcome in result["candidates"].items()},
        "equal": validate(model, out, seeds=(100,)).ok,
    }
    if result["delivered"] != "original":
        command = [
            sys.executable, "run.py", "replay", str(run / "eval" / "receipt.json"), "--model", str(model), "--out",
            str(again),
        ]  # fmt: skip
        memory = watched(command)
        same = file_hash(*model_files(again)[1:]) == file_hash(*model_files(out)[1:])
        figures |= {"replay": memory, "ratio_replay": memory["total"] / size, "replayed": same}
    return figures


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--gigabytes", type=float, default=3.0)
    arguments.add_argument("--folder", type=Path, help="where the files lie meanwhile: five times the model")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=parsed.folder) as folder:
        figures = optimise(Path(folder), parsed.gigabytes, parsed.seed, parsed.overrides)
    limit = f"≤ {LIMIT} times the model"
    bars = [
        bar(
            "peak memory of optimise, mapped files included", figures["ratio_total"], "times the model", limit,
            figures["ratio_total"] <= LIMIT,
        ),
        bar(
            "peak anonymous memory of optimise", figures["ratio_anonymous"], "times the model", limit,
            figures["ratio_anonymous"] <= LIMIT,
        ),
        bar(
            "a rewritten model is delivered, equal to the original", figures["delivered"], "", "true",
            figures["equal"] and figures["delivered"] != "original",
        ),
    ]  # fmt: skip
    if "replayed" in figures:
        bars += [
            bar(
                "peak memory of replay", figures["ratio_replay"], "times the model", limit,
                figures["ratio_replay"] <= LIMIT,
            ),
            bar("the receipt replays to the same weights", figures["replayed"], "", "true", figures["replayed"]),
        ]  # fmt: skip
    return finish("large_model", parsed, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
