"""Dreams that a search can walk: immutable states of a world, in the terms of `rlflow.search`.

What `rlflow.search` asks of a state is what a RewriteState answers, so the same searches run on the real graph and in the
dream. A substitution that the model is in more doubt of than allowed is not offered.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from rlflow.edits import first_edit
from rlflow.state import RewriteState
from worldmodel.edits.dreaming import States
from worldmodel.edits.follow import initial_runtime
from worldmodel.edits.imagination import BY_ANALOGY, Dreaming
from worldmodel.edits.prices import mixed
from worldmodel.edits.world import Follower


class DreamtMatch:
    """A place of the world as a search knows it. Searches tell matches apart by identity: there is one of each place."""

    __slots__ = ("nodes", "place", "xfer_id")

    def __init__(self, xfer_id: int, nodes: tuple[int, ...], place: int):
        self.xfer_id, self.nodes, self.place = xfer_id, nodes, place


class DreamtCost(NamedTuple):
    runtime_ps: int


class DreamtTask(NamedTuple):
    """What searches ask of a task. cost: itself; reach: how far a cost looks, in edges."""

    max_locations: int
    no_op: int
    reach: int

    @property
    def cost(self) -> "DreamtTask":
        return self


class Dream:
    """What all states of one search share: the model, the world, and how much doubt is allowed.

    An effect that nobody knows (doubt 1) is never taken: it would be a step to nowhere.
    """

    def __init__(self, model, start: RewriteState, doubt_limit: float):
        first = first_edit(start)
        self.index, self.scale = model.worlds.of(first), model.scale_of(initial_runtime(first))
        nodes = np.array(list(Follower(self.index.world, first).node.values()), np.int64)
        self.task = DreamtTask(model.spec.max_locations, model.spec.n_xfers, reach=int(model.prices.spread > 0))
        self.doubt_limit = min(doubt_limit, BY_ANALOGY)
        self._dreaming = Dreaming(model, self.index, [nodes], self.scale)
        self._matches: dict[int, DreamtMatch] = {}
        self._marks: list[int] = []  # per node, of which the hash of a state is the sum
        self.start = DreamtState(self, self._dreaming.states, initial_runtime(first), frozenset(), sum(map(self.mark, nodes.tolist())))

    def match(self, place: int) -> DreamtMatch:
        if place not in self._matches:
            self._matches[place] = DreamtMatch(int(self.index.rule.values[place]), self.index.world.places[place].nodes, place)
        return self._matches[place]

    def mark(self, node: int) -> int:
        while len(self._marks) <= node:
            self._marks.append(mixed((len(self._marks),)))
        return self._marks[node]

    def step(self, state: "DreamtState", match: DreamtMatch) -> "DreamtState":
        """The state after the match; one that the model doubts too much costs more than any search accepts."""
        states = self._dreaming.states = state.states.copy()
        states.grow()
        gain, _, doubt, change = self._dreaming.step(np.zeros(1, np.int64), np.array([match.place]))
        gone, come = ([n for _, nodes in events for n in nodes.tolist()] for events in (change.gone, change.come)) if change else ((), ())
        refused = doubt[0] > self.doubt_limit
        runtime = 2 * self.start.cost.runtime_ps if refused else state.cost.runtime_ps - round(gain[0] / self.scale)
        key = state.hash + sum(map(self.mark, come)) - sum(map(self.mark, gone))
        return DreamtState(self, states, runtime, self._around(states, gone, come), key)

    def _around(self, states: States, gone: Iterable[int], come: Iterable[int]) -> frozenset[int]:
        """Nodes that came or went, and those next to the tensors that they read; a weight's readers concern nobody."""
        world, touched = self.index.world, {*gone, *come}
        for tensor in {t for node in (*gone, *come) for t in world.nodes[node][1] if t >= 0 and world.makers[t]}:
            touched.update(present(states, world.makers[tensor]), present(states, world.readers[tensor]))
        return frozenset(touched)


def present(states: States, nodes: Iterable[int]) -> Iterator[int]:
    """Those that are there in the single state."""
    maker, homes = states.maker[0], states.index.world.homes
    return (node for node in nodes if maker[homes[node]] == node)


class DreamtState:
    """One state. hash: equal for equal sets of nodes. touched: the nodes that the last substitution concerned."""

    def __init__(self, dream: Dream, states: States, runtime_ps: int, touched: frozenset[int], key: int):
        self.dream, self.states, self.cost, self.touched, self.hash = dream, states, DreamtCost(runtime_ps), touched, key

    @property
    def task(self) -> DreamtTask:
        return self.dream.task

    @property
    def table(self) -> "DreamtState":
        return self

    @property
    def counts(self) -> np.ndarray:
        """int32 [N]: locations of each rule."""
        self.states.grow()
        return self.states.counts[0]

    @property
    def runtime_ms(self) -> float:
        return self.cost.runtime_ps / 1e9

    def location(self, xfer_id: int, location: int) -> DreamtMatch:
        return next(islice(self.of_rule(xfer_id), location, None))

    @property
    def gained(self) -> float:
        """Reward since the start of the dream."""
        return self.dream.scale * (self.dream.start.cost.runtime_ps - self.cost.runtime_ps)

    def of_rule(self, xfer_id: int) -> Iterator[DreamtMatch]:
        """The rule's matches, in the model's order."""
        self.states.grow()
        places = self.dream.index.places_of(xfer_id)
        return map(self.dream.match, places[self.states.open[0, places] == 0].tolist())

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Those nodes, and all that are there within so many edges of them."""
        self.states.grow()
        world, found = self.dream.index.world, set(nodes)
        frontier = found
        for _ in range(reach):
            around = set()
            for node in present(self.states, frontier):
                _, inputs, outputs = world.nodes[node]
                for lists, tensors in ((world.makers, inputs), (world.readers, outputs)):
                    around.update(neighbour for tensor in tensors if tensor >= 0 for neighbour in present(self.states, lists[tensor]))
            frontier = around - found
            found = found | frontier
        return found

    def follow(self, match: DreamtMatch) -> "DreamtState":
        return self.dream.step(self, match)
