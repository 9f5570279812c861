"""The task `ordering`: find an order of the nodes with a low peak of memory.

The task is one-shot: a decision is an order of all nodes (`Orders`). A problem is made from an ONNX model or from a
text. For a model the peak is counted in bytes, and the control is the default order of ONNX Runtime. A text such as
`layered-500-0` names a random graph, here with 500 nodes and seed 0.

`layered` draws random graphs as the authors of Topoformer do (Gagrani et al. 2022, appendix A). Nodes form layers. A
node has edges to a block of neighbouring nodes in the next layer, and some edges skip to a later layer. All nodes of a
layer have the same output size and the same parameter size. The paper leaves some details open. Here numbers of edges
and centres of blocks are rounded half up, sizes that are not positive are drawn again, duplicate edges count once, and
sizes are multiples of 1 / UNIT.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, floor, sqrt

import numpy as np
from gymnasium.spaces import MultiDiscrete

from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec, Evaluation, GraphArrays
from rlflow.graph.custom_ops import load as load_libraries
from rlflow.graph.typical import load_at
from rlflow.memory.allocation import default_order, problem_of
from rlflow.memory.order_search import lower_bound, lowered, probable
from rlflow.memory.problem import Problem, Rows, by_priority, depth_first
from rlflow.tasks.plain import ModelSpec, OneShotTask

# The names in brackets are the symbols of the paper's appendix A.
UNIT = 1000  # size of a problem that stands for a size of 1 in the paper
WIDTH = (0.25, 0.5)  # range of the relative width of a graph (W), drawn for each graph
VARIABILITY = 0.75  # largest deviation of a layer's number of nodes from its target, as a share of the target (σ_N)
EDGES, SKIPS = 0.2, 0.14  # density of edges between two layers (ρ_E), and share of edges that skip layers (ρ_S)
# Means, standard deviations and probabilities of the normal distributions whose mixture gives the sizes.
MEANS, DEVIATIONS, WEIGHTS = (0.5, 1.0, 3.0, 5.0), (0.5, 1.0, 1.0, 1.0), (0.3, 0.3, 0.3, 0.1)


def layered(n: int, seed: int) -> Problem:
    """Draw a layered random graph. Nodes are numbered layer by layer, and in each layer from left to right.

    Args:
      n: the number of nodes.
      seed: the seed of the random numbers.
    """
    rng = np.random.default_rng([n, seed])
    layers = _layers(n, rng)
    edges = [edge for above, below in pairwise(layers) for edge in _between(above, below, rng)]
    edges += _skips(layers, len(edges), rng)
    memory, work = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for layer in layers:
        memory[layer], work[layer] = _size(rng), _size(rng)
    return Problem.of_nodes(memory, work, edges)


def _layers(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the node numbers of each layer, drawn by algorithm 1 of the paper, int64 [nodes of the layer] each."""
    target = n / ceil(sqrt(n * (1 / rng.uniform(*WIDTH) - 1)))
    fewest, most = ceil(target * (1 - VARIABILITY)), floor(target * (1 + VARIABILITY))
    layers, first = [], 0
    while first < n:
        last = min(n, first + int(rng.integers(fewest, max(fewest, most) + 1)))
        layers.append(np.arange(first, last))
        first = last
    return layers


