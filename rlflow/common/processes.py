"""Fresh processes for work that must not share memory or threads with this process, or that may crash.

The processes are spawned, since a fork would inherit ONNX Runtime's threads. Normally, multiprocessing imports the
caller's script again in a spawned process. Here it does not, so a script without `if __name__ == "__main__":` can use
the library. The functions that run in a process must therefore be defined in importable modules, not in the script.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import IO

from rlflow.common.errors import RLFlowError

ENDS_WITH_INPUT = "RLFLOW_ENDS_WITH_INPUT"  # variable of a process that ends when its standard input is closed
_STARTING = threading.Lock()  # Only one thread at a time replaces the module `__main__`.


class _Process(SpawnProcess):
    def start(self) -> None:
        with _STARTING:
            script = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")  # The new process imports this empty module as its script.
            try:
                super().start()
            finally:
                sys.modules["__main__"] = script


class _Context(SpawnContext):
    Process = _Process


def fresh_processes(count: int, initializer: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """Return a pool of fresh processes that end when this process ends.

    Args:
      count: number of processes.
      initializer: function that each process calls first.
    """
    return ProcessPoolExecutor(count, _Context(), _begin, (initializer,))


def _begin(initializer: Callable[[], None] | None) -> None:
    _die_with_parent()
    if initializer is not None:
        initializer()


def _die_with_parent() -> None:
    """End this process when its parent ends, even if the parent is killed."""
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def run_child(arguments: Sequence[str], output: IO[bytes], cwd: Path | str, **options) -> int:
    """Run this program as a child and return its exit status. The child ends when this process ends or is killed.

    Args:
      arguments: the command line, which calls `end_with_input`.
      output: the file for standard output and standard error.
      cwd: the working directory.
      **options: further arguments of `subprocess.Popen`.
    """
    variables = os.environ | {ENDS_WITH_INPUT: "1"}
    child = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=cwd, env=variables, **options
    )
    with child:
        try:
            return child.wait()
        except BaseException:
            child.kill()
            raise


def end_with_input() -> None:
    """End this process when its standard input is closed, if `run_child` started it: its parent has ended then."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    if os.environ.pop(ENDS_WITH_INPUT, None):
        threading.Thread(target=wait, daemon=True).start()


def call_with_traceback(function: Callable, *arguments):
    """Call a function and return its result; turn an unexpected error into an RLFlowError that contains the traceback.

    Worker processes call this, since the traceback itself cannot be sent to the parent process.

    Args:
      function: function to call.
      *arguments: arguments of the function.

    Raises:
      RLFlowError: the function raised RLFlowError or any other `Exception`.
    """
    try:
        return function(*arguments)
    except RLFlowError:
        raise
    except Exception as error:
        raise RLFlowError(f"a worker failed:\n{traceback.format_exc()}") from error


class WorkerDied(Exception):
    """Raised if the process of a worker ended or was killed before it returned a result; the message states why."""


class Worker:
    """A fresh process that runs one function after another and is killed if a function exceeds its time limit.

    After a kill, the next function runs in a new process, without the state of the old one. The process ends when this
    process ends or when the Worker object is deleted.
    """

    def __init__(self):
        self._process: SpawnProcess | None = None
        self._jobs: Connection | None = None

    def run(self, function: Callable, *arguments, limit: float):
        """Run a function in the process and return its result.

        Args:
          function: an importable function.
          *arguments: its arguments.
          limit: time limit in seconds, including the start of a new process.

        Raises:
          RLFlowError: the function raised an exception.
          WorkerDied: the process died, or was killed because the function exceeded the limit.
        """
        if self._process is None:
            self._start()
        answered = False
        try:
            self._jobs.send((function, arguments))
            if not self._jobs.poll(limit):
                raise WorkerDied(f"no answer within {limit:g} s")
            result, failure = self._jobs.recv()
            answered = True
        except (EOFError, OSError) as error:
            raise WorkerDied("the process was killed, perhaps because memory ran out") from error
        finally:
            if not answered:  # also after an interrupt: the result is no longer needed
                self._kill()
        if failure is not None:
            raise failure
        return result

    def _start(self) -> None:
        context = _Context()
        self._jobs, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # Only the child holds this end now, so the pipe closes when the child dies.

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._jobs.close()
        self._process = self._jobs = None


def _serve(jobs: Connection) -> None:
    """Run the functions that arrive through the pipe, and send back (result, error), until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches this process; the parent decides when to end it.
    _die_with_parent()
    while True:
        try:
            function, arguments = jobs.recv()
        except EOFError:
            return
        try:
            answer = call_with_traceback(function, *arguments), None
        except RLFlowError as error:
            answer = None, error
        jobs.send(answer)
