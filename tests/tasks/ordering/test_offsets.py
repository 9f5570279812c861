"""Blocks of memory: valid, and the smallest there is where the search says so."""

from itertools import permutations

import numpy as np
import pytest

from rlflow.tasks.ordering.offsets import lowest_fit, pack
from rlflow.tasks.ordering.runtime import Lifetime
from tests.tasks.ordering.test_runtime import assert_apart


def drawn(seed: int, n: int) -> list[Lifetime]:
    rng = np.random.default_rng(seed)
    firsts = rng.integers(0, 6, n)
    return [Lifetime(int(first), int(first + rng.integers(0, 4)), int(rng.integers(1, 9))) for first in firsts]


def top(buffers, offsets) -> int:
    return max(offset + one.size for one, offset in zip(buffers, offsets, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_the_block_is_the_smallest_of_all_placements(seed):
    """The lowest fit of some order of the buffers is a best placement."""
    buffers = drawn(seed, 6)
    smallest = min(top(buffers, lowest_fit(buffers, order)) for order in permutations(range(6)))
    result = pack(buffers, 60)
    assert_apart(buffers, result.offsets)
    assert top(buffers, result.offsets) == result.size == result.bound == smallest


@pytest.mark.parametrize("seed", range(3))
def test_many_buffers_are_placed_apart_and_near_the_bound(seed):
    buffers = drawn(seed, 120)
    result = pack(buffers, 1)
    assert_apart(buffers, result.offsets)
    assert result.bound <= result.size == top(buffers, result.offsets) <= 1.2 * result.bound


def test_minimallocs_example_fits_into_twelve():
    example = [Lifetime(0, 2, 4), Lifetime(3, 8, 4), Lifetime(0, 8, 4), Lifetime(9, 20, 4), Lifetime(0, 20, 4)]
    assert pack(example, 60)[1:] == (12, 12)


def test_nothing_needs_nothing_and_without_time_there_is_a_placement():
    assert pack([], 1) == ([], 0, 0)
    buffers = drawn(1, 60)
    assert_apart(buffers, pack(buffers, 0).offsets)
