"""What "edits" is trained on: episodes, what they logged, and both in the numbers of their groundings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.edits.grounded_episodes import GroundedEpisode, by_grounding, ground_episode
from worldmodel.edits.grounding_index import GroundingIndex, Groundings
from worldmodel.edits.logged_edits import LoggedEdits, initial_runtime, logged_edits, repeated_steps, sizes_of
from worldmodel.edits.rule_learning import learn_rules


@dataclass
class TrainingSet:
    """Attributes:
    episodes, logs: E of each, in one order.
    groundings: those of their initial graphs, over the rules learnt from them.
    by_grounding: grounding → numbers of its episodes.
    grounded: number of an episode → the same in its grounding's numbers, in the order of `by_grounding`.
    sizes: typical sizes (see `rlflow.collect.edits.Edit`) → tensor signature → elements.
    """

    episodes: Sequence[Episode]
    logs: list[LoggedEdits]
    groundings: Groundings
    by_grounding: dict[GroundingIndex, list[int]]
    grounded: dict[int, GroundedEpisode]
    sizes: dict[int, dict[int, int]]

    @classmethod
    def of(cls, episodes: Sequence[Episode], n_rules: int) -> Self:
        logs = logged_edits(episodes)
        repeated = repeated_steps(episodes, logs)
        groundings = Groundings(learn_rules(episodes, logs, repeated), n_rules)
        groups, grounded = by_grounding(groundings, logs), {}
        for index, numbers in groups.items():
            for k in numbers:
                grounded[k] = ground_episode(index, logs[k], repeated[k])
        return cls(episodes, logs, groundings, groups, grounded, _sizes(logs))

    def groups(self) -> Iterator[tuple[GroundingIndex, list[GroundedEpisode]]]:
        """The episodes of each grounding."""
        for index, numbers in self.by_grounding.items():
            yield index, [self.grounded[k] for k in numbers]

    def initial_runtime(self, index: GroundingIndex) -> int:
        """Of a grounding's initial graph, in ps."""
        return initial_runtime(self.logs[self.by_grounding[index][0]].edits[0])


def _sizes(logs: Sequence[LoggedEdits]) -> dict[int, dict[int, int]]:
    sizes: dict[int, dict[int, int]] = {}
    for log in logs:
        here = sizes.setdefault(log.edits[0].sizes, {})
        for edit in log.edits:
            here |= sizes_of(edit)
    return sizes


def first_new_state(episode: GroundedEpisode) -> int:
    """Of its states 0 … T, the first that no other episode logged before."""
    return episode.repeated + 1 if episode.repeated else 0


def evenly_drawn(items: Sequence, most: int) -> list:
    """At most so many of them, in order, at equal distances."""
    drawn = np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).astype(int))
    return [items[k] for k in drawn.tolist()]


def new_moves(episode: GroundedEpisode) -> np.ndarray:
    """bool [T]: whether a match that is known was rewritten, by a step that no other episode logged before."""
    return (episode.matches >= 0) & (np.arange(len(episode.matches)) >= episode.repeated)
