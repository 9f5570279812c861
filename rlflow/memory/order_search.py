"""Search for the order with the lowest peak, level by level, with a proof or a bound.

`walk` builds orders node by node. At level k it keeps the best sets of k nodes that can run first. The memory that the
other nodes need depends on this set and not on the order inside it, so the lowest peak of each set suffices. If all
sets are kept, this is the exact dynamic program over the antichains of the graph. If the `width` best sets are kept, it
is a beam. Two cuts do not lose the optimum. A *safe move* is a next node that neither raises the peak nor lets the
memory in use grow; it is made at once. A *limit* drops every partial order whose peak is above the limit.

`optimum` cuts the graph into segments that every order runs one after another. For each segment it asks for an order
with a peak of at most P (limit and floor of the walk are P). If a walk that dropped nothing for its width finds no
order, this proves that P is too low. P is chosen by bisection between a lower bound and the best known order.

`probable` and `lowered` let learned priorities guide the beam: the probability of the next node is the softmax of the
priorities over the ready nodes (Topoformer, Gagrani et al. 2022).
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rlflow.memory.problem import Problem, Rows, breadth_first, depth_first

ROOM = 62  # number of bits of a score of the function `score`


class Walk(NamedTuple):
    """The result of `walk`.

    Attributes:
      order: int64 [n], the best order that was found; None if every partial order was dropped or the time was over.
      peak: the peak of the order in the problem's unit, or the walk's floor if that is higher; 0 without an order.
      exact: True if no set was dropped because of the width or the time. The order is then the best one within the
        limit.
      beyond: the lowest peak of a partial order that was dropped because of the limit. If `exact` is True and no order
        was found, every order has at least this peak.
    """

    order: np.ndarray | None
    peak: int
    exact: bool
    beyond: int


class States(NamedTuple):
    """The K sets of nodes that one level of a walk keeps. The nodes of a set have run, the other nodes have not.

    Attributes:
      key: uint64 [K], a hash of each set.
      peak: int64 [K], the lowest known peak of an order of the set's nodes, at least the walk's floor.
      live: int64 [K], the memory in use after the nodes of the set.
      waiting: uint8 or uint16 [K, n], the number of each node's predecessors outside the set; the maximum of the type
        for a node of the set.
      unread: uint8 or uint16 [K, b], the number of each buffer's readers outside the set, plus 1 for a buffer that
        exists to the end.
    """

    key: np.ndarray
    peak: np.ndarray
    live: np.ndarray
    waiting: np.ndarray
    unread: np.ndarray


class Moves(NamedTuple):
    """C steps of the search; each adds one node to one set of ordered nodes in `States`.

    Attributes:
      row: int64 [C], the index of the set in `States`.
      node: int64 [C], the added node.
      peak: int64 [C], the peak up to and including the added node.
      live: int64 [C], the memory in use after the added node.
      key: uint64 [C], the hash of the new set.
    """

    row: np.ndarray
    node: np.ndarray
    peak: np.ndarray
    live: np.ndarray
    key: np.ndarray

    def take(self, chosen: np.ndarray) -> "Moves":
        """Return the moves that `chosen` selects: int indices or bool [C]."""
        return Moves(*(part[chosen] for part in self))


def walk(
    problem: Problem, width: int, limit: int | None = None, floor: int = 0, deadline: float | None = None
) -> Walk:
    """Search for the order with the lowest peak by a beam, or exactly if no level has more than `width` sets.

    Args:
      problem: the ordering problem.
      width: the maximum number of sets per level.
      limit: the highest allowed peak; None for no limit.
      floor: peaks up to this value count as equal.
      deadline: the value of time.monotonic() at which the walk ends without an order; None for no deadline.
    """
    return Walker(problem, width, limit, floor, deadline).run()


class Walker:
    """The implementation of `walk`. Subclasses override `select` and `after_safe_moves` to keep other sets."""

    def __init__(self, problem: Problem, width: int, limit: int | None, floor: int, deadline: float | None = None):
        self.problem, self.width, self.floor, self.deadline = problem, width, floor, deadline
        self.limit = np.iinfo(np.int64).max if limit is None else limit
        self.exact, self.beyond = True, np.iinfo(np.int64).max
        self.zobrist = np.random.default_rng(0).integers(0, 1 << 63, problem.n, np.uint64)
        self.inplace = _inplace_of_reads(problem) if len(problem.inplace) else None

    def run(self) -> Walk:
        states, steps = self.start(), []
        for _ in range(self.problem.n):
            moves = self.select(self.after_safe_moves(self.moves(states), states))
            if not len(moves.row) or (self.deadline is not None and time.monotonic() > self.deadline):
                self.exact &= not len(moves.row)
                return Walk(None, 0, self.exact, int(self.beyond))
            steps.append((moves.row.astype(np.int32), moves.node.astype(np.int32)))
            states = self.apply(states, moves)
        order, row = [], 0
        for rows, nodes in reversed(steps):
            order.append(nodes[row])
            row = rows[row]
        return Walk(np.array(order[::-1], np.int64), int(states.peak[0]), self.exact, int(self.beyond))

    def start(self) -> States:
        problem = self.problem
        waiting, unread = problem.before.counts, problem.readers.counts + problem.kept
        first = np.array([self.floor], np.int64)
        kind = np.uint8 if max(waiting.max(initial=0), unread.max(initial=0)) < 255 else np.uint16
        return States(
            np.zeros(1, np.uint64), first, np.array([problem.given], np.int64), waiting.astype(kind)[None],
            unread.astype(kind)[None],
        )  # fmt: skip

    def moves(self, states: States) -> Moves:
        """Return all moves whose peak is within the limit, sorted by set and node; update `beyond` with the others."""
        problem = self.problem
        row, node = np.divmod(np.flatnonzero(states.waiting == 0), problem.n)
        freed, saved = self.ends(states, row, node)
        live = states.live[row]
        needed = live + (problem.made + problem.work)[node] - saved
        peak = np.maximum(states.peak[row], needed)
        moves = Moves(row, node, peak, live + problem.stays[node] - freed, states.key[row] ^ self.zobrist[node])
        within = peak <= self.limit
        if within.all():
            return moves
        self.beyond = min(self.beyond, int(peak[~within].min()))
        return moves.take(within)

    def ends(self, states: States, row: np.ndarray, node: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        """Return the memory that each move frees, and the memory that it saves by writing over a buffer.

        Args:
          states: the sets of the current level.
          row: int64 [C], the index of each move's set.
          node: int64 [C], the node that each move adds.

        Returns:
          (freed memory, saved memory), int64 [C] each. Freed is the total size of the buffers whose last reader is the
          node. Saved is the size of the largest of these buffers over which the node may write its result; it is the
          number 0 if `problem.inplace` is empty.
        """
        problem = self.problem
        of, index = problem.read.expand(node)
        buffer = problem.read.values[index]
        last = states.unread.ravel()[row[of] * len(problem.size) + buffer] == 1
        sums = np.zeros(len(of) + 1, np.int64)
        np.cumsum(np.where(last, problem.size[buffer], 0), out=sums[1:])
        ends = np.cumsum(problem.read.counts[node])
        freed = np.diff(sums[ends], prepend=0)
        if self.inplace is None:
            return freed, 0
        saved = np.zeros(len(node), np.int64)
        np.maximum.at(saved, of, np.where(last, self.inplace[index], 0))
        return freed, saved

    def after_safe_moves(self, moves: Moves, states: States) -> Moves:
        """Return only the first safe move of each set that has a safe move, and all moves of the other sets.

        Args:
          moves: the moves within the limit.
          states: the sets of the current level.
        """
        safe = np.flatnonzero((moves.peak <= states.peak[moves.row]) & (moves.live <= states.live[moves.row]))
        if not len(safe):
            return moves
        rows, first = np.unique(moves.row[safe], return_index=True)
        free = np.ones(len(states.key), bool)
        free[rows] = False
        keep = free[moves.row]
        keep[safe[first]] = True
        return moves.take(keep)

    def select(self, moves: Moves) -> Moves:
        """Return the moves that lead to the sets of the next level, at most `width`, lowest peak first."""
        return moves.take(self.best(score(moves.peak, moves.live), moves.key))

    def best(self, scores: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Return the indices of the `width` moves with the lowest scores, lowest first, with one move per new set.

        Args:
          scores: [C], the score of each move; of equal scores the first one comes first.
          key: uint64 [C], the hash of each move's new set.
        """
        count = len(scores)
        tried = min(count, 3 * self.width)
        while True:
            chosen = np.argpartition(scores, tried - 1)[:tried] if tried < count else np.arange(count)
            chosen.sort()
            chosen = chosen[np.argsort(scores[chosen], kind="stable")]
            _, first = np.unique(key[chosen], return_index=True)
            if len(first) >= self.width or tried == count:
                break
            tried = min(count, 2 * tried)
        self.exact &= tried == count and len(first) <= self.width
        return chosen[np.sort(first)[: self.width]]

    def apply(self, states: States, moves: Moves) -> States:
        """Return the sets of the next level: one set for each move."""
        problem, lanes = self.problem, np.arange(len(moves.row))
        waiting, unread = states.waiting[moves.row], states.unread[moves.row]
        waiting[lanes, moves.node] = np.iinfo(waiting.dtype).max
        for counts, rows in ((waiting, problem.after), (unread, problem.read)):
            of, index = rows.expand(moves.node)
            counts.ravel()[of * counts.shape[1] + rows.values[index]] -= 1
        return States(moves.key, moves.peak, moves.live, waiting, unread)


