"""The training set of "edits", and the rules that are learned from it.

`learn_rules` collects the patterns, signatures and effects in the logged edits of episodes. Some patterns predict
matches that the log of a state does not contain. A comparison of predicted and logged matches shows which tensors must
have exactly one consumer, and with which signatures a pattern does not apply.

A `TrainingSet` contains the episodes, their logged edits, and the same steps in the numbers of the groundings.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from rlflow.collect.edits import Edit, MatchRecord
from rlflow.collect.episodes import Episode
from worldmodel.edits.grounding import Grounding
from worldmodel.edits.grounding_index import GroundingIndex, Groundings
from worldmodel.edits.learned_rules import (
    Effect,
    LearnedPattern,
    LearnedRules,
    MatchPattern,
    NodePattern,
    Numbering,
    Signature,
    lift,
)
from worldmodel.edits.logged_episodes import (
    EpisodeFollower,
    GroundedEpisode,
    LoggedEdits,
    by_grounding,
    ground_episode,
    initial_runtime,
    logged_edits,
    repeated_steps,
    sizes_of,
)


def learn_exceptions(rules: LearnedRules, logs: Sequence[LoggedEdits], repeated: Sequence[int]) -> None:
    """Learn the exceptions of all patterns, from states in which a pattern predicts a match that is not logged.

    Args:
      rules: the learned rules; their `single_consumers` and `refuted` are set.
      logs: the logged edits of the episodes.
      repeated: for each episode, the number of first steps that an earlier episode logged; see `repeated_steps`.
    """
    promises: dict[int, _Promises] = {}  # by pattern number
    censuses: dict[Edit, _Census] = {}
    for log, steps in zip(logs, repeated, strict=True):
        first = log.edits[0]
        if first not in censuses:
            censuses[first] = _Census(Grounding(rules, first, waits=False), promises)
        census = censuses[first]
        census.begin(first)
        for t, (edit, match) in enumerate(zip(log.edits[1:], log.taken, strict=True)):
            census.follow(edit, match, is_new=t >= steps)
    for pattern, of_pattern in promises.items():
        of_pattern.settle(rules.patterns[pattern])


class _Promises:
    """Statistics of the matches that one pattern predicts.

    A predicted match is a promise. The promise is kept if the log of the state contains the match, otherwise broken.

    Attributes:
      always_single: for each local tensor, True if it had exactly one consumer in every predicted match that is logged.
      broken: {(signature, for each local tensor True if it had exactly one consumer): number of predicted matches that
        are not logged}.
    """

    def __init__(self, n_tensors: int):
        self.always_single = [True] * n_tensors
        self.broken: Counter[tuple] = Counter()

    def kept(self, single: tuple[bool, ...]) -> None:
        self.always_single = [a and b for a, b in zip(self.always_single, single, strict=True)]

    def settle(self, learned: LearnedPattern) -> None:
        """Derive the exceptions of the pattern from the statistics.

        A broken promise is a place where the pattern fits and the rule did not match. A tensor must have exactly one
        consumer if it had one in every kept promise and not in some broken promise. If a broken promise has one
        consumer for each such tensor, its signature is refuted, unless the pattern has matched with the signature
        elsewhere.

        Args:
          learned: the pattern; its `single_consumers` and `refuted` are set.
        """
        at_fault = []
        for tensor, always in enumerate(self.always_single):
            if always and any(not single[tensor] for _, single in self.broken):
                at_fault.append(tensor)
        learned.single_consumers = tuple(at_fault)
        unexplained = [signature for signature, single in self.broken if all(single[tensor] for tensor in at_fault)]
        learned.refuted = {signature for signature in unexplained if signature not in learned.effects}


class _Census:
    """A comparison of predicted and logged matches in the states of episodes that begin with the same graph.

    Args:
      grounding: the grounding of the episodes, without waiting matches.
      promises: {pattern number: its statistics}; updated.
    """

    def __init__(self, grounding: Grounding, promises: dict[int, _Promises]):
        self.grounding, self.promises = grounding, promises
        self.matches_of: dict[int, list[int]] = {}  # node → matches that contain the node
        self.listed = 0
        self.begun_with = 0  # matches that were compared in the initial graph

    def begin(self, first: Edit) -> None:
        """Begin an episode whose first edit is `first`."""
        grounding = self.grounding
        self.follower = EpisodeFollower(grounding, first)
        self.present = set(self.follower.nodes.values())
        self.n_consumers = Counter(t for node in self.present for t in set(grounding.nodes[node][1]))
        self.real = {self.follower.match(match) for match in first.appeared}
        self._look(range(self.begun_with, len(grounding.matches)))
        self.begun_with = len(grounding.matches)

    def follow(self, edit: Edit, taken: MatchRecord | None, is_new: bool) -> None:
        """Follow one step of the episode.

        Args:
          edit: the edit of the step.
          taken: the rewritten match; see `LoggedEdits`.
          is_new: False if an earlier episode has come to the same state, so that nothing is compared.
        """
        follower, before = self.follower, self.present
        self.real -= {follower.match(match) for match in edit.lost}
        follower.follow(edit, taken)
        self.real |= {follower.match(match) for match in edit.appeared}
        self.present = set(follower.nodes.values())
        for nodes, sign in ((before - self.present, -1), (self.present - before, 1)):
            for node in nodes:
                for tensor in set(self.grounding.nodes[node][1]):
                    self.n_consumers[tensor] += sign
        if is_new:
            self._look(self._matches_near(before ^ self.present))

    def _matches_near(self, changed: set[int]) -> set[int]:
        """Return the matches of changed nodes, and of the producers and consumers of their input tensors."""
        grounding, near = self.grounding, set(changed)
        for node in changed:
            for tensor in grounding.nodes[node][1]:
                if tensor >= 0:
                    near.update(grounding.consumers[tensor], grounding.producers[tensor])
        self._list()
        return {match for node in near for match in self.matches_of.get(node, ())}

    def _list(self) -> None:
        for match in range(self.listed, len(self.grounding.matches)):
            for node in self.grounding.matches[match].nodes:
                self.matches_of.setdefault(node, []).append(match)
        self.listed = len(self.grounding.matches)

    def _look(self, numbers: Iterable[int]) -> None:
        """Record if the log of the current state contains the given matches; skip matches with absent nodes.

        Args:
          numbers: the numbers of the matches to check.
        """
        self._list()
        for number in numbers:
            match = self.grounding.matches[number]
            if self.present.issuperset(match.nodes):
                promises = self.promises.setdefault(match.pattern, _Promises(len(match.tensors)))
                single = tuple([self.n_consumers[t] == 1 for t in match.tensors])
                if number in self.real:
                    promises.kept(single)
                else:
                    promises.broken[self.grounding.match_signature(match), single] += 1


def learn_rules(episodes: Sequence[Episode], logs: Sequence[LoggedEdits], repeated: Sequence[int]) -> LearnedRules:
    """Learn all patterns, signatures, effects and exceptions from episodes.

    Args:
      episodes: the episodes.
      logs: the logged edits of each episode.
      repeated: for each episode, the number of first steps that an earlier episode logged; see `repeated_steps`.
    """
    rules = LearnedRules(symmetric_rules(episodes, logs))
    for log, steps in zip(logs, repeated, strict=True):
        _learn_episode(rules, log, steps)
    learn_exceptions(rules, logs, repeated)
    return rules


def symmetric_rules(episodes: Sequence[Episode], logs: Sequence[LoggedEdits]) -> set[int]:
    """Return the xfer_ids of the symmetric rules.

    For these rules, edits list both orders of a match. The log of some state therefore has twice as many matches of the
    rule as the environment has locations.

    Args:
      episodes: the episodes.
      logs: the logged edits of each episode.
    """
    result = set()
    for episode, log in zip(episodes, logs, strict=True):
        records = Counter()
        for edit, counts in zip(log.edits, episode.counts, strict=True):
            appeared = [match.xfer_id for match in edit.appeared]
            records.update(appeared)
            records.subtract(match.xfer_id for match in edit.lost)
            for xfer_id in set(appeared):
                if records[xfer_id] == 2 * counts[xfer_id] > 0:
                    result.add(xfer_id)
    return result


def _learn_episode(rules: LearnedRules, log: LoggedEdits, repeated: int) -> None:
    """Add the patterns and signatures of all logged matches of an episode to the rules, and the effects of its steps.

    Args:
      rules: the rules; modified.
      log: the logged edits of the episode.
      repeated: the number of first steps whose effects are skipped, because an earlier episode logged them.
    """
    graph = _LoggedGraph(log.edits[0], rules.op_types)
    for match in log.edits[0].appeared:
        pattern, tensors = graph.lift(match)
        rules.add(pattern, graph.signature(match, tensors))
    for t, (edit, taken) in enumerate(zip(log.edits[1:], log.taken, strict=True)):
        if taken is not None and t >= repeated:
            pattern, tensors = graph.lift(taken)
            seen = rules.add(pattern, graph.signature(taken, tensors))
            seen[graph.effect(taken, tensors, edit)] += 1
        graph.follow(edit)
        for match in edit.appeared:
            pattern, tensors = graph.lift(match)
            rules.add(pattern, graph.signature(match, tensors))


class _LoggedGraph:
    """The current nodes and all tensors of one logged episode, in the ids of the episode.

    Args:
      first: the first edit of the episode.
      op_types: {operator: operator type}; receives the operators of the episode.
    """

    def __init__(self, first: Edit, op_types: dict[int, int]):
        self.op_types = op_types
        self.nodes: dict[int, NodePattern] = {}
        self.rank_signatures: dict[int, int] = {}
        self.signatures: dict[int, int] = {}
        self.follow(first)

    def follow(self, edit: Edit) -> None:
        for node_id in edit.removed:
            del self.nodes[node_id]
        for record in edit.nodes:
            self.nodes[record.id] = record.operator, record.inputs, record.outputs
            self.op_types[record.operator] = record.op_type
        for record in edit.tensors:
            self.rank_signatures[record.id], self.signatures[record.id] = record.rank_signature, record.signature

    def lift(self, match: MatchRecord) -> tuple[MatchPattern, tuple[int, ...]]:
        nodes = [self.nodes[n] for n in match.nodes]
        return lift(match.xfer_id, nodes, match.operands, self.rank_signatures, self.op_types)

    def signature(self, match: MatchRecord, tensors: Iterable[int]) -> Signature:
        return (*[self.nodes[n][0] for n in match.nodes], *[self.signatures[t] for t in tensors])

    def effect(self, match: MatchRecord, tensors: tuple[int, ...], edit: Edit) -> Effect:
        """Return the effect that an edit shows. Call this before `follow(edit)`.

        A removed node counts as removed by the rewrite itself if one of its outputs was rewired or is now made by a new
        node.

        Args:
          match: the rewritten match.
          tensors: the tensors of the match by local number.
          edit: the edit of the rewrite.
        """
        numbering, records = Numbering(tensors), {record.id: record for record in edit.tensors}
        taken_over, added = {old for old, _ in edit.rewired}, []
        for record in edit.nodes:
            if record.id not in self.nodes:
                added.append(numbering.node(record.operator, record.inputs, record.outputs))
                taken_over.update(record.outputs)
        removed = []
        for position, node in enumerate(match.nodes):
            if node in edit.removed and taken_over.intersection(self.nodes[node][2]):
                removed.append(position)
        rewired = tuple([(numbering(old), numbering(new)) for old, new in edit.rewired])
        made = []
        for tensor in list(numbering.number)[len(tensors) :]:
            made.append((records[tensor].rank_signature, records[tensor].signature))
        return Effect(tuple(removed), tuple(added), rewired, tuple(made))


@dataclass
class TrainingSet:
    """Training episodes, the rules learned from these episodes, and their steps in the numbers of the groundings.

    Attributes:
      episodes: the episodes.
      logs: the logged edits of each episode, in the same order.
      groundings: the groundings of the learned rules on the initial graphs of the episodes.
      by_grounding: {grounding: indices of its episodes in `episodes`}.
      grounded: {index of an episode: the episode in the numbers of its grounding}.
      sizes: {hash of typical sizes (see `rlflow.collect.edits.Edit`): {tensor signature: number of elements}}.
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
        """Yield (grounding, its episodes in the numbers of the grounding)."""
        for index, numbers in self.by_grounding.items():
            yield index, [self.grounded[k] for k in numbers]

    def initial_runtime(self, index: GroundingIndex) -> int:
        """Return the estimated runtime of the initial graph of a grounding, in ps."""
        return initial_runtime(self.logs[self.by_grounding[index][0]].edits[0])


def _sizes(logs: Sequence[LoggedEdits]) -> dict[int, dict[int, int]]:
    sizes: dict[int, dict[int, int]] = {}
    for log in logs:
        here = sizes.setdefault(log.edits[0].sizes, {})
        for edit in log.edits:
            here |= sizes_of(edit)
    return sizes


def first_new_state(episode: GroundedEpisode) -> int:
    """Return the index, among the T + 1 states of an episode, of the first state that no earlier episode logged."""
    return episode.repeated + 1 if episode.repeated else 0


def evenly_drawn(items: Sequence, most: int) -> list:
    """Return at most `most` of the items, at equal distances and in their order."""
    drawn = np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).astype(int))
    return [items[k] for k in drawn.tolist()]


def new_moves(episode: GroundedEpisode) -> np.ndarray:
    """Return bool [T], True for steps that rewrite a match of a known pattern and that no earlier episode logged."""
    return (episode.matches >= 0) & (np.arange(len(episode.matches)) >= episode.repeated)
