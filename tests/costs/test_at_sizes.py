"""Test the costs of graphs with symbols: at one size they equal the costs with numbers; several sizes count equally."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import GraphCost, graph_cost, profiled, timing_until
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import AtSizes, at_sizes
from rlflow.costs.kernel_models import known_inputs
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.signatures import signature_text
from rlflow.costs.timing import Timing
from rlflow.env.state import Task
from rlflow.graph.ir import Graph, TensorType
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import model_hash
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.delivery import DeliveryOptions, _describe_graph, _receipt, sizes_to_measure
from rlflow.optimisation.receipt import replay
from rlflow.rules.language import load_rules
from rlflow.search.saturation.lower_bound import lower_bound
from rlflow.zoo import load
from tests.costs.graphs import model, only
from tests.toys.timed import TimedAgain
from tests.toys.tiny import tiny_task

# Two products, one of them quadratic in the length; shape arithmetic; and a pair of transposes to remove.
BODY = """g (float[batch,seq,16] x) => (float[batch,seq,seq] y)
  <int64 zero = {0}, int64 one = {1}, int64[1] axes = {0}>
  {
    t = Transpose <perm = [0, 2, 1]> (x)
    scores = MatMul(x, t)
    u = Transpose <perm = [0, 2, 1]> (scores)
    v = Transpose <perm = [0, 2, 1]> (u)
    shape = Shape(x)
    length = Gather(shape, one)
    rows = Unsqueeze(length, axes)
    target = Concat <axis = 0> (rows, rows)
    numbers = Range(zero, length, one)
    mask = Cast <to = 1> (numbers)
    wide = Expand(mask, target)
    r = Relu(v)
    y = Add(r, wide)
  }"""
SIZES = ({"batch": 1, "seq": 4}, {"batch": 1, "seq": 64}, {"batch": 2, "seq": 300})


def symbolic() -> Graph:
    return load_graph(model(BODY))


def bound(sizes: dict[str, int]) -> Graph:
    return load_graph(model(BODY), sizes)


def test_the_cost_at_one_size_equals_the_cost_with_numbers_in_place_of_symbols():
    for sizes in SIZES:
        assert graph_cost(AtSizes(AnalyticCost(), (sizes,), symbolic()), symbolic()) == graph_cost(
            AnalyticCost(), bound(sizes)
        )


def test_a_graph_without_symbols_keeps_its_cost_model():
    cost = AnalyticCost()
    assert at_sizes(cost, ({},), bound(SIZES[0])) is cost
    known = at_sizes(cost, SIZES, symbolic())
    assert at_sizes(known, SIZES, symbolic()) is known
    assert Task(symbolic(), load_rules(), cost, sizes=SIZES).cost.model is cost


def test_the_cost_over_several_sizes_is_the_geometric_mean_and_weighs_sizes_equally():
    graphs = [bound(sizes) for sizes in SIZES]
    totals = [graph_cost(AnalyticCost(), each).runtime_ps for each in graphs]
    assert max(totals) > 10 * min(totals)  # so that the largest size would dominate an arithmetic mean
    original = symbolic()
    cost = AtSizes(AnalyticCost(), SIZES, original)
    mean = math.exp(np.mean(np.log(totals)))
    assert graph_cost(cost, original).runtime_ps == pytest.approx(mean, rel=1e-6)
    launches = graph_cost(AnalyticCost(), graphs[0]).launches
    assert graph_cost(cost, original).launches == launches  # the number is the same at every size
    product = only(original, "MatMul")
    shares = [
        AnalyticCost().node_cost(each, only(each, "MatMul")).runtime_ps / total
        for each, total in zip(graphs, totals, strict=True)
    ]
    assert cost.node_cost(original, product).runtime_ps == pytest.approx(mean * np.mean(shares), rel=1e-6)


def test_the_order_of_sizes_does_not_change_the_cost_of_a_body_whose_runs_depend_on_them():
    text = """g (float[4] start, float[seq, 4] x) => (float[4] y, float[seq, 4] z) {
        y, z = Scan <num_scan_inputs = 1, body = step (float[4] a, float[4] b) => (float[4] c, float[4] d)
            { c = Add(a, b)  d = Tanh(c) }> (start, x) }"""
    sizes = [{"seq": 16}, {"seq": 512}]
    graph, cost = load_graph(model(text)), AnalyticCost()
    alone = [graph_cost(cost, graph.at(size)).runtime_ps for size in sizes]
    for order in (sizes, sizes[::-1]):
        both = graph_cost(AtSizes(cost, order, graph), graph).runtime_ps
        assert both == pytest.approx(math.sqrt(math.prod(alone)), rel=1e-3)


def test_repeated_timings_update_the_cost_of_the_original_at_each_size():
    model, original = TimedAgain(), symbolic()
    cost = AtSizes(model, SIZES, original)
    before = graph_cost(cost, original)
    cost.time_again("any")
    assert before != graph_cost(cost, original) == graph_cost(AtSizes(model, SIZES, original), original)


def test_a_cost_updated_by_difference_equals_the_cost_counted_anew():
    task = Task(symbolic(), load_rules(), AnalyticCost(), sizes=SIZES)
    rng, state = np.random.default_rng(0), task.initial
    for _ in range(12):
        matches = state.matches
        if not matches:
            break
        state = state.follow(matches[rng.integers(len(matches))])
        assert state.graph_cost.total == GraphCost.of(task.cost, state.graph).total
    assert state.graph.hash != task.graph.hash


def test_a_graph_is_bound_once_for_every_size(monkeypatch):
    asked, look = [], Graph.at
    monkeypatch.setattr(Graph, "at", lambda graph, sizes: asked.append(sizes) or look(graph, sizes))
    original = symbolic()
    graph_cost(AtSizes(AnalyticCost(), SIZES, original), original)
    assert asked == list(SIZES)


@pytest.fixture
def clockwork(monkeypatch) -> list[tuple]:
    """Replace timings by made-up ones; return the list of timed models with their given inputs."""
    models = []

    def timing(timed, threads, budget_ms):
        models.append((timed.model, timed.given))
        return Timing(*[1000.0 + 500 * len(timed.model.graph.node)] * 3, 3)

    monkeypatch.setattr(profiled, "time_model", timing)
    return models


def test_fused_groups_are_found_once_for_every_size(tmp_path, monkeypatch, clockwork):
    made, groups = [], profiled.Groups
    monkeypatch.setattr(profiled, "Groups", lambda *parts: made.append(parts) or groups(*parts))
    model, original = ProfiledCost(tmp_path / "costs.sqlite"), symbolic()
    graph_cost(AtSizes(model, SIZES, original), original)
    assert len(made) == len(SIZES) and not model.fallbacks and clockwork


def test_a_cost_at_sizes_shares_the_deadline_of_its_model(tmp_path):
    model, original = ProfiledCost(tmp_path / "costs.sqlite"), symbolic()
    cost = AtSizes(model, SIZES, original)
    with timing_until(cost, time.monotonic()):
        with pytest.raises(profiled.TimeIsUp):
            graph_cost(cost, original)
        assert model.deadline == cost.deadline < math.inf
    assert model.deadline == math.inf


# -- what follows from sizes -----------------------------------------------------------------------


def test_computed_shapes_are_given_to_timed_kernels_as_inputs(tmp_path, clockwork):
    original = symbolic()
    graph_cost(AtSizes(ProfiledCost(tmp_path / "costs.sqlite"), SIZES[2:], original), original)
    given = {m.graph.node[0].op_type: arrays for m, arrays in clockwork}
    by_operator = {op: [array.tolist() for array in arrays.values()] for op, arrays in given.items()}
    assert by_operator["Expand"] == [[300, 300]] and by_operator["Concat"] == [[300]] and by_operator["Relu"] == []
    (expand,) = [m for m, _ in clockwork if m.graph.node[0].op_type == "Expand"]
    assert len(expand.graph.input) == 2 and not expand.graph.initializer


def test_operators_with_computed_shapes_run_by_themselves(tmp_path):
    """The shape operand of an Expand must fit its input: a randomly drawn target such as [0, 1] does not."""
    cost, original = ProfiledCost(tmp_path / "costs.sqlite", budget_ms=1), symbolic()
    assert graph_cost(AtSizes(cost, SIZES[1:2], original), original).runtime_ps > 0
    assert not cost.fallbacks


def test_known_content_is_part_of_a_signature_and_old_signatures_stay_unchanged():
    assert signature_text((TensorType(1, (2, 3)), True)) == "((1,(2,3)),True)"
    assert signature_text(TensorType(7, (2,), (300, 4))) == "(7,(2),(300,4))"
    view = symbolic().at(SIZES[0])
    assert known_inputs(view, (only(view, "Relu"),)) == {}


def test_a_bound_requires_fixed_sizes():
    with pytest.raises(RLFlowError, match="--shape batch=SIZE --shape seq=SIZE --fix"):
        lower_bound(Task(symbolic(), load_rules(), AnalyticCost(), sizes=SIZES[:1]))


# -- delivery --------------------------------------------------------------------------------------


def test_sizes_are_named_by_the_symbols_that_differ():
    task = Task(symbolic(), load_rules(), AnalyticCost(), sizes=SIZES[:2])
    assert sizes_to_measure(task, {}) == {"seq = 4": {"x": (1, 4, 16)}, "seq = 64": {"x": (1, 64, 16)}}
    assert list(sizes_to_measure(replace(task, sizes=SIZES[1:]), {})) == ["batch = 1, seq = 64", "batch = 2, seq = 300"]
    assert list(sizes_to_measure(replace(task, sizes=SIZES[:1]), {})) == ["batch = 1, seq = 4"]
    static = Task(bound(SIZES[0]), load_rules(), AnalyticCost())
    assert sizes_to_measure(static, SIZES[0]) == {"": SIZES[0]}


def test_peak_memory_is_reported_at_the_largest_size():
    def peak(*sizes: dict) -> int:
        task = Task(symbolic(), load_rules(), AnalyticCost(), sizes=sizes)
        return _describe_graph(task, task.graph, task.original_cost)["peak_memory_bytes"]

    one = [peak(sizes) for sizes in SIZES]
    assert one[0] < one[1] < one[2] == peak(*SIZES) == peak(*reversed(SIZES))


def test_a_receipt_begins_with_the_preparation_of_the_model():
    whole = tiny_task("tiny_bert_base")
    action = tuple(map(int, whole.initial.valid_actions()[0]))
    prepared = whole.initial.apply(*action)
    task = Task(prepared.graph, whole.rules, AnalyticCost(), preparation=(action,), loaded=whole.graph)
    second = tuple(map(int, task.initial.valid_actions()[0]))
    chosen = Candidate("greedy", task.initial.apply(*second), [second], 1, 0.0)
    options = DeliveryOptions([0], 1e-4, measure_seconds=0.0, sessions=1, threads=1, seed=0)
    receipt = _receipt(task, chosen, None, [], {}, options, model_hash(chosen.state.graph))
    assert [(one["xfer_id"], one["location"]) for one in receipt["actions"]] == [action, second]
    assert receipt["original_hash"] == whole.graph.hash != task.graph.hash
    assert task.original_cost == whole.initial.cost
    assert replay(receipt, load("tiny_bert_base")).hash == chosen.state.graph.hash
