"""Test worker processes: a worker does jobs in another process, and its death or hang affects one job only."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.processes import Worker, WorkerDied, fresh_processes, run_child
from tests.commands import ROOT

ENOUGH = 60.0  # seconds, far more than a job needs


def divide(number: float, by: float) -> float:
    return number / by


def refuse(text: str) -> None:
    raise RLFlowError(text)


def own_process(worker: Worker) -> int:
    return worker.run(os.getpid, limit=ENOUGH)


@pytest.fixture(scope="module")
def worker():
    return Worker()


def test_jobs_run_in_one_other_process(worker):
    assert worker.run(divide, 3.0, 2.0, limit=ENOUGH) == 1.5
    assert own_process(worker) == own_process(worker) != os.getpid()


def test_an_exception_of_a_job_is_passed_on_and_the_process_stays(worker):
    before = own_process(worker)
    with pytest.raises(RLFlowError, match="^not this one$"):
        worker.run(refuse, "not this one", limit=ENOUGH)
    with pytest.raises(RLFlowError, match="(?s)Traceback.*ZeroDivisionError"):
        worker.run(divide, 1.0, 0.0, limit=ENOUGH)
    assert own_process(worker) == before


@pytest.mark.parametrize("killed", [True, False])
def test_a_killed_or_hanging_process_loses_only_its_job(worker, killed):
    """A suspended process does not answer and ignores all signals except SIGKILL; another process does the next job."""
    process = psutil.Process(own_process(worker))
    process.suspend()
    if killed:
        threading.Timer(0.2, process.kill).start()
    with pytest.raises(WorkerDied, match="killed" if killed else "no answer within 0.5 s"):
        worker.run(divide, 3.0, 2.0, limit=ENOUGH if killed else 0.5)
    assert not process.is_running()
    assert worker.run(divide, 3.0, 2.0, limit=ENOUGH) == 1.5 and own_process(worker) != process.pid


def test_an_interrupt_ends_the_process_that_runs_the_job(worker):
    """An interrupt ends the process, because its late answer would be taken for the answer to the next job."""
    process = psutil.Process(own_process(worker))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore SIGINT
    threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.run(time.sleep, ENOUGH, limit=ENOUGH)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not process.is_running()
    assert worker.run(divide, 3.0, 2.0, limit=ENOUGH) == 1.5


def test_a_worker_process_ignores_the_interrupt_of_a_terminal(worker):
    process = own_process(worker)
    os.kill(process, signal.SIGINT)
    assert own_process(worker) == process


def test_a_worker_process_ends_when_its_worker_is_deleted():
    worker = Worker()
    process = psutil.Process(own_process(worker))
    del worker
    process.wait(ENOUGH)
    assert not process.is_running()


def test_a_pool_ends_with_a_killed_parent():
    """A pool's process ends when its parent is killed.

    The pipe of standard output stays open as long as the parent or the pool's process lives.
    """
    program = (
        "import os, time; from rlflow.common.processes import fresh_processes; pool = fresh_processes(1);"
        "print(pool.submit(os.getpid).result(), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    try:
        assert parent.communicate(timeout=10)[0] == b""
    finally:
        if process.is_running():
            process.kill()


def test_each_process_of_a_pool_runs_the_given_initialiser():
    assert gc.isenabled()
    with fresh_processes(1, gc.disable) as pool:
        assert not pool.submit(gc.isenabled).result()


def test_a_child_command_ends_when_its_parent_is_killed(tmp_path):
    """A command that a sweep started ends even if the sweep is killed by SIGKILL and cannot end the command itself."""
    file, log = tmp_path / "pid", tmp_path / "log"
    child = (
        "import os, sys, time; from rlflow.common.processes import end_with_input; end_with_input(); "
        f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep({ENOUGH})"
    )
    parent = (
        "import sys; from rlflow.common.processes import run_child\n"
        f"with open({str(log)!r}, 'wb') as output: run_child([sys.executable, '-c', {child!r}], output, '.')"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT)
    while not file.exists() or not file.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    command = psutil.Process(int(file.read_text()))
    process.kill()
    process.wait()
    gone, _ = psutil.wait_procs([command], timeout=ENOUGH)
    assert gone


def test_a_finished_child_command_returns_its_exit_status(tmp_path):
    with open(tmp_path / "log", "wb") as output:
        assert run_child([sys.executable, "-c", "print('said'); raise SystemExit(7)"], output, tmp_path) == 7
    assert (tmp_path / "log").read_text() == "said\n"
