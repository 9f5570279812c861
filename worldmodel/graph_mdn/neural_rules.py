"""The learnt rules of "edits" with a network in place of its tables: where patterns apply, and what they do there."""

from collections.abc import Iterable
from typing import Self

from worldmodel.edits.learned_rules import LearnedRules
from worldmodel.edits.match_patterns import Effect, Signature
from worldmodel.graph_mdn.judge import Judge

SURE = 0.9  # an effect of at least this probability counts as known


class NeuralRules(LearnedRules):
    """The patterns are those that were seen; the judge says the rest. Whether a signature was seen makes no difference.
    A rule that no match was ever seen to refute is trusted: a network that saw no such match cannot say what one is.

    judge: its vocabulary is of these rules. judged: rules, by xfer_id, that it is asked whether they apply.
    """

    judge: Judge
    judged: frozenset[int]

    @classmethod
    def of(cls, rules: LearnedRules, judge: Judge) -> Self:
        """Shares all that was learnt with `rules`."""
        result = cls.__new__(cls)
        result.__dict__.update(rules.__dict__)
        result.judge = judge
        result.judged = rules.refutable()
        return result

    def meet(self, several: Iterable[tuple[int, Signature]]) -> None:
        self.judge.consider([(self.patterns[number].pattern, signature) for number, signature in several])

    def applies(self, number: int, signature: Signature) -> bool:
        pattern = self.patterns[number].pattern
        return pattern.xfer_id not in self.judged or self.judge((pattern, signature)).applies >= 0.5

    def effect(self, number: int, signature: Signature) -> tuple[Effect | None, bool]:
        """(the likeliest effect, whether the network is sure of it); None if the like was never rewritten."""
        _, effect, sure = self.judge((self.patterns[number].pattern, signature))
        return effect, sure >= SURE
