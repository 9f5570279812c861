"""Test chain search: chains cross valleys that are shorter than the longest chain, and no longer valleys."""

from itertools import count

import numpy as np
import pytest

from rlflow.search.chains import LEVELS, Move, descend


class Position:
    """A position on a line. The cost rises for `valley` steps and then falls below the initial cost."""

    def __init__(self, at: int, valley: int):
        self.at, self.valley, self.key = at, valley, at
        self.cost = 10 + at if at <= valley else 5

    def moves(self, near=None):
        for at in (self.at - 1, self.at + 1):
            if 0 <= at <= self.valley + 1:
                yield Move(Position(at, self.valley), at, (self.at, at))


LONGEST = max(length for _, length in LEVELS)


@pytest.mark.parametrize("valley", range(LONGEST + 1))
def test_a_valley_is_crossed_if_a_chain_reaches_its_end(valley):
    tried = count()
    moves = descend(Position(0, valley), np.random.default_rng(0), 0.0, lambda: next(tried))
    if valley < LONGEST:
        assert [move.step for move in moves] == [(at, at + 1) for at in range(valley + 1)]
        assert moves[-1].form.cost == 5
    else:
        assert not moves
    assert next(tried) > 0


def test_the_counting_function_can_end_the_descent():
    def refuse():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        descend(Position(0, 3), np.random.default_rng(0), 0.0, refuse)
