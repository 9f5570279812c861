"""What ends the reading of a case early: open decisions, what cannot be shown, and the budget of questions to z3."""

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
    """An operator has no definition in rlflow.rules.prover.semantics."""
