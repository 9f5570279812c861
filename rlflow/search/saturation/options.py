"""Ways to compute the classes of an e-graph, and in which order they can be used."""

from collections.abc import Iterable
from typing import NamedTuple


class Option(NamedTuple):
    """A way to compute the classes `makes` from the classes `needs`, by operator `node`, for `cost` (ps)."""

    cost: int
    makes: tuple[int, ...]
    needs: tuple[int, ...]
    node: int


def in_order(options: list[Option]) -> list[Option]:
    """The options that can be computed at all, each after others that make what it needs."""
    waiting: dict[int, list[int]] = {}
    missing = [len(set(option.needs)) for option in options]
    for position, option in enumerate(options):
        for c in set(option.needs):
            waiting.setdefault(c, []).append(position)
    ready, made, ordered = [position for position, n in enumerate(missing) if n == 0], set(), []
    for position in ready:  # grows
        ordered.append(options[position])
        for c in options[position].makes:
            if c not in made:
                made.add(c)
                for reader in waiting.get(c, ()):
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        ready.append(reader)
    return ordered


def makers_of(options: Iterable[Option]) -> dict[int, list[Option]]:
    makers: dict[int, list[Option]] = {}
    for option in options:
        for c in option.makes:
            makers.setdefault(c, []).append(option)
    return makers
