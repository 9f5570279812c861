"""Test the analytic cost: FLOPs equal hand counts, totals do not depend on the path, signatures not on names."""

import pytest

from rlflow.costs import COSTS, FREE, GraphCost, NodeCost, graph_cost, peak_memory, runtime_ms
from rlflow.costs.analytic import AnalyticCost, Machine, calibrated
from rlflow.costs.database import TimingDatabase
from rlflow.costs.signatures import signature, signature_text
from rlflow.costs.timing import Timing
from tests.commands import printed
from tests.costs.graphs import conv, graph, only, swap

FLOPS = {
    # each count: 2 × outputs × channels × kernel, plus one for each bias
    "Conv": ("(float[1,4,8,8] x, float[6,4,3,3] w, float[6] b) => (float[1,6,6,6] y) {y = Conv(x, w, b)}", 216 * 73),
    "grouped Conv": ("(float[1,4,8,8] x, float[6,2,3,3] w) => (float[1,6,6,6] y) {y = Conv<group=2>(x, w)}", 216 * 36),
    "ConvTranspose": ("(float[1,4,5,5] x, float[4,3,2,2] w) => (float[1,3,6,6] y) {y = ConvTranspose(x, w)}", 2400),
    "MatMul": ("(float[7,2,3] a, float[3,5] b) => (float[7,2,5] y) {y = MatMul(a, b)}", 2 * 70 * 3),
    "Gemm": ("(float[3,2] a, float[5,3] b, float[5] c) => (float[2,5] y) {y = Gemm<transA=1,transB=1>(a,b,c)}", 70),
    "MaxPool": ("(float[1,2,4,4] x) => (float[1,2,3,3] y) {y = MaxPool<kernel_shape=[2,2]>(x)}", 18 * 4),
    "GlobalAveragePool": ("(float[1,2,4,4] x) => (float[1,2,1,1] y) {y = GlobalAveragePool(x)}", 32),
    "Add": ("(float[2,3] a, float[3] b) => (float[2,3] y) {y = Add(a, b)}", 6),
    "Sum": ("(float[2,3] a, float[3] b, float[3] c) => (float[2,3] y) {y = Sum(a, b, c)}", 12),
    "ReduceMean": ("(float[2,3] a) => (float[1,1] y) {y = ReduceMean(a)}", 6),
    "Softmax": ("(float[2,3] a) => (float[2,3] y) {y = Softmax(a)}", 30),
    "LayerNormalization": ("(float[2,3] a, float[3] s) => (float[2,3] y) {y = LayerNormalization(a, s)}", 48),
    "Einsum": ('(float[2,3] a, float[3,5] b) => (float[2,5] y) {y = Einsum<equation="ij,jk->ik">(a, b)}', 60),
    "Transpose": ("(float[2,3] a) => (float[3,2] y) {y = Transpose(a)}", 0),
    "RNN": ("(float[7,1,4] x, float[1,3,4] w, float[1,3,3] r) => (float[7,1,1,3] y) {y = RNN(x, w, r)}", 294),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FLOPS))
def test_flops_equal_the_count_by_hand(name):
    body, expected = FLOPS[name]
    assert graph_cost(AnalyticCost(), graph("g " + body)).flops == expected


def test_runtime_is_the_larger_of_arithmetic_and_traffic_plus_the_launch():
    body = "g (float[2,3] a, float[3,5] b) => (float[2,5] y) {y = MatMul(a, b)}"
    moved = 4 * (6 + 15 + 10)
    assert graph_cost(AnalyticCost(Machine(flop=1, byte=10, launch=7)), graph(body)) == (10 * moved + 7, 60, moved, 1)
    assert graph_cost(AnalyticCost(Machine(flop=100, byte=1, launch=7)), graph(body)).runtime_ps == 6007
    assert runtime_ms(NodeCost(1_500_000_000, 0, 0, 0)) == 1.5


def test_the_constants_of_a_fast_machine_keep_their_digits(tmp_path):
    database = TimingDatabase(tmp_path / "costs.sqlite")
    for name, ns in {"flop": 0.000123, "byte": 0.00234, "launch": 812.3}.items():  # 8 TFLOP/s, 430 GB/s
        database.replace(f"roofline: {name}", 1, Timing(ns, ns, ns, 3))
    machine = calibrated(database, 1)
    assert machine == pytest.approx((0.123, 2.34, 812_300))
    product = graph("g (float[64,64] a, float[64,64] b) => (float[64,64] y) {y = MatMul(a, b)}")
    cost = graph_cost(AnalyticCost(machine), product)
    assert cost.runtime_ps == round(3 * 4 * 64**2 * 2.34) + 812_300
    assert all(isinstance(constant, int) for constant in Machine())  # the analytic cost stays exact


