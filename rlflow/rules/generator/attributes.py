"""What the attributes of the side to match are called, and which expressions of these names the other side may have."""

from typing import NamedTuple

from rlflow.rules.generator.operators import Label, Term, label
from rlflow.rules.generator.pattern import Named, labels_of

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

