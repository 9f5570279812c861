"""Where workers run: processes of this machine, or the nodes of a Ray cluster.

A job is a function of some module with plain arguments. Its worker can die at any moment, and another one does the job
again; so doing it twice must come to the same as doing it once.

An executor has

    run(function, *arguments)   in a worker, from any thread; raises WorkerDied if that dies
    stop()                      nobody waits for what still runs
    close()                     after the last `run` has returned

and one line in `EXECUTORS`.
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
from rlflow.common.processes import WorkerDied, fresh_processes, traced
from rlflow.common.registry import Registry

EXECUTORS = Registry(
    "executor",
    {
        "local": "rlflow.collect.executors:LocalExecutor",
        "ray": "rlflow.collect.executors:RayExecutor",
    },
)
TRIES = 3  # so many workers may die of a job
CONNECT_SECONDS = 10.0  # within which a cluster must answer
CANCEL_SECONDS = 0.5  # within which a job on a cluster learns that nobody waits for it


class Job(NamedTuple):
    """name: for messages, e.g. "shard 3"."""

    name: str
    function: Callable
    arguments: tuple


class Workers:
    """Does jobs, `count` at a time. A single local worker is this very process.

    Raises RLFlowError for an executor that is unknown, not installed or out of reach.
    """

    def __init__(self, executor: str, count: int):
        kind = EXECUTORS.get(executor)
        self._executor = None if (executor, count) == ("local", 1) else kind(count)
        self._threads = ThreadPoolExecutor(count)  # each waits for one worker; started when first needed
        self._stopping = False

    def results(self, jobs: Iterable[Job], ahead: int) -> Iterator:
        """What the jobs return, in their order; with more than one worker, `ahead` of them are begun beforehand.

        Raises RLFlowError if a job does, if it fails in any other way (with its traceback), or if its workers die.
        """
        if self._executor is None:
            yield from (traced(job.function, *job.arguments) for job in jobs)
            return
        waiting = iter(jobs)
        begun: deque[Future] = deque(self._begin(job) for job in islice(waiting, ahead))
        while begun:
            result = begun.popleft().result()
            begun.extend(self._begin(job) for job in islice(waiting, 1))
            yield result

    def _begin(self, job: Job) -> Future:
        return self._threads.submit(copy_context().run, self._do, job)  # with the caller's `silence`

    def _do(self, job: Job):
        for tries in range(1, TRIES + 1):
            try:
                return self._executor.run(job.function, *job.arguments)
            except WorkerDied as error:
                if self._stopping:
                    raise
                cause = error
                if tries < TRIES:
                    say(f"the worker of {job.name} died ({cause}); another one does it again")
        raise RLFlowError(f"{job.name} killed its worker {TRIES} times ({cause}); what is finished is kept")

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        self._stopping = True
        if self._executor is not None:
            self._executor.stop()
            self._threads.shutdown(cancel_futures=True)
            self._executor.close()


class LocalExecutor:
    """Processes of this machine, each a pool of its own, so that the death of one is the business of one job."""

    def __init__(self, count: int):
        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for _ in range(count):
            self._idle.put(fresh_processes(1))

    def run(self, function: Callable, *arguments):
        process = self._idle.get()
        try:
            return process.submit(traced, function, *arguments).result()
        except BrokenProcessPool as error:
            process.shutdown()
            process = fresh_processes(1)
            raise WorkerDied("killed, or out of memory?") from error
        finally:
            self._idle.put(process)

    def stop(self) -> None:
        """What runs is waited for; an interrupt from the terminal reaches these processes too."""

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().shutdown()


class RayExecutor:
    """A Ray cluster: that of RAY_ADDRESS, else the one that runs on this machine, else one started for the occasion.

    Its nodes need the same packages, and the same files at the same paths. How many jobs run at a time is the caller's
    choice, but never more than the cluster has CPUs.
    """

    def __init__(self, _count: int):
        try:
            import ray
        except ImportError as error:
            raise RLFlowError("the executor 'ray' needs Ray: pip install '.[distributed]'") from error
        self._ray, self._connected, self._stopped = ray, not ray.is_initialized(), threading.Event()
        if self._connected:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports to nobody
            address = os.environ.get("RAY_ADDRESS", "of this machine")
            try:
                _knock(address)
                ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
            except (OSError, RuntimeError, ValueError) as error:
                raise RLFlowError(f"cannot reach the Ray cluster {address}: {first_line(error)}") from error
        # No retries by Ray: it would not say so, and not in the same way as the local executor.
        self._remote = ray.remote(max_retries=0, scheduling_strategy="SPREAD")(traced)

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
        except errors.RayError as error:  # the worker or its node is gone, and its result with it
            raise WorkerDied(first_line(error)) from error

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        if self._connected:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """Raises OSError if nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
