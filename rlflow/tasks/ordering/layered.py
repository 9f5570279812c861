"""Layered graphs, as Topoformer's authors draw them (Gagrani et al. 2022, appendix A): like networks, of any size.

Nodes stand in layers, side by side from 0 to 1; edges lead to the next layer, spread like a cone, and some to a later
layer, roughly straight down. All nodes of a layer have one size of output and one of parameters, since many networks
are split into tiles. Where the paper leaves something open: numbers of edges and centres of cones are rounded half up;
sizes that are not positive are drawn anew; edges that are drawn twice are one edge; sizes are whole numbers of UNIT.
"""

from itertools import pairwise
from math import ceil, floor, sqrt

import numpy as np

from rlflow.costs.memory.problem import Problem

UNIT = 1000  # so many make up the paper's 1
WIDTH = (0.25, 0.5)  # W is drawn from there, for every graph
VARIABILITY = 0.75  # σ_N, of the nodes of a layer
EDGES, SKIPS = 0.2, 0.14  # ρ_E and ρ_S, densities
MEANS, DEVIATIONS, WEIGHTS = (0.5, 1.0, 3.0, 5.0), (0.5, 1.0, 1.0, 1.0), (0.3, 0.3, 0.3, 0.1)


def layered(n: int, seed: int) -> Problem:
    """A layered graph of n nodes, numbered from left to right and from the first layer to the last."""
    rng = np.random.default_rng([n, seed])
    layers = _layers(n, rng)
    edges = [edge for above, below in pairwise(layers) for edge in _between(above, below, rng)]
    edges += _skips(layers, len(edges), rng)
    memory, work = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for layer in layers:
        memory[layer], work[layer] = _size(rng), _size(rng)
    return Problem.of_nodes(memory, work, edges)


def _layers(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Algorithm 1: the nodes of each layer, from left to right."""
    target = n / ceil(sqrt(n * (1 / rng.uniform(*WIDTH) - 1)))
    fewest, most = ceil(target * (1 - VARIABILITY)), floor(target * (1 + VARIABILITY))
    layers, first = [], 0
    while first < n:
        last = min(n, first + int(rng.integers(fewest, max(fewest, most) + 1)))
        layers.append(np.arange(first, last))
        first = last
    return layers


def _between(above: np.ndarray, below: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Algorithm 2, of two neighbouring layers."""
    larger, smaller = (above, below) if len(above) >= len(below) else (below, above)
    total = _rounded(len(above) * len(below) * EDGES + (1 - EDGES) * len(larger))
    counts = np.full(len(larger), total // len(larger))  # whoever has fewest gets the next, at random: all alike, and
    counts[rng.permutation(len(larger))[: total % len(larger)]] += 1  # the rest to some
    edges = []
    for position, (node, count) in enumerate(zip(larger, counts, strict=True)):
        centre = _rounded(position * (len(smaller) - 1) / (len(larger) - 1)) if len(larger) > 1 else 0
        first = min(max(centre - (int(count) - 1) // 2, 0), len(smaller) - int(count))
        for other in smaller[first : first + count]:
            edges.append((int(node), int(other)) if larger is above else (int(other), int(node)))
    return edges


def _skips(layers: list[np.ndarray], edges: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Algorithm 3: edges over one layer or more."""
    if len(layers) < 3:
        return []
    result = []
    for _ in range(ceil(edges * SKIPS / (1 - SKIPS))):
        source = int(rng.integers(len(layers) - 2))
        target = int(rng.integers(source + 2, len(layers)))
        x = rng.uniform()
        below = min(x + 0.2 * rng.uniform(), 0.999)
        nodes = layers[source][int(x * len(layers[source]))], layers[target][int(below * len(layers[target]))]
        result.append((int(nodes[0]), int(nodes[1])))
    return result


def _size(rng: np.random.Generator) -> int:
    """From the mixture, among the positive."""
    while True:
        part = rng.choice(len(WEIGHTS), p=WEIGHTS)
        size = _rounded(UNIT * rng.normal(MEANS[part], DEVIATIONS[part]))
        if size > 0:
            return size


def _rounded(value: float) -> int:
    return floor(value + 0.5)
