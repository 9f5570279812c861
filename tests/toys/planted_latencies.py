"""Measurements of tiny models and their variants with planted latencies: estimates times a factor for each kind."""

from collections.abc import Callable

import numpy as np

from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.database import MeasuredPair, Pair
from rlflow.costs.measurements import ESTIMATE, KernelGraph, Known, sizes_text
from rlflow.graph.ir import Graph
from tests.toys.tiny import tiny_task

SIZES = sizes_text([{}])
MODELS = ("tiny_resnet18", "tiny_squeezenet1_1", "tiny_inception_v3", "tiny_mobilenet_v2")
FACTORS = {"Conv spatial": 1.3, "Conv pointwise": 0.8, "Relu": 1.6, "Add": 0.9, "Concat": 2.0}

Truth = Callable[[KernelGraph], float]  # milliseconds


def by_kind(graph: KernelGraph) -> float:
    factors = np.array([FACTORS.get(kind, 1.0) for kind in graph.kinds])
    return float(factors @ graph.numbers[:, ESTIMATE]) / 1e9


def variants(model: str, count: int, seed: int = 0, steps: int = 12) -> list[Graph]:
    """The model, then graphs that random rewrites made of it, all different."""
    rng, state = np.random.default_rng(seed), tiny_task(model).initial
    graphs = {state.hash: state.graph}
    while len(graphs) <= count:
        state = tiny_task(model).initial
        for _ in range(int(rng.integers(1, steps))):
            actions = state.valid_actions()[:-1]
            state = state.apply(*map(int, actions[rng.integers(len(actions))]))
        graphs[state.hash] = state.graph
    return list(graphs.values())


def measured(model: str, truth: Truth = by_kind, count: int = 10, width: float = 0.01, noise: float = 0.0) -> Known:
    """What would be known of one model. width: of intervals, on a logarithmic scale."""
    rng, graphs = np.random.default_rng(1), variants(model, count)
    seen = {graph.hash: KernelGraph.of(AnalyticCost(), graph) for graph in graphs}
    original, pairs = graphs[0].hash, []
    for graph in graphs:
        ratio = truth(seen[graph.hash]) / truth(seen[original]) * float(np.exp(noise * rng.standard_normal()))
        low, high = ratio * np.exp(-width / 2), ratio * np.exp(width / 2)
        pairs.append(MeasuredPair(Pair(graph.hash, original, SIZES), ratio, low, high, truth(seen[original])))
    return Known(pairs, {(graph, SIZES): [view] for graph, view in seen.items()}, 0, 0)


def together(parts: list[Known]) -> Known:
    graphs = {key: views for part in parts for key, views in part.graphs.items()}
    return Known([measured for part in parts for measured in part.pairs], graphs, 0, 0)
