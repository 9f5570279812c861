"""Check that a regrouped sum keeps its value: both sums are computed with numbers for the sizes."""

import itertools
import random
from math import prod

import pytest
import z3

from rlflow.proving.all_shapes import Symbolic
from rlflow.proving.decisions import Budget
from rlflow.proving.polynomials import Element, Inside
from rlflow.proving.ranges import NAME, regrouped
from tests.suite import slow

SIZES = ("n", "m", "h", "q")
INDICES = ("o", "p")  # free indices of any sign
DRAWS = 12


def counted(term, numbers: dict) -> int:
    """Return the value of a sum for given sizes and free indices; elements get arbitrary fixed values."""
    total = 0
    ranges = [range(number_of(size, numbers)) for _, size in term.bound]
    for values in itertools.product(*ranges):
        here = numbers | {str(v): value for (v, _), value in zip(term.bound, values, strict=True)}
        total += prod(number_of_factor(factor, here) for factor in term.factors)
    return total * term.coefficient


def number_of_factor(factor, numbers: dict) -> int:
    match factor:
        case Element(index=index):
            return hash(tuple(number_of(k, numbers) for k in index)) % 1009
        case Inside(claim):
            left = number_of(claim.arg(0), numbers)
            return int(left < 0 if z3.is_lt(claim) else left <= 0)
    raise TypeError(factor)


def number_of(term, numbers: dict) -> int:
    """Return the value of an integer term."""
    if z3.is_int_value(term):
        return term.as_long()
    given = [number_of(child, numbers) for child in term.children()]
    name = term.decl().name()
    if z3.is_add(term):
        return sum(given)
    if z3.is_sub(term):
        return given[0] - sum(given[1:])
    if z3.is_mul(term) or name == "product":
        return prod(given)
    if name == "quotient":
        return given[0] // given[1]
    if moved := NAME.fullmatch(name):
        return under(given, *map(int, moved.groups()))
    return numbers[name]


def under(given: list[int], count: int, sizes: int, part: int) -> int:
    """Return axis `part` of a position under the last `sizes` values of `given`.

    The first 2 · `count` values are the (size, index) pairs of the position.
    """
    position = 0
    for size, index in zip(given[: 2 * count : 2], given[1 : 2 * count : 2], strict=True):
        position = position * size + index
    return position // prod(given[len(given) - sizes + part + 1 :]) % given[len(given) - sizes + part]


def cut(world, s):
    return world.total((s.n + 3,), lambda k: world.inside([(k[0] - 1, 2)], lambda: world.element("f", (k[0], s.o))))


def cut_at_a_size(world, s):
    return world.total((s.n + s.m,), lambda k: world.inside([(k[0], s.m)], lambda: world.element("f", (k[0] + s.o,))))


def from_its_end(world, s):
    def element(k):
        return world.inside([(s.n - k[0], s.n)], lambda: world.element("f", (k[0] + s.o,)))

    return world.total((s.n + s.m,), element)


def under_two_sizes(world, s):
    def element(k):
        return world.element("f", world.index(world.position((s.n * s.m,), k), (s.n, s.m)))

    return world.total((s.n * s.m,), element)


def in_blocks(world, s):
    """Sum over blocks of n; some elements of the last block, and of blocks beyond the input, do not count."""

    def element(k):
        block, within = k
        read = world.element("f", (block * s.n + within + s.o * s.n,))
        return world.inside([(block + s.o - s.p, s.q), (block * s.n + within, s.m)], lambda: read)

    return world.total((s.m // s.n + 1, s.n), element)


def counted_backwards(world, s):
    def element(k):
        block, within = k
        read = world.element("f", (block * s.n + within,))
        return world.inside([(s.p - block, s.q)], lambda: read)

    return world.total((s.h, s.n), element)


def as_channels(world, s):
    """Sum over channels in n × m blocks of h, read both by quotients and under a shape."""

    def element(k):
        block = k[0] // s.h
        shape = world.index(world.position((s.n * s.m * s.h,), k), (s.n, s.m, s.h))
        return world.element("f", (block // s.m, block, k[0] - block * s.h)) * world.element("g", shape)

    return world.total((s.n * s.m * s.h,), element)


def merged(world, s):
    """Sum over two indices that a reshape merges into one."""

    def element(k):
        (whole,) = world.index(world.position((s.h, s.n), k), (s.h * s.n,))
        return world.inside([(whole, s.h)], lambda: world.element("f", (whole,)))

    return world.total((s.h, s.n), element)


def merged_in_two(world, s):
    """Sum over four indices that a reshape merges into two."""

    def element(k):
        return world.element("f", world.index(world.position((s.h, s.n, s.q, s.m), k), (s.h * s.n, s.q * s.m)))

    return world.total((s.h, s.n, s.q, s.m), element)


class Given:
    """The symbols of a sum."""

    def __init__(self, world):
        for name in SIZES:
            setattr(self, name, world.symbol(name))
        for name in INDICES:
            setattr(self, name, world.integer(z3.Int(name)))


@pytest.mark.parametrize(
    "sum_of, indices, claims",
    [
        (cut, 1, 0),
        (cut_at_a_size, 1, 0),
        (from_its_end, 1, 0),
        (under_two_sizes, 2, 0),
        (in_blocks, 1, 2),
        (counted_backwards, 1, 2),
        (merged, 1, 0),
        *slow((as_channels, 3, 0), (merged_in_two, 2, 0)),
    ],
)
def test_a_regrouped_sum_has_the_same_value(sum_of, indices, claims):
    """`indices` and `claims` are the expected numbers after regrouping."""
    world = Symbolic((), Budget(10_000))
    (term,) = sum_of(world, Given(world)).terms
    made = regrouped(world, term)
    assert (len(made.bound), sum(isinstance(factor, Inside) for factor in made.factors)) == (indices, claims)
    chance, different = random.Random(0), set()
    for _ in range(DRAWS):
        numbers = {name: chance.randint(1, 4) for name in SIZES} | {name: chance.randint(-3, 3) for name in INDICES}
        for symbol, known in world.definitions + [(s, None) for s in world.symbols.values()]:
            if known is None and str(symbol) not in numbers:  # The symbol is a quotient of sizes.
                numbers[str(symbol)] = numbers["m"] // numbers["n"]
        assert counted(term, numbers) == counted(made, numbers)
        different.add(counted(term, numbers))
    assert len(different) >= 3


def test_a_sum_without_a_fitting_step_stays_unchanged():
    """Check that separately read indices are not joined, and that a claim is kept if its limit may lie outside the
    range.
    """
    world = Symbolic((), Budget(10_000))
    s = Given(world)
    sums = [world.total((s.h, s.n), lambda k: world.element("f", (k[0] * s.n + k[1], k[0])))]
    for moved in (s.m, s.m - s.n, -s.q):  # the limit may be below 0 or above n
        element = lambda k, moved=moved: world.inside([(k[0] + moved, s.n)], lambda: world.element("f", k))  # noqa: E731
        sums.append(world.total((s.n,), element))
    for sum_of in sums:
        (term,) = sum_of.terms
        assert regrouped(world, term) == term
