"""How much the tests try: `make test` a part of the cases, `make nightly` (RLFLOW_NIGHTLY=1) all of them.

A test that is too slow for every change has the marker `nightly`, which pyproject.toml deselects. All other tests run
in both, and `at_night` gives them more cases there.
"""

import os
from collections.abc import Callable, Iterable

import pytest

NIGHTLY = os.environ.get("RLFLOW_NIGHTLY") == "1"
SHOWN = 20  # failures in one message


def at_night(nightly, otherwise):
    """Return `nightly` if the nightly checks run, `otherwise` in `make test`."""
    return nightly if NIGHTLY else otherwise


def slow(*values) -> list:
    """Return the values as parameters of a test that only `make nightly` runs."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly) for value in values
    ]


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
