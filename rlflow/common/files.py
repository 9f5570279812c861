"""Atomic writes: a file either has its whole new content or does not exist.

Every writer goes to a temporary file in the same folder and renames it, so that a kill or a full
disk at any moment leaves no half-written file under the final name. What a kill leaves beside it, the
next writer of the same file removes.
"""

import glob
import hashlib
import io
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rlflow.common.errors import RLFlowError
from rlflow.common.system import lock, remove_unlocked, replace

if TYPE_CHECKING:
    import numpy as np


def write_bytes(path: Path | str, data: bytes) -> None:
    """Writes `data` to `path` atomically. Raises RLFlowError if the disk refuses."""
    with new_file(path) as file:
        file.write(data)


def copy_file(source: Path | str, path: Path | str, outdated: Path | None = None) -> None:
    """Copies `source` to `path` atomically. Raises RLFlowError if it cannot be read or the disk refuses.

    outdated: a file that does not go with the copy; removed before that takes its name.
    """
    with new_file(path) as file:
        for block in _blocks(source):
            file.write(block)
        if outdated is not None:
            outdated.unlink(missing_ok=True)


def check_writable(path: Path | str) -> None:
    """Makes the folder of `path`; raises RLFlowError if no file can be written there. For before long work."""
    path = Path(path)
    if path.is_dir():
        raise RLFlowError(f"cannot write {path}: it is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RLFlowError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def new_file(path: Path | str) -> Iterator[BinaryIO]:
    """A file to write to; it takes its name when the block ends without an error.

    Raises RLFlowError if the disk refuses.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        with _temporary(path) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                replace(file, path)
            except BaseException:
                with suppress(OSError):
                    file.close()
                with suppress(OSError):
                    os.unlink(file.name)
                raise
    except OSError as error:
        raise RLFlowError(f"cannot write {path}: {error.strerror or error}") from error


def _temporary(path: Path) -> BinaryIO:
    """A new file beside `path`, locked while it is open: a lock ends with its process, and no process number says as
    much, as several hosts and containers may share a folder."""
    while True:
        file = open(path.with_name(f".{path.name}.{secrets.token_hex(4)}.part"), "xb")
        with suppress(OSError):  # of disks without locks, where nothing is taken for abandoned
            lock(file)
        if os.path.exists(file.name):
            return file
        file.close()  # another writer took it for abandoned before it was locked


def _remove_abandoned(path: Path) -> None:
    """Removes the temporary files of `path` whose writers were killed: nobody holds their lock."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.part"):
        with suppress(OSError):
            remove_unlocked(left)


def write_text(path: Path | str, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path | str, value) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path | str):
    """Raises RLFlowError if the file is missing or is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RLFlowError(f"{path} is not valid JSON: {error}") from error


def write_arrays(path: Path | str, arrays: "dict[str, np.ndarray]") -> None:
    """Writes an .npz. Equal arrays give equal bytes (NumPy stamps every member with one fixed date)."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path | str) -> "dict[str, np.ndarray]":
    """Reads an .npz without unpickling anything. Raises RLFlowError if it cannot be read whole."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib, OSError, ValueError: a damaged file can fail anywhere
        raise RLFlowError(f"cannot read {path}: {error}") from error


def file_hash(*paths: Path | str) -> str:
    """SHA-256 of a file's bytes, or of those of several, one after the other.

    Raises RLFlowError if one cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        for block in _blocks(path):
            digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path | str) -> Iterator[bytes]:
    """What a file holds, a MiB at a time. Raises RLFlowError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                yield block
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
