"""Test the cost of quantised models: an operator and the borders around it are one kernel, as in ONNX Runtime."""

from collections import Counter
from zlib import crc32

import onnx
import pytest

from rlflow.costs import EXACT, Spread
from rlflow.costs.analytic import VIEWS
from rlflow.costs.groups import Groups
from rlflow.costs.kernel_layout import BORDERS, Layout, in_channels_last, optimised
from rlflow.costs.kernel_models import Timed, group_model
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.timing import time_model
from rlflow.env.state import Task
from rlflow.graph.ir import Graph, Node
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.language import load_rules
from tests.costs.graphs import check_is_local
from tests.toys.quantised import quantised_model


@pytest.fixture(scope="module")
def quantised(tmp_path_factory) -> Graph:
    return load_graph(quantised_model(tmp_path_factory.mktemp("quantised")))


def groups(graph: Graph) -> list[tuple]:
    them = Groups(graph, Layout(graph))
    return [group for node in graph.nodes.values() if not node.constant and (group := them.of(node))]


def test_a_quantised_operator_and_its_borders_are_one_kernel(quantised):
    """Views are not counted, nor transposes, which ONNX Runtime adds where it needs the channels last."""
    aside = VIEWS | {"Transpose"}
    charged = Counter(operator(group) in BORDERS for group in groups(quantised) if operator(group) not in aside)
    ran = [node.op_type for node in optimised(to_model(quantised)).graph.node if node.op_type not in aside]
    assert charged == Counter(op in BORDERS for op in ran) == {False: 8, True: 3}


def operator(group: tuple[Node, ...]) -> str:
    """Return the operator between the borders of a group, or a border if the group has no other operator."""
    return next((node.op for node in group if node.op not in BORDERS), group[0].op)


def test_a_quantised_convolution_is_timed_with_channels_last(quantised):
    (first, *_) = [group for group in groups(quantised) if operator(group) == "Conv"]
    model = group_model(quantised, first)
    assert [node.op_type for node in optimised(model).graph.node] == ["Transpose", "QLinearConv", "Transpose"]
    timed = in_channels_last(model).graph
    sizes = [[dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in (*timed.input, *timed.output)]
    assert [node.op_type for node in timed.node] == ["QLinearConv"] and sizes == [[1, 64, 64, 16]] * 2
    assert time_model(Timed(in_channels_last(model), optimise=False), 1, 1.0).median > 0


def test_an_operator_that_a_rewrite_moves_out_of_its_borders_is_charged_as_floats(quantised, pseudo):
    """The rewrite moves the bias from the convolution into an Add behind it, so ONNX Runtime computes with floats."""
    task = Task(quantised, load_rules(), pseudo)
    xfer_id = [rule.name for rule in task.rules].index("conv-bias-out")
    graph = task.initial.apply(xfer_id, 0).graph
    (parted,) = [group for group in groups(graph) if {"Conv", "Add"} <= {node.op for node in group}]
    ran = {node.op_type for node in optimised(group_model(graph, parted)).graph.node}
    assert "Conv" in ran and "QLinearConv" not in ran


def test_a_border_with_another_reader_is_charged_by_itself():
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, float[4] z) => (uint8[4] q, float[4] y)
    <float s = {0.5}, uint8 zero = {0}> { a = Add(x, z) q = QuantizeLinear(a, s, zero) y = Relu(a) }"""
    result = groups(load_graph(onnx.parser.parse_model(text)))
    assert [[node.op for node in group] for group in result] == [["Add"], ["QuantizeLinear"], ["Relu"]]


def test_the_incrementally_updated_cost_equals_the_cost_counted_anew(quantised, pseudo):
    check_is_local(pseudo, quantised)


@pytest.fixture
def pseudo(tmp_path, monkeypatch):
    def runtime(self, name, build) -> tuple[int, Spread]:
        return 1000 * (100 + crc32(name.encode()) % 100_000), EXACT

    monkeypatch.setattr(ProfiledCost, "_runtime", runtime)
    return ProfiledCost(tmp_path / "costs.sqlite")
