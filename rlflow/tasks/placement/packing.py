"""Addresses of buffers in one memory: the complete search of MiniMalloc (Moffitt, ASPLOS 2023).

Every buffer exists during some steps and needs one range of addresses. Two buffers that exist at the same step must not
overlap. A *section* is a maximal set of buffers that exist at the same time; its sizes sum to a lower bound on the
height of every packing.

The search assigns one buffer after another to its lowest possible address, the top of the highest assigned buffer that
it overlaps in time. It cuts what cannot end well:

- *Canonical order*: buffers come in the order of (address, rank), so each packing is reached in one way.
- *Dominance*: a buffer does not begin where another buffer would fit completely below.
- *Inference*: the floor of each section and the sizes not yet assigned there have at most the capacity. The floor is
  the lowest address that one of its buffers can still get, and at least the address assigned last.
- *Decomposition*: where no unassigned buffer crosses from one section to the next, both sides are solved apart.
- No other buffer is tried in the place of a buffer that no unassigned one overlaps, because nothing can lie above it.

The rank of a buffer decides among equal addresses. Each part of a decomposition gets new ranks. The search is repeated
with each order of RANKS in turn and with a growing limit of nodes, as in the authors' program
(https://github.com/google/minimalloc). The search counts nodes, not seconds, so results are equal on all machines.

    >>> pack(np.array([0, 3, 0, 9, 0]), np.array([3, 9, 9, 21, 21]), np.array([4, 4, 4, 4, 4]), 12).tolist()
    [8, 8, 4, 4, 0]
"""

from typing import NamedTuple

import numpy as np

from rlflow.tasks.placement.simulators import compiled

NODES = 2_000_000  # largest number of nodes of a search
FEW_NODES = 5_000  # largest number of nodes of a search of `addresses`, where most lifetimes are short
FOUND, IMPOSSIBLE, STOPPED = 0, 1, 2
# Keys of ranks: the number of steps of a buffer; steps · bytes; and the bytes of all buffers without an address in the
# section of the buffer where these bytes are most.
WIDTH, AREA, TOTAL = range(3)
RANKS = ((WIDTH, AREA, TOTAL), (TOTAL, AREA, WIDTH), (TOTAL, WIDTH, AREA))  # buffers with larger keys come first
FAR = np.iinfo(np.int64).max
# Columns of a frame of the search, and values of its STAGE.
DEPTH, MEMBERS, COUNT, FIRST, END, LEAST, POSITION, USED, STAGE, CURSOR, TRIED, IS_TOPMOST = range(12)
FIELDS = 12
ENTERED, PARTS, BUFFERS = range(3)


class _Buffers(NamedTuple):
    """The buffers of a search, and its stacks. Row d of a stack is the state after d assignments.

    Attributes:
      sizes: int64 [n], bytes.
      begins, ends: int64 [n], the sections of buffer i are begins[i] … ends[i] − 1.
      starts, inside: buffers of section s: inside[starts[s] : starts[s + 1]].
      others_from, others: buffers that exist together with buffer i: others[others_from[i] : others_from[i + 1]].
      keys: int64 [3, n], the keys of the ranks. The search writes TOTAL.
      order: int64 [3], the element of RANKS.
      capacity: bytes.
      offsets: int64 [n], the result; the last address that was assigned to each buffer.
      nodes: int64 [1], the nodes that are left.
      is_free: bool [n], True for buffers without an address.
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
    keys: np.ndarray
    order: np.ndarray
    capacity: int
    offsets: np.ndarray
    nodes: np.ndarray
    is_free: np.ndarray
    lowest: np.ndarray
    floor: np.ndarray
    total: np.ndarray
    cuts: np.ndarray


def sections(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return one step of each section, ascending, int64 [s]: the buffers that exist at these steps are the sections.

    Args:
      lower, upper: int64 [n], buffer i exists at the steps lower[i] … upper[i] − 1.
    """
    begun = np.unique(lower)
    # The set of a step is part of the next step's set if no buffer ends between.
    before, after = (np.searchsorted(np.sort(upper), steps, "right") for steps in (begun, np.append(begun[1:], FAR)))
    return begun[before < after]


