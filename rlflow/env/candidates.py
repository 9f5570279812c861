"""The observation of a state's candidates, the current graph and all successor graphs, as one ragged graph.

X-RLflow (section 3.3) shows a graph network the current graph and every graph that one action leads to. These hundreds
of graphs differ in a few nodes, so they share one ragged graph. Candidate 0 is the current graph; every other candidate
adds only a patch, the rows in which it differs. A network that passes messages at most `reach` times along the edges
computes the same values on a patch as on the whole candidate.

`patch_of` computes the patch of a match without applying the rewrite. The patch contains the new nodes, copies of the
nodes to which messages carry the difference, and the edges into both. Weights and graph inputs are no nodes here; the
rows of their readers contain their shapes. The patches and gains of matches far from a rewrite are reused in the next
state.
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
from rlflow.rules.apply import apply, bound_operands, flat
from rlflow.rules.match import Match
from rlflow.rules.rule import Rule

RANK = 4  # number of last axes whose sizes a row contains
LARGEST_SIZE = 4096.0  # divisor of the sizes in a row (X-RLflow, table 4)
NODE_COLUMNS = 2 + RANK  # operator id (rlflow/env/features.py), 1 for a constant operator, sum of the input shapes

NodeRow = tuple[float, ...]  # NODE_COLUMNS numbers


class Patch(NamedTuple):
    """The m nodes of a rewritten graph that are new or within `reach` edges downstream of the rewrite, and their edges.

    A node that is not new is a copy of a node of the current graph.

    Attributes:
      rows: int32 [m]: −1, −2, … for the new nodes, then for each copy the id of the copied node.
      new: float32 [number of new nodes, NODE_COLUMNS], the rows of the new nodes.
      senders: int32 [e], sender of each edge into the patch: a node id, or ~k for row k of the patch.
      receivers: int32 [e], receiver of each edge, a row of the patch.
      replaced: int32 [r], ids of the nodes of the current graph that disappear or have a copy in the patch.
      depends: ids of the nodes on which the patch depends; it stays valid until a rewrite touches one of these nodes.
    """

    rows: np.ndarray
    new: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    replaced: np.ndarray
    depends: frozenset[int]


def patch_of(graph: Graph, sizes: Mapping[str, int], rule: Rule, match: Match, reach: int) -> Patch:
    """Return the patch of a match: the difference between the current graph and the graph after the rewrite.

    Args:
      graph: the current graph.
      sizes: symbol → typical size.
      rule: the rule of the match.
      match: a match of the rule in this graph.
      reach: number of message-passing steps for which a network computes the same on the patch as on the whole graph.
    """
    after = _After(graph, rule, match)
    new = [node for node in after.new if node not in after.gone]
    copies = list(after.nodes_downstream(reach))
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
        _int32([*map(lambda row: ~row, range(len(new))), *copies]),
        np.array(features, np.float32).reshape(-1, NODE_COLUMNS),
        _int32(senders), _int32(receivers), _int32(gone + copies), frozenset({*gone, *copies, *after.asked}),
    )  # fmt: skip


def whole_graph_of(graph: Graph, sizes: Mapping[str, int], rule: Rule, match: Match) -> Patch:
    """Apply a match and return the whole rewritten graph as a patch in which all nodes are new.

    Args:
      graph: the current graph.
      sizes: symbol → typical size.
      rule: the rule of the match.
      match: a match of the rule in this graph.
    """
    after = apply(graph, rule, match)
    types, row_of = after.at(sizes).types, {node_id: row for row, node_id in enumerate(after.order)}
    nodes = [after.nodes[node_id] for node_id in after.order]
    edges = [(~row_of[source], row_of[node.id]) for node in nodes for source in after.sources(node)]
    features = [node_row(node, node.reads(), types) for node in nodes]
    return Patch(
        _int32([~row for row in range(len(nodes))]),
        np.array(features, np.float32).reshape(-1, NODE_COLUMNS),
        _int32([sender for sender, _ in edges]), _int32([receiver for _, receiver in edges]),
        _int32(list(graph.nodes)), frozenset(graph.nodes),
    )  # fmt: skip


def node_row(node: Node, reads: Iterable[int], types: Mapping[int, TensorType]) -> NodeRow:
    """Return the NODE_COLUMNS numbers that describe a node in an observation.

    Args:
      node: the node.
      reads: ids of the tensors that the node reads.
      types: tensor id → type at the typical sizes.
    """
    shapes = [_shape_row(types.get(tensor)) for tensor in reads]
    return (float(operator_id(node)), float(node.constant), *map(sum, zip(*shapes or [(0.0,) * RANK], strict=True)))


def _shape_row(kind: TensorType | None) -> tuple[float, ...]:
    """Return the last RANK sizes of a shape divided by LARGEST_SIZE, with leading zeros; zeros for an unknown shape."""
    sizes = kind.shape[-RANK:] if kind is not None and kind.shape is not None else ()
    return (0.0,) * (RANK - len(sizes)) + tuple([size / LARGEST_SIZE for size in sizes])


def _int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


class _After:
    """A view of the graph after the rewrite at a match, computed without applying the rewrite.

    New nodes have the ids ~0, ~1, …, and new tensors have the ids −2, −3, ….

    Attributes:
      graph: the current graph.
      plan: the plan of the match.
      replaced: ids of the replaced outputs of the match.
      instead: id of a replaced tensor → id of the tensor that its readers read after the rewrite.
      new: id of a new node → the node, with the relative numbers of the plan.
      gone: ids of the nodes that disappear, including new nodes without readers.
      asked: ids of the nodes whose readers determined whether the node disappears.
    """

    def __init__(self, graph: Graph, rule: Rule, match: Match):
        bound, self.plan = bound_operands(graph, rule, match.nodes, match.bindings), match.plan

        def real(number: int) -> int:
            return -2 - number if number >= 0 else number if number == ABSENT else bound[-2 - number]

        self.graph, self.replaced = graph, bound[len(bound) - len(rule.replaced) :]
        self.instead = {real(old): real(new) for old, new in self.plan.rewired}
        self.new = {~k: node for k, node in enumerate(self.plan.added)}
        self._reads = {n: [*flat(real(t) for t in node.inputs if t != ABSENT)] for n, node in self.new.items()}
        self._gives = {n: [real(t) for t in node.outputs if t != ABSENT] for n, node in self.new.items()}
        self._made = {tensor: n for n, given in self._gives.items() for tensor in given}
        self._olds: dict[int, list[int]] = {}  # tensor → the tensors that the rewrite replaces by this tensor
        for old in self.instead:
            self._olds.setdefault(self._resolved(old), []).append(old)
        self._readers: dict[int, list[int]] = {}  # node → the new nodes that read from it
        for node in self.new:
            for source in self.sources(node):
                self._readers.setdefault(source, []).append(node)
        self.gone = {match.nodes[position] for position in rule.root_positions}
        self.asked: set[int] = set()
        self._remove_dead([source for node in self.gone for source in self.sources(node)] + list(self.new))

    def types(self, sizes: Mapping[str, int]) -> Mapping[int, TensorType]:
        """Return tensor id → type at the typical sizes, for the new tensors and all tensors that new nodes read."""
        kinds = {-2 - number: kind for number, kind in self.plan.types}
        kinds |= {t: self.graph.types[t] for read in self._reads.values() for t in read if t in self.graph.types}
        return TypesAt(kinds, sizes) if self.graph.interface.symbols else kinds

    def reads(self, node: int) -> Iterable[int]:
        return self._reads[node] if node < 0 else self.graph.nodes[node].reads()

    def sources(self, node: int) -> list[int]:
        """Return the id of the producer of each tensor that a node reads after the rewrite.

        Graph inputs and weights are left out.
        """
        made, producers, result = self._made, self.graph.producers, []
        for tensor in self.reads(node):
            tensor = self._resolved(tensor) if self.instead else tensor
            source = made.get(tensor, producers.get(tensor))
            if source is not None:
                result.append(source)
        return result

    def nodes_downstream(self, reach: int) -> Iterator[int]:
        """Yield the ids of remaining nodes within `reach` edges downstream of the replaced outputs, nearest first."""
        nodes, consumers, seen = self.graph.nodes, self.graph.consumers, set(self.gone)
        tensors = self.replaced
        for _ in range(reach):
            around = [reader for tensor in tensors for reader in consumers.get(tensor, ()) if reader not in seen]
            around = list(dict.fromkeys(around))
            yield from around
            seen.update(around)
            tensors = [tensor for node in around for tensor in nodes[node].outputs]

    def _resolved(self, tensor: int) -> int:
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
        """Check whether a node outside `gone` or a graph output reads an output of the node after the rewrite."""
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


Nodes = dict[int, tuple[NodeRow, tuple[int, ...]]]  # node id → its row, the ids of its producers
Patches = dict[int, tuple[Match, Patch]]  # id(match) → match (a reference keeps id(match) unique), its patch
Gains = dict[int, tuple[Match, float]]  # id(match) → match, its gain in percent of the initial objective


class CandidateTable:
    """The candidates of a state: the rows of its graph, and the patch of each match.

    Attributes:
      state: the state.
      reach: see `CandidateEnv`.
    """

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
        """Build the table of a state from scratch.

        Args:
          state: the state.
          reach: see `CandidateEnv`.
        """
        return cls(state, reach, _updated_rows({}, state, state.graph.nodes), {}, {})

    def after(self, state: RewriteState) -> "CandidateTable":
        """Build the table of a successor of `self.state`; reuse patches and gains that the rewrite did not affect."""
        touched = state.touched
        known = {key: kept for key, kept in self._patches.items() if touched.isdisjoint(kept[1].depends)}
        gains = {}
        if self._gains and state.strain is None:  # If the cost is a maximum, each rewrite can change every gain.
            near = state.near(touched, 1 + state.reach)
            gains = {key: kept for key, kept in self._gains.items() if near.isdisjoint(kept[0].nodes)}
        return CandidateTable(state, self.reach, _updated_rows(self._nodes, state, touched), known, gains)

    def gains(self, matches: Sequence[Match]) -> np.ndarray:
        """Return float32 [1 + number of matches], gains in percent of the initial objective.

        The first element is 0, the gain of NO-OP. A gain that is not cached is computed by following the match.
        """
        state, whole = self.state, max(self.state.task.initial.objective, 1)
        for match in matches:
            if id(match) not in self._gains:
                gain = state.objective - state.follow(match).objective
                self._gains[id(match)] = match, 100.0 * gain / whole
        return np.array([0.0, *(self._gains[id(match)][1] for match in matches)], np.float32)

    def arrays(self, matches: Sequence[Match]) -> dict[str, np.ndarray]:
        """Return the observation of `CandidateEnv` without actions and gains, with a candidate for each given match."""
        order, patches = self.state.graph.order, [self._patches[id(match)][1] for match in matches]
        n, row_of = len(order), np.zeros(self.state.graph.next_id, np.int32)
        row_of[np.array(order, np.int64)] = np.arange(n)
        nodes = [self._nodes[node_id] for node_id in order]
        seen = np.array([row for row, _ in nodes], np.float32).reshape(-1, NODE_COLUMNS)

        rows = _concatenated([patch.rows for patch in patches])
        new = rows < 0
        seen = np.concatenate([seen, *[patch.new for patch in patches]])
        seen = seen[np.concatenate([np.arange(n), np.where(new, n - 1 + np.cumsum(new), row_of[rows])])]
        sizes = np.array([len(patch.rows) for patch in patches], np.int32)
        edges = [len(patch.senders) for patch in patches]
        first = np.repeat(n + np.cumsum(sizes, dtype=np.int32) - sizes, edges)  # for each edge, first row of its patch
        senders = _concatenated([patch.senders for patch in patches])
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
                first + _concatenated([patch.receivers for patch in patches]),
            ]),
            "owners": np.concatenate([np.zeros(n, np.int32), np.repeat(owners, sizes)]),
            "replaced": row_of[_concatenated([patch.replaced for patch in patches])],
            "replacers": np.repeat(owners, [len(patch.replaced) for patch in patches]),
        }  # fmt: skip


def _updated_rows(nodes: Nodes, state: RewriteState, changed: Iterable[int]) -> Nodes:
    """Return the rows of a state's graph; reuse the rows of an earlier state for nodes that did not change.

    Args:
      nodes: the rows of the earlier state.
      state: the state.
      changed: ids of all nodes that were changed, added or removed since the earlier state.
    """
    nodes, graph, types = nodes.copy(), state.graph, state.graph.at(state.task.sizes[0]).types
    for node_id in changed:
        node = graph.nodes.get(node_id)
        if node is None:
            nodes.pop(node_id, None)
        else:
            nodes[node_id] = node_row(node, node.reads(), types), graph.sources(node)
    return nodes


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


class CandidateEnv(gymnasium.Wrapper):
    """A wrapper of the rewriting environment whose observations contain the current graph and all successor graphs.

    An observation has n rows, e edges and C candidates, and candidate 0 is the current graph:

    | key | shape, dtype | meaning |
    | --- | --- | --- |
    | ops | int32 [n] | operator id of each row |
    | nodes | float32 [n, 5] | 1 if the operator is constant; the sum of its input shapes, divided by 4096 |
    | senders, receivers | int32 [e] | rows at the two ends of each edge, along the data flow |
    | owners | int32 [n] | candidate of each row, ascending |
    | replaced, replacers | int32 [r] | pairs of a row of the current graph and a candidate that lacks this row |
    | actions | int64 [C, 2] | (xfer_id, location) of each candidate; NO-OP for candidate 0 |
    | gains | float32 [C] | estimated gain of each candidate in percent of the initial objective; only with `gains` |

    Actions are the actions of the wrapped environment. A shape is shown by its last four sizes, with leading zeros. An
    action that the wrapped environment masks is no candidate. Only `step` and `reset` of this wrapper update the
    candidates; `restore_state` of the wrapped environment does not.

    Args:
      env: a `rlflow.env.graph_rewrite.GraphRewriteEnv` whose actions are single rewrites.
      reach: number of message-passing steps of the network, which determines the patches; None for patches that
        contain all rows of a candidate, as in X-RLflow.
      gains: True to include the estimated gains in observations.

    Raises:
      RLFlowError: the actions of the environment are not single rewrites of a model.

    Attributes:
      table: the candidates of the current state.
    """

    def __init__(self, env: gymnasium.Env, reach: int | None, gains: bool = False):
        super().__init__(env)
        initial, self._gains = env.unwrapped.initial, gains
        if not isinstance(initial, RewriteState):
            raise RLFlowError("candidates are single rewrites of a model; pass task.name=rewriting env.moves=single")
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
        """Yield (observation, index of the chosen candidate) for each action of a sequence from the initial state.

        The last pair is the observation after all actions and 0, the index of NO-OP. The state of the environment does
        not change.

        Args:
          actions: valid (xfer_id, location) pairs without NO-OP.
        """
        table = self._initial
        for action in (*map(tuple, actions), None):
            valid = table.state.valid_actions()
            observation = self._observation_of(table, np.ones(len(valid) - 1, bool))
            if action is None:
                yield observation, 0
                return
            yield observation, 1 + int(np.flatnonzero((valid[:-1] == action).all(axis=1))[0])
            table = table.after(table.state.apply(*map(int, action)))

    def _observe(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        actions = self.table.state.valid_actions()
        return self._observation_of(self.table, observation["location_masks"][actions[:-1, 0], actions[:-1, 1]] == 1)

    def _observation_of(self, table: CandidateTable, allowed: np.ndarray) -> dict[str, np.ndarray]:
        """Return the observation of a state.

        Args:
          table: the candidates of the state.
          allowed: bool [number of valid actions without NO-OP], False for an action that the environment masks.
        """
        actions, matches = table.state.valid_actions(), list(compress(table.state.matches, allowed))
        candidates = table.arrays(matches) | {"actions": np.concatenate([actions[-1:], actions[:-1][allowed]])}
        return candidates | {"gains": table.gains(matches)} if self._gains else candidates
