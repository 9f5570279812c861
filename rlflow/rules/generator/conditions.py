"""From an equality at one set of shapes and attributes to a rule: for which others does it hold, and what tells these apart?

Attributes of the side to match become names; those of the other side are looked for among a few expressions of them.
Both sides are then computed, exactly, for many shapes, ranks and attributes. Where the other side has another shape, or
does not fit an operator that ONNX checks, the engine refuses by itself. Where it has other values a condition must: of
the conjunctions of simple ones the one that lets most true cases through. What none separates is no rule.
"""

import ast
import re
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from rlflow.graph.model import Constant, TensorType
from rlflow.rules.expressions import Tensor, Unknown, compile_expression
from rlflow.rules.generator.operators import Label, Misfit, Node, Term, label, operators, outputs, variables
from rlflow.rules.prover.points import CHECKED

DRAWS = 1500  # tries to find shapes and attributes that the side to match takes
ENOUGH = 250  # of them that it did take
SCREENED, PROMISING = 40, 4  # so many cases choose so many right sides
SAMPLES = 2
MOST_CONDITIONS = 3
DEAR = frozenset(("MatMul", "Conv"))
DATA, AXES, PERMS, SIZES, REST = "xyzwu", "ijk", "pq", "st", "ab"
WINDOWS = frozenset(("Conv", "MaxPool", "AveragePool"))


class Apart(NamedTuple):
    """An attribute of convolutions that a rule may change: its name in the rule, its default, what it may become."""

    name: str
    default: int | tuple
    texts: tuple[str, ...]


APART = {
    "group": Apart("g", 1, ("2 * g", "g // 2")),
    "pads": Apart("h", (0, 0, 0, 0), ("[i + 1 for i in h]",)),
}


class Named(NamedTuple):
    """An attribute's value as text of the rule language."""

    text: str


class Pattern(NamedTuple):
    """One direction of an equality. Labels hold `Named` values; outputs correspond by their place.

    constants: variables that must be weights for the direction to pay.
    ranks: of the variables where the equality was found.
    sterner: further conditions, more and more of them, for when the rule is refuted.
    """

    source: tuple[Node, ...]
    target: tuple[Term, ...]
    conditions: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    sterner: tuple[tuple[str, ...], ...] = ()


class Case(NamedTuple):
    """Shapes and attributes, and whether the two sides are equal there."""

    scope: dict
    holds: bool


def generalise(
    source: tuple[Term, ...], target: tuple[Term, ...], shapes: dict[str, tuple[int, ...]], constants: tuple[str, ...]
) -> Pattern | None:
    """The rule from `source` to `target`, or None where no conditions make it true.

    Args:
      source, target: terms with attributes as numbers; equal at `shapes`.
      constants: the variables that are weights.
    """
    names = dict(zip(variables(*source), DATA, strict=False))
    if len(names) < len(variables(*source)):
        return None
    source, target = ([_renamed(term, names) for term in side] for side in (source, target))
    known = _name_attributes(source)
    strange = [result for result in _labels(target) if result.op in WINDOWS and ("rest", result) not in known.of]
    if strange:
        known = known._replace(apart=_apart(strange, source))
        if known.apart is None:
            return None
    patterned = tuple(_with_labels(term, lambda result: _named(result, known)) for term in source)
    origin = {names[v]: shape for v, shape in shapes.items() if v in names}
    cases = list(draws(patterned, known, origin))
    if not cases:
        return None
    best = None
    for candidate in _promising(_targets(target, known, tuple(names.values()), cases[0][0]), cases):
        judged = _judge(candidate, cases)
        conditions = _separating(judged, known, tuple(names.values()))
        if conditions is None:
            continue
        passed = [case for case in judged if all(_holds(text, case.scope) for text in conditions)]
        conditions += _untried(patterned, passed, conditions)
        kept = sum(case.holds for case in passed)
        if best is None or kept * 0.95 > best[0]:
            weights = tuple(sorted(names[v] for v in constants))
            ranks = tuple((v, len(shape)) for v, shape in origin.items())
            best = kept, Pattern(patterned, candidate, conditions, weights, ranks, _sterner(known, origin, cases[0][0]))
    return best[1] if best is not None else None


