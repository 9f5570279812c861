"""Fresh processes for work that must not share this one's memory, threads or fate.

They are spawned, since a fork would inherit ONNX Runtime's threads, and begin without the script of the caller:
multiprocessing would run it again in each of them, so that a script without `if __name__ == "__main__":` could not call
the library. So what they are given to do is importable, and nothing that the script itself defines.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Lock
from types import ModuleType

_STARTING = Lock()


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
    """A pool of so many. initializer: called in each at its beginning."""
    return ProcessPoolExecutor(count, _Context(), initializer)