def section_bound(lower: np.ndarray, upper: np.ndarray, sizes: np.ndarray) -> int:
    """Return the largest total size in bytes of buffers that exist at the same step, a lower bound on every height.

    The arguments are as in `pack`.
    """
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
    if section_bound(lower, upper, sizes) > capacity:
        return None
    steps = sections(lower, upper)
    begins, ends = np.searchsorted(steps, lower), np.searchsorted(steps, upper)
    always = (begins == 0) & (ends == len(steps))
    if always.any():  # Buffers that exist in all sections lie at the bottom, which costs the others nothing.
        stacked, offsets = sizes[always].cumsum(), np.zeros(len(sizes), np.int64)
        offsets[always] = stacked - sizes[always]
        others = pack(lower[~always], upper[~always], sizes[~always], capacity - int(stacked[-1]), nodes)
        if others is None:
            return None
        offsets[~always] = others + stacked[-1]
        return offsets
    n = len(sizes)
    numbers = np.arange(len(steps))[:, None]
    alive = (begins <= numbers) & (numbers < ends)  # [s, n]
    together = (alive.T.astype(np.int64) @ alive > 0) & ~np.eye(n, dtype=bool)
    of_sections = n + 1, len(steps)
    state = _Buffers(
        sizes.astype(np.int64), begins, ends, _starts(alive), np.nonzero(alive)[1], _starts(together),
        np.nonzero(together)[1], np.stack([upper - lower, (upper - lower) * sizes, np.zeros(n, np.int64)]),
        np.zeros(3, np.int64), capacity, np.zeros(n, np.int64), np.zeros(1, np.int64), np.ones(n, bool),
        np.zeros((n + 1, n), np.int64), *(np.zeros(of_sections, np.int64) for _ in range(3)),
    )  # fmt: skip
    state.total[0] = alive @ sizes
    state.cuts[0, :-1] = (alive[:-1] & alive[1:]).sum(axis=1)
    allowed, everything = 2 * n + 1, np.arange(n)
    while nodes > 0:
        for order in RANKS:
            state.order[:] = order
            state.nodes[0] = granted = min(allowed, nodes)
            state.is_free[:] = True
            result = _search(state, everything)
            nodes -= granted - max(int(state.nodes[0]), 0)
            if result != STOPPED:
                return state.offsets if result == FOUND else None
            if nodes <= 0:
                break
        allowed *= 2
    return None


