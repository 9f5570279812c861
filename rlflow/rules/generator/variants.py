"""An equality with other axes and permutations."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from rlflow.rules.expressions import Unknown
from rlflow.rules.generator.evaluation import evaluated, holds
from rlflow.rules.generator.operators import Label, Term, operators
from rlflow.rules.generator.pattern import Pattern, labels_of, with_labels


def variants(pattern: Pattern, labels: tuple[Label, ...]) -> Iterator[tuple[tuple[Term, ...], tuple[Term, ...]]]:
    """The equality with other axes and permutations, made of the given operators, for the same ranks."""
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
            source = tuple(_plain(term, scope) for term in pattern.source)
            target = tuple(_plain(term, scope) for term in pattern.target)
        except (Unknown, IndexError):
            continue
        if all(op[0] in labels for op in operators(*source, *target)):
            yield source, target


def _plain(term: Term, scope: dict) -> Term:
    """The term with numbers for its attributes, its Splits in equal halves."""

    def fill(result: Label) -> Label:
        pairs = [(name, named) for name, named in result.attributes if name != "parts"]
        return Label(result.op, tuple((name, evaluated(named.text, scope)) for name, named in pairs))

    return with_labels(term, fill)
