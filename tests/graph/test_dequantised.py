"""Test dequantised models: they keep the stored weights and the saturation of activations, but not their rounding."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.graph.dequantised import dequantised, is_quantised
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import save_graph, to_model
from rlflow.optimisation.quantised import offer
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.optimisation.validate import relative_error, validate
from rlflow.runs.config import load_config
from rlflow.search.descents import greedy
from rlflow.tasks.rewriting import RewritingSpec

STEP, ZERO = np.float32(0.05), 20  # the range of activations is [-1, 11.75]


def layers(*lines: str, weights: dict[str, np.ndarray], opset: int = 17) -> onnx.ModelProto:
    """Return a model of the given nodes with the output y, float [3, 4]."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[3, 8] x) => (float[3, 4] y) {{ {" ".join(lines)} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def stored(seed: int = 0) -> dict[str, np.ndarray]:
    """Return an int8 weight [8, 4], its scales and zero points by column, and the scale and zero point of activations.

    The weight has 7 bits: sums of products of 8 bits overflow in ONNX Runtime on processors without 8-bit dot products.
    """
    random = np.random.default_rng(seed)
    return {
        "w": random.integers(-60, 60, (8, 4), np.int8), "ws": random.uniform(0.01, 0.02, 4).astype(np.float32),
        "wz": random.integers(-5, 6, 4, np.int8), "s": np.array(STEP), "z": np.array(ZERO, np.uint8),
    }  # fmt: skip


PAIR = "{0}q = QuantizeLinear({0}, s, z) {0}d = DequantizeLinear({0}q, s, z)"
WEIGHT = "v = DequantizeLinear<axis = 1>(w, ws, wz)"
QDQ = layers(PAIR.format("x"), WEIGHT, "y = MatMul(xd, v)", weights=stored())
DYNAMIC = layers(
    "q, a, o = DynamicQuantizeLinear(x)", "t = MatMulInteger(q, w, o, wz)", "f = Cast<to = 1>(t)", "m = Mul(a, ws)",
    "y = Mul(f, m)", weights={name: array for name, array in stored().items() if name in ("w", "ws", "wz")},
)  # fmt: skip


def real_weight() -> np.ndarray:
    parts = stored()
    return (parts["w"].astype(np.float32) - parts["wz"].astype(np.float32)) * parts["ws"]


def inputs(seed: int, scale: float = 3.0) -> dict[str, np.ndarray]:
    return {"x": scale * np.random.default_rng(seed).standard_normal((3, 8), np.float32)}


def test_a_quantise_pair_becomes_a_clip_and_a_stored_weight_is_scaled():
    made, given = dequantised(QDQ, ""), inputs(1, 8.0)
    assert not is_quantised(made) and [node.op_type for node in made.graph.node if "clip" in node.name] == ["Clip"]
    wanted = np.clip(given["x"], -1.0, 11.75) @ real_weight()
    np.testing.assert_allclose(run(session(made, 1), given)[0], wanted, rtol=1e-5, atol=1e-5)
    assert wanted.max() != (given["x"] @ real_weight()).max()  # some activations saturate
    assert [t for t in made.graph.initializer if t.name == "w"] == [t for t in QDQ.graph.initializer if t.name == "w"]


