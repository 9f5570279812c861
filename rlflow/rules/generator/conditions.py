"""The conditions that separate the cases in which an equality holds from those in which it does not."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from rlflow.rules.generator.attributes import Names
from rlflow.rules.generator.evaluation import gives, holds
from rlflow.rules.generator.operators import Term
from rlflow.rules.generator.pattern import labels_of

MOST_CONDITIONS = 3  # in one conjunction
ATTRIBUTES = ("group", "pads", "strides", "dilations")  # of convolutions


class Case(NamedTuple):
    """Shapes and attributes, and whether the two sides are equal there."""

    scope: dict
    holds: bool


def untried(source: tuple[Term, ...], cases: list[Case], known: tuple[str, ...]) -> tuple[str, ...]:
    """That attributes of convolutions are missing which they have in no case: what was not tried is not claimed."""
    texts = set()
    for rest in {result.get("rest").text for result in labels_of(source) if result.op == "Conv"}:
        for name in ATTRIBUTES:
            if not any(name in dict(case.scope[rest]) for case in cases):
                texts.add(f'attributes({rest}, "{name}") is None')
    return tuple(sorted(texts - set(known)))


def separating(cases: list[Case], known: Names, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The conjunction that no wrong case meets, but the original one and most true ones; None if there is none."""
    wrong = [case for case in cases if not case.holds]
    if not wrong:
        return ()
    true = [case for case in cases if case.holds]
    useful = []  # (condition, bool [true cases] that meet it, bool [wrong cases] that meet it)
    for text in _conditions(known, names):
        if holds(text, true[0].scope):
            passed = np.array([holds(text, case.scope) for case in true])
            missed = np.array([holds(text, case.scope) for case in wrong])
            if not missed.all():
                useful.append((text, passed, missed))
    best, most = None, 0.0
    for count in range(1, MOST_CONDITIONS + 1):
        for chosen in combinations(useful, count):
            texts, passed, missed = zip(*chosen, strict=True)
            if np.logical_and.reduce(missed).any():
                continue
            score = np.logical_and.reduce(passed).sum() * 0.9**count
            if score > most:
                best, most = texts, score
        if best is not None:
            return best
    return best


def _conditions(known: Names, names: tuple[str, ...]) -> Iterator[str]:
    """Simple conditions, those that are tried first before the others."""
    yield from _of_permutations(known.all("perm"))
    yield from _of_axes(known.all("axis"), known.all("sizes"), names)
    yield from _of_shapes(names)
    if known.apart == "group":
        yield "g % 2 == 0"
    for rest in known.all("rest"):
        for name in ATTRIBUTES:
            yield f'attributes({rest}, "{name}") is None'


def _of_permutations(perms: list[str]) -> Iterator[str]:
    for p in perms:
        yield f"{p}[-1] == len({p}) - 1"
        yield f"{p} == tuple(range(len({p})))"
        yield f"{p} == (1, 0)"
        yield f"{p} == (*range(len({p}) - 2), len({p}) - 1, len({p}) - 2)"
    for p, q in combinations(perms, 2):
        yield f"compose({p}, {q}) == tuple(range(len({p})))"
    for p in perms:
        yield f"compose({p}, {p}) == tuple(range(len({p})))"


def _of_axes(axes: list[str], sizes: list[str], names: tuple[str, ...]) -> Iterator[str]:
    for i, v in product(axes, names):
        yield from (f"{i} == rank({v}) - 1", f"{i} == rank({v}) - 2", f"{i} < rank({v}) - 1")
    for s, (v, u), i in product(sizes, combinations(names, 2), axes):
        yield f"value({s}) == (dim({v}, {i}), dim({u}, {i}))"
    for i, j in combinations(axes, 2):
        yield f"{i} != {j}"
    for i in axes:
        yield from (f"{i} == 1", f"{i} == 0", f"{i} < 2")  # where windows are, axes are counted from the front


def _of_shapes(names: tuple[str, ...]) -> Iterator[str]:
    for v, u in combinations(names, 2):
        yield from (f"rank({v}) == rank({u})", f"shape({v}) == shape({u})", f"shape({v})[1:] == shape({u})[1:]")
        yield from (f"broadcasts({v}, {u})", f"broadcasts({u}, {v})")
        yield from (f"rank({v}) <= rank({u})", f"rank({u}) <= rank({v})")
    for v in names:
        yield from (f"rank({v}) > 1", f"rank({v}) == 2", f"size({v}) == 1", f"prod(shape({v})[2:]) == 1")


def stricter(known: Names, origin: dict[str, tuple[int, ...]], scope: dict) -> tuple[tuple[str, ...], ...]:
    """Equal ranks; equal ranks, and the axes of the original; equal shapes."""
    first, *others = origin
    near = [v for v in others if len(origin[v]) == len(origin[first])]
    ranks = (" and ".join(f"rank({first}) == rank({v})" for v in near),) if near else ()
    axes = []
    for i in known.all("axis"):
        texts = (f"{i} == rank({first}) - 1", f"{i} == rank({first}) - 2", f"{i} == 1", f"{i} == 0")
        axes.append(next(text for text in texts if gives(text, scope, True)))
    shapes = []
    for v, u in combinations(origin, 2):
        if origin[v] == origin[u]:
            shapes.append(f"shape({v}) == shape({u})")
    return ranks, (*ranks, *axes), tuple(shapes)
