"""Name the attributes of the source (the side to match), and express the target's attributes in these names.

`name_attributes` gives each attribute value of the source a name; equal values of one kind share a name. `values_of`
computes terms whose attributes are expressions of names, and `holds` evaluates conditions. `targets` lists the targets
whose expressions have the original attribute values.
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
    """An attribute of convolutions whose value may differ between the two sides of a rule.

    Attributes:
      name: the name of the source's value in the rule.
      default: the default value of the attribute.
      texts: possible expressions for the target's value.
    """

    name: str
    default: int | tuple
    texts: tuple[str, ...]


APART = {
    "group": Apart("g", 1, ("2 * g", "g // 2")),
    "pads": Apart("h", (0, 0, 0, 0), ("[i + 1 for i in h]",)),
}


class Names(NamedTuple):
    """The names of the attribute values of a rule's source.

    Attributes:
      of: (kind, value) → name; a kind is "axis", "perm", "sizes" (of a Split) or "rest" (all attributes of a window
        operator).
      apart: the attribute of convolutions, a key of APART, in which the two sides differ, or None.
    """

    of: dict[tuple, str]
    apart: str | None = None

    def all(self, kind: str) -> list[str]:
        """Return all names of values of one kind, such as "axis"."""
        return [name for (result, _), name in self.of.items() if result == kind]


def name_attributes(source: list[Term]) -> Names:
    """Name the attribute values of the source terms. Splits along the same axis share the name of their sizes."""
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
    """Return the only attribute in which a window operator of the target differs from the source's window operator.

    Args:
      strange: the window operators of the target that the source does not have.
      source: the source terms.

    Returns:
      the attribute, a key of APART; None if other attributes differ, or if there are several window operators.
    """
    labels = [result for result in labels_of(source) if result.op in WINDOWS]
    if len(labels) != 1 or len(strange) != 1 or strange[0].op != labels[0].op:
        return None
    differ = {name for name, _ in set(strange[0].attributes) ^ set(labels[0].attributes)}
    return differ.pop() if len(differ) == 1 and differ <= set(APART) else None


def with_names(result: Label, known: Names) -> Label:
    """Return a label whose attribute values are replaced by their names."""
    if result.op in WINDOWS:
        apart = ((known.apart, Named(APART[known.apart].name)),) if known.apart else ()
        return Label(result.op, (*apart, ("rest", Named(known.of["rest", result]))))
    attributes = {name: Named(known.of[name, value]) for name, value in result.attributes}
    if result.op == "Split":
        attributes["parts"] = Named(known.of["sizes", result.get("axis")])
    return label(result.op, **attributes)


def values_of(terms: tuple[Term, ...], scope: dict) -> list[np.ndarray]:
    """Compute terms whose attributes are expressions of names.

    Args:
      terms: the terms.
      scope: the values of variables and attribute names.

    Returns:
      one int64 array [samples, *shape] per term.

    Raises:
      Misfit: if the inputs of an operator do not fit.
      IndexError, Unknown: if an expression of an attribute has no value.
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
    """Return a label whose attribute expressions are replaced by their values.

    An attribute that is written beside `**rest` overrides the value in `**rest`.

    Args:
      result: the label.
      scope: the values of variables and attribute names.
    """
    named = {name: evaluated(value.text, scope) for name, value in result.attributes if name != "rest"}
    if result.get("rest") is not None:
        for name, value in named.items():
            named[name] = tuple(value) if isinstance(value, list) else value
        named = dict(scope[result.get("rest").text]) | named
    return Label(result.op, tuple(named.items()))


@cache
def compiled(text: str):
    """Return the function from a scope to the value of an expression of the rule language."""
    return compile_expression(ast.parse(text, mode="eval").body, "generated")


def evaluated(text: str, scope: dict):
    """Return the value of an expression of the rule language.

    Args:
      text: the expression.
      scope: the values of variables and attribute names.

    Raises:
      IndexError, Unknown: if the expression has no value.
    """
    if text in scope:
        return scope[text]
    return compiled(text)(Scope(scope))


