"""What is learnt of a rewriting system: where its rules apply and what they do, without a place.

A *form* is which operators a match consists of and how they hang together, with tensors numbered by their first mention; its *facts*
are the operators' attributes and the tensors' sizes. A rule applies where a form was seen with these facts, and there it does what
it did before: what was seen in one block of a network is known of all others. Facts that are new are judged by the form.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Self

from rlflow.graph.model import ABSENT

Shape = tuple[int, tuple[int, ...], tuple[int, ...]]  # op (in a form) or kind (in an effect), tensors read, tensors made
Facts = tuple[int, ...]  # the kinds of a form's nodes, then the facts of its tensors by local number


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

    def shape(self, what: int, inputs: Iterable[int], outputs: Iterable[int]) -> Shape:
        return what, tuple([self(t) for t in inputs]), tuple([self(t) for t in outputs])


class Known:
    """What is known of one form. effects: per facts with which it applied, how often it did what. refuted: facts with which it did not.

    alone: local tensors that must have one reader, which no form tells.
    """

    def __init__(self, form: Form):
        self.form = form
        self.effects: dict[Facts, Counter[Effect]] = {}
        self.refuted: set[Facts] = set()
        self.alone: tuple[int, ...] = ()

    def verdict(self, kinds: Facts) -> tuple[bool, bool]:
        """(whether it applied to such kinds, whether it was refuted for such)."""
        size = len(kinds)
        return any(facts[:size] == kinds for facts in self.effects), any(facts[:size] == kinds for facts in self.refuted)

    def usual(self) -> "list[Sample]":
        """Per facts with which it was carried out, what it mostly did."""
        return [Sample(self.form, facts, whole(seen)) for facts, seen in self.effects.items() if seen]


def whole(seen: Counter[Effect]) -> Effect:
    """Of what a form did, that which left out least (a new node that nothing would read is not told); then what it did most often."""
    return max(seen, key=lambda effect: (len(effect.added), seen[effect]))


class Sample(NamedTuple):
    """What a form did with some facts."""

    form: Form
    facts: Facts
    effect: Effect


def by_analogy(form: Form, facts: Facts, samples: list[Sample], relatives: list[Sample]) -> Effect:
    """What the rule does here, by what it did to others: as to the most alike, with the kinds and tensors that stand in for its own.

    samples: of forms that hang together in the same way. relatives: of all with the same operators, from which kinds may be told.
    """
    size = len(form.nodes)
    alike = [sum(a == b for a, b in zip((*facts, *form.looks), (*s.facts, *s.form.looks), strict=True)) for s in samples]
    model = samples[alike.index(max(alike))].effect
    samples = [sample for sample in samples if _wiring(sample.effect) == _wiring(model)]
    relatives = samples + [sample for sample in relatives if len(sample.effect.added) == len(model.added)]
    added = []
    for k, (_, inputs, outputs) in enumerate(model.added):
        kind = _transferred(facts[:size], [(sample.facts[:size], sample.effect.added[k][0]) for sample in relatives])
        added.append((kind, inputs, outputs))
    made = []
    for k in range(len(model.made)):
        look = _transferred(form.looks, [(sample.form.looks, sample.effect.made[k][0]) for sample in samples])
        made.append((look, _transferred(facts[size:], [(sample.facts[size:], sample.effect.made[k][1]) for sample in samples])))
    return model._replace(added=tuple(added), made=tuple(made))


def _wiring(effect: Effect) -> tuple:
    return effect.removed, [shape[1:] for shape in effect.added], effect.rewired


def _transferred(here: tuple[int, ...], there: list[tuple[tuple[int, ...], int]]) -> int:
    """The new value for the values here, by (values, the new one) of samples, the most alike first.

    It is like the one value that it was like in all of them; else what it always was beside the same value at some place that
    decided it in all; else unheard of, and matches nothing.
    """
    places = range(len(here))
    for j in places:
        if all(values[j] == new for values, new in there):
            return here[j]
    for j in places:
        decided = {values[j]: new for values, new in there}
        if here[j] in decided and all(decided[values[j]] == new for values, new in there):
            return decided[here[j]]
    new = there[0][1]
    return new if all(value == new for _, value in there) else hash((here, len(there)))  # of ints: the same in every process


class Schemas:
    """All forms that were seen, by number.

    Attributes:
      ops: kind → op, of all nodes met.
      known: per form, in the order of their first appearance.
      occasions: op → (form, place) of every node of a form that is one.
      alike: forms of one rule that hang together in the same way, whatever their operators and looks.
      relatives: forms of one rule with the same operators, however they hang together.
      symmetric: xfer_ids of which two matches that differ in the order of their nodes are one.
    """

    def __init__(self, symmetric: Iterable[int] = ()):
        self.ops: dict[int, int] = {}
        self.number: dict[Form, int] = {}
        self.known: list[Known] = []
        self.occasions: dict[int, list[tuple[int, int]]] = {}
        self.alike: dict[tuple, list[int]] = {}
        self.relatives: dict[tuple, list[int]] = {}
        self.symmetric = frozenset(symmetric)

    def times(self) -> Counter[int]:
        """Per rule, how often it was seen carried out."""
        result = Counter()
        for known in self.known:
            result[known.form.xfer_id] += sum(seen.total() for seen in known.effects.values())
        return result

    def applies(self, number: int, facts: Facts) -> bool:
        """Whether a form applies with these facts. New ones are judged by what was seen of the same kinds: of the form, else of the
        rule's other forms of these operators; where that is nothing, they are trusted if none of the form were refuted."""
        known = self.known[number]
        if facts in known.effects or facts in known.refuted:
            return facts in known.effects
        kinds = facts[: len(known.form.nodes)]
        for forms in ([number], self.relatives[_operators(known.form)]):
            applied, refuted = (any(told) for told in zip(*[self.known[form].verdict(kinds) for form in forms], strict=True))
            if applied or refuted:
                return not refuted
        return not known.refuted

    def to_json(self) -> dict:
        """Lists of numbers: {"symmetric", "ops": [[kind, op], …], "forms": [[form, alone, refuted, [[facts, [[effect, times], …]], …]], …]}."""
        forms = [
            [known.form, known.alone, sorted(known.refuted), [[facts, list(seen.items())] for facts, seen in known.effects.items()]]
            for known in self.known
        ]
        return {"symmetric": sorted(self.symmetric), "ops": sorted(self.ops.items()), "forms": forms}

    @classmethod
    def from_json(cls, saved: dict) -> Self:
        """Raises TypeError, ValueError or KeyError for what `to_json` did not give."""
        schemas = cls(_tuples(saved["symmetric"]))
        schemas.ops.update({_number(kind): _number(op) for kind, op in _tuples(saved["ops"])})
        for form, alone, refuted, effects in _tuples(saved["forms"]):
            form = _form(*form)
            for facts, seen in effects:
                counted = {_effect(form, schemas.ops, *effect): _number(times) for effect, times in seen}
                schemas.add(form, _facts(form, facts)).update(counted)
            known = schemas.known[schemas.number[form]]
            known.alone, known.refuted = alone, {_facts(form, facts) for facts in refuted}
            _expect(all(t in range(len(form.looks)) for t in alone))
        return schemas

    def effect(self, number: int, facts: Facts) -> tuple[Effect | None, bool]:
        """(what a form does with these facts, whether that was seen); None if it was never carried out, nor its like."""
        known = self.known[number]
        seen = known.effects.get(facts)
        if seen:
            return whole(seen), True
        samples = known.usual() or [sample for other in self.alike[_skeleton(known.form)] for sample in self.known[other].usual()]
        if not samples:
            return None, False
        relatives = [sample for other in self.relatives[_operators(known.form)] for sample in self.known[other].usual()]
        effect = by_analogy(known.form, facts, samples, relatives)
        for (kind, _, _), (other, _, _) in zip(effect.added, samples[0].effect.added, strict=False):
            self.ops.setdefault(kind, self.ops[other])  # an unheard-of kind is of the operator that it stands for
        return effect, False

    def add(self, form: Form, facts: Facts) -> Counter[Effect]:
        """Learns that a form applied with these facts; what is known of its effects then."""
        if form not in self.number:
            self.number[form] = len(self.known)
            self.alike.setdefault(_skeleton(form), []).append(len(self.known))
            self.relatives.setdefault(_operators(form), []).append(len(self.known))
            for place, (op, _, _) in enumerate(form.nodes):
                self.occasions.setdefault(op, []).append((len(self.known), place))
            self.known.append(Known(form))
        return self.known[self.number[form]].effects.setdefault(facts, Counter())


