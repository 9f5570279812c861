"""The learnt rules: where each rewrite rule applies and what it does, without naming a node of any graph.

A *match pattern* says which operators a match consists of and how they are connected. Its *signature* holds the
attributes of the operators and the shapes of the tensors. A rule applies where its pattern was seen with this
signature, and does there what it did before. What was seen in one block of a network is thus known of all others, and
few examples are enough. Pattern and signature together make the *match class*, which is what controllers choose
among.

Where a pattern promises a match that is not there, the exception is learnt. New signatures are trusted while none
with the same operators was refuted. Of several effects with one signature the fullest is kept, since a dream removes
unread nodes.

For a match whose like was never rewritten, the most similar example says what happens. Every new operator and tensor
signature relates to this match as in the examples. A value without such a relation matches nothing. Such an effect
has an uncertainty of 1/2 if its result was never met and 1/4 if it was. If the rule itself was never carried out,
nothing happens and the uncertainty is 1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlflow.graph.ir import ABSENT

# op type (in a pattern) or operator (in an effect and in a graph), tensors read, tensors made
NodePattern = tuple[int, tuple[int, ...], tuple[int, ...]]
Signature = tuple[int, ...]  # the operators of a pattern's nodes, then the tensor signatures by local number


def node_signature(inputs: Iterable[int], outputs: Iterable[int], signature_of: Callable[[int], int]) -> Signature:
    """The signatures of the tensors that a node reads, how many they are, and of those that it makes; 0 where one is
    omitted."""
    read = [signature_of(t) if t != ABSENT else 0 for t in inputs]
    made = [signature_of(t) if t != ABSENT else 0 for t in outputs]
    return (*read, len(read), *made)


class MatchPattern(NamedTuple):
    """xfer_id; nodes: in the rule's order; operands: what the variables hold, then what is replaced; rank_signatures:
    of each tensor.

    Tensors are local numbers, ABSENT for an omitted one.
    """

    xfer_id: int
    nodes: tuple[NodePattern, ...]
    operands: tuple[int, ...]
    rank_signatures: tuple[int, ...]


class Effect(NamedTuple):
    """What rewriting a pattern does; local numbers go on behind the pattern's own for the tensors that it makes.

    removed: positions of nodes that go whatever else is there (others go when nothing reads them any more). added:
    nodes, in topological order. rewired: (tensor, the one that its consumers read instead). made: (rank signature,
    signature) of every new tensor.
    """

    removed: tuple[int, ...]
    added: tuple[NodePattern, ...]
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

    def node(self, operator: int, inputs: Iterable[int], outputs: Iterable[int]) -> NodePattern:
        return operator, tuple([self(t) for t in inputs]), tuple([self(t) for t in outputs])


def lift(
    xfer_id: int, nodes: Iterable[NodePattern], operands: Iterable[int], rank_signatures, op_types: Mapping[int, int]
) -> tuple[MatchPattern, tuple[int, ...]]:
    """The pattern of a match, and the tensors by their local numbers.

    nodes: (operator, inputs, outputs). rank_signatures: tensor → its own. op_types: operator → op type.
    """
    numbering = Numbering()
    local = tuple([numbering(t) for t in operands])
    patterns = tuple([numbering.node(op_types[operator], inputs, outputs) for operator, inputs, outputs in nodes])
    tensors = tuple(numbering.number)
    return MatchPattern(xfer_id, patterns, local, tuple([rank_signatures[t] for t in tensors])), tensors


def operators_of(pattern: MatchPattern) -> tuple:
    """Equal for patterns of one rule with the same op types, however they hang together."""
    return pattern.xfer_id, tuple([op_type for op_type, _, _ in pattern.nodes])


def wirings_of(pattern: MatchPattern) -> tuple[tuple, tuple]:
    """Two keys, the closer one first. Equal for patterns of one rule that hang together in the same way, whatever their
    op types and rank signatures; and of the second also in whatever order their nodes read: where a rule matches in
    both orders, its effect, which names tensors by the operands that they are first, is the same."""
    rule = pattern.xfer_id, pattern.operands
    nodes = tuple([(reads, makes) for _, reads, makes in pattern.nodes])
    unordered = tuple([(tuple(sorted(reads)), makes) for reads, makes in nodes])
    return ("ordered", *rule, nodes), ("unordered", *rule, unordered)


class Example(NamedTuple):
    """What rewriting a pattern with some signature did."""

    pattern: MatchPattern
    signature: Signature
    effect: Effect


Cases = list[tuple[tuple[int, ...], int]]  # (values of an example, the new value there)


def by_analogy(
    pattern: MatchPattern, signature: Signature, examples: Sequence[Example], relatives: Sequence[Example]
) -> Effect:
    """What the rule does here: as to the most alike example, with the operators and tensors that stand in for its own.

    examples: of patterns that hang together in the same way, at least one. relatives: of all with the same op types,
    which may tell new operators.
    """
    model = most_alike(pattern, signature, examples).effect
    examples = [example for example in examples if _wiring_of_effect(example.effect) == _wiring_of_effect(model)]
    relatives = examples + [example for example in relatives if len(example.effect.added) == len(model.added)]
    n_nodes = len(pattern.nodes)
    added = []
    for k, (_, inputs, outputs) in enumerate(model.added):
        cases: Cases = [(example.signature[:n_nodes], example.effect.added[k][0]) for example in relatives]
        added.append((_transferred(signature[:n_nodes], cases), inputs, outputs))
    made = []
    for k in range(len(model.made)):
        ranks: Cases = [(example.pattern.rank_signatures, example.effect.made[k][0]) for example in examples]
        shapes: Cases = [(example.signature[n_nodes:], example.effect.made[k][1]) for example in examples]
        made.append((_transferred(pattern.rank_signatures, ranks), _transferred(signature[n_nodes:], shapes)))
    return model._replace(added=tuple(added), made=tuple(made))


def most_alike(pattern: MatchPattern, signature: Signature, examples: Sequence[Example]) -> Example:
    """The first of those that agree with most of the signature and the rank signatures."""
    here = *signature, *pattern.rank_signatures
    best, most = examples[0], -1
    for example in examples:
        there = *example.signature, *example.pattern.rank_signatures
        equal = sum(a == b for a, b in zip(here, there, strict=True))
        if equal > most:
            best, most = example, equal
    return best


def _wiring_of_effect(effect: Effect) -> tuple:
    return effect.removed, [node[1:] for node in effect.added], effect.rewired


def _transferred(here: tuple[int, ...], cases: Cases) -> int:
    """The new value for the values here.

    It is like the one value that it was like in all cases; else what it always was beside the same value at some
    position that decided it in all; else unheard of, and matches nothing.
    """
    for position, value in enumerate(here):
        if all(values[position] == new for values, new in cases):
            return value
    for position, value in enumerate(here):
        decided = {values[position]: new for values, new in cases}
        if value in decided and all(decided[values[position]] == new for values, new in cases):
            return decided[value]
    first = cases[0][1]
    if all(new == first for _, new in cases):
        return first
    return hash((here, len(cases)))  # of ints: the same in every process


DreamtMatch = tuple[int, Signature]  # of a pattern, by number


class LearnedPattern:
    """What is known of one pattern.

    effects: per signature with which it applied, how often it did what. refuted: signatures with which it did not.
    single_consumers: local tensors that must have one consumer, which no pattern says.
    """

    def __init__(self, pattern: MatchPattern):
        self.pattern = pattern
        self.effects: dict[Signature, Counter[Effect]] = {}
        self.refuted: set[Signature] = set()
        self.single_consumers: tuple[int, ...] = ()

    def verdict(self, operators: Signature) -> tuple[bool, bool]:
        """(whether it applied to such operators, whether it was refuted for such)."""
        size = len(operators)
        applied = any(signature[:size] == operators for signature in self.effects)
        return applied, any(signature[:size] == operators for signature in self.refuted)

    def examples(self) -> list[Example]:
        """Per signature with which it was rewritten, what that mostly did."""
        result = []
        for signature, seen in self.effects.items():
            if seen:
                result.append(Example(self.pattern, signature, complete_effect(seen)))
        return result


def complete_effect(seen: Counter[Effect]) -> Effect:
    """Of what a pattern did, that which left out least (a new node that nothing reads is not recorded); then the most
    frequent."""
    return max(seen, key=lambda effect: (len(effect.added), seen[effect]))


class LearnedRules:
    """All patterns that were seen, by number.

    Attributes:
      op_types: operator → op type, of all nodes met.
      patterns: in the order of their first appearance.
      uses: op type → (pattern, position) of every node of a pattern that is one.
      same_wiring: patterns of one rule that hang together in the same way, by both keys of `wirings_of`.
      same_operators: patterns of one rule with the same op types, however they hang together.
      symmetric: xfer_ids of which two matches that differ in the order of their nodes are one.
      dreamt: matches that no data had and dreams came to (dreamt_classes.py).
    """

    def __init__(self, symmetric: Iterable[int] = ()):
        self.op_types: dict[int, int] = {}
        self.numbers: dict[MatchPattern, int] = {}
        self.patterns: list[LearnedPattern] = []
        self.uses: dict[int, list[tuple[int, int]]] = {}
        self.same_wiring: dict[tuple, list[int]] = {}
        self.same_operators: dict[tuple, list[int]] = {}
        self.symmetric = frozenset(symmetric)
        self.dreamt: dict[DreamtMatch, None] = {}  # in the order in which they came

    def add(self, pattern: MatchPattern, signature: Signature) -> Counter[Effect]:
        """Learns that a pattern applied with this signature; what is known of its effects then."""
        if pattern not in self.numbers:
            number = self.numbers[pattern] = len(self.patterns)
            for key in wirings_of(pattern):
                self.same_wiring.setdefault(key, []).append(number)
            self.same_operators.setdefault(operators_of(pattern), []).append(number)
            for position, (op_type, _, _) in enumerate(pattern.nodes):
                self.uses.setdefault(op_type, []).append((number, position))
            self.patterns.append(LearnedPattern(pattern))
        return self.patterns[self.numbers[pattern]].effects.setdefault(signature, Counter())

    def times(self) -> Counter[int]:
        """Per rule, how many rewrites of it were seen."""
        result = Counter()
        for learned in self.patterns:
            result[learned.pattern.xfer_id] += sum(seen.total() for seen in learned.effects.values())
        return result

    def refutable(self) -> frozenset[int]:
        """Rules, by xfer_id, that were seen not to apply where a pattern of theirs was."""
        return frozenset(learned.pattern.xfer_id for learned in self.patterns if learned.refuted)

    def meet(self, several: Iterable[tuple[int, Signature]]) -> None:
        """These patterns, by number, with these signatures will be asked about; who answers faster together can."""

    def applies(self, number: int, signature: Signature) -> bool:
        """Whether a pattern applies with this signature.

        New ones are judged by what was seen of the same operators: of the pattern, else of the rule's other patterns of
        these op types; where that is nothing, they are trusted if none of the pattern were refuted.
        """
        learned = self.patterns[number]
        if signature in learned.effects or signature in learned.refuted:
            return signature in learned.effects
        operators = signature[: len(learned.pattern.nodes)]
        for numbers in ([number], self.same_operators[operators_of(learned.pattern)]):
            verdicts = [self.patterns[other].verdict(operators) for other in numbers]
            applied, refuted = any(applied for applied, _ in verdicts), any(refuted for _, refuted in verdicts)
            if applied or refuted:
                return not refuted
        return not learned.refuted

    def effect(self, number: int, signature: Signature) -> tuple[Effect | None, bool]:
        """(what a pattern does with this signature, whether that was seen); None if neither it nor its like was ever
        rewritten."""
        learned = self.patterns[number]
        seen = learned.effects.get(signature)
        if seen:
            return complete_effect(seen), True
        examples = learned.examples()
        for key in wirings_of(learned.pattern):
            examples = examples or self._examples(self.same_wiring[key])
        if not examples:
            return None, False
        relatives = self._examples(self.same_operators[operators_of(learned.pattern)])
        effect = by_analogy(learned.pattern, signature, examples, relatives)
        for (operator, _, _), (other, _, _) in zip(effect.added, examples[0].effect.added, strict=False):
            # an unheard-of operator is of the type of what it stands for
            self.op_types.setdefault(operator, self.op_types[other])
        return effect, False

    def _examples(self, numbers: Iterable[int]) -> list[Example]:
        return [example for number in numbers for example in self.patterns[number].examples()]


MAX_MATCH_CLASSES = (
    2000  # (pattern, signature) pairs that are classes of their own: those that were rewritten most often
)


class MatchClasses:
    """table: (rule, pattern by number, signature) of each of the K classes, ascending. xfer_ids: int32 [K], the rules.
    A rule's last class is of all its matches that are of no other: its pattern is of no number, its signature
    empty."""

    def __init__(self, rules: LearnedRules, n_rules: int):
        times = {}  # (xfer_id, pattern, signature) → rewrites that were seen
        for number, learned in enumerate(rules.patterns):
            for signature, seen in learned.effects.items():
                times[learned.pattern.xfer_id, number, signature] = sum(seen.values())
        frequent = sorted(times, key=lambda of_class: -times[of_class])[:MAX_MATCH_CLASSES]
        dreamt = [(rules.patterns[number].pattern.xfer_id, number, signature) for number, signature in rules.dreamt]
        others = [(xfer_id, len(rules.patterns), ()) for xfer_id in range(n_rules)]
        self.table = sorted({*frequent, *dreamt, *others})
        self.xfer_ids = np.array([xfer_id for xfer_id, _, _ in self.table], np.int32)
        self._number = {(pattern, signature): k for k, (_, pattern, signature) in enumerate(self.table)}
        self._last = np.searchsorted(self.xfer_ids, np.arange(n_rules), side="right") - 1

    def __len__(self) -> int:
        return len(self.xfer_ids)

    def is_last(self, classes: np.ndarray) -> np.ndarray:
        """bool [k]: whether they are of what is in no other class of the rule."""
        return self._last[self.xfer_ids[classes]] == classes

    def of(self, xfer_id: int, pattern: int | None, signature: Signature) -> int:
        """The class of a match of this pattern (by number; None if it was never seen) with this signature."""
        return self._number.get((pattern, signature), int(self._last[xfer_id]))


def rules_to_json(rules: LearnedRules) -> dict:
    """{"symmetric", "op_types": [[operator, op type], …], "patterns": [[pattern, single consumers, refuted, effects],
    …]}.

    effects: [[signature, [[effect, times], …]], …].
    """
    return {
        "symmetric": sorted(rules.symmetric),
        "op_types": sorted(rules.op_types.items()),
        "patterns": [_pattern_to_json(learned) for learned in rules.patterns],
        "dreamt": list(rules.dreamt),
    }


def _pattern_to_json(learned: LearnedPattern) -> list:
    effects = [[signature, list(seen.items())] for signature, seen in learned.effects.items()]
    return [learned.pattern, learned.single_consumers, sorted(learned.refuted), effects]


def rules_from_json(saved: dict) -> LearnedRules:
    """Raises TypeError, ValueError or KeyError for what `to_json` did not give."""
    rules = LearnedRules(_tuples(saved["symmetric"]))
    for operator, op_type in _tuples(saved["op_types"]):
        rules.op_types[_number(operator)] = _number(op_type)
    for pattern, single_consumers, refuted, effects in _tuples(saved["patterns"]):
        pattern = _pattern(*pattern)
        for signature, seen in effects:
            counted = {_effect(pattern, rules.op_types, *effect): _number(times) for effect, times in seen}
            rules.add(pattern, _signature(pattern, signature)).update(counted)
        learned = rules.patterns[rules.numbers[pattern]]
        learned.single_consumers = single_consumers
        learned.refuted = {_signature(pattern, signature) for signature in refuted}
        _expect(all(t in range(len(pattern.rank_signatures)) for t in single_consumers))
    for number, signature in _tuples(saved["dreamt"]):
        _expect(_number(number) in range(len(rules.patterns)))
        rules.dreamt[number, _signature(rules.patterns[number].pattern, signature)] = None
    return rules


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError("what was learnt does not hang together")


def _number(value) -> int:
    _expect(type(value) is int)
    return value


def _signature(pattern: MatchPattern, signature: Signature) -> Signature:
    _expect(len(signature) == len(pattern.nodes) + len(pattern.rank_signatures))
    return tuple(map(_number, signature))


def _pattern(xfer_id: int, nodes: tuple, operands: tuple, rank_signatures: tuple) -> MatchPattern:
    """A pattern whose tensors are numbered as `lift` does."""
    numbering, tensors = Numbering(), set()
    _expect(operands[-1] != ABSENT and tuple([numbering(t) for t in operands]) == operands)
    for op_type, inputs, outputs in nodes:
        _expect(numbering.node(_number(op_type), inputs, outputs) == (op_type, inputs, outputs))
        tensors.update(inputs, outputs)
    _expect(tensors - {ABSENT} == set(range(len(rank_signatures))))
    return MatchPattern(_number(xfer_id), nodes, operands, tuple(map(_number, rank_signatures)))


def _effect(
    pattern: MatchPattern, op_types: dict[int, int], removed: tuple, added: tuple, rewired: tuple, made: tuple
) -> Effect:
    """An effect on this pattern, whose new tensors are numbered as they come up."""
    known = len(pattern.rank_signatures)
    numbering = Numbering(range(known))
    for operator, inputs, outputs in added:
        _expect(operator in op_types and numbering.node(operator, inputs, outputs) == (operator, inputs, outputs))
        _expect(bool(set(outputs) - {ABSENT}))
    _expect(len(numbering.number) == known + len(made))
    _expect(all(position in range(len(pattern.nodes)) for position in removed))
    _expect(all(old in numbering.number and new in numbering.number for old, new in rewired))
    return Effect(removed, added, rewired, tuple([(_number(rank), _number(signature)) for rank, signature in made]))


def _tuples(value):
    """Lists, however deep, as tuples; numbers alone are allowed in them."""
    if isinstance(value, list):
        return tuple([_tuples(part) for part in value])
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value
