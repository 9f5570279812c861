"""What is learnt of a rewriting system: where its rules apply and what they do, without a place.

A *form* is how the nodes of a match look and hang together, with tensors numbered by their first mention and without their sizes; its
*facts* are those of the tensors with their sizes. A rule applies where a form was seen with these facts, and there it does what it
did before: what was seen in one block of a network is known of all others. Facts that are new are judged by the form.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Self

from rlflow.graph.model import ABSENT

Shape = tuple[int, tuple[int, ...], tuple[int, ...]]  # kind, tensors read, tensors made
Facts = tuple[int, ...]  # of a form's tensors, by local number


class Form(NamedTuple):
    """xfer_id; nodes: in the rule's order; operands: what the variables hold, then what is replaced; looks: of each tensor.

    Tensors are local numbers, ABSENT for an omitted one.
    """

    xfer_id: int
    nodes: tuple[Shape, ...]
    operands: tuple[int, ...]
    looks: tuple[int, ...]


class Effect(NamedTuple):
    """What carrying out a form does; local numbers go on behind the form's own for the tensors that it makes.

    removed: places of nodes that go whatever else is there (others go when nothing reads them any more). added: nodes, in
    topological order. rewired: (tensor, the one that its readers read instead). made: look and fact of every new tensor.
    """

    removed: tuple[int, ...]
    added: tuple[Shape, ...]
    rewired: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...]


class Numbering:
    """Local numbers of tensors, by first mention."""

    def __init__(self, tensors: Iterable[int] = ()):
        self.number: dict[int, int] = {}
        for tensor in tensors:
            self(tensor)

    def __call__(self, tensor: int) -> int:
        return ABSENT if tensor == ABSENT else self.number.setdefault(tensor, len(self.number))

    def shape(self, kind: int, inputs: Iterable[int], outputs: Iterable[int]) -> Shape:
        return kind, tuple([self(t) for t in inputs]), tuple([self(t) for t in outputs])


class Known:
    """What is known of one form. effects: per facts with which it applied, how often it did what. refuted: facts with which it did not.

    alone: local tensors that must have one reader, which no form tells.
    """

    def __init__(self, form: Form):
        self.form = form
        self.effects: dict[Facts, Counter[Effect]] = {}
        self.refuted: set[Facts] = set()
        self.alone: tuple[int, ...] = ()

    def applies(self, facts: Facts) -> bool:
        """Facts that were never seen are trusted if none were ever refuted."""
        return facts in self.effects or not self.refuted

    def effect(self, facts: Facts) -> tuple[Effect | None, bool]:
        """(what it does, whether that was seen with these facts and not with others); None if it was never carried out."""
        seen = self.effects.get(facts)
        if seen:
            return max(seen, key=seen.__getitem__), True
        others = [(known, max(seen, key=seen.__getitem__)) for known, seen in self.effects.items() if seen]
        if not others:
            return None, False
        alike = [sum(a == b for a, b in zip(facts, known, strict=True)) for known, _ in others]
        model = others[alike.index(max(alike))][1]
        made = [self._fact(facts, k, model, others) for k in range(len(model.made))]
        return model._replace(made=tuple([(look, fact) for (look, _), fact in zip(model.made, made, strict=True)])), False

    def _fact(self, facts: Facts, k: int, model: Effect, others: list[tuple[Facts, Effect]]) -> int:
        """Of the k-th new tensor: that of a tensor which it shared it with every time, or the one that it always had."""
        same = [(known, effect.made[k][1]) for known, effect in others if effect.added == model.added and len(effect.made) > k]
        shared = next((j for j in range(len(facts)) if all(known[j] == fact for known, fact in same)), None)
        if shared is not None:
            return facts[shared]
        return same[0][1] if len({fact for _, fact in same}) == 1 else hash((facts, k))  # a new one; of ints, so the same in every process


class Schemas:
    """All forms that were seen, by number.

    Attributes:
      known: per form, in the order of their first appearance.
      occasions: kind → (form, place) of every node of a form that is of it.
      symmetric: xfer_ids of which two matches that differ in the order of their nodes are one.
    """

    def __init__(self, symmetric: Iterable[int] = ()):
        self.number: dict[Form, int] = {}
        self.known: list[Known] = []
        self.occasions: dict[int, list[tuple[int, int]]] = {}
        self.symmetric = frozenset(symmetric)

    def to_json(self) -> dict:
        """Lists of numbers and texts: {"symmetric", "forms": [[form, alone, refuted, [[facts, [[effect, times], …]], …]], …]}."""
        forms = [
            [known.form, known.alone, sorted(known.refuted), [[facts, list(seen.items())] for facts, seen in known.effects.items()]]
            for known in self.known
        ]
        return {"symmetric": sorted(self.symmetric), "forms": forms}

    @classmethod
    def from_json(cls, saved: dict) -> Self:
        """Raises TypeError, ValueError or KeyError for what `to_json` did not give."""
        schemas = cls(int(x) for x in saved["symmetric"])
        for form, alone, refuted, effects in _tuples(saved["forms"]):
            for facts, seen in effects:
                schemas.add(Form(*form), facts).update({Effect(*effect): times for effect, times in seen})
            schemas.known[-1].alone, schemas.known[-1].refuted = alone, set(refuted)
        return schemas

    def add(self, form: Form, facts: Facts) -> Counter[Effect]:
        """Learns that a form applied with these facts; what is known of its effects then."""
        if form not in self.number:
            self.number[form] = len(self.known)
            for place, (kind, _, _) in enumerate(form.nodes):
                self.occasions.setdefault(kind, []).append((len(self.known), place))
            self.known.append(Known(form))
        return self.known[self.number[form]].effects.setdefault(facts, Counter())


def _tuples(value):
    """Lists, however deep, as tuples; numbers alone are allowed in them."""
    if isinstance(value, list):
        return tuple([_tuples(part) for part in value])
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def lift(xfer_id: int, nodes: Iterable[Shape], operands: Iterable[int], looks) -> tuple[Form, tuple[int, ...]]:
    """The form of a match, and the tensors by their local numbers. `looks`: tensor → look."""
    numbering = Numbering()
    local = tuple([numbering(t) for t in operands])
    shapes = tuple([numbering.shape(*node) for node in nodes])
    tensors = tuple(numbering.number)
    return Form(xfer_id, shapes, local, tuple([looks[t] for t in tensors])), tensors
