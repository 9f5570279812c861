"""The real environment: one ONNX model that is rewritten by rules, as a Gymnasium environment."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlflow.common.errors import RLFlowError
from rlflow.costs import runtime_ms
from rlflow.env.encoding import EDGE_FEATURES, GLOBAL_FEATURES, N_OPS, NODE_FEATURES
from rlflow.env.rewards import INVALID_REWARD, Reward, relative
from rlflow.env.state import RewriteState, Task


class GraphRewriteEnv(gym.Env):
    """Rewrites on a computation graph (RLFlow, section 3.1).

    ## Action
    `MultiDiscrete([N + 1, L])`: (xfer_id, location). xfer_id == N is NO-OP: its only location is 0, and it
    ends the episode. Location k is the k-th match of the rule in the canonical order of the graph.

    ## Observation
    The paper's 4-tuple (graph_tuple, xfer_tuples, location_masks, xfer_mask) as a Dict:

    | key | shape, dtype | what |
    | --- | --- | --- |
    | ops | int32 [max_nodes] | operator ids, 0 is padding |
    | nodes | float32 [max_nodes, F] | see rlflow.env.encoding |
    | edges | float32 [max_edges, Fe] | |
    | senders, receivers | int32 [max_edges] | node indices |
    | n_node, n_edge | int32 [1] | how many of them are real |
    | globals | float32 [G] | costs as multiples of the initial graph's |
    | xfer_mask | int8 [N + 1] | 1 where the rule has a location; NO-OP always |
    | location_masks | int8 [N + 1, L] | 1 where the location is valid |

    The xfer_tuples (the graphs that each valid action would lead to) are `candidates()`; with
    `reset(options={"candidates": True})` they come in `info["xfer_tuples"]` at every step of the episode.

    ## Reward
    A function of the costs before and after (rlflow.env.rewards); −100 for an invalid action, which changes
    nothing. NO-OP has reward 0.

    ## Ends
    Terminated by NO-OP; truncated after `max_steps` steps.

    ## Info
    `cost` (estimated runtime in ms), `flops`, `bytes`, `launches`, `valid` and `rule` (of the last action).

    Args:
      task: model, rules, cost and limit on locations.
      reward: a function (before, after, initial) → float.
      max_steps: length at which an episode is truncated.
      max_nodes, max_edges: padding; by default twice the initial graph and some room. An action
        that could outgrow them is masked, with the later locations of its rule.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        task: Task,
        reward: Reward = relative,
        max_steps: int = 100,
        max_nodes: int | None = None,
        max_edges: int | None = None,
        render_mode: str | None = None,
    ):
        self.task, self.reward, self.max_steps, self.render_mode = task, reward, max_steps, render_mode
        first = task.initial.arrays()
        self.max_nodes = max_nodes or 2 * len(first.ops) + 32
        self.max_edges = max_edges or 4 * len(first.senders) + 128
        if len(first.ops) > self.max_nodes or len(first.senders) > self.max_edges:
            raise RLFlowError(
                f"the graph has {len(first.ops)} nodes and {len(first.senders)} edges; raise max_nodes/max_edges"
            )
        n, limit = len(task.rules), task.max_locations
        self.action_space = spaces.MultiDiscrete([n + 1, limit])
        floats = lambda *shape: spaces.Box(0, 1e9, shape, np.float32)  # noqa: E731
        index = lambda high, *shape: spaces.Box(0, high, shape, np.int32)  # noqa: E731
        self.observation_space = spaces.Dict(
            {
                "ops": index(N_OPS, self.max_nodes),
                "nodes": floats(self.max_nodes, NODE_FEATURES),
                "edges": floats(self.max_edges, EDGE_FEATURES),
                "senders": index(self.max_nodes, self.max_edges),
                "receivers": index(self.max_nodes, self.max_edges),
                "n_node": index(self.max_nodes, 1),
                "n_edge": index(self.max_edges, 1),
                "globals": floats(GLOBAL_FEATURES),
                "xfer_mask": spaces.Box(0, 1, (n + 1,), np.int8),
                "location_masks": spaces.Box(0, 1, (n + 1, limit), np.int8),
            }
        )
        self.state = task.initial
        self._steps = 0
        self._wants_candidates = False
        self._arrays_of: RewriteState | None = None  # the states that the two caches belong to
        self._masks_of: RewriteState | None = None

    # -- Gymnasium ---------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.state, self._steps = self.task.initial, 0
        self._wants_candidates = bool((options or {}).get("candidates", False))
        return self._observation(), self._info(True, None)

    def step(self, action):
        xfer_id, location = (int(part) for part in action)
        no_op = (xfer_id, location) == (self.task.no_op, 0)
        if no_op or not self._allowed(xfer_id, location):
            self._steps += 1
            truncated = not no_op and self._steps >= self.max_steps
            return self._observation(), 0.0 if no_op else INVALID_REWARD, no_op, truncated, self._info(no_op, None)
        return self.recall(action, self.state.apply(xfer_id, location))

    def action_masks(self) -> np.ndarray:
        """bool [N + 1 + L], as sb3-contrib wants it for MultiDiscrete: rules and NO-OP, then locations of any rule."""
        xfer_mask, locations = self._masks()
        return np.concatenate([xfer_mask, locations.any(axis=0)]).astype(bool)

    def render(self) -> str | None:
        if self.render_mode != "ansi":
            return None
        runtime, initial = self.state.runtime_ms, self.task.initial.runtime_ms
        lines = [f"step {self._steps}: {runtime:.4f} ms estimated, {100 * (1 - runtime / initial):.2f} % better"]
        lines += [f"  {self.task.rules[x].name}: {n}" for x, n in enumerate(self.state.counts) if n]
        return "\n".join(lines)

    # -- beyond Gymnasium --------------------------------------------------------------------------

    def save_state(self) -> tuple[RewriteState, int]:
        """A value that `restore_state` takes; states are immutable, so this copies nothing."""
        return self.state, self._steps

    def restore_state(self, saved: tuple[RewriteState, int]) -> None:
        self.state, self._steps = saved

    def recall(self, action, after: RewriteState):
        """What `step` gives for a valid rewrite that is known to lead to the state `after`: nothing is carried out."""
        before, self.state, self._steps = self.state, after, self._steps + 1
        reward = float(self.reward(before.cost, after.cost, self.task.initial.cost))
        rule = self.task.rules[int(action[0])].name
        return self._observation(), reward, False, self._steps >= self.max_steps, self._info(True, rule)

    def fork(self) -> "GraphRewriteEnv":
        """An environment of its own in the same state; the task, which nothing changes, is shared."""
        other = copy.copy(self)
        other.action_space, other._np_random = copy.deepcopy(self.action_space), copy.deepcopy(self._np_random)
        return other

    def candidates(self) -> list[tuple[int, int, Any]]:
        """(xfer_id, location, GraphArrays) of every graph that one valid rewrite leads to."""
        actions = self.state.valid_actions()[:-1]
        return [(int(x), int(k), self.state.apply(x, k).arrays()) for x, k in actions if self._allowed(x, k)]

    # -- inside ------------------------------------------------------------------------------------

    def _near_padding(self) -> bool:
        arrays = self._arrays
        return len(arrays.ops) + 16 > self.max_nodes or len(arrays.senders) + 128 > self.max_edges

    def _fits(self, xfer_id: int, location: int) -> bool:
        after = self.state.apply(xfer_id, location).arrays()
        return len(after.ops) <= self.max_nodes and len(after.senders) <= self.max_edges

    def _allowed(self, xfer_id: int, location: int) -> bool:
        return self.state.is_valid(xfer_id, location) and bool(self._masks()[1][xfer_id, location])

    @property
    def _arrays(self):
        if self._arrays_of is not self.state:
            self._arrays_of, self._arrays_cache = self.state, self.state.arrays()
        return self._arrays_cache

    def _masks(self) -> tuple[np.ndarray, np.ndarray]:
        """int8 [N + 1] and int8 [N + 1, L]."""
        if self._masks_of is not self.state:
            locations = self.state.location_masks()
            if self._near_padding():  # valid locations stay 0 … count−1, as docs/ARCHITECTURE.md promises
                for xfer_id, count in enumerate(self.state.counts):
                    fitting = next((k for k in range(count) if not self._fits(xfer_id, k)), count)
                    locations[xfer_id, fitting:] = 0
            self._masks_of, self._masks_cache = self.state, (locations[:, 0].copy(), locations)
        return self._masks_cache

    def _observation(self) -> dict[str, np.ndarray]:
        arrays, (xfer_mask, location_masks) = self._arrays, self._masks()
        return {
            "ops": _padded(arrays.ops, self.max_nodes),
            "nodes": _padded(arrays.nodes, self.max_nodes),
            "edges": _padded(arrays.edges, self.max_edges),
            "senders": _padded(arrays.senders, self.max_edges),
            "receivers": _padded(arrays.receivers, self.max_edges),
            "n_node": np.array([len(arrays.ops)], np.int32),
            "n_edge": np.array([len(arrays.senders)], np.int32),
            "globals": arrays.globals.copy(),
            "xfer_mask": xfer_mask.copy(),
            "location_masks": location_masks.copy(),
        }

    def _info(self, valid: bool, rule: str | None) -> dict[str, Any]:
        cost = self.state.cost
        info = {
            "cost": runtime_ms(cost), "flops": cost.flops, "bytes": cost.bytes, "launches": cost.launches,
            "valid": valid, "rule": rule or "",
        }  # fmt: skip
        if self._wants_candidates:
            info["xfer_tuples"] = self.candidates()
        return info


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    """The array with zeros up to `size` along its first axis."""
    result = np.zeros((size, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result
