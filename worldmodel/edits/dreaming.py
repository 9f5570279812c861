"""Many dreams of one world side by side, in arrays: a state is which nodes are there, a step takes some away and adds others.

Nothing is searched for in a step: every node knows the places that wait for it (a Rete network, Forgy 1982), so counters tell
which places are complete. The world is asked only about what no dream did before.
"""

from bisect import bisect
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import chain, count

import numpy as np

from rlflow.collect.edits import OUTPUT
from rlflow.graph.model import ABSENT
from worldmodel.edits.kinds import Kinds
from worldmodel.edits.prices import mixed
from worldmodel.edits.world import GroundEffect, World

REACH = 5  # edges that the price of a node may look; a layer normalisation is as wide


class Ragged:
    """Lists of numbers of varying length, by number. Lists that have changed since the arrays were built are read one by one."""

    def __init__(self):
        self.lists: list[list[int]] = []
        self._flat, self._offsets = np.zeros(0, np.int32), np.zeros(1, np.int64)
        self._changed = Growing(bool)
        self._changes = 0

    def append(self, values: Iterable[int]) -> None:
        self.lists.append(list(values))
        self._changed.append(True)
        self._changes += 1

    def add(self, row: int, value: int) -> None:
        """Appends to a list that is there already."""
        self.lists[row].append(value)
        self._changed.data[row] = True
        self._changes += 1

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(which of `rows`, value) of every value of theirs."""
        if self._changes > len(self._offsets) // 4:
            self._build()
        changed = self._changed.values[rows]
        if not changed.any():
            return self._built(np.arange(len(rows)), rows)
        which, values = self._built(np.flatnonzero(~changed), rows[~changed])
        new = [(k, value) for k in np.flatnonzero(changed).tolist() for value in self.lists[rows[k]]]
        more = np.array(new, np.int64).reshape(-1, 2)
        which, values = np.concatenate([which, more[:, 0]]), np.concatenate([values, more[:, 1].astype(np.int32)])
        order = np.argsort(which, kind="stable")
        return which[order], values[order]

    def _built(self, which: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts, counts = self._offsets[rows], self._offsets[rows + 1] - self._offsets[rows]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(which, counts), self._flat[np.repeat(starts, counts) + within]

    def _build(self) -> None:
        self._flat = np.fromiter(chain.from_iterable(self.lists), np.int32)
        self._offsets = np.cumsum([0, *map(len, self.lists)])
        self._changed.values[:] = False
        self._changes = 0


class Growing:
    """An array whose first axis grows."""

    def __init__(self, dtype, *shape: int):
        self.data, self.size = np.zeros((64, *shape), dtype), 0

    def append(self, value) -> None:
        if self.size == len(self.data):
            self.data = np.concatenate([self.data, np.zeros_like(self.data)])
        self.data[self.size] = value
        self.size += 1

    @property
    def values(self) -> np.ndarray:
        return self.data[: self.size]


class Index:
    """The world as arrays; `update` takes over what it has grown by."""

    def __init__(self, world: World, kinds: Kinds):
        self.world, self.kinds = world, kinds
        self.home, self.immortal = Growing(np.int32), Growing(bool)
        self.what = Growing(np.uint64)  # node → a hash of its kind and its tensors' facts
        self.second = Growing(bool)  # tensor → whether some node makes it as another output than its first
        self.seen = Growing(bool)  # row of effects → as in GroundEffect
        self.reads, self.makes, self.waiting = Ragged(), Ragged(), Ragged()  # by node: tensors, tensors, places
        self.conditions, self.rule, self.size = Ragged(), Growing(np.int32), Growing(np.int16)  # by place
        self.kind = Growing(np.int32)  # place → its kind, which it shares with its twin
        self.readers = Ragged()  # tensor → nodes
        self.watchers, self.alone = Ragged(), Ragged()  # tensor → places that want it to have one reader; and back
        self.removed, self.added, self.rewired, self.made = Ragged(), Ragged(), Ragged(), Ragged()  # by row, as in GroundEffect
        self.has_twin = Growing(bool)
        self.effect_number = Growing(np.int32)  # place → row of the three; −1 unknown, −2 not asked yet
        self.copies: dict[tuple[int, int], int] = {}
        self._sorted: dict[int, tuple[list[tuple], np.ndarray]] = {}  # rule → (orders, places), ascending
        self.update()

    def update(self) -> None:
        world, schemas = self.world, self.world.schemas
        while len(self.watchers.lists) < len(world.order):
            self.watchers.append(())
            self.readers.append(())
            self.second.append(False)
        for node in range(self.home.size, len(world.nodes)):
            kind, inputs, outputs = world.nodes[node]
            self.home.append(world.homes[node])
            self.immortal.append(kind == OUTPUT)
            kind, facts = world.kind_and_facts(node)
            self.what.append(mixed((kind, *facts)))
            for tensor in outputs[1:]:
                if tensor != ABSENT:
                    self.second.data[tensor] = True
            self.reads.append(sorted(set(inputs) - {ABSENT}))
            self.makes.append(t for t in outputs if t != ABSENT)
            self.waiting.append(())
            for tensor in self.reads.lists[node]:
                self.readers.add(tensor, node)
        for place in range(self.rule.size, len(world.places)):
            result = world.places[place]
            known, facts = schemas.known[result.form], world.facts_of(result)
            xfer_id = known.form.xfer_id
            alone = [result.tensors[t] for t in known.alone]
            self.rule.append(xfer_id)
            self.kind.append(self._kind(place))
            shown = world.twin.get(place, place) >= place and schemas.applies(result.form, facts)
            self.size.append(len(result.nodes) + len(alone) + (not shown))  # one that is never met
            self.conditions.append(result.nodes)
            self.alone.append(alone)
            for node in result.nodes:
                self.waiting.add(node, place)
            for tensor in alone:
                self.watchers.add(tensor, place)
            self.effect_number.append(-2)
            self.has_twin.append(place in world.twin)
            self.has_twin.data[self.shown(place)] |= place in world.twin
            self._sort(xfer_id, place)

    def _kind(self, place: int) -> int:
        """With a twin, both are of the lesser kind of the two."""
        world, twin = self.world, self.world.twin.get(place, place)
        if twin < place:
            return int(self.kind.values[twin])
        return min(self.kinds.of(self.rule.values[place], world.places[each].form, world.facts_of(world.places[each])) for each in (place, twin))

    def _sort(self, xfer_id: int, place: int) -> None:
        """Puts a place among those of its rule, which are ordered by kind; with a twin, both count as one, by the lesser order."""
        twin = self.world.twin.get(place, place)
        if twin > place:
            return  # it comes with its twin
        orders, places = self._sorted.get(xfer_id, ([], np.zeros(0, np.int32)))
        for at in np.flatnonzero(places == twin).tolist():  # it was there before its twin
            orders, places = orders[:at] + orders[at + 1 :], np.delete(places, at)
        order = self.order_of(twin)
        at = bisect(orders, order)
        orders.insert(at, order)
        self._sorted[xfer_id] = orders, np.insert(places, at, twin)

    def order_of(self, place: int) -> tuple:
        """By this the locations of a rule are numbered: first by kind."""
        twin = self.world.twin.get(place, place)
        return int(self.kind.values[place]), min(self.world.order_at(*self.world.places[each][1:3]) for each in (place, twin))

    def places_of(self, xfer_id: int) -> np.ndarray:
        """The rule's places in their order, int32 [k]."""
        return self._sorted[xfer_id][1]

    def shown(self, place: int) -> int:
        """The place that stands for this one: of two that name the same nodes in another order, the first known."""
        return min(place, self.world.twin.get(place, place))

    def effects(self, places: np.ndarray) -> np.ndarray:
        """Rows of seen, removed, added, rewired and made, int32 [k]; −1 where nobody knows."""
        self.update()
        for place in np.unique(places[self.effect_number.values[places] == -2]).tolist():
            effect = self.world.effect(place)
            self.effect_number.data[place] = -1 if effect is None else self._row(effect)
        return self.effect_number.values[places]

    def effect(self, place: int, copy: int) -> int:
        """The row of an effect that is known, with other new tensors (see `World.effect`)."""
        if (place, copy) not in self.copies:
            self.copies[place, copy] = self._row(self.world.effect(place, copy))
        return self.copies[place, copy]

    def _row(self, effect: GroundEffect) -> int:
        self.seen.append(effect.seen)
        self.removed.append(effect.removed)
        self.added.append(effect.added)
        self.rewired.append(tensor for pair in effect.rewired for tensor in pair)
        self.made.append(effect.made)
        return len(self.made.lists) - 1


