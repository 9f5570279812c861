"""The contract of a task: everything that searches, collection, world models and controllers know about it.

A task has one of two shapes. In a *step-by-step* task something changes by one choice after another: a `State` leads
to the next state. In a *one-shot* task everything is decided at once: an `Instance` evaluates whole decisions. Both
shapes have an integer objective (lower is better) and show themselves as a graph in arrays.

A registered task is a `TaskSpec`: plain values from which any process makes the same `Task`.
tests/tasks/test_contract.py runs the contract on every registered task. docs/EXTENDING.md builds one task of each
shape.
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
    """What a controller is shown of a task."""

    LATENT = "latent"  # the observation of controllers/base.py: dreaming or awake, through a world model
    GRAPH = "graph"  # a one-shot instance, as GraphArrays
    CANDIDATES = "candidates"  # the graphs that each valid action leads to (`rlflow.env.step.StepEnv.candidates`)


class GraphArrays(NamedTuple):
    """One graph of n nodes and e edges, unpadded.

    ops: int32 [n], operator id (1 …; 0 is padding).  nodes: float32 [n, F].  edges: float32 [e, Fe].
    senders, receivers: int32 [e], node indices in canonical order.  globals: float32 [G].
    """

    ops: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    globals: np.ndarray


@dataclass(frozen=True)
class EncodingSpec:
    """The sizes that a world model, a controller and their checkpoints are built for.

    n_ops: operator ids, 0 for padding among them.  node_features, edge_features, global_features: of GraphArrays.
    n_rules: N, how many sorts of choices there are.  max_locations: L, choices of one sort at most.
    stop: whether there is, besides, the action that ends an episode: NO-OP, whose number is N.
    version: of what the numbers in the arrays mean; raised when that changes, since the sizes may stay the same.
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
    """Step by step: one state, an immutable value, so that saving, restoring and forking are assignments.

    objective: an integer, lower is better; which one is the task's to say (`Task.unit`).
    hash: equal for equal states.
    counts: int32 [N], choices of each sort (in rewriting: of each rule), at most L. Choice k of a sort is the k-th in
      an order that the state alone decides.
    """

    objective: int
    hash: object
    counts: np.ndarray

    def apply(self, sort: int, index: int) -> Self:
        """The state after a choice. Raises RLFlowError for one that is not there."""

    def arrays(self) -> GraphArrays:
        """The state as a graph; equal states, equal arrays."""


class Match(Protocol):
    """One choice of a local state. Searches compare matches by identity, so one that two states share is one object.

    xfer_id: its sort.  nodes: ids of what it concerns.  plan: equal for matches whose replacements are alike,
      wherever they are.
    """

    xfer_id: int
    nodes: tuple[int, ...]
    plan: object


@runtime_checkable
class LocalState(State, Protocol):
    """A state whose choices are local, which searches make use of: what is far from the last change stays as it was.

    matches: the choices, by sort and index.  touched: ids of the nodes that the last change concerned.
    reach: how far the objective of one node looks, in edges.
    """

    matches: Sequence[Match]
    touched: frozenset[int]
    reach: int

    def match(self, sort: int, index: int) -> Match:
        """The match of a choice."""

    def index_of(self, match: Match) -> int:
        """The index that one of the matches has within its sort."""

    def follow(self, match: Match) -> Self:
        """The state after one of the matches."""

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Those nodes, and all within so many edges of them."""

    def rows(self, nodes: Iterable[int]) -> np.ndarray:
        """int32 [k]: the rows of `arrays` that these nodes have, in this order; those that are not shown have none."""


@runtime_checkable
class StrainedState(Protocol):
    """What a local state has besides if its objective may be that of its worst part alone: then few choices matter.

    strain: of each node how high the worst part is that it belongs to; a choice lowers the objective only if it
      concerns some of the highest. None where the objective is a sum.
    """

    strain: Mapping[int, int] | None


@runtime_checkable
class CompoundState(Protocol):
    """What a local state has besides if each of its matches stands for several choices, made one after another.

    single: the same state, each of whose matches is one choice.
    made: the choices that the last match made, as matches of single states.
    actions: (sort, index) of each of them; numbering them may take as long as making them did.
    """

    single: LocalState
    made: Sequence[Match]
    actions: Sequence[tuple[int, int]]

    def choices(self, match: Match) -> Sequence[Match]:
        """Those that a match stands for, as matches of `single`."""

    def carrying(self) -> "Carrying":
        """To do everywhere what single choices did at one of alike matches."""


class Carrying(Protocol):
    """Which matches of compound states stand for choices that were made one after another from the same single state.

    Both ways, new nodes get other ids, and what was made for one choice may have made later ones, too.
    """

    def is_made(self, choice: Match) -> bool:
        """Whether the next choice was made by one of the matches that were followed."""

    def match(self, state: CompoundState, choice: Match) -> Match | None:
        """The one of the state that stands for the next choice; None if none does."""

    def followed(self, after: CompoundState) -> None:
        """To be called with the state after that match."""

    def passed(self, choice: Match) -> None:
        """To be called for each choice in turn, once it is made."""


def single_steps(before: CompoundState, after: CompoundState) -> Iterator[tuple[tuple[int, int], LocalState]]:
    """The single choices of a match that led from one state to the other, each with the single state after it."""
    state = before.single
    for action in after.actions:
        state = state.apply(*action)
        yield action, state


class Evaluation(NamedTuple):
    """What B decisions are worth.

    objectives: int64 [B], lower is better.  decisions: int64 [B, …], as they were carried out.
    repaired: int64 [B], how many parts of each decision had to be changed for that; 0 where it was valid.
    """

    objectives: np.ndarray
    decisions: np.ndarray
    repaired: np.ndarray


@runtime_checkable
class Instance(Protocol):
    """One-shot: what is to be decided.

    spec: the sizes of `arrays`; its n_rules is how many options a node has.
    space: of one decision, int64 [n]: an option for each node of `arrays`, or an order of them.
    hash: equal for equal instances.
    """

    spec: EncodingSpec
    space: gymnasium.spaces.MultiDiscrete
    hash: object

    def arrays(self) -> GraphArrays: ...

    def evaluate(self, decisions: np.ndarray) -> Evaluation:
        """Of int64 [B, n] in the space. What is not valid is repaired, and `repaired` says so."""

    def control(self) -> np.ndarray:
        """int64 [n]: a decision that needs no learning, such as a compiler's; results are compared with it."""

    def lower_bound(self) -> int | None:
        """What no decision is below; None if nobody knows."""


