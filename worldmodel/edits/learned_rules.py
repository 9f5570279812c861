"""The learned rules: where each rewrite rule applies and what it does, independent of the nodes of any graph.

A *match pattern* holds the operators of a match and their connections. Its *signature* holds the attributes of the
operators and the shapes of the tensors. A rule applies where its pattern was seen with this signature, with the effect
that was seen. One block of a network thus teaches all equal blocks, and few examples are enough. Pattern and signature
together are the *match class*, the unit of choice of controllers.

Exceptions are learned where a pattern predicts a match that is absent. A new signature is accepted unless a signature
with the same operators was refuted. If several effects were seen with one signature, the most complete one is used; a
dream removes unread nodes anyway.

The effect of a match without examples is predicted by analogy with the most similar example. Every new operator and
tensor signature has the same relation to this match as in the examples. A value without such a relation matches
nothing. The uncertainty of such an effect is 1/2 if it makes nodes of unknown cost, and 1/4 otherwise. If the rule was
never carried out, nothing happens and the uncertainty is 1.
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
    """Return the signatures of a node's inputs, their number, and the signatures of its outputs; 0 for an omitted
    tensor.

    Args:
      inputs: tensors.
      outputs: tensors.
      signature_of: tensor → signature.
    """
    read = [signature_of(t) if t != ABSENT else 0 for t in inputs]
    made = [signature_of(t) if t != ABSENT else 0 for t in outputs]
    return (*read, len(read), *made)


class MatchPattern(NamedTuple):
    """The operators of a match and their connections. Tensors are local numbers; ABSENT is an omitted tensor.

    Attributes:
      xfer_id: the rule.
      nodes: in the rule's order.
      operands: the values of the rule's variables, then the replaced tensor.
      rank_signatures: per tensor.
    """

    xfer_id: int
    nodes: tuple[NodePattern, ...]
    operands: tuple[int, ...]
    rank_signatures: tuple[int, ...]


class Effect(NamedTuple):
    """The effect of rewriting a pattern. New tensors continue the local numbers of the pattern.

    Attributes:
      removed: positions of nodes that the rewrite always removes; other nodes are removed when nothing reads them.
      added: nodes in topological order.
      rewired: (tensor, the tensor that its consumers read instead).
      made: (rank signature, signature) of every new tensor.
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
    """Return the pattern of a match, and its tensors by local number.

    Args:
      xfer_id: the rule.
      nodes: (operator, inputs, outputs).
      operands: the values of the rule's variables, then the replaced tensor.
      rank_signatures: tensor → rank signature.
      op_types: operator → op type.
    """
    numbering = Numbering()
    local = tuple([numbering(t) for t in operands])
    patterns = tuple([numbering.node(op_types[operator], inputs, outputs) for operator, inputs, outputs in nodes])
    tensors = tuple(numbering.number)
    return MatchPattern(xfer_id, patterns, local, tuple([rank_signatures[t] for t in tensors])), tensors


def operators_of(pattern: MatchPattern) -> tuple:
    """Return a key that is equal for patterns of one rule with the same op types, independent of their connections."""
    return pattern.xfer_id, tuple([op_type for op_type, _, _ in pattern.nodes])


def wirings_of(pattern: MatchPattern) -> tuple[tuple, tuple]:
    """Return two keys for patterns of one rule with equal connections, independent of op types and rank signatures.

    The first key is the closer one. The second also ignores the order of the inputs of nodes. Rules that match in both
    orders have one effect, because an effect names tensors by their operand number.
    """
    rule = pattern.xfer_id, pattern.operands
    nodes = tuple([(reads, makes) for _, reads, makes in pattern.nodes])
    unordered = tuple([(tuple(sorted(reads)), makes) for reads, makes in nodes])
    return ("ordered", *rule, nodes), ("unordered", *rule, unordered)


class Example(NamedTuple):
    """The observed effect of rewriting a pattern with some signature."""

    pattern: MatchPattern
    signature: Signature
    effect: Effect


Cases = list[tuple[tuple[int, ...], int]]  # (values of an example, the new value there)


def by_analogy(
    pattern: MatchPattern, signature: Signature, examples: Sequence[Example], relatives: Sequence[Example]
) -> Effect:
    """Predict an effect: the effect of the most similar example, with operators and tensors replaced by analogy.

    Args:
      pattern: the pattern of the match.
      signature: its signature.
      examples: of patterns with equal connections; at least one.
      relatives: of patterns with equal op types; they can show new operators.
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
    """Return the first example that agrees with most entries of the signature and the rank signatures.

    Args:
      pattern: the pattern of the match.
      signature: its signature.
      examples: at least one.
    """
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
    """Return the new value for the values here.

    It equals the value at the position that it equalled in all cases. Otherwise it is the value that always appeared
    together with the same value at a position that determined it in all cases. Otherwise it is a value that matches
    nothing.
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
    return hash((here, len(cases)))  # a hash of integers is the same in every process


DreamtMatch = tuple[int, Signature]  # number of a pattern, signature