def _untried(source: tuple[Term, ...], cases: list[Case], known: tuple[str, ...]) -> tuple[str, ...]:
    """That attributes of convolutions are missing which they have in no case: what was not tried is not claimed."""
    rests = sorted({result.get("rest").text for result in _labels(source) if result.op == "Conv"})
    texts = {
        f'attributes({a}, "{name}") is None'
        for a, name in product(rests, ("group", "pads", "strides", "dilations"))
        if not any(name in dict(case.scope[a]) for case in cases)
    }
    return tuple(sorted(texts - set(known)))


def _promising(candidates: Iterator[tuple[Term, ...]], cases: list[tuple]) -> list[tuple[Term, ...]]:
    """The few right sides that are equal in most of the first cases, the earlier ones first."""
    result = []
    for candidate in candidates:
        judged = _judge(candidate, cases[:SCREENED])
        if judged is not None:
            result.append((sum(case.holds for case in judged), candidate))
    return [candidate for _, candidate in sorted(result, key=lambda pair: -pair[0])[:PROMISING]]


def _renamed(term: Term, names: dict[str, str]) -> Term:
    if isinstance(term, str):
        return names[term]
    return term._replace(inputs=tuple(_renamed(child, names) for child in term.inputs))


def paying(source: tuple[Term, ...], target: tuple[Term, ...]) -> tuple[str, ...] | None:
    """The fewest variables that must be weights so that `target` has no more operators to run; None if it never pays.

    One operator more is a stepping stone, unless it is a product. What is not under every output must be a weight.
    """
    names = variables(*source)
    if not set(variables(*target)) <= set(names):
        return None
    forced = set(names) - set.intersection(*(set(variables(root)) for root in source))
    if set(source) & {Node(*op) for op in operators(*target)}:
        return None  # the target has the source as a part
    for count in range(len(forced), min(max(3, len(forced) + 1), len(names))):
        for constants in combinations(names, count):
            if not forced <= set(constants):
                continue
            before, after = ([op for op in operators(*side) if _runs(op, constants)] for side in (source, target))
            cheap = sum(op[0].op in DEAR for op in after) <= sum(op[0].op in DEAR for op in before)
            if before and (len(after) <= len(before) or (not count and cheap and len(after) == len(before) + 1)):
                return constants
    return None


def _runs(op: tuple, constants: tuple[str, ...]) -> bool:
    return not set(variables(*op[1])) <= set(constants)


# -- attributes ------------------------------------------------------------------------------------


class Names(NamedTuple):
    """What attribute values are called: (kind, value) → name.

    apart: the attribute of convolutions that the two sides have different values of; it is named beside the others.
    """

    of: dict[tuple, str]
    apart: str | None = None

    def all(self, kind: str) -> list[str]:
        return [name for (result, _), name in self.of.items() if result == kind]


def _name_attributes(source: list[Term]) -> Names:
    """Equal values of one kind have one name; the sizes of a Split are named by its axis."""
    result: dict[tuple, str] = {}

    def name(kind: str, value, letters: str) -> None:
        if (kind, value) not in result:
            position = sum(other == kind for other, _ in result)
            result[kind, value] = letters[position] if position < len(letters) else f"{letters[0]}{position}"

    def visit(term: Term) -> None:
        if isinstance(term, str):
            return
        for child in term.inputs:
            visit(child)
        if term.label.op in WINDOWS:
            name("rest", term.label, REST)
        if term.label.get("axis") is not None:
            name("axis", term.label.get("axis"), AXES)
        if term.label.get("perm") is not None:
            name("perm", term.label.get("perm"), PERMS)
        if term.label.op == "Split":
            name("sizes", term.label.get("axis"), SIZES)

    for term in source:
        visit(term)
    return Names(result)


