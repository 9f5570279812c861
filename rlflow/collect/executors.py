"""Executors: where workers run, in processes of this machine or on the nodes of a Ray cluster.

A job is a function of a module with plain arguments. Its worker can die at any moment, and another worker then does the
job again. Doing a job twice must therefore have the same effect as doing it once.

An executor has three methods and one line in `EXECUTORS`:

    run(function, *arguments)   run in a worker, called from any thread; raise WorkerDied if the worker dies
    stop()                      announce that no caller waits for running jobs any more
    close()                     free all resources after the last `run` has returned
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
TRIES = 3  # workers that may die of one job before it fails
CONNECT_SECONDS = 10.0  # time within which a cluster must answer
CANCEL_SECONDS = 0.5  # time within which a job on a cluster is cancelled after `stop`


class Job(NamedTuple):
    """One unit of work for a worker.

    Attributes:
      name: the name in messages, such as "shard 3".
      function: a function of a module.
      arguments: its arguments, plain values.
    """

    name: str
    function: Callable
    arguments: tuple


class Workers:
    """A pool that does `count` jobs at a time. A single local worker is this process itself.

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
          ahead: number of jobs that are started before their results are needed, if there are several workers.

        Raises:
          RLFlowError: a job raised RLFlowError, failed otherwise (the message contains its traceback), or killed its
            workers.
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
    """Worker processes of this machine, each in a pool of its own, so that the death of one process affects only one
    job.
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
        """Do nothing: `close` waits for running jobs, and an interrupt from the terminal reaches the processes by
        itself.
        """

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().shutdown()


class RayExecutor:
    """Workers on a Ray cluster: the cluster at RAY_ADDRESS, else the one running on this machine, else a new local one.

    All nodes need the same packages, and the same files at the same paths. The caller decides how many jobs run at a
    time; Ray never runs more jobs than the cluster has CPUs.
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
    """Raise OSError if no server listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
