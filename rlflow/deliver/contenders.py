"""From what the searches found to what is checked: without what does not pay."""

import time

from rlflow.costs.target import target_of
from rlflow.deliver.best_so_far import BestSoFar
from rlflow.deliver.candidates import Candidate, follow
from rlflow.deliver.prune import pruned


def without_what_does_not_pay(best: BestSoFar, seconds: float) -> list[Candidate]:
    """What each search found, without the groups of rewrites that do not pay; the cheapest first.

    Timings that decided are taken again for it, so that all costs are counted anew.
    """
    task, candidates, end = best.task, best.candidates(), time.monotonic() + seconds
    kept: dict[str, list[tuple[int, int]]] = {}  # hash of a graph → what is left of the actions that lead there
    for number, candidate in enumerate(candidates):
        if candidate.state.hash not in kept:
            share = (end - time.monotonic()) / (len(candidates) - number)
            kept[candidate.state.hash] = pruned(task, candidate.actions, share)
    if target_of(task.cost) is None:
        task.forget_costs()
        best.recount()
    result = []
    for candidate in candidates:
        actions = kept[candidate.state.hash]
        state = follow(task, actions)
        result.append(Candidate(candidate.name, state, actions, candidate.interactions, candidate.seconds))
    return sorted(result, key=lambda candidate: candidate.state.objective)
