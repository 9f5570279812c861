"""Match classes: of what a match consists, wherever it is. What a class gains in one block of a network, it gains in
all others."""

import numpy as np

from worldmodel.edits.learned_rules import LearnedRules
from worldmodel.edits.match_patterns import Signature

MOST = 2000  # (pattern, signature) pairs that are classes of their own: those that were rewritten most often


class MatchClasses:
    """xfer_ids: int32 [K], the rule of each class, ascending. A rule's last class is of all its matches that are of no
    other."""

    def __init__(self, rules: LearnedRules, n_rules: int):
        times = {}  # (xfer_id, pattern, signature) → rewrites that were seen
        for number, learned in enumerate(rules.patterns):
            for signature, seen in learned.effects.items():
                times[learned.pattern.xfer_id, number, signature] = sum(seen.values())
        frequent = sorted(times, key=lambda of_class: -times[of_class])[:MOST]
        others = [(xfer_id, len(rules.patterns), ()) for xfer_id in range(n_rules)]
        table = sorted([*frequent, *others])
        self.xfer_ids = np.array([xfer_id for xfer_id, _, _ in table], np.int32)
        self._number = {(pattern, signature): k for k, (_, pattern, signature) in enumerate(table)}
        self._last = np.searchsorted(self.xfer_ids, np.arange(n_rules), side="right") - 1

    def __len__(self) -> int:
        return len(self.xfer_ids)

    def of(self, xfer_id: int, pattern: int | None, signature: Signature) -> int:
        """The class of a match of this pattern (by number; None if it was never seen) with this signature."""
        return self._number.get((pattern, signature), int(self._last[xfer_id]))
