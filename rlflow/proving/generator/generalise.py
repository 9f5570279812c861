"""Generalise an equality at one set of shapes and attributes to a rule.

The source is the side to match, the target is the other side. Attributes of the source become names; attributes of the
target become simple expressions of these names. Both sides are then computed exactly for many random shapes, ranks and
attributes (`draws`). If the target has another shape, or its inputs do not fit an operator that ONNX checks, the
planner refuses the match without a condition. If the target has other values, a condition must refuse the match.
`separating_conditions` chooses the conjunction of simple conditions that refuses all unequal cases and keeps most equal
cases. Without such a conjunction there is no rule. `variants` lists the equalities that a rule implies for other axes
and permutations.
"""

import zlib
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from rlflow.proving.generator.attributes import (
    APART,
    DATA,
    WINDOWS,
    Names,
    attribute_apart,
    evaluated,
    evaluates_to,
    holds,
    name_attributes,
    targets,
    values_of,
    with_names,
)
from rlflow.proving.generator.operators import (
    Label,
    Misfit,
    Pattern,
    Term,
    labels_of,
    operators,
    rename,
    variables,
    with_labels,
)
from rlflow.proving.numbers import CHECKED
from rlflow.rules.expressions import Unknown

DRAWS = 1500  # largest number of attempts to draw shapes and attributes that fit the source
ENOUGH = 250  # number of fitting draws after which no more attempts are made
SAMPLES = 2  # number of random values of each variable


def draws(source: tuple[Term, ...], known: Names, origin: dict[str, tuple[int, ...]]) -> Iterator[tuple]:
    """Yield values of all names and of the source terms, first for the original shapes and then for random shapes.

    The seed is a checksum of the source's text.

    Args:
      source: the terms, with named attributes.
      known: the names of attribute values.
      origin: the original shape of each variable.

    Yields:
      (scope, values): the scope maps variables to int64 arrays [SAMPLES, *shape] and attribute names to values; the
      values are one array per source term.
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
            if rng.random() < 0.6:  # Few axes are useful in a convolution.
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
    """Return random values for all names of axes and permutations, for tensors of one random rank."""
    rank = int(rng.integers(1, 5))
    scope: dict = {}
    for name in known.all("axis"):
        scope[name] = int(rng.integers(rank))
    for name in known.all("perm"):
        scope[name] = tuple(rng.permutation(rank).tolist())
    return scope


def _shapes(rng: np.random.Generator, origin: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return a random shape for each variable of `origin`, such that the shapes often fit each other.

    Each shape is a common random shape, or the variable's original shape, with a few sizes changed or leading axes
    dropped.
    """
    common = max(map(len, origin.values())) > 2
    few = rng.random() < 0.3  # draw axes of size 1 that broadcast
    rank = int(rng.integers(1, 5))
    base = [int(rng.integers(1, 4))] * rank if rng.random() < 0.5 else [int(n) for n in rng.integers(1, 4, rank)]
    result = {}
    for v, shape in origin.items():
        if common and rng.random() < 0.8:  # Few shapes fit a convolution, so stay near the candidate's.
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
    """Return the shapes with the input channels of convolution weights adapted to the drawn number of groups.

    Args:
      shapes: the drawn shape of each variable.
      source: the terms, with named attributes.
      scope: the drawn attribute values, by name.
      first: the original attribute values, by name.
    """
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
    """Return the (name, value) pairs that `**rest` of a window operator binds: values that are not the default."""
    kernels, others = [], []
    for name, value in result.attributes:
        if name == "kernel_shape":
            kernels.append((name, value))
        elif value != 1 and (name != "pads" or any(value)):
            others.append((name, value))
    return (*others, *kernels)


def _rest_near(rng: np.random.Generator, result: Label) -> tuple:
    """Return the (name, value) pairs of `rest_of`, sorted by name, with a few values changed at random."""
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
    """Return True if `value` is the default of the attribute `name` of a window operator."""
    if name == "pads":
        return not any(value)
    if name == "strides":
        return set(value) == {1}
    return value == 1 and name != "count_include_pad"


