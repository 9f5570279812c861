"""The rewriting MDP without the Gymnasium interface: a state, its matches, its cost and its successor states.

A `RewriteState` is an immutable value, so saving, restoring and forking a state are assignments. Searches, rollouts and
the Gymnasium environment are built on `RewriteState`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec, GraphArrays, LocalState, valid_actions
from rlflow.costs import CostModel, GraphCost, NodeCost, graph_cost, neighbourhood, runtime_ms, unit_of
from rlflow.costs.at_sizes import at_sizes
from rlflow.costs.target import check_recorded
from rlflow.env import EnvOptions
from rlflow.env.observation import NO_ENTRIES, Entries, arrays, encoding_spec, size_features, totals, update_entries
from rlflow.graph.ir import Graph
from rlflow.rules.apply import apply
from rlflow.rules.language import RuleSet
from rlflow.rules.locations import MatchTable
from rlflow.rules.match import Match


@dataclass(frozen=True)
class Task:
    """One loaded model with its rules, cost model and limits; a task is the same in all episodes.

    Attributes:
      graph: the graph at which every episode begins.
      rules: the rules that an action can apply.
      cost: the cost model; for a model with symbolic sizes it is replaced by its `AtSizes` at the typical sizes.
      max_locations: L, the largest number of locations of one rule that actions can select.
      sizes: for each typical size at which the model is estimated and measured, symbol → size; ({},) if the model has
        no symbols.
      preparation: (xfer_id, location) of the rewrites that lead from the loaded model to `graph`.
      loaded: the graph of the model as loaded; None if it is `graph`.
      widened: the loaded model with float32 between its inputs and outputs, from which `preparation` leads to `graph`;
        None if the model keeps its precision.
      moves: the option `env.moves` ("single" or "batched"). Only `rlflow.env.batched.start_of` reads it; `initial`
        always offers single rewrites.
    """

    graph: Graph
    rules: RuleSet
    cost: CostModel
    max_locations: int = EnvOptions.max_locations
    sizes: tuple[dict[str, int], ...] = ({},)
    preparation: tuple[tuple[int, int], ...] = ()
    loaded: Graph | None = None
    moves: str = EnvOptions.moves
    widened: Graph | None = None

    def __post_init__(self):
        object.__setattr__(self, "cost", at_sizes(self.cost, self.sizes, self.original))

    @property
    def unit(self) -> str:
        return unit_of(self.cost)[0]

    @property
    def per_unit(self) -> float:
        return unit_of(self.cost)[1]

    @property
    def original(self) -> Graph:
        """The graph of the model as loaded, before widening and the rewrites in `preparation`."""
        return self.loaded or self.graph

    @cached_property
    def initial(self) -> "RewriteState":
        if self.loaded is not None:
            _ = self.original_cost  # Time the original's operators now, before a search sets a deadline.
        cost = GraphCost.of(self.cost, self.graph)
        check_recorded(self.cost)
        return RewriteState(self, self.graph, cost, None, (NO_ENTRIES, frozenset()))

    @cached_property
    def original_cost(self) -> NodeCost:
        """The cost of `original`."""
        return self.initial.cost if self.loaded is None else graph_cost(self.cost, self.loaded)

    def forget_costs(self) -> None:
        """Recompute all costs with the current timings. States that were made before this call become invalid."""
        before = self.__dict__.get("initial")
        for name in ("initial", "original_cost", "initial_totals"):
            self.__dict__.pop(name, None)
        if before is not None and "table" in before.__dict__:
            self.take_matches(before)

    def take_matches(self, state: "RewriteState") -> None:
        """Use the matches of a state with the same graph and rules for `initial`, because finding them takes long."""
        self.initial.__dict__["table"] = state.table

    @property
    def cost_is_known(self) -> bool:
        """True if `initial` was computed already. Otherwise the first access to `initial` may time operators."""
        return "initial" in self.__dict__

    @cached_property
    def initial_totals(self) -> np.ndarray:
        """float64 [TOTALS], the totals (`rlflow.env.observation.totals`) of the initial graph."""
        running = sum(not node.constant for node in self.graph.nodes.values())
        return totals(self.initial.graph_cost, running)

    @cached_property
    def size_features(self) -> np.ndarray:
        """float32 [SIZE_SLOTS], the typical sizes as features (`rlflow.env.observation.size_features`)."""
        return size_features(self.sizes)

    @property
    def encoding_spec(self) -> EncodingSpec:
        return encoding_spec(len(self.rules), self.max_locations)

    @property
    def no_op(self) -> int:
        """The xfer_id of the action that ends an episode."""
        return len(self.rules)


@dataclass(frozen=True, eq=False)
class RewriteState(LocalState):
    """A state of the rewriting MDP: one graph with its cost and the matches of each rule.

    Matches, counts and arrays are computed on first access. The computation reuses matches and arrays of an earlier
    state.

    Attributes:
      task: the task, which all states of an episode share.
      graph: the graph.
      graph_cost: the cost of each node and of the whole graph.
    """

    task: Task
    graph: Graph
    graph_cost: GraphCost
    _matches_before: MatchTable | None
    # Entries of an earlier state, ids of nodes changed since; without entries, all nodes count as changed.
    _entries_before: tuple[Entries, frozenset[int]]

    def __getstate__(self) -> dict:
        # Matches and entries are computed again on first access: searches compare matches by identity.
        entries = NO_ENTRIES, frozenset()
        own = {"task": self.task, "graph": self.graph, "graph_cost": self.graph_cost}
        return own | {"_matches_before": None, "_entries_before": entries}

    @cached_property
    def table(self) -> MatchTable:
        return MatchTable(self.task.rules, self.graph, self._matches_before)

    @cached_property
    def entries(self) -> Entries:
        """The contribution of each node to the arrays of an observation."""
        before, changed = self._entries_before
        changed = changed if before.nodes else self.graph.nodes
        return update_entries(before, changed, self.graph, self.graph_cost, self.task.sizes[0])

    @property
    def cost(self) -> NodeCost:
        return self.graph_cost.total

    @property
    def objective(self) -> int:
        """The estimated runtime in picoseconds, or the quantity that a cost model estimates instead of time."""
        return self.graph_cost.total.runtime_ps

    @property
    def runtime_ms(self) -> float:
        """The estimated runtime in milliseconds."""
        return runtime_ms(self.cost)

    @cached_property
    def counts(self) -> np.ndarray:
        """int32 [N], the number of locations of each rule that actions can select, at most `max_locations`."""
        return np.minimum(self.table.counts, self.task.max_locations)

    def is_valid(self, xfer_id: int, location: int) -> bool:
        """Check whether (xfer_id, location) is a valid action other than NO-OP.

        Args:
          xfer_id: index of the rule in the rule set.
          location: index of the match among the rule's matches in canonical order.
        """
        return 0 <= xfer_id < len(self.counts) and 0 <= location < self.counts[xfer_id]

    def apply(self, xfer_id: int, location: int) -> "RewriteState":
        """Return the state after one rewrite.

        Args:
          xfer_id: index of the rule in the rule set; NO-OP is invalid here.
          location: index of the match among the rule's matches in canonical order.

        Raises:
          RLFlowError: the rule has no such location in this graph.
        """
        if not self.is_valid(xfer_id, location):
            raise RLFlowError(f"rule {xfer_id} has no location {location} in this graph; see `valid_actions`")
        return self.follow(self.table.location(xfer_id, location))

    def match(self, xfer_id: int, location: int) -> Match:
        return self.table.location(xfer_id, location)

    def index_of(self, match: Match) -> int:
        return self.table.location_of(match)

    def follow(self, match: Match) -> "RewriteState":
        """Return the state after the rewrite at a match, which must be a match of this state (`table`)."""
        graph = apply(self.graph, self.task.rules[match.xfer_id], match)
        return self.rewritten(graph, self.table, graph.touched)

    def rewritten(self, graph: Graph, before: MatchTable, touched: frozenset[int]) -> "RewriteState":
        """Return the state of a graph that one or several rewrites made from the graph of this state.

        Args:
          graph: the graph after the rewrites.
          before: the matches of the graph to which the last rewrite was applied.
          touched: ids of the touched nodes of all rewrites (`Graph.touched`).
        """
        cost = self.graph_cost.after(self.task.cost, graph, touched)
        if "entries" in self.__dict__:
            entries = self.entries, cost.recounted
        elif not self._entries_before[0].nodes:
            entries = self._entries_before
        else:
            entries = self._entries_before[0], self._entries_before[1] | cost.recounted
        return RewriteState(self.task, graph, cost, before, entries)

    def with_current_cost(self) -> "RewriteState":
        """Return a state with the same graph and matches, whose cost is computed with the current timings."""
        cost = replace(GraphCost.of(self.task.cost, self.graph), recounted=self.graph_cost.recounted)
        result = replace(self, graph_cost=cost, _entries_before=(NO_ENTRIES, frozenset()))
        if "table" in self.__dict__:
            result.__dict__["table"] = self.table
        return result

    @property
    def hash(self) -> str:
        """The hash of the graph; equal graphs have equal hashes."""
        return self.graph.hash

    @property
    def touched(self) -> frozenset[int]:
        """Ids of the nodes that the last rewrite changed, added or removed, and of the nodes around changed edges."""
        return self.graph.touched

    @cached_property
    def strain(self) -> Mapping[int, int] | None:
        """Node id → the largest value of the maximised quantity in which the node takes part (`StrainedState.strain`).

        None if the cost is a sum over nodes.
        """
        cost = self.task.cost
        return cost.strain(self.graph) if hasattr(cost, "strain") else None

    @property
    def reach(self) -> int:
        """The distance in edges within which a change can affect the cost of one node."""
        return self.task.cost.reach

    @cached_property
    def rows(self) -> dict[int, int]:
        """Node id → the row of the node in `arrays`."""
        return {node: row for row, node in enumerate(self.graph.order, start=len(self.graph.inputs))}

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Return the ids of the given nodes and of all nodes within `reach` edges of them.

        Args:
          nodes: node ids; ids that are not in the graph are allowed.
          reach: largest distance in edges.
        """
        return neighbourhood(self.graph, nodes, reach)

    def arrays(self) -> GraphArrays:
        task, view = self.task, self.graph.at(self.task.sizes[0])
        return arrays(self.entries, self.graph, view, self.graph_cost, task.initial_totals, task.size_features)

    @property
    def matches(self) -> list[Match]:
        """The matches of all valid actions except NO-OP, in the order of `valid_actions`."""
        return [
            match
            for xfer_id, n in enumerate(self.counts.tolist())
            if n
            for match in islice(self.table.of_rule(xfer_id), n)
        ]

    def valid_actions(self) -> np.ndarray:
        """Return int64 [n, 2], all valid actions (xfer_id, location), with NO-OP as the last row."""
        return valid_actions(self.counts, stop=True)
