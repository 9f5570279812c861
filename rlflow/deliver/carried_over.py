"""The rewrites of an earlier receipt on another model of its kind: at another size, with other weights.

`replay` repeats a receipt on the very model that it speaks of. Here each rewrite is carried out wherever its rule has
a location of that number, and else left out. Nothing can come out wrong by that, since every rule is proved and fits or
does not; at worst nothing is gained.
"""

from collections.abc import Sequence
from itertools import dropwhile
from typing import NamedTuple

from rlflow.costs import TimeIsUp
from rlflow.deliver.candidates import Candidate
from rlflow.env.state import RewriteState, Task
from rlflow.rules.locations import PREPARING_FAMILY


class CarriedOver(NamedTuple):
    """actions: (xfer_id, location) pairs up to the cheapest state on the way, which is `state`. carried_out: rewrites
    in all. left_out: those that had no such location. interrupted: the time was up before the last one."""

    actions: list[tuple[int, int]]
    state: RewriteState
    carried_out: int
    left_out: int
    interrupted: bool

    def candidate(self, seconds: float) -> Candidate:
        return Candidate("receipt", self.state, self.actions, self.carried_out, seconds)


def carried_over(task: Task, rewrites: Sequence[tuple[str, int]]) -> CarriedOver:
    """Carries out the rewrites of a receipt from the task's initial state on.

    Args:
      rewrites: (name of a rule, location), see `rlflow.deliver.receipt.rewrites_of`. Leading ones that prepare a model
        are passed over: the task has made its own preparation.
    """
    xfer_ids = {rule.name: xfer_id for xfer_id, rule in enumerate(task.rules)}
    preparing = {rule.name for rule in task.rules if rule.family == PREPARING_FAMILY}
    state = cheapest = task.initial
    actions, best, left_out, interrupted = [], 0, 0, False
    for name, location in dropwhile(lambda rewrite: rewrite[0] in preparing, rewrites):
        xfer_id = xfer_ids.get(name, task.no_op)
        if not state.is_valid(xfer_id, location):
            left_out += 1
            continue
        try:
            state = state.apply(xfer_id, location)
        except TimeIsUp:
            interrupted = True
            break
        actions.append((xfer_id, location))
        if state.objective < cheapest.objective:
            cheapest, best = state, len(actions)
    return CarriedOver(actions[:best], cheapest, len(actions), left_out, interrupted)
