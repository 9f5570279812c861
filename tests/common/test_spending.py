"""Test the account of a command's seconds: every second belongs to one part, the innermost active part."""

import threading

import numpy as np
import pytest

from rlflow.common.spending import (
    CHECKS,
    KERNELS,
    LOAD,
    OTHER,
    PARTS,
    SEARCH,
    Account,
    keeping,
    spent_on,
    spent_so_far,
    spent_text,
)


class Clock:
    """A clock that advances only if a test sets its time."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_is_attributed_to_the_innermost_part(clock):
    with keeping(Account(clock, began=97.0)) as account:
        clock.now += 1
        with spent_on(SEARCH):
            clock.now += 2
            with spent_on(KERNELS):
                clock.now += 4
            clock.now += 8
    expected = {LOAD: 3.0, OTHER: 1.0, SEARCH: 10.0, KERNELS: 4.0}
    assert account.spent() == dict.fromkeys(PARTS, 0.0) | expected


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_add_up_to_the_whole_duration_however_they_are_nested(clock, seed):
    rng = np.random.default_rng(seed)

    def work(depth: int) -> None:
        for part in rng.choice(PARTS, 3):
            with spent_on(part):
                clock.now += float(rng.integers(1, 10))
                if depth:
                    work(depth - 1)
            clock.now += float(rng.integers(1, 10))

    with keeping(Account(clock, began=90.0)):
        work(2)
        assert set(spent_so_far()) == set(PARTS)
        assert sum(spent_so_far().values()) == clock.now - 90.0


def test_a_part_that_raises_an_error_ends_with_the_error(clock):
    with keeping(Account(clock)) as account:
        with pytest.raises(ZeroDivisionError), spent_on(CHECKS):
            clock.now += 1
            raise ZeroDivisionError
        clock.now += 2
    assert (account.spent()[CHECKS], account.spent()[OTHER]) == (1.0, 2.0)


def test_no_time_is_counted_without_an_account_or_in_other_threads(clock):
    assert spent_so_far() == {}
    with spent_on(SEARCH):
        clock.now += 1
    with keeping(Account(clock)) as account:
        found = []
        thread = threading.Thread(target=lambda: found.append(spent_so_far()))
        thread.start()
        thread.join()
    assert found == [{}] and sum(account.spent().values()) == 0.0
    assert spent_so_far() == {}


def test_the_text_leaves_out_parts_without_time():
    assert spent_text({LOAD: 0.5, KERNELS: 2.51, SEARCH: 0.04}) == "3.0 s: load 0.5, kernels 2.5"