def _apart(strange: list[Label], source: list[Term]) -> str | None:
    """The attribute in which convolutions of the target differ from the only one of the source."""
    labels = [result for result in _labels(source) if result.op in WINDOWS]
    if len(labels) != 1 or len(strange) != 1 or strange[0].op != labels[0].op:
        return None
    differ = {name for name, _ in set(strange[0].attributes) ^ set(labels[0].attributes)}
    return differ.pop() if len(differ) == 1 and differ <= set(APART) else None


def _named(result: Label, known: Names) -> Label:
    if result.op in WINDOWS:
        apart = ((known.apart, Named(APART[known.apart].name)),) if known.apart else ()
        return Label(result.op, (*apart, ("rest", Named(known.of["rest", result]))))
    attributes = {name: Named(known.of[name, value]) for name, value in result.attributes}
    if result.op == "Split":
        attributes["parts"] = Named(known.of["sizes", result.get("axis")])
    return label(result.op, **attributes)


def _with_labels(term: Term, change) -> Term:
    if isinstance(term, str):
        return term
    return Node(change(term.label), tuple(_with_labels(child, change) for child in term.inputs), term.slot)


def _labels(terms) -> list[Label]:
    result: dict[Label, None] = {}
    for term in terms:
        if isinstance(term, Node):
            result |= dict.fromkeys([*_labels(term.inputs), term.label])
    return list(result)


def _targets(target: list[Term], known: Names, names: tuple[str, ...], origin: dict) -> Iterator[tuple[Term, ...]]:
    """The right side with every choice of expressions for its attributes that gives the original ones."""
    labels = _labels(target)
    options = [list(_options(result, known, names, origin)) for result in labels]
    for chosen in product(*options):
        table = dict(zip(labels, chosen, strict=True))
        yield tuple(_with_labels(term, table.__getitem__) for term in target)


