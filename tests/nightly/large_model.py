"""Check of the peak memory of `run.py optimise` and `run.py replay` on a model above protobuf's limit of 2 GB.

    python -m tests.nightly.large_model [--gigabytes G]

The model is a chain of gated blocks with external weights of 59 MB each, written one weight at a time. Each command
runs in its own process, and the memory of its process tree is sampled up to 20 times a second. Memory is the
proportional set size: anonymous memory and mapped files, with shared pages counted once. Other pages of the page cache
do not count, because the system can reclaim them. A result without a measured difference is accepted, because a few
sessions of so large a model show no small gain.
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

from rlflow.common.files import file_hash, read_json
from rlflow.graph.onnx_reader import model_files
from rlflow.optimisation.validate import validate
from tests.nightly import parser

WIDTH, ROWS = 3840, 8  # features of each layer; rows of the input
LIMIT = 1.5  # largest accepted peak memory of a command, as a multiple of the size of the model


def write_model(path: Path, gigabytes: float, seed: int) -> int:
    """Write a model with external weights and return the size of its files in bytes.

    Args:
        path: the ONNX file; the weights are written to PATH.data.
        gigabytes: approximate size of the weights.
        seed: seed of the weights.
    """
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
    """A thread that samples the memory of a process and its descendants until the process ends.

    Attributes:
        total: the largest sampled proportional set size of all these processes together, in bytes.
    """

    def __init__(self, process: subprocess.Popen):
        super().__init__()
        self.process, self.total = process, 0

    def run(self) -> None:
        while self.process.poll() is None:
            tree = _tree(self.process.pid)
            if sum(map(_resident, tree)) > self.total:  # the PSS is slow to read and at most the RSS
                self.total = max(self.total, sum(map(_proportional, tree)))
            time.sleep(0.05)


def _tree(root: int) -> list[psutil.Process]:
    """Return a process and all its descendants; [] if the process has ended."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident(process: psutil.Process) -> int:
    """Return the resident set size in bytes, an upper bound of the proportional set size; 0 for an ended process."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


def _proportional(process: psutil.Process) -> int:
    """Return the proportional set size in bytes; 0 for an ended process."""
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0


def peak_of(*command) -> int:
    """Run a command of run.py and return the peak memory of its processes in bytes (`Peak.total`).

    Raises:
        RuntimeError: the command failed; the message is the last line of its standard error.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        words = [sys.executable, "run.py", *map(str, command)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        peak = Peak(process)
        peak.start()
        peak.join()
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(errors.read().strip().splitlines()[-1])
    return peak.total


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--gigabytes", type=float, default=2.2, help="of weights (default 2.2)")
    arguments.add_argument("--folder", type=Path, help="where the files lie meanwhile: five times the model")
    parsed = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=parsed.folder) as name:
        model, out, run, again = (Path(name) / file for file in ("large.onnx", "out.onnx", "run", "again.onnx"))
        size = write_model(model, parsed.gigabytes, parsed.seed)
        words = ("--threads", 1, "--accept", "equal")
        optimise = peak_of("optimise", model, "--out", out, "--run", run, *words) / size
        delivered = read_json(run / "eval.json")["delivered"] != "original"
        replay, same = 0.0, True
        if delivered:
            replay = peak_of("replay", run / "eval" / "receipt.json", "--model", model, "--out", again) / size
            same = file_hash(*model_files(again)[1:]) == file_hash(*model_files(out)[1:])
        equal = validate(model, out, seeds=(100,)).ok
    print(
        f"{size / 1e9:.2f} GB: optimise needs {optimise:.2f} times the model, replay {replay:.2f} (limit {LIMIT}); "
        f"{'rewritten' if delivered else 'not rewritten'}, {'equal' if equal else 'NOT equal'}, "
        f"{'the same weights again' if same else 'OTHER weights again'}"
    )
    return int(not (delivered and equal and same and max(optimise, replay) <= LIMIT))


if __name__ == "__main__":
    sys.exit(main())