def test_a_dynamically_quantised_product_reads_its_float_input():
    made, given = dequantised(DYNAMIC, ""), inputs(2)
    assert not is_quantised(made) and "MatMul" in [node.op_type for node in made.graph.node]
    np.testing.assert_allclose(run(session(made, 1), given)[0], given["x"] @ real_weight(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model, step", [(QDQ, STEP), (DYNAMIC, None)], ids=["pairs", "dynamic"])
def test_the_quantised_original_differs_by_at_most_half_a_step_per_activation(model, step):
    made = dequantised(model, "")
    for seed in range(5):
        given = inputs(seed)
        theirs, ours = (run(session(one, 1, False), given)[0] for one in (model, made))
        each = step or (max(given["x"].max(), 0) - min(given["x"].min(), 0)) / 255
        bound = (each / 2) * abs(real_weight()).sum(axis=0)
        assert (abs(theirs - ours) <= 1.001 * bound).all() and abs(theirs - ours).max() > 0


def test_a_range_that_an_operator_already_guarantees_needs_no_clip():
    parts = stored() | {"s": np.array(np.float32(1 / 255)), "z": np.array(0, np.uint8)}
    model = layers("t = Sigmoid(x)", PAIR.format("t"), WEIGHT, "y = MatMul(td, v)", weights=parts)
    assert "Clip" not in [node.op_type for node in dequantised(model, "").graph.node]
    parts["s"] = np.array(np.float32(0.9 / 255))  # with this scale, values up to 1 exceed the range by more than a step
    model = layers("t = Sigmoid(x)", PAIR.format("t"), WEIGHT, "y = MatMul(td, v)", weights=parts)
    assert "Clip" in [node.op_type for node in dequantised(model, "").graph.node]


def test_an_integer_convolution_becomes_a_float_convolution():
    random = np.random.default_rng(0)
    w, scale = random.integers(-60, 60, (4, 2, 3, 3), np.int8), np.array(0.01, np.float32)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 5, 5] x) => (float[1, 4, 5, 5] y) {
        q, a, o = DynamicQuantizeLinear(x) t = ConvInteger<pads = [1, 1, 1, 1]>(q, w, o) f = Cast<to = 1>(t)
        m = Mul(a, s) y = Mul(f, m) }""")
    model.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(scale, "s")])
    made, given = dequantised(model, ""), {"x": random.standard_normal((1, 2, 5, 5), np.float32)}
    theirs, ours = (run(session(one, 1), given)[0] for one in (model, made))
    assert "Conv" in [node.op_type for node in made.graph.node] and not is_quantised(made)
    assert 0 < relative_error(ours, theirs) < 0.02


OTHERS = {
    "known form": (layers("q, a, o = DynamicQuantizeLinear(x)", "f = Cast<to = 1>(q)", "y = MatMul(f, u)",
                          weights={"u": np.ones((8, 4), np.float32)}), ()),
    "another scale": (layers("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, r, z)", "y = MatMul(d, u)",
                             weights=stored() | {"u": np.ones((8, 4), np.float32), "r": np.array(2 * STEP)}), ()),
    "opset 10": (layers(PAIR.format("x"), "y = MatMul(xd, u)", weights=stored() | {"u": np.ones((8, 4), np.float32)},
                        opset=10), ()),
    "'xd'": (QDQ, ("xd",)),
}  # fmt: skip


@pytest.mark.parametrize("why", OTHERS)
def test_other_uses_of_integers_are_not_dequantised(why):
    model, keep = OTHERS[why]
    with pytest.raises(RLFlowError, match="known form" if why == "another scale" else why):
        dequantised(model, "", keep)


def test_a_rewritten_dequantised_model_is_validated_against_the_model_without_rounding(tmp_path: Path):
    path, made = tmp_path / "original.onnx", tmp_path / "made.onnx"
    onnx.save(QDQ, path)
    task = rlflow.load_task(path, cost="analytic", widen=True)
    result = greedy(task.initial, 20, 20.0)
    save_graph(result.state.graph, made)
    steps = (*task.preparation, *result.actions)
    receipt = make_receipt(task.original, task.rules, [], steps, result.state.graph, {}, widened=task.widened)
    assert to_model(replay(receipt, QDQ)) == onnx.load(made)
    found = validate(path, made, receipt=receipt)
    assert found.ok and any("without rounding" in finding.note for finding in found.findings)
    assert not validate(path, made).ok  # without the receipt the missing rounding is an error


def test_a_model_is_dequantised_only_on_request_and_the_gain_is_offered(tmp_path: Path):
    path = tmp_path / "original.onnx"
    onnx.save(QDQ, path)
    widen = {
        accept: RewritingSpec.settled(load_config(overrides=[f"eval.accept={accept}"]), path).env.widen
        for accept in ("faster", "dequantised")
    }
    assert widen == {"faster": False, "dequantised": True}
    found = offer(path, [inputs(0)], 1)
    assert found["ratio"] > 0 and 0 < found["error"] < 0.1
    onnx.save(dequantised(QDQ, ""), path)
    assert not RewritingSpec.settled(load_config(overrides=["eval.accept=dequantised"]), path).env.widen


def test_a_model_with_external_weights_can_be_dequantised(tmp_path: Path):
    copy = onnx.ModelProto.FromString(QDQ.SerializeToString())  # a copy, because saving changes a model
    onnx.save_model(copy, tmp_path / "original.onnx", save_as_external_data=True, size_threshold=0)
    graph = load_graph(tmp_path / "original.onnx", widen=True)
    save_graph(graph, tmp_path / "made.onnx")
    ours = run(session(tmp_path / "made.onnx", 1), inputs(0))[0]
    np.testing.assert_allclose(ours, run(session(dequantised(QDQ, ""), 1), inputs(0))[0], rtol=1e-6)
    assert helper.printable_graph(load_proto(tmp_path)).count("Clip") == 1


def load_proto(folder: Path) -> onnx.GraphProto:
    return onnx.load(folder / "made.onnx").graph


def test_a_quantise_without_a_zero_point_has_the_stated_type():
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[3] x) => (float[3] y) <float s = {0.1}>
        { q = QuantizeLinear<output_dtype = 3>(x, s)  d = DequantizeLinear(q, s)  y = Neg(d) }""")
    (y,) = run(session(dequantised(model, ""), 1), {"x": np.float32([-5, 5, 20])})
    np.testing.assert_allclose(y, [5, -5, -12.7], rtol=1e-6)


def test_weights_among_the_inputs_of_old_files_and_the_name_of_the_domain_are_known():
    new = layers("q = QuantizeLinear(x, s, z)", "d = DequantizeLinear(q, s, z)", "y = Neg(d)",
                 weights={"s": np.float32(0.1), "z": np.uint8(0)})  # fmt: skip
    old = onnx.ModelProto()
    old.CopyFrom(new)
    old.ir_version = 3
    old.graph.input.extend(helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in new.graph.initializer)
    named = onnx.ModelProto()
    named.CopyFrom(new)
    named.opset_import[0].domain = "ai.onnx"
    for model in (old, named):
        assert [node.op_type for node in dequantised(model, "").graph.node] == ["Clip", "Neg"]