def _sizes(rng, source: tuple[Term, ...], scope: dict, arrays: dict, known: Names) -> list[dict]:
    """Return up to a few assignments of part sizes to the names of Split sizes: random pairs of sizes, and halves."""
    names = known.all("sizes")
    if not names:
        return [{}]
    numbers = sorted({n for array in arrays.values() for n in array.shape[1:]})
    pairs = [tuple(rng.choice(numbers or [1], 2).tolist()) for _ in range(4)]
    pairs += [(n // 2, n - n // 2) for n in numbers if n > 1]
    return [dict.fromkeys(names, pair) for pair in dict.fromkeys(pairs)]


MOST_CONDITIONS = 3  # largest number of conditions in one conjunction
ATTRIBUTES = ("group", "pads", "strides", "dilations")  # attributes of convolutions that conditions may exclude


class Case(NamedTuple):
    """One draw of shapes and attributes, with the result of the comparison of both sides.

    Attributes:
      scope: the values of all variables and attribute names.
      holds: True if both sides have equal values.
    """

    scope: dict
    holds: bool


def untried_conditions(source: tuple[Term, ...], cases: list[Case], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the condition that an attribute is absent, for each attribute of a convolution that no case has.

    Args:
      source: the terms, with named attributes.
      cases: the cases that fulfil the rule's conditions.
      known: the conditions that the rule already has.
    """
    texts = set()
    for rest in {result.get("rest").text for result in labels_of(source) if result.op == "Conv"}:
        for name in ATTRIBUTES:
            if not any(name in dict(case.scope[rest]) for case in cases):
                texts.add(f'attributes({rest}, "{name}") is None')
    return tuple(sorted(texts - set(known)))


def separating_conditions(cases: list[Case], known: Names, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the smallest conjunction of conditions that excludes all unequal cases and keeps most equal cases.

    Args:
      cases: the cases; the first one has the original shapes and equal sides.
      known: the names of attribute values.
      names: the names of the variables.

    Returns:
      the conditions, or None if no conjunction of at most MOST_CONDITIONS excludes all unequal cases.
    """
    wrong = [case for case in cases if not case.holds]
    if not wrong:
        return ()
    true = [case for case in cases if case.holds]
    useful = []  # (condition, bool [true cases] it keeps, bool [wrong cases] it keeps)
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
    """Yield simple conditions on attribute names and variables, in the order in which they are tried."""
    yield from _permutation_conditions(known.all("perm"))
    yield from _axis_conditions(known.all("axis"), known.all("sizes"), names)
    yield from _shape_conditions(names)
    if known.apart == "group":
        yield "g % 2 == 0"
    for rest in known.all("rest"):
        for name in ATTRIBUTES:
            yield f'attributes({rest}, "{name}") is None'


def _permutation_conditions(perms: list[str]) -> Iterator[str]:
    for p in perms:
        yield f"{p}[-1] == len({p}) - 1"
        yield f"{p} == tuple(range(len({p})))"
        yield f"{p} == (1, 0)"
        yield f"{p} == (*range(len({p}) - 2), len({p}) - 1, len({p}) - 2)"
    for p, q in combinations(perms, 2):
        yield f"compose({p}, {q}) == tuple(range(len({p})))"
    for p in perms:
        yield f"compose({p}, {p}) == tuple(range(len({p})))"


def _axis_conditions(axes: list[str], sizes: list[str], names: tuple[str, ...]) -> Iterator[str]:
    for i, v in product(axes, names):
        yield from (f"{i} == rank({v}) - 1", f"{i} == rank({v}) - 2", f"{i} < rank({v}) - 1")
    for s, (v, u), i in product(sizes, combinations(names, 2), axes):
        yield f"value({s}) == (dim({v}, {i}), dim({u}, {i}))"
    for i, j in combinations(axes, 2):
        yield f"{i} != {j}"
    for i in axes:
        yield from (f"{i} == 1", f"{i} == 0", f"{i} < 2")  # Axes of images are counted from the front.


def _shape_conditions(names: tuple[str, ...]) -> Iterator[str]:
    for v, u in combinations(names, 2):
        yield from (f"rank({v}) == rank({u})", f"shape({v}) == shape({u})", f"shape({v})[1:] == shape({u})[1:]")
        yield from (f"broadcasts({v}, {u})", f"broadcasts({u}, {v})")
        yield from (f"rank({v}) <= rank({u})", f"rank({u}) <= rank({v})")
    for v in names:
        yield from (f"rank({v}) > 1", f"rank({v}) == 2", f"size({v}) == 1", f"prod(shape({v})[2:]) == 1")


def stricter(known: Names, origin: dict[str, tuple[int, ...]], scope: dict) -> tuple[tuple[str, ...], ...]:
    """Return three alternatives of further conditions: equal ranks, equal ranks and the original axes, equal shapes.

    Args:
      known: the names of attribute values.
      origin: the original shape of each variable.
      scope: the values of all variables and attribute names in the original equality.
    """
    first, *others = origin
    near = [v for v in others if len(origin[v]) == len(origin[first])]
    ranks = (" and ".join(f"rank({first}) == rank({v})" for v in near),) if near else ()
    axes = []
    for i in known.all("axis"):
        texts = (f"{i} == rank({first}) - 1", f"{i} == rank({first}) - 2", f"{i} == 1", f"{i} == 0")
        axes.append(next(text for text in texts if evaluates_to(text, scope, True)))
    shapes = []
    for v, u in combinations(origin, 2):
        if origin[v] == origin[u]:
            shapes.append(f"shape({v}) == shape({u})")
    return ranks, (*ranks, *axes), tuple(shapes)


SCREENED, PROMISING = 40, 4  # number of cases that preselect targets, and number of preselected targets


def generalise(
    source: tuple[Term, ...], target: tuple[Term, ...], shapes: dict[str, tuple[int, ...]], constants: tuple[str, ...]
) -> Pattern | None:
    """Return the rule that rewrites `source` to `target`, or None if no conditions make it true.

    Args:
      source, target: the outputs of both sides as terms with numbers as attributes; both sides have equal values for
        inputs with these shapes.
      shapes: the shape of each variable.
      constants: the variables that must be weights.
    """
    names = dict(zip(variables(*source), DATA, strict=False))
    if len(names) < len(variables(*source)):
        return None
    source, target = [rename(term, names) for term in source], [rename(term, names) for term in target]
    known = name_attributes(source)
    strange = [result for result in labels_of(target) if result.op in WINDOWS and ("rest", result) not in known.of]
    if strange:
        known = known._replace(apart=attribute_apart(strange, source))
        if known.apart is None:
            return None
    patterned = tuple(with_labels(term, lambda result: with_names(result, known)) for term in source)
    origin = {names[v]: shape for v, shape in shapes.items() if v in names}
    cases = list(draws(patterned, known, origin))
    if not cases:
        return None
    best, most = None, 0.0
    for candidate in _promising(targets(target, known, tuple(names.values()), cases[0][0]), cases):
        judged = _judge(candidate, cases)
        conditions = separating_conditions(judged, known, tuple(names.values()))
        if conditions is None:
            continue
        passed = [case for case in judged if all(holds(text, case.scope) for text in conditions)]
        conditions += untried_conditions(patterned, passed, conditions)
        kept = sum(case.holds for case in passed)
        if best is None or kept * 0.95 > most:  # A later candidate must hold in clearly more cases.
            most = kept
            weights = tuple(sorted(names[v] for v in constants))
            ranks = tuple((v, len(shape)) for v, shape in origin.items())
            best = Pattern(patterned, candidate, conditions, weights, ranks, stricter(known, origin, cases[0][0]))
    return best


def _promising(candidates: Iterator[tuple[Term, ...]], cases: list[tuple]) -> list[tuple[Term, ...]]:
    """Return the PROMISING candidates that equal the source in most of the first SCREENED cases.

    Args:
      candidates: possible targets, with expressions as attributes.
      cases: (scope, values of the source) pairs.
    """
    result = []
    for candidate in candidates:
        judged = _judge(candidate, cases[:SCREENED])
        if judged is not None:
            result.append((sum(case.holds for case in judged), candidate))
    result.sort(key=lambda pair: -pair[0])
    return [candidate for _, candidate in result[:PROMISING]]


def _judge(target: tuple[Term, ...], cases: list[tuple]) -> list[Case] | None:
    """Return the cases that the planner accepts, each with the comparison of both sides.

    The planner refuses a case if the target has other shapes or a checked operator does not take its inputs.

    Args:
      target: the outputs of the target, with expressions as attributes.
      cases: (scope, values of the source) pairs; the first pair is the original equality.

    Returns:
      the cases, or None if the sides differ in the original equality.
    """
    judged = []
    for number, (scope, values) in enumerate(cases):
        try:
            result = values_of(target, scope)
        except Misfit as misfit:
            if number and misfit.op not in CHECKED:
                judged.append(Case(scope, False))
                continue
            result = None
        except (IndexError, Unknown):
            result = None
        if result is None or any(a.shape != b.shape for a, b in zip(result, values, strict=True)):
            if number == 0:
                return None
            continue
        judged.append(Case(scope, all(np.array_equal(a, b) for a, b in zip(result, values, strict=True))))
        if not judged[0].holds:
            return None
    return judged


def variants(pattern: Pattern, labels: tuple[Label, ...]) -> Iterator[tuple[tuple[Term, ...], tuple[Term, ...]]]:
    """Yield the equalities (source, target) that a rule implies for all axes and permutations of a world.

    A rule with conditions on sizes or with window operators gives none.

    Args:
      pattern: the rule.
      labels: the operators of the world, which give the axes and permutations.
    """
    if any("shape" in text or "dim" in text or "size" in text for text in pattern.conditions):
        return
    if any(result.get("rest") is not None for result in labels_of(pattern.source)):
        return
    values: dict[str, list] = {"axis": [], "perm": []}
    for result in labels:
        for kind, known in values.items():
            if result.get(kind) is not None and result.get(kind) not in known:
                known.append(result.get(kind))
    free = {}  # name → kind
    for result in labels_of(pattern.source):
        for kind, named in result.attributes:
            if kind in values and named.text.isidentifier():
                free[named.text] = kind
    shapes = {v: np.zeros((1, *[2] * rank), np.int64) for v, rank in pattern.ranks}
    for chosen in product(*(values[kind] for kind in free.values())):
        scope = dict(zip(free, chosen, strict=True)) | shapes
        if not all(holds(text, scope) for text in pattern.conditions):
            continue
        try:
            source = tuple(_with_plain_attributes(term, scope) for term in pattern.source)
            target = tuple(_with_plain_attributes(term, scope) for term in pattern.target)
        except (Unknown, IndexError):
            continue
        if all(op[0] in labels for op in operators(*source, *target)):
            yield source, target


def _with_plain_attributes(term: Term, scope: dict) -> Term:
    """Return the term with the values of its attributes in a scope; a Split gets equal halves."""

    def fill(result: Label) -> Label:
        pairs = [(name, named) for name, named in result.attributes if name != "parts"]
        return Label(result.op, tuple((name, evaluated(named.text, scope)) for name, named in pairs))

    return with_labels(term, fill)
