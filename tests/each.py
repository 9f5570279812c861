"""One test for many cases: every case is checked, and the message names all that fail."""

from collections.abc import Callable, Iterable

SHOWN = 20  # failures in one message


def check_each(check: Callable, cases: Iterable, name: Callable = str) -> None:
    """Call `check` with every case, and raise one AssertionError that names all cases that fail, with the reasons.

    A loop in place of one pytest item for each case saves pytest's own work, some milliseconds an item in every
    process of pytest-xdist.

    Args:
        check: raises an error when a case does not hold.
        cases: the arguments, one for each call.
        name: returns what a case is called in the message.

    Raises:
        AssertionError: if a case fails or if there is no case.
    """
    failures, count = [], 0
    for count, case in enumerate(cases, 1):  # noqa: B007 - count is read after the loop
        try:
            check(case)
        except Exception as error:
            failures.append(f"{name(case)}: {type(error).__name__}: {error}")
    assert count, "there is no case to check"
    more = f"\n... and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
    assert not failures, f"{len(failures)} of {count} cases fail:\n" + "\n".join(failures[:SHOWN]) + more