def _inplace_of_reads(problem: Problem) -> np.ndarray:
    """Return int64 [r] for the pairs of `problem.read`: the memory that the node saves as last reader of the buffer."""
    nodes = np.repeat(np.arange(problem.n), problem.read.counts)
    pairs = {(int(node), int(buffer)) for node, buffer in problem.inplace}
    writes = [pair in pairs for pair in zip(nodes.tolist(), problem.read.values.tolist(), strict=True)]
    return np.where(writes, problem.size[problem.read.values], 0)


def score(peak: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return scores that rank by peak and then by a second number, lower is better.

    Args:
      peak: int64 [C].
      second: int64 [C]; its lowest bits are dropped if they do not fit.

    Returns:
      int64 [C], the peak in the high bits and the second number in the low bits, both minus their minimum.
    """
    if not len(peak):
        return peak
    peak, second = peak - peak.min(), second - second.min()
    room = ROOM - int(peak.max()).bit_length()
    return peak << room | second >> max(0, int(second.max()).bit_length() - room)


# The walks of `optimum` keep NARROW to WIDEST sets per level, which limits their memory. WIDER is the factor from one
# width to the next.
NARROW, WIDEST, WIDER = 100, 100_000, 10
MOST_RELATED = 5000  # nodes of a problem of which all pairs (ancestor, node) are kept: several arrays of 25 MB and more


class Optimum(NamedTuple):
    """The result of `optimum` or `quick`. Peaks are in the problem's unit.

    Attributes:
      order: int64 [n], the best order that was found.
      peak: the peak of this order.
      bound: a proved lower bound on the peak of every order.
    """

    order: np.ndarray
    peak: int
    bound: int

    @property
    def proved(self) -> bool:
        """True if the lower bound equals the peak of the order, so that no order has a lower peak."""
        return self.peak == self.bound


def optimum(problem: Problem, seconds: float) -> Optimum:
    """Search for the order with the lowest peak and prove a lower bound, within a time limit.

    Args:
      problem: the ordering problem.
      seconds: the time limit in seconds of the walks of `_narrowed`; the last level of a wide walk may exceed it. The
        quick search of each segment before these walks has no time limit.
    """
    deadline, parts = time.monotonic() + seconds, segments(problem)
    known = [quick(part.problem) for part in parts]
    for k in sorted(range(len(parts)), key=lambda k: -known[k].peak):
        proved = max(one.bound for one in known)
        if known[k].peak > proved:
            known[k] = _narrowed(parts[k].problem, known[k], proved, deadline)
    order = np.concatenate([part.nodes[one.order] for part, one in zip(parts, known, strict=True)])
    return Optimum(order, max(one.peak for one in known), max(one.bound for one in known))


def quick(problem: Problem, width: int = NARROW) -> Optimum:
    """Return the best of three orders (depth first, breadth first, beam) and the bound of `lower_bound`.

    Args:
      problem: the ordering problem.
      width: the width of the beam, which is skipped if the peak of the depth-first order equals the bound.
    """
    bound, first = lower_bound(problem), depth_first(problem)
    if problem.peak(first) == bound:
        return Optimum(first, bound, bound)
    orders = [first, breadth_first(problem), walk(problem, width).order]
    peaks = problem.peaks(np.stack(orders))
    return Optimum(orders[int(peaks.argmin())], int(peaks.min()), bound)


def _narrowed(problem: Problem, known: Optimum, enough: int, deadline: float) -> Optimum:
    """Lower the peak and raise the bound of a known result by walks until both meet or the deadline passes.

    Args:
      problem: the ordering problem of one segment.
      known: the result of `quick` for this problem.
      enough: a lower bound on the peak of the whole problem; the segment's peak need not be lower.
      deadline: a value of time.monotonic().
    """
    order, peak, bound, width = known.order, known.peak, max(known.bound, enough), NARROW
    asked, first = bound, True  # Most real graphs reach the first bound.
    while bound < peak and width <= WIDEST and time.monotonic() < deadline:
        result = walk(problem, width, limit=asked, floor=asked, deadline=deadline)
        if result.order is not None:
            order, peak = result.order, problem.peak(result.order)
        elif result.exact:
            bound = min(peak, result.beyond)
        elif not first:
            width *= WIDER
        asked, first = (bound + peak) // 2, False
    return Optimum(order, max(peak, enough), min(bound, max(peak, enough)))


def lower_bound(problem: Problem) -> int:
    """Return a lower bound on the peak of every order, computed without a search.

    While a node runs, memory holds the buffers that the node reads and makes. It also holds each buffer that an
    ancestor of the node makes and that a descendant reads, or that exists to the end. The `work` of the node counts,
    too, and the largest buffer over which the node may write its result is subtracted. In a problem of more than
    MOST_RELATED nodes, only the buffers count that the node itself reads and makes.
    """
    if not problem.n:
        return 0
    (of, readers), there = (problem.reads[:, 1], problem.reads[:, 0]), np.zeros(problem.n, np.int64)
    if problem.n > MOST_RELATED:
        np.add.at(there, readers, problem.size[of])
    else:
        above = ancestors(problem)
        made = np.where(problem.maker < 0, True, above[:, problem.maker])
        wanted = np.zeros((problem.n, len(problem.size)), bool)
        np.logical_or.at(wanted.T, of, above[readers])
        wanted[readers, of] = True
        wanted |= problem.kept
        there = (made & wanted) @ problem.size
    saved = np.zeros(problem.n, np.int64)
    np.maximum.at(saved, problem.inplace[:, 0], problem.size[problem.inplace[:, 1]])
    return int((there + problem.made + problem.work - saved).max())


class Segment(NamedTuple):
    """A part of a problem whose nodes every order runs without nodes of other parts in between.

    Attributes:
      nodes: int64 [k], the segment's nodes by their numbers in the whole problem.
      problem: the segment as a problem, in which node i is `nodes[i]` of the whole problem.
    """

    nodes: np.ndarray
    problem: Problem


def segments(problem: Problem) -> list[Segment]:
    """Return the segments of a problem in the order in which they run; consecutive single nodes form one segment.

    A segment ends at each node that every other node must precede or follow, because all orders run this node at the
    same step.
    """
    order = depth_first(problem)
    place = np.argsort(order)  # of each node in this order; a node that ends a segment has the same place in all orders
    first, last = place[problem.precedence].T  # of each pair of nodes, the places of the earlier and of the later one
    soonest, latest = np.full(problem.n, problem.n), np.full(problem.n, -1)
    np.minimum.at(soonest, first, last)  # place of the first successor of the node at each place
    np.maximum.at(latest, last, first)  # place of the last predecessor
    # All earlier nodes precede the node at place p if each of them has a successor that comes no later than p.
    precede = np.append(-1, np.maximum.accumulate(soonest)[:-1]) <= np.arange(problem.n)
    follow = np.append(np.minimum.accumulate(latest[::-1])[::-1][1:], problem.n) >= np.arange(problem.n)
    ends = np.flatnonzero(precede & follow)  # place of the last node of each segment
    single = np.diff(ends, prepend=-1) == 1
    ends = ends[~(single & np.append(single[1:], False))]
    number = np.searchsorted(ends, place)
    return list(_parts(problem, number))


def ancestors(problem: Problem) -> np.ndarray:
    """Return bool [n, n]: element [v, u] is True if node u must run before node v."""
    result = np.zeros((problem.n, problem.n), bool)
    for node in depth_first(problem):
        for source in problem.before[node]:
            result[node] |= result[source]
            result[node, source] = True
    return result


def _parts(problem: Problem, number: np.ndarray) -> Iterator[Segment]:
    """Yield each segment as a problem of its own.

    A buffer of an earlier segment that is still needed exists from the beginning of the segment; a buffer that later
    segments read exists to the end.

    Args:
      problem: the whole problem.
      number: int64 [n], the number of each node's segment; each number from 0 to the highest one occurs.
    """
    count, inside = number.max(initial=-1) + 1, number[problem.edges[:, 0]] == number[problem.edges[:, 1]]
    nodes, edges = Rows.of(number, np.arange(problem.n), count), problem.edges[inside]
    edges, reads, inplace = (
        Rows.of(number[pairs[:, 0]], pairs, count) for pairs in (edges, problem.reads, problem.inplace)
    )
    maker = np.where(problem.maker < 0, -1, number[problem.maker])
    latest = maker.copy()  # last segment that makes or reads each buffer
    np.maximum.at(latest, problem.reads[:, 1], number[problem.reads[:, 0]])
    first, last = np.maximum(maker, 0), np.where(problem.kept, count - 1, latest)
    spans = np.maximum(last - first + 1, 0)  # number of segments in which each buffer exists
    within = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
    buffers = Rows.of(np.repeat(first, spans) + within, np.repeat(np.arange(len(spans)), spans), count)
    # The numbers of nodes and buffers within a segment. Each segment overwrites those of its buffers.
    renumbered, position = np.empty(problem.n, np.int64), np.empty(len(spans), np.int64)
    renumbered[nodes.values] = np.arange(problem.n) - np.repeat(nodes.starts[:-1], nodes.counts)
    for k in range(count):
        mine = buffers[k]
        position[mine] = np.arange(len(mine))

        def of(pairs: np.ndarray) -> np.ndarray:
            return np.stack([renumbered[pairs[:, 0]], position[pairs[:, 1]]], axis=1)

        made_here = maker[mine] == k
        part = Problem(
            problem.work[nodes[k]], renumbered[edges[k]], problem.size[mine],
            np.where(made_here, renumbered[problem.maker[mine]], -1), problem.kept[mine] | (latest[mine] > k),
            of(reads[k]), of(inplace[k]),
        )  # fmt: skip
        yield Segment(nodes[k], part)


# Exchange rate in the scores of `lowered`: one nat of log-probability counts as much as this share of the mean total
# size of the buffers that one node makes.
NAT = 0.2
MIN_GAIN = 0.005  # possible reduction of a peak, as a share of the peak, up to which `lowered` makes no further walk


def probable(problem: Problem, priorities: np.ndarray, width: int) -> np.ndarray:
    """Return the order, int64 [n], with the lowest peak among the orders that a beam over probable sets finds.

    The beam keeps the sets with the most probable orders. Of several orders of one set, the order with the lowest peak
    is kept.

    Args:
      problem: the ordering problem.
      priorities: float64 [n], the logit of each node.
      width: the maximum number of sets per level.
    """
    return _Probable(problem, width, priorities).run().order


def lowered(problem: Problem, priorities: np.ndarray, width: int, order: np.ndarray) -> np.ndarray:
    """Return an order, int64 [n], whose peak is at most the peak of the given order.

    A bisection between the best known peak and a lower bound chooses the target peak of each walk. If a walk does not
    reach its target, only higher targets are tried, although a wider beam might reach the target.

    Args:
      problem: the ordering problem.
      priorities: float64 [n], the logit of each node.
      width: the maximum number of sets per level.
      order: int64 [n], the order to improve.
    """
    peak, least = problem.peak(order), lower_bound(problem)
    while peak - least > MIN_GAIN * peak:
        asked = (peak + least) // 2
        result = _Lowered(problem, width, priorities, asked).run().order
        if result is None:
            least = asked + 1
        else:
            order, peak = result, problem.peak(result)
    return order


class _Guided(Walker):
    """A walker that also computes the log-probability of each partial order.

    The probability of the next node is the softmax of the priorities over the ready nodes.
    """

    def __init__(self, problem: Problem, width: int, priorities: np.ndarray, limit: int | None = None):
        super().__init__(problem, width, limit, limit or 0)
        self.priorities, self.log_p = priorities, np.zeros(1)  # log_p: float64 [K], of the level's states

    def after(self, moves: Moves) -> np.ndarray:
        """Return float64 [C]: the log-probability of the partial order after each move.

        The moves of one set must be adjacent in `moves`.
        """
        wanted, first = self.priorities[moves.node], np.flatnonzero(np.diff(moves.row, prepend=-1))
        of = np.cumsum(np.diff(moves.row, prepend=-1) > 0) - 1
        most = np.maximum.reduceat(wanted, first)
        total = np.add.reduceat(np.exp(wanted - most[of]), first)
        return self.log_p[moves.row] + wanted - (most + np.log(total))[of]


class _Probable(_Guided):
    """A guided walker that keeps the sets with the most probable orders and makes no safe moves."""

    def after_safe_moves(self, moves: Moves, states: States) -> Moves:
        return moves

    def select(self, moves: Moves) -> Moves:
        log_p = self.after(moves)
        order = np.lexsort((-log_p, moves.peak, moves.key))
        cheapest = order[np.flatnonzero(np.diff(moves.key[order], prepend=~moves.key[order[:1]]))]
        chosen = cheapest[self.best(-log_p[cheapest], moves.key[cheapest])]
        self.log_p = log_p[chosen]
        return moves.take(chosen)


class _Lowered(_Guided):
    """A guided walker that keeps the sets with the lowest memory in use minus weighted log-probability."""

    def __init__(self, problem: Problem, width: int, priorities: np.ndarray, limit: int):
        super().__init__(problem, width, priorities, limit)
        self.nat = NAT * float(problem.made.mean())

    def select(self, moves: Moves) -> Moves:
        """Return the moves that lead to the sets of the next level.

        A safe move is the only move of its set, so it does not lower the log-probability.
        """
        log_p = self.after(moves)
        chosen = self.best(moves.live - self.nat * log_p, moves.key)
        self.log_p = log_p[chosen]
        return moves.take(chosen)
