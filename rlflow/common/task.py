"""The interface of tasks, on which searches, collection of episodes, world models and controllers rely.

A task has one of two shapes. A *step-by-step* task is a deterministic MDP: each choice leads from one `State` to the
next (ONNX rewriting). A *one-shot* task decides everything at once: an `Instance` evaluates complete decisions (node
ordering). Both shapes have an integer objective (lower is better) and encode their problem as a `GraphArrays`.

A registered task is a `TaskSpec`: plain values from which any process can build the same `Task`. To add a task,
implement `TaskSpec`, `Task` and either `State` or `Instance`. The protocols `LocalState`, `StrainedState` and
`CompoundState` are optional and make searches faster. A choice is a pair (sort, index): `sort` is the action type (in
rewriting: the rule), and `index` is the position among the valid choices of this action type.

tests/tasks/test_contract.py checks every registered task. docs/EXTENDING.md explains how to write a task of each shape.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import gymnasium
import numpy as np

STEP_BY_STEP, ONE_SHOT = "step by step", "one-shot"


class Observes(StrEnum):
    """The kind of observation that a controller needs."""

    LATENT = "latent"  # latent z and hidden h of a world model, in a dream or in the real environment
    GRAPH = "graph"  # the GraphArrays of a one-shot instance
    STATES = "states"  # the `LocalState` itself, whose successors the controller computes (`rlflow.env.states`)
    CANDIDATES = "candidates"  # the graph after each valid action (`rlflow.env.step.StepEnv.candidates`)


WITHOUT_WORLD_MODEL = (Observes.STATES, Observes.CANDIDATES)  # observations of a step-by-step task's real environment


class GraphArrays(NamedTuple):
    """The encoding of a graph of n nodes and e edges, without padding.

    Attributes:
      ops: int32 [n], operator ids from 1 on; 0 is reserved for padding.
      nodes, edges, globals: float32 [n, F], [e, Fe] and [G], the features of nodes, edges and the whole graph.
      senders, receivers: int32 [e], the rows of the nodes at which an edge starts and ends.
    """

    ops: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    globals: np.ndarray


@dataclass(frozen=True)
class EncodingSpec:
    """The sizes of a task's arrays and actions, for which a world model, a controller and their checkpoints are built.

    Attributes:
      n_ops: number of operator ids, including the id 0 of padding.
      node_features, edge_features, global_features: the sizes F, Fe and G in `GraphArrays`.
      n_rules: N, the number of action types besides NO-OP.
      max_locations: L, the largest number of valid choices of one action type.
      stop: True if the action NO-OP, which has number N, ends an episode.
      version: version of the encoding; it must increase if the meaning of a feature changes, even if no size changes.
    """

    n_ops: int
    node_features: int
    edge_features: int
    global_features: int
    n_rules: int
    max_locations: int
    stop: bool = True
    version: int = 1

    def to_dict(self) -> dict:
        return asdict(self)


@runtime_checkable
class State(Protocol):
    """A state of a step-by-step task.

    A state is an immutable value, so that an environment saves, restores and forks a state by an assignment.

    Attributes:
      objective: the quantity to minimise, in the unit that `Task.unit` and `Task.per_unit` define.
      hash: a value that is equal for equal states.
      counts: int32 [N], the number of valid choices of each action type, at most L. The order of the choices of one
        action type must depend on the state alone, not on the path that led to the state.
    """

    objective: int
    hash: object
    counts: np.ndarray

    def apply(self, sort: int, index: int) -> Self:
        """Return the state that a choice leads to.

        Args:
          sort: action type, 0 ≤ sort < N.
          index: position among the valid choices of this action type, 0 ≤ index < counts[sort].

        Raises:
          RLFlowError: the state has no such choice.
        """

    def arrays(self) -> GraphArrays:
        """Encode the state as a graph; equal states give equal arrays."""


class Match(Protocol):
    """One valid choice of a `LocalState`.

    Searches compare matches by identity. If a match stays valid in the next state, both states must return the same
    object.

    Attributes:
      xfer_id: the action type, called `sort` elsewhere.
      nodes: ids of the nodes that the choice changes or removes.
      plan: a value that is equal for matches with the same replacement at different nodes.
    """

    xfer_id: int
    nodes: tuple[int, ...]
    plan: object


@runtime_checkable
class LocalState(State, Protocol):
    """A state in which each choice changes only a neighbourhood of the graph.

    Searches therefore keep the gain of a match while other choices change only distant nodes.

    Attributes:
      matches: all valid choices, ordered by action type and index.
      rows: id of each node → its row in `arrays`.
      touched: ids of the nodes that the last choice changed, added or removed, and of nodes around changed edges.
      reach: distance in edges within which a change can affect the contribution of one node to the objective.
    """

    matches: Sequence[Match]
    rows: Mapping[int, int]
    touched: frozenset[int]
    reach: int

    def match(self, sort: int, index: int) -> Match:
        """Return the match of the choice (sort, index)."""

    def index_of(self, match: Match) -> int:
        """Return the index of a match of this state among the choices of its action type."""

    def follow(self, match: Match) -> Self:
        """Return the state that a match leads to, as `apply` does for the action type and the index of the match."""

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Return the ids of the given nodes and of all nodes within a distance.

        Args:
          nodes: node ids; ids of nodes that the state does not contain are allowed.
          reach: distance in edges.
        """


