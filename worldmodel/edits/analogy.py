"""What a rule does to a match whose like was never rewritten, by what it did to others.

The most alike example says what happens, and every new operator and tensor signature stands to this match as those of
the examples stood to theirs. What stands in no such relation is unheard of, and matches nothing. That is an uncertainty
of ½ if what comes was never met, ¼ if it was; where not even the rule was carried out, nothing happens and the
uncertainty is 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.edits.match_patterns import Effect, MatchPattern, Signature


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
    examples = [example for example in examples if _wiring(example.effect) == _wiring(model)]
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


def _wiring(effect: Effect) -> tuple:
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
