"""A problem as a one-shot instance: a decision is an order of the nodes."""

import hashlib
from functools import cached_property

import numpy as np
from gymnasium.spaces import MultiDiscrete

from rlflow.costs.memory.optimum import lower_bound
from rlflow.costs.memory.problem import Problem, Rows
from rlflow.costs.memory.sorting import by_priority, depth_first
from rlflow.tasks.base import EncodingSpec, Evaluation, GraphArrays
from rlflow.tasks.ordering.guided import lowered, probable
from rlflow.tasks.ordering.layered import layered

FEATURES = 8  # see `features`


class Orders:
    """See `rlflow.tasks.base.Sequencing`; others of its kind are layered graphs.

    problem: what is ordered.  usual: int64 [n], the order that it has without us.
    """

    def __init__(self, problem: Problem, usual: np.ndarray):
        self.problem, self.usual = problem, usual
        self.space = MultiDiscrete([problem.n] * problem.n)
        self.spec = EncodingSpec(
            n_ops=2, node_features=FEATURES, edge_features=1, global_features=1, n_rules=problem.n, max_locations=1,
            stop=False,
        )  # fmt: skip

    @cached_property
    def hash(self) -> str:
        problem = self.problem
        parts = (problem.work, problem.edges, problem.size, problem.maker, problem.kept, problem.reads, problem.inplace)
        return hashlib.sha256(repr([part.tolist() for part in parts]).encode()).hexdigest()

    def arrays(self) -> GraphArrays:
        pairs = self.problem.precedence.astype(np.int32)
        return GraphArrays(
            ops=np.ones(self.problem.n, np.int32),
            nodes=features(self.problem),
            edges=np.ones((len(pairs), 1), np.float32),
            senders=pairs[:, 0],
            receivers=pairs[:, 1],
            globals=np.ones(1, np.float32),
        )

    def evaluate(self, decisions: np.ndarray) -> Evaluation:
        """Nodes that are not where they can be run as soon as all is there that they need, those named first first."""
        decisions = np.asarray(decisions, np.int64)
        orders = self.repaired(decisions)
        return Evaluation(self.problem.peaks(orders), orders, (orders != decisions).sum(axis=1))

    def repaired(self, decisions: np.ndarray) -> np.ndarray:
        """int64 [B, n]: valid orders; what is valid stays as it is."""
        n, wrong = self.problem.n, ~self.problem.are_orders(decisions)
        if not wrong.any():
            return decisions
        named = np.full((wrong.sum(), n), 2 * n)  # the first position at which a node is named; 2 n if nowhere
        for position in range(n - 1, -1, -1):
            named[np.arange(len(named)), decisions[wrong, position]] = position
        result = decisions.copy()
        result[wrong] = by_priority(self.problem, -named.astype(np.float64))
        return result

    def control(self) -> np.ndarray:
        return self.usual

    def lower_bound(self) -> int:
        return lower_bound(self.problem)

    def drawn(self, n: int, seed: int) -> "Orders":
        problem = layered(n, seed)
        return Orders(problem, depth_first(problem))

    def searched(self, priorities: np.ndarray, width: int, order: np.ndarray | None = None) -> np.ndarray:
        if order is None:
            return probable(self.problem, priorities, width)
        return lowered(self.problem, priorities, width, order)


def features(problem: Problem) -> np.ndarray:
    """float32 [n, 8], each a share of the largest: what a node makes and what it needs besides; how many nodes it
    follows and how many follow it; the fewest and the most steps to it from a first node, and from it to a last one.
    """
    order = depth_first(problem)
    columns = np.stack([
        problem.made, problem.work, problem.before.counts, problem.after.counts,
        *_steps(order, problem.before), *_steps(order[::-1], problem.after),
    ], axis=1)  # fmt: skip
    return (columns / np.maximum(columns.max(axis=0), 1)).astype(np.float32)


def _steps(order: np.ndarray, sources: Rows) -> tuple[np.ndarray, np.ndarray]:
    """int64 [n] each: the fewest and the most edges from a node without sources."""
    fewest, most = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    for node in order:
        others = sources[node]
        if len(others):
            fewest[node], most[node] = fewest[others].min() + 1, most[others].max() + 1
    return fewest, most
