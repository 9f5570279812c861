"""`min`, `max`, `abs`, `all` and `any` of the rule language over sizes that are not known.

Python's own would ask for the order of every two sizes, a case each; these make one term, and one question.
"""

import builtins

from rlflow.rules.prover.unknowns import Int, Truth


def larger(a, b):
    return (a if isinstance(a, Int) else b).world.choose(a >= b, a, b)


def smaller(a, b):
    return (a if isinstance(a, Int) else b).world.choose(a <= b, a, b)


def extreme(of_two, of_many):
    def result(*values):
        items = builtins.list(values[0]) if len(values) == 1 else values
        if not builtins.any(isinstance(item, Int) for item in items):
            return of_many(items)
        first, *rest = items
        for other in rest:
            first = of_two(first, other) if isinstance(first, Int) or isinstance(other, Int) else of_many(first, other)
        return first

    return result


def absolute(value):
    return larger(value, -value) if isinstance(value, Int) else builtins.abs(value)


def every(items):
    result = True
    for item in items:
        if item is False or not (isinstance(item, Truth) or item):
            return False
        result = item & result if isinstance(item, Truth) else result
    return result


def some(items):
    result = False
    for item in items:
        if not isinstance(item, Truth) and item:
            return True
        result = item | result if isinstance(item, Truth) else result
    return result


FUNCTIONS = {
    "min": extreme(smaller, builtins.min),
    "max": extreme(larger, builtins.max),
    "abs": absolute,
    "all": every,
    "any": some,
}
