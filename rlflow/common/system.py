"""All that differs between Linux, macOS and Windows. No other file uses what only some of them have.

| what | Linux | macOS | Windows |
| --- | --- | --- | --- |
| `processor` | its name, where /proc/cpuinfo has one | its name | family, model and stepping |
| `usable_cores` | looks at affinity and quota | neither | looks at affinity |
| `interruptions` | counted | counted | None |
| `largest_process` | counted | counted | None |
| `peak_while` | counted (with glibc) | None | None |
| `give_back` | does (with glibc) | nothing | nothing |
| `alarm` | interrupts what sleeps or waits | as Linux | waits until the call in progress returns |
| a child that got a lock by `with_lock` | keeps it | keeps it | does not; see `wait_for` |
| `replace` by two writers of one file at once | the last one wins | the last one wins | one may fail with OSError |

None: not known. Locks are those of `filelock`, which end with their process, however it ends. Of a disk without locks
`lock` says so (OSError).
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
GIVEN_BACK, M_MMAP_THRESHOLD = 65536, -3  # bytes; what mallopt calls that limit
LOCK_SECONDS = 0.002  # between two looks at another's lock: some are held for little longer, again and again
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container on Linux: µs of all cores together, in a period of so many
VECTORS = {  # Linux's flag, widest first → what it is called; a name of virtual machines stands for several of these
    "amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx_vnni": "AVX2 VNNI", "avx2": "AVX2",
}  # fmt: skip
ALARM = getattr(signal, "SIGALRM", None) or signal.SIGBREAK  # the signal that `alarm` raises


# -- the processor and the memory ------------------------------------------------------------------


@cache
def processor() -> str:
    """The name of this machine's processor, on Linux with its widest vectors; of an unknown one, its architecture."""
    name = ""
    with suppress(OSError):  # no /proc here, no sysctl there
        if LINUX:
            name = processor_of(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
        elif sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return name or platform.processor() or platform.machine()


def processor_of(cpuinfo: str) -> str:
    """Of the first core in Linux's /proc/cpuinfo; "" if that does not name it."""
    core = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        core.setdefault(key.strip(), value.strip())
    flags = core.get("flags", "").split()
    vectors = next((f" ({called})" for flag, called in VECTORS.items() if flag in flags), "")
    name = core.get("model name", "")
    return name and name + vectors


def usable_cores() -> int:
    """How many threads ONNX Runtime would take by itself, of the cores that this process may use.

    By itself it takes what ORT_INTRA_OP_NUM_THREADS says, or one a physical core of the machine, even where a container
    or `taskset` leaves it fewer. That is not followed: threads without a core of their own wait for each other.
    """
    import psutil

    wished = os.environ.get("ORT_INTRA_OP_NUM_THREADS", "")
    if wished.isdecimal() and int(wished) > 0:
        return int(wished)
    counts = [psutil.cpu_count(logical=False) or os.cpu_count() or 1]
    if hasattr(psutil.Process, "cpu_affinity"):
        counts.append(len(psutil.Process().cpu_affinity()))
    with suppress(OSError, ValueError):  # no such file, or "max": no quota
        quota, period = map(int, CPU_QUOTA.read_text(encoding="ascii").split())
        counts.append(-(-quota // period))
    return min(counts)


def interruptions() -> int | None:
    """How often the system has taken a core from this process so far; None where it does not say."""
    if WINDOWS:
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def resident_memory() -> int:
    """Bytes of memory that this process holds now."""
    import psutil

    return psutil.Process().memory_info().rss


def largest_process() -> int | None:
    """Bytes that this process, or one of its children that have ended, held at most; None where nobody counts."""
    if WINDOWS:
        return None
    import resource

    return max(_peak(resource.RUSAGE_SELF), _peak(resource.RUSAGE_CHILDREN))


def _peak(who: int) -> int:
    import resource

    return resource.getrusage(who).ru_maxrss * (1024 if LINUX else 1)  # macOS counts in bytes


def peak_while(act: Callable[[], object]) -> int | None:
    """Bytes of memory that this process holds at the fullest moment of act(); None where the system does not say."""
    if not LINUX:
        return None
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what lies free goes back to the system
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark falls to what is held now
    except (OSError, AttributeError):  # a system that does not let it fall; a C library other than glibc
        return None
    act()
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    marks = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return marks[0] if marks else None


def give_back() -> None:
    """From now on what this process frees goes back to the system at once, but for pieces below GIVEN_BACK.

    On Linux with glibc, which else keeps more and more of it, and which MALLOC_MMAP_THRESHOLD_ in the environment tells
    the same; elsewhere nothing changes.
    """
    if LINUX:
        with suppress(AttributeError):  # a C library other than glibc
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, GIVEN_BACK)


# -- time ------------------------------------------------------------------------------------------


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """In the block, for the main thread: the handler of `ALARM` is called after so many seconds (None: never)."""
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
    """Locks an open file for as long as it is open; False if it is another's and nobody is to wait.

    Raises OSError on a disk without locks.
    """
    return lock_descriptor(file.fileno(), blocking=wait, poll_interval=LOCK_SECONDS)


@contextmanager
def locked(path: Path | str) -> Iterator[IO]:
    """In the block the file, made if it is not there, is locked by this process alone. Raises OSError."""
    with open(path, "ab") as file:
        lock(file)
        yield file


def with_lock(file: IO) -> dict:
    """Arguments for subprocess: the child keeps the lock of the file until it ends, whatever becomes of its parent.

    On Windows it cannot; there `wait_for` knows the child by its arguments.
    """
    return {} if WINDOWS else {"pass_fds": [file.fileno()]}


def wait_for(command: Sequence[str]) -> None:
    """Waits for processes that a killed parent has left, which had these arguments and should have kept its lock."""
    if not WINDOWS:
        return  # they have kept it
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == list(command[1:]):  # the interpreter may have another name
            process.wait()


def remove_unlocked(path: Path) -> None:
    """Removes a file unless somebody holds its lock. Raises OSError if it cannot be opened, locked or removed."""
    with open(path, "r+b") as file:
        if not lock(file, wait=False):
            return
        if not WINDOWS:
            path.unlink()
    if WINDOWS:  # refuses to remove what is open: closed here, and what somebody else has opened meanwhile stays
        path.unlink()


def replace(file: IO, path: Path | str) -> None:
    """Gives an open, flushed file the name `path`, atomically; its lock is kept until then. Raises OSError."""
    if WINDOWS:  # refuses to rename what is open
        file.close()
    os.replace(file.name, path)
