"""The rewriting process without an agent's interface: a state, its locations, its cost, its successors.

A `RewriteState` is an immutable value, so saving, restoring and forking are assignments. Searches,
rollouts and the Gymnasium environment all stand on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    """What stays the same in an episode: the model, the rules, the cost and the limit on locations.

    Attributes:
      graph: where an episode begins.
      cost: what it was made with; where the model has symbols, that at their typical sizes.
      sizes: symbol → typical size, for every size at which is estimated and measured; one empty dict without symbols.
      preparation: (xfer_id, location) pairs that lead from the model as it was loaded to `graph`.
      loaded: the model as it was loaded; None where that is `graph`.
      moves: see `env.moves`; `rlflow.env.batched.start_of` heeds it, `initial` offers single rewrites always.
    """

    graph: Graph
    rules: RuleSet
    cost: CostModel
    max_locations: int = EnvOptions.max_locations
    sizes: tuple[dict[str, int], ...] = ({},)
    preparation: tuple[tuple[int, int], ...] = ()
    loaded: Graph | None = None
    moves: str = EnvOptions.moves

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
        """The model as it was loaded."""
        return self.loaded or self.graph

    @cached_property
    def initial(self) -> "RewriteState":
        if self.loaded is not None:
            _ = self.original_cost  # so that all that a search asks of the original is timed now, before a deadline
        cost = GraphCost.of(self.cost, self.graph)
        check_recorded(self.cost)
        return RewriteState(self, self.graph, cost, None, (NO_ENTRIES, frozenset(self.graph.nodes)))

    @cached_property
    def original_cost(self) -> NodeCost:
        """What the model costs as it was loaded."""
        return self.initial.cost if self.loaded is None else graph_cost(self.cost, self.loaded)

    def forget_costs(self) -> None:
        """Counts anew, after timings were taken again; states of before are not to be used any more."""
        for name in ("initial", "original_cost", "initial_totals"):
            self.__dict__.pop(name, None)
        _ = self.initial

    @property
    def cost_is_known(self) -> bool:
        """Whether what `initial` costs is known; before that its operators may have to be timed."""
        return "initial" in self.__dict__

    @cached_property
    def initial_totals(self) -> np.ndarray:
        """float64 [TOTALS]: what the totals among the globals of GraphArrays are multiples of."""
        running = sum(not node.constant for node in self.graph.nodes.values())
        return totals(self.initial.graph_cost, running)

    @cached_property
    def size_features(self) -> np.ndarray:
        """See rlflow.env.observation."""
        return size_features(self.sizes)

    @property
    def encoding_spec(self) -> EncodingSpec:
        return encoding_spec(len(self.rules), self.max_locations)

    @property
    def no_op(self) -> int:
        """The xfer_id that ends an episode."""
        return len(self.rules)


@dataclass(frozen=True, eq=False)
class RewriteState(LocalState):
    """One graph on the way, with the matches of each rule.

    Matches, counts and arrays are made when first asked for, from those of an earlier state.
    """

    task: Task
    graph: Graph
    graph_cost: GraphCost
    _matches_before: MatchTable | None
    _entries_before: tuple[Entries, frozenset[int]]  # of an earlier state, and the nodes that differ since

    @cached_property
    def table(self) -> MatchTable:
        return MatchTable(self.task.rules, self.graph, self._matches_before)

    @cached_property
    def entries(self) -> Entries:
        """What each node adds to the arrays."""
        return update_entries(*self._entries_before, self.graph, self.graph_cost, self.task.sizes[0])

    @property
    def cost(self) -> NodeCost:
        return self.graph_cost.total

    @property
    def objective(self) -> int:
        """Estimated runtime in picoseconds; of another cost than one of time, what that counts."""
        return self.graph_cost.total.runtime_ps

    @property
    def runtime_ms(self) -> float:
        """Estimated runtime."""
        return runtime_ms(self.cost)

    @cached_property
    def counts(self) -> np.ndarray:
        """int32 [N]: locations of each rule, at most max_locations."""
        return np.minimum(self.table.counts, self.task.max_locations)

    def is_valid(self, xfer_id: int, location: int) -> bool:
        return 0 <= xfer_id < len(self.counts) and 0 <= location < self.counts[xfer_id]

    def apply(self, xfer_id: int, location: int) -> "RewriteState":
        """The state after the rewrite. Raises RLFlowError for an invalid action (NO-OP included)."""
        if not self.is_valid(xfer_id, location):
            raise RLFlowError(f"rule {xfer_id} has no location {location} in this graph")
        return self.follow(self.table.location(xfer_id, location))

    def match(self, xfer_id: int, location: int) -> Match:
        return self.table.location(xfer_id, location)

    def index_of(self, match: Match) -> int:
        return list(self.table.of_rule(match.xfer_id)).index(match)

    def follow(self, match: Match) -> "RewriteState":
        """`apply` for a match of this state's table."""
        graph = apply(self.graph, self.task.rules[match.xfer_id], match)
        return self.rewritten(graph, self.table, graph.touched)

    def rewritten(self, graph: Graph, before: MatchTable, touched: frozenset[int]) -> "RewriteState":
        """The state of a graph that rewrites made of this one's.

        before: the matches of the graph that the last of them rewrote.  touched: ids of the nodes that all concerned.
        """
        cost = self.graph_cost.after(self.task.cost, graph, touched)
        if "entries" in self.__dict__:
            entries = self.entries, cost.recounted
        else:
            entries = self._entries_before[0], self._entries_before[1] | cost.recounted
        return RewriteState(self.task, graph, cost, before, entries)

    def rows(self, nodes: Iterable[int]) -> np.ndarray:
        """int32 [k]: the rows of `arrays` that these nodes have, in this order."""
        position = {node_id: row for row, node_id in enumerate(self.graph.order, start=len(self.graph.inputs))}
        return np.array([position[node_id] for node_id in nodes], np.int32)

    @property
    def hash(self) -> str:
        """Equal for equal graphs."""
        return self.graph.hash

    @property
    def touched(self) -> frozenset[int]:
        """The nodes that the last rewrite concerned."""
        return self.graph.touched

    @cached_property
    def strain(self) -> Mapping[int, int] | None:
        """Of each node how high the worst is that it takes part in, where the objective is that of the worst alone;
        None where it is a sum."""
        cost = self.task.cost
        return cost.strain(self.graph) if hasattr(cost, "strain") else None

    @property
    def reach(self) -> int:
        """How far the cost of a node looks, in edges."""
        return self.task.cost.reach

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        """Those nodes, and all within so many edges of them."""
        return neighbourhood(self.graph, nodes, reach)

    def arrays(self) -> GraphArrays:
        task, view = self.task, self.graph.at(self.task.sizes[0])
        return arrays(self.entries, self.graph, view, self.graph_cost, task.initial_totals, task.size_features)

    @property
    def matches(self) -> list[Match]:
        """Those of all valid actions, in the order of `valid_actions`."""
        return [
            match
            for xfer_id, n in enumerate(self.counts.tolist())
            if n
            for match in islice(self.table.of_rule(xfer_id), n)
        ]

    def valid_actions(self) -> np.ndarray:
        """int64 [n, 2]: all valid (xfer_id, location), NO-OP last."""
        return valid_actions(self.counts, stop=True)
