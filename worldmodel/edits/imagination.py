"""Dreams and observations of the world model "edits", in the numbers of a world."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from rlflow.collect.edits import MatchRecord, edit_between, first_edit, match_record
from rlflow.env.state import RewriteState
from rlflow.rules.match import Match
from worldmodel.base import Imagined
from worldmodel.edits.dreaming import REACH, Change, Index, States
from worldmodel.edits.latents import Latents
from worldmodel.edits.prices import NodePrices
from worldmodel.edits.surroundings import Surroundings, after, surroundings
from worldmodel.edits.world import Follower
from worldmodel.spaces import within

# Doubt of a step: nobody knows what it does; it is known by analogy, and makes what was never met; its like was seen, but not here.
UNKNOWN_EFFECT, BY_ANALOGY, NEW_SURROUNDINGS = 1.0, 0.5, 0.25
NOTHING = np.zeros(0, np.float32)


class PerNode:
    """What nodes of a world add, [A, …]; kept up with the world."""

    def __init__(self, of_nodes: Callable[[range], np.ndarray], width: tuple[int, ...] = ()):
        self.of_nodes, self.values = of_nodes, np.zeros((0, *width))

    def __call__(self, nodes: np.ndarray) -> np.ndarray:
        known, needed = len(self.values), int(nodes.max(initial=-1)) + 1
        if known < needed:
            self.values = np.concatenate([self.values, self.of_nodes(range(known, needed))])
        return self.values[nodes]


def node_prices(index: Index, prices: NodePrices) -> PerNode:
    """Runtime in ps."""
    return PerNode(lambda nodes: np.array([prices(*index.world.kind_and_facts(node)) for node in nodes], np.float64))


def price_is_guessed(index: Index, prices: NodePrices) -> PerNode:
    """1 where nobody told such a node's runtime, else 0."""
    return PerNode(lambda nodes: np.array([not prices.knows(*index.world.kind_and_facts(node)) for node in nodes], np.float64))


def node_latents(index: Index, latents: Latents) -> PerNode:
    return PerNode(lambda nodes: latents.of_nodes(index.what.values[nodes.start : nodes.stop]), (latents.rows.shape[1],))


