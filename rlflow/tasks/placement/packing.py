"""Addresses of buffers in one memory: the complete search of MiniMalloc (Moffitt, ASPLOS 2023).

Every buffer exists during some steps and needs one range of addresses. Two buffers that exist at the same step must not
overlap. A *section* is a maximal set of buffers that exist at the same time; its sizes sum to a lower bound on the
height of every packing.

The search assigns one buffer after another to its lowest possible address, the top of the highest assigned buffer that
it overlaps in time. It cuts what cannot end well (section numbers of the paper in brackets):

- *Canonical order* (4): buffers come in the order of (address, rank), so each packing is reached in one way.
- *Dominance* (5.2): a buffer does not begin where another buffer would fit completely below.
- *Inference* (5.1): the floor of each section and the sizes not yet assigned there have at most the capacity. The
  floor is the lowest address that one of its buffers can still get, and at least the address assigned last.
- *Decomposition* (5.3): where no unassigned buffer crosses from one section to the next, both sides are solved apart.
- If no unassigned buffer overlaps a buffer that failed at its lowest address, the others need not be tried first.

Ranks decide ties. RANKS are tried in turns with more and more nodes, as in the authors' program
(https://github.com/google/minimalloc). The search counts nodes, not seconds, so results are equal everywhere.

    >>> pack(np.array([0, 3, 0, 9, 0]), np.array([3, 9, 9, 21, 21]), np.array([4, 4, 4, 4, 4]), 12).tolist()
    [8, 8, 4, 4, 0]
"""

from typing import NamedTuple

import numpy as np

from rlflow.tasks.placement.simulators import compiled

NODES = 2_000_000  # largest number of nodes of a search
FEW_NODES = 5_000  # the same for a search of `addresses`, whose lifetimes are mostly short
FOUND, IMPOSSIBLE, STOPPED = 0, 1, 2
RANKS = ("WAT", "TAW", "TWA")  # keys of the ranks, largest first: Width in steps, Area, Total size of a section
FAR = np.iinfo(np.int64).max


class _Buffers(NamedTuple):
    """The buffers of a search, and its stacks. Row d of a stack is the state after d assignments.

    Attributes:
      sizes: int64 [n], bytes.
      begins, ends: int64 [n], the sections of buffer i are begins[i] … ends[i] − 1.
      starts, inside: buffers of section s: inside[starts[s] : starts[s + 1]].
      others_from, others: buffers that exist together with buffer i: others[others_from[i] : others_from[i + 1]].
      rank: int64 [n].
      capacity: bytes.
      offsets: int64 [n], the result; the last address that was assigned to each buffer.
      nodes: int64 [1], the nodes that are left.
      is_free: bool [n + 1, n], True for buffers without an address.
      lowest: int64 [n + 1, n], the lowest possible address of each free buffer.
      floor, total: int64 [n + 1, s], the lowest possible address of a section, and the size of its free buffers.
      cuts: int64 [n + 1, s], free buffers that exist in sections s and s + 1.
    """

    sizes: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    starts: np.ndarray
    inside: np.ndarray
    others_from: np.ndarray
    others: np.ndarray
    rank: np.ndarray
    capacity: int
    offsets: np.ndarray
    nodes: np.ndarray
    is_free: np.ndarray
    lowest: np.ndarray
    floor: np.ndarray
    total: np.ndarray
    cuts: np.ndarray


