"""Decisions of a case, which a depth-first walk over all of them makes one by one."""

from rlflow.rules.prover.interrupts import Fork, NotHere


class Picks:
    """Decisions of a case, given in advance; one that is not given is a `Fork`."""

    picks: dict

    def pick(self, key: str, options: tuple):
        if key not in self.picks:
            if not options:
                raise NotHere
            if len(options) > 1:
                raise Fork([(key, option) for option in options])
            self.picks[key] = options[0]
        return self.picks[key]

    def picked(self, key: str):
        return self.picks.get(key)
