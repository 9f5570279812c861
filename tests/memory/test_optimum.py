"""Test proved optima against a search of all orders, and the result without a proof."""

from itertools import pairwise

import numpy as np
import pytest

from rlflow.graph.onnx_reader import load_graph
from rlflow.memory import order_search as module
from rlflow.memory.allocation import default_order, problem_of
from rlflow.memory.order_search import ancestors, lower_bound, optimum, segments
from rlflow.memory.problem import Problem, depth_first
from rlflow.tasks.ordering import layered
from rlflow.zoo import load
from tests.memory.small import all_orders, random_orders, small
from tests.suite import at_night, check_each


@pytest.mark.parametrize("narrow", [1, 100])  # a first beam that is bad, or good
def test_the_optimum_is_the_best_of_all_orders(narrow, monkeypatch):
    monkeypatch.setattr(module, "NARROW", narrow)

    def check(seed):
        problem = small(seed)
        peaks = problem.peaks(all_orders(problem))
        result = optimum(problem, 60)
        assert result.proved and result.peak == peaks.min() == problem.peak(result.order)
        assert lower_bound(problem) <= peaks.min()

    check_each(check, range(at_night(25, 12)))


def chained(*parts: Problem) -> Problem:
    """Return the given problems one after the other, with a node of size 0 between two of them.

    A buffer of size 5 exists all the time.
    """
    work, edges, size, maker, kept, reads, inplace, nodes, buffers = [], [], [5], [-1], [True], [], [], 0, 1
    for part in parts:
        ends = [[node, nodes + part.n] for node in range(nodes, nodes + part.n)]
        begins = [[nodes - 1, node] for node in range(nodes, nodes + part.n)] if nodes else []
        work += [*part.work, 0]
        edges += [*(part.edges + nodes).tolist(), *ends, *begins]
        size, kept = [*size, *part.size], [*kept, *part.kept]
        maker += [-1 if m < 0 else m + nodes for m in part.maker]
        reads += (part.reads + [nodes, buffers]).tolist()
        inplace += (part.inplace + [nodes, buffers]).tolist()
        nodes, buffers = nodes + part.n + 1, buffers + len(part.size)
    pairs = [np.array(rows, np.int64).reshape(-1, 2) for rows in (edges, reads, inplace)]
    return Problem(
        np.array(work), pairs[0], np.array(size), np.array(maker), np.array(kept), pairs[1], pairs[2]
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_order_consists_of_the_segments_one_after_the_other(seed):
    problem = chained(small(seed, 5), small(seed + 50, 5), small(seed + 99, 5))
    parts = segments(problem)
    assert len(parts) >= 3
    for order in random_orders(problem, 30, seed):
        usage, at = problem.usage(order[None])[0], 0
        for part in parts:
            inner = order[at : at + len(part.nodes)]
            assert sorted(inner) == part.nodes.tolist()
            number = {node: k for k, node in enumerate(part.nodes.tolist())}
            renumbered = np.array([number[node] for node in inner.tolist()])
            assert part.problem.usage(renumbered[None])[0].tolist() == usage[at : at + len(inner)].tolist()
            at += len(inner)
    result = optimum(problem, 60)
    assert result.proved and problem.peak(result.order) == result.peak
    assert result.peak <= problem.peaks(random_orders(problem, 3000, 1)).min()


@pytest.mark.parametrize("seed", range(40))
def test_segments_end_at_the_nodes_that_every_other_node_precedes_or_follows(seed):
    problem = chained(*[small(seed + k, 4) for k in range(seed % 4)]) if seed % 4 else layered(12, seed)
    above = ancestors(problem)
    ends = [node for node in range(problem.n) if (above[node] | above[:, node]).sum() == problem.n - 1]
    parts = segments(problem)
    assert sorted(np.concatenate([part.nodes for part in parts])) == list(range(problem.n))
    for one, other in pairwise(parts):
        last = [node for node in ends if node in one.nodes][-1]
        assert above[other.nodes, last].all() and all(above[last, node] for node in one.nodes if node != last)
    for part in parts:  # a part of several nodes has an end inside only if it is a chain
        assert len([node for node in ends if node in part.nodes]) in (0, 1, len(part.nodes))


def test_segments_and_bounds_of_large_problems_need_memory_in_proportion_to_their_nodes():
    n = 100_000
    chain = Problem.of_nodes([1] * n, [0] * n, list(pairwise(range(n))))
    (part,) = segments(chain)
    assert (part.nodes == np.arange(n)).all() and lower_bound(chain) == 2  # all pairs of nodes would need 10 GB


def test_the_bound_of_a_large_problem_is_no_higher(monkeypatch):
    for seed in range(8):
        problem = small(seed)
        best = lower_bound(problem)
        with monkeypatch.context() as patched:
            patched.setattr(module, "MOST_RELATED", 0)
            assert 0 < lower_bound(problem) <= best


def test_a_search_for_the_optimum_without_time_returns_an_order_and_a_bound():
    problem = layered(100, 0)
    result = optimum(problem, 0)
    assert result.bound < result.peak == problem.peak(result.order) and not result.proved
    assert result.peak <= problem.peak(depth_first(problem))


def test_the_optimum_of_a_layered_graph_of_a_hundred_nodes_is_proved():
    problem = layered(100, 1)
    result = optimum(problem, 60)
    assert result.proved and problem.peak(result.order) == result.peak


def test_the_optimum_of_a_model_is_proved_and_no_worse_than_the_default_order():
    graph = load_graph(load("tiny_inception_v3"))
    problem, ids = problem_of(graph)
    result = optimum(problem, 60)
    order = np.array([ids.index(node) for node in default_order(graph)])
    assert result.proved and problem.peak(result.order) == result.peak <= problem.peak(order)