@runtime_checkable
class StrainedState(Protocol):
    """A local state whose objective can be a maximum, such as peak memory, instead of a sum over nodes.

    Attributes:
      strain: node id → the largest value of the maximised quantity in which the node takes part. For peak memory this
        is the largest number of bytes in use while a tensor of the node is alive. Only a choice at a node of the
        largest strain can lower the objective. If the objective is a sum, `strain` is None.
    """

    strain: Mapping[int, int] | None


@runtime_checkable
class CompoundState(Protocol):
    """A local state in which one match stands for several single choices, such as one rewrite in twelve equal blocks.

    Attributes:
      single: the same graph as a state with one match per single choice.
      made: the single choices that the last match stood for, in order; each is a match of the single state before it.
      actions: (sort, index) of each choice in `made`; computing the indices can take as long as applying the choices.
    """

    single: LocalState
    made: Sequence[Match]
    actions: Sequence[tuple[int, int]]

    def choices(self, match: Match) -> Sequence[Match]:
        """Return the single choices that a match stands for, as matches of `single`."""

    def steps(self) -> Iterator[tuple[tuple[int, int], LocalState]]:
        """Make the choices in `made` one after the other.

        Yields:
          ((sort, index) of a single choice, the single state that the choice leads to).
        """

    def start_replay(self) -> "CompoundReplay":
        """Return a translator from single choices, the first of them made in this state, to compound matches."""


class CompoundReplay(Protocol):
    """A translator from a sequence of single choices to compound matches, which repeat them at all equal matches.

    A search tries single choices from `CompoundState.single`, then repeats the successful sequence on the compound
    state. Node ids differ between the two sequences, and one compound match can make several later single choices. The
    search handles the single choices in order. If `is_made` is False, it calls `match`, follows the match and calls
    `record_match`. In both cases it then calls `record_choice`.
    """

    def is_made(self, choice: Match) -> bool:
        """Return True if an earlier compound match has already made this choice, the next one of the sequence."""

    def match(self, state: CompoundState, choice: Match) -> Match | None:
        """Return the match of a compound state that makes the next single choice, or None if there is no such match.

        Args:
          state: the current compound state.
          choice: the next single choice of the sequence, a match of a single state.
        """

    def record_match(self, after: CompoundState) -> None:
        """Record the compound state that the last result of `match` led to."""

    def record_choice(self, choice: Match) -> None:
        """Record that this single choice is made, so that the search continues with the next one of the sequence."""


class Evaluation(NamedTuple):
    """The objectives of B decisions of a one-shot task.

    Attributes:
      objectives: int64 [B], lower is better.
      decisions: int64 [B, n], the evaluated decisions: invalid decisions are repaired before they are evaluated.
      repaired: int64 [B], number of entries that the repair changed; 0 for a valid decision.
    """

    objectives: np.ndarray
    decisions: np.ndarray
    repaired: np.ndarray


