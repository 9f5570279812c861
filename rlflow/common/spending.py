"""An account of a command's seconds: how many went to which part of the work.

    with keeping(Account()) as account:
        with spent_on(SEARCH):
            ...
            with spent_on(KERNELS):  # these seconds count as KERNELS alone
                ...
    account.spent()  # {"load": 0.0, …, "kernels": 1.5, "search": 0.5, …}

The seconds of all parts add up to the duration of the command, because every second belongs to the innermost part. Code
anywhere below calls `spent_on`. Without an account, and in other threads and processes, the call changes nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

LOAD = "load"  # options and model, before the searches
PREDICT = "predict"  # latencies of kernels that are predicted
KERNELS = "kernels"  # timings of single kernels, and the calibration of the machine
SEARCH = "search"  # searches, and the pruning of their results
CONTEST = "contest"  # candidates measured against each other
CHECKS = "checks"  # equality of outputs, and the search for rewrites at fault
VERDICT = "verdict"  # measurements of the checked files
LEARNING = "learning"  # episodes, training and acting
OTHER = "other"
PARTS = (LOAD, PREDICT, KERNELS, SEARCH, CONTEST, CHECKS, VERDICT, LEARNING, OTHER)


class Account:
    """The seconds of one command by part.

    Args:
      clock: a function that returns seconds.
      began: the value of the clock at which the command began. The seconds since then count as LOAD.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, began: float | None = None):
        self._clock, self._counted = clock, clock()  # seconds until `_counted` are in `_seconds`
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._seconds[LOAD] = self._counted - (self._counted if began is None else began)
        self._inside = [OTHER]  # the parts that were entered, the innermost last

    def spent(self) -> dict[str, float]:
        """Return part → seconds so far for all PARTS; the seconds add up to the time since the command began."""
        self._count()
        return dict(self._seconds)

    def enter(self, part: str) -> None:
        """Begin a part of PARTS inside the present one."""
        self._count()
        self._inside.append(part)

    def leave(self) -> None:
        """End the innermost part."""
        self._count()
        self._inside.pop()

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self._inside[-1]] += now - self._counted
        self._counted = now


_kept: ContextVar[Account | None] = ContextVar("account", default=None)


@contextmanager
def keeping(account: Account) -> Iterator[Account]:
    """Count the seconds of the block in an account."""
    before = _kept.set(account)
    try:
        yield account
    finally:
        _kept.reset(before)


@contextmanager
def spent_on(part: str) -> Iterator[None]:
    """Count the seconds of the block as a part of PARTS, without the seconds of parts inside the block."""
    account = _kept.get()
    if account is None:
        yield
        return
    account.enter(part)
    try:
        yield
    finally:
        account.leave()


def spent_so_far() -> dict[str, float]:
    """Return `Account.spent` of the present account; an empty dictionary without an account."""
    account = _kept.get()
    return account.spent() if account is not None else {}


def spent_text(seconds: Mapping[str, float]) -> str:
    """Return the result of `spent_so_far` in words, such as "12.0 s: kernels 8.1, search 3.2, other 0.7"."""
    parts = ", ".join(f"{part} {taken:.1f}" for part, taken in seconds.items() if round(taken, 1) > 0)
    return f"{sum(seconds.values()):.1f} s: {parts}"
