"""Executors: where workers run, in processes of this machine or on the nodes of a Ray cluster.

A job is a function of a module with plain arguments. Its worker can die at any moment, and another worker then does the
job again. Doing a job twice must therefore have the same effect as doing it once.

An executor is a class with these three methods, registered in `EXECUTORS`:

    run(function, *arguments)   Call the function in a worker and return its result. Any thread may call this method. It
                                raises WorkerDied if the worker dies.
    stop()                      Announce that the results of running jobs are no longer needed.
    close()                     Free all resources. It is called after the last `run` has returned.
"""

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from itertools import islice
from queue import SimpleQueue
from typing import NamedTuple

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.messages import say
from rlflow.common.processes import WorkerDied, call_with_traceback, fresh_processes
from rlflow.common.registry import Registry

EXECUTORS = Registry(
    "executor",
    {
        "local": "rlflow.collect.executors:LocalExecutor",
        "ray": "rlflow.collect.executors:RayExecutor",
    },
)
TRIES = 3  # number of workers that must die during one job until the job counts as failed
CONNECT_SECONDS = 10.0  # time limit for the first answer of a cluster
CANCEL_SECONDS = 0.5  # time within which a job on a cluster is cancelled after `stop`


class Job(NamedTuple):
    """One unit of work for a worker.

    Attributes:
      name: the name of the job in messages, such as "shard 3".
      function: a function that is defined in a module.
      arguments: the arguments of the function, picklable values.
    """

    name: str
    function: Callable
    arguments: tuple


class Workers:
    """A pool of workers that runs `count` jobs at the same time. A single local worker is this process itself.

    Args:
      executor: a name in EXECUTORS.
      count: number of workers.

    Raises:
      RLFlowError: the executor is unknown, not installed, or cannot be reached.
    """

    def __init__(self, executor: str, count: int):
        kind = EXECUTORS.get(executor)
        self._executor = None if (executor, count) == ("local", 1) else kind(count)
        self._threads = ThreadPoolExecutor(count)  # each thread waits for one worker
        self._stopping = False

    def results(self, jobs: Iterable[Job], ahead: int) -> Iterator:
        """Yield the results of the jobs, in their order.

        Args:
          jobs: the jobs.
          ahead: number of jobs that are submitted before the first result is taken; without an effect for one local
            worker.

        Raises:
          RLFlowError: a job raised RLFlowError or another exception (the message then contains the traceback), or TRIES
            workers died during one job.
        """
        if self._executor is None:
            yield from (call_with_traceback(job.function, *job.arguments) for job in jobs)
            return
        waiting = iter(jobs)
        begun: deque[Future] = deque(self._submit(job) for job in islice(waiting, ahead))
        while begun:
            result = begun.popleft().result()
            begun.extend(self._submit(job) for job in islice(waiting, 1))
            yield result

    def _submit(self, job: Job) -> Future:
        # The context carries the caller's `silence`.
        return self._threads.submit(copy_context().run, self._run_with_retries, job)

    def _run_with_retries(self, job: Job):
        for tries in range(1, TRIES + 1):
            try:
                return self._executor.run(job.function, *job.arguments)
            except WorkerDied as error:
                if self._stopping:
                    raise
                cause = error
                if tries < TRIES:
                    say(f"the worker of {job.name} died ({cause}); another worker does the job again")
        raise RLFlowError(
            f"{job.name} killed its worker {TRIES} times ({cause}); finished jobs are kept: "
            "free memory, then run the command again to continue"
        )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        self._stopping = True
        if self._executor is not None:
            self._executor.stop()
            self._threads.shutdown(cancel_futures=True)
            self._executor.close()


class LocalExecutor:
    """An executor with `count` worker processes on this machine.

    Each process is in a pool of its own, so the death of one process affects only one job.
    """

    def __init__(self, count: int):
        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for _ in range(count):
            self._idle.put(fresh_processes(1))

    def run(self, function: Callable, *arguments):
        process = self._idle.get()
        try:
            return process.submit(call_with_traceback, function, *arguments).result()
        except BrokenProcessPool as error:
            process.shutdown()
            process = fresh_processes(1)
            raise WorkerDied("killed, or out of memory?") from error
        finally:
            self._idle.put(process)

    def stop(self) -> None:
        """Do nothing. `close` waits for running jobs, and the terminal sends Ctrl-C to the processes, too."""

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().shutdown()


class RayExecutor:
    """An executor whose workers run on a Ray cluster.

    The environment variable RAY_ADDRESS names the cluster. Without this variable, the executor uses a cluster that runs
    on this machine, or starts a local cluster. All nodes need the same packages, and the same files at the same paths.
    `Workers` limits how many jobs run at the same time, and Ray never runs more jobs than the cluster has CPUs.
    """

    def __init__(self, _count: int):
        try:
            import ray
        except ImportError as error:
            raise RLFlowError("the executor 'ray' needs Ray: pip install '.[distributed]'") from error
        self._ray, self._connected, self._stopped = ray, not ray.is_initialized(), threading.Event()
        if self._connected:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here sends no usage statistics
            address = os.environ.get("RAY_ADDRESS", "of this machine")
            try:
                _check_reachable(address)
                ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
            except (OSError, RuntimeError, ValueError) as error:
                raise RLFlowError(
                    f"cannot reach the Ray cluster {address}: {first_line(error)}; set RAY_ADDRESS, or pass "
                    "collect.executor=local"
                ) from error
        # Ray must not retry by itself: `Workers` retries with a message and the same limit for all executors.
        self._remote = ray.remote(max_retries=0, scheduling_strategy="SPREAD")(call_with_traceback)

    def run(self, function: Callable, *arguments):
        ray, errors = self._ray, self._ray.exceptions
        job = self._remote.remote(function, *arguments)
        try:
            while not ray.wait([job], timeout=CANCEL_SECONDS)[0]:
                if self._stopped.is_set():
                    ray.cancel(job, force=True)
            return ray.get(job)
        except errors.RayTaskError as error:
            raise RLFlowError(str(error.cause if isinstance(error, RLFlowError) else error)) from error
        except errors.RayError as error:  # The worker or its node is lost, together with the result.
            raise WorkerDied(first_line(error)) from error

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        if self._connected:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if no server listens at an address HOST:PORT or ray://HOST:PORT; ignore other addresses.

    Ray itself would try to connect for minutes.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
