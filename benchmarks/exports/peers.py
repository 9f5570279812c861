"""Other tools that make a model faster, each as its users call it and in a process of its own.

    python -m benchmarks.exports.peers TOOL SOURCE FILE FAMILY

OpenVINO is no such tool but another runtime; it is run beside them for reference (`benchmarks.exports.running`).
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PATIENCE = 1200  # seconds that a tool gets

# Family → what ONNX Runtime's transformers optimiser is told that a model is; of others it is told nothing.
MODEL_TYPES = {
    "albert": "bert", "bart": "bart", "gpt2": "gpt2", "llama": "gpt_neox", "swin": "swin", "t5": "t5", "unet": "unet",
    "vit": "vit", "whisper": "bart",
}  # fmt: skip


def onnxsim(source: Path, path: Path, family: str) -> None:
    import onnx
    import onnxsim

    model, fine = onnxsim.simplify(str(source))
    if not fine:
        raise ValueError("its own check finds another result")
    onnx.save(model, path)


def onnxslim(source: Path, path: Path, family: str) -> None:
    import onnxslim

    onnxslim.slim(str(source), str(path))


def onnxscript(source: Path, path: Path, family: str) -> None:
    import onnx
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), path)


def transformers(source: Path, path: Path, family: str) -> None:
    """ONNX Runtime's own, for the CPU."""
    from onnxruntime.transformers.optimizer import optimize_model

    optimize_model(str(source), **model_type(family)).save_model_to_file(str(path))


def model_type(family: str) -> dict[str, str]:
    return {"model_type": MODEL_TYPES[family]} if family in MODEL_TYPES else {}


PEERS: dict[str, Callable[[Path, Path, str], None]] = {
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "onnxscript": onnxscript,
    "transformers": transformers,
}


def optimised_by(tool: str, source: Path, path: Path, family: str, python: str) -> dict:
    """What it took, or why there is no file; python: one that has the tool."""
    return attempted([python, "-m", "benchmarks.exports.peers", tool, str(source), str(path), family], path)


def attempted(command: Sequence[str], path: Path) -> dict:
    """A command that writes a file: the seconds that it took, or the error, in one line."""
    started = time.monotonic()
    path.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"error": f"not ready after {PATIENCE} s"}
    if done.returncode < 0:
        return {"error": f"died of signal {-done.returncode}"}
    if done.returncode or not path.exists():
        return {"error": (done.stderr.strip().splitlines() or ["wrote nothing"])[-1]}
    return {"took": time.monotonic() - started}


if __name__ == "__main__":
    asked, given, written, of_family = sys.argv[1:]
    PEERS[asked](Path(given), Path(written), of_family)
