"""What does not pay is taken back, so that a result is small and explains itself.

Rewrites of one match class, wherever they are, are a group (`gelu ×12`). A group is taken back, with what only it made
possible, where the estimate rises by no more than it may be off: beside the graph with the group, and beside the graph
with all of them, so that many small losses do not add up to one that is sure. Where that is not known the timings on
which it hangs are taken again first (`rlflow.deliver.settle`), as far as the time goes.
"""

import time
from collections.abc import Sequence
from contextlib import suppress

from rlflow.costs import TimeIsUp, timing_until
from rlflow.deliver.settle import settle
from rlflow.deliver.without import Chain, Rewrites
from rlflow.env.state import Task


def pruned(task: Task, actions: Sequence[tuple[int, int]], seconds: float, again: bool = True) -> list[tuple[int, int]]:
    """The actions without the groups of rewrites that do not pay; those that gained least are tried first.

    Args:
      actions: valid (xfer_id, location) pairs.  seconds: after which nothing more is tried.
      again: whether timings may be taken again. They are others then: `Task.forget_costs`.
    """
    end, rewrites, out = time.monotonic() + seconds, Rewrites(task, actions), set()
    whole = kept = rewrites.without(out)
    with suppress(TimeIsUp), timing_until(task.cost, end):
        settle(task.cost, whole.graph, task.graph, time.monotonic() + seconds / 4 * again)
        before = None
        while kept is not before:
            before, waiting = kept, groups(rewrites, kept)
            for number, group in enumerate(waiting):
                now = time.monotonic()
                if now >= end:
                    raise TimeIsUp
                rest = rewrites.without(out | group)
                until = now + (end - now) / (len(waiting) - number) * again
                if len(rest.steps) < len(kept.steps) and all(
                    _pays_nothing(task, rest, beside, until) for beside in (kept, whole)
                ):
                    out, kept = out | group, rest
    return kept.actions


def groups(rewrites: Rewrites, chain: Chain) -> list[set[int]]:
    """The rewrites of a chain, those of one class together, as positions in the candidate; first what gained least."""
    alike: dict[tuple, set[int]] = {}
    gains: dict[tuple, int] = {}
    for step, before, after in zip(chain.steps, chain.states, chain.states[1:], strict=False):
        key = rewrites.classes[step]
        alike.setdefault(key, set()).add(step)
        gains[key] = gains.get(key, 0) + before.objective - after.objective
    return [alike[key] for key in sorted(alike, key=gains.__getitem__)]


def _pays_nothing(task: Task, rest: Chain, beside: Chain, until: float) -> bool:
    """Whether the rest takes longer by no more than may be chance."""
    longer, off = settle(task.cost, beside.graph, rest.graph, until)
    return longer <= off
