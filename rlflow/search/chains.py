"""A random descent by chains of neighbouring moves, on anything with moves and a cost.

Valleys are narrow: the moves that cross one follow each other in one place. Chains of moves near each other therefore
cross a valley that a beam over all moves misses (see `rlflow.search.beam`). Here the thing need not be a state of a
task: a form without details that cost nothing to add later makes many valleys shallow.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

LEVELS = ((1, 1), (4, 3), (8, 6))  # (width, length) of the chains, the cheap ones first
PASSED_OVER = 0.3  # share of the steps at which a single move that lowers the cost is passed over for a chain


class Form(Protocol):
    """A form of a problem.

    Attributes:
      key: a value that is equal exactly for forms that count as the same.
      cost: the cost.
    """

    key: int
    cost: int

    def moves(self, near: object = None) -> "Iterator[Move]":
        """Yield the moves from this form, or only those near a place, see `Move`."""


class Move(NamedTuple):
    """A move.

    Attributes:
      form: the form that it leads to.
      place: where it was, for `Form.moves` of the form that it leads to.
      step: what the caller needs to repeat the move.
    """

    form: Form
    place: object
    step: object


def descend(form: Form, rng: np.random.Generator, noise: float, count: Callable[[], None]) -> list[Move]:
    """Descend until no chain of LEVELS leads to a lower cost, and return the moves.

    Args:
      form: the form at which the descent begins.
      rng: the source of the random choices.
      noise: the beginnings of chains are tried in the order of their cost and a random number up to this one.
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
    """Return the first chain found that leads to a lower cost.

    Args:
      form: the form at which the chains begin.
      firsts: the moves with which they begin.
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
