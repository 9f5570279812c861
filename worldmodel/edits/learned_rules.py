"""The learned rules: where each rewrite rule applies and what a rewrite does, independent of the nodes of any graph.

A *match pattern* contains the operator types of a match and their connections. The *signature* of a match contains the
attributes of its operators and the shapes of its tensors. A rule is predicted to apply wherever a pattern and signature
from the data occur, with the effect that the data show. One block of a network thus gives examples for all equal
blocks, and few examples are enough. Pattern and signature together are the *match class*, which controllers choose.

A pattern can predict a match that a recorded state does not contain. The pattern then gets a further condition: a
tensor must have a single consumer, or the signature is *refuted*. A new signature is predicted to apply unless a
signature with the same operators was refuted. If the data show several effects with one signature, the effect with the
most new nodes is used: recorded effects lack new nodes without consumers, and imagined states remove such nodes anyway.

The effect of a match without examples is predicted by analogy with the most similar example. Every new operator and
tensor signature then has the same relation to the match as in the examples. A value without such a relation is replaced
by a number that equals no known value. The uncertainty of such an effect is 0.5 if it removes or adds nodes of unknown
runtime, otherwise 0.25. If no pattern with these connections was ever rewritten, the effect is unknown: a step leaves
the state unchanged and has uncertainty 1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlflow.graph.ir import ABSENT

# (operator type or operator, tensors that the node reads, tensors that the node makes). Nodes of a pattern have an
# operator type, which is a hash of name and domain. Nodes of an effect or a graph have an operator, which is a hash of
# name, domain and attributes.
NodePattern = tuple[int, tuple[int, ...], tuple[int, ...]]
# The signature of a match contains the operators of its nodes, then the signatures of its tensors by local number. For
# the signature of a node see `node_signature`.
Signature = tuple[int, ...]


def node_signature(inputs: Iterable[int], outputs: Iterable[int], signature_of: Callable[[int], int]) -> Signature:
    """Return the signature of a node: signatures of its inputs, number of inputs, signatures of its outputs.

    Args:
      inputs: the tensors that the node reads; an omitted tensor (ABSENT) has signature 0.
      outputs: the tensors that the node makes, likewise.
      signature_of: a function from a tensor to its signature.
    """
    read = [signature_of(t) if t != ABSENT else 0 for t in inputs]
    made = [signature_of(t) if t != ABSENT else 0 for t in outputs]
    return (*read, len(read), *made)


class MatchPattern(NamedTuple):
    """The operator types of a match and their connections.

    Tensors have local numbers 0, 1, … in the order of their first mention in `operands`, then in `nodes`. ABSENT stands
    for an omitted tensor.

    Attributes:
      xfer_id: the rule.
      nodes: the nodes, in the rule's order.
      operands: the local numbers of the tensors of all variables, then of the replaced outputs.
      rank_signatures: the rank signature of each local tensor.
    """

    xfer_id: int
    nodes: tuple[NodePattern, ...]
    operands: tuple[int, ...]
    rank_signatures: tuple[int, ...]


class Effect(NamedTuple):
    """The effect of rewriting a match of a pattern. New tensors have local numbers after the pattern's tensors.

    Attributes:
      removed: positions in the pattern of the nodes that the rewrite itself removes. Other nodes of the match disappear
        only if their outputs have no consumer.
      added: the new nodes, in topological order.
      rewired: (old tensor, new tensor) pairs; all consumers of the old tensor read the new tensor.
      made: (rank signature, signature) of each new tensor.
    """

    removed: tuple[int, ...]
    added: tuple[NodePattern, ...]
    rewired: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...]


class Numbering:
    """A map from tensors to local numbers 0, 1, … in the order of first mention; ABSENT stays ABSENT.

    Attributes:
      number: {tensor: local number}.
    """

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
    """Return the pattern of a match.

    Args:
      xfer_id: the rule.
      nodes: (operator, inputs, outputs) of each matched node, in the rule's order.
      operands: the tensors of all variables, then the replaced outputs.
      rank_signatures: a list or dictionary from tensors to rank signatures.
      op_types: {operator: operator type}.

    Returns:
      (pattern, tensors), where tensors[i] is the tensor with local number i.
    """
    numbering = Numbering()
    local = tuple([numbering(t) for t in operands])
    patterns = tuple([numbering.node(op_types[operator], inputs, outputs) for operator, inputs, outputs in nodes])
    tensors = tuple(numbering.number)
    return MatchPattern(xfer_id, patterns, local, tuple([rank_signatures[t] for t in tensors])), tensors


def operators_of(pattern: MatchPattern) -> tuple:
    """Return a key that is equal for patterns of the same rule with the same operator types."""
    return pattern.xfer_id, tuple([op_type for op_type, _, _ in pattern.nodes])


def wirings_of(pattern: MatchPattern) -> tuple[tuple, tuple]:
    """Return two keys that are equal for patterns of the same rule with equal connections between their nodes.

    Neither key depends on operator types and rank signatures. The second key also ignores the order of the inputs of
    each node. An effect refers to tensors by local number. The operands get the first local numbers whatever the order
    of inputs, so patterns that differ only in this order can share an effect.
    """
    rule = pattern.xfer_id, pattern.operands
    nodes = tuple([(reads, makes) for _, reads, makes in pattern.nodes])
    unordered = tuple([(tuple(sorted(reads)), makes) for reads, makes in nodes])
    return ("ordered", *rule, nodes), ("unordered", *rule, unordered)


class Example(NamedTuple):
    """One observed effect: the effect of rewriting a match with this pattern and signature."""

    pattern: MatchPattern
    signature: Signature
    effect: Effect


# For each example: values that are known before the rewrite, and one new value in the effect of the rewrite.
Cases = list[tuple[tuple[int, ...], int]]


def by_analogy(
    pattern: MatchPattern, signature: Signature, examples: Sequence[Example], relatives: Sequence[Example]
) -> Effect:
    """Predict the effect of a match from the most similar example, with new operators and tensor signatures by analogy.

    Args:
      pattern: the pattern of the match.
      signature: the signature of the match.
      examples: at least one example, all with the connections of `pattern`.
      relatives: examples with the operator types of `pattern`, from which new operators are predicted as well.

    Returns:
      The effect with the structure of the most similar example; its operators and tensor signatures are predicted.
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
    """Return the example that agrees with a match in the most entries of the signature and the rank signatures.

    Args:
      pattern: the pattern of the match.
      signature: the signature of the match.
      examples: at least one example; the first of equally similar examples is returned.
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
    """Predict the new value that belongs to known values, from examples.

    The first of these rules that applies gives the new value:

    1. If the new value equals the known value at one position in all cases, return `here` at this position.
    2. If the known value at one position determines the new value in all cases, and a case agrees with `here` at this
       position, return the new value of this case.
    3. If the new value is the same in all cases, return this value.
    4. Otherwise return a hash, which equals no other value.

    Args:
      here: the known values of the match.
      cases: (known values, new value) of each example.
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
    """What the data show about one pattern.

    Attributes:
      pattern: the pattern.
      effects: {signature with which the pattern applied: {effect: number of observed rewrites}}.
      refuted: signatures with which the pattern was present and the rule did not apply.
      single_consumers: the local tensors that must have exactly one consumer.
    """

    def __init__(self, pattern: MatchPattern):
        self.pattern = pattern
        self.effects: dict[Signature, Counter[Effect]] = {}
        self.refuted: set[Signature] = set()
        self.single_consumers: tuple[int, ...] = ()

    def verdict(self, operators: Signature) -> tuple[bool, bool]:
        """Look up if the pattern applied, and if it was refuted, with these operators and any tensors.

        Args:
          operators: the operators of the nodes, which are the first entries of a signature.

        Returns:
          (applied, refuted): True if the data contain a match with these operators; True if a signature with these
          operators is refuted. Both can be True.
        """
        size = len(operators)
        applied = any(signature[:size] == operators for signature in self.effects)
        return applied, any(signature[:size] == operators for signature in self.refuted)

    def settles(self, signature: Signature) -> bool:
        """Return True if the data decide a signature: the signature is refuted, or a match with it was rewritten."""
        return signature in self.refuted or bool(self.effects.get(signature))

    def examples(self) -> list[Example]:
        """Return one example per rewritten signature, with the effect that `complete_effect` chooses."""
        result = []
        for signature, seen in self.effects.items():
            if seen:
                result.append(Example(self.pattern, signature, complete_effect(seen)))
        return result


