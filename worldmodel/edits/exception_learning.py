"""Where the patterns promise a match that is not there: learning which tensors must have a single consumer, and which
signatures a pattern does not apply with."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rlflow.collect.edits import Edit, MatchRecord
from worldmodel.edits.episode_follower import EpisodeFollower
from worldmodel.edits.grounding import Grounding
from worldmodel.edits.learned_rules import LearnedPattern, LearnedRules
from worldmodel.edits.logged_edits import LoggedEdits


def learn_exceptions(rules: LearnedRules, logs: Sequence[LoggedEdits]) -> None:
    promises: dict[int, _Promises] = {}  # by pattern
    groundings: dict[Edit, Grounding] = {}
    for log in logs:
        grounding = groundings.setdefault(log.edits[0], Grounding(rules, log.edits[0], waits=False))
        census = _Census(grounding, log.edits[0], promises)
        for edit, match in zip(log.edits[1:], log.taken, strict=True):
            census.follow(edit, match)
    for pattern, of_pattern in promises.items():
        of_pattern.settle(rules.patterns[pattern])


class _Promises:
    """What was seen of the promised matches of one pattern.

    always_single: per tensor, whether it had a single consumer wherever the promise was kept. broken: (signature,
    whether each tensor had a single consumer) where it was not.
    """

    def __init__(self, n_tensors: int):
        self.always_single = [True] * n_tensors
        self.broken: Counter[tuple] = Counter()

    def kept(self, single: tuple[bool, ...]) -> None:
        self.always_single = [a and b for a, b in zip(self.always_single, single, strict=True)]

    def settle(self, learned: LearnedPattern) -> None:
        """A tensor that always was single where the pattern applied, and was not where it did not, has to be; broken
        promises that this does not explain are laid to the signature."""
        at_fault = []
        for tensor, always in enumerate(self.always_single):
            if always and any(not single[tensor] for _, single in self.broken):
                at_fault.append(tensor)
        learned.single_consumers = tuple(at_fault)
        unexplained = [signature for signature, single in self.broken if all(single[tensor] for tensor in at_fault)]
        learned.refuted = {signature for signature in unexplained if signature not in learned.effects}


class _Census:
    """Compares, along one episode, the matches whose nodes are all there with the matches that are logged."""

    def __init__(self, grounding: Grounding, first: Edit, promises: dict[int, _Promises]):
        self.grounding, self.promises = grounding, promises
        self.follower = EpisodeFollower(grounding, first)
        self.present = set(self.follower.nodes.values())
        self.n_consumers = Counter(t for node in self.present for t in set(grounding.nodes[node][1]))
        self.real = {self.follower.match(match) for match in first.appeared}
        self.matches_of: dict[int, list[int]] = {}  # by node
        self.listed = 0
        self._look(range(len(grounding.matches)))

    def follow(self, edit: Edit, taken: MatchRecord | None) -> None:
        follower, before = self.follower, self.present
        self.real -= {follower.match(match) for match in edit.lost}
        follower.follow(edit, taken)
        self.real |= {follower.match(match) for match in edit.appeared}
        self.present = set(follower.nodes.values())
        for nodes, sign in ((before - self.present, -1), (self.present - before, 1)):
            for node in nodes:
                for tensor in set(self.grounding.nodes[node][1]):
                    self.n_consumers[tensor] += sign
        self._look(self._matches_near(before ^ self.present))

    def _matches_near(self, changed: set[int]) -> set[int]:
        """The matches of these nodes, and of those that share a tensor with what they read."""
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
