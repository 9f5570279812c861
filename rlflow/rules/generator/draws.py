"""Shapes and attributes, drawn at random, that the side to match takes."""

import zlib
from collections.abc import Iterator

import numpy as np

from rlflow.rules.generator.attributes import APART, Names
from rlflow.rules.generator.evaluation import values_of
from rlflow.rules.generator.operators import Label, Misfit, Term, operators, variables

DRAWS = 1500  # tries to find shapes and attributes that the side to match takes
ENOUGH = 250  # of them that it did take
SAMPLES = 2  # of values for each variable


def draws(source: tuple[Term, ...], known: Names, origin: dict[str, tuple[int, ...]]) -> Iterator[tuple]:
    """(names → what they stand for, values of the source): first the original shapes, then others, at random.

    Tensors are int64 [SAMPLES, *shape]; the seed is made of the source's text.
    """
    rng = np.random.default_rng(zlib.crc32(repr(source).encode()))
    result = 0
    windows = {name: value for (kind, value), name in known.of.items() if kind == "rest"}
    first = {name: value for (kind, value), name in known.of.items() if kind in ("axis", "perm")}
    first |= {name: rest_of(value) for name, value in windows.items()}
    for draw in range(DRAWS):
        scope = dict(first) if draw == 0 else _attributes(rng, known)
        shapes = origin if draw == 0 else _shapes(rng, origin)
        if draw and windows:
            for name, value in windows.items():
                scope[name] = _rest_near(rng, value)
            if rng.random() < 0.6:  # a convolution has few axes of use
                scope |= {name: first[name] for name in known.all("axis")}
        if known.apart:
            apart, rest = APART[known.apart], known.all("rest")[0]
            scope[apart.name] = dict(scope[rest]).get(known.apart, apart.default)
        shapes = _fitting_groups(shapes, source, scope, first)
        arrays = {v: rng.integers(-9, 10, (SAMPLES, *shape)) for v, shape in shapes.items()}
        for sizes in _sizes(rng, source, scope, arrays, known):
            filled = scope | sizes
            try:
                values = values_of(source, filled | arrays)
            except (Misfit, IndexError):
                continue
            yield filled | arrays, tuple(values)
            result += 1
        if result >= ENOUGH:
            return


def _attributes(rng: np.random.Generator, known: Names) -> dict:
    """Axes and permutations for tensors of one rank."""
    rank = int(rng.integers(1, 5))
    scope: dict = {}
    for name in known.all("axis"):
        scope[name] = int(rng.integers(rank))
    for name in known.all("perm"):
        scope[name] = tuple(rng.permutation(rank).tolist())
    return scope


def _shapes(rng: np.random.Generator, origin: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes that often fit each other: one shape with a few sizes changed and leading axes dropped."""
    common = max(map(len, origin.values())) > 2
    few = rng.random() < 0.3  # axes that broadcast
    rank = int(rng.integers(1, 5))
    base = [int(rng.integers(1, 4))] * rank if rng.random() < 0.5 else [int(n) for n in rng.integers(1, 4, rank)]
    result = {}
    for v, shape in origin.items():
        if common and rng.random() < 0.8:  # a convolution takes few shapes: stay near those of the candidate
            result[v] = tuple(int(n if rng.random() < 0.8 else rng.integers(1, 5)) for n in shape)
            continue
        sizes = [n if rng.random() < 0.85 else int(rng.integers(1, 4)) for n in base]
        dropped = int(rng.integers(0, rank + 1)) if rng.random() < (0.5 if few else 0.2) else 0
        result[v] = tuple(sizes[dropped:])
    if few:
        for v, shape in result.items():
            result[v] = tuple(1 if rng.random() < 0.3 else n for n in shape)
    return result


def _fitting_groups(shapes: dict, source: tuple[Term, ...], scope: dict, first: dict) -> dict:
    """The shapes with weights that fit the number of groups that was drawn."""
    result = dict(shapes)
    for convolution, inputs in operators(*source):
        if convolution.op != "Conv":
            continue
        rest = convolution.get("rest").text
        before, after = dict(first[rest]).get("group", 1), dict(scope[rest]).get("group", 1)
        for v in variables(inputs[1]):
            if len(shapes[v]) > 2:
                result[v] = (shapes[v][0], max(1, shapes[v][1] * before // after), *shapes[v][2:])
    return result


def rest_of(result: Label) -> tuple:
    """The attributes as `**rest` binds them: those that are not at their default."""
    kernels, others = [], []
    for name, value in result.attributes:
        if name == "kernel_shape":
            kernels.append((name, value))
        elif value != 1 and (name != "pads" or any(value)):
            others.append((name, value))
    return (*others, *kernels)


def _rest_near(rng: np.random.Generator, result: Label) -> tuple:
    """Attributes of a window like the candidate's, a few of them changed."""
    pairs = dict(rest_of(result))
    if rng.random() < 0.3:
        pairs["pads"] = tuple(int(k) for k in rng.integers(0, 2, 4))
    if rng.random() < 0.3:
        pairs["strides"] = tuple(int(k) for k in rng.integers(1, 3, 2))
    if result.op == "Conv" and rng.random() < 0.15:
        pairs["dilations"] = (1, 2)
    if result.op == "Conv" and rng.random() < 0.4:
        pairs["group"] = int(rng.choice((1, 2, 4)))
    if result.op == "AveragePool" and rng.random() < 0.3:
        pairs["count_include_pad"] = 1
    if result.op != "Conv" and rng.random() < 0.3:
        pairs["kernel_shape"] = tuple(int(k) for k in rng.integers(1, 4, 2))
    return tuple((name, value) for name, value in sorted(pairs.items()) if not _is_default(name, value))


def _is_default(name: str, value) -> bool:
    if name == "pads":
        return not any(value)
    if name == "strides":
        return set(value) == {1}
    return value == 1 and name != "count_include_pad"


def _sizes(rng, source: tuple[Term, ...], scope: dict, arrays: dict, known: Names) -> list[dict]:
    """What the sizes of the Splits may be: sizes of the variables and random ones."""
    names = known.all("sizes")
    if not names:
        return [{}]
    numbers = sorted({n for array in arrays.values() for n in array.shape[1:]})
    pairs = [tuple(rng.choice(numbers or [1], 2).tolist()) for _ in range(4)]
    pairs += [(n // 2, n - n // 2) for n in numbers if n > 1]
    return [dict.fromkeys(names, pair) for pair in dict.fromkeys(pairs)]
