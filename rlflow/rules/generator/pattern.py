"""A rule in the making: an equality whose attributes are texts of the rule language, with its conditions."""

from typing import NamedTuple

from rlflow.rules.generator.operators import Label, Node, Term


class Named(NamedTuple):
    """An attribute's value as text of the rule language."""

    text: str


class Pattern(NamedTuple):
    """One direction of an equality. Labels hold `Named` values; outputs correspond by their position.

    constants: variables that must be weights for the direction to pay.
    ranks: of the variables in the world that the equality comes from.
    stricter: further conditions, more and more of them, for when the rule is refuted.
    """

    source: tuple[Node, ...]
    target: tuple[Term, ...]
    conditions: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    stricter: tuple[tuple[str, ...], ...] = ()


def with_labels(term: Term, change) -> Term:
    """The term with `change(label)` for every label."""
    if isinstance(term, str):
        return term
    return Node(change(term.label), tuple(with_labels(child, change) for child in term.inputs), term.slot)


def labels_of(terms) -> list[Label]:
    """The different labels of terms, those of inputs first."""
    result: dict[Label, None] = {}
    for term in terms:
        if isinstance(term, Node):
            result |= dict.fromkeys([*labels_of(term.inputs), term.label])
    return list(result)