@runtime_checkable
class Instance(Protocol):
    """The problem of a one-shot task, such as to choose the order of the nodes or the memory of every tensor.

    Attributes:
      spec: the sizes of `arrays`; its `n_rules` is the number of options of a node.
      space: the space of one decision, int64 [n]: one option for each node of `arrays`, or a permutation of the nodes.
      hash: a value that is equal for equal instances.
    """

    spec: EncodingSpec
    space: gymnasium.spaces.MultiDiscrete
    hash: object

    def arrays(self) -> GraphArrays:
        """Encode the problem as a graph."""

    def evaluate(self, decisions: np.ndarray) -> Evaluation:
        """Return the objectives of decisions, int64 [B, n] in `space`. Invalid decisions are repaired first."""

    def control(self) -> np.ndarray:
        """Return int64 [n], a decision made without learning, such as a compiler's, with which results are compared."""

    def lower_bound(self) -> int | None:
        """Return a proved lower bound on the objective of every decision, or None if no bound is known."""


@runtime_checkable
class Sequencing(Instance, Protocol):
    """An instance whose decision is a topological order of its nodes: each node follows the senders of its edges."""

    def random_instance(self, n: int, seed: int) -> "Sequencing":
        """Return a random instance of the same task, so that a controller can train on many problems.

        Args:
          n: number of nodes.
          seed: seed of the random generator; equal arguments give equal instances.
        """

    def beam_search(self, priorities: np.ndarray, width: int, order: np.ndarray | None = None) -> np.ndarray:
        """Find an order by beam search.

        Args:
          priorities: float64 [n], one logit per node. The next node has the softmax probability among the ready nodes,
            whose senders are all in the order.
          width: beam width.
          order: int64 [n], an order to improve; None to search for the most probable order.

        Returns:
          int64 [n], the best order found; its objective is at most the objective of `order`.
        """


class Task(Protocol):
    """One loaded problem, which all episodes share.

    Attributes:
      unit: the unit in which the objective is shown to users, such as "ms".
      per_unit: the objective of one `unit`: 10⁹ if the objective counts picoseconds and `unit` is "ms".
      initial: the initial state of every episode, or the `Instance` of a one-shot task.
      encoding_spec: the sizes of the task's arrays and actions.
    """

    unit: ClassVar[str]
    per_unit: ClassVar[float]
    initial: State | Instance
    encoding_spec: EncodingSpec


class Earnings(Protocol):
    """The rewards of an episode so far, as an immutable value.

    Attributes:
      last: the reward of the last step.
      info: entries for the `info` dictionary that the environment returns with the step.
      measurements: hash of each measured state → seconds that the measurement took.
    """

    last: float
    info: Mapping[str, object]
    measurements: Mapping[str, float]

    def after_step(self, before: State, after: State, ended: bool) -> Self:
        """Return the earnings after a valid step.

        Args:
          before, after: the states before and after the step.
          ended: True if the step ended the episode.
        """

    def after_stop(self, state: State) -> Self:
        """Return the earnings after the action NO-OP, which ends the episode in this state."""


@runtime_checkable
class EpisodeReward(Protocol):
    """A reward function whose values depend on earlier steps or on the end of the episode, such as measured latency."""

    def begin(self, initial: State) -> Earnings:
        """Return the earnings of an episode before its first step. This method must not measure, so it returns at once.
        """


StepReward = Callable[[State, State, State], float]  # (before, after, initial) → reward of one valid step
Reward = StepReward | EpisodeReward


