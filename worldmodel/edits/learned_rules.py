"""What is learnt of a rewriting system: where its rules apply and what they do, without saying where.

A rule applies where a pattern was seen with this signature, and there it does what it did before: what was seen in one
block of a network is known of all others. Few examples are enough, and what is not known is said. Where patterns
promise a match that is not there, the exception is learnt (exception_learning.py). New signatures are trusted while
none with the same operators were refuted. Of several effects of one pattern with the same signatures the fullest is
kept: what nobody reads is swept away in the dream as in reality.
"""

from collections import Counter
from collections.abc import Iterable

from worldmodel.edits.analogy import Example, by_analogy
from worldmodel.edits.match_patterns import Effect, MatchPattern, Signature, operators_of, wirings_of

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