def sections(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return the steps, ascending, whose buffers are all maximal sets that exist at the same time.

    Args:
      lower, upper: int64 [n], buffer i exists at the steps lower[i] … upper[i] − 1.
    """
    begun = np.unique(lower)
    # The set of a step is part of the next step's set if no buffer ends between.
    before, after = (np.searchsorted(np.sort(upper), steps, "right") for steps in (begun, np.append(begun[1:], FAR)))
    return begun[before < after]


def section_bound(lower: np.ndarray, upper: np.ndarray, sizes: np.ndarray) -> int:
    """Return the most bytes that exist at the same step: no packing is lower. Arguments are as in `pack`."""
    steps = sections(lower, upper)
    alive = (lower <= steps[:, None]) & (steps[:, None] < upper)
    return int((alive @ sizes).max(initial=0))


def pack(
    lower: np.ndarray, upper: np.ndarray, sizes: np.ndarray, capacity: int, nodes: int = NODES
) -> np.ndarray | None:
    """Return addresses, int64 [n], at which all buffers end below the capacity, or None if the search found none.

    Args:
      lower, upper: int64 [n], buffer i exists at the steps lower[i] … upper[i] − 1.
      sizes: int64 [n], bytes, above 0.
      capacity: bytes.
      nodes: the largest number of nodes of the search.
    """
    n, steps = len(sizes), sections(lower, upper)
    if section_bound(lower, upper, sizes) > capacity:
        return None
    begins, ends = np.searchsorted(steps, lower), np.searchsorted(steps, upper)
    numbers = np.arange(len(steps))[:, None]
    alive = (begins <= numbers) & (numbers < ends)  # [s, n]
    together = (alive.T.astype(np.int64) @ alive > 0) & ~np.eye(n, dtype=bool)
    total = alive @ sizes
    keys = {
        "W": upper - lower, "A": (upper - lower) * sizes,
        "T": np.where(alive, total[:, None], 0).max(axis=0, initial=0),
    }  # fmt: skip
    of_buffers, of_sections = (n + 1, n), (n + 1, len(steps))
    state = _Buffers(
        sizes.astype(np.int64), begins, ends, _starts(alive), np.nonzero(alive)[1], _starts(together),
        np.nonzero(together)[1], np.zeros(n, np.int64), capacity, np.zeros(n, np.int64), np.zeros(1, np.int64),
        np.ones(of_buffers, bool), np.zeros(of_buffers, np.int64), *(np.zeros(of_sections, np.int64) for _ in range(3)),
    )  # fmt: skip
    state.total[0] = total
    state.cuts[0, :-1] = (alive[:-1] & alive[1:]).sum(axis=1)
    allowed = 2 * n + 1
    while nodes > 0:
        for names in RANKS:
            order = np.lexsort([-keys[name] for name in reversed(names)])
            state.rank[order] = np.arange(n)
            state.nodes[0] = min(allowed, nodes)
            result = _search(state, 0, order, 0, len(steps), 0, 0)
            nodes -= min(allowed, nodes) - max(int(state.nodes[0]), 0)
            if result != STOPPED:
                return state.offsets if result == FOUND else None
            if nodes <= 0:
                break
        allowed *= 2
    return None


def addresses(lower: np.ndarray, upper: np.ndarray, sizes: np.ndarray, capacity: int, known: np.ndarray) -> np.ndarray:
    """Return addresses, int64 [n], at the section bound, else below the capacity, else the known ones.

    Args:
      lower, upper, sizes, capacity: as in `pack`.
      known: int64 [n], addresses of the same buffers; they may end above the capacity.
    """
    height, bound = int((known + sizes).max(initial=0)), section_bound(lower, upper, sizes)
    for limit in [bound] * (height > bound) + [capacity] * (height > capacity):
        offsets = pack(lower, upper, sizes, limit, FEW_NODES)
        if offsets is not None:
            return offsets
    return known


def _starts(matrix: np.ndarray) -> np.ndarray:
    return np.append(0, matrix.sum(axis=1).cumsum())


@compiled
def _search(b, depth, members, first, end, least, least_rank):
    """Assign the free buffers of `members`, sorted by rank, which exist in the sections first … end − 1 only.

    All of them get an address above `least`, or `least` and a rank of at least `least_rank`.
    """
    begin = first
    for s in range(first, end):
        if s == end - 1 and begin == first:
            break
        if s == end - 1 or b.cuts[depth, s] == 0:
            part = np.empty(len(members), np.int64)
            count = 0
            for i in members:
                if b.is_free[depth, i] and b.begins[i] <= s and b.ends[i] > begin:
                    part[count] = i
                    count += 1
            if count:
                result = _search(b, depth, part[:count], begin, s + 1, least, least_rank)
                if result != FOUND:
                    return result
            begin = s + 1
    if begin > first:
        return FOUND

    b.nodes[0] -= 1
    if b.nodes[0] < 0:
        return STOPPED
    height, count = FAR, 0
    for i in members:
        if b.is_free[depth, i]:
            height = min(height, b.lowest[depth, i] + b.sizes[i])
            count += 1
    if count == 0:
        return FOUND
    tried, count = np.empty(count, np.int64), 0
    for i in members:
        low = b.lowest[depth, i]
        if b.is_free[depth, i] and low < height and (low > least or (low == least and b.rank[i] >= least_rank)):
            k = count
            while k > 0 and b.lowest[depth, tried[k - 1]] > low:
                tried[k] = tried[k - 1]
                k -= 1
            tried[k] = i
            count += 1
    for i in tried[:count]:
        low = b.lowest[depth, i]
        b.offsets[i] = low
        is_topmost, fits = _assign(b, depth, i, low, first, end)
        if fits:
            result = _search(b, depth + 1, members, first, end, low, b.rank[i])
            if result != IMPOSSIBLE:
                return result
        if is_topmost:
            break
    return IMPOSSIBLE


@compiled
def _assign(b, depth, i, low, first, end):
    """Write row depth + 1 of the stacks: buffer i gets the address `low`.

    Returns (whether no free buffer exists together with i, whether all sections first … end − 1 can still fit).
    """
    n, sections = b.lowest.shape[1], b.floor.shape[1]
    for j in range(n):
        b.is_free[depth + 1, j] = b.is_free[depth, j]
        b.lowest[depth + 1, j] = b.lowest[depth, j]
    for s in range(sections):
        b.floor[depth + 1, s] = b.floor[depth, s]
        b.total[depth + 1, s] = b.total[depth, s]
        b.cuts[depth + 1, s] = b.cuts[depth, s]
    is_free, lowest, floor, total, cuts = (
        b.is_free[depth + 1], b.lowest[depth + 1], b.floor[depth + 1], b.total[depth + 1], b.cuts[depth + 1],
    )  # fmt: skip
    is_free[i] = False
    top = low + b.sizes[i]
    for s in range(b.begins[i], b.ends[i]):
        floor[s] = top
        total[s] -= b.sizes[i]
        if s + 1 < b.ends[i]:
            cuts[s] -= 1
    is_topmost, changed_from, changed_to = True, end, first
    for k in range(b.others_from[i], b.others_from[i + 1]):
        j = b.others[k]
        if is_free[j]:
            is_topmost = False
            if lowest[j] < top:
                lowest[j] = top
                changed_from, changed_to = min(changed_from, b.begins[j]), max(changed_to, b.ends[j])
    for s in range(changed_from, changed_to):
        if total[s]:
            least = FAR
            for k in range(b.starts[s], b.starts[s + 1]):
                j = b.inside[k]
                if is_free[j]:
                    least = min(least, lowest[j])
            floor[s] = max(floor[s], least)
    for s in range(first, end):
        if total[s] + max(low, floor[s]) > b.capacity:
            return is_topmost, False
    return is_topmost, True
