"""Read files, and write files atomically.

A writer fills a temporary file in the same folder and then renames it. A kill or a full disk therefore never leaves an
incomplete file under the final name. The next writer of the same file removes the temporary files of killed writers;
so does the next command in a run folder (`remove_abandoned`).
"""

import glob
import hashlib
import io
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rlflow.common.errors import RLFlowError
from rlflow.common.system import lock, remove_unlocked, replace

if TYPE_CHECKING:
    import numpy as np

ROOM = Path(__file__).parents[1]  # rlflow/
# The folder of the shipped YAML files: configs/ of a checkout, or the package rlflow.configs of an installation.
CONFIGS = ROOM / "configs" if (ROOM / "configs").is_dir() else ROOM.parent / "configs"
TEMPORARY = f".{{}}.{'[0-9a-f]' * 8}.part"  # glob pattern of the temporary files of a file with the name {}


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path` atomically. Raise RLFlowError if the file cannot be written."""
    with new_file(path) as file:
        file.write(data)


def copy_file(source: Path | str, path: Path | str, outdated: Path | None = None) -> None:
    """Copy a file atomically.

    Args:
      source: file to copy.
      path: name of the copy.
      outdated: a file that is invalid beside the new copy, such as a model beside new weights. It is removed before the
        copy gets its name.

    Raises:
      RLFlowError: `source` cannot be read or `path` cannot be written.
    """
    with new_file(path) as file:
        for block in _blocks(source):
            file.write(block)
        if outdated is not None:
            outdated.unlink(missing_ok=True)


def is_file(name: str) -> bool:
    """Return True if a text is the path of a file; a text that is too long for a path is none."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def check_writable(path: Path | str) -> None:
    """Create the folder of `path` and raise RLFlowError if `path` cannot be written. Call this before long work."""
    path = Path(path)
    try:
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as file:  # fails if the name is too long for its suffix
            pass
        os.unlink(file.name)
    except OSError as error:
        raise RLFlowError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def new_file(path: Path | str) -> Iterator[BinaryIO]:
    """Yield a binary file for writing. It gets the name `path` when the `with` block ends, and is removed on an error.

    Raises:
      RLFlowError: the file cannot be written.
    """
    path = Path(path)
    try:
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent, TEMPORARY.format(glob.escape(path.name)))
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


def _check_replaceable(path: Path) -> None:
    """Raise RLFlowError for a folder, and for a device or pipe, whose name a file would take: /dev/null, for example.
    """
    if path.exists() and not path.is_file():
        raise RLFlowError(f"cannot write {path}: it is {'a folder' if path.is_dir() else 'no file'}")


def _temporary(path: Path) -> BinaryIO:
    """Create a temporary file beside `path`, and lock it until it is closed.

    The lock shows other writers that this writer is alive. A process id would not, since several hosts can share a
    folder.
    """
    while True:
        file = open(path.with_name(f".{path.name}.{secrets.token_hex(4)}.part"), "xb")
        with suppress(OSError):  # A file system without locks: no temporary file counts as abandoned there.
            lock(file)
        if os.path.exists(file.name):
            return file
        file.close()  # Another writer removed the file as abandoned before it was locked.


def remove_abandoned(folder: Path, pattern: str = f"**/{TEMPORARY.format('*')}") -> None:
    """Remove the temporary files that no process has locked: their writers were killed.

    Args:
      folder: the folder.
      pattern: glob pattern of the temporary files; by default all temporary files in the folder and its subfolders.
    """
    for left in folder.glob(pattern):
        with suppress(OSError):
            remove_unlocked(left)


def write_text(path: Path | str, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path | str, value) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path | str):
    """Return the value in a JSON file. Raise RLFlowError if the file is missing or is not JSON."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device may never end
        raise RLFlowError(f"cannot read {path}: it is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RLFlowError(f"{path} is not valid JSON: {error}") from error


def write_arrays(path: Path | str, arrays: "dict[str, np.ndarray]") -> None:
    """Write an .npz file. Equal arrays give equal bytes, since NumPy gives every member the same fixed date."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path | str) -> "dict[str, np.ndarray]":
    """Read an .npz file without unpickling. Raise RLFlowError if the file is missing or damaged."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            # `write_arrays` stores without compression, so only a file that was made to fill the memory expands.
            if sum(member.file_size for member in archive.zip.infolist()) > Path(path).stat().st_size:
                raise ValueError("its content is larger than the file")
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # A damaged file can fail in zipfile, zlib, NumPy or the operating system.
        raise RLFlowError(f"cannot read {path}: {error}") from error


def file_hash(*paths: Path | str) -> str:
    """Return the SHA-256 digest of the concatenated contents of files. Raise RLFlowError if a file cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        for block in _blocks(path):
            digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path | str) -> Iterator[bytes]:
    """Yield the content of a file in blocks of 1 MiB. Raise RLFlowError if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                yield block
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
