"""Name the attributes of the side to match, and express the other side's attributes in these names.

`name_attributes` gives equal values of one kind one name. `values_of` computes terms whose attributes are such
expressions, and `holds` evaluates conditions. `targets` lists the right sides whose expressions give the original
attributes.
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
    """An attribute of convolutions that a rule may change.

    Attributes:
      name: its name in the rule.
      default: its default value.
      texts: expressions for its new value.
    """

    name: str
    default: int | tuple
    texts: tuple[str, ...]


APART = {
    "group": Apart("g", 1, ("2 * g", "g // 2")),
    "pads": Apart("h", (0, 0, 0, 0), ("[i + 1 for i in h]",)),
}


class Names(NamedTuple):
    """The names of attribute values.

    Attributes:
      of: (kind, value) → name.
      apart: the attribute of convolutions in which the two sides differ; it gets a name of its own. None if there is no
        such attribute.
    """

    of: dict[tuple, str]
    apart: str | None = None

    def all(self, kind: str) -> list[str]:
        """Return all names of one kind."""
        return [name for (result, _), name in self.of.items() if result == kind]


def name_attributes(source: list[Term]) -> Names:
    """Name the attributes of the source terms. The sizes of a Split are named by its axis."""
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
    """Return the one attribute in which the target's convolution differs from the source's, or None.

    Args:
      strange: the window operators of the target that the source does not have.
      source: the source terms.
    """
    labels = [result for result in labels_of(source) if result.op in WINDOWS]
    if len(labels) != 1 or len(strange) != 1 or strange[0].op != labels[0].op:
        return None
    differ = {name for name, _ in set(strange[0].attributes) ^ set(labels[0].attributes)}
    return differ.pop() if len(differ) == 1 and differ <= set(APART) else None


def with_names(result: Label, known: Names) -> Label:
    """Return the label with names for its attributes."""
    if result.op in WINDOWS:
        apart = ((known.apart, Named(APART[known.apart].name)),) if known.apart else ()
        return Label(result.op, (*apart, ("rest", Named(known.of["rest", result]))))
    attributes = {name: Named(known.of[name, value]) for name, value in result.attributes}
    if result.op == "Split":
        attributes["parts"] = Named(known.of["sizes", result.get("axis")])
    return label(result.op, **attributes)


def values_of(terms: tuple[Term, ...], scope: dict) -> list[np.ndarray]:
    """Compute terms with named attributes.

    Args:
      terms: the terms.
      scope: the values of variables and attribute names.

    Returns:
      one int64 array [samples, *shape] per term.

    Raises:
      Misfit: if an operator does not take its inputs.
      IndexError: if an expression has no value.
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
    """Return the label with values for its attributes. Attributes named beside `**rest` override it."""
    named = {name: evaluated(value.text, scope) for name, value in result.attributes if name != "rest"}
    if result.get("rest") is not None:
        for name, value in named.items():
            named[name] = tuple(value) if isinstance(value, list) else value
        named = dict(scope[result.get("rest").text]) | named
    return Label(result.op, tuple(named.items()))


@cache
def compiled(text: str):
    """Compile an expression of the rule language."""
    return compile_expression(ast.parse(text, mode="eval").body, "generated")


def evaluated(text: str, scope: dict):
    """Return the value of an expression.

    Args:
      text: the expression.
      scope: the values of its names.

    Raises:
      IndexError: if the expression has no value.
    """
    if text in scope:
        return scope[text]
    return compiled(text)(Scope(scope))


class Scope(dict):
    """A scope that shows variables as tensors and sizes as constants of the rule language."""

    def __getitem__(self, name):
        result = super().__getitem__(name)
        if isinstance(result, np.ndarray):
            return SimpleNamespace(type=TensorType(1, result.shape[1:]))
        if name in SIZES and isinstance(result, tuple):
            return Tensor({0: Constant.of(np.array(result))}, 0)
        return result


def holds(text: str, scope: dict) -> bool:
    """Return True if a condition holds in a scope; False if it has no value."""
    try:
        return bool(compiled(text)(Scope(scope)))
    except (Unknown, IndexError):
        return False


def evaluates_to(text: str, scope: dict, wanted) -> bool:
    """Return True if the expression has the wanted value.

    Args:
      text: the expression.
      scope: the values of its names.
      wanted: the value.
    """
    try:
        result = evaluated(text, scope)
        return (tuple(result) if isinstance(result, list) else result) == wanted
    except (Unknown, IndexError):
        return False


def targets(target: list[Term], known: Names, names: tuple[str, ...], origin: dict) -> Iterator[tuple[Term, ...]]:
    """Yield the right side with every choice of attribute expressions that gives the original attributes.

    Args:
      target: the terms with numbers as attributes.
      known: the attribute names.
      names: the variables.
      origin: the values of all names in the original equality.
    """
    labels = labels_of(target)
    options = [list(_options(result, known, names, origin)) for result in labels]
    for chosen in product(*options):
        table = dict(zip(labels, chosen, strict=True))
        yield tuple(with_labels(term, table.__getitem__) for term in target)


def _options(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> Iterator[Label]:
    """Yield the labels that may stand for a label. A label without attributes stays as it is."""
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
            if evaluates_to(text, origin, result.get("perm")):
                yield label(result.op, perm=Named(text))
    else:
        yield result


def _windows(result: Label, known: Names, origin: dict) -> Iterator[Label]:
    """Yield the source's attributes for a window operator, or the same with another value of the attribute `apart`."""
    if ("rest", result) in known.of:
        yield with_names(result, known)
    elif known.apart:
        rest = known.all("rest")[0]
        apart = APART[known.apart]
        for text in apart.texts:
            if evaluates_to(text, origin, result.get(known.apart, apart.default)):
                yield Label(result.op, ((known.apart, Named(text)), ("rest", Named(rest))))


def _axes(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> list[Named]:
    """Return the axis expressions that give the original axis."""
    return [Named(text) for text in _axis_texts(known, names) if evaluates_to(text, origin, result.get("axis"))]


def _axis_texts(known: Names, names: tuple[str, ...]) -> list[str]:
    """Return expressions for an axis: named, moved by a permutation, or counted from the end."""
    axes, perms = known.all("axis"), known.all("perm")
    texts = list(axes)
    for i in axes:
        for p in perms:
            texts += [f"{p}[{i}]", f"inverse({p})[{i}]"]
    for k in (1, 2):
        texts += [f"rank({v}) - {k}" for v in names]
    return texts if axes else [*texts, "0", "1"]


def _parts(known: Names, names: tuple[str, ...]) -> list[Named]:
    """Return expressions for the sizes of a Split: named sizes, or else the sizes of two variables along an axis."""
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
    """Return expressions for a permutation: names, inverses, compositions; its value if none has a name."""
    perms = known.all("perm")
    if not perms:
        return [str(result.get("perm"))]
    inverses = [f"inverse({p})" for p in perms]
    composed = [f"compose({p}, {q})" for p, q in product(perms, repeat=2)]
    return [*perms, *inverses, *composed]
