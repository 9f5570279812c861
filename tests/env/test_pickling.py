"""Test that graphs, states, tasks and environments can be pickled, so that a worker process can return the best
graph."""

import pickle

import gymnasium
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.costs.profiled import ProfiledCost
from rlflow.env.flat import FlatActions
from rlflow.env.graph_rewrite import EnvSpec, make_env, make_vector_env
from rlflow.graph.ir import Constant
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import save_graph
from rlflow.rules.language import load_rules, parse
from tests.suite import at_night, slow

MODEL = "tiny_squeezenet1_1"


def again(thing):
    return pickle.loads(pickle.dumps(thing))


def assert_same_graph(graph, other, folder) -> None:
    """Check that two graphs have equal hashes and orders and are saved as the same bytes."""
    assert other.hash == graph.hash and other.order == graph.order
    for name, one in (("a", graph), ("b", other)):
        save_graph(one, folder / f"{name}.onnx")
    assert (folder / "a.onnx").read_bytes() == (folder / "b.onnx").read_bytes()


def walked(env, steps: int, seed: int = 0):
    """Return the unwrapped environment after random valid rewrites."""
    env.reset(seed=seed)
    rng, inner = np.random.default_rng(seed), env.unwrapped
    for _ in range(steps):
        actions = inner.state.valid_actions()[:-1]
        inner.step(actions[rng.integers(len(actions))])
    return inner


@pytest.mark.parametrize("moves", ["batched", *slow("single")])
def test_an_unpickled_state_offers_the_same_actions_and_leads_to_the_same_graphs(moves, tmp_path):
    env = walked(make_env(EnvSpec(MODEL, cost="analytic", moves=moves)), 5)
    for state in (env.initial, env.state):
        other = again(state)
        assert_same_graph(state.graph, other.graph, tmp_path)
        assert other.objective == state.objective and other.task.encoding_spec == state.task.encoding_spec
        assert np.array_equal(other.valid_actions(), state.valid_actions())
        assert all(map(np.array_equal, other.arrays(), state.arrays()))
        for action in state.valid_actions()[:-1:7]:
            after, others = state.apply(*action), other.apply(*action)
            assert (others.hash, others.objective) == (after.hash, after.objective)
            assert all(map(np.array_equal, others.arrays(), after.arrays()))
    if moves == "batched":
        assert again(env.state).actions == env.state.actions and len(env.state.made) > 0


@pytest.mark.nightly
def test_a_worker_process_returns_its_states(tmp_path):
    vector = make_vector_env(EnvSpec(MODEL, cost="analytic", max_steps=4), 2)
    try:
        observations, _ = vector.reset(seed=0)
        moves = np.array([[np.flatnonzero(mask)[copy], 0] for copy, mask in enumerate(observations["xfer_mask"])])
        vector.step(moves)
        states = vector.call("state")
    finally:
        vector.close()
    initial = rlflow.load_task(MODEL, cost="analytic").initial
    for move, state in zip(moves, states, strict=True):
        assert_same_graph(initial.apply(*move).graph, state.graph, tmp_path)


