"""Orders found level by level: after k nodes, the best sets of k nodes that can have run.

What memory an order still needs depends on which nodes have run, and not on their order: of two ways to the same set
the one with the lower peak is enough (state collapsing). With all sets kept that is the exact dynamic program over the
antichains of the graph; with the `width` best of each level it is a beam. Sets are compared by their peak so far, and
equal ones by the memory that is in use.

Two cuts cost nothing. A *safe move* is a node that neither raises the peak nor lets memory grow: whatever an order does
next, with that node moved to the front it needs no more, so nothing else is tried there. A *limit* drops every way
that needs more. With limit and floor at P the walk asks whether an order with a peak of P exists: all peaks up to there
count as equal, far more moves are safe, and a walk that ends early without a cut to `width` has proved that none does.
"""

import time
from typing import NamedTuple

import numpy as np

from rlflow.costs.memory.problem import Problem

ROOM = 62  # bits of a score


class Walk(NamedTuple):
    """What came of it.

    order: int64 [n], the best that was found; None if no way led to the end.
    peak: of that order, in the problem's unit; no lower than the walk's floor.
    exact: whether nothing was cut but what cannot be better: the order is the best one below the limit.
    beyond: the least peak that was dropped for the limit: with `exact` and no order, none is better than that.
    """

    order: np.ndarray | None
    peak: int
    exact: bool
    beyond: int


class States(NamedTuple):
    """Of K sets of nodes: hash, peak on the way there, memory in use; of each node, how many that come before it have
    not run (DONE for one that has itself); of each buffer, how many readers have not.
    """

    key: np.ndarray
    peak: np.ndarray
    live: np.ndarray
    waiting: np.ndarray
    unread: np.ndarray


class Moves(NamedTuple):
    """One more node, after one of the states: which state, which node; the peak and the memory in use after it."""

    row: np.ndarray
    node: np.ndarray
    peak: np.ndarray
    live: np.ndarray
    key: np.ndarray

    def take(self, chosen: np.ndarray) -> "Moves":
        return Moves(*(part[chosen] for part in self))


def walk(
    problem: Problem, width: int, limit: int | None = None, floor: int = 0, deadline: float | None = None
) -> Walk:
    """The best order that a beam finds.

    Args:
      width: how many sets of a level are kept at most.
      limit: no way that needs more is followed.
      floor: peaks up to there count as equal.
      deadline: in seconds of time.monotonic(); what is not done by then is cut.
    """
    return Walker(problem, width, limit, floor, deadline).run()


class Walker:
    """See `walk`; `select` is what another beam does otherwise."""

    def __init__(
        self, problem: Problem, width: int, limit: int | None = None, floor: int = 0, deadline: float | None = None
    ):
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
        """All of them, by state and node; without those above the limit."""
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
        """int64 [C] each, of moves: what is freed after the node, and what it writes in place."""
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
        """Where a state has safe moves, the first of them alone."""
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
        """The moves that the next level begins with."""
        return moves.take(self.best(score(moves.peak, moves.live), moves.key))

    def best(self, scores: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Indices of the lowest scores, lowest first, one for each set of nodes; of equal ones the first."""
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
        problem, lanes = self.problem, np.arange(len(moves.row))
        waiting, unread = states.waiting[moves.row], states.unread[moves.row]
        waiting[lanes, moves.node] = np.iinfo(waiting.dtype).max
        for counts, rows in ((waiting, problem.after), (unread, problem.read)):
            of, index = rows.expand(moves.node)
            counts.ravel()[of * counts.shape[1] + rows.values[index]] -= 1
        return States(moves.key, moves.peak, moves.live, waiting, unread)


def _inplace_of_reads(problem: Problem) -> np.ndarray:
    """int64 [r], along `problem.read.values`: what the node saves if it is the last reader of that buffer."""
    nodes = np.repeat(np.arange(problem.n), problem.read.counts)
    pairs = {(int(node), int(buffer)) for node, buffer in problem.inplace}
    writes = [pair in pairs for pair in zip(nodes.tolist(), problem.read.values.tolist(), strict=True)]
    return np.where(writes, problem.size[problem.read.values], 0)


def score(peak: np.ndarray, second: np.ndarray) -> np.ndarray:
    """int64 [C], less is better: the peak, then what else counts, as far as there is room for it."""
    if not len(peak):
        return peak
    peak, second = peak - peak.min(), second - second.min()
    room = ROOM - int(peak.max()).bit_length()
    return peak << room | second >> max(0, int(second.max()).bit_length() - room)
