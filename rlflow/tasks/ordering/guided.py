"""Beams that a policy guides: each next node is as probable as the softmax of the priorities of all that are ready.

*Probable* (Topoformer's beam, Gagrani et al. 2022): kept are the sets of nodes with the most probable way there,
whatever they need; of two ways to one set the one with the lower peak stays.

*Lowered*: an order is asked for that needs at most so much (`rlflow/costs/memory/beam.py`: limit and floor), ever less
as long as one comes to light. Under such a limit no peak is better than another, and so the peak says nothing of a set;
kept are those with little live memory, less what the probability of the way is worth. Live memory alone looks no
further than one node; priorities were learnt from how whole orders end.
"""

import numpy as np

from rlflow.costs.memory.beam import Moves, States, Walker
from rlflow.costs.memory.optimum import lower_bound
from rlflow.costs.memory.problem import Problem

NAT = 0.2  # of what a node makes on average: so much live memory counts as much as a nat of probability
NEAR = 0.005  # of a peak: what is not worth another walk


def probable(problem: Problem, priorities: np.ndarray, width: int) -> np.ndarray:
    """int64 [n], the order with the lowest peak among the probable ones.

    priorities: float64 [n].  width: how many sets of a level are kept at most.
    """
    return _Probable(problem, width, priorities).run().order


def lowered(problem: Problem, priorities: np.ndarray, width: int, order: np.ndarray) -> np.ndarray:
    """int64 [n], an order that needs no more than the given one, int64 [n].

    The peak is halved in between it and a lower bound, or what no walk of this width has come below.
    """
    peak, least = problem.peak(order), lower_bound(problem)
    while peak - least > NEAR * peak:
        asked = (peak + least) // 2
        result = below(problem, priorities, width, asked)
        if result is None:
            least = asked + 1
        else:
            order, peak = result, problem.peak(result)
    return order


def below(
    problem: Problem, priorities: np.ndarray, width: int, asked: int, nat: float = NAT, deadline: float | None = None
) -> np.ndarray | None:
    """int64 [n], an order that needs no more than what is asked; None if a walk of this width comes to none.

    nat: see NAT. deadline: in seconds of time.monotonic().
    """
    return _Lowered(problem, width, priorities, asked, nat, deadline).run().order


class _Guided(Walker):
    def __init__(
        self, problem: Problem, width: int, priorities: np.ndarray, limit: int | None = None,
        deadline: float | None = None,
    ):  # fmt: skip
        super().__init__(problem, width, limit, limit or 0, deadline)
        self.priorities, self.log_p = priorities, np.zeros(1)  # log_p: float64 [K], of the ways to the level's states

    def after(self, moves: Moves) -> np.ndarray:
        """float64 [C]: log-probabilities of the ways that the moves end. The moves of a state stand side by side."""
        wanted, first = self.priorities[moves.node], np.flatnonzero(np.diff(moves.row, prepend=-1))
        of = np.cumsum(np.diff(moves.row, prepend=-1) > 0) - 1
        most = np.maximum.reduceat(wanted, first)
        total = np.add.reduceat(np.exp(wanted - most[of]), first)
        return self.log_p[moves.row] + wanted - (most + np.log(total))[of]


class _Probable(_Guided):
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
    def __init__(self, problem, width, priorities, limit: int, nat: float, deadline: float | None):
        super().__init__(problem, width, priorities, limit, deadline)
        self.nat = nat * float(problem.made.mean())

    def select(self, moves: Moves) -> Moves:
        """What is run at once, as a safe move, costs no probability."""
        log_p = self.after(moves)
        chosen = self.best(moves.live - self.nat * log_p, moves.key)
        self.log_p = log_p[chosen]
        return moves.take(chosen)