def addresses(lower: np.ndarray, upper: np.ndarray, sizes: np.ndarray, capacity: int, known: np.ndarray) -> np.ndarray:
    """Search for addresses whose highest end is `section_bound`, or else at most the capacity.

    No search is made for a height that the known addresses already have.

    Args:
      lower, upper, sizes, capacity: as in `pack`.
      known: int64 [n], addresses of the same buffers; they may end above the capacity.

    Returns:
      int64 [n], the address of each buffer; `known` if no search finds better addresses.
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
def _ranked(b, depth, members):
    """Return the free buffers of `members`, sorted by rank."""
    ranked, count = np.empty(len(members), np.int64), 0
    for i in members:
        if not b.is_free[i]:
            continue
        b.keys[TOTAL, i] = b.total[depth, b.begins[i] : b.ends[i]].max()
        k = count
        while k > 0 and _is_before(b, i, ranked[k - 1]):
            ranked[k] = ranked[k - 1]
            k -= 1
        ranked[k] = i
        count += 1
    return ranked[:count]


@compiled
def _is_before(b, i, j):
    for key in b.order:
        if b.keys[key, i] != b.keys[key, j]:
            return b.keys[key, i] > b.keys[key, j]
    return i < j


@compiled
def _search(b, everything):
    """Assign all buffers, `everything`, and return FOUND, IMPOSSIBLE or STOPPED.

    A frame stands for free buffers (without an address), sorted by rank, that exist in the sections FIRST … END − 1
    only. All of them get an address above LEAST, or LEAST itself if their position in the sorted list is at least
    POSITION. If no free buffer exists on both sides of a boundary between two of these sections, the frame solves the
    two sides one after the other. Otherwise it tries one buffer after another.
    """
    n, top, result = len(everything), 0, FOUND
    frames, lists = np.zeros((2 * n + 3, FIELDS), np.int64), np.zeros(4 * n + 1, np.int64)
    lists[:n] = _ranked(b, 0, everything)
    _push(frames, 0, 0, 0, n, 0, b.cuts.shape[1], 0, 0, n)
    while top >= 0:
        frame = frames[top]
        depth, first, end, used = frame[DEPTH], frame[FIRST], frame[END], frame[USED]
        if used + n > len(lists):
            lists = np.concatenate((lists, lists))
        members = lists[frame[MEMBERS] : frame[MEMBERS] + frame[COUNT]]
        if frame[STAGE] == ENTERED:
            frame[STAGE], frame[CURSOR], result = PARTS, first, FOUND
            if (b.cuts[depth, first : end - 1] > 0).all():
                b.nodes[0] -= 1
                if b.nodes[0] < 0:
                    result, top = STOPPED, top - 1
                    continue
                count = _tried(b, depth, members, frame[LEAST], frame[POSITION], lists[used : used + n])
                if count < 0:  # no buffer is free
                    top -= 1
                    continue
                frame[STAGE], frame[CURSOR], frame[TRIED], frame[USED] = BUFFERS, used, used + count, used + count
        elif frame[STAGE] == BUFFERS:
            b.is_free[members[lists[frame[CURSOR]]]] = True
            frame[CURSOR] += 1
            if result != IMPOSSIBLE or frame[IS_TOPMOST]:
                top -= 1
                continue
        if frame[STAGE] == PARTS:
            begin = frame[CURSOR]
            if result != FOUND or begin == end:
                top -= 1
                continue
            s = begin
            while s < end - 1 and b.cuts[depth, s] > 0:
                s += 1
            frame[CURSOR] = s + 1
            part = members[(b.begins[members] <= s) & (b.ends[members] > begin)]
            part = _ranked(b, depth, part)
            lists[used : used + len(part)] = part
            top += 1
            _push(frames, top, depth, used, len(part), begin, s + 1, frame[LEAST], 0, used + len(part))
        else:
            result, fits = IMPOSSIBLE, False
            while frame[CURSOR] < frame[TRIED] and not fits:
                position = lists[frame[CURSOR]]
                i = members[position]
                b.offsets[i] = low = b.lowest[depth, i]
                b.is_free[i] = False
                frame[IS_TOPMOST], fits = _assign(b, depth, i, low, members, first, end)
                if not fits:
                    b.is_free[i] = True
                    frame[CURSOR] = frame[TRIED] if frame[IS_TOPMOST] else frame[CURSOR] + 1
            top -= 1
            if fits:
                top += 2
                _push(
                    frames, top, depth + 1, frame[MEMBERS], frame[COUNT], first, end, low, position, frame[USED]
                )  # fmt: skip
    return result


@compiled
def _push(frames, top, depth, members, count, first, end, least, position, used):
    frame = frames[top]
    frame[DEPTH], frame[MEMBERS], frame[COUNT], frame[FIRST], frame[END] = depth, members, count, first, end
    frame[LEAST], frame[POSITION], frame[USED], frame[STAGE] = least, position, used, ENTERED


@compiled
def _tried(b, depth, members, least, position, tried):
    """Write the positions of the buffers to try, lowest address first, and return their number; −1 if none is free."""
    height, count = FAR, 0
    for i in members:
        if b.is_free[i]:
            height = min(height, b.lowest[depth, i] + b.sizes[i])
    for p in range(len(members)):
        low = b.lowest[depth, members[p]]
        if b.is_free[members[p]] and low < height and (low > least or (low == least and p >= position)):
            k = count
            while k > 0 and b.lowest[depth, members[tried[k - 1]]] > low:
                tried[k] = tried[k - 1]
                k -= 1
            tried[k] = p
            count += 1
    return -1 if height == FAR else count


@compiled
def _assign(b, depth, i, low, members, first, end):
    """Write row depth + 1 of the stacks for `members` and the sections first … end − 1: i gets the address `low`.

    Returns (whether no free buffer exists together with i, whether all these sections can still fit).
    """
    lowest, floor, total, cuts = b.lowest[depth + 1], b.floor[depth + 1], b.total[depth + 1], b.cuts[depth + 1]
    for j in members:
        lowest[j] = b.lowest[depth, j]
    for s in range(first, end):
        floor[s], total[s], cuts[s] = b.floor[depth, s], b.total[depth, s], b.cuts[depth, s]
    top = low + b.sizes[i]
    for s in range(b.begins[i], b.ends[i]):
        floor[s] = top
        total[s] -= b.sizes[i]
        if s + 1 < b.ends[i]:
            cuts[s] -= 1
    is_topmost, changed_from, changed_to = True, end, first
    for k in range(b.others_from[i], b.others_from[i + 1]):
        j = b.others[k]
        if b.is_free[j]:
            is_topmost = False
            if lowest[j] < top:
                lowest[j] = top
                changed_from, changed_to = min(changed_from, b.begins[j]), max(changed_to, b.ends[j])
    for s in range(changed_from, changed_to):
        if total[s] > 0:
            least = FAR
            for k in range(b.starts[s], b.starts[s + 1]):
                if b.is_free[b.inside[k]]:
                    least = min(least, lowest[b.inside[k]])
            floor[s] = max(floor[s], least)
    for s in range(first, end):
        if total[s] + max(low, floor[s]) > b.capacity:
            return is_topmost, False
    return is_topmost, True
