"""Match classes: of what a match consists, wherever it is. What a class gains in one block of a network, it gains in
all others."""

import numpy as np

from worldmodel.edits.learned_rules import LearnedRules
from worldmodel.edits.match_patterns import Signature

MOST = 2000  # (pattern, signature) pairs that are classes of their own: those that were rewritten most often


class MatchClasses:
    """table: (rule, pattern by number, signature) of each of the K classes, ascending. xfer_ids: int32 [K], the rules.
    A rule's last class is of all its matches that are of no other: its pattern is of no number, its signature
    empty."""

    def __init__(self, rules: LearnedRules, n_rules: int):
        times = {}  # (xfer_id, pattern, signature) → rewrites that were seen
        for number, learned in enumerate(rules.patterns):
            for signature, seen in learned.effects.items():
                times[learned.pattern.xfer_id, number, signature] = sum(seen.values())
        frequent = sorted(times, key=lambda of_class: -times[of_class])[:MOST]
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
