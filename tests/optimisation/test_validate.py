"""Test that validation can fail: it finds planted faults of every kind and raises no false alarm."""

import itertools
import json
import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.cli.validate import sure
from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_json
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.feeds import Feeds
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.receipt import make_receipt
from rlflow.optimisation.validate import Finding, Findings, relative_error, validate
from rlflow.optimisation.validate.findings import fixed_text
from rlflow.optimisation.validate.inputs import SPECIAL, special_inputs
from rlflow.optimisation.validate.onnx_model import Model
from rlflow.rules.language import RuleSet, load_rules, parse
from rlflow.zoo import load
from tests.commands import in_process


def small_model(last: str = "Softmax", scale: float = 1.0) -> onnx.ModelProto:
    """Return a model x [2, 3, 8, 8], y [2, 4] → scores [2, 4], integers `best` [2]; `scale` multiplies the logits."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["m"], alpha=scale),
        helper.make_node("Sub", ["m", "y"], ["logits"]),
        helper.make_node(last, ["logits"], ["scores"]),
        helper.make_node("ArgMax", ["m"], ["best"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3, 8, 8]), ("y", [2, 4]))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 4]),
         helper.make_tensor_value_info("best", TensorProto.INT64, [2])],
        [weight("w", 5, 3, 3, 3), weight("b", 5), weight("v", 5, 4)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(model, name):
    return next(t for t in model.graph.initializer if t.name == name)


def node(model, op):
    return next(n for n in model.graph.node if n.op_type == op)


def change_weight(model):
    array = numpy_helper.to_array(weights(model, "w")).copy()
    array[0, 0, 0, 0] += 1e-2
    weights(model, "w").raw_data = array.tobytes()


def scale_weight(model):
    weights(model, "v").raw_data = (numpy_helper.to_array(weights(model, "v")) * np.float32(-2)).tobytes()


def transpose_weight(model):
    array = numpy_helper.to_array(weights(model, "w"))
    weights(model, "w").raw_data = np.ascontiguousarray(array.swapaxes(2, 3)).tobytes()


def round_weights(model):
    for tensor in model.graph.initializer:
        tensor.raw_data = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32).tobytes()


def change_output_order(model):
    outputs = [*model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend(outputs[::-1])


def drop_node(model):
    node(model, "GlobalAveragePool").input[0] = "c"
    model.graph.node.remove(node(model, "Relu"))


def swap_operands(model):
    node(model, "Sub").input[:] = ["y", "m"]


def swap_graph_inputs(model):
    inputs = [*model.graph.input]
    del model.graph.input[:]
    model.graph.input.extend(inputs[::-1])


def rename_output(model):
    node(model, "Softmax").output[0] = model.graph.output[0].name = "probabilities"


def change_output_type(model):
    node(model, "Softmax").output[0] = "wide"
    model.graph.node.append(helper.make_node("Cast", ["wide"], ["scores"], to=TensorProto.DOUBLE))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def change_attribute(model):
    node(model, "Conv").attribute[0].ints[:] = [0, 0, 2, 2]


def forget_an_output(model):
    del model.graph.output[1]


def change_an_integer_output(model):
    model.graph.node.append(helper.make_node("Neg", ["arg"], ["best"]))
    node(model, "ArgMax").output[0] = "arg"


def break_the_order(model):
    nodes = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])


def give_a_wrong_shape(model):
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5


FAULTS = {
    change_weight: "structure",
    scale_weight: "numerics",
    transpose_weight: "numerics",
    round_weights: "structure",
    change_output_order: "interface",
    drop_node: "numerics",
    swap_operands: "numerics",
    change_attribute: "numerics",
    change_an_integer_output: "numerics",
    swap_graph_inputs: "interface",
    rename_output: "interface",
    change_output_type: "interface",
    forget_an_output: "interface",
    give_a_wrong_shape: "interface",
    break_the_order: "structure",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(fault):
    broken = small_model()
    fault(broken)
    result = validate(small_model(), broken)
    assert not result.ok
    assert FAULTS[fault] in {finding.kind for finding in result.failures()}


def test_a_model_equals_itself(tmp_path):
    onnx.save(small_model(), tmp_path / "model.onnx")
    for result in (validate(small_model(), small_model()), validate(tmp_path / "model.onnx", small_model())):
        assert result.ok and result.max_error == 0 and result.failures() == []
        assert {finding.kind for finding in result.findings} == {"structure", "interface", "numerics"}
        assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_differences_pass_only_within_the_tolerance():
    nudged = small_model()
    weights(nudged, "v").raw_data = (numpy_helper.to_array(weights(nudged, "v")) * np.float32(1 + 1e-5)).tobytes()
    result = validate(small_model(), nudged)
    assert result.ok and 0 < result.max_error < 1e-4
    assert not validate(small_model(), nudged, tolerance=1e-8).ok


@pytest.mark.parametrize("last", ["Softmax", "Sigmoid", "Tanh"])
def test_a_saturated_output_does_not_hide_an_error_before_it(last):
    original, broken = small_model(last, 1e5), small_model(last, 1.01e5)
    result = validate(original, broken)
    outputs = [f for f in result.findings if f.kind == "numerics" and "output" in f.message]
    assert outputs and all(finding.ok for finding in outputs)
    assert all(f"input of {last}" in finding.message for finding in result.failures())
    # one failure for each set of inputs of the written and of the optimised model
    assert len(result.failures()) == 3 + len(SPECIAL) + 3


def test_a_shift_that_softmax_removes_is_no_error():
    shifted = small_model(scale=30.0)
    shifted.graph.initializer.append(numpy_helper.from_array(np.float32(1000), "shift"))
    node(shifted, "Softmax").input[0] = "shifted"
    shifted.graph.node.insert(6, helper.make_node("Add", ["logits", "shift"], ["shifted"]))
    assert not validate(small_model(scale=30.0), small_model(scale=30.1)).ok
    assert validate(small_model(scale=30.0), shifted, tolerance=1e-3).ok


def test_a_damaged_weight_is_named_although_no_output_shows_the_damage():
    damaged = small_model()
    change_weight(damaged)
    (failure,) = validate(small_model(), damaged).failures()
    assert failure.kind == "structure" and "weight 'w' is damaged: 1 of 135 elements" in failure.message
    array = numpy_helper.to_array(weights(damaged, "w"))
    # The reversed weight is no copy of the original weight, so the outputs decide.
    weights(damaged, "w").raw_data = np.ascontiguousarray(np.flip(array)).tobytes()
    assert {finding.kind for finding in validate(small_model(), damaged).failures()} == {"numerics"}


@pytest.mark.parametrize(
    "known, wrong", [(1.0, np.nan), (1.0, -np.inf), (np.nan, np.nan), (np.nan, 2.0), (np.inf, np.nan), (np.inf, 2.0)]
)
def test_a_damaged_weight_with_nan_or_infinity_is_named(known, wrong):
    """Both weights have the element `known`, and another element of the copy is `wrong`."""
    original, damaged = small_model(), small_model()
    for model, second in ((original, 1.0), (damaged, wrong)):
        array = numpy_helper.to_array(weights(model, "w")).copy()
        array.flat[:2] = known, second
        weights(model, "w").raw_data = array.tobytes()
    (found,) = [finding.message for finding in validate(original, damaged).failures() if finding.kind == "structure"]
    assert found.startswith("weight 'w' is damaged: 1 of 135 elements differ, relative error")


def chain(
    *nodes: onnx.NodeProto, constants: dict[str, np.ndarray], shape=(2, 4), y: tuple = (TensorProto.FLOAT, (2, 4))
) -> onnx.ModelProto:
    """Return a model x → y of the given shapes and types, with the given nodes and constants."""
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    ports = ([helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", *y)])
    graph = helper.make_graph([*nodes], "chain", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def clipped(limit: float) -> onnx.ModelProto:
    return chain(helper.make_node("Clip", ["x", "", "c"], ["y"]), constants={"c": np.float32(limit)})


def sqrt_of_square(epsilon: float) -> onnx.ModelProto:
    """Return x / √(x² + ε), where ε only matters for small numbers."""
    return chain(
        helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("Add", ["s", "e"], ["t"]),
        helper.make_node("Sqrt", ["t"], ["r"]), helper.make_node("Div", ["x", "r"], ["y"]),
        constants={"e": np.float32(epsilon)},
    )  # fmt: skip


def normalised(*order: str) -> onnx.ModelProto:
    """Return a LayerNormalization in parts, as exporters write it; `order` has the operands of its division."""

    def mean(of, to):
        return helper.make_node("ReduceMean", [of], [to], axes=[-1], keepdims=1)

    nodes = [
        mean("x", "m"), helper.make_node("Sub", ["x", "m"], ["d"]), helper.make_node("Pow", ["d", "two"], ["p"]),
        mean("p", "v"),
        helper.make_node("Add", ["v", "e"], ["t"]), helper.make_node("Sqrt", ["t"], ["r"]),
        helper.make_node("Div", order, ["n"]),
        helper.make_node("Mul", ["n", "k"], ["s"]), helper.make_node("Add", ["s", "b"], ["y"]),
    ]  # fmt: skip
    four = np.ones(4, np.float32)
    return chain(*nodes, constants={"two": np.float32(2), "e": np.float32(1e-5), "k": 2 * four, "b": four})


def test_a_fault_that_onnx_runtime_optimises_away_is_caught():
    given, values = random_inputs(normalised("d", "r"), 0), []
    for order in (("d", "r"), ("r", "d")):
        values += run(session(normalised(*order), 1), given)
    assert relative_error(*values) < 1e-6  # ONNX Runtime fuses both orders into the same operator
    assert not validate(normalised("d", "r"), normalised("r", "d")).ok


@pytest.mark.parametrize(
    "make, before, after, seen",
    [(clipped, 50.0, 60.0, {"large", "mixed"}), (sqrt_of_square, 1e-9, 1e-8, {"tiny", "mixed"})],
)
def test_special_values_show_what_ordinary_ones_hide(make, before, after, seen):
    result = validate(make(before), make(after), tolerance=1e-3, seeds=(3,))
    assert {f.message.split(":")[0] for f in result.failures()} <= seen and result.failures()
    assert validate(make(before), make(before), tolerance=0.0).max_error == 0


def test_outputs_decided_by_rounding_are_not_compared():
    def best(*order: str) -> onnx.ModelProto:
        """Return ArgMax of x + a + b + c; the sum equals x except for rounding, so equal elements of x give ties."""
        names = ["x", *(f"t{k}" for k in range(len(order)))]
        sums = [helper.make_node("Add", [names[k], name], [names[k + 1]]) for k, name in enumerate(order)]
        constants = {
            "a": np.float32([0.3, 0.8, 0.7, 0.6]),
            "b": np.float32([0.5, 0.9, 0.8, 0.2]),
            "c": np.float32([-0.8, -1.7, -1.5, -0.8]),
        }
        last = helper.make_node("ArgMax", [names[-1]], ["y"], axis=1, keepdims=0)
        return chain(*sums, last, constants=constants, y=(TensorProto.INT64, (2,)))

    orders = list(itertools.permutations("abc"))
    result = [validate(best(*orders[0]), best(*order), optimise=False) for order in orders]
    said = {
        f.message.split(":")[0] for f in result[0].findings if "the last digits of the inputs determine it" in f.message
    }
    assert all(each.ok for each in result) and said == {"zeros", "ones"}
    ties = {"x": np.zeros((2, 4), np.float32)}
    # without this exemption validation would report a difference
    assert len({tuple(run(session(best(*order), 1, False), ties)[0]) for order in orders}) > 1


@pytest.mark.parametrize("make, where", [("Exp", "large"), ("Log", "zeros")])
def test_special_inputs_at_which_the_original_is_not_finite_are_not_compared(make, where):
    def model(*more: onnx.NodeProto) -> onnx.ModelProto:
        """Return y = make(|x|), which another node may change."""
        nodes = helper.make_node("Abs", ["x"], ["a"]), helper.make_node(make, ["a"], ["y" if not more else "b"])
        return chain(*nodes, *more, constants={"c": np.float32(1e30)})

    result = validate(model(), model())
    left = [finding for finding in result.findings if "the original's values are not finite" in finding.message]
    assert left and {finding.message.split(":")[0] for finding in left} == {where}
    assert not any(finding.compared for finding in left) and all(finding.value is None for finding in left)
    without = sum(not finding.compared for finding in result.findings)
    assert result.ok and result.max_error == 0 and f", {without} could not be compared" in result.in_short()
    # a candidate may have any value there
    assert validate(model(), model(helper.make_node("Min", ["b", "c"], ["y"]))).ok


def test_a_candidate_with_a_new_empty_tensor_is_not_run():
    none = {"none": np.array([0])}
    empty = chain(
        helper.make_node("Slice", ["x", "none", "none"], ["e"]), helper.make_node("Concat", ["e", "x"], ["y"], axis=0),
        constants=none,
    )  # fmt: skip
    result = validate(chain(helper.make_node("Identity", ["x"], ["y"]), constants={}), empty)
    assert [(f.kind, f.message.split(":")[0]) for f in result.failures()] == [
        ("structure", "tensor 'e' has no elements, unlike all tensors of the original"), ("numerics", "not compared"),
    ]  # fmt: skip
    assert validate(empty, empty).ok


def test_special_inputs_are_drawn_only_where_they_are_valid():
    model = load("tiny_bert_base")  # all inputs are integers: indices and a mask
    drawn = special_inputs(Feeds.of(model), 0, {})
    assert [given.name for given in drawn] == ["zeros", "ones", "large"]
    highest = random_inputs(model, 0)["input_ids"].max()
    assert [int(given.arrays["input_ids"].max()) for given in drawn] == [0, 1, highest]
    names = [given.name for given in special_inputs(Feeds.of(load("tiny_resnet18")), 0, {})]
    assert names == list(SPECIAL)
    arrays = special_inputs(Feeds.of(load("tiny_resnet18")), 0, {})
    assert all(np.isfinite(array).all() for given in arrays for array in given.arrays.values())
    assert np.abs(arrays[-1].arrays["input"])[arrays[-1].arrays["input"] != 0].min() < np.finfo(np.float32).tiny


def test_mixed_inputs_keep_small_and_large_values_alike():
    feeds = Feeds.of(chain(helper.make_node("Relu", ["x"], ["y"]), constants={}, shape=(16,)))
    kept, replaced = [], []
    for seed in range(100):
        drawn, mixed = feeds.draw(seed, {})["x"], special_inputs(feeds, seed, {})[-1].arrays["x"]
        kept += np.abs(drawn[mixed == drawn]).tolist()
        replaced += np.abs(drawn[mixed != drawn]).tolist()
    assert min(len(kept), len(replaced)) > 100 and 0.8 < np.median(kept) / np.median(replaced) < 1.25


def test_a_model_with_a_scalar_input_can_be_validated():
    model = chain(helper.make_node("Relu", ["x"], ["y"]), constants={}, shape=(), y=(TensorProto.FLOAT, ()))
    assert validate(model, model).ok


# -- receipts --------------------------------------------------------------------------------------

WRONG = """
relu-twice: harmless
  Relu(x) => Relu(Relu(x))