@runtime_checkable
class Sequencing(Instance, Protocol):
    """What an instance has besides if a decision is an order of its nodes, each after the senders of its edges."""

    def drawn(self, n: int, seed: int) -> "Sequencing":
        """Another of n nodes, at random, for controllers to learn on what is no single problem."""

    def searched(self, priorities: np.ndarray, width: int, order: np.ndarray | None = None) -> np.ndarray:
        """int64 [n], what a beam of some width finds, guided by float64 [n]: each next node is as probable as the
        softmax of the priorities of all that are ready says. Given an order, one that is no worse.
        """


class Task(Protocol):
    """One problem, opened: what stays the same in all episodes.

    unit: of the objective, for people; per_unit: how much of the objective one such unit is (picoseconds in a ms: 10⁹).
    initial: where every episode begins; a State, or the Instance of a one-shot task.
    encoding_spec: the sizes of its arrays and of its actions.
    """

    unit: ClassVar[str]
    per_unit: ClassVar[float]
    initial: State | Instance
    encoding_spec: EncodingSpec


class Earnings(Protocol):
    """What an episode has earned so far: an immutable value, as states are.

    last: what its last step earned.  info: what the environment's `info` says of it.
    measurements: hash of a state that was measured for it → the seconds that this took.
    """

    last: float
    info: Mapping[str, object]
    measurements: Mapping[str, float]

    def moved(self, before: State, after: State, ended: bool) -> Self:
        """After a valid step, with which the episode may have ended."""

    def stopped(self, state: State) -> Self:
        """After NO-OP."""


@runtime_checkable
class EpisodeReward(Protocol):
    """A reward of which a step's share depends on those before it, or on whether it is the last."""

    def begin(self, initial: State) -> Earnings:
        """Of an episode that begins here. Takes no time."""


StepReward = Callable[[State, State, State], float]  # (before, after, initial): what one valid step was worth
Reward = StepReward | EpisodeReward


class TaskSpec(Protocol):
    """Plain values that make the same task in any process; what `rlflow.tasks.TASKS` registers.

    shape: STEP_BY_STEP or ONE_SHOT.  max_steps: after which a random episode is cut.
    """

    shape: ClassVar[str]
    max_steps: int

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        """The file of the problem that `model` names; one that is generated is written into the folder.

        Raises RLFlowError if nothing has that name.
        """

    @classmethod
    def files(cls, source: Path) -> Sequence[Path]:
        """All files that the problem consists of: a run is bound to their content."""

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        """By the resolved config of a run."""

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        """What its episodes depend on besides the problem and the seed: it cannot change within one run folder."""

    def absolute(self) -> Self:
        """The same with absolute paths, for a process with another working directory."""

    def make_task(self) -> Task: ...

    def make_reward(self) -> Reward:
        """Step by step alone."""

    def make_env(self, task: Task, max_steps: int) -> gymnasium.Env:
        """Step by step alone: the real environment (`rlflow.env.step.StepEnv`), in episodes of at most so many steps.
        """

    def deliver(self, task: Task, candidates: Sequence, folder: Path, config: Mapping, **options) -> dict:
        """Checks the candidates (`rlflow.optimisation.candidates.Candidate`), writes the best with its receipt into the
        folder.

        Returns at least {"original": {"objective"}, "candidates": {name: {"objective", "equal"}}, "delivered": a name
        or "original", "reason", "actions": {name: list}}.
        """

    def report(self, task: Task, results: dict, folder: Path) -> dict[str, str]:
        """Writes pages about a run into the folder; the last lines of the command, by name (`rlflow.cli.command`).

        results: {"model", "seed", "eval": of `deliver`, "stages": {name: results}, "machine", "versions", "curves"}.
        """


def location_masks(counts: np.ndarray, spec: EncodingSpec) -> np.ndarray:
    """int8 [N + 1, L]: 1 where the choice is valid, of counts int [N]; NO-OP, the last row, has one where there is a
    NO-OP.
    """
    return _prefixes(spec.max_locations)[np.append(counts, int(spec.stop))]


@cache
def _prefixes(limit: int) -> np.ndarray:
    """int8 [L + 1, L]: row n is the mask of n choices."""
    return np.tri(limit + 1, limit, -1, np.int8)


def valid_actions(counts: np.ndarray, stop: bool) -> np.ndarray:
    """int64 [n, 2]: all valid (sort, index) of counts int [N]; NO-OP, if there is one, last."""
    sorts = np.repeat(np.arange(len(counts)), counts)
    indices = np.arange(len(sorts)) - np.repeat(np.cumsum(counts) - counts, counts)
    actions = np.stack([sorts, indices], axis=1)
    return np.append(actions, [[len(counts), 0]], axis=0) if stop else actions
