"""Other tools that make a model faster, each as its users call it and in a process of its own.

    python -m benchmarks.exports.peers TOOL SOURCE FILE FAMILY

OpenVINO is another runtime and not such a tool; `benchmarks.exports.running` measures it beside them.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LONGEST_SECONDS = 1200  # that a tool gets

# Family → the model type that ONNX Runtime's transformers optimiser is given; other families have none.
MODEL_TYPES = {
    "albert": "bert", "bart": "bart", "gpt2": "gpt2", "llama": "gpt_neox", "swin": "swin", "t5": "t5", "unet": "unet",
    "vit": "vit", "whisper": "bart",
}  # fmt: skip


def onnxsim(source: Path, path: Path, family: str) -> None:
    import onnx
    import onnxsim

    model, is_equal = onnxsim.simplify(str(source))
    if not is_equal:
        raise ValueError("onnxsim's own check finds other outputs")
    onnx.save(model, path)


def onnxslim(source: Path, path: Path, family: str) -> None:
    import onnxslim

    onnxslim.slim(str(source), str(path))


def onnxscript(source: Path, path: Path, family: str) -> None:
    import onnx
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), path)


def transformers(source: Path, path: Path, family: str) -> None:
    """Call ONNX Runtime's optimiser for transformers, for the CPU."""
    from onnxruntime.transformers.optimizer import optimize_model

    options = {"model_type": MODEL_TYPES[family]} if family in MODEL_TYPES else {}
    optimize_model(str(source), **options).save_model_to_file(str(path))


PEERS: dict[str, Callable[[Path, Path, str], None]] = {
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "onnxscript": onnxscript,
    "transformers": transformers,
}


def attempted(command: Sequence[str], path: Path) -> dict:
    """Run a command that writes a file; return {"seconds": …}, or {"error": …} in one line.

    Args:
        command: program and arguments.
        path: the file; an older one is deleted first.
    """
    started = time.monotonic()
    path.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"not ready after {LONGEST_SECONDS} s"}
    if done.returncode < 0:
        return {"error": f"died of signal {-done.returncode}"}
    if done.returncode or not path.exists():
        return {"error": (done.stderr.strip().splitlines() or ["wrote nothing"])[-1]}
    return {"seconds": time.monotonic() - started}


if __name__ == "__main__":
    tool, source_path, out_path, model_family = sys.argv[1:]
    PEERS[tool](Path(source_path), Path(out_path), model_family)
