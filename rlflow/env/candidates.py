"""All candidates of a state as one graph: the current graph, and next to it the change that each valid action makes.

X-RLflow (section 3.3) shows a graph network the graph and every graph that one action leads to. These hundreds of
graphs differ in a few nodes, so they share one ragged graph. Candidate 0 is the current graph; every other candidate
adds only its patch. A network that passes messages at most `reach` times along the edges computes the same values on a
patch as on the whole candidate.

`patch_of` finds the patch of a match without making the rewritten graph: the new nodes, copies of the nodes that see a
difference, and the edges into both. Weights and graph inputs are no nodes here; the rows of their readers contain their
shapes. A state keeps the patches and gains of its predecessor except near the rewrite between them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from rlflow.common.errors import RLFlowError
from rlflow.env.features import N_OPS, operator_id
from rlflow.env.state import RewriteState
from rlflow.graph.ir import ABSENT, Graph, Node, TensorType, TypesAt
from rlflow.rules.apply import apply, operands
from rlflow.rules.match import Match
from rlflow.rules.rule import Rule

RANK = 4  # axes whose sizes are shown, the last ones
LARGEST_SIZE = 4096.0  # sizes are shown as multiples of it (X-RLflow, table 4)
NODE_COLUMNS = 2 + RANK  # operator id (rlflow/env/features.py), constant, the sum of all incoming shapes

NodeRow = tuple[float, ...]  # NODE_COLUMNS numbers


class Patch(NamedTuple):
    """The part of a rewritten graph whose nodes see the rewrite, within `reach` edges along the data.

    rows: int32 [m], the new nodes as −1, −2, …; then the copies, as ids of the nodes that they are copies of.
    new: float32 [new nodes, NODE_COLUMNS].
    senders: int32 [e], of the edges into the patch: a node's id, or ~k for row k of the patch.
    receivers: int32 [e], row of the patch.
    replaced: int32 [r], ids of the nodes of the graph before that disappear, or have a copy.
    depends: ids of the nodes of which, if a later rewrite touches none, the patch stays as it is.
    """

    rows: np.ndarray
    new: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    replaced: np.ndarray
    depends: frozenset[int]


def patch_of(graph: Graph, sizes: Mapping[str, int], rule: Rule, match: Match, reach: int) -> Patch:
    """The patch of a match of this graph. sizes: the typical size of each symbol."""
    after = _After(graph, rule, match)
    new = [node for node in after.new if node not in after.gone]
    copies = list(after.behind(reach))
    row_of = {node: row for row, node in enumerate([*new, *copies])}
    senders, receivers = [], []
    for node, row in row_of.items():
        for sender in after.sources(node):
            senders.append(~row_of[sender] if sender in row_of else sender)
            receivers.append(row)
    gone = [node for node in after.gone if node >= 0]
    types = after.types(sizes)
    features = [node_row(match.plan.added[~node], after.reads(node), types) for node in new]
    return Patch(
        _ints([*map(lambda row: ~row, range(len(new))), *copies]),
        np.array(features, np.float32).reshape(-1, NODE_COLUMNS),
        _ints(senders), _ints(receivers), _ints(gone + copies), frozenset({*gone, *copies, *after.asked}),
    )  # fmt: skip


def whole_graph_of(graph: Graph, sizes: Mapping[str, int], rule: Rule, match: Match) -> Patch:
    """The rewritten graph, made and shown from end to end: a patch in which all nodes are new."""
    after = apply(graph, rule, match)
    types, row_of = after.at(sizes).types, {node_id: row for row, node_id in enumerate(after.order)}
    nodes = [after.nodes[node_id] for node_id in after.order]
    edges = [(~row_of[source], row_of[node.id]) for node in nodes for source in sources(after, node)]
    features = [node_row(node, node.reads(), types) for node in nodes]
    return Patch(
        _ints([~row for row in range(len(nodes))]),
        np.array(features, np.float32).reshape(-1, NODE_COLUMNS),
        _ints([sender for sender, _ in edges]), _ints([receiver for _, receiver in edges]),
        _ints(list(graph.nodes)), frozenset(graph.nodes),
    )  # fmt: skip


def node_row(node: Node, reads: Iterable[int], types: Mapping[int, TensorType]) -> NodeRow:
    """What is seen of a node that reads these tensors: NODE_COLUMNS numbers."""
    shapes = [_shape_row(types.get(tensor)) for tensor in reads]
    return (float(operator_id(node)), float(node.constant), *map(sum, zip(*shapes or [(0.0,) * RANK], strict=True)))


def sources(graph: Graph, node: Node) -> tuple[int, ...]:
    """The nodes that give the tensors that a node reads, once for each tensor in turn."""
    producers = graph.producers
    return tuple([producers[tensor] for tensor in node.reads() if tensor in producers])


def _shape_row(kind: TensorType | None) -> tuple[float, ...]:
    """The last RANK sizes; zeros before those of a lower rank, and of a shape that is not known."""
    sizes = kind.shape[-RANK:] if kind is not None and kind.shape is not None else ()
    return (0.0,) * (RANK - len(sizes)) + tuple([size / LARGEST_SIZE for size in sizes])


def _ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


class _After:
    """The graph after a match, seen through the graph before it. New nodes are ~0, ~1, …, new tensors −2, −3, ….

    gone: nodes that disappear, new ones that nobody reads among them.  asked: nodes whose readers decided that.
    """

    def __init__(self, graph: Graph, rule: Rule, match: Match):
        bound, self.plan = operands(graph, rule, match.nodes, match.bindings), match.plan

        def real(number: int) -> int:
            return -2 - number if number >= 0 else number if number == ABSENT else bound[-2 - number]

        self.graph, self.replaced = graph, bound[len(bound) - len(rule.replaced) :]
        self.instead = {real(old): real(new) for old, new in self.plan.rewired}
        self.new = {~k: node for k, node in enumerate(self.plan.added)}
        self._reads = {n: [real(t) for t in node.inputs if t != ABSENT] for n, node in self.new.items()}
        self._gives = {n: [real(t) for t in node.outputs if t != ABSENT] for n, node in self.new.items()}
        self._made = {tensor: n for n, given in self._gives.items() for tensor in given}
        self._olds: dict[int, list[int]] = {}  # tensor → those whose readers it gets
        for old in self.instead:
            self._olds.setdefault(self._named(old), []).append(old)
        self._readers: dict[int, list[int]] = {}  # node → the new ones that read it
        for node in self.new:
            for source in self.sources(node):
                self._readers.setdefault(source, []).append(node)
        self.gone = {match.nodes[position] for position in rule.root_positions}
        self.asked: set[int] = set()
        self._remove_dead([source for node in self.gone for source in self.sources(node)] + list(self.new))

    def types(self, sizes: Mapping[str, int]) -> Mapping[int, TensorType]:
        """Of the tensors that new nodes read."""
        kinds = {-2 - number: kind for number, kind in self.plan.types}
        kinds |= {t: self.graph.types[t] for read in self._reads.values() for t in read if t in self.graph.types}
        return TypesAt(kinds, sizes) if self.graph.interface.symbols else kinds

    def reads(self, node: int) -> Iterable[int]:
        return self._reads[node] if node < 0 else self.graph.nodes[node].reads()

    def sources(self, node: int) -> list[int]:
        """The nodes that give the tensors that a node reads, once for each tensor in turn."""
        made, producers, result = self._made, self.graph.producers, []
        for tensor in self.reads(node):
            tensor = self._named(tensor) if self.instead else tensor
            source = made.get(tensor, producers.get(tensor))
            if source is not None:
                result.append(source)
        return result

    def behind(self, reach: int) -> Iterator[int]:
        """The nodes of the graph before that stay, within so many edges behind the replaced tensors, nearest first."""
        nodes, consumers, seen = self.graph.nodes, self.graph.consumers, set(self.gone)
        tensors = self.replaced
        for _ in range(reach):
            around = [reader for tensor in tensors for reader in consumers.get(tensor, ()) if reader not in seen]
            around = list(dict.fromkeys(around))
            yield from around
            seen.update(around)
            tensors = [tensor for node in around for tensor in nodes[node].outputs]

    def _named(self, tensor: int) -> int:
        while tensor in self.instead:
            tensor = self.instead[tensor]
        return tensor

    def _remove_dead(self, waiting: list[int]) -> None:
        while waiting:
            node = waiting.pop()
            if node not in self.gone and not self._is_read(node):
                self.gone.add(node)
                waiting += self.sources(node)

    def _is_read(self, node: int) -> bool:
        """Whether a node that stays, or the interface, reads what this one gives."""
        if any(reader not in self.gone for reader in self._readers.get(node, ())):
            return True
        if node >= 0:
            self.asked.add(node)
        for given in self._gives[node] if node < 0 else self.graph.nodes[node].outputs:
            for tensor in (given, *self._olds.get(given, ())):
                readers = self.graph.consumers.get(tensor, ())
                if tensor in self.graph.outputs or any(reader not in self.gone for reader in readers):
                    return True
        return False


Nodes = dict[int, tuple[NodeRow, tuple[int, ...]]]  # what is seen of each, and the nodes that it reads from
Patches = dict[int, tuple[Match, Patch]]  # by id of the match, which lives as long as it is here
Gains = dict[int, tuple[Match, float]]  # the same; percent of the initial objective


class CandidateTable:
    """The graph of a state as rows, and the patch of each of its matches."""

    def __init__(self, state: RewriteState, reach: int | None, nodes: Nodes, known: Patches, gains: Gains):
        self.state, self.reach = state, reach
        self._nodes, self._patches, self._gains = nodes, {}, gains
        for match in state.matches:
            self._patches[id(match)] = known.get(id(match)) or (match, self._patch(match))

    def _patch(self, match: Match) -> Patch:
        task = self.state.task
        of = self.state.graph, task.sizes[0], task.rules[match.xfer_id], match
        return whole_graph_of(*of) if self.reach is None else patch_of(*of, self.reach)

    @classmethod
    def of(cls, state: RewriteState, reach: int | None) -> "CandidateTable":
        """That of a state that nothing is known of. reach: as of `CandidateEnv`."""
        return cls(state, reach, _updated({}, state, state.graph.nodes), {}, {})

    def after(self, state: RewriteState) -> "CandidateTable":
        """That of the state after a rewrite of this one's."""
        touched = state.touched
        known = {key: kept for key, kept in self._patches.items() if touched.isdisjoint(kept[1].depends)}
        gains = {}
        if self._gains and state.strain is None:  # that of the worst part alone changes wherever a rewrite is
            near = state.near(touched, 1 + state.reach)
            gains = {key: kept for key, kept in self._gains.items() if near.isdisjoint(kept[0].nodes)}
        return CandidateTable(state, self.reach, _updated(self._nodes, state, touched), known, gains)

    def gains(self, matches: Sequence[Match]) -> np.ndarray:
        """float32 [1 + matches]: by how many percent of the initial objective each lowers it; 0 first, for NO-OP."""
        state, whole = self.state, max(self.state.task.initial.objective, 1)
        for match in matches:
            if id(match) not in self._gains:
                gain = state.objective - state.follow(match).objective
                self._gains[id(match)] = match, 100.0 * gain / whole
        return np.array([0.0, *(self._gains[id(match)][1] for match in matches)], np.float32)

    def arrays(self, matches: Sequence[Match]) -> dict[str, np.ndarray]:
        """The graph as it is, then a patch for each of these matches; see `CandidateEnv` for what the arrays hold."""
        order, patches = self.state.graph.order, [self._patches[id(match)][1] for match in matches]
        n, row_of = len(order), np.zeros(self.state.graph.next_id, np.int32)
        row_of[np.array(order, np.int64)] = np.arange(n)
        nodes = [self._nodes[node_id] for node_id in order]
        seen = np.array([row for row, _ in nodes], np.float32).reshape(-1, NODE_COLUMNS)

        rows = _joined([patch.rows for patch in patches])
        new = rows < 0
        seen = np.concatenate([seen, *[patch.new for patch in patches]])
        seen = seen[np.concatenate([np.arange(n), np.where(new, n - 1 + np.cumsum(new), row_of[rows])])]
        sizes = np.array([len(patch.rows) for patch in patches], np.int32)
        edges = [len(patch.senders) for patch in patches]
        first = np.repeat(n + np.cumsum(sizes, dtype=np.int32) - sizes, edges)  # row of the patch that an edge is of
        senders = _joined([patch.senders for patch in patches])
        owners = np.arange(1, len(patches) + 1, dtype=np.int32)
        return {
            "ops": seen[:, 0].astype(np.int32),
            "nodes": seen[:, 1:],
            "senders": np.concatenate([
                row_of[np.fromiter(chain.from_iterable([read for _, read in nodes]), np.int64)],
                np.where(senders < 0, first + ~senders, row_of[senders]),
            ]),
            "receivers": np.concatenate([
                np.repeat(np.arange(n, dtype=np.int32), [len(read) for _, read in nodes]),
                first + _joined([patch.receivers for patch in patches]),
            ]),
            "owners": np.concatenate([np.zeros(n, np.int32), np.repeat(owners, sizes)]),
            "replaced": row_of[_joined([patch.replaced for patch in patches])],
            "replacers": np.repeat(owners, [len(patch.replaced) for patch in patches]),
        }  # fmt: skip


