"""Test the search for addresses against an enumeration, and on instances whose lowest height is known."""

import itertools

import numpy as np
import pytest

from rlflow.tasks.placement.packing import addresses, pack, section_bound


def random_buffers(n: int, seed: int, steps: int = 8, most: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lower = rng.integers(0, steps, n)
    return lower, lower + rng.integers(1, steps, n), rng.integers(1, most, n)


def lowest_height(lower, upper, sizes) -> int:
    """Return the lowest height over all orders in which each buffer gets the lowest address above its overlapping
    predecessors."""
    best = int(sizes.sum())
    for order in itertools.permutations(range(len(sizes))):
        offsets = {}
        for i in order:
            meets = [j for j in offsets if lower[i] < upper[j] and lower[j] < upper[i]]
            offsets[i] = max((offsets[j] + sizes[j] for j in meets), default=0)
        best = min(best, max(offsets[i] + sizes[i] for i in offsets))
    return best


def is_packed(lower, upper, sizes, offsets, capacity) -> bool:
    together = (lower[:, None] < upper) & (lower < upper[:, None]) & ~np.eye(len(sizes), dtype=bool)
    apart = (offsets[:, None] + sizes[:, None] <= offsets) | (offsets + sizes <= offsets[:, None])
    return bool((offsets >= 0).all() and (offsets + sizes <= capacity).all() and (apart | ~together).all())


def cut_rectangle(pieces: int, seed: int, steps: int = 60, height: int = 1000):
    """Return buffers that fill each section: random pieces of the rectangle of all steps and addresses."""
    rng, parts = np.random.default_rng(seed), [(0, steps, 0, height)]
    while len(parts) < pieces:
        first, end, low, top = parts.pop(int(rng.integers(len(parts))))
        if rng.random() < 0.5 and end - first > 1:
            cut = int(rng.integers(first + 1, end))
            parts += [(first, cut, low, top), (cut, end, low, top)]
        elif top - low > 1:
            cut = int(rng.integers(low + 1, top))
            parts += [(first, end, low, cut), (first, end, cut, top)]
        else:
            parts.append((first, end, low, top))
    first, end, low, top = np.array(parts).T
    return first, end, top - low


@pytest.mark.parametrize("seed", range(30))
def test_the_search_is_complete(seed):
    """The search packs at the lowest height of all orders and proves that no lower height is possible."""
    buffers = random_buffers(5, seed)
    height = lowest_height(*buffers)
    offsets = pack(*buffers, height)
    assert offsets is not None and is_packed(*buffers, offsets, height)
    assert pack(*buffers, height - 1) is None and section_bound(*buffers) <= height


@pytest.mark.parametrize("seed", range(10))
def test_packed_buffers_never_overlap(seed):
    buffers = random_buffers(60, seed, steps=40, most=500)
    capacity = int(1.2 * section_bound(*buffers))
    assert is_packed(*buffers, pack(*buffers, capacity), capacity)


@pytest.mark.parametrize("pieces, seed", [*((14, seed) for seed in range(6)), (40, 17), (60, 14), (60, 18)])
def test_the_pieces_of_a_cut_rectangle_are_packed_at_its_height(pieces, seed):
    """Every section is full, so the bound equals the height and no address may stay unused. The last three cases need a
    search."""
    buffers = cut_rectangle(pieces, seed)
    assert pieces == 14 or pack(*buffers, 1000, nodes=pieces) is None
    assert section_bound(*buffers) == 1000
    assert is_packed(*buffers, pack(*buffers, 1000), 1000) and pack(*buffers, 999) is None
    stacked = np.cumsum(buffers[2]) - buffers[2]
    assert (addresses(*buffers, 10**6, stacked) + buffers[2]).max() == 1000


def test_the_example_of_minimalloc_is_packed_at_its_lowest_height():
    lower, upper, sizes = np.array([[0, 3, 4], [3, 9, 4], [0, 9, 4], [9, 21, 4], [0, 21, 4]]).T
    assert is_packed(lower, upper, sizes, pack(lower, upper, sizes, 12), 12)
    assert pack(lower, upper, sizes, 11) is None


def test_the_section_bound_can_be_below_every_packing():
    """Every section has at most 4 units, but the seven buffers need 5."""
    buffers = np.array([[0, 3, 2], [4, 6, 2], [3, 5, 1], [5, 6, 2], [2, 5, 1], [0, 1, 2], [2, 4, 1]]).T
    stacked = np.cumsum(buffers[2]) - buffers[2]
    assert section_bound(*buffers) == 4 and pack(*buffers, 4) is None
    assert (addresses(*buffers, 5, stacked) + buffers[2]).max() == 5
    assert (addresses(*buffers, 4, stacked) == stacked).all()


def test_a_packing_search_gives_up_at_its_node_limit():
    buffers = cut_rectangle(40, 1)
    assert pack(*buffers, 1000, nodes=5) is None
    assert (pack(*buffers, 1000, nodes=50_000) == pack(*buffers, 1000, nodes=50_000)).all()


def test_an_empty_set_of_buffers_has_no_addresses():
    nothing = np.zeros(0, np.int64)
    assert section_bound(nothing, nothing, nothing) == 0 and len(pack(nothing, nothing, nothing, 0)) == 0