class States:
    """n states of one world. maker: int32 [n, T], the node that is there under a tensor, −1 for none. readers: int16 [n, T].

    open: int16 [n, J], conditions of a place that are not met; the rule applies where it is 0. counts: int32 [n, N], by rule; kinds:
    int32 [n, K], by kind. What others note here where a node's price depends on its surroundings: paid, float64 [n, T], its runtime (ps);
    keys, uint32 [n, T, REACH], what was around it then (see `surroundings`).
    """

    def __init__(self, index: Index, nodes: list[np.ndarray], n_rules: int):
        """nodes: those that are there, for each state."""
        self.index, self.n = index, len(nodes)
        index.update()
        tensors = len(index.world.order)
        self.maker = np.full((self.n, tensors), -1, np.int32)
        self.readers = np.zeros((self.n, tensors), np.int16)
        self.paid, self.keys = np.zeros((self.n, tensors)), np.zeros((self.n, tensors, REACH), np.uint32)
        self.open = np.zeros((self.n, 0), np.int16)
        self.counts, self.kinds = np.zeros((self.n, n_rules), np.int32), np.zeros((self.n, len(index.kinds.xfer_ids)), np.int32)
        rows, nodes = np.repeat(np.arange(self.n), [len(there) for there in nodes]), np.concatenate(nodes)
        self.maker[rows, index.home.values[nodes]] = nodes
        self.read(rows, nodes, 1)
        self.grow()

    def read(self, rows: np.ndarray, nodes: np.ndarray, sign: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes come (1) or go (−1): their tensors have one reader more, or less. The (states, tensors) concerned."""
        which, tensors = self.index.reads.take(nodes)
        np.add.at(self.readers, (rows[which], tensors), np.int16(sign))
        return rows[which], tensors

    def grow(self) -> None:
        """Takes over what the world has grown by."""
        index = self.index
        index.update()
        more = len(index.world.order) - self.maker.shape[1]
        if more > 0:
            room = max(more, self.maker.shape[1] // 4)  # so that growing is rare
            self.maker = np.concatenate([self.maker, np.full((self.n, room), -1, np.int32)], axis=1)
            self.readers = np.concatenate([self.readers, np.zeros((self.n, room), np.int16)], axis=1)
            self.paid = np.concatenate([self.paid, np.zeros((self.n, room))], axis=1)
            self.keys = np.concatenate([self.keys, np.zeros((self.n, room, REACH), np.uint32)], axis=1)
        known = self.open.shape[1]
        if index.rule.size > known:
            new = np.arange(known, index.rule.size)
            still = np.broadcast_to(index.size.values[new], (self.n, len(new))).copy()
            for lists, met in ((index.conditions, self._present), (index.alone, self._single)):
                which, value = lists.take(new)
                np.subtract.at(still, (slice(None), which), met(value))
            self.open = np.concatenate([self.open, still], axis=1)
            for counts, of_place in ((self.counts, index.rule), (self.kinds, index.kind)):
                np.add.at(counts, (slice(None), of_place.values[new]), still == 0)

    def _present(self, nodes: np.ndarray) -> np.ndarray:
        return (self.maker[:, self.index.home.values[nodes]] == nodes).astype(np.int16)

    def _single(self, tensors: np.ndarray) -> np.ndarray:
        return (self.readers[:, tensors] == 1).astype(np.int16)

    def copies(self, n: int) -> "States":
        """n states that are as the only one is."""
        other = States.__new__(States)
        other.index, other.n = self.index, n
        for name in ("maker", "readers", "paid", "keys", "open", "counts", "kinds"):
            setattr(other, name, np.repeat(getattr(self, name), n, axis=0))
        return other

    def copy_rows(self, rows: np.ndarray, source: "States") -> None:
        """Puts the states in rows, int [k], to the first state of `source`, which may be of a smaller world."""
        source.grow()
        self.grow()
        width = min(self.maker.shape[1], source.maker.shape[1])
        self.maker[rows], self.readers[rows], self.paid[rows], self.keys[rows] = -1, 0, 0, 0
        self.maker[rows, :width], self.readers[rows, :width] = source.maker[0, :width], source.readers[0, :width]
        self.paid[rows, :width], self.keys[rows, :width] = source.paid[0, :width], source.keys[0, :width]
        self.open[rows], self.counts[rows], self.kinds[rows] = source.open[0], source.counts[0], source.kinds[0]

    def find(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The places of valid actions, int [k, 2] in states rows: int [k]."""
        self.grow()
        result = np.zeros(len(rows), np.int64)
        for xfer_id in np.unique(actions[:, 0]).tolist():
            these = np.flatnonzero(actions[:, 0] == xfer_id)
            places = self.index.places_of(xfer_id)
            there = np.cumsum(self.open[rows[these][:, None], places] == 0, axis=1)
            result[these] = places[(there <= actions[these, 1:]).sum(axis=1)]
        return result

    def named(self, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The places with their nodes named as the environment does: of two alike ones that first which is first in the graph's order."""
        named = places.copy()
        for k in np.flatnonzero(self.index.has_twin.values[places]).tolist():
            place, twin = int(places[k]), self.index.world.twin[int(places[k])]
            one, other = self.index.world.places[place].nodes, self.index.world.places[twin].nodes
            differ = next(i for i in range(len(one)) if one[i] != other[i])
            if self.first_of(int(rows[k]), one[differ], other[differ]) == other[differ]:
                named[k] = twin
        return named

    def first_of(self, row: int, one: int, other: int) -> int:
        """Which of two nodes comes first in the canonical order: depth first from the outputs, operands before their readers."""
        world, maker = self.index.world, self.maker[row]
        entrances, around = self._entrances(row, one, other)
        met: set[int] = set()
        for entrance in entrances:
            stack = [(entrance, iter(world.nodes[entrance][1]))]
            while stack:
                node, inputs = stack[-1]
                tensor = next(inputs, None)
                if tensor is None:
                    if node in (one, other):
                        return node
                    stack.pop()
                elif tensor >= 0:
                    below = next((n for n in world.makers[tensor] if n in around and n not in met and maker[world.homes[n]] == n), -1)
                    if below >= 0:
                        met.add(below)
                        stack.append((below, iter(world.nodes[below][1])))
        return one

    def _entrances(self, row: int, one: int, other: int) -> tuple[list[int], set[int]]:
        """(where a walk from the outputs enters what leads to two nodes, in its order; all that does, from there on).

        A single node as soon as every way from the two leads through it; else the outputs.
        """
        world, maker, order = self.index.world, self.maker[row], self.index.world.order
        around, outputs = {one, other}, []
        heap = sorted((order[world.homes[node]], node) for node in around)
        while len(heap) > 1 or (outputs and heap):
            _, node = heappop(heap)
            if self.index.immortal.values[node]:
                outputs.append(node)
            for tensor in world.nodes[node][2]:
                for reader in world.readers[tensor] if tensor >= 0 else ():
                    if reader not in around and maker[world.homes[reader]] == reader:
                        around.add(reader)
                        heappush(heap, (order[world.homes[reader]], reader))
        if heap:
            return [heap[0][1]], around
        return sorted(outputs, key=lambda node: order[world.homes[node]]), around

    def makers(self, rows: np.ndarray, tensors: np.ndarray) -> np.ndarray:
        """The nodes that make the tensors there, −1 for none (a state holds a node under its first output alone)."""
        result, home = self.maker[rows, tensors], self.index.home.values
        for k in np.flatnonzero((result < 0) & self.index.second.values[tensors]).tolist():
            result[k] = next((n for n in self.index.world.makers[tensors[k]] if self.maker[rows[k], home[n]] == n), -1)
        return result

    def carry_out(self, rows: np.ndarray, places: np.ndarray) -> "Change":
        """Carries out one place in each of the (different) states rows, of which the effect is known."""
        effects = self._unused(rows, places)
        change = Change(self, rows)
        rewired = change.rewired(effects)
        self.grow()  # before anything changes: counters of new places begin with what is there now
        change.apply(effects, *rewired)
        return change

    def _unused(self, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The effects, with tensors made that nothing reads yet: what made them may have been carried out there before."""
        effects = self.index.effects(places).copy()
        for copy in count(1):
            self.grow()
            which, tensors = self.index.made.take(effects)
            used = np.unique(which[self.readers[rows[which], tensors] > 0])
            if not len(used):
                return effects
            effects[used] = [self.index.effect(place, copy) for place in places[used].tolist()]


class Change:
    """One step of some states. gone, come: (states, nodes) of what went and came; a node may do both."""

    def __init__(self, states: States, rows: np.ndarray):
        self.states, self.index, self.rows = states, states.index, rows
        self.gone: list[tuple[np.ndarray, np.ndarray]] = []
        self.come: list[tuple[np.ndarray, np.ndarray]] = []
        self.read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # (states, tensors, ±1)

    def add_to(self, totals: np.ndarray, worth: Callable[[np.ndarray], np.ndarray]) -> None:
        """Adds to totals, [n, …], what the nodes that came are worth, less what those that went were."""
        for events, sign in ((self.gone, -1.0), (self.come, 1.0)):
            for rows, nodes in events:
                np.add.at(totals, rows, sign * worth(nodes))

    def rewired(self, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(states, nodes that will read another tensor, the nodes that they become)."""
        world, index, maker = self.index.world, self.index, self.states.maker
        which, pairs = index.rewired.take(effects)
        result = [], [], []
        old, new = pairs[::2], pairs[1::2]
        for tensor, other in {*zip(old.tolist(), new.tolist(), strict=True)}:
            rows = self.rows[which[::2][(old == tensor) & (new == other)]]
            readers = np.array([n for n in world.readers[tensor] if n < index.home.size], np.int64)  # without those that this loop makes
            at, k = np.nonzero(maker[rows[:, None], index.home.values[readers]] == readers)
            become = {node: world.rewired_node(node, tensor, other) for node in np.unique(readers[k]).tolist()}
            for parts, values in zip(result, (rows[at], readers[k], [become[n] for n in readers[k].tolist()]), strict=True):
                parts.append(np.array(values, np.int64))
        return tuple([np.concatenate([np.zeros(0, np.int64), *parts]) for parts in result])

    def apply(self, effects: np.ndarray, readers_in: np.ndarray, readers: np.ndarray, become: np.ndarray) -> None:
        index, rows = self.index, self.rows
        which, nodes = index.removed.take(effects)
        self._remove(rows[which], nodes)
        which, nodes = index.added.take(effects)
        self._add(rows[which], nodes)
        still = self._remove(readers_in, readers)  # the removed ones may have been among the readers
        self._add(readers_in[still], become[still])
        made_by, made = index.makes.take(nodes)
        rewired_in, pairs = index.rewired.take(effects)
        self._sweep([(rows[which][made_by], made), (rows[rewired_in], pairs)])
        self._settle()

    def _remove(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Which of them were there."""
        states, home = self.states, self.index.home.values
        there = states.maker[rows, home[nodes]] == nodes
        rows, nodes = rows[there], nodes[there]
        states.maker[rows, home[nodes]] = -1
        self.gone.append((rows, nodes))
        self._reads(rows, nodes, -1)
        return there

    def _add(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        states, home = self.states, self.index.home.values
        new = states.maker[rows, home[nodes]] != nodes
        rows, nodes = rows[new], nodes[new]
        states.maker[rows, home[nodes]] = nodes
        self.come.append((rows, nodes))
        self._reads(rows, nodes, 1)

    def _reads(self, rows: np.ndarray, nodes: np.ndarray, sign: int) -> None:
        rows, tensors = self.states.read(rows, nodes, sign)
        self.read.append((rows, tensors, np.full(len(rows), sign, np.int16)))

    def _sweep(self, suspects: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Removes nodes that nothing reads any more, and then what only they read."""
        states, index = self.states, self.index
        rows, tensors = (np.concatenate(parts) for parts in zip(*[r[:2] for r in self.read], *suspects, strict=True))
        while len(rows):
            unread = states.readers[rows, tensors] == 0
            rows, tensors = rows[unread], tensors[unread]
            makers = states.makers(rows, tensors)
            rows, nodes = _unique(rows[makers >= 0], makers[makers >= 0])
            which, made = index.makes.take(nodes)
            used = np.bincount(which, states.readers[rows[which], made] > 0, len(nodes)) > 0
            dead = ~used & ~index.immortal.values[nodes]
            rows, nodes = rows[dead], nodes[dead]
            self._remove(rows, nodes)
            which, tensors = index.reads.take(nodes)
            rows = rows[which]

    def _settle(self) -> None:
        """Brings the conditions of waiting places, and the counts of rules and kinds, up to date."""
        states, index = self.states, self.index
        width = states.open.shape[1]
        cells, steps = [], []
        for events, sign in ((self.gone, 1), (self.come, -1)):
            rows, nodes = (np.concatenate(parts) for parts in zip(*events, strict=True))
            which, places = index.waiting.take(nodes)
            cells.append(rows[which] * width + places)
            steps.append(np.full(len(which), sign, np.int16))
        rows, tensors, changes = self._single_changes()
        which, places = index.watchers.take(tensors)
        cells.append(rows[which] * width + places)
        steps.append(changes[which])
        cells = np.concatenate(cells)
        flat, touched = states.open.reshape(-1), np.unique(cells)
        before = flat[touched] == 0
        np.add.at(flat, cells, np.concatenate(steps))
        change = (flat[touched] == 0).astype(np.int32) - before
        touched, change = touched[change != 0], change[change != 0]
        for counts, of_place in ((states.counts, index.rule), (states.kinds, index.kind)):
            np.add.at(counts, (touched // width, of_place.values[touched % width]), change)

    def _single_changes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(states, tensors, −1 where a tensor came to have a single reader, 1 where it ceased to)."""
        rows, tensors, signs = (np.concatenate(parts) for parts in zip(*self.read, strict=True))
        width = self.states.readers.shape[1]
        cells, inverse = np.unique(rows * width + tensors, return_inverse=True)
        difference = np.bincount(inverse, signs, len(cells)).astype(np.int16)
        now = self.states.readers.reshape(-1)[cells]
        change = ((now - difference) == 1).astype(np.int16) - (now == 1)
        return cells[change != 0] // width, cells[change != 0] % width, change[change != 0]


def _unique(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different (row, value) pairs, in order."""
    pairs = np.unique(np.stack([rows, values], axis=1), axis=0) if len(rows) else np.zeros((0, 2), np.int64)
    return pairs[:, 0], pairs[:, 1]