def _between(above: np.ndarray, below: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return (node, later node) edges between two neighbouring layers, drawn by algorithm 2 of the paper.

    Args:
      above: the nodes of the earlier layer.
      below: the nodes of the later layer.
      rng: the random generator.
    """
    larger, smaller = (above, below) if len(above) >= len(below) else (below, above)
    total = _rounded(len(above) * len(below) * EDGES + (1 - EDGES) * len(larger))
    # The edges are divided equally among the nodes of the larger layer; random nodes get one edge of the rest.
    counts = np.full(len(larger), total // len(larger))
    counts[rng.permutation(len(larger))[: total % len(larger)]] += 1
    edges = []
    for position, (node, count) in enumerate(zip(larger, counts, strict=True)):
        centre = _rounded(position * (len(smaller) - 1) / (len(larger) - 1)) if len(larger) > 1 else 0
        first = min(max(centre - (int(count) - 1) // 2, 0), len(smaller) - int(count))
        for other in smaller[first : first + count]:
            edges.append((int(node), int(other)) if larger is above else (int(other), int(node)))
    return edges


def _skips(layers: list[np.ndarray], edges: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return (node, later node) edges that skip at least one layer, drawn by algorithm 3 of the paper.

    Args:
      layers: the nodes of each layer.
      edges: the number of edges between neighbouring layers.
      rng: the random generator.
    """
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
    """Draw a positive size, in 1 / UNIT, from the mixture of normal distributions of MEANS, DEVIATIONS and WEIGHTS."""
    while True:
        part = rng.choice(len(WEIGHTS), p=WEIGHTS)
        size = _rounded(UNIT * rng.normal(MEANS[part], DEVIATIONS[part]))
        if size > 0:
            return size


def _rounded(value: float) -> int:
    return floor(value + 0.5)


FEATURES = 8  # number of columns of `features`


class Orders:
    """An instance of the task, as `rlflow.common.task.Sequencing` describes it.

    Attributes:
      problem: the ordering problem.
      usual: int64 [n], the order without optimisation, which `control` returns.
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
        """The SHA-256 hash of all arrays of the problem, in hexadecimal digits."""
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
        """Repair invalid decisions, and evaluate the peak of each order.

        Args:
          decisions: int [B, n], lists of nodes.

        Returns:
          The peaks in the problem's unit, int64 [B]; the orders after repair, int64 [B, n]; and the number of positions
          that the repair changed in each order, int64 [B].
        """
        decisions = np.asarray(decisions, np.int64)
        orders = self.repaired(decisions)
        return Evaluation(self.problem.peaks(orders), orders, (orders != decisions).sum(axis=1))

    def repaired(self, decisions: np.ndarray) -> np.ndarray:
        """Return decisions, int64 [B, n], after repair; valid orders are returned unchanged.

        An invalid decision becomes the order that always runs the ready node that comes first in the decision. A node
        that the decision lacks runs only when no other node is ready.
        """
        n, wrong = self.problem.n, ~self.problem.are_orders(decisions)
        if not wrong.any():
            return decisions
        named = np.full((wrong.sum(), n), 2 * n)  # first position of each node in the decision; 2 n if missing
        for position in range(n - 1, -1, -1):
            named[np.arange(len(named)), decisions[wrong, position]] = position
        result = decisions.copy()
        result[wrong] = by_priority(self.problem, -named.astype(np.float64))
        return result

    def control(self) -> np.ndarray:
        return self.usual

    def lower_bound(self) -> int:
        return lower_bound(self.problem)

    def random_instance(self, n: int, seed: int) -> "Orders":
        problem = layered(n, seed)
        return Orders(problem, depth_first(problem))

    def beam_search(self, priorities: np.ndarray, width: int, order: np.ndarray | None = None) -> np.ndarray:
        if order is None:
            return probable(self.problem, priorities, width)
        return lowered(self.problem, priorities, width, order)


def features(problem: Problem) -> np.ndarray:
    """Return the features of the nodes, float32 [n, 8], with each column divided by its maximum.

    Columns 0 to 3 are the size of the buffers that the node makes, its `work`, and its numbers of predecessors and of
    successors. Columns 4 and 5 are the lengths, in edges, of the shortest and the longest path from a node without
    predecessors. Columns 6 and 7 are the same lengths to a node without successors.
    """
    order = depth_first(problem)
    columns = np.stack([
        problem.made, problem.work, problem.before.counts, problem.after.counts,
        *_steps(order, problem.before), *_steps(order[::-1], problem.after),
    ], axis=1)  # fmt: skip
    return (columns / np.maximum(columns.max(axis=0), 1)).astype(np.float32)


def _steps(order: np.ndarray, sources: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the shortest and the longest path to each node from a node without sources, int64 [n] each.

    Args:
      order: int64 [n], all nodes, each after its sources.
      sources: for each node the nodes from which an edge leads to it.
    """
    fewest, most = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    for node in order:
        others = sources[node]
        if len(others):
            fewest[node], most[node] = fewest[others].min() + 1, most[others].max() + 1
    return fewest, most


LAYERED = re.compile(r"layered-([1-9]\d{0,4})-(\d{1,9})")  # layered-NODES-SEED
MB = 1e6  # bytes


@dataclass(frozen=True)
class OrderingSpec(ModelSpec):
    """The specification of an ordering problem; see `rlflow.common.task.TaskSpec`.

    Attributes:
      source: the path of an ONNX file, or of a file that contains "layered-N-SEED" (a layered graph of N nodes).
      max_steps: the option `env.max_steps`, which has no effect here.
      shapes, custom_ops: see `ModelSpec`.
    """

    def make_task(self) -> OneShotTask:
        """Load the ordering problem of an ONNX file, or draw the layered graph that the text in the source file names.

        The problem of an ONNX file is in bytes, and its control is the default order of ONNX Runtime. The control of a
        layered graph is the depth-first order.
        """
        if self.source.endswith(".onnx"):
            load_libraries(self.custom_ops)
            graph, sizes = load_at(self.source, dict(self.shapes))
            problem, nodes = problem_of(graph.at(sizes[0]))
            position = {node: k for k, node in enumerate(nodes)}
            return OneShotTask(Orders(problem, np.array([position[node] for node in default_order(graph)])), "MB", MB)
        named = LAYERED.fullmatch(self.problem)
        if not named:
            raise RLFlowError(f"cannot order '{self.problem}': pass an ONNX file or a graph such as layered-500-0")
        problem = layered(int(named[1]), int(named[2]))
        return OneShotTask(Orders(problem, depth_first(problem)), "units", UNIT)
