"""Sizes that nobody named: where a model was optimised for every size, equality is looked at where nobody looked.

What is right at the typical size alone has baked a size in, or takes one symbol for another. Five more show that: 1,
primes that differ from symbol to symbol, twice the typical size, a batch above 1, and the smallest above 1 that the
original runs at. It says itself where that is: each of the five is a ladder of sizes, the first of which at which it
runs is taken. Images may have to be whole blocks of pixels, and symbols may have to be equal, or in proportion to each
other, which no file says; so ladders try whole blocks, the same for symbols alike, and parts of the typical size.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rlflow.common.errors import RLFlowError

Sizes = Mapping[str, int]  # symbol → size
Ladder = Sequence[dict[str, int]]
Result = TypeVar("Result")

FIVE = 5  # sizes beside the named ones
BLOCK = 32  # pixels that the deepest features of image models are apart
PRIMES = (5, 13, 7, 11, 17, 19)
FEW = (3, 5, 2)  # blocks
BATCH = 3
SMALL = (2, 4, 8, 16, 32, 64)
PATIENCE = 30.0  # seconds for the five, at least; and as long as the named sizes took


class Elsewhere(NamedTuple):
    """One size that nobody named.

    Attributes:
      result: what the original gave; None where it was not run.
      why_not: why it was not.
    """

    sizes: dict[str, int]
    result: object
    why_not: str | None = None


class Others(NamedTuple):
    """Where to look beside the named sizes.

    Attributes:
      ladders: as `ladders` gives them.
      named: the sizes that are looked at anyway.
      draw: the inputs of a size; RLFlowError where a run at it would take too much memory.
    """

    ladders: Sequence[Ladder]
    named: Sequence[Sizes]
    draw: Callable[[dict[str, int]], object]


def ladders(least: Sizes, typical: Sizes) -> Iterator[Ladder]:
    """The sizes to try, of each ladder the first that the original runs at.

    Args:
      least: symbol → the least size that it may have.
      typical: symbol → the size that was named.
    """
    batch = [name for name, size in typical.items() if size == 1]
    rest = [name for name in typical if name not in batch] or batch

    def of(size: Callable[[int], int], names: Sequence[str] = tuple(typical)) -> dict[str, int]:
        """Sizes that follow from the typical ones, so that symbols alike in these stay alike."""
        return dict(typical) | {name: max(least[name], size(typical[name])) for name in names}

    def blocks(sizes: Sizes) -> dict[str, int]:
        """The next whole blocks of pixels, where the typical size is some."""
        return {name: size if typical[name] % BLOCK else -(-size // BLOCK) * BLOCK for name, size in sizes.items()}

    def primes(first: int) -> Ladder:
        """Others for every symbol, the same for symbols alike, and so for whole blocks."""
        drawn = {name: PRIMES[(first + k) % len(PRIMES)] for k, name in enumerate(typical)}
        alike = {size: drawn[name] for name, size in typical.items()}
        whole = {name: BLOCK * FEW[(first + k) % len(FEW)] for k, name in enumerate(typical)}
        images = [name for name, size in typical.items() if size % BLOCK == 0]
        square = {name: BLOCK * FEW[first % len(FEW)] for name in images}
        return (
            drawn, of(alike.__getitem__), dict(typical) | {name: whole[name] for name in images}, dict(typical) | square
        )  # fmt: skip

    def part(divisor: int) -> Ladder:
        sizes = of(lambda size: max(1, size // divisor))
        return sizes, blocks(sizes)

    yield dict(least), of(lambda size: 1)
    yield primes(0)
    large = of(lambda size: 2 * size, rest)
    yield large, blocks(large)
    yield (of(lambda size: BATCH, batch),)
    yield tuple(of(lambda size, small=small: small, rest) for small in SMALL)
    yield from (part(2), part(4), primes(2), primes(4))


def elsewhere(
    ladders: Iterable[Ladder], named: Sequence[Sizes], run: Callable[[dict[str, int]], Result], seconds: float
) -> Iterator[Elsewhere]:
    """Up to FIVE sizes at which the original runs, and those between at which it does not.

    Args:
      named: sizes that are looked at anyway.
      run: runs the original at the sizes; RLFlowError where it cannot be.
      seconds: after so many no other size is begun.
    """
    began, known, count = time.monotonic(), [dict(sizes) for sizes in named], 0
    for ladder in ladders:
        if count == FIVE:
            return
        refused = None
        for sizes in ladder:
            if sizes in known:
                continue
            known.append(sizes)
            if time.monotonic() - began > seconds:
                refused = Elsewhere(sizes, None, "the time for it was up")
                break
            try:
                yield Elsewhere(sizes, run(sizes))
            except RLFlowError as error:
                refused = refused or Elsewhere(sizes, None, str(error))
                continue
            refused, count = None, count + 1
            break
        if refused is not None:
            yield refused
