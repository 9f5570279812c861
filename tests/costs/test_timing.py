"""Test how often `time_model` runs a kernel, on a clock that only runs advance, and which kernels share a timing."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from rlflow.costs import kernel_models, timing
from rlflow.costs.kernel_layout import optimised
from rlflow.costs.kernel_models import Timed, empty_model, group_model
from rlflow.costs.signatures import group_signature, kernel_digest
from rlflow.costs.timing import MIN_REPEATS, SESSIONS, SETS, WARM_UPS, time_model
from rlflow.graph import onnx_writer
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session


class Runs:
    """Sessions whose runs only advance a clock; `of` returns what `time_model` did with them.

    Attributes:
      log: ("write" or "run", number of the session, number of the set) in order; the set of a first run is -1.
    """

    def __init__(self):
        self.log: list[tuple[str, int, int]] = []
        self.milliseconds, self.nanoseconds, self.sessions, self.sets, self.result = 0.0, 0, 0, 0, None

    def session(self, *_, **__) -> int:
        self.sessions += 1
        return self.sessions - 1

    def run(self, session: int, turn: int = -1) -> list[np.ndarray]:
        self.log.append(("run", session, turn))
        self.nanoseconds += round(1e6 * self.milliseconds)
        return [self.result]

    def turn(self, session: int, *_) -> timing._Turn:
        turn, self.sets = self.sets, self.sets + 1
        return timing._Turn(
            lambda: self.log.append(("write", session, turn)), lambda: self.run(session, turn), [self.result]
        )

    def of(self, each: float, nbytes: int = 8) -> "Runs":
        """Time a kernel whose run takes `each` milliseconds and writes `nbytes` bytes, with a budget of 20 ms."""
        self.log.clear()
        self.milliseconds, self.sessions, self.sets, self.result = each, 0, 0, np.zeros(nbytes, np.uint8)
        assert time_model(Timed(empty_model()), 1, 20.0).median == each * 1e6
        return self

    def timed(self) -> list[tuple[int, int]]:
        """Return (session, set) of each timed run; check that each follows the writing of its inputs."""
        written = [k for k, (what, *_) in enumerate(self.log) if what == "write"]
        assert all(self.log[k + 1] == ("run", *self.log[k][1:]) for k in written)
        return [self.log[k][1:] for k in written]


@pytest.fixture
def runs(monkeypatch) -> Runs:
    result = Runs()
    clock = SimpleNamespace(
        perf_counter=lambda: result.nanoseconds / 1e9, perf_counter_ns=lambda: result.nanoseconds,
        thread_time_ns=lambda: result.nanoseconds,
    )  # fmt: skip
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(timing, "session", result.session)
    monkeypatch.setattr(timing, "_results", lambda session, inputs: result.run(session))
    monkeypatch.setattr(timing._Turn, "of", result.turn)
    return result


def test_a_kernel_slower_than_its_budget_runs_once_before_the_timed_runs(runs):
    done = runs.of(150)
    assert done.sessions == 1 and len(done.timed()) == MIN_REPEATS
    assert [what for what, *_ in done.log].count("run") == 1 + MIN_REPEATS


def test_a_kernel_gets_no_more_sessions_than_runs_in_its_budget(runs):
    assert runs.of(6).sessions == 3
    untimed = len(runs.log) - 2 * len(runs.timed())
    assert untimed >= runs.sessions * WARM_UPS


def test_a_fast_kernel_is_warmed_up_and_timed_in_all_sessions(runs):
    done = runs.of(0.1)
    assert done.sessions == SESSIONS == len({session for session, _ in done.timed()})
    assert len(done.timed()) * 0.1 >= 20
    before = [session for what, session, _ in done.log[: done.log.index(("write", 0, 0))]]
    assert all(before.count(session) >= WARM_UPS for session in range(SESSIONS))


@pytest.mark.parametrize(
    ("milliseconds", "nbytes", "sets"),
    [(0.1, 1_000_000, 16), (0.1, 100_000, SETS), (1, 1_000_000, 16), (2, 1_000_000, 10), (50, 1_000_000, 3)]
    + [(0.1, 64_000_000, 3), (50, 64_000_000, 1)],
)
def test_the_timed_runs_of_one_set_of_arrays_have_the_runs_of_all_other_sets_between_them(
    runs, milliseconds, nbytes, sets
):
    """Check the order of the sets: an output has then left a cache that is smaller than all sets together."""
    turns = [turn for _, turn in runs.of(milliseconds, nbytes).timed()]
    assert turns == [k % sets for k in range(len(turns))] and len(turns) >= sets


def test_a_turn_has_arrays_of_its_own_and_writes_its_inputs_before_a_run():
    running = session(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x) => (float[2,3] y, string[2,3] z) { y = Neg (x) z = Cast <to = 8> (x) }"""),
        1,
    )
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    outputs = timing._results(running, inputs)
    assert np.array_equal(outputs[0], -inputs["x"]) and outputs[1] is None  # NumPy has no numbers for texts
    first, second = (timing._Turn.of(running, inputs, outputs, writes=True) for _ in range(2))
    for turn in (first, second):
        assert not any(np.shares_memory(turn.arrays[0], array) for array in (inputs["x"], outputs[0]))
        turn.arrays[0][:], turn.arrays[1][:] = 7, 7
    first.write_inputs()
    first.run()
    assert np.array_equal(first.arrays[0], inputs["x"]) and np.array_equal(first.arrays[1], outputs[0])
    assert (second.arrays[0] == 7).all() and (second.arrays[1] == 7).all()
    shared = timing._Turn.of(running, inputs, outputs, writes=False)
    shared.write_inputs()
    shared.run()
    assert shared.arrays[0] is inputs["x"] and np.array_equal(shared.arrays[1], -inputs["x"])
    assert not np.shares_memory(shared.arrays[1], outputs[0])


