"""All functions that differ between Linux, macOS and Windows. Other files use no function that one of them lacks.

The systems differ as follows:

- `processor` returns the model name of the processor; on Windows it returns family, model and stepping.
- `usable_cores` respects CPU affinity (not on macOS) and the quota of a container (only on Linux).
- `interruptions` returns None (unknown) on Windows.
- `peak_memory_during` returns None (unknown) except on Linux with glibc.
- `return_freed_memory` has no effect except on Linux with glibc.
- `alarm` interrupts a sleeping or waiting call; on Windows it waits until the current call returns.
- `inherited_lock` lets a child process keep a lock, except on Windows (see `wait_for_orphans`).
- If two processes `replace` one file at once, the last one wins; on Windows one of them may fail with OSError.

Locks come from `filelock` and end with their process, even if it is killed. `lock` raises OSError on a file system
without locks.
"""

import _thread
import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

LINUX, WINDOWS = sys.platform == "linux", sys.platform == "win32"
# Size in bytes from which on `return_freed_memory` returns blocks to the system; number of this parameter in mallopt.
MIN_RETURNED, M_MMAP_THRESHOLD = 65536, -3
LOCK_SECONDS = 0.002  # polling interval while another process holds a lock; some locks are held only briefly
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # Linux container: "quota period", CPU µs of all cores per period in µs
# CPU flag on Linux → name of the vector extension, widest first. Virtual machines with one CPU name can differ in them.
VECTORS = {
    "amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx_vnni": "AVX2 VNNI", "avx2": "AVX2",
}  # fmt: skip
ALARM = getattr(signal, "SIGALRM", None) or signal.SIGBREAK  # the signal that `alarm` raises


# -- the processor and the memory ------------------------------------------------------------------


@cache
def processor() -> str:
    """Return the processor's name, or the architecture if the name is unknown.

    On Linux, the name of its widest vector extension is added, as in `processor_of`.
    """
    name = ""
    with suppress(OSError):  # /proc or sysctl can be missing in a container
        if LINUX:
            name = processor_of(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
        elif sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return name or platform.processor() or platform.machine()


def processor_of(cpuinfo: str) -> str:
    """Return the name of the first core and its widest vector extension, such as "Xeon (AVX-512)"; "" without a name.

    Args:
      cpuinfo: the text of Linux's /proc/cpuinfo.
    """
    core = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        core.setdefault(key.strip(), value.strip())
    flags = core.get("flags", "").split()
    vectors = next((f" ({called})" for flag, called in VECTORS.items() if flag in flags), "")
    name = core.get("model name", "")
    return name and name + vectors


def usable_cores() -> int:
    """Return the default number of threads for ONNX Runtime: the physical cores that this process may use.

    The environment variable ORT_INTRA_OP_NUM_THREADS overrides this number. ONNX Runtime's own default ignores the
    limits of containers and `taskset`. Threads without a core of their own would then wait for each other.
    """
    import psutil

    wished = os.environ.get("ORT_INTRA_OP_NUM_THREADS", "")
    if wished.isdecimal() and int(wished) > 0:
        return int(wished)
    counts = [psutil.cpu_count(logical=False) or os.cpu_count() or 1]
    if hasattr(psutil.Process, "cpu_affinity"):
        counts.append(len(psutil.Process().cpu_affinity()))
    with suppress(OSError, ValueError):  # No file, or the text "max": there is no quota.
        quota, period = map(int, CPU_QUOTA.read_text(encoding="ascii").split())
        counts.append(-(-quota // period))
    return min(counts)


def interruptions() -> int | None:
    """Return the number of involuntary context switches of this process so far; None if unknown."""
    if WINDOWS:
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    import psutil

    return psutil.Process().memory_info().rss


def peak_memory_during(act: Callable[[], object]) -> int | None:
    """Call `act` and return the peak resident memory of this process during the call, in bytes.

    If the system cannot reset its record of the peak, `act` is not called and the result is None.
    """
    if not LINUX:
        return None
    try:
        ctypes.CDLL(None).malloc_trim(0)  # Return free memory to the system first.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Reset the peak to the current resident size.
    except (OSError, AttributeError):  # The system forbids the reset, or the C library is not glibc.
        return None
    act()
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    marks = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return marks[0] if marks else None


def return_freed_memory() -> None:
    """Make the C library return freed blocks of at least MIN_RETURNED bytes to the system at once (only glibc).

    This fixes glibc's mmap threshold, which otherwise grows with the size of freed blocks. The environment variable
    MALLOC_MMAP_THRESHOLD_ has the same effect.
    """
    if LINUX:
        with suppress(AttributeError):  # The C library is not glibc.
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIN_RETURNED)


# -- time ------------------------------------------------------------------------------------------


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Call the handler of the signal `ALARM` in the main thread if the `with` block takes longer than `seconds`.

    An exception that the handler raises is lost if a destructor is running. Except on Windows, the handler is therefore
    called again after every further `seconds`, until the block ends.

    Args:
      seconds: time limit; None for no limit.
    """
    if seconds is None:
        yield
    elif WINDOWS:
        clock = threading.Timer(seconds, _thread.interrupt_main, (ALARM,))
        clock.daemon = True
        clock.start()
        try:
            yield
        finally:
            clock.cancel()
    else:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


# -- locks and files -------------------------------------------------------------------------------


def lock(file: IO, wait: bool = True) -> bool:
    """Lock an open file until it is closed.

    Args:
      file: the file.
      wait: True to wait until other processes release the lock.

    Returns:
      True if the file is locked; False if another process holds the lock and `wait` is False.

    Raises:
      OSError: the file system has no locks.
    """
    return lock_descriptor(file.fileno(), blocking=wait, poll_interval=LOCK_SECONDS)


@contextmanager
def locked(path: Path | str) -> Iterator[IO]:
    """Open a file, which is created if it is missing, and lock it during the `with` block. Yield the file.

    Raises:
      OSError: the file cannot be opened or locked.
    """
    with open(path, "ab") as file:
        lock(file)
        yield file


def inherited_lock(file: IO) -> dict:
    """Return keyword arguments for `subprocess.run` that let the child keep the lock of a file until the child ends.

    On Windows a child cannot keep a lock; `wait_for_orphans` finds such a child by its arguments.
    """
    return {} if WINDOWS else {"pass_fds": [file.fileno()]}


def wait_for_orphans(command: Sequence[str]) -> None:
    """Wait on Windows until no process runs this command line; return at once on other systems.

    Such a process is the child of a killed parent. On other systems it still holds the lock (see `inherited_lock`).
    """
    if not WINDOWS:
        return  # On other systems such a child still holds the lock.
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == list(command[1:]):  # The interpreter's path may differ.
            process.wait()


def remove_unlocked(path: Path) -> None:
    """Remove a file, or do nothing if a process holds its lock.

    Raises:
      OSError: the file cannot be opened, locked or removed.
    """
    with open(path, "r+b") as file:
        if not lock(file, wait=False):
            return
        if not WINDOWS:
            path.unlink()
    if WINDOWS:  # Windows cannot remove an open file. This fails if another process has opened the file meanwhile.
        path.unlink()


def replace(file: IO, path: Path | str) -> None:
    """Rename an open file atomically. On Windows the file is closed first, since an open file cannot be renamed there.

    Args:
      file: the open file; its data must be flushed.
      path: the new name; an existing file of this name is replaced.

    Raises:
      OSError: the file cannot be renamed.
    """
    if WINDOWS:  # Windows cannot rename an open file.
        file.close()
    os.replace(file.name, path)
