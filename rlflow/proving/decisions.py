"""Hold the decisions of a case, and the exceptions that end the reading of a case early.

A decision that is still open raises `Fork`; the walk over all cases then tries each option. The other exceptions say
that a case does not exist, that the rule does not match there, or that the algebra cannot decide. `Budget` counts
questions to z3 rather than seconds, so that a proof does not depend on the machine.
"""

from dataclasses import dataclass


class Fork(Exception):
    """A decision that the assumptions leave open; `options` are assumptions to try one by one."""

    def __init__(self, options: list):
        self.options = options


class Unprovable(Exception):
    """What is asked is beyond this algebra; the message says what."""


class Infeasible(Exception):
    """The assumptions contradict each other: there is no such case."""


class Border(Exception):
    """A comparison that changes its answer inside the range of a bound index, at `position`."""

    def __init__(self, variable, position):
        self.variable, self.position = variable, position


class OutOfBudget(Exception):
    """More questions to z3 than were allowed."""


@dataclass
class Budget:
    """How many questions to z3 are left; counted, since seconds would make a proof depend on the machine."""

    questions: int

    def spend(self) -> None:
        self.questions -= 1
        if self.questions < 0:
            raise OutOfBudget


class NotHere(Exception):
    """The rule does not match or refuses in this case."""


class Undefined(Exception):
    """An operator has no definition in rlflow.proving.semantics."""


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
