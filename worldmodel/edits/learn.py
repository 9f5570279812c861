"""Learning the schemas from episodes: forms and effects as they are seen, then where forms alone say too much."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rlflow.collect.edits import Edit, MatchRecord, unpack
from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from worldmodel.edits.schemas import Effect, Facts, Known, Numbering, Schemas, lift
from worldmodel.edits.world import Follower, World

Unpacked = tuple[list[Edit], list[MatchRecord | None]]


def unpacked(episodes: Iterable[Episode]) -> list[Unpacked]:
    result = []
    for episode in episodes:
        if episode.edits is None:
            raise RLFlowError("these episodes tell no edits, which the world model 'edits' learns from; collect them anew")
        result.append(unpack(episode.edits))
    return result


def repeated_steps(episodes: Sequence[Episode], edits: Sequence[Unpacked]) -> list[int]:
    """How many of the copied steps of each an earlier one of these has told: a step that was played once counts once."""
    after: dict[tuple, int] = {}  # (state, action) → state; a state is the number of the way that leads there
    result = []
    for episode, (told, _) in zip(episodes, edits, strict=True):
        state, repeated = after.setdefault((told[0],), len(after)), episode.copied
        for t, action in enumerate(map(tuple, episode.actions.tolist())):
            if (state, action) not in after:
                after[state, action] = len(after)
                repeated = min(repeated, t)
            state = after[state, action]
        result.append(repeated)
    return result


def learn(episodes: Sequence[Episode], edits: Sequence[Unpacked], repeated: Sequence[int]) -> Schemas:
    schemas = learn_forms(edits, symmetric_rules(episodes, edits), repeated)
    learn_exceptions(schemas, edits)
    return schemas


def symmetric_rules(episodes: Sequence[Episode], edits: Sequence[Unpacked]) -> set[int]:
    """Rules of which twice as many matches are told as the environment counts locations."""
    result = set()
    for episode, (told, _) in zip(episodes, edits, strict=True):
        records = Counter()
        for edit, counts in zip(told, episode.counts, strict=True):
            records.update(match.xfer_id for match in edit.appeared)
            records.subtract(match.xfer_id for match in edit.lost)
            result.update(x for x in {match.xfer_id for match in edit.appeared} if records[x] == 2 * counts[x] > 0)
    return result


# -- forms and effects -----------------------------------------------------------------------------


def learn_forms(edits: Sequence[Unpacked], symmetric: Iterable[int], repeated: Sequence[int]) -> Schemas:
    """All forms, facts and effects of these episodes. repeated: see `repeated_steps`."""
    schemas = Schemas(symmetric)
    for (told, taken), known in zip(edits, repeated, strict=True):
        seen = _Seen(told[0], schemas.ops)
        for match in told[0].appeared:
            form, tensors = seen.lift(match)
            schemas.add(form, seen.facts_of(match, tensors))
        for t, (edit, match) in enumerate(zip(told[1:], taken, strict=True)):
            if match is not None and t >= known:
                form, tensors = seen.lift(match)
                schemas.add(form, seen.facts_of(match, tensors))[seen.effect(match, tensors, edit)] += 1
            seen.follow(edit)
            for result in edit.appeared:
                form, tensors = seen.lift(result)
                schemas.add(form, seen.facts_of(result, tensors))
    return schemas


class _Seen:
    """One episode's nodes and tensors as they were told."""

    def __init__(self, first: Edit, ops: dict[int, int]):
        self.ops = ops
        self.nodes: dict[int, tuple] = {}
        self.looks: dict[int, int] = {}
        self.facts: dict[int, int] = {}
        self.follow(first)

    def follow(self, edit: Edit) -> None:
        for node_id in edit.gone:
            del self.nodes[node_id]
        self.nodes |= {record.id: (record.kind, record.inputs, record.outputs) for record in edit.nodes}
        self.ops |= {record.kind: record.op for record in edit.nodes}
        for record in edit.tensors:
            self.looks[record.id], self.facts[record.id] = record.form, record.fact

    def lift(self, match: MatchRecord):
        return lift(match.xfer_id, [self.nodes[n] for n in match.nodes], match.operands, self.looks, self.ops)

    def facts_of(self, match: MatchRecord, tensors: Iterable[int]) -> Facts:
        return (*[self.nodes[n][0] for n in match.nodes], *[self.facts[t] for t in tensors])

    def effect(self, match: MatchRecord, tensors: tuple[int, ...], edit: Edit) -> Effect:
        """What carrying out the match did. A node of it goes with it if its tensors were taken over."""
        numbering, told = Numbering(tensors), {record.id: record for record in edit.tensors}
        added = [record for record in edit.nodes if record.id not in self.nodes]
        shapes = tuple([numbering.shape(record.kind, record.inputs, record.outputs) for record in added])
        taken_over = {t for record in added for t in record.outputs} | {old for old, _ in edit.rewired}
        removed = [p for p, n in enumerate(match.nodes) if n in edit.gone and taken_over.intersection(self.nodes[n][2])]
        rewired = tuple([(numbering(old), numbering(new)) for old, new in edit.rewired])
        made = [(told[t].form, told[t].fact) for t in list(numbering.number)[len(tensors) :]]
        return Effect(tuple(removed), shapes, rewired, tuple(made))


