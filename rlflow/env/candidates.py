"""All candidates of a state as one graph: the graph as it is, and beside it what each valid action would change.

Where one graph network is to see the graph and every graph that an action leads to (X-RLflow, section 3.3), hundreds of
graphs differ in a few nodes. So they share what they have in common: *one* graph of ragged arrays, in which candidate 0
is the graph as it is, and each further one has only its patch (patches.py), whose edges begin in the patch or in the
graph as it is. A network that passes messages along the edges at most `reach` times computes at the rows of a patch
what it would compute in the whole candidate, and elsewhere nothing changes.

Patches are kept by match: a state has those of the state before, but for matches that the rewrite between them came
near to. So are gains, what each match is estimated to take off the objective by itself, where that is a sum; they want
each candidate made, once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress

import gymnasium
import numpy as np
from gymnasium import spaces

from rlflow.common.errors import RLFlowError
from rlflow.env.observation.operators import N_OPS
from rlflow.env.patches import NODE_COLUMNS, NodeRow, Patch, node_row, patch_of, sources, whole_graph_of
from rlflow.env.state import RewriteState
from rlflow.rules.match import Match

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
      env: a `rlflow.env.rewriting.GraphRewriteEnv`, whose actions are single rewrites; others are refused with an
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
