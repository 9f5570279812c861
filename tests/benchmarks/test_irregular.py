"""Test irregular networks: they match their papers, run, and need less memory in another order."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks import irregular
from benchmarks.irregular import NETWORKS, OUTPUTS, hrnet, randwire, training, watts_strogatz
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.memory.allocation import default_order, problem_of
from rlflow.memory.order_search import optimum

SMALL = {
    "randwire": lambda seed=0: randwire(seed, width=8, nodes=12, stages=1),
    "hrnet": lambda seed=0: hrnet(seed, width=4, stages=3, blocks=1),
    "hrnetv2": lambda seed=0: hrnet(seed, width=4, stages=3, blocks=1, joined=True),
    "training": lambda seed=0: training(seed, batch=64, width=16, layers=4),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_determines_a_network_and_the_network_runs(name):
    model = SMALL[name]()
    assert model.SerializeToString() == SMALL[name]().SerializeToString() != SMALL[name](1).SerializeToString()
    results = run(session(model, 1), random_inputs(model, 0))
    assert all(np.isfinite(result).all() and result.std() > 0 for result in results)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_loads_in_onnx_runtime(name):
    model = NETWORKS[name]()
    assert [result.name for result in session(model, 1).get_outputs()] == [result.name for result in model.graph.output]


@pytest.mark.parametrize("name", ["randwire", "hrnet", "training"])
def test_some_order_needs_less_memory_than_the_order_of_onnx_runtime(name):
    graph = load_graph(SMALL[name]())
    problem, nodes = problem_of(graph)
    position = {node: k for k, node in enumerate(nodes)}
    usual = problem.peak(np.array([position[node] for node in default_order(graph)]))
    assert optimum(problem, 5).peak < usual


def ends(sources) -> set[tuple[int, int]]:
    return {(source, node) for node, reads in enumerate(sources) for source in reads}


def test_random_wires_are_a_ring_with_about_three_quarters_of_the_wires_rewired():
    nodes, ring = 200, {(min(k, j % 200), max(k, j % 200)) for k in range(200) for j in (k + 1, k + 2)}
    rng = np.random.default_rng(0)
    assert ends(watts_strogatz(rng, nodes, rewired=0)) == ring
    wires = ends(watts_strogatz(rng, nodes))
    assert len(wires) == len(ring) == 2 * nodes and all(source < node for source, node in wires)
    assert 0.7 < len(wires - ring) / len(wires) < 0.8


def test_a_randwire_node_adds_its_inputs_and_halves_the_resolution_of_outside_inputs(monkeypatch):
    monkeypatch.setattr(irregular, "watts_strogatz", lambda rng, nodes: [[], [0], [0, 1], []])
    nodes = randwire(stages=1).graph.node
    # one in the third node, and one that joins the two nodes without readers
    assert Counter(node.op_type for node in nodes)["Add"] == 2
    assert [node.name for node in nodes if attribute(node, "strides") == [2, 2]] == [
        f"stage0.node{node}.depth/Conv" for node in (0, 3)
    ]


def attribute(node: onnx.NodeProto, name: str):
    return next((onnx.helper.get_attribute_value(one) for one in node.attribute if one.name == name), None)


@pytest.mark.parametrize("joined, enlarged", [(False, 1 + 3 + 3), (True, 1 + 3 + 6 + 3)])
def test_hrnet_exchanges_all_resolutions_that_are_read(joined, enlarged):
    """Every exchange among n resolutions enlarges n (n - 1) / 2 pairs of resolutions.

    The last exchange makes only the finest resolution, or it makes all resolutions, which are then enlarged and joined.
    """
    ops = Counter(node.op_type for node in hrnet(joined=joined).graph.node)
    assert ops["Resize"] == enlarged and ops["Concat"] == joined


def test_the_training_graph_gives_the_derivatives_of_the_loss():
    batch, layers = 8, 3
    model = training(batch=batch, width=6, layers=layers)
    weights = {one.name: numpy_helper.to_array(one).astype(float) for one in model.graph.initializer}
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((batch, 6)), rng.dirichlet(np.ones(OUTPUTS), batch)

    def loss() -> float:
        y = x
        for layer in range(layers):
            y = np.maximum(y, 0) if layer else y
            y = y @ weights[f"layer{layer}.weight"] + weights[f"layer{layer}.bias"]
        return -(target * (y - np.log(np.exp(y).sum(1, keepdims=True)))).sum() / batch

    def derivative(array: np.ndarray, at: tuple, step: float = 1e-6) -> float:
        old, values = array[at], []
        for array[at] in (old + step, old - step):
            values.append(loss())
        array[at] = old
        return (values[0] - values[1]) / (2 * step)

    names = [output.name for output in model.graph.output]
    assert sorted(names) == sorted(f"layer{k}.{what}.gradient" for k in range(layers) for what in ("weight", "bias"))
    given = {"x": x.astype(np.float32), "target": target.astype(np.float32)}
    for name, gradient in zip(names, run(session(model, 1), given), strict=True):
        array = weights[name.removesuffix(".gradient")]
        expected = np.reshape([derivative(array, at) for at in np.ndindex(array.shape)], array.shape)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6)
