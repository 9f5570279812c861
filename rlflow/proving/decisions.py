"""Define the decisions of a case and the exceptions that end the evaluation of a case early.

An open decision raises `Fork`; the prover then evaluates one case for each option. The other exceptions state that a
case does not exist, that the rule does not match in it, or that the algebra cannot prove a fact. `Budget` counts z3
queries instead of seconds, so that a proof does not depend on the machine.
"""

from dataclasses import dataclass


class Fork(Exception):
    """Raised at a decision that the assumptions of a case leave open.

    Attributes:
      options: z3 claims, or (key, value) pairs for `Picks.picks`; the case is split into one case for each option.
    """

    def __init__(self, options: list):
        self.options = options


class Unprovable(Exception):
    """Raised if a fact that the proof needs cannot be proved; the message names the fact."""


class Infeasible(Exception):
    """Raised if the assumptions of a case contradict each other or a divisor is 0, so the case does not exist."""


class Border(Exception):
    """Raised if the answer to a comparison changes inside the range of an index of a sum or maximum.

    Attributes:
      variable: the z3 constant of the index.
      position: the value of the index from which on the answer is another one, a z3 term.
    """

    def __init__(self, variable, position):
        self.variable, self.position = variable, position


class Rows(Border):
    """Raised if a sum runs over the rows of a tensor and the rule distinguishes the rows that are zero.

    Attributes:
      variable: the z3 constant of the index.
      rows: (number of rows, function from a number below it to the position of the row) pairs: the rows that are zero,
        and the others. Together they are all positions, each once.
    """

    def __init__(self, variable, rows: tuple):
        super().__init__(variable, None)
        self.rows = rows


class OutOfBudget(Exception):
    """Raised if a proof needs more z3 queries than its budget allows."""


@dataclass
class Budget:
    """The number of z3 queries that a proof may still make, instead of a limit in seconds."""

    questions: int

    def spend(self) -> None:
        """Count one query. Raise OutOfBudget if none is left."""
        self.questions -= 1
        if self.questions < 0:
            raise OutOfBudget


class NotApplicable(Exception):
    """Raised if the rule does not match in this case or its conditions refuse the match."""


class Undefined(Exception):
    """Raised if an operator or attribute has no definition in rlflow.proving."""


class Picks:
    """A base class of cases that stores each decision in `picks`, a dictionary from a key to the chosen option."""

    picks: dict

    def pick(self, key: str, options: tuple):
        """Return the option that this case has chosen for a decision.

        Args:
          key: the name of the decision.
          options: the possible values; a single option is chosen at once.

        Raises:
          Fork: if the case has not decided yet and there are several options.
          NotApplicable: if the case has not decided yet and there is no option.
        """
        if key not in self.picks:
            if not options:
                raise NotApplicable
            if len(options) > 1:
                raise Fork([(key, option) for option in options])
            self.picks[key] = options[0]
        return self.picks[key]

    def picked(self, key: str):
        """Return the chosen option of the decision with this key, or None if the decision is still open."""
        return self.picks.get(key)
