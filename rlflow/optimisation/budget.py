"""The seconds of one command: what they are for, and how a command is stopped when they are over or somebody asks."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rlflow.common.system import ALARM, alarm

SEARCHES = 1 / 2  # of the seconds, where nothing is learnt; the rest is to prune, compete and measure


class Budget(NamedTuple):
    """What the seconds of one command are for; checks that have begun are finished.

    Attributes:
      searches: until the searches end.  looking: until nothing is looked for any more, None where searches are all
        there is.
      end: the clock (time.monotonic) when all is over.
    """

    searches: float
    looking: float | None
    end: float

    @classmethod
    def of(cls, seconds: float | None, learn: bool, started: float) -> "Budget":
        """seconds: None for the default.  learn: whether a controller learns after the searches.  started: when the
        clock was so."""
        seconds = seconds or (900.0 if learn else 120.0)
        end = started + seconds
        return cls(seconds / 30, 0.9 * seconds, end) if learn else cls(seconds * SEARCHES, None, end)

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)


class Stop(KeyboardInterrupt):
    """Somebody asks for what there is, or the time is up."""


@contextmanager
def stoppable(seconds: float | None = None) -> Iterator[None]:
    """In the block Ctrl-C, SIGTERM and the end of so many seconds (None: no end) raise Stop.

    Only in the main thread, where Python delivers signals; in another one nothing ends the block early.
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
    except SystemError as error:  # what code in C makes of an exception that comes while it is at work
        if not raised:
            raise
        raise raised[0] from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
