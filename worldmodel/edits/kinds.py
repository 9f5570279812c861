"""Kinds of places: of what a match consists, wherever it is. What a kind gains in one block of a network, it gains in all others."""

import numpy as np

from worldmodel.edits.schemas import Facts, Schemas

MOST = 2000  # forms with facts that are kinds of their own: those that were carried out most often


class Kinds:
    """xfers: int32 [K], the rule of each kind, ascending. A rule's last kind is of all its places that are of no other."""

    def __init__(self, schemas: Schemas, n_rules: int):
        seen = [(known.form.xfer_id, form, facts) for form, known in enumerate(schemas.known) for facts in known.effects]
        often = sorted(seen, key=lambda kind: -sum(schemas.known[kind[1]].effects[kind[2]].values()))[:MOST]
        others = [(xfer_id, len(schemas.known), ()) for xfer_id in range(n_rules)]
        table = sorted([*often, *others])
        self.xfer_ids = np.array([xfer_id for xfer_id, _, _ in table], np.int32)
        self._number = {(form, facts): kind for kind, (_, form, facts) in enumerate(table)}
        self._last = np.searchsorted(self.xfer_ids, np.arange(n_rules), side="right") - 1

    def of(self, xfer_id: int, form: int | None, facts: Facts) -> int:
        """The kind of a place of this form, None if nobody knows it, with these facts."""
        return self._number.get((form, facts), int(self._last[xfer_id]))
