"""Number of cases of tests: `make test` runs a part of the cases, `make nightly` (RLFLOW_NIGHTLY=1) all of them.

A test that is too slow for every change has the marker `nightly`, which pyproject.toml deselects. All other tests run
in both, and `at_night` gives them more cases there.
"""

import os
from collections.abc import Callable, Iterable

import pytest

NIGHTLY = os.environ.get("RLFLOW_NIGHTLY") == "1"
SHOWN = 20  # largest number of failures in one message


def at_night(nightly, otherwise):
    """Return `nightly` if the nightly checks run, `otherwise` in `make test`."""
    return nightly if NIGHTLY else otherwise


def slow(*values) -> list:
    """Return parameters for `pytest.mark.parametrize` that only `make nightly` runs.

    Args:
        values: one value, or a tuple of values, for each parameter.
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly) for value in values
    ]


def check_each(check: Callable, cases: Iterable, name: Callable = str) -> None:
    """Call `check` with every case, and raise one AssertionError that names all cases that fail, with the reasons.

    One test with a loop is faster than one pytest item per case, which costs some milliseconds in every process of
    pytest-xdist.

    Args:
        check: function of a case that raises an exception if the case fails.
        cases: the cases.
        name: function from a case to its name in the message.

    Raises:
        AssertionError: a case fails, or there is no case.
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
