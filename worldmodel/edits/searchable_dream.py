"""Imagined states that a search can explore: immutable states with the interface that `rlflow.search` needs.

A `SearchableState` has the interface of a real RewriteState, so the same searches run on real and on imagined graphs. A
match whose rewrite exceeds the uncertainty limit is not among the matches, or its rewrite returns the state unchanged.

A step needs no interaction with the environment. A search exploits errors of the model. For example, chains of steps
with effects by analogy, which undo each other, seemed to gain a little every time. An uncertainty limit below 0.5
excludes steps by analogy that create nodes of unknown runtime. Excluding them is better than a penalty, which would
change the acceptance of simulated annealing.

Searches compare matches by identity, so there is one object per match of the grounding. The hash of a state is the sum
of 128-bit numbers of its nodes, so it does not depend on the order of rewrites.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from itertools import islice

import numpy as np

from rlflow.collect.edits import first_edit, unpack
from rlflow.env.state import RewriteState
from rlflow.search.base import Path
from worldmodel.edits.dream_states import DreamStates
from worldmodel.edits.logged_episodes import EpisodeFollower, initial_runtime, new_runtimes
from worldmodel.edits.simulator import BY_ANALOGY, NEW_NEIGHBOURHOOD


class SearchableMatch:
    """A match of a grounding as an object with identity, because searches compare matches by identity.

    Attributes:
      xfer_id: the rule.
      nodes: the grounding's numbers of the matched nodes.
      number: the grounding's number of the match.
    """

    __slots__ = ("nodes", "number", "xfer_id")

    def __init__(self, xfer_id: int, nodes: tuple[int, ...], number: int):
        self.xfer_id, self.nodes, self.number = xfer_id, nodes, number


@cache
def mark(node: int) -> int:
    """Return a 128-bit hash of a node number. Sums of these hashes differ for different sets of nodes."""
    return int.from_bytes(sha256(str(node).encode()).digest()[:16], "little")


class SearchableDream:
    """The parts that all states of one search share: the model, the grounding and the uncertainty limit.

    Args:
      model: the world model.
      start: the real state at which the search starts.
      uncertainty_limit: a step with a higher uncertainty is not taken. A limit above 0.5 counts as 0.5, so steps with
        unknown effect (uncertainty 1) are never taken.

    Attributes:
      start: the `SearchableState` that equals the real state.
    """

    def __init__(self, model, start: RewriteState, uncertainty_limit: float):
        self.first = first = first_edit(start)
        model.observe(start, first)
        self.unchanged_ps = start.task.initial.objective
        self.index, self.scale = model.groundings.of(first), model.rewards.of(self.unchanged_ps)
        nodes, costs = new_runtimes(EpisodeFollower(self.index.grounding, first), first)
        self.max_locations, self.reach = model.spec.max_locations, model.costs.reach
        runtime = initial_runtime(first)
        self.uncertainty_limit, self._best = min(uncertainty_limit, BY_ANALOGY), model.best_trajectories.get(runtime)
        self._simulator = model.simulator(self.index, [nodes], [costs])
        self._matches: dict[int, SearchableMatch] = {}
        self._offered: dict[int, bool] = {}
        key = sum(map(mark, nodes.tolist()))
        self.start = SearchableState(self, self._simulator.states, runtime, frozenset(), key, 0.0)

    def match(self, number: int) -> SearchableMatch:
        if number not in self._matches:
            nodes = self.index.grounding.matches[number].nodes
            self._matches[number] = SearchableMatch(int(self.index.rule.values[number]), nodes, number)
        return self._matches[number]

    def offers(self, number: int) -> bool:
        """Return True if the step of a match can be certain enough in some state.

        The uncertainty also depends on the state, so `step` may still return the state unchanged.

        Args:
          number: the grounding's number of the match.
        """
        if number not in self._offered:
            grounding, sure = self.index.grounding, True
            for naming in {number, grounding.symmetric_match.get(number, number)}:
                match = grounding.matches[naming]
                effect, seen = grounding.rules.effect(match.pattern, grounding.match_signature(match))
                sure &= seen or (effect is not None and self.uncertainty_limit >= NEW_NEIGHBOURHOOD)
            self._offered[number] = sure
        return self._offered[number]

    def step(self, state: "SearchableState", match: SearchableMatch) -> "SearchableState":
        """Return the state after rewriting a match, or `state` itself if the uncertainty exceeds the limit.

        Args:
          state: the state; not modified.
          match: a match that is present in the state.
        """
        states = self._simulator.states = state.states.taken(np.zeros(1, np.int64))
        states.grow()
        gain, _, uncertainty, change = self._simulator.step(np.zeros(1, np.int64), np.array([match.number]))
        if uncertainty[0] > self.uncertainty_limit:
            if uncertainty[0] >= BY_ANALOGY:  # a lower uncertainty depends on the state
                self._offered[match.number] = False
            return state
        removed = [node for _, nodes in change.removed for node in nodes.tolist()]
        added = [node for _, nodes in change.added for node in nodes.tolist()]
        key = state.hash + sum(map(mark, added)) - sum(map(mark, removed))
        runtime = state.objective - round(gain[0])
        reward = self.scale.reward(gain[0], self.unchanged_ps - state.objective)
        return SearchableState(self, states, runtime, self._around(states, removed, added), key, state.gained + reward)

    def remembered(self) -> Path | None:
        """Return the path from the start to the cheapest state of this graph in the training data.

        The path ends early at the first recorded step that is impossible or too uncertain in the model.

        Returns:
          Nested pairs (match, path before the match), with None for the start; None for a graph without training data.
        """
        if self._best is None:
            return None
        follower, state, path = EpisodeFollower(self.index.grounding, self.first), self.start, None
        edits, taken = unpack(self._best)
        if edits[0] != self.first:  # the training data contain another graph with the same runtime
            return None
        for edit, record in zip(edits[1:], taken, strict=True):
            number = follower.match(record)
            if number is None or state.states.open[0, self.index.representative(number)]:
                break
            match = self.match(self.index.representative(number))
            state, before = self.step(state, match), state
            if state is before:
                break
            state.states.grow()
            path = match, path
            follower.follow(edit, record)
        return path

    def _around(self, states: DreamStates, removed: Iterable[int], added: Iterable[int]) -> frozenset[int]:
        """Return the touched nodes of a step: removed and added nodes, and producers and consumers of their inputs.

        Inputs without a producer, such as weights, are skipped, because many nodes can read them.

        Args:
          states: the batch of one state after the step.
          removed, added: the nodes that the step removed and added.
        """
        grounding, touched = self.index.grounding, {*removed, *added}
        producers, consumers = grounding.producers, grounding.consumers
        for tensor in {t for node in (*removed, *added) for t in grounding.nodes[node][1] if t >= 0 and producers[t]}:
            touched.update(present(states, producers[tensor]), present(states, consumers[tensor]))
        return frozenset(touched)


def present(states: DreamStates, nodes: Iterable[int]) -> Iterator[int]:
    """Yield the nodes that are present in the first state of a batch."""
    producer, primary_outputs = states.producer[0], states.index.grounding.primary_outputs
    return (node for node in nodes if producer[primary_outputs[node]] == node)


class SearchableState:
    """An imagined state that a search can explore; see `rlflow.common.task.LocalState` for its interface.

    Nodes are numbers of the grounding.

    Attributes:
      objective: the predicted runtime of the graph (ps).
      hash: an integer that is equal for equal sets of nodes.
      touched: the nodes that the last rewrite removed or added, and the nodes around them; empty for the start state.
      reach: the largest distance, in edges, of nodes that affect the runtime of a node.
      gained: the sum of the predicted rewards since the start state.
    """

    def __init__(
        self, dream: SearchableDream, states: DreamStates, objective: int, touched: frozenset[int], key: int,
        gained: float,
    ):  # fmt: skip
        self.dream, self.states, self.objective, self.reach = dream, states, objective, dream.reach
        self.touched, self.hash, self.gained = touched, key, gained

    @property
    def counts(self) -> np.ndarray:
        """The number of present matches of each rule, int32 [N], limited to the task's `max_locations`."""
        self.states.grow()
        return np.minimum(self.states.counts[0], self.dream.max_locations)

    @property
    def matches(self) -> list[SearchableMatch]:
        """The present matches for which `SearchableDream.offers` is True, in the order of rule and location."""
        result = []
        for xfer_id, n in enumerate(self.counts.tolist()):
            if n:
                result += [match for match in islice(self.of_rule(xfer_id), n) if self.dream.offers(match.number)]
        return result

    def offers(self, match: SearchableMatch) -> bool:
        """Return True if the match is present and `SearchableDream.offers` is True.

        `matches` leaves out matches whose location number is `max_locations` or above; this method accepts them.
        """
        self.states.grow()
        return self.states.open[0, match.number] == 0 and self.dream.offers(match.number)

    def match(self, xfer_id: int, location: int) -> SearchableMatch:
        return next(islice(self.of_rule(xfer_id), location, None))

    def index_of(self, match: SearchableMatch) -> int:
        return list(self.of_rule(match.xfer_id)).index(match)

    def of_rule(self, xfer_id: int) -> Iterator[SearchableMatch]:
        """Yield the present matches of a rule in the order of the model's location numbers."""
        if not self.counts[xfer_id]:
            return iter(())
        matches = self.dream.index.matches_of_rule(xfer_id)
        return map(self.dream.match, matches[self.states.open[0, matches] == 0].tolist())

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Return the given nodes and all present nodes within a distance of them.

        Args:
          nodes: node numbers of the grounding, which need not be present.
          reach: the distance in edges.
        """
        self.states.grow()
        result = set(nodes)
        frontier = result
        for _ in range(reach):
            around = set()
            for node in present(self.states, frontier):
                around.update(self._neighbours(node))
            frontier = around - result
            result = result | frontier
        return result

    def _neighbours(self, node: int) -> Iterator[int]:
        grounding = self.dream.index.grounding
        _, inputs, outputs = grounding.nodes[node]
        for neighbours, tensors in ((grounding.producers, inputs), (grounding.consumers, outputs)):
            for tensor in tensors:
                if tensor >= 0:
                    yield from present(self.states, neighbours[tensor])

    def remembered(self) -> Path | None:
        """Return the path from the start of the search to the best known state; see `SearchableDream.remembered`."""
        return self.dream.remembered()

    def follow(self, match: SearchableMatch) -> "SearchableState":
        return self.dream.step(self, match)
