"""A model in a process of its own that runs it whenever it is told to, by ONNX Runtime or by OpenVINO.

    python -m benchmarks.exports.running RUNTIME MODEL INPUTS THREADS

It reads lines: "run" is answered with seconds, "outputs PATH" once the outputs are written there.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError

WARM = 2  # the first run allocates


class Running:
    """The process, from outside; it waits while others run.

    Raises RLFlowError, here or later, if it dies or says an error.
    """

    def __init__(self, runtime: str, model: Path, inputs: Path, threads: int, python: str = sys.executable) -> None:
        """inputs: an .npz of the model's inputs, by name.  python: one that has the runtime."""
        command = [python, "-m", "benchmarks.exports.running", runtime, str(model), str(inputs), str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ready(self) -> None:
        """Waits until the model is loaded and warm."""
        self._answer()

    def seconds(self) -> float:
        """Of one run."""
        self._say("run")
        return self._answer()["seconds"]

    def outputs(self, path: Path) -> list[np.ndarray]:
        """In the model's order, by way of the file."""
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
    """Answers what standard input says, until it ends."""
    with np.load(inputs) as arrays:
        run = RUNTIMES[runtime](model, dict(arrays), threads)
    for _ in range(WARM):
        run()
    # One thread: the time that this process had a core; what others took of it does not count.
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
    of_runtime, of_model, of_inputs, of_threads = sys.argv[1:]
    try:
        answers(of_runtime, Path(of_model), Path(of_inputs), int(of_threads))
    except Exception as error:  # whatever a runtime raises, its line says so
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)
        raise
