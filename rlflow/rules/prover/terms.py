"""z3's integer terms taken apart: sums of products, and what occurs in them."""

import z3

MAX_CLAIM = 40  # terms of a condition that splits a case


def monomials(term) -> list[tuple]:
    """A linear term as (coefficient, unknowns that are multiplied) pairs."""
    if z3.is_int_value(term):
        return [(term.as_long(), ())]
    if z3.is_add(term):
        return [pair for child in term.children() for pair in monomials(child)]
    if z3.is_mul(term) and z3.is_int_value(term.arg(0)):
        return [(term.arg(0).as_long() * c, factors) for c, factors in monomials(term.arg(1))]
    if z3.is_app(term) and term.decl().name() == "product":
        return [(1, tuple(f for child in term.children() for _, fs in monomials(child) for f in fs))]
    return [(1, (term,))]


def sorting_key(term) -> tuple:
    """Where a factor stands in a product: by its text, so that the name of a bound index does not matter."""
    return (0, term.sexpr(), 0) if len(subterms(term)) <= MAX_CLAIM else (1, term.decl().name(), term.hash())


def without_factors(factors: tuple, divisor: tuple) -> tuple | None:
    """The factors that are left when those of the divisor are gone; None if one is missing."""
    left = list(factors)
    for wanted in divisor:
        position = next((k for k, factor in enumerate(left) if factor.eq(wanted)), None)
        if position is None:
            return None
        del left[position]
    return tuple(left)


def subterms(term) -> list:
    """The different terms that it is made of; a large one may hold the same many times."""
    seen, waiting = {}, [term]
    while waiting:
        one = waiting.pop()
        if one.get_id() not in seen:
            seen[one.get_id()] = one
            waiting += one.children()
    return list(seen.values())


def mentions(term, variable) -> bool:
    if isinstance(term, int | bool):
        return False
    wanted = variable.get_id()
    return any(one.get_id() == wanted for one in subterms(term))
