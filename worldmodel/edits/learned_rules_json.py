"""Learnt rules as JSON, lists of numbers, and back with every number checked."""

from rlflow.graph.ir import ABSENT
from worldmodel.edits.learned_rules import LearnedPattern, LearnedRules
from worldmodel.edits.match_patterns import Effect, MatchPattern, Numbering, Signature


def to_json(rules: LearnedRules) -> dict:
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


def from_json(saved: dict) -> LearnedRules:
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
