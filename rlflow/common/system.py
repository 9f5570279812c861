"""Everything that differs between Linux, macOS and Windows; no other file uses a function that some of them lack.

- `processor`: model name; on Windows family, model and stepping.
- `usable_cores`: respects CPU affinity (not on macOS) and container quota (only on Linux).
- `interruptions`, `peak_process_memory`: None on Windows.
- `peak_memory_during`: None except on Linux with glibc.
- `return_freed_memory`: no effect except on Linux with glibc.
- `alarm`: interrupts a sleeping or waiting call; on Windows it waits until the current call returns.
- `inherited_lock`: the child keeps the lock; on Windows it does not (see `wait_for_orphans`).
- `replace` by two writers of one file at once: the last writer wins; on Windows one writer may fail with OSError.

None means unknown. Locks come from `filelock` and end with their process, even if it is killed. A file system without
locks makes `lock` raise OSError.
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
MIN_RETURNED, M_MMAP_THRESHOLD = 65536, -3  # bytes; number of this parameter in mallopt
LOCK_SECONDS = 0.002  # polling interval while another process holds a lock; some locks are held only briefly
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # Linux container: "quota period", CPU µs of all cores per period in µs
VECTORS = {  # CPU flag on Linux, widest first → name; virtual machines of one CPU name differ in these flags
    "amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx_vnni": "AVX2 VNNI", "avx2": "AVX2",
}  # fmt: skip
ALARM = getattr(signal, "SIGALRM", None) or signal.SIGBREAK  # the signal that `alarm` raises


# -- the processor and the memory ------------------------------------------------------------------


@cache
def processor() -> str:
    """Return the processor's name, on Linux with its widest vector extension; the architecture if it has no name."""
    name = ""
    with suppress(OSError):  # /proc or sysctl can be missing in a container
        if LINUX:
            name = processor_of(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
        elif sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return name or platform.processor() or platform.machine()


def processor_of(cpuinfo: str) -> str:
    """Return the name of the first core in the text of Linux's /proc/cpuinfo; "" if the text has no name."""
    core = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        core.setdefault(key.strip(), value.strip())
    flags = core.get("flags", "").split()
    vectors = next((f" ({called})" for flag, called in VECTORS.items() if flag in flags), "")
    name = core.get("model name", "")
    return name and name + vectors


def usable_cores() -> int:
    """Return ONNX Runtime's default number of threads, limited to the cores that this process may use.

    ONNX Runtime's default is ORT_INTRA_OP_NUM_THREADS, or the number of physical cores. This function also respects the
    limits of containers and `taskset`, which ONNX Runtime ignores: threads without their own core wait for each other.
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


def peak_process_memory() -> int | None:
    """Return the peak resident memory in bytes of this process or of its largest ended child; None if unknown."""
    if WINDOWS:
        return None
    import resource

    return max(_peak(resource.RUSAGE_SELF), _peak(resource.RUSAGE_CHILDREN))


def _peak(who: int) -> int:
    import resource

    return resource.getrusage(who).ru_maxrss * (1024 if LINUX else 1)  # macOS counts in bytes


def peak_memory_during(act: Callable[[], object]) -> int | None:
    """Call act() and return the peak resident memory of this process during the call, in bytes; None if unknown.

    If the system cannot reset the peak, `act` is not called.
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
    """Make this process return freed blocks of at least MIN_RETURNED bytes to the system at once.

    This changes glibc's threshold, which otherwise grows with the freed blocks. The environment variable
    MALLOC_MMAP_THRESHOLD_ has the same effect. Other systems and C libraries are unchanged.
    """
    if LINUX:
        with suppress(AttributeError):  # The C library is not glibc.
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIN_RETURNED)


# -- time ------------------------------------------------------------------------------------------


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Call the handler of the signal `ALARM` in the main thread if the block takes longer than `seconds`.

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
            signal.setitimer(signal.ITIMER_REAL, seconds)
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
    """Open a file, create it if it is missing, and lock it for the block. Raise OSError if that fails."""
    with open(path, "ab") as file:
        lock(file)
        yield file


def inherited_lock(file: IO) -> dict:
    """Return arguments for `subprocess` that let the child keep the lock of a file until the child ends.

    On Windows a child cannot keep a lock; `wait_for_orphans` finds such a child by its arguments.
    """
    return {} if WINDOWS else {"pass_fds": [file.fileno()]}


def wait_for_orphans(command: Sequence[str]) -> None:
    """Wait for children of a killed parent that run this command line; needed on Windows (see `inherited_lock`)."""
    if not WINDOWS:
        return  # On other systems such a child still holds the lock.
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == list(command[1:]):  # The interpreter's path may differ.
            process.wait()


def remove_unlocked(path: Path) -> None:
    """Remove a file unless a process holds its lock. Raise OSError if it cannot be opened, locked or removed."""
    with open(path, "r+b") as file:
        if not lock(file, wait=False):
            return
        if not WINDOWS:
            path.unlink()
    if WINDOWS:  # Windows cannot remove an open file. This fails if another process has opened the file meanwhile.
        path.unlink()


def replace(file: IO, path: Path | str) -> None:
    """Rename an open, flushed file atomically, and keep its lock until then.

    Args:
      file: the open file.
      path: the new name; an existing file of this name is replaced.

    Raises:
      OSError: the file cannot be renamed.
    """
    if WINDOWS:  # Windows cannot rename an open file.
        file.close()
    os.replace(file.name, path)