def test_a_gather_reads_only_the_rows_that_are_picked():
    body = "g (float[1000,8] table, int64[2] i) => (float[2,8] y) {y = Gather(table, i)}"
    assert graph_cost(AnalyticCost(), graph(body)).bytes == 64 + 64 + 16


def test_views_and_constant_expressions_are_free():
    body = "g (float[2,3] x) => (float[3,2] y) <int64[2] s = {3,2}> {t = Identity(s) y = Reshape(x, t)}"
    assert graph_cost(AnalyticCost(), graph(body)) == FREE


def test_unknown_operators_and_subgraphs_have_a_cost():
    unknown = graph("g (float[2] x) => (float[2] y) {t = com.microsoft.NoSuchThing(x) y = Relu(t)}")
    cost = graph_cost(AnalyticCost(), unknown)
    assert cost.launches == 2 and cost.bytes == 0  # without the shape of t no bytes are counted
    named_alike = "g (float[2] x) => (float[2] y) {y = elsewhere.LSTM(x)}"
    assert graph_cost(AnalyticCost(), graph(named_alike)).flops == 2
    branch = "g (bool c, float[2] x) => (float[2] y) {y = If(c)<then_branch=a()=>(float[2] p){p=Relu(x)},"
    branch += "else_branch=b()=>(float[2] q){q=Neg(x)}>}"
    assert graph_cost(AnalyticCost(), graph(branch)).launches == 3  # the If and one operator in each branch


def test_a_total_updated_by_difference_equals_the_total_counted_anew():
    model = AnalyticCost()
    before = conv("a = Conv(x, w, b) t = Relu(a) y = Neg(t)")
    start = GraphCost.of(model, before)
    cost, current = start, before
    for op, new in (("Relu", "Softmax"), ("Neg", "Sigmoid"), ("Softmax", "Relu"), ("Sigmoid", "Neg")):
        current = swap(current, op, new)
        cost = cost.after(model, current, current.touched)
        assert cost.total == graph_cost(model, current) and cost.nodes.keys() == current.nodes.keys()
    assert cost.total == start.total


def test_signatures_ignore_names_and_distinguish_inputs_attributes_and_constants():
    def sign(nodes, out="y"):
        g = conv(nodes, out)
        return signature(g, only(g, "Conv"))

    first = sign("y = Conv(x, w, b)")
    assert first == sign("z = Conv(x, w, b)", "z")
    assert first != sign("y = Conv(x, w)")
    assert first != sign("y = Conv<strides=[2,2]>(x, w, b)")

    def power(exponent, constant=True):
        e = f"<float e = {{{exponent}}}>" if constant else ""
        g = graph(f"g (float[2] x{'' if constant else ', float e'}) => (float[2] y) {e} {{y = Pow(x, e)}}")
        return signature(g, only(g, "Pow"))

    assert power(2) == power(2) != power(3)
    assert power(2) != power(0, constant=False)


def test_signatures_are_the_same_in_every_process():
    program = (
        "from tests.costs.graphs import *; from rlflow.costs.signatures import *;"
        "g = conv('a = Conv<pads=[0,0,0,0]>(x, w, b) y = Relu(a)');"
        "print([signature_text(signature(g, g.nodes[n])) for n in g.order])"
    )

    g = conv("a = Conv<pads=[0,0,0,0]>(x, w, b) y = Relu(a)")
    here = [signature_text(signature(g, g.nodes[n])) for n in g.order]
    assert printed(program, "1") == printed(program, "2") == f"{here}\n"


def test_peak_memory_counts_the_tensors_that_are_alive_at_once():
    # x (16 bytes) lives until d; a, b and c have 16 each; at the peak x, b, c or x, c, d are alive.
    g = graph("g (float[4] x) => (float[4] d) {a = Neg(x) b = Abs(a) c = Exp(b) d = Add(c, x)}")
    assert peak_memory(g) == 48


@pytest.mark.parametrize("name", COSTS)
def test_every_registered_cost_opens_the_same_way(name, tmp_path):
    model = COSTS.get(name).open(threads=1, database=tmp_path / "costs.sqlite")
    assert isinstance(model.reach, int) and model.reach >= 0
    g = conv("a = Conv(x, w, b) y = Relu(a)")
    cost = graph_cost(model, g)
    assert all(isinstance(value, int) for value in cost) and cost.runtime_ps > 0
    assert cost == graph_cost(model, g)
