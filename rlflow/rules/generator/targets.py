"""The other side of an equality, with expressions of the named attributes instead of its numbers."""

import re
from collections.abc import Iterator
from itertools import combinations, product

from rlflow.rules.generator.attributes import APART, WINDOWS, Names, with_names
from rlflow.rules.generator.evaluation import gives
from rlflow.rules.generator.operators import Label, Term, label
from rlflow.rules.generator.pattern import Named, labels_of, with_labels


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
