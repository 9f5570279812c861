"""Test the functions that depend on the operating system, and that no other file uses features of some systems only.

Windows is simulated on this machine: its branch of the code uses only what Python has on every system.
"""

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlflow.common import system
from rlflow.common.files import new_file, write_bytes
from rlflow.costs import measured, timing
from rlflow.costs.kernel_models import Timed, empty_model
from rlflow.optimisation.budget import Stop, stoppable

ROOT = Path(__file__).parents[2]
ONLY = ROOT / "rlflow" / "common" / "system.py"
SOME_SYSTEMS = {"fcntl", "resource", "msvcrt", "winreg", "pwd", "grp", "termios"}  # names of modules
THEIRS = {
    "SIGALRM", "SIGBREAK", "setitimer", "alarm", "pass_fds", "getrusage", "sched_getaffinity", "cpu_affinity",
}  # fmt: skip


def sources() -> list[Path]:
    rooms = [ROOT / name for name in ("rlflow", "worldmodel", "controllers", "benchmarks", "tests")]
    return [ROOT / "run.py", ROOT / "setup.py", *(path for room in rooms for path in sorted(room.rglob("*.py")))]


def of_some_systems(text: str) -> list[str]:
    """Return the uses of modules, attributes and paths under /proc that only some systems have."""
    used = []
    if not any(name in text for name in ("/proc", *SOME_SYSTEMS, *THEIRS)):
        return used
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            used += [alias.name for alias in node.names if alias.name in SOME_SYSTEMS]
        elif isinstance(node, ast.ImportFrom):
            used += [node.module] if node.module in SOME_SYSTEMS else []
            names = {alias.name for alias in node.names} if node.module in ("signal", "os") else set()
            used += sorted(names & THEIRS)
        elif isinstance(node, ast.Attribute) and node.attr in THEIRS:
            used.append(node.attr)
        elif isinstance(node, ast.keyword) and node.arg in THEIRS:
            used.append(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            said = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            used += ["/proc"] if said == "/proc" or "/proc/" in said else []
            used += [said] if said in SOME_SYSTEMS | THEIRS else []
    return used


def test_only_one_file_uses_features_of_single_operating_systems():
    others = [path for path in sources() if path not in (ONLY, Path(__file__))]
    used = {str(path.relative_to(ROOT)): of_some_systems(path.read_text(encoding="utf-8")) for path in others}
    assert {name: what for name, what in used.items() if what} == {}
    assert {"resource", "/proc", "setitimer", "SIGBREAK"} <= set(of_some_systems(ONLY.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "text, what",
    [
        ("def f():\n    import fcntl", "fcntl"), ("from resource import getrusage", "resource"),
        ("__import__('fcntl')", "fcntl"), ("import signal\nsignal.SIGALRM", "SIGALRM"),
        ("from signal import SIGALRM", "SIGALRM"), ("getattr(signal, 'SIGALRM')", "SIGALRM"),
        ("open('/proc/self/status')", "/proc"), ("open(f'/proc/{pid}/stat')", "/proc"), ("Path('/proc')", "/proc"),
        ("run(command, pass_fds=[3])", "pass_fds"),
    ],
)  # fmt: skip
def test_features_of_single_systems_are_detected_however_they_are_written(text, what):
    assert of_some_systems(text) == [what]


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(system, "WINDOWS", True)
    monkeypatch.setattr(system, "LINUX", False)


# -- the processor and the memory ------------------------------------------------------------------


def test_the_peak_memory_of_a_call_is_measured_for_that_call_alone():
    def hold() -> None:
        np.ones(100_000_000 // 8)

    hold()
    empty, during, again = (system.peak_memory_during(act) for act in (lambda: None, hold, lambda: None))
    if during is None:
        pytest.skip("this system does not let the high-water mark fall")
    assert 80e6 < during - empty < 150e6
    assert abs(again - empty) < 20e6  # the high-water mark fell again


def test_measurements_that_the_system_lacks_return_none(windows):
    assert system.interruptions() is system.peak_memory_during(list) is None


def test_timings_without_interruption_counts_are_all_kept_and_never_called_calm(windows):
    model = empty_model()
    assert timing.time_model(Timed(model), 1, 5.0).repeats >= timing.MIN_REPEATS
    result = measured.measure(model, model, sessions=2, seconds=0.2, memory=False)
    assert result["calm"] is None and result["pairs"] >= measured.MIN_PAIRS


def test_the_processor_has_a_name_of_one_line():
    assert system.processor() and "\n" not in system.processor()


@pytest.mark.parametrize(
    "flags, name",
    [
        ("fma avx avx2 avx512f avx512_vnni", "AMD EPYC (AVX-512 VNNI)"),
        ("avx512f fma avx avx2", "AMD EPYC (AVX-512)"),
        ("avx avx2 fma", "AMD EPYC (AVX2)"),
        ("avx avx2-like", "AMD EPYC"),
    ],
)
def test_two_processors_with_one_name_are_distinguished_by_their_vector_extensions(flags, name):
    core = f"processor\t: 0\nmodel name\t: AMD EPYC\nbugs\t\t: a: b\nflags\t\t: {flags}\n"
    other = "\nprocessor\t: 1\nmodel name\t: another\nflags\t\t: avx512f\n"
    assert system.processor_of(core + other) == name


def test_a_processor_that_linux_does_not_name_gets_an_empty_name():
    assert system.processor_of("processor\t: 0\nFeatures\t: asimd\n") == ""


@pytest.mark.parametrize(
    "physical, affinity, quota, wished, cores",
    [
        (8, 16, None, None, 8),  # one thread for each of the cores with two threads
        (8, 3, None, None, 3),  # limited by taskset or by the cores of a container
        (8, 16, "250000 100000", None, 3),  # a container's quota of two and a half cores
        (8, 16, "max 100000", None, 8),  # no quota
        (None, 16, None, None, 16),  # the system does not report physical cores
        (8, 3, "100000 100000", "5", 5),  # ORT_INTRA_OP_NUM_THREADS, which ONNX Runtime reads, too
        (8, 3, None, "0", 3), (8, 3, None, "many", 3),  # invalid values of the variable are ignored
    ],
)  # fmt: skip
def test_the_number_of_usable_cores_equals_the_threads_that_onnx_runtime_takes(
    monkeypatch, tmp_path, physical, affinity, quota, wished, cores
):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(system.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(affinity)), raising=False)
    monkeypatch.setattr(system, "CPU_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.delenv("ORT_INTRA_OP_NUM_THREADS")
    if wished is not None:
        monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", wished)
    assert system.usable_cores() == cores


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [False, True])
def test_a_timer_stops_the_stoppable_block_and_nothing_after_it(windows, monkeypatch):
    monkeypatch.setattr(system, "WINDOWS", windows)
    before = signal.getsignal(system.ALARM)
    with pytest.raises(Stop, match="time is up"), stoppable(0.1):
        for _ in range(6000):
            time.sleep(0.01)
        pytest.fail("the block goes on")
    with stoppable(0.5):
        pass
    with stoppable():
        time.sleep(0.6)  # a timer that still ran would stop the test here
    assert signal.getsignal(system.ALARM) is before


# -- locks and files -------------------------------------------------------------------------------


def test_files_are_written_and_removed_on_systems_that_refuse_to_move_open_files(tmp_path, windows, monkeypatch):
    """Files are written, and abandoned files removed, on a system that refuses to rename and to remove open files."""
    handles, path, really_open = [], tmp_path / "a", open

    def opens(*arguments, **options):
        handles.append(really_open(*arguments, **options))
        return handles[-1]

    def refuses(function):
        def call(name, *arguments, **options):
            if any(str(handle.name) == str(name) and not handle.closed for handle in handles):
                raise PermissionError(13, "it is open", str(name))
            return function(name, *arguments, **options)

        return call

    monkeypatch.setattr("builtins.open", opens)
    monkeypatch.setattr(Path, "unlink", refuses(Path.unlink))
    monkeypatch.setattr(system.os, "replace", refuses(system.os.replace))
    left = tmp_path / ".a.01234567.part"
    left.write_bytes(b"half")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new" and not left.exists()
    with new_file(path) as file:
        file.write(b"last")
        write_bytes(path, b"first")
    assert path.read_bytes() == b"last" and [file.name for file in tmp_path.iterdir()] == ["a"]


HOLDER = """if True:
    import sys, time
    from rlflow.common.system import locked
    with locked(sys.argv[1]):
        print("mine", flush=True)
        time.sleep(60)
"""


def test_a_lock_belongs_to_one_process_and_ends_with_that_process(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "mine\n"
    with open(path, "ab") as file:
        assert not system.lock(file, wait=False)
        holder.kill()
        holder.wait()
        assert system.lock(file, wait=False)
    with system.locked(path):
        pass
