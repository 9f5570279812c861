"""Calls of other tools that optimise a model; each tool runs in its own process, with its default options.

    python -m benchmarks.exports.peers TOOL SOURCE FILE FAMILY

The command applies one tool to the model SOURCE and writes FILE. OpenVINO is a runtime and not among these tools;
`benchmarks.exports.running` runs it.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LONGEST_SECONDS = 1200  # time limit of a tool or an exporter

# `Export.family` → model_type of ONNX Runtime's transformers optimiser; other families use its default.
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
    """Apply ONNX Runtime's optimiser for transformers, with its settings for CPUs.

    Args:
        source: the model to optimise.
        path: the file to write.
        family: family of the model, see `Export.family`.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    options = {"model_type": MODEL_TYPES[family]} if family in MODEL_TYPES else {}
    optimize_model(str(source), **options).save_model_to_file(str(path))


# Name of the tool → function of (source, path, family).
PEERS: dict[str, Callable[[Path, Path, str], None]] = {
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "onnxscript": onnxscript,
    "transformers": transformers,
}


def attempted(command: Sequence[str], path: Path) -> dict:
    """Run a command that writes a file, for at most LONGEST_SECONDS.

    Args:
        command: program and arguments.
        path: the file that the command writes; an existing file is deleted first.

    Returns:
        {"seconds": duration}, or {"error": one line} if the command failed or wrote no file.
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
