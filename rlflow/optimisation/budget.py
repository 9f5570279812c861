"""The time budget of the command `optimise`, and the signals and timer that stop the command."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import ArgumentError
from typing import NamedTuple

from rlflow.common.system import ALARM, alarm

GRACE = 1 / 10  # time that reports may take after the command's seconds, as a share of these seconds
# Seconds at the end of the command for measuring the memory of both files and for the report. They are at most
# ENDING_SHARE times the command's seconds.
ENDING, ENDING_SHARE = 4.0, 2 / 5
SESSION = 1 / 6  # share of the command's seconds for the choice of session options, if the user asks for them
# Share for the searches, if no controller is trained, of the command's seconds without those for session options.
SEARCHES = 1 / 2


class Budget(NamedTuple):
    """The division of one command's seconds among its parts. A check that has begun is finished even after `end`.

    Attributes:
      search_seconds: the number of seconds for all searches together.
      stop_seconds: the number of seconds after which `stoppable` stops searching and learning; None if no controller
        is trained.
      end: the value of time.monotonic() at which searches, contests and measurements of latency end.
      session_seconds: the number of seconds after `end` for the choice of session options.
      grace: the value of time.monotonic() after which nothing is computed that only reports show.
    """

    search_seconds: float
    stop_seconds: float | None
    end: float
    grace: float
    session_seconds: float = 0.0

    @classmethod
    def of(cls, seconds: float | None, learn: bool, started: float, session: bool = False) -> "Budget":
        """Divide the seconds of a command.

        Args:
          seconds: the seconds of the whole command; None for 120, or 900 if `learn` is True.
          learn: True if a controller is trained after the searches.
          started: the value of time.monotonic() at the start of the command.
          session: True if session options are chosen at the end.
        """
        seconds = seconds or (900.0 if learn else 120.0)
        chosen_in = SESSION * seconds if session else 0.0
        end = started + seconds - min(ENDING, ENDING_SHARE * seconds) - chosen_in
        grace = started + (1 + GRACE) * seconds
        if learn:
            return cls(seconds / 30, 0.9 * seconds, end, grace, chosen_in)
        return cls((seconds - chosen_in) * SEARCHES, None, end, grace, chosen_in)

    @property
    def left(self) -> float:
        """The seconds until `end`, at least 0."""
        return max(self.end - time.monotonic(), 0.0)


class Stop(KeyboardInterrupt):
    """Raised when the user or the time budget stops the command."""


@contextmanager
def stoppable(seconds: float | None = None) -> Iterator[None]:
    """Raise Stop in the block on Ctrl-C, on SIGTERM, or after `seconds` (None: no limit).

    Python delivers signals in the main thread only. In another thread nothing ends the block early.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    raised: list[Stop] = []

    def stop(number, _):
        raised.append(Stop("the time is up" if number == ALARM else "interrupted"))
        raise raised[-1]

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, ALARM)}
    try:
        with alarm(seconds):
            yield
    except (SystemError, ArgumentError) as error:  # C code turns an exception that is raised while it runs into these
        if not raised:
            raise
        raise raised[0] from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
