"""The least memory that any order needs: an order and a proof, or an order and a bound, within a budget of seconds.

A node that stands before or after every other node cuts an order into segments: what comes before is the same set in
every order. Each segment is a problem of its own, the peak of the whole is the highest of theirs, and only the highest
need a proof.

In a segment the question is asked as "is there an order with a peak of P?" (`beam.py`: limit and floor at P), which is
far easier than to find the best: where P is too low the walk ends early, and where it is enough the first way through
will do. P is halved in between a lower bound and the best order so far; a question that needs a wider walk than allowed
is asked again with a wider one.
"""

import time
from typing import NamedTuple

import numpy as np

from rlflow.costs.memory.beam import walk
from rlflow.costs.memory.problem import Problem
from rlflow.costs.memory.sorting import breadth_first, depth_first

NARROW, WIDEST, WIDER = 100, 100_000, 10


class Optimum(NamedTuple):
    """order: int64 [n], the best that was found.  peak: what it needs.  bound: no order needs less."""

    order: np.ndarray
    peak: int
    bound: int

    @property
    def proved(self) -> bool:
        return self.peak == self.bound


def optimum(problem: Problem, seconds: float, widest: int = WIDEST) -> Optimum:
    """The best order and what is proved of it, after so many seconds at most (a step of a wide walk may be above it).

    widest: the walk's width at most; what it takes of memory grows with that.
    """
    deadline, parts = time.monotonic() + seconds, segments(problem)
    known = [quick(part.problem) for part in parts]
    for k in sorted(range(len(parts)), key=lambda k: -known[k].peak):
        proved = max(one.bound for one in known)
        if known[k].peak > proved:
            known[k] = _closed(parts[k].problem, known[k], proved, deadline, widest)
    order = np.concatenate([part.nodes[one.order] for part, one in zip(parts, known, strict=True)])
    return Optimum(order, max(one.peak for one in known), max(one.bound for one in known))


def quick(problem: Problem, width: int = NARROW) -> Optimum:
    """The best order of three, and a bound that needs no search; one order is enough where it meets the bound.

    width: of the third's walk.
    """
    bound, first = lower_bound(problem), depth_first(problem)
    if problem.peak(first) == bound:
        return Optimum(first, bound, bound)
    orders = [first, breadth_first(problem), walk(problem, width).order]
    peaks = problem.peaks(np.stack(orders))
    return Optimum(orders[int(peaks.argmin())], int(peaks.min()), bound)


def _closed(problem: Problem, known: Optimum, enough: int, deadline: float, widest: int) -> Optimum:
    """With the bound and the peak as near to each other as time allows.

    enough: a peak that need not be below, since another segment needs as much.
    """
    order, peak, bound, width = known.order, known.peak, max(known.bound, enough), NARROW
    asked, first = bound, True  # most real graphs need no more than the bound that needs no search
    while bound < peak and width <= widest and time.monotonic() < deadline:
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
    """What no order is below: while a node runs, all is there that it reads, and what must have been made before it and
    is still to be read after it.
    """
    if not problem.n:
        return 0
    above, (of, readers) = ancestors(problem), (problem.reads[:, 1], problem.reads[:, 0])
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
    """nodes: int64 [k], of the whole problem.  problem: of them alone, in that numbering."""

    nodes: np.ndarray
    problem: Problem


def segments(problem: Problem) -> list[Segment]:
    """What all orders consist of, in turn. Nodes that follow one another in every order are one segment."""
    above = ancestors(problem)
    before, after = above.sum(axis=1), above.sum(axis=0)
    ends = np.sort(before[before + after == problem.n - 1])  # so many nodes run before the last one of each segment
    single = np.diff(ends, prepend=-1) == 1
    ends = ends[~(single & np.append(single[1:], False))]
    number = np.searchsorted(ends, before)
    return [_segment(problem, number, k) for k in np.unique(number)]


def ancestors(problem: Problem) -> np.ndarray:
    """bool [n, n]: row v has those that must run before v."""
    result = np.zeros((problem.n, problem.n), bool)
    for node in depth_first(problem):
        for source in problem.before[node]:
            result[node] |= result[source]
            result[node, source] = True
    return result


def _segment(problem: Problem, number: np.ndarray, k: int) -> Segment:
    """number: int64 [n], the segment of each node; earlier ones have run, and what they left is given."""
    nodes, renumbered = np.flatnonzero(number == k), np.cumsum(number == k) - 1
    maker = np.where(problem.maker < 0, -1, number[problem.maker])
    latest = np.full(len(problem.size), -1)  # the last segment that reads a buffer
    np.maximum.at(latest, problem.reads[:, 1], number[problem.reads[:, 0]])
    buffers = (maker == k) | (maker < k) & (problem.kept | (latest >= k))
    position, inside = np.cumsum(buffers) - 1, (number[problem.edges] == k).all(axis=1)

    def of(pairs: np.ndarray) -> np.ndarray:
        mine = pairs[number[pairs[:, 0]] == k]
        return np.stack([renumbered[mine[:, 0]], position[mine[:, 1]]], axis=1)

    made_here = maker[buffers] == k
    part = Problem(
        problem.work[nodes], renumbered[problem.edges[inside]], problem.size[buffers],
        np.where(made_here, renumbered[problem.maker[buffers]], -1), (problem.kept | (latest > k))[buffers],
        of(problem.reads), of(problem.inplace),
    )  # fmt: skip
    return Segment(nodes, part)
