"""The cost of a graph with symbolic sizes, at its typical sizes.

With one typical size, the cost is the cost of the graph at this size. With several typical sizes, the runtime of an
operator is a weighted mean over the sizes. The weight of a size is inverse to the original's runtime at this size, so a
gain of 10 % at 16 tokens counts as much as a gain of 10 % at 512 tokens. The weights are scaled so that the runtime of
the original is the geometric mean of its runtimes at the sizes. FLOPs, bytes and launches are unweighted means.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from rlflow.costs import EXACT, CostModel, NodeCost, Spread, cost_of_all_runs, graph_cost, node_spread, runs_of, unit_of
from rlflow.costs.target import Target, target_of
from rlflow.graph.ir import Graph, Node


def at_sizes(model: CostModel, sizes: Sequence[Mapping[str, int]], original: Graph) -> CostModel:
    """Return a cost model for a graph with symbolic sizes and for the graphs that are rewritten from this graph.

    Args:
      model: a cost model for graphs without symbols; an `AtSizes` model is returned unchanged.
      sizes: for each typical size, symbol → size. If there are no symbols, `model` is returned unchanged.
      original: the graph before all rewrites.
    """
    return AtSizes(model, sizes, original) if any(sizes) and not isinstance(model, AtSizes) else model


class AtSizes:
    """A cost model that evaluates another cost model at the typical sizes of a graph's symbols.

    Attributes:
      model: the other cost model, for graphs whose sizes are numbers.
      sizes: for each typical size, symbol → size.
      counts_runs: True, because the runs of a body, and so the costs of its nodes, depend on the sizes.
    """

    counts_runs = True

    def __init__(self, model: CostModel, sizes: Sequence[Mapping[str, int]], original: Graph):
        self.model, self.sizes, self._original = model, tuple(sizes), original
        self.reach, self.passes = model.reach, model.passes
        self.unit, self.per_unit = unit_of(model)
        self._last: tuple[Graph, list[Graph]] | None = None  # the graph of the last call of `_views`, and its views
        if hasattr(model, "whole"):
            self.whole, self.strain = self._mean_of_wholes, self._first_strain

    @property
    def deadline(self) -> float:
        return self.model.deadline

    @deadline.setter
    def deadline(self, clock: float) -> None:
        self.model.deadline = clock

    @property
    def target(self) -> Target | None:
        return target_of(self.model)

    def node_cost(self, graph: Graph, node: Node) -> NodeCost:
        costs = [cost_of_all_runs(self.model, view, node) for view in self._views(graph)]
        if len(costs) == 1:
            return costs[0]
        others = [round(sum(column) / len(costs)) for column in list(zip(*costs, strict=True))[1:]]
        return NodeCost(self._mean([cost.runtime_ps for cost in costs]), *others)

    def _mean_of_wholes(self, graph: Graph) -> int:
        """Return the weighted mean over the sizes of `model.whole`; used only if the other cost model has `whole`."""
        wholes = [self.model.whole(view) for view in self._views(graph)]
        return wholes[0] if len(wholes) == 1 else self._mean(wholes)

    def _first_strain(self, graph: Graph) -> Mapping[int, int]:
        """Return `model.strain` at the first typical size; used only if the other cost model has `whole`."""
        return self.model.strain(self._views(graph)[0])

    def _mean(self, runtimes: Sequence[int]) -> int:
        return round(sum(weight * one for weight, one in zip(self._weights, runtimes, strict=True)) / len(runtimes))

    def spread(self, graph: Graph, node: Node) -> Spread:
        """Return the uncertainty of `node_cost`."""
        result, views = EXACT, self._views(graph)
        for view, weight in zip(views, self._weights if len(views) > 1 else [1.0], strict=True):
            times = weight / len(views) * runs_of(self.model, view, node)
            result = result.plus(node_spread(self.model, view, node), times)
        return result

    def time_again(self, timing: str) -> None:
        self.model.time_again(timing)
        self.__dict__.pop("_weights", None)  # The cached weights depend on the previous timing.

    def correct(self) -> None:
        """Correct the predictions of a model that predicts (`rlflow.costs.predicted`)."""
        self.model.correct()
        self.__dict__.pop("_weights", None)

    @cached_property
    def _weights(self) -> list[float]:
        """The weight of each size: geometric mean of the original's runtimes at all sizes / runtime at this size."""
        totals = [max(graph_cost(self.model, view).runtime_ps, 1) for view in self._views(self._original)]
        mean = math.exp(sum(map(math.log, totals)) / len(totals))
        return [mean / total for total in totals]

    def _views(self, graph: Graph) -> list[Graph]:
        """Return the view of a graph at each typical size; the views of the last call are cached."""
        if self._last is None or self._last[0] is not graph:
            self._last = graph, [graph.at(sizes) for sizes in self.sizes]
        return self._last[1]
