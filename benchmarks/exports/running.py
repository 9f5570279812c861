"""A process that runs one model on request, by ONNX Runtime or by OpenVINO.

    python -m benchmarks.exports.running RUNTIME MODEL INPUTS THREADS

The process reads lines. It answers "run" with the seconds of a run, and "outputs PATH" after writing the outputs there.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError

WARM_UPS = 2  # the first run allocates memory


class Running:
    """Handle of such a process, which waits while others run.

    All methods raise RLFlowError if the process has died or reports an error.
    """

    def __init__(self, runtime: str, model: Path, inputs: Path, threads: int, python: str = sys.executable) -> None:
        """Start the process.

        Args:
            runtime: a name of RUNTIMES.
            model: the file.
            inputs: an .npz of the model's inputs by name.
            threads: inside one operator.
            python: the Python that has the runtime.
        """
        command = [python, "-m", "benchmarks.exports.running", runtime, str(model), str(inputs), str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ready(self) -> None:
        """Wait until the model is loaded and warm."""
        self._answer()

    def seconds(self) -> float:
        """Run the model once and return the seconds."""
        self._say("run")
        return self._answer()["seconds"]

    def outputs(self, path: Path) -> list[np.ndarray]:
        """Return the outputs in the model's order; the process writes them to the file `path`."""
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


RUNTIMES = {"onnxruntime": by_onnxruntime, "openvino": by_openvino}


def answers(runtime: str, model: Path, inputs: Path, threads: int) -> None:
    """Load the model, then answer the lines of standard input until it ends."""
    with np.load(inputs) as arrays:
        run = RUNTIMES[runtime](model, dict(arrays), threads)
    for _ in range(WARM_UPS):
        run()
    # With one thread, processor time leaves out what other processes took of the core.
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
    except Exception as error:  # the caller reads any error of a runtime as a line
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)
        raise