class Dreaming:
    """States of one world, and what the model says of every step of theirs: what dreams and replays are made of."""

    def __init__(self, model, index: Index, nodes: Sequence[np.ndarray]):
        self.model, self.index = model, index
        self.states = States(index, list(nodes), model.spec.n_rules)
        self.price, self.guessed = node_prices(index, model.prices.nodes), price_is_guessed(index, model.prices.nodes)
        if model.prices.around:
            self._pay(surroundings(self.states, np.repeat(np.arange(len(nodes)), [len(there) for there in nodes]), np.concatenate(nodes)))

    def step(self, rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Change | None]:
        """Carries out places, int [k], that are complete in the (different) states rows: ps gained, their spread, doubt, the change.

        An effect that nobody knows changes nothing. What it gains is told by the rule's other places, as for one by analogy that
        concerns nodes whose runtimes nobody knows.
        """
        places = self.states.named(rows, places)
        effects = self.index.effects(places)
        known = effects >= 0
        seen = known.copy()
        seen[known] = self.index.seen.values[effects[known]]
        gain, spread, uncertainty = np.zeros(len(rows)), np.zeros(len(rows)), np.where(known, BY_ANALOGY, UNKNOWN_EFFECT).astype(np.float32)
        for k in np.flatnonzero(~seen).tolist():
            gain[k], spread[k] = self._by_analogy(int(places[k]))
        change = None
        if known.any():
            change = self.states.carry_out(rows[known], places[known])
            added, unpriced = np.zeros(self.states.n), np.zeros(self.states.n)
            change.add_to(added, self.price)
            for at, nodes in (*change.gone, *change.come):
                np.add.at(unpriced, at, self.guessed(nodes))
            sure = seen | (known & (unpriced[rows] == 0))
            gained = -added, np.zeros(self.states.n), np.ones(self.states.n, bool)
            if self.model.prices.around:
                gained = self._pay(after(change), change.gone)
            gain[sure], spread[sure], familiar = (of_states[rows[sure]] for of_states in gained)
            uncertainty[sure] = np.where(seen[sure] & familiar, 0.0, NEW_SURROUNDINGS)
        return gain, spread, uncertainty, change

    def _pay(self, concerned: Surroundings, gone: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prices nodes by what is around them, and takes the price off those that are gone: by how much less each state costs, the
        spread of that (ps), and whether all surroundings are known."""
        states, home, width = self.states, self.index.home.values, self.states.paid.shape[1]
        at = concerned.rows * width + home[concerned.nodes]
        cells = np.unique(np.concatenate([at, *[rows * width + home[nodes] for rows, nodes in gone]]))
        paid, keys = states.paid.reshape(-1), states.keys.reshape(-1, REACH)
        before = paid[cells]
        price, spread, known = self.model.prices(self.price(concerned.nodes), concerned.keys, paid[at], keys[at].T)
        paid[cells] = 0.0
        paid[at], keys[at] = price, concerned.keys.T
        gained = np.bincount(cells // width, before - paid[cells], states.n)
        return gained, np.sqrt(np.bincount(concerned.rows, spread**2, states.n)), np.bincount(concerned.rows, ~known, states.n) == 0

    def _by_analogy(self, place: int) -> tuple[float, float]:
        result, prices = self.index.world.places[place], self.model.prices
        size = prices.nodes.sizes.get(self.index.world.facts[result.operands[-1]])
        return prices.gains(int(self.index.rule.values[place]), result.form, size)

    def expected(self, xfer_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(gain, spread) in ps of rules, int [k], wherever they are carried out."""
        told = np.array([self.model.prices.gains(x, None, None) for x in xfer_ids.tolist()]).reshape(-1, 2)
        return told[:, 0], told[:, 1]


class EditsImagination:
    """See `worldmodel.base.Imagination`. The temperature scales the spread that runtimes had in the same surroundings."""

    def __init__(self, model, start: RewriteState, n: int):
        first, unchanged = first_edit(start), start.task.initial.cost.runtime_ps
        index, self._scale = model.worlds.of(first), model.rewards.of(unchanged)
        nodes = np.array(list(Follower(index.world, first).node.values()), np.int64)
        self.model, self.limit = model, model.spec.max_locations
        self._start_gained = unchanged - start.cost.runtime_ps
        self._gained = np.full(n, self._start_gained, np.float64)  # ps, since the unchanged graph
        self._dreaming = Dreaming(model, index, [nodes])
        self._start = self._dreaming.states
        self._dreaming.states = self._start.copies(n)
        self._rows = node_latents(index, model.latents)
        self._start_sum = model.latents.offset + self._rows(nodes).sum(axis=0)
        self._sums = np.tile(self._start_sum, (n, 1))
        self.h = np.zeros((n, 0), np.float32)

    @property
    def z(self) -> np.ndarray:
        return self.model.bounded(self._sums)

    @property
    def counts(self) -> np.ndarray:
        return np.minimum(self._dreaming.states.counts, self.limit)

    @property
    def class_counts(self) -> np.ndarray:
        states = self._dreaming.states
        return states.kinds if states.counts.max() <= self.limit else within(states.kinds, self.model.match_classes, self.limit)

    def restart(self, rows: np.ndarray) -> None:
        self._dreaming.states.copy_rows(np.flatnonzero(rows), self._start)
        self._sums[rows] = self._start_sum
        self._gained[rows] = self._start_gained

    def advance(self, actions: np.ndarray, rows: np.ndarray, temperature: float, seed: tuple[int, int]) -> Imagined:
        n = len(actions)
        rewards, uncertainty = np.zeros(n), np.zeros(n, np.float32)
        moved = np.flatnonzero(rows)
        if len(moved):
            places = self._dreaming.states.find(moved, np.asarray(actions)[moved])
            mean, spread, uncertainty[moved], change = self._dreaming.step(moved, places)
            noise = np.random.default_rng(seed).standard_normal(n)[moved] if temperature > 0 else 0.0
            gained = mean + temperature * spread * noise
            rewards[moved] = self._scale.reward(gained, self._gained[moved])
            self._gained[moved] += gained
            if change is not None:
                change.add_to(self._sums, self._rows)
        return Imagined(rewards, np.zeros(n, bool), uncertainty)


class EditsObserver:
    """See `worldmodel.base.Observer`. Locations of a rule are numbered by kind, then by where their nodes lie in the initial graph."""

    h = NOTHING

    def __init__(self, model):
        self.model = model

    def begin(self, state: RewriteState) -> None:
        first = first_edit(state)
        index = self.model.worlds.of(first)
        self._index, self.follower, self.state = index, Follower(index.world, first), state
        self._located: dict[int, dict] = defaultdict(dict)  # rule → match, as `_name` names it → its order
        self._locate(first.lost, first.appeared)
        self._rows = node_latents(index, self.model.latents)
        self._times = self.model.worlds.schemas.times()

    @property
    def z(self) -> np.ndarray:
        self._index.update()
        nodes = np.array(list(self.follower.node.values()), np.int64)
        return self.model.bounded(self.model.latents.offset + self._rows(nodes).sum(axis=0))

    @property
    def counts(self) -> np.ndarray:
        return self.state.counts

    def real_action(self, action: Sequence[int]) -> tuple[int, int]:
        xfer_id, number = int(action[0]), int(action[1])
        orders = self._orders(xfer_id)
        return xfer_id, sorted(range(len(orders)), key=orders.__getitem__)[number]

    @property
    def class_counts(self) -> np.ndarray:
        limit = self.model.spec.max_locations
        allowed = [located.values() if len(located) <= limit else self._orders(xfer_id) for xfer_id, located in self._located.items()]
        return np.bincount([kind for orders in allowed for kind, _ in orders], minlength=len(self.model.match_classes)).astype(np.int32)

    def _orders(self, xfer_id: int) -> list[tuple]:
        """Of the locations that the environment allows, by its numbers: their kinds and, within these, their order."""
        matches = islice(self.state.table.of_rule(xfer_id), self.model.spec.max_locations)
        return [self._located[xfer_id][self._name(match_record(self.state, match))] for match in matches]

    def _locate(self, lost: Iterable[MatchRecord], result: Iterable[MatchRecord]) -> None:
        for match in lost:
            self._located[match.xfer_id].pop(self._name(match), None)  # what a symmetric rule matches is told twice
        for match in result:
            of_rule, name, order = self._located[match.xfer_id], self._name(match), self._order(match)
            of_rule[name] = min(order, of_rule.get(name, order))

    def _name(self, match: MatchRecord) -> MatchRecord | frozenset[int]:
        return frozenset(match.nodes) if match.xfer_id in self.model.worlds.schemas.symmetric else match

    def _order(self, match: MatchRecord) -> tuple:
        """As `Index.order_of` has it; of a form that nobody knows, the last of its rule."""
        place, index = self.follower.place(match), self._index
        if place is None:
            return index.kinds.of(match.xfer_id, None, ()), index.world.order_at(*self.follower.grounded(match))
        index.update()
        return index.order_of(place)

    def knows(self, match: Match) -> bool:
        """Whether the model saw such a match of the state carried out, with just these facts."""
        place = self.follower.place(match_record(self.state, match))
        if place is None:
            return False
        effect = self._index.effects(np.array([place]))[0]
        return bool(effect >= 0 and self._index.seen.values[effect])

    def times(self, xfer_id: int) -> int:
        """How often the model saw the rule carried out."""
        return self._times[xfer_id]

    def expects(self, match: Match) -> float:
        """What matches of its form, else of its rule, gained in the middle (ps)."""
        place = self.follower.place(match_record(self.state, match))
        form = None if place is None else self._index.world.places[place].form
        return self.model.prices.gains(match.xfer_id, form, None)[0]

    def follow(self, action: Sequence[int], state: RewriteState) -> None:
        self.took(self.state.table.location(*self.real_action(action)), state)

    def took(self, match: Match, state: RewriteState) -> None:
        """A match of the state led to this one."""
        edit = edit_between(self.state, match, state)
        self.follower.follow(edit, match_record(self.state, match))
        self._locate(edit.lost, edit.appeared)
        self.state = state
