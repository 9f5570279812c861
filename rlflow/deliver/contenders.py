"""From what the searches came to to what competes: several candidates that differ in what may not pay.

Estimates are sums of kernels that were timed alone, and err by rules of a kind more than at random. So what competes
end to end (`rlflow.deliver.contest`) is the cheapest candidate without what does not pay; the one that is cheapest by
the roofline, which times nothing; the first as it was before anything was taken back; without each family of rules in
turn; without operators of ONNX Runtime's own; and what other searches came to. Families that files on this machine were
slower with come first, then those whose rewrites are estimated to gain least.

The roofline is asked since a search that takes what promises to gain comes to where timings err most in its favour, and
a large model leaves time for two or three contenders. It errs too, but not by the same chance.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rlflow.costs import graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import at_sizes
from rlflow.costs.target import target_of
from rlflow.deliver.best_so_far import BestSoFar
from rlflow.deliver.candidates import Candidate, follow
from rlflow.deliver.prune import pruned
from rlflow.deliver.without import Rewrites
from rlflow.env.state import Task

PRUNED = 2  # candidates, the cheapest: the others are there in case nothing of these is equal to the original
WHOLE, WITHOUT, STANDARD = "whole", "without", "standard"  # in names


class Contender(NamedTuple):
    """without: the family of rules that the first contender has and this one has not."""

    candidate: Candidate
    without: str | None = None


def without_what_does_not_pay(best: BestSoFar, seconds: float) -> list[Candidate]:
    """What each search came to, the cheapest first; PRUNED of them without the groups of rewrites that do not pay.

    Timings that decided are taken again for it, so that all costs are counted anew.
    """
    task, end = best.task, time.monotonic() + seconds
    apart = different(best.candidates())
    actions = [candidate.actions for candidate in apart]
    for number, candidate in enumerate(apart[:PRUNED]):
        share = (end - time.monotonic()) / (min(len(apart), PRUNED) - number)
        actions[number] = pruned(task, candidate.actions, share)
    if target_of(task.cost) is None:
        task.forget_costs()
        best.recount()
    result = [
        replace(candidate, actions=kept, state=follow(task, kept))
        for candidate, kept in zip(apart, actions, strict=True)
    ]
    return sorted(result, key=lambda candidate: candidate.state.objective)


def contenders(
    task: Task, candidates: Sequence[Candidate], whole: Sequence[Candidate], measured: Mapping[str, float]
) -> list[Contender]:
    """Those that are worth a measurement, all different and estimated to gain; those first that are worth it most.

    Args:
      candidates: the cheapest first, by the task's cost.  whole: what they were before something was taken back.
      measured: family → what it was measured to do to files on this machine: above 1 they were slower with it.
    """
    first, second = candidates[0], _cheapest_by_roofline(task, candidates)
    before = next(candidate for candidate in whole if candidate.name == first.name)
    rewrites = Rewrites(task, first.actions)
    rules = [task.rules[xfer_id] for xfer_id, _ in rewrites.actions]

    def variant(steps: set[int], name: str, family: str | None = None) -> Contender:
        rest = rewrites.without(steps)
        named = replace(first, name=f"{first.name}-{name}", actions=rest.actions, state=rest.states[-1])
        return Contender(named, family)

    left_out = []
    for family in dict.fromkeys(rule.family for rule in rules):
        steps = {step for step, rule in enumerate(rules) if rule.family == family}
        left_out.append(variant(steps, f"{WITHOUT}-{family}", family))
    fused = {step for step, rule in enumerate(rules) if any(op.domain for op in rule.target_ops)}
    left_out.append(variant(fused, STANDARD))
    left_out.sort(key=lambda one: (-measured.get(one.without, 1.0), one.candidate.state.objective))
    others = [replace(before, name=f"{first.name}-{WHOLE}"), *candidates[1:]]
    every = [Contender(first), Contender(second), Contender(others[0]), *left_out, *map(Contender, others[1:])]
    entered: dict[str, Contender] = {}  # by graph
    for one in every:
        if one.candidate.state.objective < task.original_cost.runtime_ps:
            entered.setdefault(one.candidate.state.hash, one)
    return list(entered.values())


def _cheapest_by_roofline(task: Task, candidates: Sequence[Candidate]) -> Candidate:
    roofline = at_sizes(AnalyticCost(), task.sizes, task.original)
    return min(candidates, key=lambda candidate: graph_cost(roofline, candidate.state.graph).runtime_ps)


def tidied(task: Task, winner: Candidate, seconds: float) -> Candidate:
    """The winner of a contest without what only served the family that it was left without."""
    if winner.name.endswith(f"-{WHOLE}"):
        return winner
    actions = pruned(task, winner.actions, seconds, again=False)
    return replace(winner, actions=actions, state=follow(task, actions))


def different(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first of those that have the same graph."""
    of_graph: dict[str, Candidate] = {}
    for candidate in candidates:
        of_graph.setdefault(candidate.state.hash, candidate)
    return list(of_graph.values())
