"""Dreams that a search can walk: immutable states of a world, in the terms of `rlflow.search`.

What `rlflow.search` asks of a state is what a RewriteState answers, so the same searches run on the real graph and in the
dream. A substitution that the model is in more doubt of than allowed is not offered, or leads nowhere.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from itertools import islice
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import first_edit, unpack
from rlflow.env.state import RewriteState
from rlflow.search.search import Path
from worldmodel.edits.dreaming import REACH, States
from worldmodel.edits.follow import initial_runtime
from worldmodel.edits.imagination import BY_ANALOGY, NEW_SURROUNDINGS, Dreaming
from worldmodel.edits.world import Follower


class DreamtMatch:
    """A place of the world as a search knows it. Searches tell matches apart by identity: there is one of each place."""

    __slots__ = ("nodes", "place", "xfer_id")

    def __init__(self, xfer_id: int, nodes: tuple[int, ...], place: int):
        self.xfer_id, self.nodes, self.place = xfer_id, nodes, place


class DreamtCost(NamedTuple):
    runtime_ps: int


@cache
def mark(node: int) -> int:
    """A number of 128 bits, so that sums of different nodes' differ."""
    return int.from_bytes(sha256(str(node).encode()).digest()[:16], "little")


class Dream:
    """What all states of one search share: the model, the world, and how much doubt is allowed.

    An effect that nobody knows (doubt 1) is never offered.
    """

    def __init__(self, model, start: RewriteState, uncertainty_limit: float):
        self.first = first = first_edit(start)
        self.unchanged_ps = start.task.initial.cost.runtime_ps
        self.index, self.scale = model.worlds.of(first), model.rewards.of(self.unchanged_ps)
        nodes = np.array(list(Follower(self.index.world, first).node.values()), np.int64)
        self.max_locations, self.reach = model.spec.max_locations, REACH if model.prices.around else 0
        self.uncertainty_limit, self._elite = min(uncertainty_limit, BY_ANALOGY), model.elites.get(initial_runtime(first))
        self._dreaming = Dreaming(model, self.index, [nodes])
        self._matches: dict[int, DreamtMatch] = {}
        self._offered: dict[int, bool] = {}
        self.start = DreamtState(self, self._dreaming.states, initial_runtime(first), frozenset(), sum(map(mark, nodes.tolist())), 0.0)

    def match(self, place: int) -> DreamtMatch:
        if place not in self._matches:
            self._matches[place] = DreamtMatch(int(self.index.rule.values[place]), self.index.world.places[place].nodes, place)
        return self._matches[place]

    def offers(self, place: int) -> bool:
        """Whether its effect may be known well enough; how well depends on the state too, which `step` finds out."""
        if place not in self._offered:
            world = self.index.world
            namings = [world.places[each] for each in {place, world.twin.get(place, place)}]
            effects = [world.schemas.effect(result.form, world.facts_of(result)) for result in namings]
            self._offered[place] = all(seen or (effect is not None and self.uncertainty_limit >= NEW_SURROUNDINGS) for effect, seen in effects)
        return self._offered[place]

    def step(self, state: "DreamtState", match: DreamtMatch) -> "DreamtState":
        """The state after the match; the state itself where the model doubts it too much."""
        states = self._dreaming.states = state.states.copies(1)
        states.grow()
        gain, _, uncertainty, change = self._dreaming.step(np.zeros(1, np.int64), np.array([match.place]))
        if uncertainty[0] > self.uncertainty_limit:
            if uncertainty[0] >= BY_ANALOGY:  # else it is the surroundings that are new, and those change
                self._offered[match.place] = False
            return state
        gone, come = ([n for _, nodes in events for n in nodes.tolist()] for events in (change.gone, change.come))
        key = state.hash + sum(map(mark, come)) - sum(map(mark, gone))
        runtime, paid = state.cost.runtime_ps - round(gain[0]), self.scale.reward(gain[0], self.unchanged_ps - state.cost.runtime_ps)
        return DreamtState(self, states, runtime, self._around(states, gone, come), key, state.gained + paid)

    def remembered(self) -> Path | None:
        """The matches that led to the cheapest state that the model was shown of this graph, as far as the dream follows; the last one
        first."""
        follower, state, path = Follower(self.index.world, self.first), self.start, None
        told, taken = unpack(self._elite) if self._elite is not None else ([self.first], [])
        if told[0] != self.first:  # another graph of the same runtime
            return None
        for edit, record in zip(told[1:], taken, strict=True):
            place = follower.place(record)
            if place is None or state.states.open[0, self.index.shown(place)]:
                break
            match = self.match(self.index.shown(place))
            state, before = self.step(state, match), state
            if state is before:
                break
            state.states.grow()
            path = match, path
            follower.follow(edit, record)
        return path

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
    """One state; nodes are the world's numbers. hash: equal for equal sets of nodes. touched: the nodes that the last
    substitution concerned, gone ones too. reach: how far a cost looks, in edges. gained: rewards since the start of the dream."""

    def __init__(self, dream: Dream, states: States, runtime_ps: int, touched: frozenset[int], key: int, gained: float):
        self.dream, self.states, self.cost, self.touched, self.hash = dream, states, DreamtCost(runtime_ps), touched, key
        self.gained = gained

    @property
    def reach(self) -> int:
        return self.dream.reach

    @property
    def table(self) -> "DreamtState":
        return self

    @property
    def counts(self) -> np.ndarray:
        """int32 [N]: locations of each rule, at most max_locations."""
        self.states.grow()
        return np.minimum(self.states.counts[0], self.dream.max_locations)

    @property
    def matches(self) -> list[DreamtMatch]:
        """Those that are offered, by rule and location."""
        shown = (match for xfer_id, n in enumerate(self.counts.tolist()) if n for match in islice(self.of_rule(xfer_id), n))
        return [match for match in shown if self.dream.offers(match.place)]

    def offers(self, match: DreamtMatch) -> bool:
        """Whether it is one of `matches`, but for how many there may be."""
        self.states.grow()
        return self.states.open[0, match.place] == 0 and self.dream.offers(match.place)

    @property
    def runtime_ms(self) -> float:
        return self.cost.runtime_ps / 1e9

    @property
    def objective(self) -> int:
        """Estimated runtime in picoseconds."""
        return self.cost.runtime_ps

    def match(self, xfer_id: int, location: int) -> DreamtMatch:
        return next(islice(self.of_rule(xfer_id), location, None))

    def of_rule(self, xfer_id: int) -> Iterator[DreamtMatch]:
        """The rule's matches, in the model's order."""
        if not self.counts[xfer_id]:
            return iter(())
        places = self.dream.index.places_of(xfer_id)
        return map(self.dream.match, places[self.states.open[0, places] == 0].tolist())

    def index_of(self, match: DreamtMatch) -> int:
        return list(self.of_rule(match.xfer_id)).index(match)

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Those nodes, and all that are there within so many edges of them."""
        self.states.grow()
        world, result = self.dream.index.world, set(nodes)
        frontier = result
        for _ in range(reach):
            around = set()
            for node in present(self.states, frontier):
                _, inputs, outputs = world.nodes[node]
                for lists, tensors in ((world.makers, inputs), (world.readers, outputs)):
                    around.update(neighbour for tensor in tensors if tensor >= 0 for neighbour in present(self.states, lists[tensor]))
            frontier = around - result
            result = result | frontier
        return result

    def remembered(self) -> Path | None:
        """See `Dream`; of the start."""
        return self.dream.remembered()

    def follow(self, match: DreamtMatch) -> "DreamtState":
        return self.dream.step(self, match)
