"""The edits that episodes logged, and which of their steps an earlier episode logged already.

A step that was played once counts as one in all that is averaged, counted or drawn from (usual rewards, gains, how
often a rule was carried out, runtimes, z), however many episodes copied it; copies of an episode that is held out count
once together. The `mdn-rnn` draws episodes and needs each from its start, so there a way weighs as much as if it had
been walked; so does it where a dream is judged, but by episodes that were held out (worldmodel/training.py).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlflow.collect.edits import Edit, MatchRecord, unpack
from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError


class LoggedEdits(NamedTuple):
    """One episode of T steps. edits: T + 1, the first one of its initial state. taken: T, the match of each action,
    None for NO-OP."""

    edits: list[Edit]
    taken: list[MatchRecord | None]


def logged_edits(episodes: Iterable[Episode]) -> list[LoggedEdits]:
    """Raises RLFlowError if an episode lacks them."""
    result = []
    for episode in episodes:
        if episode.edits is None:
            raise RLFlowError(
                "these episodes hold no edits, which the world model 'edits' learns from; collect them anew or, if the "
                "task is not rewriting, say world_model.name=mdn-rnn"
            )
        result.append(LoggedEdits(*unpack(episode.edits)))
    return result


def repeated_steps(episodes: Sequence[Episode], logs: Sequence[LoggedEdits]) -> list[int]:
    """How many of the copied steps of each an earlier one of these has logged: a step that was played once counts
    once."""
    after: dict[tuple, int] = {}  # (state, action) → state; a state is the number of the way that leads there
    result = []
    for episode, log in zip(episodes, logs, strict=True):
        state, repeated = after.setdefault((log.edits[0],), len(after)), episode.copied
        for t, action in enumerate(map(tuple, episode.actions.tolist())):
            if (state, action) not in after:
                after[state, action] = len(after)
                repeated = min(repeated, t)
            state = after[state, action]
        result.append(repeated)
    return result


def sizes_of(edit: Edit) -> dict[int, int]:
    """Signature → elements, of the tensors that an edit names first."""
    return {tensor.signature: tensor.size for tensor in edit.tensors if tensor.size >= 0}


def initial_runtime(first: Edit) -> int:
    """Estimated runtime in ps."""
    return sum(record.runtime_ps for record in first.nodes)