def _updated(nodes: Nodes, state: RewriteState, changed: Iterable[int]) -> Nodes:
    """Those of a state, from those of an earlier one and the ids of the nodes that differ, or are gone."""
    nodes, graph, types = nodes.copy(), state.graph, state.graph.at(state.task.sizes[0]).types
    for node_id in changed:
        node = graph.nodes.get(node_id)
        if node is None:
            nodes.pop(node_id, None)
        else:
            nodes[node_id] = node_row(node, node.reads(), types), sources(graph, node)
    return nodes


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


class CandidateEnv(gymnasium.Wrapper):
    """The environment of rewriting, whose observation is the graph and all that valid actions would make of it.

    With n rows, e edges and C candidates, the graph as it is being number 0:

    | key | shape, dtype | what |
    | --- | --- | --- |
    | ops | int32 [n] | operator id of each row |
    | nodes | float32 [n, 5] | whether it is constant; the shapes of all that it reads, summed, in multiples of 4096 |
    | senders, receivers | int32 [e] | rows, of each edge along the data |
    | owners | int32 [n] | whose row it is, ascending |
    | replaced, replacers | int32 [r] | rows of the graph as it is that a candidate does not have, and which one |
    | actions | int64 [C, 2] | the (xfer_id, location) of each; of number 0 it is NO-OP |
    | gains | float32 [C] | percent of the initial objective that each is estimated to take off it; if asked for |

    Actions are those of the environment below. Of a shape, which has at most 4 axes (the last ones), missing axes are 0
    and come first. What its masks leave out is no candidate. Its states are followed by `step` and `reset` alone: one
    that is restored in the environment below is not seen.

    Args:
      env: a `rlflow.env.graph_rewrite.GraphRewriteEnv`, whose actions are single rewrites; others are refused with an
        RLFlowError.
      reach: edges along which a network looks back, at most. None: any number; each candidate is there with all of its
        rows, as in X-RLflow.
      gains: whether they are shown.

    Attributes:
      table: of the state as it is.
    """

    def __init__(self, env: gymnasium.Env, reach: int | None, gains: bool = False):
        super().__init__(env)
        initial, self._gains = env.unwrapped.initial, gains
        if not isinstance(initial, RewriteState):
            raise RLFlowError("candidates are single rewrites of a model: task.name=rewriting, env.moves=single")
        self._initial = self.table = CandidateTable.of(initial, reach)
        rows = np.iinfo(np.int32).max
        number = spaces.Sequence(spaces.Box(0, rows, (), np.int32), stack=True)
        self.observation_space = spaces.Dict({
            "ops": spaces.Sequence(spaces.Box(0, N_OPS - 1, (), np.int32), stack=True),
            "nodes": spaces.Sequence(spaces.Box(0, np.inf, (NODE_COLUMNS - 1,), np.float32), stack=True),
            **dict.fromkeys(("senders", "receivers", "owners", "replaced", "replacers"), number),
            "actions": spaces.Sequence(spaces.Box(0, rows, (2,), np.int64), stack=True),
            **({"gains": spaces.Sequence(spaces.Box(-np.inf, 100.0, (), np.float32), stack=True)} if gains else {}),
        })  # fmt: skip

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.table = self._initial
        return self._observe(observation), info

    def step(self, action) -> tuple[dict, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        state = self.env.unwrapped.state
        if state is not self.table.state:
            self.table = self.table.after(state)
        return self._observe(observation), float(reward), terminated, truncated, info

    def replayed(self, actions: Iterable[tuple[int, int]]) -> Iterator[tuple[dict[str, np.ndarray], int]]:
        """What would be seen where these valid actions were taken one after the other, then NO-OP, and the number of
        the candidate that each is. Nothing is played: no step, no reward."""
        table = self._initial
        for action in (*map(tuple, actions), None):
            valid = table.state.valid_actions()
            observation = self._shown(table, np.ones(len(valid) - 1, bool))
            if action is None:
                yield observation, 0
                return
            yield observation, 1 + int(np.flatnonzero((valid[:-1] == action).all(axis=1))[0])
            table = table.after(table.state.apply(*map(int, action)))

    def _observe(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        actions = self.table.state.valid_actions()
        return self._shown(self.table, observation["location_masks"][actions[:-1, 0], actions[:-1, 1]] == 1)

    def _shown(self, table: CandidateTable, allowed: np.ndarray) -> dict[str, np.ndarray]:
        """allowed: bool, of each valid action but NO-OP."""
        actions, matches = table.state.valid_actions(), list(compress(table.state.matches, allowed))
        candidates = table.arrays(matches) | {"actions": np.concatenate([actions[-1:], actions[:-1][allowed]])}
        return candidates | {"gains": table.gains(matches)} if self._gains else candidates