class Scope(dict):
    """A dictionary that gives the rule language variables as tensors with shapes, and Split sizes as constants."""

    def __getitem__(self, name):
        result = super().__getitem__(name)
        if isinstance(result, np.ndarray):
            return SimpleNamespace(type=TensorType(1, result.shape[1:]))
        if name in SIZES and isinstance(result, tuple):
            return Tensor({0: Constant.of(np.array(result))}, 0)
        return result


def holds(text: str, scope: dict) -> bool:
    """Return True if a condition of the rule language holds; return False if it fails or has no value.

    Args:
      text: the condition.
      scope: the values of variables and attribute names.
    """
    try:
        return bool(compiled(text)(Scope(scope)))
    except (Unknown, IndexError):
        return False


def evaluates_to(text: str, scope: dict, wanted) -> bool:
    """Return True if an expression of the rule language has the value `wanted`.

    Args:
      text: the expression.
      scope: the values of variables and attribute names.
      wanted: the value; a tuple also equals a list.
    """
    try:
        result = evaluated(text, scope)
        return (tuple(result) if isinstance(result, list) else result) == wanted
    except (Unknown, IndexError):
        return False


def targets(target: list[Term], known: Names, names: tuple[str, ...], origin: dict) -> Iterator[tuple[Term, ...]]:
    """Yield the target with each choice of attribute expressions that have the original attribute values.

    Args:
      target: the terms, with numbers as attributes.
      known: the names of attribute values.
      names: the names of the variables.
      origin: the values of variables and attribute names in the original equality.
    """
    labels = labels_of(target)
    options = [list(_options(result, known, names, origin)) for result in labels]
    for chosen in product(*options):
        table = dict(zip(labels, chosen, strict=True))
        yield tuple(with_labels(term, table.__getitem__) for term in target)


def _options(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> Iterator[Label]:
    """Yield the label with each choice of attribute expressions that have the original values."""
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
    """Yield the label of a window operator with named attributes, taken from the source's window operator.

    If the source has no equal window operator, the attribute `known.apart` has an expression for another value.
    """
    if ("rest", result) in known.of:
        yield with_names(result, known)
    elif known.apart:
        rest = known.all("rest")[0]
        apart = APART[known.apart]
        for text in apart.texts:
            if evaluates_to(text, origin, result.get(known.apart, apart.default)):
                yield Label(result.op, ((known.apart, Named(text)), ("rest", Named(rest))))


def _axes(result: Label, known: Names, names: tuple[str, ...], origin: dict) -> list[Named]:
    """Return the expressions for an axis whose value is the label's original axis."""
    return [Named(text) for text in _axis_texts(known, names) if evaluates_to(text, origin, result.get("axis"))]


def _axis_texts(known: Names, names: tuple[str, ...]) -> list[str]:
    """Return expressions for an axis such as `i`, `p[i]`, `inverse(p)[i]` and `rank(x) - 1`."""
    axes, perms = known.all("axis"), known.all("perm")
    texts = list(axes)
    for i in axes:
        for p in perms:
            texts += [f"{p}[{i}]", f"inverse({p})[{i}]"]
    for k in (1, 2):
        texts += [f"rank({v}) - {k}" for v in names]
    return texts if axes else [*texts, "0", "1"]


def _parts(known: Names, names: tuple[str, ...]) -> list[Named]:
    """Return expressions for the sizes of a Split: names of sizes, or else `[dim(x, i), dim(y, i)]` for variables."""
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
    """Return expressions for a permutation: names, inverses and compositions; its value if no permutation has a name.
    """
    perms = known.all("perm")
    if not perms:
        return [str(result.get("perm"))]
    inverses = [f"inverse({p})" for p in perms]
    composed = [f"compose({p}, {q})" for p, q in product(perms, repeat=2)]
    return [*perms, *inverses, *composed]