def with_weights_outside(folder):
    weight = numpy_helper.from_array(np.random.default_rng(0).random((64, 64), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    whole, graph = load_graph(onnx.load(folder / "m.onnx")), load_graph(folder / "m.onnx")
    pickled = pickle.dumps(graph)
    (folder / "weights.bin").unlink()
    with pytest.raises(RLFlowError):  # The original graph still needs the file.
        next(iter(graph.constants.values())).load()
    return whole, pickle.loads(pickled)


def with_odd_content(folder):
    """Return a graph with strings, bfloat16, 4-bit numbers, an empty weight and a scalar, and its pickled copy."""
    weights = {
        "text": numpy_helper.from_array(np.array(["a", "ü"], object), "text"),
        "bf16": helper.make_tensor("bf16", TensorProto.BFLOAT16, [2], [1.5, -2.0]),
        "int4": helper.make_tensor("int4", TensorProto.INT4, [3], [1, -2, 7]),
        "none": numpy_helper.from_array(np.zeros((0, 3), np.float32), "none"),
        "one": numpy_helper.from_array(np.array(3.0, np.float64), "one"),
    }
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in weights]
    types = {name: (tensor.data_type, list(tensor.dims)) for name, tensor in weights.items()}
    outputs = [helper.make_tensor_value_info(f"{name}_out", *kind) for name, kind in types.items()]
    graph = helper.make_graph(nodes, "odd", [], outputs, list(weights.values()))
    graph = load_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    return graph, again(graph)


def with_symbols_and_a_body(folder):
    """Return a graph with a symbolic size, a captured tensor, a local function and metadata, and its pickled copy."""
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1], metadata_props: ["author": "me"]>
        g (float[n, 2] x, bool c) => (float[n, 2] y) <float[2] w = {1.0, 2.0}> {
            z = own.twice(x)
            y = If (c) <then_branch = a () => (float[n, 2] t) { t = Add(z, w) },
                        else_branch = b () => (float[n, 2] e) { e = Relu(z) }>
        }
        <domain: "own", opset_import: ["" : 17]> twice (p) => (q) { q = Add(p, p) }"""
    graph = load_graph(onnx.parser.parse_model(text))
    return graph, again(graph)


def with_new_weights(folder):
    """Return a graph with constants that a rule made, and its twice pickled copy."""
    graph = walked(make_env(EnvSpec(MODEL, cost="analytic")), 12, seed=1).state.graph
    return graph, again(again(graph))


@pytest.mark.parametrize(
    "make", [with_weights_outside, with_odd_content, with_symbols_and_a_body, with_new_weights],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_an_unpickled_graph_is_saved_as_the_same_bytes(make, tmp_path):
    graph, other = make(tmp_path)
    assert_same_graph(graph, other, tmp_path)
    for tensor, constant in graph.constants.items():
        mine = other.constants[tensor]
        assert (mine.digest, mine.type) == (constant.digest, constant.type)
        assert Constant.of(mine.load()).digest == constant.digest


def test_every_unpickled_rule_equals_the_original():
    rules = load_rules()
    other = again(rules)
    assert (len(other), other.hash) == (len(rules), rules.hash)
    for rule, mine in zip(rules, other, strict=True):
        assert (mine.text, mine.family, mine.why, mine.for_all_shapes) == (
            rule.text, rule.family, rule.why, rule.for_all_shapes,
        )  # fmt: skip
    text = "mine: two become one\n  Relu(Relu(x)) <=> Relu(x)\n"
    for rule in parse(text, "own"):  # The rule comes from a user and is in no file of the package.
        assert again(rule).text == rule.text


@pytest.mark.parametrize("cost", ["analytic", "roofline", "memory", *at_night(["profiled"], [])])
def test_an_unpickled_task_estimates_the_same_cost(cost):
    task = rlflow.load_task(MODEL, cost=cost)
    other = again(task)
    assert other.initial.objective == task.initial.objective and other.unit == task.unit
    rule = int(np.flatnonzero(task.initial.counts)[0])
    after = task.initial.apply(rule, 0)
    assert other.initial.apply(rule, 0).objective == after.objective != task.initial.objective


def test_an_unpickled_cost_has_no_deadline():
    cost = ProfiledCost()
    cost.deadline = 1.0
    assert again(cost).deadline == float("inf")


@pytest.mark.parametrize("name", ["rlflow/GraphRewrite-v0", "rlflow/GraphRewriteFlat-v0"])
@pytest.mark.parametrize("reward", ["relative", "combined", "measured"])
def test_an_unpickled_environment_continues_its_episode(name, reward):
    env = gymnasium.make(name, model=MODEL, cost="analytic", max_steps=30, max_locations=8, reward=reward)
    walked(env, 0 if reward == "measured" else 3)
    other = again(env)
    assert np.array_equal(other.get_wrapper_attr("action_masks")(), env.get_wrapper_attr("action_masks")())
    assert other.unwrapped.state.hash == env.unwrapped.state.hash
    if reward != "measured":
        rule = int(np.flatnonzero(env.unwrapped.state.counts)[-1])
        action = env.get_wrapper_attr("action_of")(rule, 0) if "Flat" in name else (rule, 0)
        assert isinstance(other.env.env, FlatActions) is ("Flat" in name)
        (_, *mine, _), (_, *others, _) = env.step(action), other.step(action)
        assert mine == others