add-swapped: harmless
  Add(x, y) => Add(y, x)

pool-doubled: wrong on purpose
  GlobalAveragePool(x) => Add(GlobalAveragePool(x), GlobalAveragePool(x))
"""


def walk_of(names: list[str]) -> tuple[dict, Graph, RuleSet]:
    """Return the receipt, the final graph and the rules of rewrites of tiny_resnet18.

    Args:
        names: rules, each applied at its first location.
    """
    rules = RuleSet(tuple(parse(WRONG, "made-up")), "made-up")
    first = state = Task(load_graph(load("tiny_resnet18")), rules, AnalyticCost()).initial
    actions = [(rules.index(name), 0) for name in names]
    for action in actions:
        state = state.apply(*action)
    return make_receipt(first.graph, rules, [], actions, state.graph, {}), state.graph, rules


@pytest.mark.parametrize("steps", ["one by one", "halves"])
def test_the_first_wrong_rewrite_is_named(steps, monkeypatch):
    if steps == "halves":
        monkeypatch.setattr("rlflow.optimisation.validate.equality.ONE_BY_ONE", 1)
    receipt, result, rules = walk_of(["relu-twice", "add-swapped", "pool-doubled", "relu-twice", "add-swapped"])
    outcome = validate(load("tiny_resnet18"), to_model(result), receipt=receipt, rules=rules)
    last = [finding for finding in outcome.findings if finding.kind == "receipt"][-1]
    assert not last.ok and last.value > 0.1
    assert last.message.startswith(
        "after step 2, rule pool-doubled at location 0, outputs differ: seed 0: output 'logits'"
    )


def test_a_sound_receipt_is_confirmed_and_a_changed_file_is_distinguished_from_a_wrong_rule():
    receipt, result, rules = walk_of(["relu-twice", "add-swapped", "relu-twice"])
    model = to_model(result)
    outcome = validate(load("tiny_resnet18"), model, receipt=receipt, rules=rules)
    assert outcome.ok and any("byte for byte" in finding.message for finding in outcome.findings)
    model.producer_name = "someone else"
    outcome = validate(load("tiny_resnet18"), model, receipt=receipt, rules=rules)
    assert outcome.ok and any(
        "the graph of the recorded result, in other bytes" in finding.message for finding in outcome.findings
    )
    scaled = next(t for t in model.graph.initializer if t.name == "fc.weight")
    scaled.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scaled) * np.float32(2), "fc.weight"))
    outcome = validate(load("tiny_resnet18"), model, receipt=receipt, rules=rules)
    said = [(finding.ok, finding.message) for finding in outcome.findings if finding.kind == "receipt"]
    assert [ok for ok, _ in said] == [True, True, False, True]
    assert "the candidate is not the recorded result" in said[2][1] and "no rewrite is at fault" in said[3][1]


def test_a_receipt_that_cannot_be_repeated_is_a_finding():
    receipt, result, rules = walk_of(["relu-twice"])
    for key, message in (
        ("rules_hash", "another rule set"),
        ("original_hash", "another model"),
        ("result_hash", "another graph"),
    ):
        outcome = validate(load("tiny_resnet18"), to_model(result), receipt=receipt | {key: ""}, rules=rules)
        (failure,) = outcome.failures()
        assert failure.kind == "receipt" and message in failure.message
    (failure,) = validate(load("tiny_resnet18"), to_model(result), receipt={}).failures()
    assert "not a receipt" in failure.message


@pytest.mark.parametrize("location", ["/dev/zero", "pipe", "../weights.bin"])
def test_external_weights_of_a_refused_candidate_are_not_read(location, monkeypatch, tmp_path):
    """External weights of a refused candidate are never read, because they may be endless."""
    receipt, result, rules = walk_of(["relu-twice"])
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 20))
    (tmp_path / "given").mkdir()
    os.mkfifo(tmp_path / "given" / "pipe")
    candidate = to_model(result)
    outside = weights(candidate, "fc.weight")
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value=location)
    (tmp_path / "given" / "b.onnx").write_bytes(candidate.SerializeToString())
    monkeypatch.setattr(Model, "sha256", lambda model: pytest.fail(f"{location} was read"))
    outcome = validate(load("tiny_resnet18"), tmp_path / "given" / "b.onnx", receipt=receipt, rules=rules)
    said = [(finding.ok, finding.message) for finding in outcome.findings if finding.kind == "receipt"]
    assert [ok for ok, _ in said] == [True, True, False, True] and "is refused" in said[2][1]


def test_sizes_that_the_receipt_binds_are_bound_in_a_symbolic_candidate():
    original, shapes, rules = small_model(), {"batch": 2}, load_rules()
    for value in (*original.graph.input, *original.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    graph = load_graph(original, shapes)
    receipt = make_receipt(graph, rules, [], [], graph, {}, shapes)
    for fixed in (False, True):
        candidate = to_model(graph)
        for value in candidate.graph.input if fixed else ():
            value.type.tensor_type.shape.dim[0].dim_value = 2
        candidate.producer_name = "someone else"
        said = [
            f.message
            for f in validate(original, candidate, shapes=shapes, receipt=receipt, fix=True).findings
            if f.kind == "receipt"
        ]
        assert "in other bytes" in said[-1]


# -- the command -----------------------------------------------------------------------------------


def test_the_exit_status_of_validate_says_whether_the_models_are_equal(capsys, tmp_path):
    onnx.save(small_model(), tmp_path / "a.onnx")
    onnx.save(small_model(scale=2.0), tmp_path / "b.onnx")
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert in_process(capsys, "validate", a, a, "--exact", "--seed", "7").code == 0
    done = in_process(capsys, "validate", a, b, "--json", tmp_path / "found.json")
    assert (
        done.code == 1 and "do NOT compute the same" in done.out and "FAILED" in done.out and "error:" not in done.err
    )
    assert json.loads((tmp_path / "found.json").read_text())["ok"] is False
    assert in_process(capsys, "validate", a, b, "--tolerance", "9").code == 0
    assert in_process(capsys, "validate", "tiny_resnet18", "tiny_resnet18").code == 0
    write_json(tmp_path / "receipt.json", {"actions": []})
    assert in_process(capsys, "validate", a, a, "--receipt", tmp_path / "receipt.json").code == 1
    for wrong in (("--threads", "0"), ("--tolerance", "nan"), ("--seed", "-1"), ("--receipt", tmp_path / "none.json")):
        assert in_process(capsys, "validate", a, a, *wrong).error


def test_a_changed_last_operator_is_reported_as_not_compared():
    changed = small_model()
    node(changed, "Softmax").output[0] = "log"
    node(changed, "Softmax").op_type = "LogSoftmax"
    changed.graph.node.append(helper.make_node("Exp", ["log"], ["scores"]))
    result = validate(small_model(), changed)
    assert result.ok
    said = [f for f in result.findings if "was not compared" in f.message]
    assert len(said) == 2 and all("not from a saturating operator" in f.message and f.value is None for f in said)
    assert not any(f.compared for f in said) and ", 2 could not be compared" in result.in_short()
    assert [f["compared"] for f in result.to_dict()["findings"]].count(False) == 2


def test_the_summary_claims_no_equality_if_no_output_was_compared():
    left = Finding("numerics", True, "set 0: nothing was compared: a reason", compared=False)
    assert sure(Findings([left])) == "0 checks passed, 1 could not be compared; no output was compared"
    equal = Finding("numerics", True, "output 'best': equal")
    assert sure(Findings([equal, left])) == "1 checks passed, 1 could not be compared; no output differs"


def test_external_weights_are_read_from_the_folder_of_the_model(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    onnx.save(small_model(), folder / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    result = validate(folder / "a.onnx", folder / "a.onnx")
    assert result.ok and any("input of Softmax" in finding.message for finding in result.findings)
    (folder / "a.data").unlink()
    assert not validate(small_model(), folder / "a.onnx").ok


def test_a_symbolic_dimension_may_be_replaced_by_its_bound_size():
    def batch(size):
        model = small_model()
        for value in (*model.graph.input, *model.graph.output):
            dim = value.type.tensor_type.shape.dim[0]
            dim.dim_param = "batch" if size is None else dim.dim_param
            if size is not None:
                dim.dim_value = size
        return model

    result = validate(batch(None), batch(2), shapes={"batch": 2}, fix=True)
    assert result.ok and any("batch = 2" in finding.message for finding in result.findings)
    assert fixed_text(result.to_dict()["findings"]) == "accepts only batch = 2" and "accepts only batch = 2" in sure(
        result
    )
    assert not validate(batch(None), batch(3), shapes={"batch": 2}, fix=True).ok
    assert not validate(batch(None), batch(2), shapes={"batch": 2}).ok


def test_an_unreadable_original_raises_and_an_unreadable_candidate_is_a_finding(tmp_path):
    (tmp_path / "junk.onnx").write_bytes(b"\xff" * 50)
    with pytest.raises(RLFlowError, match="is not an ONNX file"):
        validate(tmp_path / "junk.onnx", small_model())
    with pytest.raises(RLFlowError, match="cannot read .*missing.onnx"):
        validate(tmp_path / "missing.onnx", small_model())
    (finding,) = validate(small_model(), tmp_path / "junk.onnx").findings
    assert (finding.kind, finding.ok) == ("structure", False)


def test_non_finite_values_must_be_equal():
    nan, inf = np.nan, np.inf
    assert relative_error(np.array([1, nan, inf]), np.array([1.5, nan, inf])) == 0.5
    assert relative_error(np.array([1, nan]), np.array([1, 1.0])) == inf
    assert relative_error(np.array([1, 1.0]), np.array([1, nan])) == inf
    assert relative_error(np.array([1, inf]), np.array([1, -inf])) == inf
    assert relative_error(np.zeros(2), np.array([0, 0.5])) == 0.5
    assert relative_error(np.zeros(0), np.zeros(0)) == 0
