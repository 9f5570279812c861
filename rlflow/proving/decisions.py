"""Define the decisions of a case and the exceptions that end the reading of a case early.

An open decision raises `Fork`; the walk over all cases then tries each option. The other exceptions say that a case
does not exist, that the rule does not match there, or that the algebra cannot decide. `Budget` counts z3 queries
instead of seconds, so that a proof does not depend on the machine.
"""

from dataclasses import dataclass


class Fork(Exception):
    """A decision that the assumptions leave open.

    Attributes:
      options: the assumptions to try, one case each.
    """

    def __init__(self, options: list):
        self.options = options


class Unprovable(Exception):
    """The algebra cannot decide a question; the message names the question."""


class Infeasible(Exception):
    """The assumptions of a case contradict each other, so the case does not exist."""


class Border(Exception):
    """A comparison changes its answer inside the range of a bound index.

    Attributes:
      variable: the bound index.
      position: the first position with the other answer.
    """

    def __init__(self, variable, position):
        self.variable, self.position = variable, position


class OutOfBudget(Exception):
    """The number of z3 queries exceeds the budget."""


@dataclass
class Budget:
    """The number of z3 queries that are left. A limit in seconds would make a proof depend on the machine."""

    questions: int

    def spend(self) -> None:
        """Count one query. Raise OutOfBudget if none is left."""
        self.questions -= 1
        if self.questions < 0:
            raise OutOfBudget


class NotApplicable(Exception):
    """The rule does not match in this case, or its conditions refuse the match."""


class Undefined(Exception):
    """An operator has no definition in rlflow.proving.semantics."""


class Picks:
    """The decisions of a case. A decision that `picks` does not hold yet raises a Fork."""

    picks: dict

    def pick(self, key: str, options: tuple):
        """Return the decision for a key.

        Args:
          key: the name of the decision.
          options: the possible values; a single option is taken without a Fork.

        Raises:
          Fork: if several options are open.
          NotApplicable: if there are no options.
        """
        if key not in self.picks:
            if not options:
                raise NotApplicable
            if len(options) > 1:
                raise Fork([(key, option) for option in options])
            self.picks[key] = options[0]
        return self.picks[key]

    def picked(self, key: str):
        """Return the decision for a key, or None if it is still open."""
        return self.picks.get(key)