class TaskSpec(Protocol):
    """The description of a task by plain, picklable values, from which every process builds the same task.

    Register the class in `rlflow.tasks.TASKS`. `rlflow.tasks.plain.PlainSpec` implements most methods.

    Attributes:
      shape: STEP_BY_STEP or ONE_SHOT.
      max_steps: number of steps after which a random episode is truncated.
    """

    shape: ClassVar[str]
    max_steps: int

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        """Return the file of a problem; write the file first if the problem is generated.

        Args:
          model: the option `model`: a path, or a name that the task understands.
          seed: seed of a generated problem.
          folder: folder for a generated file.

        Raises:
          RLFlowError: no problem has this name.
        """

    @classmethod
    def files(cls, source: Path) -> Sequence[Path]:
        """Return all files of the problem. A run folder stores their hash and refuses to continue if they change."""

    @classmethod
    def settled(cls, config: Mapping, source: Path, begun: Mapping | None = None) -> Mapping:
        """Return the config of a run, with the options that the files of the user determine.

        Args:
          config: the config.
          source: the file that `fetch` returned.
          begun: the result of `depends_on` when the run was begun; None for a new run.

        Raises:
          RLFlowError: the files do not fit the problem.
        """

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        """Create the description from the resolved config of a run and the file that `fetch` returned."""

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        """Return the settings that the episodes depend on, besides the problem and the seed.

        A run folder can only be opened with the same values of these settings.
        """

    def absolute(self) -> Self:
        """Return a copy of this description with absolute paths, for a process with another working directory."""

    def make_task(self) -> Task:
        """Load the problem and return the task."""

    def checked_task(self) -> Task:
        """Return the task as `make_task` does, and check, before any other work, that results can be evaluated here.

        Raises:
          RLFlowError: the problem is not valid.
        """

    def other_task(self, model: str) -> Task:
        """Load another problem with the settings of this description, so that a controller can train on both.

        Args:
          model: the name or path of the problem, as in `fetch`.
        """

    def make_reward(self) -> Reward:
        """Create the reward function. Step-by-step tasks only."""

    def make_env(self, task: Task, max_steps: int) -> gymnasium.Env:
        """Create the real environment of controllers, a `rlflow.env.step.StepEnv` without the graph in observations.

        Step-by-step tasks only.

        Args:
          task: result of `make_task`.
          max_steps: number of steps after which an episode is truncated.
        """

    def deliver(self, task: Task, candidates: Sequence, folder: Path, config: Mapping, **options) -> dict:
        """Check the candidates and write the best valid candidate with its receipt.

        Args:
          task: result of `make_task`.
          candidates: the candidates, each a `Candidate` (rlflow.optimisation.candidates); a `Decision` for a one-shot
            task.
          folder: folder for the result and the receipt.
          config: the config of the run.
          **options: arguments that only some tasks have.

        Returns:
          At least {"original": {"objective"}, "candidates": {name: {"objective", "equal"}}, "delivered": a name or
          "original", "reason": text, "actions": {name: list}}.
        """

    def report(self, task: Task, results: dict, folder: Path) -> dict[str, str]:
        """Write the report of a run.

        Args:
          task: result of `make_task`.
          results: {"model", "seed", "eval": result of `deliver`, "stages": {name: results}, "machine", "versions",
            "curves"}.
          folder: folder for the pages.

        Returns:
          Name of a line → its text, for the last lines of the command (see `rlflow.cli.command.ending`).
        """


def location_masks(counts: np.ndarray, spec: EncodingSpec) -> np.ndarray:
    """Return the action mask of a state for each action type.

    Args:
      counts: int [N], the number of valid choices of each action type.
      spec: sizes of the task.

    Returns:
      int8 [N + 1, L], 1 for a valid choice. The last row is NO-OP: its first entry is 1 if the task has a NO-OP.
    """
    return _prefixes(spec.max_locations)[np.append(counts, int(spec.stop))]


@cache
def _prefixes(limit: int) -> np.ndarray:
    """Return int8 [L + 1, L] for L = `limit`; row n consists of n ones and then zeros."""
    return np.tri(limit + 1, limit, -1, np.int8)


def valid_actions(counts: np.ndarray, stop: bool) -> np.ndarray:
    """Return all valid actions of a state.

    Args:
      counts: int [N], the number of valid choices of each action type.
      stop: True to append NO-OP, (N, 0).

    Returns:
      int64 [n, 2], (sort, index) pairs in ascending order.
    """
    sorts = np.repeat(np.arange(len(counts)), counts)
    indices = np.arange(len(sorts)) - np.repeat(np.cumsum(counts) - counts, counts)
    actions = np.stack([sorts, indices], axis=1)
    return np.append(actions, [[len(counts), 0]], axis=0) if stop else actions