WRITTEN = "dilations = [1, 1], group = 1, kernel_shape = [2, 2], pads = [0, 0, 0, 0], strides = [1, 1]"


def convolved(operators: str) -> onnx.ModelProto:
    """Return a model from x [1, 4, 9, 9] to y, with a kernel w of 2 × 2 and a number b for each of 8 channels."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[1,4,9,9] x) => (float[1,8,8,8] y)
      <float[8,4,2,2] w = {{{", ".join(["1.0"] * 128)}}}, float[8] b = {{{", ".join(["1.0"] * 8)}}}>
      {{ {operators} }}"""
    return onnx.parser.parse_model(text)


def group_of_convolution(operators: str) -> tuple:
    graph = load_graph(convolved(operators))
    return group_signature(graph, tuple(graph.nodes[node_id] for node_id in graph.order))


def test_operators_share_a_kernel_if_onnx_runtime_turns_them_into_the_same_one():
    def kernel(operators: str) -> str:
        return kernel_digest(optimised(convolved(operators)))

    fused = 'y = com.microsoft.FusedConv <activation = "{}">'
    kinds = [
        [kernel("y = Conv (x, w, b)"), kernel("c = Conv (x, w) y = BatchNormalization (c, b, b, b, b)")],
        [kernel("c = Conv (x, w) y = Relu (c)"), kernel(fused.format("Relu") + " (x, w)")],
        [kernel(fused.format("Tanh") + " (x, w)")],
        [kernel("y = Conv (x, w)"), kernel(f"long_name = Identity (x) y = Conv <{WRITTEN}> (long_name, w)")],
        [kernel("y = Conv <pads = [1, 0, 0, 1]> (x, w)")],
        [kernel("c = Conv (x, w, b) y = Neg (c)")],
        [kernel("c = Conv (x, w) d = Relu (c) y = Mul (c, d)")],
        [kernel("c = Conv (x, w) d = Relu (c) y = Mul (d, d)")],
    ]
    assert all(len(set(equal)) == 1 for equal in kinds)
    assert len({equal[0] for equal in kinds}) == len(kinds)


