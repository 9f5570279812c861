"""Name the attributes of the side to match, and express the other side's attributes in these names.

`name_attributes` gives equal values of one kind one name. `values_of` computes terms whose attributes are such texts,
and `holds` evaluates conditions. `targets` lists the right sides whose expressions give the original attributes.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from rlflow.graph.ir import Constant, TensorType
from rlflow.proving.generator.operators import Label, Misfit, Named, Term, label, labels_of, outputs, with_labels
from rlflow.rules.expressions import Tensor, Unknown, compile_expression

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


class Names(NamedTuple):
    """What attribute values are called: (kind, value) → name.

    apart: the attribute of convolutions that the two sides have different values of; it is named beside the others.
    """

    of: dict[tuple, str]
    apart: str | None = None

    def all(self, kind: str) -> list[str]:
        return [name for (result, _), name in self.of.items() if result == kind]


def name_attributes(source: list[Term]) -> Names:
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


def attribute_apart(strange: list[Label], source: list[Term]) -> str | None:
    """The attribute in which convolutions of the target differ from the only one of the source."""
    labels = [result for result in labels_of(source) if result.op in WINDOWS]
    if len(labels) != 1 or len(strange) != 1 or strange[0].op != labels[0].op:
        return None
    differ = {name for name, _ in set(strange[0].attributes) ^ set(labels[0].attributes)}
    return differ.pop() if len(differ) == 1 and differ <= set(APART) else None


def with_names(result: Label, known: Names) -> Label:
    if result.op in WINDOWS:
        apart = ((known.apart, Named(APART[known.apart].name)),) if known.apart else ()
        return Label(result.op, (*apart, ("rest", Named(known.of["rest", result]))))
    attributes = {name: Named(known.of[name, value]) for name, value in result.attributes}
    if result.op == "Split":
        attributes["parts"] = Named(known.of["sizes", result.get("axis")])
    return label(result.op, **attributes)


def values_of(terms: tuple[Term, ...], scope: dict) -> list[np.ndarray]:
    """The values of terms with named attributes: int64 [samples, *shape].

    Raises Misfit, and IndexError where an expression has no value.
    """
    filled: dict[Label, Label] = {}
    known: dict[tuple, tuple] = {}

    def run(term: Term) -> np.ndarray:
        if isinstance(term, str):
            return scope[term]
        if term[:2] not in known:
            if term.label not in filled:
                filled[term.label] = with_numbers(term.label, scope)
            known[term[:2]] = outputs(filled[term.label], [run(child) for child in term.inputs])
        result = known[term[:2]]
        if term.slot >= len(result):
            raise Misfit
        return result[term.slot]

    return [run(term) for term in terms]


def with_numbers(result: Label, scope: dict) -> Label:
    """The label with numbers for its attributes; those that are named beside a window's rest count first."""
    named = {name: evaluated(value.text, scope) for name, value in result.attributes if name != "rest"}
    if result.get("rest") is not None:
        for name, value in named.items():
            named[name] = tuple(value) if isinstance(value, list) else value
        named = dict(scope[result.get("rest").text]) | named
    return Label(result.op, tuple(named.items()))


@cache
def compiled(text: str):
    return compile_expression(ast.parse(text, mode="eval").body, "generated")


def evaluated(text: str, scope: dict):
    """The value of an expression. Raises IndexError where it has none."""
    if text in scope:
        return scope[text]
    return compiled(text)(Scope(scope))


class Scope(dict):
    """Variables as tensors of the rule language, sizes as its constants."""

    def __getitem__(self, name):
        result = super().__getitem__(name)
        if isinstance(result, np.ndarray):
            return SimpleNamespace(type=TensorType(1, result.shape[1:]))
        if name in SIZES and isinstance(result, tuple):
            return Tensor({0: Constant.of(np.array(result))}, 0)
        return result


def holds(text: str, scope: dict) -> bool:
    try:
        return bool(compiled(text)(Scope(scope)))
    except (Unknown, IndexError):
        return False


def gives(text: str, scope: dict, wanted) -> bool:
    """Whether the expression has the wanted value."""
    try:
        result = evaluated(text, scope)
        return (tuple(result) if isinstance(result, list) else result) == wanted
    except (Unknown, IndexError):
        return False


def targets(target: list[Term], known: Names, names: tuple[str, ...], origin: dict) -> Iterator[tuple[Term, ...]]:
    """The right side with every choice of expressions for its attributes that gives the original ones."""
    labels = labels_of(target)
    options = [list(_options(result, known, names, origin)) for result in labels]
    for chosen in product(*options):
        table = dict(zip(labels, chosen, strict=True))
        yield tuple(with_labels(term, table.__getitem__) for term in target)


def _options(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> Iterator[Label]:
    """The labels that a label may become; one that has no attribute stays as it is."""
    if result.op in WINDOWS:
        yield from _windows(result, known, origin)
    elif result.op == "Split":
        for axis in _axes(result, known, names, origin):
            for parts in _parts(known, names):
                yield label("Split", axis=axis, parts=parts)
    elif result.get("axis") is not None:
        for axis in _axes(result, known, names, origin):
            yield label(result.op, axis=axis)
    elif result.get("perm") is not None:
        for text in _perm_texts(result, known):
            if gives(text, origin, result.get("perm")):
                yield label(result.op, perm=Named(text))
    else:
        yield result


def _windows(result: Label, known: Names, origin: dict) -> Iterator[Label]:
    """The attributes of the side to match, or these with another value of the one that differs."""
    if ("rest", result) in known.of:
        yield with_names(result, known)
    elif known.apart:
        rest = known.all("rest")[0]
        apart = APART[known.apart]
        for text in apart.texts:
            if gives(text, origin, result.get(known.apart, apart.default)):
                yield Label(result.op, ((known.apart, Named(text)), ("rest", Named(rest))))


def _axes(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> list[Named]:
    return [Named(text) for text in _axis_texts(known, names) if gives(text, origin, result.get("axis"))]


def _axis_texts(known: Names, names: tuple[str, ...]) -> list[str]:
    """Expressions for an axis: one that has a name, where a permutation moves it, one counted from the end."""
    axes, perms = known.all("axis"), known.all("perm")
    texts = list(axes)
    for i in axes:
        for p in perms:
            texts += [f"{p}[{i}]", f"inverse({p})[{i}]"]
    for k in (1, 2):
        texts += [f"rank({v}) - {k}" for v in names]
    return texts if axes else [*texts, "0", "1"]


def _parts(known: Names, names: tuple[str, ...]) -> list[Named]:
    """Expressions for the sizes of a Split: those that have a name, else the sizes of two variables along an axis."""
    sizes = [Named(text) for text in known.all("sizes")]
    if sizes:
        return sizes
    positions = {}
    for text in _axis_texts(known, names):
        positions[re.sub(r"rank\(\w\) (- \d)", r"\1", text).replace("- ", "-")] = None
    for v, u in combinations(names, 2):
        sizes += [Named(f"[dim({v}, {k}), dim({u}, {k})]") for k in positions]
    return sizes


def _perm_texts(result: Label, known: Names) -> list[str]:
    """Expressions for a permutation: one that has a name, its inverse, two composed; the number where none has one."""
    perms = known.all("perm")
    if not perms:
        return [str(result.get("perm"))]
    inverses = [f"inverse({p})" for p in perms]
    composed = [f"compose({p}, {q})" for p, q in product(perms, repeat=2)]
    return [*perms, *inverses, *composed]
