"""Rewrite sums over indices to a standard form, so that equal numbers get the same form.

Each step replaces a term by an equal term. Two facts are used: 0 ≤ v < size for every summed index v, and a term is 0
where one of its claims does not hold. The size of a summed index contains no summed index.

  flatten      replaces an index that a Reshape converts (`Reshapes.moved`) by an equal sum of products.
  split        replaces an index k < n·m by i·m + j if a Reshape converts k to two indices below n and m.
  join         merges two indices i < n and j < m that are read only as i·m + j into one index below n·m.
  start_later  starts the sum at `first` if the term contains the claim v ≥ first.
  end_earlier  ends the sum before `last` if the term contains the claim v < last.
  drop_unit    replaces an index of size 1 by 0.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import z3

from rlflow.proving.polynomials import Element, Inside, Term, atom_mentions, substituted
from rlflow.proving.unknowns import mentions, monomials, subterms, term_of

NAME = re.compile(r"place (\d+) (\d+) (\d+)")  # name of an uninterpreted function of `Reshapes.moved`


def regrouped(world, term: Term) -> Term:
    """Return an equal term, rewritten by the steps of this module until no step applies.

    Args:
      world: the algebra.
      term: the term to rewrite.
    """
    steps = (flatten, split, join, start_later, end_earlier, drop_unit)
    while (made := next((made for step in steps if (made := step(world, term)) is not None), None)) is not None:
        term = made
    return term


def rewritten(world, term: Term, pairs: list, bound: tuple) -> Term:
    """Return a term with z3 terms replaced, its products and quotients simplified, and new summed indices.

    Args:
      world: the algebra.
      term: the term.
      pairs: (old, new) pairs of z3 terms.
      bound: the (index, size) pairs of the new sum.
    """
    world.enter(bound)
    factors = tuple(worked_out(world, substituted(factor, pairs)) for factor in term.factors)
    world.leave()
    return term._replace(bound=bound, factors=factors)


def worked_out(world, factor):
    """Return a factor with the products and quotients in its indices and claim simplified again."""
    match factor:
        case Element(name, index):
            return Element(name, tuple(world.rebuilt(k) for k in index))
        case Inside(claim) if is_bound(claim):
            left = world.rebuilt(claim.arg(0))
            return Inside(left < 0 if z3.is_lt(claim) else left <= 0)
    return factor


def is_bound(claim) -> bool:
    """Return True if a z3 claim has the form d < 0 or d ≤ 0."""
    return (z3.is_lt(claim) or z3.is_le(claim)) and z3.is_int_value(claim.arg(1)) and claim.arg(1).as_long() == 0


# -- positions in row-major order --------------------------------------------------------------------


class Moved(NamedTuple):
    """A z3 term for one index of a row-major position that was converted to other sizes (`Reshapes.moved`).

    Attributes:
      term: the z3 term.
      pairs: the (size, index) pairs that give the position.
      sizes: the sizes after the conversion.
      part: the axis of the index among these sizes.
    """

    term: z3.ArithRef
    pairs: list
    sizes: list
    part: int


def moved_in(term: Term) -> list[Moved]:
    """Return the converted indices that occur in the elements and claims of a term."""
    result: dict = {}
    for factor in term.factors:
        read = factor.index if isinstance(factor, Element) else (factor.claim,) if isinstance(factor, Inside) else ()
        for one in (inner for whole in read for inner in subterms(whole)):
            named = NAME.fullmatch(one.decl().name()) if z3.is_app(one) else None
            if named:
                given, count = one.children(), 2 * int(named[1])
                pairs = list(zip(given[:count:2], given[1:count:2], strict=True))
                result[one.get_id()] = Moved(one, pairs, given[count:], int(named[3]))
    return list(result.values())


def row_major(world, pairs: list):
    """Return the row-major position that (size, index) pairs give, as a z3 term."""
    result = world.integer(0)
    for size, index in pairs:
        result = world.product(result, world.integer(size)) + world.integer(index)
    return term_of(result)


def flatten(world, term: Term) -> Term | None:
    """Replace each converted index that equals a row-major position in old axes by this position; None if unchanged."""
    replaced = []
    for one in moved_in(term):
        for pairs, parts in groups(world, one.pairs, list(range(len(one.sizes))), one.sizes):
            if parts == [one.part]:
                replaced.append((one.term, row_major(world, pairs)))
    return rewritten(world, term, replaced, term.bound) if replaced else None


def groups(world, pairs: list, parts: list[int], sizes: list) -> list[tuple]:
    """Divide a conversion into independent conversions of groups of axes, a list of (pairs, parts).

    A group ends where the sizes of the old and of the new axes up to there have equal products.

    Args:
      world: the algebra.
      pairs: (size, index) pairs of the old axes.
      parts: the positions of the new axes in `sizes`.
      sizes: the sizes of all new axes.
    """

    def product(some):
        return term_of(world.product_of_all(list(map(world.integer, some))))

    for i in range(1, len(pairs)):
        for j in range(1, len(parts)):
            if world.entails(product(size for size, _ in pairs[:i]) == product(sizes[k] for k in parts[:j])):
                return [(pairs[:i], parts[:j]), *groups(world, pairs[i:], parts[j:], sizes)]
    return [(pairs, parts)]


def split(world, term: Term) -> Term | None:
    """Replace a summed index that is converted to several sizes by one summed index per size; None if unchanged."""
    moved = moved_in(term)
    for (v, size), one in itertools.product(term.bound, moved):
        if len(one.pairs) > 1 or not one.pairs[0][1].eq(v):
            continue
        whole = term_of(world.product_of_all(list(map(world.integer, one.sizes))))
        if not world.entails(z3.And(size == whole, *(part >= 0 for part in one.sizes))):
            continue
        parts = [(part, world.fresh()) for part in one.sizes]
        same = [other for other in moved if other.term.children() == one.term.children()]
        pairs = [(other.term, parts[other.part][1]) for other in same if len(other.sizes) == len(one.sizes)]
        bound = (*(pair for pair in term.bound if not pair[0].eq(v)), *((index, part) for part, index in parts))
        return rewritten(world, rewritten(world, term, pairs, bound), [(v, row_major(world, parts))], bound)
    return None


def join(world, term: Term) -> Term | None:
    """Merge two summed indices that elements read only as outer · size + inner; None if there are no such indices."""
    for (outer, count), (inner, size) in itertools.permutations(term.bound, 2):
        if not read_as_one(term, outer, inner, size) or not world.entails(count >= 0):
            continue
        index, stride = world.fresh(), world.integer(size)
        rest = tuple(pair for pair in term.bound if not pair[0].eq(outer) and not pair[0].eq(inner))
        bound = (*rest, (index, term_of(world.product(world.integer(count), stride))))
        finer = term._replace(factors=tuple(scaled(world, factor, outer, inner, size) for factor in term.factors))
        put_in = index - term_of(world.product(world.integer(outer), stride))
        made = rewritten(world, finer, [(inner, put_in)], bound)
        if not any(atom_mentions(factor, outer) for factor in made.factors):
            return made
    return None


def read_as_one(term: Term, outer, inner, size) -> bool:
    """Return True if elements mention both indices in one index term, and always as a multiple of outer · size + inner.
    """
    read = [k for factor in term.factors if isinstance(factor, Element) for k in factor.index]
    together = [k for k in read if mentions(k, outer) and mentions(k, inner)]
    times, within = monomials(size)[0]
    for k in together:
        known = {tuple(sorted(factor.get_id() for factor in factors)): c for c, factors in monomials(k)}
        blocks = known.get(tuple(sorted(factor.get_id() for factor in (outer, *within))))
        if blocks is None or blocks != times * known.get((inner.get_id(),), 0):
            return False
    return bool(together) and len(monomials(size)) == 1


def scaled(world, factor, outer, inner, size):
    """Return an equivalent claim about outer · size + inner for a claim that bounds `outer`; else return the factor.

    For 0 ≤ inner < size, outer < n is equivalent to outer · size + inner < n · size; the same holds for ≥.

    Args:
      world: the algebra.
      factor: a factor of a term.
      outer, inner: two summed indices.
      size: the size of `inner`.
    """
    if not isinstance(factor, Inside) or not is_bound(factor.claim) or mentions(factor.claim, inner):
        return factor
    difference = factor.claim.arg(0) + (1 if z3.is_lt(factor.claim) else 0)  # ≤ 0
    slope = slope_of(difference, outer)
    if slope is None:
        return factor
    times = term_of(world.product(world.integer(difference), world.integer(size)))
    return Inside((times - inner if slope == -1 else times + inner - size + 1) <= 0)


def slope_of(difference, variable) -> int | None:
    """Return 1 if a z3 term is `variable` plus terms without it, -1 if it is -`variable` plus such terms; else None."""
    slopes = []
    for coefficient, factors in monomials(z3.simplify(difference, som=True)):
        if any(mentions(factor, variable) for factor in factors):
            slopes.append(coefficient if len(factors) == 1 and factors[0].eq(variable) else 0)
    return slopes[0] if slopes in ([1], [-1]) else None


# -- ranges ------------------------------------------------------------------------------------------


def limits(term: Term, sign: int) -> Iterator[tuple]:
    """Yield (index, size, limit, claim) for each claim of a term that bounds a summed index.

    Args:
      term: the term.
      sign: -1 for claims of the form index ≥ limit, 1 for claims of the form index < limit.
    """
    for factor in term.factors:
        if isinstance(factor, Inside) and is_bound(factor.claim):
            strict = z3.is_lt(factor.claim) == (sign == 1)  # d < 0 gives an end, d ≤ 0 gives a start
            difference = factor.claim.arg(0) - (0 if strict else sign)
            for v, size in term.bound:
                limit = z3.simplify(v - sign * difference, som=True)
                if slope_of(difference, v) == sign and not any(mentions(limit, other) for other, _ in term.bound):
                    yield v, size, limit, factor


def start_later(world, term: Term) -> Term | None:
    """Start a sum at the limit of a claim index ≥ limit, and drop the claim; None if there is no such claim."""
    for v, size, first, claim in limits(term, -1):
        if world.entails(z3.And(first >= 0, first <= size)):
            rest = z3.simplify(size - first, som=True)
            return rewritten(world, without(term, claim), [(v, v + first)], resized(term, v, rest))
    return None


def end_earlier(world, term: Term) -> Term | None:
    """End a sum at the limit of a claim index < limit, and drop the claim; None if there is no such claim."""
    for v, size, last, claim in limits(term, 1):
        if world.entails(z3.And(last >= 0, last <= size)):
            return without(term, claim)._replace(bound=resized(term, v, last))
    return None


def drop_unit(world, term: Term) -> Term | None:
    """Replace a summed index of size 1 by 0; None if there is no such index."""
    for v, size in term.bound:
        if world.entails(size == 1):
            bound = tuple(pair for pair in term.bound if not pair[0].eq(v))
            return rewritten(world, term, [(v, z3.IntVal(0))], bound)
    return None


def without(term: Term, claim: Inside) -> Term:
    """Return the term without the given claim, which is one of its factors."""
    return term._replace(factors=tuple(factor for factor in term.factors if factor is not claim))


def resized(term: Term, variable, size) -> tuple:
    """Return the (index, size) pairs of the term's sum, with a new size for the index `variable`."""
    return tuple((v, size if v.eq(variable) else old) for v, old in term.bound)