class LearnedPattern:
    """The knowledge about one pattern.

    Attributes:
      effects: signature with which the pattern applied → effect → number of times.
      refuted: signatures with which the pattern did not apply.
      single_consumers: local tensors that must have a single consumer.
    """

    def __init__(self, pattern: MatchPattern):
        self.pattern = pattern
        self.effects: dict[Signature, Counter[Effect]] = {}
        self.refuted: set[Signature] = set()
        self.single_consumers: tuple[int, ...] = ()

    def verdict(self, operators: Signature) -> tuple[bool, bool]:
        """Return whether the pattern applied with these operators, and whether it was refuted with them."""
        size = len(operators)
        applied = any(signature[:size] == operators for signature in self.effects)
        return applied, any(signature[:size] == operators for signature in self.refuted)

    def examples(self) -> list[Example]:
        """Return one example per rewritten signature, with its most complete effect."""
        result = []
        for signature, seen in self.effects.items():
            if seen:
                result.append(Example(self.pattern, signature, complete_effect(seen)))
        return result


def complete_effect(seen: Counter[Effect]) -> Effect:
    """Return the effect with the most new nodes, then the most frequent one. Logs omit new nodes that nothing reads."""
    return max(seen, key=lambda effect: (len(effect.added), seen[effect]))


class LearnedRules:
    """All patterns that were seen, by number.

    Attributes:
      op_types: operator → op type, of all nodes met.
      patterns: in the order of their first appearance.
      uses: op type → (pattern, position) of every pattern node of this type.
      same_wiring: patterns of one rule with equal connections, by both keys of `wirings_of`.
      same_operators: patterns of one rule with equal op types.
      symmetric: xfer_ids of rules where two matches that differ only in the order of their nodes are one match.
      dreamt: match classes that first appear in imagined rollouts (class_rewards.py).
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
        """Record that a pattern applied with this signature, and return the counter of its known effects.

        Args:
          pattern: the pattern.
          signature: the signature.
        """
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
        """Return the number of observed rewrites per rule."""
        result = Counter()
        for learned in self.patterns:
            result[learned.pattern.xfer_id] += sum(seen.total() for seen in learned.effects.values())
        return result

    def refutable(self) -> frozenset[int]:
        """Return the xfer_ids of rules with a refuted pattern."""
        return frozenset(learned.pattern.xfer_id for learned in self.patterns if learned.refuted)

    def meet(self, several: Iterable[tuple[int, Signature]]) -> None:
        """Announce (pattern number, signature) pairs that will be queried, so that a subclass can batch them."""

    def applies(self, number: int, signature: Signature) -> bool:
        """Return whether a pattern applies with this signature.

        A new signature is judged by earlier ones with the same operators: of the pattern, else of the rule's other
        patterns with these op types. Without earlier ones the pattern applies unless one of its signatures was refuted.

        Args:
          number: the number of the pattern.
          signature: the signature.
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
        """Return the effect of a pattern with this signature, and whether that effect was seen rather than predicted.

        The effect is None if neither the pattern nor a similar one was ever rewritten.

        Args:
          number: the number of the pattern.
          signature: the signature.
        """
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
            # An unknown operator has the type of the operator that it replaces.
            self.op_types.setdefault(operator, self.op_types[other])
        return effect, False

    def _examples(self, numbers: Iterable[int]) -> list[Example]:
        return [example for number in numbers for example in self.patterns[number].examples()]


MAX_MATCH_CLASSES = (
    2000  # (pattern, signature) pairs with a class of their own: the most frequently rewritten ones
)


class MatchClasses:
    """The K match classes.

    Attributes:
      table: (rule, number of the pattern, signature) of each class, ascending. The last class of a rule holds all its
        other matches; its pattern number is that after the last pattern, and its signature is empty.
      xfer_ids: int32 [K], the rules.
    """

    def __init__(self, rules: LearnedRules, n_rules: int):
        times = {}  # (xfer_id, pattern, signature) → observed rewrites
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
        """Return bool [k]: whether these classes are the last of their rules, which hold all other matches."""
        return self._last[self.xfer_ids[classes]] == classes

    def of(self, xfer_id: int, pattern: int | None, signature: Signature) -> int:
        """Return the class of a match.

        Args:
          xfer_id: the rule.
          pattern: the number of the pattern; None if it was never seen.
          signature: the signature.
        """
        return self._number.get((pattern, signature), int(self._last[xfer_id]))


def rules_to_json(rules: LearnedRules) -> dict:
    """Return the rules as JSON values.

    {"symmetric", "op_types": [[operator, op type], …], "patterns": [[pattern, single consumers, refuted, effects], …],
    "dreamt"} with effects [[signature, [[effect, times], …]], …].
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
    """Restore the rules from the result of `rules_to_json`.

    Raises:
      TypeError, ValueError, KeyError: the values do not fit together.
    """
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
        raise ValueError("the learned rules are inconsistent")


def _number(value) -> int:
    _expect(type(value) is int)
    return value


def _signature(pattern: MatchPattern, signature: Signature) -> Signature:
    _expect(len(signature) == len(pattern.nodes) + len(pattern.rank_signatures))
    return tuple(map(_number, signature))


def _pattern(xfer_id: int, nodes: tuple, operands: tuple, rank_signatures: tuple) -> MatchPattern:
    """Return a pattern after checking that `lift` would number its tensors in this way."""
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
    """Return an effect on this pattern after checking that new tensors are numbered by first mention."""
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
    """Return nested lists as tuples; only integers are allowed as elements."""
    if isinstance(value, list):
        return tuple([_tuples(part) for part in value])
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value