# -- exceptions ------------------------------------------------------------------------------------


def learn_exceptions(schemas: Schemas, edits: Sequence[Unpacked]) -> None:
    """Where the forms promise a match that is not there: what must have one reader, and facts with which a form does not apply."""
    promises: dict[int, _Promises] = {}
    worlds: dict[Edit, World] = {}
    for told, taken in edits:
        world = worlds.setdefault(told[0], World(schemas))
        census = _Census(world, told[0], promises)
        for edit, match in zip(told[1:], taken, strict=True):
            census.follow(edit, match)
    for form, result in promises.items():
        result.settle(schemas.known[form])


class _Promises:
    """What was seen at the places of one form: which tensors had one reader where it was kept; the same, with the facts, where not."""

    def __init__(self, size: int):
        self.always_alone = [True] * size
        self.broken: Counter[tuple] = Counter()

    def settle(self, known: Known) -> None:
        at_fault = [t for t, always in enumerate(self.always_alone) if always and any(not alone[t] for _, alone in self.broken)]
        explained = {key for key in self.broken if any(not key[1][t] for t in at_fault)}
        known.alone = tuple(at_fault)
        known.refuted = {facts for facts, alone in self.broken if (facts, alone) not in explained and facts not in known.effects}


class _Census:
    """Compares, along one episode, the places that are complete with the matches that are told."""

    def __init__(self, world: World, first: Edit, promises: dict[int, _Promises]):
        self.world, self.promises = world, promises
        self.follower = Follower(world, first)
        self.present = set(self.follower.node.values())
        self.readers = Counter(t for node in self.present for t in set(world.nodes[node][1]))
        self.real = {self.follower.place(match) for match in first.appeared}
        self.waiting: dict[int, list[int]] = {}
        self.listed = 0
        self._look(range(len(world.places)))

    def follow(self, edit: Edit, taken: MatchRecord | None) -> None:
        follower, world = self.follower, self.world
        self.real -= {follower.place(match) for match in edit.lost}
        before = self.present
        follower.follow(edit, taken)
        self.real |= {follower.place(match) for match in edit.appeared}
        self.present = set(follower.node.values())
        for nodes, sign in ((before - self.present, -1), (self.present - before, 1)):
            for node in nodes:
                for tensor in set(world.nodes[node][1]):
                    self.readers[tensor] += sign
        changed = before ^ self.present
        tensors = {t for node in changed for t in world.nodes[node][1] if t >= 0}
        near = changed.union(*(world.readers[t] for t in tensors), *(world.makers[t] for t in tensors))
        self._list()
        self._look({place for node in near for place in self.waiting.get(node, ())})

    def _list(self) -> None:
        for place in range(self.listed, len(self.world.places)):
            for node in self.world.places[place].nodes:
                self.waiting.setdefault(node, []).append(place)
        self.listed = len(self.world.places)

    def _look(self, places: Iterable[int]) -> None:
        self._list()
        for number in places:
            place = self.world.places[number]
            if self.present.issuperset(place.nodes):
                promises = self.promises.setdefault(place.form, _Promises(len(place.tensors)))
                alone = tuple([self.readers[t] == 1 for t in place.tensors])
                if number in self.real:
                    promises.always_alone = [a and b for a, b in zip(promises.always_alone, alone, strict=True)]
                else:
                    promises.broken[self.world.facts_of(place), alone] += 1
