"""Libraries of custom operators (`--custom-ops LIB.so`), which every session of this process registers.

A library is native code that ONNX Runtime loads into the process, so the list of libraries belongs to the process. A
worker process gets the list of its parent: `fresh_processes(1, partial(load, loaded()))`.

    load(["libmyops.so"])
    running = rlflow.graph.onnx_runtime.session("model.onnx", threads=1)    # may use the operators of the library

See https://onnxruntime.ai/docs/reference/operators/add-custom-op.html.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlflow.common.errors import RLFlowError, first_line

if TYPE_CHECKING:
    import onnxruntime

_libraries: tuple[str, ...] = ()  # absolute paths

# ONNX Runtime's error for an unknown operator. The text before the colon is the domain; it is empty for ONNX's own.
_UNKNOWN = re.compile(r"(?P<domain>[^\s:]*):(?P<op>\w+)\(-?\d+\) is not a registered function/op")


def loaded() -> tuple[str, ...]:
    """Return the absolute paths of the libraries that the sessions of this process register."""
    return _libraries


def load(paths: Iterable[Path | str]) -> None:
    """Register libraries with all later sessions of this process, in addition to the libraries loaded before.

    Raises:
      RLFlowError: a file is missing, or is not a library of custom operators.
    """
    global _libraries
    for path in paths:
        library = str(Path(path).absolute())
        if library in _libraries:
            continue
        if not Path(library).is_file():
            raise RLFlowError(f"--custom-ops {path}: no such file. Pass the path of a library of custom operators")
        import onnxruntime  # slow

        try:
            onnxruntime.SessionOptions().register_custom_ops_library(library)
        except Exception as error:  # ONNX Runtime raises its own undocumented classes.
            reason = first_line(error).rpartition("with error: ")[2].replace(f"{library}: ", "")
            raise RLFlowError(f"--custom-ops {path} is not a library of custom operators: {reason}") from error
        _libraries = (*_libraries, library)


@contextmanager
def restored() -> Iterator[None]:
    """Forget, at the end of the block, the libraries that were loaded in the block. Their code stays in memory."""
    global _libraries
    before = _libraries
    try:
        yield
    finally:
        _libraries = before


def register(options: "onnxruntime.SessionOptions") -> None:
    """Register the libraries of this process with a session's options."""
    for library in _libraries:
        options.register_custom_ops_library(library)


def unknown_operator(error: Exception) -> str | None:
    """Return a message that names the operator which ONNX Runtime did not find, or None for another error.

    Args:
      error: the exception of ONNX Runtime.
    """
    found = _UNKNOWN.search(str(error))
    if found is None:
        return None
    where = f"of the domain '{found['domain']}'" if found["domain"] else "of ONNX"
    return (
        f"it uses the operator {found['op']} {where}, which this ONNX Runtime does not have. "
        "Pass the library that has it: --custom-ops LIB.so"
    )
