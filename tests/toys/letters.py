"""A toy rewriting system with the structure of the real one: a chain of sized letters, three rules and exact costs.

  fuse   A B → C   saves the difference between the costs of A and B and the cost of C, times A's size.
  fold   C C → C   saves the second C.
  swap   B A → A B saves nothing, but may bring an A before a B.

Locations are matches from left to right, so a location's reward depends on which letters stand there.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from rlflow.collect.episodes import Episode
from rlflow.common.task import EncodingSpec, GraphArrays

A, B, C = 1, 2, 3
COST = {A: 3.0, B: 2.0, C: 4.0}
PATTERNS = ((A, B), (C, C), (B, A))
START = ((B, 1), (A, 2), (B, 1), (A, 1), (B, 1), (B, 1))
SPEC = EncodingSpec(n_ops=4, node_features=2, edge_features=1, global_features=1, n_rules=3, max_locations=4)
MAX_STEPS = 10
MATCH_CLASSES, USUAL_REWARDS = np.arange(SPEC.n_rules, dtype=np.int32), np.array([1.0, 4.0, 0.0], np.float32)

Chain = tuple[tuple[int, int], ...]


def matches(chain: Chain, rule: int) -> list[int]:
    pairs = [(left[0], right[0]) for left, right in pairwise(chain)]
    return [i for i, pair in enumerate(pairs) if pair == PATTERNS[rule]][: SPEC.max_locations]


def counts(chain: Chain) -> np.ndarray:
    return np.array([len(matches(chain, rule)) for rule in range(SPEC.n_rules)], np.int32)


def apply(chain: Chain, rule: int, location: int) -> Chain:
    i = matches(chain, rule)[location]
    left, right = chain[i], chain[i + 1]
    new = ((right, left),) if rule == 2 else (((C, left[1]),),)
    return chain[:i] + new[0] + chain[i + 2 :]


def cost(chain: Chain) -> float:
    return float(sum(COST[letter] * size for letter, size in chain))


def graph(chain: Chain) -> GraphArrays:
    n = len(chain)
    sizes = np.array([size for _, size in chain], np.float32)
    letters = np.array([letter for letter, _ in chain], np.int32)
    costs = np.array([COST[letter] * size for letter, size in chain], np.float32)
    return GraphArrays(
        ops=letters, nodes=np.stack([sizes, np.log1p(costs)], axis=1), edges=np.ones((n - 1, 1), np.float32),
        senders=np.arange(n - 1, dtype=np.int32), receivers=np.arange(1, n, dtype=np.int32),
        globals=np.array([cost(chain) / cost(START)], np.float32),
    )


@dataclass(frozen=True, eq=False)
class ToyState:
    """A state with the counts and arrays that a world model reads."""

    chain: Chain

    @property
    def counts(self) -> np.ndarray:
        return counts(self.chain)

    def arrays(self) -> GraphArrays:
        return graph(self.chain)


class ToyEnv(gymnasium.Env):
    """The real environment of the toy, with the observation of docs/ARCHITECTURE.md."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(self, max_nodes: int = 16):
        n_actions, self.max_nodes = SPEC.n_rules + 1, max_nodes
        real, index = (lambda *shape: spaces.Box(-1e3, 1e3, shape, np.float32)), (
            lambda size: spaces.Box(0, max_nodes, (size,), np.int32))
        self.observation_space = spaces.Dict({
            "ops": index(max_nodes), "nodes": real(max_nodes, SPEC.node_features),
            "edges": real(max_nodes, SPEC.edge_features), "senders": index(max_nodes), "receivers": index(max_nodes),
            "n_node": index(1), "n_edge": index(1), "globals": real(SPEC.global_features),
            "xfer_mask": spaces.Box(0, 1, (n_actions,), np.int8),
            "location_masks": spaces.Box(0, 1, (n_actions, SPEC.max_locations), np.int8),
        })
        self.action_space = spaces.MultiDiscrete([n_actions, SPEC.max_locations])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = ToyState(START), 0
        return self._observe(), {}

    def step(self, action):
        rule, location = map(int, action)
        self.steps += 1
        late = self.steps >= MAX_STEPS
        if rule == SPEC.n_rules:
            return self._observe(), 0.0 if location == 0 else -100.0, location == 0, late and location != 0, {}
        if location >= self.state.counts[rule]:
            return self._observe(), -100.0, False, late, {}
        before, self.state = self.state.chain, ToyState(apply(self.state.chain, rule, location))
        return self._observe(), cost(before) - cost(self.state.chain), False, late, {}

    def _observe(self):
        arrays = self.state.arrays()
        location_masks = (np.arange(SPEC.max_locations) < np.append(self.state.counts, 1)[:, None]).astype(np.int8)
        xfer_mask = location_masks[:, 0]
        padded = {
            name: np.concatenate([values, np.zeros((self.max_nodes - len(values), *values.shape[1:]), values.dtype)])
            for name, values in arrays._asdict().items() if name != "globals"
        }
        size = {"n_node": np.array([len(arrays.ops)], np.int32), "n_edge": np.array([len(arrays.senders)], np.int32)}
        return padded | size | {"globals": arrays.globals, "xfer_mask": xfer_mask, "location_masks": location_masks}


def episode(index: int, seed: int = 0, stop: float = 0.05) -> Episode:
    """Return a random episode: a uniform valid rule and location; NO-OP with probability `stop` or if no rule
    matches."""
    random, chain = np.random.default_rng([seed, index]), START
    chains, actions, rewards = [chain], [], []
    while len(actions) < MAX_STEPS and (not actions or actions[-1][0] != SPEC.n_rules):
        able = np.flatnonzero(counts(chain))
        if len(able) == 0 or random.random() < stop:
            actions.append((SPEC.n_rules, 0))
        else:
            rule = int(random.choice(able))
            actions.append((rule, int(random.integers(counts(chain)[rule]))))
            chain = apply(chain, *actions[-1])
        chains.append(chain)
        rewards.append(cost(chains[-2]) - cost(chains[-1]))
    terminated = np.array([rule == SPEC.n_rules for rule, _ in actions])
    last = np.arange(len(actions)) == len(actions) - 1
    return Episode(
        actions=np.array(actions, np.int32), rewards=np.array(rewards, np.float32), terminated=terminated,
        truncated=last & ~terminated, costs=np.array([cost(c) for c in chains]),
        counts=np.stack([counts(c) for c in chains]), graphs=[graph(c) for c in chains], index=index,
    )


def episodes(n: int, seed: int = 0) -> list[Episode]:
    return [episode(index, seed) for index in range(n)]
