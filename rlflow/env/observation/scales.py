"""How a number is shown to networks, and how what has no column of its own is told apart."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from math import log1p

from rlflow.graph.dims import Dim, least

EXACT = 1 << 15  # integers below it are told apart in their columns; others are rounded in float32
LARGEST = 1e30
FLOAT_UNIT = 1e-6  # of the logarithmic scale: an epsilon of 1e-5 stays apart from one of 1e-6
FINGERPRINT = 8  # numbers of 4 bits each: two things that differ have the same one once in 4·10⁹ times


def shown(number) -> float:
    """A number on a logarithmic scale that keeps its sign; never 0, which stands for a number that is not there."""
    if number != number:
        return 0.5
    size = min(abs(number), LARGEST)
    size = 1.0 + log1p(size / FLOAT_UNIT if isinstance(number, float) else size)
    return -size if number < 0 else size


def is_exact(number) -> bool:
    """Whether `shown` tells it apart from all others."""
    return isinstance(number, int) and -EXACT < number < EXACT


def row_of(numbers: Iterable, width: int) -> list[float]:
    """The first so many of them, `shown`, and 0 where there are fewer."""
    row = [shown(number) for number in tuple(numbers)[:width]]
    return row + [0.0] * (width - len(row))


def exactly(value):
    """What `fingerprint` takes of a value, sizes in symbols with the least number that they can be."""
    if isinstance(value, tuple):
        return tuple([exactly(part) for part in value])
    return (value.text, least(value)) if type(value) is Dim else value


@lru_cache(maxsize=65536)
def fingerprint(unsaid: tuple) -> tuple[float, ...]:
    """FINGERPRINT numbers from −1 to 1, none of them 0, by a hash; zeros of ()."""
    if not unsaid:
        return (0.0,) * FINGERPRINT
    digest = hashlib.blake2b(repr(unsaid).encode(), digest_size=FINGERPRINT // 2).digest()
    return tuple([half / 7.5 - 1 for byte in digest for half in (byte >> 4, byte & 15)])
