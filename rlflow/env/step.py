"""The Gymnasium environment of any step-by-step task.

`StepEnv` is the environment of one task; the task must implement `Task` and `State` of rlflow/common/task.py.
`MultiModelEnv` joins several environments, so that an agent can train on several models. Its method
`reset(options={"model": k})` starts an episode in environment k modulo the number of environments. The agent thus
decides in which order it plays the models, and a resumed training plays the same episodes as an uninterrupted training.
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlflow.common.errors import RLFlowError
from rlflow.common.task import Earnings, GraphArrays, Reward, State, Task, location_masks, valid_actions
from rlflow.env import EnvOptions
from rlflow.env.rewards import INVALID_REWARD, begin, relative


@runtime_checkable
class Recalls(Protocol):
    """An environment that can do a step whose successor state is known; see `StepEnv.recall`."""

    def recall(self, action, after: State) -> tuple: ...


# The padded size as a multiple of the initial graph. Operators that compute constants are nodes, too: a ResNet has 2.6
# times its nodes after all its normalisations are folded. With twice the initial graph, an agent could not fold all of
# them.
PADDING_FACTOR = 4


# Number of operators on a rule's right side that count as one portion of 16 nodes; the other nodes compute sizes.
PORTION = 12


class StepEnv(gym.Env):
    """A Gymnasium environment with one choice per step (RLFlow, section 3.1), for any step-by-step task.

    ## Action
    `MultiDiscrete([N + 1, L])`: (action type, index), in rewriting (xfer_id, location). If the task has the action
    NO-OP, its action type is N and its only index is 0; NO-OP ends the episode. Index k selects the k-th valid choice
    of the action type, in an order that depends only on the state.

    ## Observation
    The paper's 4-tuple (graph_tuple, xfer_tuples, location_masks, xfer_mask) as a Dict:

    | key | shape, dtype | meaning |
    | --- | --- | --- |
    | ops | int32 [max_nodes] | operator ids, 0 is padding |
    | nodes | float32 [max_nodes, F] | see `GraphArrays` |
    | edges | float32 [max_edges, Fe] | see `GraphArrays` |
    | senders, receivers | int32 [max_edges] | node indices |
    | n_node, n_edge | int32 [1] | number of nodes and edges without padding |
    | globals | float32 [G] | see `GraphArrays` |
    | xfer_mask | int8 [N + 1] | 1 if the action type has a valid choice; 1 for NO-OP if the task has it |
    | location_masks | int8 [N + 1, L] | 1 if the choice (action type, index) is valid |

    `candidates()` returns the xfer_tuples: the graphs that the valid actions lead to. With
    `reset(options={"candidates": True})`, every step of the episode puts the xfer_tuples into `info["xfer_tuples"]`.

    ## Reward
    The reward is a function of the states before and after a step and of the initial state, or it depends on the whole
    episode. An invalid action has the reward −100 and does not change the state. NO-OP has the reward 0, except under
    an episode reward.

    ## Episode end
    NO-OP terminates the episode. In a task without NO-OP, a state without a valid choice terminates the episode. After
    `max_steps` steps the episode is truncated.

    ## Info
    `info` contains `cost` (the objective in the task's unit), `valid` (False after an invalid action), the entries of
    the reward, and the entries that a subclass adds.

    Args:
      task: the task, which no step changes.
      reward: a function (before, after, initial) → float of states, or a `rlflow.common.task.EpisodeReward`; by
        default `rlflow.env.rewards.relative`.
      max_steps: number of steps after which an episode is truncated.
      max_nodes, max_edges: the padded sizes; None for slightly more than PADDING_FACTOR times the initial graph. An
        action that leads to a larger graph is masked, together with all later choices of its action type. The size is
        computed where fewer than 16 nodes or 128 edges are free for each PORTION operators that the action adds.
      render_mode: "ansi" or None.
      with_graph: False for an environment inside a wrapper that encodes the state itself, such as
        `worldmodel.latent_env.LatentEnv`. Observations then contain only `xfer_mask` and `location_masks`, and the
        graph may grow without limit.

    Raises:
      RLFlowError: the initial graph has more nodes or edges than the padded sizes.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self, task: Task, reward: Reward = relative, max_steps: int = EnvOptions.max_steps,
        max_nodes: int | None = None, max_edges: int | None = None, render_mode: str | None = None,
        with_graph: bool = True,
    ):  # fmt: skip
        self.task, self.reward, self.max_steps, self.render_mode = task, reward, max_steps, render_mode
        self.encoding_spec, self._with_graph = task.encoding_spec, with_graph
        n, limit = self.encoding_spec.n_rules, self.encoding_spec.max_locations
        self.action_space = spaces.MultiDiscrete([n + 1, limit])
        graph = self._graph_spaces(max_nodes, max_edges) if with_graph else {}
        self.observation_space = spaces.Dict(
            graph
            | {
                "xfer_mask": spaces.Box(0, 1, (n + 1,), np.int8),
                "location_masks": spaces.Box(0, 1, (n + 1, limit), np.int8),
            }
        )
        self.initial = self.state = self.start()
        self._steps, self._earnings = 0, begin(reward, self.initial)
        self._wants_candidates = False
        self._arrays_of: State | None = None  # the state whose arrays are cached; `_masks_of` likewise for the masks
        self._masks_of: State | None = None

    # -- Gymnasium ---------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.state, self._steps, self._earnings = self.initial, 0, begin(self.reward, self.initial)
        self._wants_candidates = bool((options or {}).get("candidates", False))
        return self._observation(), self._info(True)

    def step(self, action):
        xfer_id, location = (int(part) for part in action)
        no_op = self.encoding_spec.stop and (xfer_id, location) == (self.encoding_spec.n_rules, 0)
        if no_op:
            self._steps, self._earnings = self._steps + 1, self._earnings.after_stop(self.state)
            return self._observation(), self._earnings.last, True, False, self._info(True)
        if not self._allowed(xfer_id, location):
            self._steps, reward = self._steps + 1, INVALID_REWARD
            truncated = self._steps >= self.max_steps
            if truncated:  # what the end of an episode is paid for, such as a measurement
                self._earnings = self._earnings.after_stop(self.state)
                reward += self._earnings.last
            return self._observation(), reward, False, truncated, self._info(False)
        return self.recall(action, self.state.apply(xfer_id, location))

    def action_masks(self) -> np.ndarray:
        """Return the action mask of the MultiDiscrete space for sb3-contrib, bool [N + 1 + L].

        Element i ≤ N is True if action type i has a valid choice. Element N + 1 + k is True if index k is valid for at
        least one action type. sb3-contrib masks the two parts independently, so some actions that this mask allows are
        invalid. `rlflow.env.flat.FlatActions` has an exact mask.
        """
        xfer_ids, locations = self._masks()
        return np.concatenate([xfer_ids, locations.any(axis=0)]).astype(bool)

    def location_masks(self) -> np.ndarray:
        """Return int8 [N + 1, L], the entry `location_masks` of the present observation."""
        return self._masks()[1].copy()

    # -- beyond Gymnasium --------------------------------------------------------------------------

    def save_state(self) -> tuple[State, int, Earnings]:
        """Return (state, number of steps, earnings), the argument of `restore_state`. All are immutable or numbers."""
        return self.state, self._steps, self._earnings

    def restore_state(self, saved: tuple[State, int, Earnings]) -> None:
        self.state, self._steps, self._earnings = saved

    def recall(self, action, after: State):
        """Do a valid step whose successor state is known, without computing that state; return the values of `step`.

        Args:
          action: the valid choice (action type, index).
          after: the state that the choice leads to.
        """
        before, self.state, self._steps = self.state, after, self._steps + 1
        ended = not self._masks()[0].any()
        truncated = not ended and self._steps >= self.max_steps
        self._earnings = self._earnings.after_step(before, after, ended or truncated)
        return self._observation(), self._earnings.last, ended, truncated, self._info(True, int(action[0]))

    def fork(self) -> "StepEnv":
        """Return a copy of the environment in the same state; steps of the copy do not affect this environment."""
        other = copy.copy(self)
        other.action_space, other._np_random = copy.deepcopy(self.action_space), copy.deepcopy(self._np_random)
        return other

    def candidates(self) -> list[tuple[int, int, GraphArrays]]:
        """Return (xfer_id, location, GraphArrays of the successor state) for each valid choice except NO-OP."""
        actions = valid_actions(self.state.counts, stop=False)
        return [(int(x), int(k), self.state.apply(x, k).arrays()) for x, k in actions if self._allowed(x, k)]

    # -- inside ------------------------------------------------------------------------------------

    def _graph_spaces(self, max_nodes: int | None, max_edges: int | None) -> dict[str, spaces.Space]:
        """Set the padded sizes and the portions, and return the spaces of the padded graph; see the class."""
        first, spec = self.task.initial.arrays(), self.encoding_spec
        self.max_nodes = max_nodes or PADDING_FACTOR * len(first.ops) + 32
        self.max_edges = max_edges or PADDING_FACTOR * len(first.senders) + 128
        if len(first.ops) > self.max_nodes or len(first.senders) > self.max_edges:
            raise RLFlowError(
                f"the graph has {len(first.ops)} nodes and {len(first.senders)} edges, more than the padding of "
                f"{self.max_nodes} and {self.max_edges}; raise max_nodes and max_edges"
            )
        added = [len(rule.target_ops) for rule in getattr(self.task, "rules", ()) if hasattr(rule, "target_ops")]
        self._portions = [max(-(-count // PORTION), 1) for count in added] or [1] * spec.n_rules  # of each action type
        self._largest_portion = max(self._portions, default=1)
        floats = lambda *shape: spaces.Box(-1e9, 1e9, shape, np.float32)  # noqa: E731
        index = lambda high, *shape: spaces.Box(0, high, shape, np.int32)  # noqa: E731
        return {
            "ops": index(spec.n_ops, self.max_nodes),
            "nodes": floats(self.max_nodes, spec.node_features),
            "edges": floats(self.max_edges, spec.edge_features),
            "senders": index(self.max_nodes, self.max_edges),
            "receivers": index(self.max_nodes, self.max_edges),
            "n_node": index(self.max_nodes, 1),
            "n_edge": index(self.max_edges, 1),
            "globals": floats(spec.global_features),
        }

    def start(self) -> State:
        """Return the state at which every episode begins."""
        return self.task.initial

    def _fitting_choices(self) -> int:
        """Return how many portions of 16 nodes and 128 edges fit into the padding."""
        arrays = self._arrays
        return min((self.max_nodes - len(arrays.ops)) // 16, (self.max_edges - len(arrays.senders)) // 128)

    def _sizes(self) -> dict[int, list[int]]:
        """Return action type → the number of portions that each of its choices adds at most, in the order of indices.
        """
        if not self._is_compound:
            counts = enumerate(self.state.counts.tolist())
            return {sort: [self._portions[sort]] * count for sort, count in counts if count}
        sizes: dict[int, list[int]] = {}
        for match in self.state.matches:
            portions = self._portions[match.xfer_id] * len(self.state.choices(match))
            sizes.setdefault(match.xfer_id, []).append(portions)
        return sizes

    def _fits(self, xfer_id: int, location: int) -> bool:
        after = self.state.apply(xfer_id, location).arrays()
        return len(after.ops) <= self.max_nodes and len(after.senders) <= self.max_edges

    def _allowed(self, xfer_id: int, location: int) -> bool:
        valid = 0 <= xfer_id < self.encoding_spec.n_rules and 0 <= location < self.state.counts[xfer_id]
        return bool(valid) and bool(self._masks()[1][xfer_id, location])

    @property
    def _is_compound(self) -> bool:
        """True if a choice can make several single choices (`rlflow.common.task.CompoundState`)."""
        return hasattr(type(self.state), "choices")  # isinstance would compute all attributes of the protocol

    @property
    def _arrays(self):
        if self._arrays_of is not self.state:
            self._arrays_of, self._arrays_cache = self.state, self.state.arrays()
        return self._arrays_cache

    def _masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (xfer_mask int8 [N + 1], location_masks int8 [N + 1, L]) of the current state."""
        if self._masks_of is not self.state:
            locations = location_masks(self.state.counts, self.encoding_spec)
            if self._with_graph:
                self._mask_too_large(locations)
            self._masks_of, self._masks_cache = self.state, (locations[:, 0].copy(), locations)
        return self._masks_cache

    def _mask_too_large(self, locations: np.ndarray) -> None:
        """Mask the choices whose graph exceeds the padding, and all later choices of the same action type.

        Valid indices thus stay a prefix 0 … count − 1; docs/ARCHITECTURE.md promises this.

        Args:
          locations: int8 [N + 1, L], the location masks; modified.
        """
        certain = self._fitting_choices()
        if certain >= self._largest_portion and not self._is_compound:
            return
        for xfer_id, sizes in self._sizes().items():
            too_large = (k for k, size in enumerate(sizes) if size > certain and not self._fits(xfer_id, k))
            locations[xfer_id, next(too_large, len(sizes)) :] = 0

    def _observation(self) -> dict[str, np.ndarray]:
        xfer_mask, location_masks = self._masks()
        masks = {"xfer_mask": xfer_mask.copy(), "location_masks": location_masks.copy()}
        if not self._with_graph:
            return masks
        arrays = self._arrays
        return {
            "ops": _padded(arrays.ops, self.max_nodes),
            "nodes": _padded(arrays.nodes, self.max_nodes),
            "edges": _padded(arrays.edges, self.max_edges),
            "senders": _padded(arrays.senders, self.max_edges),
            "receivers": _padded(arrays.receivers, self.max_edges),
            "n_node": np.array([len(arrays.ops)], np.int32),
            "n_edge": np.array([len(arrays.senders)], np.int32),
            "globals": arrays.globals.copy(),
            **masks,
        }

    def _info(self, valid: bool, taken: int | None = None) -> dict[str, Any]:
        """Return the `info` dictionary of the current state.

        Args:
          valid: False after an invalid action.
          taken: action type of the choice that led to the state; None after `reset`, NO-OP or an invalid action.
        """
        cost = self.state.objective / self.task.per_unit
        info = {"cost": cost, **self._task_info(taken), **self._earnings.info, "valid": valid}
        if self._wants_candidates:
            info["xfer_tuples"] = self.candidates()
        return info

    def _task_info(self, taken: int | None) -> dict[str, Any]:
        """Return the entries that a subclass adds to `info`; the argument is as in `_info`."""
        return {}


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    """Return the array, padded with zeros to `size` along its first axis."""
    result = np.zeros((size, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result


class MultiModelEnv(gymnasium.Env):
    """An environment that plays each episode in one of several environments with equal spaces, which `reset` selects.

    Attributes:
      models: number of environments.
    """

    def __init__(self, envs: Sequence[gymnasium.Env]):
        self.envs, self.models = list(envs), len(envs)
        self._current = self.envs[0]
        self.action_space, self.observation_space = self._current.action_space, self._current.observation_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._current = self.envs[(options or {}).get("model", 0) % self.models]
        return self._current.reset(seed=seed, options=options)

    def step(self, action) -> tuple[dict, float, bool, bool, dict]:
        return self._current.step(action)
