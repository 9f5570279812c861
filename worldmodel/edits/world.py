"""The world of one graph: every tensor, node and match that has come up or that the schemas say can, each with a number.

A state of the graph is then a set of nodes, and a match is there when its nodes are. The world grows when something is carried
out that was not before; what it holds is shared by all dreams.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from rlflow.collect.edits import Edit, MatchRecord, NodeRecord, TensorRecord
from rlflow.graph.model import ABSENT
from worldmodel.edits.schemas import Effect, Facts, Form, Schemas, lift

OrderKey = tuple[int, int]  # the place of the tensor of the initial graph that it came from, and a hash


class Place(NamedTuple):
    """Where a rule may apply: nodes and operands are the world's numbers; tensors: by the form's local number."""

    form: int
    nodes: tuple[int, ...]
    operands: tuple[int, ...]
    tensors: tuple[int, ...]


class GroundEffect(NamedTuple):
    """removed, added: nodes. rewired: (tensor, the one that its readers read instead). made: new tensors. seen: in the data with
    just these facts."""

    removed: tuple[int, ...]
    added: tuple[int, ...]
    rewired: tuple[tuple[int, int], ...]
    made: tuple[int, ...]
    seen: bool


class World:
    """Attributes: nodes, places: what there is, by number. homes: the first tensor that a node makes, under which states hold it.
    looks, facts, order: per tensor. readers, makers: tensor → nodes.

    nodes[k]: (kind, tensors read, tensors made).
    """

    def __init__(self, schemas: Schemas):
        self.schemas = schemas
        self.tensor_number: dict[tuple, int] = {}
        self.order: list[OrderKey] = []
        self.looks: list[int] = []
        self.facts: list[int] = []
        self.node_number: dict[tuple, int] = {}
        self.nodes: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        self.homes: list[int] = []
        self.readers: list[list[int]] = []
        self.makers: list[list[int]] = []
        self.place_number: dict[tuple, int] = {}
        self.places: list[Place] = []
        self.alike: dict[tuple, int] = {}
        self.twin: dict[int, int] = {}  # of a symmetric rule: the same nodes named in another order, both ways
        self.effects: dict[tuple[int, int], GroundEffect | None] = {}

    # -- tensors -----------------------------------------------------------------------------------

    def initial_tensor(self, real: int, rank: int, look: int, fact: int) -> int:
        return self._tensor(("initial", real), (rank, real), look, fact)

    def made_tensor(self, owner: int, maker: tuple, look: int, fact: int, twins: dict[tuple, int]) -> int:
        """A tensor that a substitution makes: named by the tensor that it was made for, and by what makes it.

        maker: kind, tensors read and output of the node; of a new constant kind, () and input of its reader, and owner is what that
        gives in place of the match, if it does. twins: how many of a name there are (see `effect`).
        """
        key = owner, *maker, fact
        key = *key, twins[key]
        twins[key[:-1]] += 1
        if key in self.tensor_number:
            return self.tensor_number[key]
        kind, inputs, slot = maker
        stable = [self.order[t] if t >= 0 else t for t in (owner, *inputs)], kind, slot, fact, key[-1]
        digest = hashlib.sha256(repr(stable).encode()).digest()
        return self._tensor(key, (self.order[owner][0], int.from_bytes(digest[:7], "little")), look, fact)

    def _tensor(self, key: tuple, order: OrderKey, look: int, fact: int) -> int:
        result = self.tensor_number.get(key)
        if result is None:
            result = self.tensor_number[key] = len(self.order)
            for values, value in ((self.order, order), (self.looks, look), (self.facts, fact), (self.readers, []), (self.makers, [])):
                values.append(value)
        return result

    # -- nodes -------------------------------------------------------------------------------------

    def node(self, kind: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> int:
        """The number of a node; a new one brings the places at which it takes part."""
        key = kind, inputs, outputs
        result = self.node_number.get(key)
        if result is None:
            result = self.node_number[key] = len(self.nodes)
            self.nodes.append(key)
            self.homes.append(next(t for t in outputs if t != ABSENT))
            for tensor in set(inputs) - {ABSENT}:
                self.readers[tensor].append(result)
            for tensor in set(outputs) - {ABSENT}:
                self.makers[tensor].append(result)
            for form, place in self.schemas.occasions.get(self.schemas.ops[kind], ()):
                self._occurrences(form, place, result)
        return result

    def kind_and_facts(self, node: int) -> tuple[int, Facts]:
        """What a node is, wherever it is: its kind, the facts of the tensors that it reads, how many they are, those of what it makes."""
        kind, inputs, outputs = self.nodes[node]
        reads, makes = ([self.facts[t] if t != ABSENT else 0 for t in tensors] for tensors in (inputs, outputs))
        return kind, (*reads, len(reads), *makes)

    # -- places ------------------------------------------------------------------------------------

    def place(self, xfer_id: int, nodes: tuple[int, ...], operands: tuple[int, ...]) -> int | None:
        """The number of a place; None if its form is not known."""
        form, tensors = lift(xfer_id, [self.nodes[node] for node in nodes], operands, self.looks, self.schemas.ops)
        number = self.schemas.number.get(form)
        return None if number is None else self._add_place(Place(number, nodes, operands, tensors))

    def facts_of(self, place: Place) -> Facts:
        return (*[self.nodes[node][0] for node in place.nodes], *[self.facts[t] for t in place.tensors])

    def _add_place(self, place: Place) -> int:
        result = self.place_number.setdefault((place.form, place.nodes, place.operands), len(self.places))
        if result == len(self.places):
            self.places.append(place)
            xfer_id = self.schemas.known[place.form].form.xfer_id
            if xfer_id in self.schemas.symmetric:
                first = self.alike.setdefault((xfer_id, frozenset(place.nodes)), result)
                if first != result and self.places[first].nodes != place.nodes and first not in self.twin:
                    self.twin[first], self.twin[result] = result, first
        return result

    def order_at(self, nodes: tuple[int, ...], operands: tuple[int, ...]) -> tuple:
        """By this the places of a rule are numbered; it says nothing of when they were first seen."""
        order = self.order
        return [order[self.homes[node]] for node in nodes], [order[t] if t >= 0 else (-1, t) for t in operands]

    def _occurrences(self, number: int, place: int, node: int) -> None:
        """Adds the places at which the node stands at this place of the form, among all nodes known so far."""
        form, bound = self.schemas.known[number].form, {}
        if not self._unify(form, place, node, bound):
            return
        for tensors, nodes in self._completions(form, bound, {place: node}):
            operands = tuple([tensors[t] if t >= 0 else t for t in form.operands])
            local = tuple([tensors[t] for t in range(len(tensors))])
            self._add_place(Place(number, tuple([nodes[p] for p in range(len(form.nodes))]), operands, local))

    def _completions(self, form: Form, bound: dict, chosen: dict) -> Iterator[tuple[dict, dict]]:
        missing = [p for p in range(len(form.nodes)) if p not in chosen]
        if not missing:
            yield bound, chosen
            return
        candidates, place = (), missing[0]
        for p in missing:  # the node that has the fewest candidates, by a tensor that is known
            _, inputs, outputs = form.nodes[p]
            for lists, tensors in ((self.makers, outputs), (self.readers, inputs)):
                for t in tensors:
                    if t in bound and (not candidates or len(lists[bound[t]]) < len(candidates)):
                        candidates, place = lists[bound[t]], p
        for node in tuple(candidates):
            if node not in chosen.values():
                extended = dict(bound)
                if self._unify(form, place, node, extended):
                    yield from self._completions(form, extended, {**chosen, place: node})

    def _unify(self, form: Form, place: int, node: int, bound: dict[int, int]) -> bool:
        """Whether the node can stand there; binds local tensors, different ones to different tensors."""
        wanted, result = form.nodes[place], self.nodes[node]
        if wanted[0] != self.schemas.ops[result[0]]:
            return False
        for local, real in zip(wanted[1:], result[1:], strict=True):
            if len(local) != len(real):
                return False
            for t, tensor in zip(local, real, strict=True):
                if t < 0 or tensor < 0:
                    if t != tensor:
                        return False
                elif bound.setdefault(t, tensor) != tensor or form.looks[t] != self.looks[tensor]:
                    return False
        return len(set(bound.values())) == len(bound)

    # -- effects -----------------------------------------------------------------------------------

    def effect(self, place: int, copy: int = 0) -> "GroundEffect | None":
        """What carrying it out does here; None if nobody knows.

        copy: 0; the next number while what is made has a name that is in use (it was carried out before, and others came to read that).
        """
        if (place, copy) not in self.effects:
            result = self.places[place]
            effect, seen = self.schemas.effect(result.form, self.facts_of(result))
            self.effects[place, copy] = None if effect is None else self._grounded(result, effect, seen, copy)
        return self.effects[place, copy]

    def _grounded(self, place: Place, effect: Effect, seen: bool, copy: int) -> "GroundEffect":
        tensors, owner, added = list(place.tensors), place.operands[-1], []
        made, twins = iter(effect.made), defaultdict(lambda: copy)

        def tensor(t: int, owner: int, maker: tuple) -> int:
            if t == len(tensors):
                tensors.append(self.made_tensor(owner, maker, *next(made), twins))
            return t if t == ABSENT else tensors[t]

        for kind, reads, makes in effect.added:
            gives = next((tensors[t] for t in makes if t in range(len(place.tensors))), owner)
            inputs = tuple([tensor(t, gives, (kind, (), position)) for position, t in enumerate(reads)])
            outputs = tuple([tensor(t, owner, (kind, inputs, slot)) for slot, t in enumerate(makes)])
            added.append(self.node(kind, inputs, outputs))
        removed = tuple([place.nodes[p] for p in effect.removed])
        rewired = tuple([(tensors[old], tensors[new]) for old, new in effect.rewired])
        return GroundEffect(removed, tuple(added), rewired, tuple(tensors[len(place.tensors) :]), seen)

    def rewired_node(self, node: int, old: int, new: int) -> int:
        """The node that reads another tensor instead."""
        kind, inputs, outputs = self.nodes[node]
        return self.node(kind, tuple([new if t == old else t for t in inputs]), outputs)


class Follower:
    """Where a real episode stands in the world, kept by its edits.

    Attributes: node: the episode's node id → the world's number, of those that are there. tensor: likewise, of all so far.
    matches: where rules apply, in the episode's ids.
    """

    def __init__(self, world: World, first: Edit):
        self.world = world
        self.tensor: dict[int, int] = {}
        self.node: dict[int, int] = {}
        rank = {t: k for k, record in enumerate(first.nodes) for t in record.outputs}
        for record in first.tensors:
            self.tensor[record.id] = world.initial_tensor(record.id, rank.get(record.id, -1), record.form, record.fact)
        for record in first.nodes:
            self.node[record.id] = self._ground(record)
        self._there = set(self.node.values())
        self.matches = set(first.appeared)

    def follow(self, edit: Edit, taken: MatchRecord | None) -> None:
        if taken is not None:
            self._name(edit, self.tensor[taken.operands[-1]])
        self._there.difference_update([self.node[n] for n in (*edit.gone, *[r.id for r in edit.nodes]) if n in self.node])
        self.node |= {record.id: self._ground(record) for record in edit.nodes}
        self._there.update([self.node[record.id] for record in edit.nodes])
        for node_id in edit.gone:
            del self.node[node_id]
        self.matches -= set(edit.lost)
        self.matches |= set(edit.appeared)

    def _name(self, edit: Edit, owner: int) -> None:
        """Gives numbers to the tensors that the substitution made: the first ones of these names that are not in use."""
        new = {record.id: record for record in edit.tensors}
        for copy in count():
            twins = defaultdict(lambda copy=copy: copy)
            for record in edit.nodes:
                self._name_of(record, owner, new, twins)
            if self._there.isdisjoint(node for tensor in new for node in self.world.readers[self.tensor[tensor]]):
                return
            for tensor in new:
                del self.tensor[tensor]

    def _name_of(self, record: NodeRecord, owner: int, new: dict[int, TensorRecord], twins: dict[tuple, int]) -> None:
        gives = next((self.tensor[t] for t in record.outputs if t in self.tensor), owner)
        for position, tensor in enumerate(record.inputs):
            if tensor not in self.tensor and tensor != ABSENT:  # a constant
                self.tensor[tensor] = self.world.made_tensor(gives, (record.kind, (), position), new[tensor].form, new[tensor].fact, twins)
        inputs = self._ground_tensors(record.inputs)
        for slot, tensor in enumerate(record.outputs):
            if tensor not in self.tensor and tensor != ABSENT:
                self.tensor[tensor] = self.world.made_tensor(owner, (record.kind, inputs, slot), new[tensor].form, new[tensor].fact, twins)

    def _ground(self, record: NodeRecord) -> int:
        self.world.schemas.ops.setdefault(record.kind, record.op)
        return self.world.node(record.kind, self._ground_tensors(record.inputs), self._ground_tensors(record.outputs))

    def _ground_tensors(self, tensors: Iterable[int]) -> tuple[int, ...]:
        return tuple([t if t == ABSENT else self.tensor[t] for t in tensors])

    def grounded(self, match: MatchRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The match's nodes and operands in the world's numbers."""
        return tuple([self.node[n] for n in match.nodes]), self._ground_tensors(match.operands)

    def place(self, match: MatchRecord) -> int | None:
        """The number of the place; None if its form is not known."""
        return self.world.place(match.xfer_id, *self.grounded(match))
