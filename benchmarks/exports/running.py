"""A process that runs one model on request, by ONNX Runtime or by OpenVINO, and the handle of this process.

    python -m benchmarks.exports.running RUNTIME MODEL INPUTS THREADS

The process reads requests from standard input and answers each with one line of JSON. The first line, {}, says that the
model is loaded. The request "run" runs the model once and is answered with its "seconds". The request "outputs PATH"
writes the outputs to PATH as .npz. An error is answered with "error".
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError

WARM_UPS = 2  # untimed runs after loading; the first run allocates memory


class Running:
    """Handle of a process that runs one model on request and waits between requests.

    `ready`, `seconds` and `outputs` raise RLFlowError if the process has died or answers with an error.
    """

    def __init__(self, runtime: str, model: Path, inputs: Path, threads: int, python: str = sys.executable) -> None:
        """Start the process without waiting for it (see `ready`).

        Args:
            runtime: key of RUNTIMES.
            model: file of the model.
            inputs: .npz file with one array for each input name.
            threads: number of threads inside one operator.
            python: path of the Python interpreter that has the runtime.
        """
        command = [python, "-m", "benchmarks.exports.running", runtime, str(model), str(inputs), str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ready(self) -> None:
        """Wait until the process has loaded the model and finished its untimed runs."""
        self._answer()

    def seconds(self) -> float:
        """Run the model once and return its seconds: processor time with one thread, else wall-clock time."""
        self._say("run")
        return self._answer()["seconds"]

    def outputs(self, path: Path) -> list[np.ndarray]:
        """Run the model once and return its outputs in the model's order; the process writes them to `path` (.npz)."""
        self._say(f"outputs {path}")
        self._answer()
        with np.load(path) as arrays:
            return [arrays[name] for name in arrays.files]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _say(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RLFlowError("its process died") from error

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RLFlowError("its process died")
        answer = json.loads(line)
        if "error" in answer:
            raise RLFlowError(answer["error"])
        return answer


# -- inside the process ------------------------------------------------------------------------------


def by_onnxruntime(model: Path, inputs: dict[str, np.ndarray], threads: int) -> Callable[[], list[np.ndarray]]:
    from rlflow.graph.onnx_runtime import run, session

    running = session(model, threads)
    return lambda: run(running, inputs)


def by_openvino(model: Path, inputs: dict[str, np.ndarray], threads: int) -> Callable[[], list[np.ndarray]]:
    import openvino

    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(model), "CPU", hints)
    request, given = compiled.create_infer_request(), [inputs[port.any_name] for port in compiled.inputs]

    def run() -> list[np.ndarray]:
        made = request.infer(given, share_inputs=True)
        return [made[output] for output in compiled.outputs]

    return run


# Runtime → function from (model, inputs, threads) to a function that runs the model and returns its outputs.
RUNTIMES = {"onnxruntime": by_onnxruntime, "openvino": by_openvino}


def answers(runtime: str, model: Path, inputs: Path, threads: int) -> None:
    """Load the model, then answer requests from standard input until the input ends (see the module docstring).

    Args:
        runtime: key of RUNTIMES.
        model: file of the model.
        inputs: .npz file with one array for each input name.
        threads: number of threads inside one operator.
    """
    with np.load(inputs) as arrays:
        run = RUNTIMES[runtime](model, dict(arrays), threads)
    for _ in range(WARM_UPS):
        run()
    # With one thread, processor time excludes the time in which other processes used the core.
    clock = time.process_time if threads == 1 else time.perf_counter
    print("{}", flush=True)
    for line in sys.stdin:
        what, _, path = line.strip().partition(" ")
        answer = {}
        if what == "run":
            started = clock()
            run()
            answer["seconds"] = clock() - started
        else:
            np.savez(path, *run())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    runtime_name, model_path, inputs_path, thread_count = sys.argv[1:]
    try:
        answers(runtime_name, Path(model_path), Path(inputs_path), int(thread_count))
    except Exception as error:  # the handle reads every error of a runtime as one line
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)
        raise