def _options(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> Iterator[Label]:
    if result.op in WINDOWS:
        if ("rest", result) in known.of:
            yield _named(result, known)
        elif known.apart:
            rest = next(name for (kind, _), name in known.of.items() if kind == "rest")
            for text in APART[known.apart].texts:
                if _gives(text, origin, result.get(known.apart, APART[known.apart].default)):
                    yield Label(result.op, ((known.apart, Named(text)), ("rest", Named(rest))))
        return
    every = _axis_texts(known, names)
    axes = [Named(text) for text in every if _gives(text, origin, result.get("axis"))]
    if result.op == "Split":
        sizes = [Named(text) for text in known.all("sizes")]
        if not sizes:
            positions = dict.fromkeys(re.sub(r"rank\(\w\) (- \d)", r"\1", text).replace("- ", "-") for text in every)
            sizes = [Named(f"[dim({v}, {k}), dim({u}, {k})]") for (v, u), k in product(combinations(names, 2), positions)]
        yield from (label("Split", axis=axis, parts=parts) for axis in axes for parts in sizes)
    elif result.get("axis") is not None:
        yield from (label(result.op, axis=axis) for axis in axes)
    elif result.get("perm") is not None:
        perms = known.all("perm")
        texts = [*perms, *(f"inverse({p})" for p in perms), *(f"compose({p}, {q})" for p, q in product(perms, repeat=2))]
        texts += [] if perms else [str(result.get("perm"))]
        yield from (label(result.op, perm=Named(text)) for text in texts if _gives(text, origin, result.get("perm")))
    else:
        yield result


def _gives(text: str, origin: dict, wanted) -> bool:
    try:
        result = _evaluated(text, origin)
        return (tuple(result) if isinstance(result, list) else result) == wanted
    except (Unknown, IndexError):
        return False


def _axis_texts(known: Names, names: tuple[str, ...]) -> list[str]:
    axes, perms = known.all("axis"), known.all("perm")
    moved = [text for i in axes for p in perms for text in (f"{p}[{i}]", f"inverse({p})[{i}]")]
    ends = [f"rank({v}) - {k}" for k in (1, 2) for v in names]
    return [*axes, *moved, *ends, *([] if axes else ["0", "1"])]


def variants(pattern: Pattern, labels: tuple[Label, ...]) -> Iterator[tuple[tuple[Term, ...], tuple[Term, ...]]]:
    """The equality with other axes and permutations, made of the given operators, for the same ranks."""
    if any("shape" in text or "dim" in text or "size" in text for text in pattern.conditions):
        return
    free = {
        named.text: name
        for result in _labels(pattern.source)
        for name, named in result.attributes
        if named.text.isidentifier() and name in ("axis", "perm")
    }
    values = {
        name: list(dict.fromkeys(result.get(name) for result in labels if result.get(name) is not None))
        for name in ("axis", "perm")
    }
    rest = {f.get("rest").text: f.op for f in _labels(pattern.source) if f.get("rest") is not None}
    if rest:
        return
    shapes = {v: np.zeros((1, *[2] * rank), np.int64) for v, rank in pattern.ranks}
    for chosen in product(*(values[kind] for kind in free.values())):
        scope = dict(zip(free, chosen, strict=True)) | shapes
        try:
            if all(_holds(text, scope) for text in pattern.conditions):
                sides = [tuple(_plain(term, scope) for term in side) for side in (pattern.source, pattern.target)]
                if all(op[0] in labels for op in operators(*sides[0], *sides[1])):
                    yield tuple(sides)
        except (Unknown, IndexError):
            continue


def _plain(term: Term, scope: dict) -> Term:
    """The term with numbers for its attributes, its Splits in equal halves."""

    def fill(result: Label) -> Label:
        pairs = [(name, named) for name, named in result.attributes if name != "parts"]
        return Label(result.op, tuple((name, _evaluated(named.text, scope)) for name, named in pairs))

    return _with_labels(term, fill)


# -- cases -----------------------------------------------------------------------------------------


def draws(source: tuple[Term, ...], known: Names, origin: dict[str, tuple[int, ...]]) -> Iterator[tuple]:
    """(names → what they stand for, values of the source): first the original shapes, then others, at random."""
    rng = np.random.default_rng(zlib.crc32(repr(source).encode()))
    result = 0
    first = {name: value for (kind, value), name in known.of.items() if kind in ("axis", "perm")}
    first |= {name: _rest(value) for (kind, value), name in known.of.items() if kind == "rest"}
    for draw in range(DRAWS):
        scope = dict(first) if draw == 0 else _attributes(rng, known)
        shapes = origin if draw == 0 else _shapes(rng, origin)
        if draw and "rest" in {kind for kind, _ in known.of}:
            scope |= {name: _rest_near(rng, value) for (kind, value), name in known.of.items() if kind == "rest"}
            if rng.random() < 0.6:  # a convolution has few axes of use
                scope |= {name: first[name] for name in known.all("axis")}
        for apart in (APART[known.apart],) if known.apart else ():
            rest = next(name for (kind, _), name in known.of.items() if kind == "rest")
            scope[apart.name] = dict(scope[rest]).get(known.apart, apart.default)
        shapes = _fitting_groups(shapes, source, scope, first)
        arrays = {v: rng.integers(-9, 10, (SAMPLES, *shape)) for v, shape in shapes.items()}
        for sizes in _sizes(rng, source, scope, arrays, known):
            filled = scope | sizes
            try:
                values = _values(source, filled | arrays)
            except (Misfit, IndexError):
                continue
            yield filled | arrays, tuple(values)
            result += 1
        if result >= ENOUGH:
            return


def _attributes(rng: np.random.Generator, known: Names) -> dict:
    rank = int(rng.integers(1, 5))
    scope = {name: int(rng.integers(rank)) for name in known.all("axis")}
    return scope | {name: tuple(int(k) for k in rng.permutation(rank)) for name in known.all("perm")}


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
        result[v] = tuple(sizes[int(rng.integers(0, rank + 1)) :] if rng.random() < (0.5 if few else 0.2) else sizes)
    if few:
        result = {v: tuple(1 if rng.random() < 0.3 else n for n in shape) for v, shape in result.items()}
    return result


def _fitting_groups(shapes: dict, source: tuple[Term, ...], scope: dict, first: dict) -> dict:
    """The shapes with weights that fit the number of groups that was drawn."""
    result = dict(shapes)
    for label_, inputs in operators(*source):
        for v in variables(inputs[1]) if label_.op == "Conv" else ():
            before, after = (dict(where[label_.get("rest").text]).get("group", 1) for where in (first, scope))
            if len(shapes[v]) > 2:
                result[v] = (shapes[v][0], max(1, shapes[v][1] * before // after), *shapes[v][2:])
    return result


def _rest(result: Label) -> tuple:
    """The attributes as `**rest` binds them: those that are not at their default."""
    return tuple((k, v) for k, v in result.attributes if k != "kernel_shape" and (k != "pads" or any(v)) and v != 1) + tuple(
        (k, v) for k, v in result.attributes if k == "kernel_shape"
    )


def _rest_near(rng: np.random.Generator, result: Label) -> tuple:
    """Attributes of a window like the candidate's, a few of them changed."""
    pairs = dict(_rest(result))
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
    return tuple(
        (k, v) for k, v in sorted(pairs.items())
        if not (k == "pads" and not any(v)) and not (k == "strides" and set(v) == {1}) and v != 1 or k == "count_include_pad"
    )  # fmt: skip


def _sizes(rng, source: tuple[Term, ...], scope: dict, arrays: dict, known: Names) -> list[dict]:
    """What the sizes of the Splits may be: sizes of the variables and random ones."""
    names = known.all("sizes")
    if not names:
        return [{}]
    numbers = sorted({n for array in arrays.values() for n in array.shape[1:]})
    pairs = [tuple(int(n) for n in rng.choice(numbers or [1], 2)) for _ in range(4)]
    pairs += [(n // 2, n - n // 2) for n in numbers if n > 1]
    return [dict.fromkeys(names, pair) for pair in dict.fromkeys(pairs)]


def _values(terms: tuple[Term, ...], scope: dict) -> list[np.ndarray]:
    """What terms with named attributes are worth. Raises Misfit, and IndexError where an expression has no value."""
    filled: dict[Label, Label] = {}
    known: dict[tuple, tuple] = {}

    def run(term: Term) -> np.ndarray:
        if isinstance(term, str):
            return scope[term]
        if term[:2] not in known:
            if term.label not in filled:
                filled[term.label] = _filled(term.label, scope)
            known[term[:2]] = outputs(filled[term.label], [run(child) for child in term.inputs])
        result = known[term[:2]]
        if term.slot >= len(result):
            raise Misfit
        return result[term.slot]

    return [run(term) for term in terms]


def _filled(result: Label, scope: dict) -> Label:
    """The label with numbers for its attributes; those that are named beside a window's rest count first."""
    named = {name: _evaluated(value.text, scope) for name, value in result.attributes if name != "rest"}
    if result.get("rest") is not None:
        named = dict(scope[result.get("rest").text]) | {k: tuple(v) if isinstance(v, list) else v for k, v in named.items()}
    return Label(result.op, tuple(named.items()))


@cache
def _compiled(text: str):
    return compile_expression(ast.parse(text, mode="eval").body, "generated")


def _evaluated(text: str, scope: dict):
    """The value of an expression. Raises IndexError where it has none."""
    if text in scope:
        return scope[text]
    return _compiled(text)(_Scope(scope))


class _Scope(dict):
    """Variables as tensors of the rule language, sizes as its constants."""

    def __getitem__(self, name):
        result = super().__getitem__(name)
        if isinstance(result, np.ndarray):
            return SimpleNamespace(type=TensorType(1, result.shape[1:]))
        if name in SIZES and isinstance(result, tuple):
            return Tensor({0: Constant.of(np.array(result))}, 0)
        return result


def _judge(target: tuple[Term, ...], cases: list[tuple]) -> list[Case] | None:
    """The cases in which the target fits and has the same shapes; None if it is not equal in the original one."""
    judged = []
    for number, (scope, values) in enumerate(cases):
        try:
            result = _values(target, scope)
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


# -- conditions ------------------------------------------------------------------------------------


def _separating(cases: list[Case], known: Names, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The conjunction that no wrong case meets, the original one meets, and most true ones do."""
    wrong = [case for case in cases if not case.holds]
    if not wrong:
        return ()
    true = [case for case in cases if case.holds]
    useful = []
    for text in _conditions(known, names):
        if _holds(text, true[0].scope):
            passed = np.array([_holds(text, case.scope) for case in true])
            let = np.array([_holds(text, case.scope) for case in wrong])
            if not let.all():
                useful.append((text, passed, let))
    best, kept = None, 0.0
    for count in range(1, MOST_CONDITIONS + 1):
        for chosen in combinations(useful, count):
            if np.logical_and.reduce([let for _, _, let in chosen]).any():
                continue
            score = np.logical_and.reduce([passed for _, passed, _ in chosen]).sum() * 0.9**count
            if score > kept:
                best, kept = tuple(text for text, _, _ in chosen), score
        if best is not None:
            return best
    return best


def _conditions(known: Names, names: tuple[str, ...]) -> Iterator[str]:
    axes, perms, sizes, rest = (known.all(kind) for kind in ("axis", "perm", "sizes", "rest"))
    for p in perms:
        yield f"{p}[-1] == len({p}) - 1"
        yield f"{p} == tuple(range(len({p})))"
        yield f"{p} == (1, 0)"
        yield f"{p} == (*range(len({p}) - 2), len({p}) - 1, len({p}) - 2)"
    for p, q in combinations(perms, 2):
        yield f"compose({p}, {q}) == tuple(range(len({p})))"
    for p in perms:
        yield f"compose({p}, {p}) == tuple(range(len({p})))"
    for i, v in product(axes, names):
        yield from (f"{i} == rank({v}) - 1", f"{i} == rank({v}) - 2", f"{i} < rank({v}) - 1")
    for s, (v, u), i in product(sizes, combinations(names, 2), axes):
        yield f"value({s}) == (dim({v}, {i}), dim({u}, {i}))"
    for i, j in combinations(axes, 2):
        yield f"{i} != {j}"
    for i in axes:
        yield from (f"{i} == 1", f"{i} == 0", f"{i} < 2")  # where windows are, axes are counted from the front
    for v, u in combinations(names, 2):
        yield from (f"rank({v}) == rank({u})", f"shape({v}) == shape({u})", f"shape({v})[1:] == shape({u})[1:]")
        yield from (f"broadcasts({v}, {u})", f"broadcasts({u}, {v})")
        yield from (f"rank({v}) <= rank({u})", f"rank({u}) <= rank({v})")
    for v in names:
        yield from (f"rank({v}) > 1", f"rank({v}) == 2", f"size({v}) == 1", f"prod(shape({v})[2:]) == 1")
    if known.apart == "group":
        yield "g % 2 == 0"
    for a in rest:
        yield from (f'attributes({a}, "{name}") is None' for name in ("group", "pads", "strides", "dilations"))


def _sterner(known: Names, origin: dict[str, tuple[int, ...]], scope: dict) -> tuple[tuple[str, ...], ...]:
    """Equal ranks; equal ranks, and the axes of the original; equal shapes."""
    first, *others = origin
    near = [v for v in others if len(origin[v]) == len(origin[first])]
    alike = [pair for pair in combinations(origin, 2) if origin[pair[0]] == origin[pair[1]]]
    ranks = (" and ".join(f"rank({first}) == rank({v})" for v in near),) if near else ()
    axes = []
    for i in known.all("axis"):
        texts = (f"{i} == rank({first}) - 1", f"{i} == rank({first}) - 2", f"{i} == 1", f"{i} == 0")
        axes.append(next(text for text in texts if _gives(text, scope, True)))
    return ranks, (*ranks, *axes), tuple(f"shape({v}) == shape({u})" for v, u in alike)


def _holds(text: str, scope: dict) -> bool:
    try:
        return bool(_compiled(text)(_Scope(scope)))
    except (Unknown, IndexError):
        return False
