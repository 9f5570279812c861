"""A random descent by chains of neighbouring moves, on any objects with moves and a cost (`Form`).

A valley is a sequence of moves that first raises the cost and then lowers it below the first cost. The moves that cross
a valley are mostly near each other. Chains of such moves therefore cross valleys that a beam over all moves misses (see
`rlflow.search.beam`). A `Form` need not be a state of a task. It can leave out details that are added at the end, such
as the `let`s of an expression (`rlflow.tasks.expressions.sharing`); many valleys are shallower without these details.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

LEVELS = ((1, 1), (4, 3), (8, 6))  # (width, length) of the chains, the levels that take the least time first
# Probability that the first level takes no single move although one lowers the cost. The second level then takes one.
PASSED_OVER = 0.3


class Form(Protocol):
    """An immutable object to be improved, such as an expression without `let`s.

    Attributes:
      key: a value that is equal exactly for forms that count as the same.
      cost: the cost to lower.
    """

    key: int
    cost: int

    def moves(self, near: object = None) -> "Iterator[Move]":
        """Yield the moves from this form; with `near`, only the moves near this place (`Move.place`)."""


class Move(NamedTuple):
    """A change of a form.

    Attributes:
      form: the form after the move.
      place: the place of the change in `form`, an argument of `Form.moves`.
      step: a description from which the caller can repeat the move.
    """

    form: Form
    place: object
    step: object


def descend(form: Form, rng: np.random.Generator, noise: float, count: Callable[[], None]) -> list[Move]:
    """Descend until no chain of any level of LEVELS leads to a lower cost, and return the moves.

    Each step takes a random single move that lowers the cost. Without such a move, it takes the first chain found that
    lowers the cost.

    Args:
      form: the form at which the descent begins.
      rng: the source of the random choices.
      noise: the first moves of chains are tried in the order of the cost after the move plus a random number from 0 to
        `noise`, in the unit of the cost.
      count: called for each move that is tried; it may raise an exception that ends the descent.
    """
    moves: list[Move] = []
    level = 0
    while level < len(LEVELS):
        width, length = LEVELS[level]
        firsts = []
        for move in form.moves():
            count()
            firsts.append(move)
        lower = [move for move in firsts if move.form.cost < form.cost]
        chain = None
        if lower and (length > 1 or rng.random() >= PASSED_OVER):
            chain = [lower[rng.integers(len(lower))]]
        elif length > 1:
            order = np.argsort([move.form.cost + noise * rng.random() for move in firsts], kind="stable")
            chain = _first_lower(form, [firsts[place] for place in order], width, length, count)
        if chain is None:
            level += 1
        else:
            moves += chain
            form, level = chain[-1].form, 0
    return moves


def _first_lower(
    form: Form, firsts: list[Move], width: int, length: int, count: Callable[[], None]
) -> list[Move] | None:
    """Return the first chain of at least two moves found that leads to a lower cost, or None.

    Args:
      form: the form at which the chains begin.
      firsts: the first moves of the chains, in the order in which they are tried.
      width: number of chains that are kept of each length.
      length: largest number of moves of a chain.
      count: see `descend`.
    """
    seen = {form.key}
    for first in firsts:
        if first.form.key in seen:
            continue
        seen.add(first.form.key)
        chains = [[first]]
        for _ in range(length - 1):
            longer = []
            for chain in chains:
                for move in chain[-1].form.moves(chain[-1].place):
                    count()
                    if move.form.key in seen:
                        continue
                    seen.add(move.form.key)
                    longer.append([*chain, move])
                    if move.form.cost < form.cost:
                        return longer[-1]
            chains = sorted(longer, key=lambda chain: chain[-1].form.cost)[:width]
    return None
