"""Test the cost `memory`: it is the peak of the best order, whatever path led to a graph, and searches reduce it."""

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.irregular import NETWORKS
from rlflow.common.errors import RLFlowError
from rlflow.costs import graph_cost, unit_of
from rlflow.env.rewards import relative
from rlflow.env.state import Task
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import save_model
from rlflow.memory.allocation import kernels_of, problem_of, problem_of_kernels
from rlflow.memory.cost import FRACTIONS, MemoryCost
from rlflow.memory.order_search import optimum
from rlflow.memory.ordered_files import save_optimised
from rlflow.memory.pipeline import FAMILIES, SEARCH
from rlflow.rules.language import load_rules
from rlflow.search.base import Limits, run_search
from rlflow.zoo import load
from tests.memory.irregular import irregular, peaks, residual
from tests.suite import slow

CHANNELS, SIZE = 16, 8
ONE = CHANNELS * SIZE * SIZE * 4  # bytes of one image


def chain(joined: int = 6) -> onnx.ModelProto:
    """Return a chain of `joined` images, each a convolution of the one before.

    All images wait for a Concat, and a last convolution reduces the joined images to one.
    """
    rng = np.random.default_rng(0)
    weights = {
        "one": rng.standard_normal((CHANNELS, CHANNELS, 3, 3)), "bias": rng.standard_normal(CHANNELS),
        "all": rng.standard_normal((CHANNELS, joined * CHANNELS, 1, 1)),
    }  # fmt: skip
    nodes, last = [], "x"
    for k in range(joined):
        nodes.append(helper.make_node("Conv", [last, "one", "bias"], [f"y{k}"], pads=[1] * 4))
        last = f"y{k}"
    nodes.append(helper.make_node("Concat", [f"y{k}" for k in range(joined)], ["joined"], axis=1))
    nodes.append(helper.make_node("Conv", ["joined", "all", "bias"], ["y"]))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, CHANNELS, SIZE, SIZE]) for n in "xy")
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "chain", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def summed() -> onnx.ModelProto:
    """Return the sum of two convolutions of one image; the second convolution can add to the first one's result."""
    model = chain(2)
    nodes = [helper.make_node("Conv", ["x", "one", "bias"], [name], pads=[1] * 4) for name in ("y0", "y1")]
    nodes += [helper.make_node("Add", ["y0", "y1"], ["sum"]), helper.make_node("GlobalAveragePool", ["sum"], ["y"])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for axis in (2, 3):
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_value = 1
    return model


def test_a_convolution_adds_into_the_result_of_another_convolution():
    small = CHANNELS * 4  # bytes of the pooled result
    assert graph_cost(MemoryCost(), load_graph(summed())).runtime_ps // FRACTIONS == ONE + small


@pytest.mark.parametrize("part", ["work", "edges", "size", "maker", "kept", "reads", "inplace"])
def test_the_cache_key_of_a_segment_depends_on_every_part(part):
    problem = problem_of(load_graph(NETWORKS["unet"](width=8)))[0]
    changed = getattr(problem, part).copy()
    changed.flat[0] = not changed.flat[0] if part == "kept" else changed.flat[0] + 1
    assert replace(problem, **{part: changed}).content != problem.content == replace(problem).content


def peak(state) -> int:
    return state.objective // FRACTIONS


def task_of(model: onnx.ModelProto) -> Task:
    return Task(load_graph(model), load_rules(FAMILIES), MemoryCost())


RUN = [irregular(), residual(), load("tiny_inception_v3"), load("tiny_shufflenet_v2"), chain(), summed()]


@pytest.mark.parametrize("model", RUN)
def test_the_cost_is_the_smallest_peak_of_the_kernels_that_onnx_runtime_runs(tmp_path, model):
    """The cost equals the smallest peak of the file that an optimising session saves, where each kernel is one node."""
    save_model(model, tmp_path / "model.onnx")
    save_optimised(tmp_path / "model.onnx", tmp_path / "run.onnx", random_inputs(tmp_path / "model.onnx", 0))
    ran, graph, cost = load_graph(tmp_path / "run.onnx"), load_graph(model), MemoryCost()
    best = optimum(problem_of(ran)[0], 10)
    assert best.proved and cost.whole(ran) // FRACTIONS == best.peak
    assert optimum(problem_of_kernels(graph, kernels_of(graph)), 10).peak == cost.whole(graph) // FRACTIONS


def test_the_memory_cost_of_a_graph_is_its_peak_in_the_best_order():
    usual, best = peaks()
    assert graph_cost(MemoryCost(), load_graph(irregular())).runtime_ps // FRACTIONS == best < usual


@pytest.mark.parametrize("model", [chain(), *slow(NETWORKS["unetpp"](width=8), load("tiny_inception_v3"))])
def test_cached_segments_do_not_change_the_cost(model):
    task, rng = task_of(model), np.random.default_rng(0)
    state = task.initial
    for _ in range(12):
        matches = state.matches
        if not matches:
            break
        state = state.follow(matches[rng.integers(len(matches))])
        fresh = graph_cost(MemoryCost(), state.graph)
        assert state.cost == fresh
        assert peak(state) >= optimum(problem_of_kernels(state.graph, kernels_of(state.graph)), 1).bound


def test_the_fraction_of_a_byte_counts_how_often_the_peak_is_nearly_reached():
    """In a chain of nodes at most two results exist at a time; a longer chain is near this peak more often."""
    costs = [graph_cost(MemoryCost(), load_graph(in_a_row(n))).runtime_ps for n in (3, 4)]
    assert [cost // FRACTIONS for cost in costs] == [2 * 32, 2 * 32]
    assert 0 < costs[0] % FRACTIONS < costs[1] % FRACTIONS


def in_a_row(n: int) -> onnx.ModelProto:
    steps = "\n".join(f"y{k + 1} = Sin(y{k})" for k in range(n))
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> row (float[8] y0) => (float[8] y{n}) {{ {steps} }}'
    )


def test_a_convolution_of_a_concatenation_becomes_a_running_sum():
    """At first six images and their concatenation exist, 12 images; later the sum, one image and the next image, 3."""
    task = task_of(chain())
    result = run_search("beam", task.initial, Limits(interactions=100), **SEARCH)
    assert (peak(task.initial), peak(result.state)) == (12 * ONE, 3 * ONE)
    assert {task.rules[rule].family for rule, _ in result.actions} == {"memory"}


def test_a_wide_layer_between_two_convolutions_is_computed_in_halves():
    """The search needs five rewrites in a row whose first four gain nothing; equal losses must not crowd them out."""
    task = task_of(load("tiny_mobilenet_v2"))
    result = run_search("beam", task.initial, Limits(interactions=250), **SEARCH)
    assert peak(result.state) <= 0.75 * peak(task.initial)
    applied = {task.rules[rule].name for rule, _ in result.actions}
    assert applied >= {"conv-in-halves", "batchnorm-of-two", "clip-of-two", "depthwise-of-two"}


def test_the_strain_of_a_node_is_the_largest_memory_use_around_the_node():
    """The strain of a node is the largest memory use at a time when a tensor exists that the node makes or reads."""
    graph = load_graph(chain())
    strain = MemoryCost().strain(graph)
    worst = {graph.nodes[node].op for node, one in strain.items() if one == 12 * ONE}
    first = graph.producers[graph.nodes[graph.consumers[graph.inputs[0]][0]].outputs[0]]
    assert max(strain.values()) == 12 * ONE and "Concat" in worst and strain[first] == 12 * ONE
    assert task_of(chain()).initial.strain == strain
    assert Task(graph, load_rules(FAMILIES), _Sum()).initial.strain is None


class _Sum:
    """A cost model whose cost of a graph is the sum over the nodes, so that it has no strain."""

    reach, passes = 0, None

    def node_cost(self, graph, node):
        return MemoryCost().node_cost(graph, node)


def test_a_cost_in_bytes_is_reported_in_megabytes():
    task = task_of(chain())
    assert (task.unit, peak(task.initial) / 1e6) == ("MB", pytest.approx(task.initial.objective / task.per_unit))
    assert unit_of(_Sum()) == ("ms", 1e9)
    after = run_search("beam", task.initial, Limits(interactions=100), **SEARCH).state
    assert relative(task.initial, after, task.initial) == pytest.approx(75, abs=0.01)


def test_the_memory_cost_of_a_symbolic_graph_uses_its_sizes():
    model = chain()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    one, two = (Task(load_graph(model), load_rules(FAMILIES), MemoryCost(), sizes=({"batch": n},)) for n in (1, 2))
    assert (peak(one.initial), peak(two.initial)) == (12 * ONE, 24 * ONE)
    assert one.initial.strain.keys() == two.initial.strain.keys()


def test_the_memory_family_is_loaded_only_by_name():
    assert not [rule for rule in load_rules() if rule.family == "memory"]
    with pytest.raises(RLFlowError, match="no rule"):
        load_rules().index("conv-of-several")
