"""Test the account of a model's kernels: its sums are the profiled cost, and no bound exceeds its time."""

import json

import onnx
import pytest

from rlflow.costs import NodeCost, graph_cost, profiled
from rlflow.costs.account import account, account_table, bound_ps
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.speeds import Speeds
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_reader import load_graph
from tests.commands import in_process
from tests.toys.tiny import tiny_task

SYMBOLIC = """<ir_version: 8, opset_import: ["": 17]>
symbolic (float[batch,n] x) => (float[batch,n] y) {
  y = Exp(x)
}"""
SPEEDS = Speeds(20.0, 10.0, 1.0, 2.0, 4.0, 1000.0, 256)


@pytest.fixture
def cost(monkeypatch, tmp_path) -> ProfiledCost:
    """Return a profiled cost whose kernels take time in proportion to the square of their number of nodes."""

    def timing(timed, *_) -> Timing:
        return Timing(*[1000.0 + 500 * len(timed.model.graph.node) ** 2] * 3, 3)

    monkeypatch.setattr(profiled, "time_model", timing)
    return ProfiledCost(tmp_path / "costs.sqlite")


@pytest.mark.parametrize("name", ["tiny_resnet18", "tiny_bert_base"])
def test_the_account_sums_to_the_cost_of_the_graph_and_no_bound_exceeds_its_time(cost, name):
    graph = tiny_task(name).graph
    rows = account(cost, graph, SPEEDS)
    total = NodeCost(*map(sum, zip(*(row.cost for row in rows), strict=True)))
    assert total == graph_cost(cost, graph)
    assert all(0 <= row.bound_ps <= row.cost.runtime_ps for row in rows)
    if name == "tiny_bert_base":  # with blocks of 8 channels, every kernel of the small ResNet is another
        assert any(row.count > 1 for row in rows)
    assert [row.excess_ps for row in rows] == sorted((row.excess_ps for row in rows), reverse=True)
    assert {row.first for row in rows if row.first} <= {node.name for node in graph.nodes.values()}
    lines = account_table(rows, 3).splitlines()
    assert len(lines) == 2 + 3 + 1 and lines[-1].startswith("| all kernels |") and "| 100.0% |" in lines[-1]


def test_a_kernel_in_a_loop_counts_once_for_each_run_and_a_removed_operator_is_no_kernel(cost):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x) => (float[4] y) <int64 n = {5}, bool go = {1}> {
          y = Loop (n, go, x) <body = b (int64 k, bool c, float[4] s) => (bool d, float[4] t) {
            d = Identity (c)
            t = Exp (s)
          }>
        }"""
    )
    graph = load_graph(model)
    (row,) = [row for row in account(cost, graph, SPEEDS) if row.operators == "Exp"]
    assert row.count == 5 and sum(row.cost.runtime_ps for row in account(cost, graph, SPEEDS)) == graph_cost(
        cost, graph
    ).runtime_ps
    assert "Identity" not in {row.operators for row in account(cost, graph, SPEEDS)}


def test_the_bound_is_the_larger_of_arithmetic_and_traffic():
    assert bound_ps(NodeCost(1, 10**9, 8, 1), SPEEDS) == 10**10  # at the speed of the convolution, the faster one
    assert bound_ps(NodeCost(1, 0, 10**9, 1), SPEEDS) == 4 * 10**9  # from memory
    assert bound_ps(NodeCost(1, 0, 100, 1), SPEEDS) == pytest.approx(100.0)  # from the near cache


def test_the_command_states_the_sum_the_bound_and_the_measured_latency(capsys, tmp_path):
    path = tmp_path / "costs.sqlite"
    done = in_process(
        capsys, "costs", "explain", "tiny_squeezenet1_1", "--threads", "1", "--top", "2", "--database", path, "--json",
        tmp_path / "x.json",
    )  # fmt: skip
    rows = [line for line in done.out.splitlines() if line.startswith("|")]
    assert done.code == 0 and len(rows) == 2 + 2 + 1
    written = json.loads((tmp_path / "x.json").read_text())
    count, ms, bound = (sum(one[key] for one in written["kernels"]) for key in ("count", "ms", "bound_ms"))
    assert f"{count} kernels of {ms:.3f} ms, bound {bound:.3f} ms" in done.out
    assert f"the whole model takes {written['measured_ms']:.3f} ms, measured with 1 thread" in done.out
    assert in_process(capsys, "costs", "explain", "tiny_squeezenet1_1", "--top", "0").error.startswith("pass --top")


def test_the_command_explains_a_symbolic_model_at_the_given_sizes(capsys, tmp_path):
    model, path = tmp_path / "model.onnx", tmp_path / "x.json"
    onnx.save(onnx.parser.parse_model(SYMBOLIC), model)
    words = "costs", "explain", model, "--threads", "1", "--database", tmp_path / "costs.sqlite", "--json", path
    for given, sizes in (((), {"batch": 1, "n": 128}), (("--shape", "batch=4"), {"batch": 4, "n": 128})):
        assert in_process(capsys, *words, *given).code == 0
        assert json.loads(path.read_text())["sizes"] == sizes
