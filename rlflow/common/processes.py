"""Fresh processes for work that must not share this one's memory, threads or fate.

They are spawned, since a fork would inherit ONNX Runtime's threads, and begin without the script of the caller:
multiprocessing would run it again in each of them, so that a script without `if __name__ == "__main__":` could not call
the library. So what they are given to do is importable, and nothing that the script itself defines.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType

from rlflow.common.errors import RLFlowError

_STARTING = threading.Lock()


class _Process(SpawnProcess):
    def start(self) -> None:
        with _STARTING:
            script = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")  # what multiprocessing has the new process begin with
            try:
                super().start()
            finally:
                sys.modules["__main__"] = script


class _Context(SpawnContext):
    Process = _Process


def fresh_processes(count: int, initializer: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """A pool of so many, which end with this process. initializer: called in each at its beginning."""
    return ProcessPoolExecutor(count, _Context(), _begin, (initializer,))


def _begin(initializer: Callable[[], None] | None) -> None:
    _die_with_parent()
    if initializer is not None:
        initializer()


def _die_with_parent() -> None:
    """In a fresh process, at its beginning: a killed parent must not leave it behind."""
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def traced(function: Callable, *arguments):
    """In a fresh process: what an unexpected error has to say would be lost with it. Raises RLFlowError alone."""
    try:
        return function(*arguments)
    except RLFlowError:
        raise
    except Exception as error:
        raise RLFlowError(f"a worker failed:\n{traceback.format_exc()}") from error


class WorkerDied(Exception):
    """The process that did a job is gone. The message is what is known of the cause."""


class Worker:
    """A fresh process that does one job after another, and is killed where one takes too long.

    What it keeps between jobs goes with it: after a lost job the next one is done by another process. It ends with this
    process, and where nobody has the object any more.
    """

    def __init__(self):
        self._process: SpawnProcess | None = None
        self._jobs: Connection | None = None

    def run(self, function: Callable, *arguments, limit: float):
        """What the function returns there.

        limit: seconds, of which those that a new process needs to begin are a part.

        Raises RLFlowError if the function fails; WorkerDied if the process dies or the limit is over.
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
            raise WorkerDied("killed, or out of memory?") from error
        finally:
            if not answered:  # by an interrupt either: nobody waits for what it does now
                self._give_up()
        if failure is not None:
            raise failure
        return result

    def _start(self) -> None:
        context = _Context()
        self._jobs, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that its death ends the pipe

    def _give_up(self) -> None:
        self._process.kill()
        self._process.join()
        self._jobs.close()
        self._process = self._jobs = None


def _serve(jobs: Connection) -> None:
    """In a worker: does jobs until nobody can give it one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's reaches it too; who waits for the job ends it
    _die_with_parent()
    while True:
        try:
            function, arguments = jobs.recv()
        except EOFError:
            return
        try:
            answer = traced(function, *arguments), None
        except RLFlowError as error:
            answer = None, error
        jobs.send(answer)