def test_a_convolution_has_the_same_timing_whether_its_defaults_are_written_or_not():
    short = group_of_convolution("y = Conv (x, w)")
    assert group_of_convolution(f"y = Conv <{WRITTEN}> (x, w)") == short
    text = str(group_of_convolution('y = Conv <auto_pad = "VALID"> (x, w)'))
    assert "auto_pad" in text and "pads" not in text.replace("auto_pad", "")


def test_a_resize_is_timed_with_its_own_scales():
    text = """<ir_version: 8, opset_import: ["" : 18]> one (float[1, 4, 6, 6] x) => (float[1, 4, 12, 18] y)
        <float[4] s = {1, 1, 2, 3}> { y = Resize<mode = "nearest">(x, , s) }"""
    graph = load_graph(onnx.parser.parse_model(text))
    timed = group_model(graph, tuple(graph.nodes.values()))
    session = onnxruntime.InferenceSession(timed.SerializeToString())
    (result,) = session.run(None, {timed.graph.input[0].name: np.zeros((1, 4, 6, 6), np.float32)})
    assert result.shape == (1, 4, 12, 18)


@pytest.mark.parametrize(
    "operators",
    ["m = MatMul (x, w) y = Add (m, b)", "v = Transpose <perm = [1, 0]> (w) y = MatMul (x, v)", "y = Gather (w, i)"],
)
def test_large_weights_kept_apart_from_the_model_give_the_same_operators_and_results(operators, monkeypatch):
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,40] x, int64[3] i) => (y)
      <float[40,40] w = {{{", ".join(["1.0"] * 1600)}}}, float[40] b = {{{", ".join(["1.0"] * 40)}}}>
      {{ {operators} }}"""
    graph = load_graph(onnx.parser.parse_model(text))
    group = tuple(graph.nodes[node_id] for node_id in graph.order)
    whole = group_model(graph, group)
    monkeypatch.setattr(onnx_writer, "LARGE", 6400)
    apart = {}
    parted = group_model(graph, group, apart)
    (array,) = apart.values()
    assert array.shape == (40, 40) and len(set(array.flat)) > 1000
    assert parted.ByteSize() < 640
    written = optimised(parted, apart)
    assert written.ByteSize() < 2000
    assert [node.op_type for node in written.graph.node] == [node.op_type for node in optimised(whole).graph.node]
    fed = {value.name: np.zeros((1, 40), np.float32) + 2 for value in parted.graph.input}
    if "Gather" in operators:
        fed = {value.name: np.array([0, 39, 2]) for value in parted.graph.input}
    names = [value.name for value in parted.graph.output]
    results = run(session(parted, 1, apart=apart), fed, names)[0], run(session(whole, 1), fed, names)[0]
    assert np.array_equal(*results) and results[0].any()
    assert time_model(Timed(parted, apart=apart), 1, 1.0).median > 0


def test_random_weights_repeat_after_a_limit_and_are_never_zero(monkeypatch):
    monkeypatch.setattr(kernel_models, "DRAWN", 10)
    numbers = kernel_models._random_numbers((5, 5))
    assert numbers.shape == (5, 5) and numbers.dtype == np.float32 and numbers.min() >= 0.5
    assert np.array_equal(numbers.flat[:10], numbers.flat[10:20]) and len(set(numbers.flat[:10])) == 10
    assert np.array_equal(kernel_models._random_numbers((2, 3)).flat, kernel_models._random_numbers((6,)))


def test_kernels_that_read_other_sizes_are_not_equal():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 16, 1] x, int64[3] s) => (float[A, B, C] y) { y = Expand(x, s) }""")
    small, large = (kernel_digest(model, {"s": np.array([1, 16, n])}) for n in (64, 512))
    assert small != large and small == kernel_digest(model, {"s": np.array([1, 16, 64])})
