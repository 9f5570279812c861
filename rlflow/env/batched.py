"""Batched rewrites: one action applies the same rewrite at all equal matches, such as in twelve equal blocks.

Two matches are equal if they have the same rule and match class, and if their nodes and the producers of their operands
have equal signatures (`_signature`). A `Move` holds equal matches without a common node. Following a move rewrites its
matches in canonical order and skips matches that an earlier rewrite of the move invalidated. If the matches are
independent, which is the normal case, copying the graph, updating the matches and updating the cost happen once for the
whole move.

The moves of one rule are numbered by decreasing number of matches. `BatchedState.actions` and all receipts list single
rewrites.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from operator import attrgetter

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.task import LocalState, State, valid_actions
from rlflow.common.task import Task as AnyTask
from rlflow.env import BATCHED, MOVES
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph, Node
from rlflow.rules.apply import apply, apply_all, independent, match_signature, operands
from rlflow.rules.locations import MatchTable
from rlflow.rules.match import Match
from rlflow.rules.segments import Segment, facts


def _updated_signatures(known: dict[int, int], graph: Graph, touched: Iterable[int]) -> dict[int, int]:
    """Return node id → signature of all nodes of a graph.

    Args:
      known: the signatures of the nodes before one or several rewrites.
      graph: the graph after the rewrites.
      touched: ids of all nodes that the rewrites changed, added or removed.
    """
    result = known.copy()
    for node_id in touched:
        if node_id in graph.nodes:
            result[node_id] = _signature(graph, graph.nodes[node_id])
        else:
            result.pop(node_id, None)
    return result


def _signature(graph: Graph, node: Node) -> int:
    """Return the signature of a node.

    It is a hash of the operator, its attributes, the types of its inputs and outputs, the content of small constant
    inputs, and for each output the number of readers and whether the graph has this output.
    """
    read = [facts(graph, tensor) for tensor in node.reads()]
    made = [(graph.types.get(t), t in graph.output_set, len(graph.consumers.get(t, ()))) for t in node.outputs]
    return hash((node.key(), node.constant, *read, *made))


def start_of(task: AnyTask, moves: str | None = None) -> State:
    """Return the state at which episodes and searches of a task begin.

    Args:
      task: any task; only a rewriting task has batched rewrites.
      moves: "single" or "batched", e.g. the value of the option `search.moves`; None for `task.moves`.

    Raises:
      RLFlowError: `moves` has another value.
    """
    if not isinstance(task, Task):
        return task.initial
    moves = moves or task.moves
    if moves not in MOVES:
        raise RLFlowError(f"moves is one of {', '.join(MOVES)}, not {moves!r}")
    return BatchedState(task.initial) if moves == BATCHED else task.initial


class Move:
    """The equal matches that one action of a batched state rewrites; implements `rlflow.common.task.Match`.

    Attributes:
      members: the matches in canonical order. Rule and plan of the move are the rule and plan of the first match.
      nodes: ids of the nodes of all members.
    """

    __slots__ = ("members", "nodes")

    def __init__(self, members: tuple[Match, ...]):
        self.members = members
        self.nodes = tuple(dict.fromkeys(node_id for match in members for node_id in match.nodes))

    @property
    def xfer_id(self) -> int:
        return self.members[0].xfer_id

    @property
    def plan(self):
        return self.members[0].plan

    def same_as(self, members: list[Match]) -> bool:
        """Check whether the members of the move are exactly these match objects in this order."""
        return len(members) == len(self.members) and all(map(lambda a, b: a is b, members, self.members))


class BatchedState(LocalState):
    """A rewrite state whose actions select moves; implements `rlflow.common.task.CompoundState`.

    Attributes:
      single: the same state with one action per single rewrite.
      single_before: `single` of the state before the last move; None for an initial state.
      made: the matches that the last move rewrote, in order.
      touched: ids of the nodes that the last move changed, added or removed.
    """

    def __init__(self, single: RewriteState, before: "BatchedState | None" = None, made=(), touched=frozenset()):
        self.single, self.made, self.touched = single, tuple(made), touched
        self._before = before  # set to None as soon as its signatures and moves are reused
        self.single_before = before and before.single

    def __getstate__(self) -> dict:
        # Moves are computed again on first access; their signatures are hashes that differ between processes.
        names = ("single", "made", "touched", "single_before", "actions")
        return {name: getattr(self, name) for name in names} | {"_before": None}

    # -- delegated to the single state -----------------------------------------------------------------------

    task = property(attrgetter("single.task"))
    graph = property(attrgetter("single.graph"))
    graph_cost = property(attrgetter("single.graph_cost"))
    cost = property(attrgetter("single.cost"))
    objective = property(attrgetter("single.objective"))
    runtime_ms = property(attrgetter("single.runtime_ms"))
    hash = property(attrgetter("single.hash"))
    strain = property(attrgetter("single.strain"))
    reach = property(attrgetter("single.reach"))
    near = property(attrgetter("single.near"))
    arrays = property(attrgetter("single.arrays"))

    # -- moves -------------------------------------------------------------------------------------

    @cached_property
    def actions(self) -> tuple[tuple[int, int], ...]:
        """(xfer_id, location) of each single rewrite that the last move made; computed on first access."""
        return tuple([action for action, _ in self.steps()])

    def steps(self) -> Iterator[tuple[tuple[int, int], RewriteState]]:
        state = self.single_before
        for match in self.made:
            location = state.table.location_of(match)
            if location is not None:  # None if an earlier rewrite of the move removed the match
                state = state.follow(match)
                yield (match.xfer_id, location), state

    @cached_property
    def _groups(self) -> tuple[dict[int, int], dict[int, tuple[Match, tuple]], dict[int, Move]]:
        """The moves of the state, with the values from which the next state's moves are computed.

        The tuple contains node id → signature; id(match) → (match, a key that is equal for equal matches); and
        id(first match of a move) → move.
        """
        before, self._before = self._before, None
        if before is None:
            signatures, keys, moves = _updated_signatures({}, self.graph, self.graph.nodes), {}, {}
        else:
            signatures, keys, moves = before._groups
            signatures = _updated_signatures(signatures, self.graph, self.touched)
            near = self.near(self.touched, 1)  # because a key contains the producers of operands
            keys = {number: known for number, known in keys.items() if near.isdisjoint(known[0].nodes)}
        of_matches, groups = {}, {}
        for match in self.single.matches:
            _, key = of_matches[id(match)] = keys.get(id(match)) or (match, self._key(signatures, match))
            _add_to_group(groups.setdefault(key, []), match)
        result = {}
        for members, _ in chain.from_iterable(groups.values()):
            move = moves.get(id(members[0]))  # reused, because searches compare matches and moves by identity
            result[id(members[0])] = move if move is not None and move.same_as(members) else Move(tuple(members))
        return signatures, of_matches, result

    def _key(self, signatures: dict[int, int], match: Match) -> tuple:
        graph, rule = self.graph, self.task.rules[match.xfer_id]
        read = [graph.producers.get(t) for t in operands(graph, rule, match.nodes, match.bindings)]
        return (
            match_signature(graph, rule, match.nodes, match.bindings),
            tuple([signatures[node_id] for node_id in match.nodes]),
            tuple([None if node_id is None else signatures[node_id] for node_id in read]),
        )

    @cached_property
    def matches(self) -> list[Move]:
        """All moves, ordered by rule and index; the moves of a rule with the most members come first."""
        return sorted(self._groups[2].values(), key=lambda move: (move.xfer_id, -len(move.members)))

    @cached_property
    def counts(self) -> np.ndarray:
        """int32 [N], the number of moves of each of the N rules."""
        rules = [move.xfer_id for move in self.matches]
        return np.bincount(rules, minlength=len(self.task.rules)).astype(np.int32)

    def match(self, sort: int, index: int) -> Move:
        return self._moves_of_rule(sort)[index]

    def index_of(self, match: Move) -> int:
        return self._moves_of_rule(match.xfer_id).index(match)

    def _moves_of_rule(self, xfer_id: int) -> list[Move]:
        return [move for move in self.matches if move.xfer_id == xfer_id]

    def valid_actions(self) -> np.ndarray:
        """Return int64 [n, 2], all valid actions (xfer_id, index of a move), with NO-OP as the last row."""
        return valid_actions(self.counts, stop=True)

    def apply(self, sort: int, index: int) -> "BatchedState":
        if not (0 <= sort < len(self.counts) and 0 <= index < self.counts[sort]):
            raise RLFlowError(f"rule {sort} has no move {index} in this graph; see `valid_actions`")
        return self.follow(self.match(sort, index))

    def follow(self, match: Move) -> "BatchedState":
        """Return the state after a move.

        The members are rewritten at once if they are independent and the rule has at most `max_locations` // 2
        locations. Otherwise they are rewritten one by one, so that each location can be compared with `max_locations`.
        """
        rule, few = self.task.rules[match.xfer_id], self.task.max_locations // 2
        if self.single.counts[match.xfer_id] > few or not independent(self.graph, rule, match.members):
            return self._follow_one_by_one(match)
        graph = apply_all(self.graph, rule, match.members)
        single = self.single.rewritten(graph, self.single.table, graph.touched)
        return BatchedState(single, self, match.members, graph.touched)

    def _follow_one_by_one(self, match: Move) -> "BatchedState":
        """Return the state after the members of a move were rewritten one after another.

        A member is skipped if earlier members invalidated the match, or if its location is not below `max_locations`.
        """
        rule, graph, tables, made, touched = self.task.rules[match.xfer_id], self.graph, [self.single.table], [], set()
        for member in match.members:
            if tables[-1].graph is not graph:
                tables.append(MatchTable(self.task.rules, graph, tables[-1]))
            location = tables[-1].location_of(member)
            if location is not None and location < self.task.max_locations:
                graph = apply(graph, rule, member)
                made.append(member)
                touched |= graph.touched
        before = tables[-1] if tables[-1].graph is not graph else tables[-2]
        single = self.single.rewritten(graph, before, frozenset(touched))
        return BatchedState(single, self, made, frozenset(touched))

    def with_current_cost(self) -> "BatchedState":
        """Return a state with the same graph and moves, whose cost is computed with the current timings."""
        result = BatchedState(self.single.with_current_cost(), self._before, self.made, self.touched)
        result.single_before = self.single_before
        if "_groups" in self.__dict__:
            result.__dict__["_groups"] = self._groups
        return result

    def choices(self, match: Move) -> tuple[Match, ...]:
        return match.members

    def start_replay(self) -> "CompoundReplay":
        return CompoundReplay(self)


class CompoundReplay:
    """A translator from a sequence of single rewrites to moves; implements `rlflow.common.task.CompoundReplay`.

    Both the single rewrites and the moves begin at the same state and give new nodes and tensors consecutive ids, from
    the first free id of this state.

    Attributes:
      rules: the rules of the task.
      names: id of a node or tensor that a single rewrite added → id of the node or tensor that a move added instead.
      next_id: the first free id after the single rewrites recorded so far.
      firsts: (xfer_id, node ids) of each match that a move rewrote → the first id that this rewrite added.
    """

    def __init__(self, start: BatchedState):
        self.rules = start.task.rules
        self.names: dict[int, int] = {}
        self.next_id = start.graph.next_id
        self.firsts: dict[tuple, int] = {}

    def match(self, state: BatchedState, choice: Match) -> Move | None:
        here = self._translated(choice)
        return next((move for move in state.matches if here in move.members), None)

    def record_match(self, after: BatchedState) -> None:
        first = after.single_before.graph.next_id
        for match in after.made:
            self.firsts[match.xfer_id, match.nodes] = first
            first += match.plan.n_new

    def is_made(self, choice: Match) -> bool:
        here = self._translated(choice)
        return (here.xfer_id, here.nodes) in self.firsts

    def record_choice(self, choice: Match) -> None:
        here = self._translated(choice)
        first = self.firsts[here.xfer_id, here.nodes]
        self.names.update((self.next_id + k, first + k) for k in range(choice.plan.n_new))
        self.next_id += choice.plan.n_new

    def _translated(self, choice: Match) -> Match:
        """Return a match of the single rewrites with all ids replaced by the ids in the graphs after the moves."""
        names, bindings = self.names, dict(choice.bindings)
        for name in self.rules[choice.xfer_id].tensor_names:
            value = bindings[name]
            several = isinstance(value, Segment)
            bindings[name] = value.renamed(lambda t: names.get(t, t)) if several else names.get(value, value)
        return Match(choice.xfer_id, tuple([names.get(n, n) for n in choice.nodes]), bindings, choice.plan)


def _add_to_group(groups: list[tuple[list[Match], set[int]]], match: Match) -> None:
    """Add a match to the first group whose matches have no node in common with it; otherwise begin a new group.

    Args:
      groups: (matches, ids of all their nodes) of each group; the call modifies the list.
      match: the match.
    """
    for members, nodes in groups:
        if nodes.isdisjoint(match.nodes):
            members.append(match)
            nodes.update(match.nodes)
            return
    groups.append(([match], set(match.nodes)))
