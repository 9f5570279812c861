"""Session options beside a model: `FASTER.session.json` holds the options that were measured to make it fastest.

    import rlflow
    session = rlflow.session("FASTER.onnx")      # onnxruntime.InferenceSession with these options

The file may come from a stranger. It is small, and every field is checked; it can choose threads, memory, spinning,
parallel branches and optimisations of ONNX Runtime, and nothing else.
"""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import onnxruntime

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import read_json, write_json
from rlflow.graph import custom_ops
from rlflow.graph.onnx_runtime import LEVELS, Setup

FORMAT = 1
MOST_BYTES = 65_536  # largest size of a session file
MOST_THREADS = 4096
MOST_NAMES = 20  # largest number of optimisations that are switched off
CHECKS = {
    "threads": lambda value: type(value) is int and 0 < value <= MOST_THREADS,
    "pattern": lambda value: type(value) is bool,
    "arena": lambda value: type(value) is bool,
    "spinning": lambda value: type(value) is bool,
    "parallel": lambda value: type(value) is bool,
    "level": lambda value: type(value) is str and value in LEVELS,
    "without": lambda value: type(value) is list and len(value) <= MOST_NAMES and all(map(_is_name, value)),
}  # field of `Setup` → check of its value in the file


def _is_name(value: object) -> bool:
    return type(value) is str and re.fullmatch(r"[A-Za-z0-9_]{1,80}", value) is not None


def session_file(model: Path | str) -> Path:
    """Return the path of the session options of a model: `m.session.json` beside `m.onnx`."""
    return Path(model).with_suffix(".session.json")


def write_setup(model: Path | str, setup: Setup, measured: Mapping) -> None:
    """Write the session options of a model beside its file.

    Args:
      model: the file of the model.
      setup: the options, with the number of threads.
      measured: the comparison with ONNX Runtime's defaults, see `rlflow.costs.measured.measure`; only for people.
    """
    figures = {name: measured[name] for name in ("ratio", "interval", "verdict", "threads", "machine", "onnxruntime")}
    write_json(session_file(model), {"format": FORMAT, "setup": setup.changes(), "measured": figures})


def read_setup(model: Path | str) -> Setup:
    """Return the session options beside a model, or ONNX Runtime's defaults.

    Raises:
      RLFlowError: the file is too large, damaged, or holds other options.
    """
    path = session_file(model)
    if not path.exists():
        return Setup()
    if path.stat().st_size > MOST_BYTES:
        raise RLFlowError(f"{path} is larger than {MOST_BYTES:,} bytes and no file of session options. Delete it")
    held = read_json(path)
    setup = held.get("setup") if isinstance(held, dict) and held.get("format") == FORMAT else None
    if not isinstance(setup, dict):
        raise RLFlowError(f"{path} holds no session options of format {FORMAT}. Delete it, or update RLFlow")
    for name, value in setup.items():
        if name not in CHECKS or not CHECKS[name](value):
            raise RLFlowError(f"{path}: '{name[:80]}' is no session option, or its value is not valid. Delete the file")
    return Setup.of(setup)


def session(model: str | PathLike[str]) -> onnxruntime.InferenceSession:
    """Open a model in ONNX Runtime on the CPU, with the options of its session file.

    Args:
      model: the file of the model. Without `m.session.json` beside `m.onnx`, ONNX Runtime's defaults are used.

    Raises:
      RLFlowError: the session options are not valid, or ONNX Runtime refuses the model.
    """
    setup, options = read_setup(Path(model)), onnxruntime.SessionOptions()
    custom_ops.register(options)
    try:
        return setup.open(str(Path(model)), options)
    except Exception as error:  # ONNX Runtime raises its own undocumented classes.
        raise RLFlowError(f"ONNX Runtime rejects {model}: {first_line(error)}") from error
