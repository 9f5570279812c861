import errno
import io
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rlflow.common import files, system
from rlflow.common.errors import RLFlowError
from rlflow.common.files import (
    check_writable,
    copy_file,
    new_file,
    read_arrays,
    read_json,
    remove_abandoned,
    write_arrays,
    write_bytes,
    write_json,
)


class Torn(io.BytesIO):
    """A file that can be opened but not read."""

    def read(self, *_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    monkeypatch.setattr(files.os, call, full_disk)
    with pytest.raises(RLFlowError, match=r"cannot write .*a\.json: No space left on device"):
        write_json(path, {"new": 2})
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_interruption_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


KILLED = """if True:
    import os, signal, sys
    from rlflow.common.files import new_file
    with new_file(sys.argv[1]) as file:
        file.write(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left(tmp_path):
    """Return the path of the temporary file that a killed writer of a[1] left."""
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path / "a[1]"]).returncode == -signal.SIGKILL
    (name,) = os.listdir(tmp_path)
    return tmp_path / name


def test_the_file_of_a_killed_writer_is_removed_by_the_next_writer_and_no_other_file(tmp_path, left):
    others = {
        left.with_name(name).name
        for name in (left.stem, left.name.replace("[1]", "1"), left.name.replace("[1]", "[1].b"))
    }
    for name in others:
        (tmp_path / name).touch()
    write_bytes(tmp_path / "a", b"")
    assert left.exists()
    write_bytes(tmp_path / "a[1]", b"new")
    assert set(os.listdir(tmp_path)) == {"a", "a[1]", *others} and (tmp_path / "a[1]").read_bytes() == b"new"


def test_a_living_writer_is_left_alone_and_the_last_writer_wins(tmp_path):
    path = tmp_path / "a"
    with new_file(path) as file:
        file.write(b"last")
        write_bytes(path, b"first")
        assert path.read_bytes() == b"first"
    assert path.read_bytes() == b"last" and os.listdir(tmp_path) == ["a"]


def test_a_file_removed_as_abandoned_before_its_lock_is_written_again(tmp_path, monkeypatch):
    path, lock = tmp_path / "a", files.lock

    def late(*arguments):
        monkeypatch.setattr(files, "lock", lock)
        write_bytes(path, b"another's")
        assert os.listdir(tmp_path) == ["a"]
        lock(*arguments)

    monkeypatch.setattr(files, "lock", late)
    write_bytes(path, b"mine")
    assert path.read_bytes() == b"mine" and os.listdir(tmp_path) == ["a"]


def test_no_file_counts_as_abandoned_if_locks_are_unavailable(tmp_path, left, monkeypatch):
    def no_locks(*_, **__):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(system, "lock_descriptor", no_locks)
    write_bytes(tmp_path / "a[1]", b"new")
    assert left.exists() and (tmp_path / "a[1]").read_bytes() == b"new"


def test_writing_creates_folders_and_replaces_files(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    write_bytes(path, b"1")
    write_bytes(path, b"22")
    assert path.read_bytes() == b"22"


def test_a_path_below_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for function in (lambda p: write_bytes(p, b""), check_writable):
        with pytest.raises(RLFlowError, match="cannot write") as caught:
            function(tmp_path / "file" / "x")
        assert "\n" not in str(caught.value)


def test_check_writable_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "new" / "x.onnx")
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(RLFlowError, match="it is a folder"):
        check_writable(tmp_path / "new")
    with pytest.raises(RLFlowError, match="cannot write"):
        check_writable(tmp_path / ("n" * 250))  # the temporary file has a suffix
    assert os.listdir(tmp_path) == ["new"]


def test_copy_file_copies_completely_or_leaves_the_target_unchanged(tmp_path, monkeypatch):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(bytes(range(256)) * 9)
    copy_file(source, target)
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(RLFlowError, match="cannot read .*missing: No such file"):
        copy_file(tmp_path / "missing", target)
    with monkeypatch.context() as patch:
        patch.setattr(files, "open", lambda path, mode: Torn() if mode == "rb" else open(path, mode), raising=False)
        with pytest.raises(RLFlowError, match="cannot read .*a: Input/output error"):
            copy_file(source, target)
    source.write_bytes(b"changed")
    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(RLFlowError, match="cannot write .*: No space left"):
        copy_file(source, target)
    assert target.read_bytes() == bytes(range(256)) * 9


def test_equal_arrays_give_equal_bytes(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array("text"), "c": np.zeros((0, 3), np.float32)}
    write_arrays(tmp_path / "1.npz", arrays)
    write_arrays(tmp_path / "2.npz", {name: array.copy() for name, array in arrays.items()})
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()
    read = read_arrays(tmp_path / "1.npz")
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


class Trap:
    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_reading_arrays_never_unpickles_objects(tmp_path):
    trap = Trap()
    trap.path = tmp_path / "sprung"
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(trap))
    np.savez(tmp_path / "object.npz", a=np.array([trap], object))
    for name in ("pickle", "object"):
        with pytest.raises(RLFlowError, match="cannot read"):
            read_arrays(tmp_path / f"{name}.npz")
    assert not trap.path.exists()


def test_every_truncation_and_a_flipped_bit_of_an_archive_are_noticed(tmp_path):
    path = tmp_path / "a.npz"
    write_arrays(path, {"a": np.arange(50), "b": np.ones(3)})
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(RLFlowError, match="cannot read"):
            read_arrays(path)
    start = zipfile.ZipFile(io.BytesIO(whole)).infolist()[0].header_offset + 200  # a byte within the data of "a"
    path.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    with pytest.raises(RLFlowError, match="cannot read"):
        read_arrays(path)


def test_invalid_or_missing_json_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RLFlowError, match="is not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(RLFlowError, match="cannot read .*b.json: No such file"):
        read_json(tmp_path / "b.json")
    with pytest.raises(RLFlowError, match="it is no file"):
        read_json(tmp_path)  # like a device, which may never end


def test_arrays_that_expand_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1 << 16))
    assert (tmp_path / "a.npz").stat().st_size < 1 << 12
    with pytest.raises(RLFlowError, match="larger than the file"):
        read_arrays(tmp_path / "a.npz")


def test_abandoned_temporary_files_are_removed_from_a_folder_and_no_other_files(tmp_path):
    (tmp_path / "inner").mkdir()
    kept = [tmp_path / "a.json", tmp_path / "inner" / ".a.json.part", tmp_path / ".a.json.0123456z.part"]
    abandoned = [tmp_path / ".a.json.01234567.part", tmp_path / "inner" / ".b.89abcdef.part"]
    for path in (*kept, *abandoned):
        path.write_text("")
    with new_file(tmp_path / "c.json") as file:  # this file's writer still runs
        remove_abandoned(tmp_path)
        assert Path(file.name).exists()
    assert all(path.exists() for path in kept) and not any(path.exists() for path in abandoned)


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (lambda: check_writable(pipe), lambda: write_bytes(pipe, b"x")):
        with pytest.raises(RLFlowError, match="pipe: it is no file"):
            write()
    assert pipe.is_fifo()