def complete_effect(seen: Counter[Effect]) -> Effect:
    """Return the effect with the most new nodes, and of several such effects the most frequent one.

    Recorded edits omit new nodes without consumers, so an effect with more nodes is more complete.

    Args:
      seen: {effect: number of observed rewrites}, at least one effect.
    """
    return max(seen, key=lambda effect: (len(effect.added), seen[effect]))


class LearnedRules:
    """All patterns in the data, with their effects and exceptions. A pattern's number is its index in `patterns`.

    Attributes:
      op_types: {operator: operator type} of all nodes met so far.
      numbers: {pattern: number}.
      patterns: the learned patterns, in the order of their first appearance.
      uses: {operator type: (pattern number, position) of each node of this type in a pattern}.
      same_wiring: {key of `wirings_of`: numbers of the patterns with this key}.
      same_operators: {key of `operators_of`: numbers of the patterns with this key}.
      symmetric: xfer_ids of the symmetric rules, for which two matches with the same nodes in another order are one.
      dreamt: the (pattern number, signature) pairs that first appear in imagined rollouts, as keys (class_rewards.py).
    """

    def __init__(self, symmetric: Iterable[int] = ()):
        self.op_types: dict[int, int] = {}
        self.numbers: dict[MatchPattern, int] = {}
        self.patterns: list[LearnedPattern] = []
        self.uses: dict[int, list[tuple[int, int]]] = {}
        self.same_wiring: dict[tuple, list[int]] = {}
        self.same_operators: dict[tuple, list[int]] = {}
        self.symmetric = frozenset(symmetric)
        self.dreamt: dict[DreamtMatch, None] = {}  # in the order in which they were added

    def add(self, pattern: MatchPattern, signature: Signature) -> Counter[Effect]:
        """Record that a pattern applied with a signature.

        Args:
          pattern: the pattern.
          signature: the signature of the match.

        Returns:
          {effect: number of observed rewrites} with this pattern and signature, which the caller may update.
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
        """Return {xfer_id: number of observed rewrites of the rule}."""
        result = Counter()
        for learned in self.patterns:
            result[learned.pattern.xfer_id] += sum(seen.total() for seen in learned.effects.values())
        return result

    def refutable(self) -> frozenset[int]:
        """Return the xfer_ids of the rules that have a pattern with at least one refuted signature."""
        return frozenset(learned.pattern.xfer_id for learned in self.patterns if learned.refuted)

    def meet(self, several: Iterable[tuple[int, Signature]]) -> None:
        """Announce pairs for which `applies` will be called; do nothing.

        A subclass that asks a network overrides this method to evaluate all pairs in one batch.

        Args:
          several: (pattern number, signature) pairs.
        """

    def expect(self, several: Iterable[tuple[int, Signature]]) -> None:
        """Announce pairs for which `effect` will be called; see `meet`."""

    def applies(self, number: int, signature: Signature) -> bool:
        """Predict if a rule applies to a match with a pattern and a signature.

        If the signature is in the data, the data decide. Otherwise the signatures with the same operators decide:
        False if one of them is refuted, True if the pattern applied with all of them. Without such signatures, the
        patterns with the same operator types decide in the same way. Without any such data, the answer is True unless
        some signature of the pattern is refuted.

        Args:
          number: the number of the pattern.
          signature: the signature of the match.
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
        """Return (effect, seen) of rewriting a match with a pattern and a signature.

        `seen` is True if the data contain the effect, and False if the effect is predicted by analogy. Without a
        rewrite of the pattern or of a pattern with equal connections, the effect is None.

        Args:
          number: the number of the pattern.
          signature: the signature of the match.
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
    2000  # number of the most frequently rewritten (pattern, signature) pairs that get a class of their own
)


class MatchClasses:
    """The K match classes of learned rules.

    Args:
      rules: the learned rules.
      n_rules: N, the number of rules.

    Attributes:
      table: (xfer_id, pattern number, signature) of each class, ascending. The last class of each rule contains all its
      matches without a class of their own. Its pattern number is the number of patterns, and its signature is ().
      xfer_ids: int32 [K], the rule of each class, ascending.
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
        """Return bool [k], True for each of the classes, int [k], that is the last class of its rule."""
        return self._last[self.xfer_ids[classes]] == classes

    def of(self, xfer_id: int, pattern: int | None, signature: Signature) -> int:
        """Return the index in `table` of the match class of a match.

        Args:
          xfer_id: the rule.
          pattern: the number of the pattern; None if the data do not contain the pattern.
          signature: the signature of the match.
        """
        return self._number.get((pattern, signature), int(self._last[xfer_id]))


def rules_to_json(rules: LearnedRules) -> dict:
    """Return the learned rules as JSON values.

    Returns:
      {"symmetric": xfer_ids, "op_types": [[operator, operator type], …], "patterns": [[pattern, single consumers,
      refuted signatures, effects], …], "dreamt": [[pattern number, signature], …]}. The effects of a pattern are
      [[signature, [[effect, number of observed rewrites], …]], …].
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
    """Restore the learned rules from the values that `rules_to_json` returned.

    Raises:
      TypeError, ValueError, KeyError: the values are damaged or do not fit together.
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
    """Return the pattern with these fields, after checking that its tensors are numbered by first mention."""
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
    """Return the effect with these fields, after checking that its new tensors are numbered by first mention."""
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
    """Return nested lists of integers as nested tuples; raise TypeError for any other element."""
    if isinstance(value, list):
        return tuple([_tuples(part) for part in value])
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value