def _operators(form: Form) -> tuple:
    return form.xfer_id, tuple([op for op, _, _ in form.nodes])


def _skeleton(form: Form) -> tuple:
    return form.xfer_id, tuple([shape[1:] for shape in form.nodes]), form.operands


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError("what was learnt does not hang together")


def _number(value) -> int:
    _expect(type(value) is int)
    return value


def _facts(form: Form, facts: Facts) -> Facts:
    _expect(len(facts) == len(form.nodes) + len(form.looks))
    return tuple(map(_number, facts))


def _form(xfer_id: int, nodes: tuple, operands: tuple, looks: tuple) -> Form:
    """A form whose tensors are numbered as `lift` does."""
    numbering = Numbering()
    _expect(operands[-1] != ABSENT and tuple([numbering(t) for t in operands]) == operands)
    _expect(all(numbering.shape(_number(op), inputs, outputs) == (op, inputs, outputs) for op, inputs, outputs in nodes))
    _expect({t for _, inputs, outputs in nodes for t in (*inputs, *outputs)} - {ABSENT} == set(range(len(looks))))
    return Form(_number(xfer_id), nodes, operands, tuple(map(_number, looks)))


def _effect(form: Form, ops: dict[int, int], removed: tuple, added: tuple, rewired: tuple, made: tuple) -> Effect:
    """An effect on this form, whose new tensors are numbered as they come up."""
    numbering = Numbering(range(len(form.looks)))
    _expect(all(kind in ops and numbering.shape(kind, inputs, outputs) == (kind, inputs, outputs) for kind, inputs, outputs in added))
    _expect(all(set(outputs) - {ABSENT} for _, _, outputs in added) and len(numbering.number) == len(form.looks) + len(made))
    _expect(all(place in range(len(form.nodes)) for place in removed))
    _expect(all(old in numbering.number and new in numbering.number for old, new in rewired))
    return Effect(removed, added, rewired, tuple([(_number(look), _number(fact)) for look, fact in made]))


def _tuples(value):
    """Lists, however deep, as tuples; numbers alone are allowed in them."""
    if isinstance(value, list):
        return tuple([_tuples(part) for part in value])
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def lift(xfer_id: int, nodes: Iterable[Shape], operands: Iterable[int], looks, ops) -> tuple[Form, tuple[int, ...]]:
    """The form of a match, and the tensors by their local numbers. nodes: their kinds first. looks: of tensors. ops: of kinds."""
    numbering = Numbering()
    local = tuple([numbering(t) for t in operands])
    shapes = tuple([numbering.shape(ops[kind], inputs, outputs) for kind, inputs, outputs in nodes])
    tensors = tuple(numbering.number)
    return Form(xfer_id, shapes, local, tuple([looks[t] for t in tensors])), tensors
