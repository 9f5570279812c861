"""Test the names of nodes that rules add, and the names, declarations and documentation that a written model keeps."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.naming import FreshNames, combined
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import save_graph, save_model, to_model
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.search.descents import greedy
from rlflow.zoo import load
from tests.commands import in_process
from tests.toys.tiny import tiny_task

QUICK = ("--seconds", "1", "cost.name=analytic", "eval.measure_seconds=0", "search.grasp.patience=3")
X = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}


def layers(label: str = "/block/%s") -> onnx.ModelProto:
    """Return a documented model with Tanh, a Gemm in two parts, two Transposes that cancel, and a Relu."""
    def floats(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4], f"about {name}")

    rng = np.random.default_rng(1)
    w, b = (numpy_helper.from_array(rng.normal(size=s).astype("f"), n) for n, s in (("w", (4, 4)), ("b", 4)))
    w.doc_string = "about w"
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], label % "tanh", "about tanh"),
        helper.make_node("MatMul", ["t", "w"], ["p"], label % "mm"),
        helper.make_node("Add", ["p", "b"], ["q"], label % "add"),
        helper.make_node("Transpose", ["q"], ["u"], label % "one", perm=[1, 0]),
        helper.make_node("Transpose", ["u"], ["v"], label % "other", perm=[1, 0]),
        helper.make_node("Relu", ["v"], ["y"], label % "relu"),
    ]
    nodes[0].metadata_props.add(key="scope", value="top")
    named = [floats(name) for name in "tpquv"]
    graph = helper.make_graph(nodes, "g", [floats("x")], [floats("y")], [w, b], value_info=named)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def rewritten(model: onnx.ModelProto, **options):
    """Return (task, actions, graph) after a greedy search on the model."""
    task = EnvSpec("", cost="analytic", threads=1, **options).open(model)
    found = greedy(task.initial, max_steps=50)
    return task, found.actions, found.state.graph


def output(model: onnx.ModelProto) -> np.ndarray:
    return run(session(model, 1), X)[0]


def test_a_combined_name_states_the_common_folder_once_and_is_short():
    assert combined(["layer3/conv", "layer3/relu"]) == "layer3/conv+relu"
    assert combined(["/a/b/conv", "/a/c/relu"]) == "/a/b/conv+c/relu"
    assert combined(["/a/conv"]) == "/a/conv" and combined(["x", "x"]) == "x"
    assert combined(["a", "b", "c", "d"]) == "a+b+c+..."
    assert len(combined([f"{k}" * 3000 for k in range(9)])) < 200
    names = FreshNames(["n (fused)", "m"])
    made = [names.new(wanted) for wanted in ("n (fused)", "n (fused)", "m", "m 2", "k")]
    assert made == ["n (fused 2)", "n (fused 3)", "m 2", "m 2 2", "k"]


def test_new_nodes_and_tensors_get_unique_names_after_the_nodes_that_they_replace():
    for name in ("tiny_resnet18", "tiny_bert_base", "tiny_inception_v3"):
        state = greedy(tiny_task(name).initial, max_steps=200).state
        model = to_model(state.graph)
        old = {node.name for node in load(name).graph.node}
        new = [node.name for node in model.graph.node if node.name not in old]
        assert new and all("(" in text and len(text) < 250 for text in new)
        names = [node.name for node in model.graph.node]
        tensors = [text for node in model.graph.node for text in node.output]
        tensors += [tensor.name for tensor in (*model.graph.initializer, *model.graph.input)]
        assert len({*names}) == len(names) and len({*tensors}) == len(tensors)
    _, _, graph = rewritten(layers())
    model = to_model(graph)
    assert [node.name for node in model.graph.node] == ["/block/tanh", "/block/mm+add+relu (fused)"]
    _, _, graph = rewritten(layers("%.0s"))  # nodes without names are named after their tensors
    assert [node.name for node in to_model(graph).graph.node] == ["", "p+q+y (fused)"]


def test_untouched_parts_keep_names_declarations_documentation_and_metadata():
    before = layers()
    _, _, graph = rewritten(before)
    after = to_model(graph)
    (tanh,) = [node for node in after.graph.node if node.op_type == "Tanh"]
    for field in ("name", "doc_string", "metadata_props", "input", "output"):
        assert getattr(tanh, field) == getattr(before.graph.node[0], field)
    declared = {value.name: value for value in before.graph.value_info}
    written = {name for node in after.graph.node for name in node.output}
    assert {value.name for value in after.graph.value_info} == declared.keys() & written
    assert "t" in written and all(value == declared[value.name] for value in after.graph.value_info)
    (w,) = [tensor for tensor in after.graph.initializer if tensor.name == "w"]
    assert w.doc_string == "about w"
    onnx.checker.check_model(after, full_check=True)
    np.testing.assert_allclose(output(after), output(before), rtol=1e-5, atol=1e-6)


def test_a_declaration_that_contradicts_the_inferred_size_is_left_out():
    wrong = layers()
    wrong.graph.value_info[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    wrong.graph.value_info[1].type.tensor_type.shape.dim[0].ClearField("dim_value")
    names = {value.name for value in to_model(rlflow.load_task(wrong, cost="analytic").original).graph.value_info}
    assert names == set("tpquv")  # a symbolic or missing size does not contradict a number
    graph = rlflow.load_task(layers(), cost="analytic").original
    graph.interface.template.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value = 5
    assert {value.name for value in to_model(graph).graph.value_info} == set("pquv")


def test_a_kept_tensor_keeps_its_name_and_value_and_a_kept_node_stays_unchanged():
    before = layers()
    free = to_model(rewritten(before)[2])
    assert not {"u", "p"} & {name for node in free.graph.node for name in node.output}
    for name in ("u", "p", "q", "v", "t"):
        after = to_model(rewritten(before, keep=(name,))[2])
        both = []
        for model in (before, after):
            shown = onnx.ModelProto()
            shown.CopyFrom(model)
            shown.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]))
            both.append(run(session(shown, 1), X))
        for old, new in zip(*both, strict=True):
            np.testing.assert_allclose(old, new, rtol=1e-5, atol=1e-6)
        assert [value.name for value in after.graph.output] == ["y"]
    for node in before.graph.node:
        after = to_model(rewritten(before, keep=(node.name,))[2])
        (kept,) = [other for other in after.graph.node if other.name == node.name]
        assert (kept.op_type, kept.output, kept.attribute) == (node.op_type, node.output, node.attribute)
        np.testing.assert_allclose(output(after), output(before), rtol=1e-5, atol=1e-6)
    everything = [node.name for node in before.graph.node]
    assert not rewritten(before, keep=everything)[0].initial.counts.any()
    with pytest.raises(RLFlowError, match="--keep /block/rely: .* did you mean '/block/relu'"):
        rewritten(before, keep=("/block/rely",))


def test_only_the_kept_one_of_two_equal_neighbourhoods_stays():
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] a, float[2,3] b) => (float[2,3] y, float[2,3] z) {
        [first] p = Transpose <perm = [1, 0]> (a) [second] q = Transpose <perm = [1, 0]> (p) y = Tanh (q)
        [third] r = Transpose <perm = [1, 0]> (b) [fourth] s = Transpose <perm = [1, 0]> (r) z = Tanh (s) }"""
    model = onnx.parser.parse_model(text)
    for kept, left in ((("first", "second"), "first second"), (("third", "fourth"), "third fourth"), ((), "")):
        after = to_model(rewritten(model, keep=kept)[2])
        assert " ".join(node.name for node in after.graph.node if node.op_type == "Transpose") == left


def test_a_receipt_states_the_kept_names_and_a_replay_gives_the_same_bytes(tmp_path):
    for keep in ((), ("p",), ("/block/one", "t")):
        task, actions, graph = rewritten(layers(), keep=keep)
        steps = (*task.preparation, *actions)
        receipt = make_receipt(task.original, task.rules, [], steps, graph, {}, sizes=task.sizes)
        assert receipt["keep"] == [*keep] and receipt["actions"]
        save_graph(graph, tmp_path / "one.onnx")
        save_graph(replay(receipt, layers()), tmp_path / "two.onnx")
        assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    older = receipt | {"format": 2, "keep": [], "original_hash": rewritten(layers())[0].original.hash}
    with pytest.raises(RLFlowError):
        replay(older, layers())


def test_rules_are_chosen_by_name_on_the_command_line_and_in_python(capsys, tmp_path):
    task, actions, _ = rewritten(layers())
    used = {task.rules[xfer_id].name for xfer_id, _ in actions}
    name = "matmul-add-as-gemm"
    assert name in used and len(used) > 1
    for options in ({"skip_rules": (name,)}, {"only_rules": (name,)}, {"only_rules": [*used], "skip_rules": [name]}):
        task, actions, _ = rewritten(layers(), **options)
        now = {task.rules[xfer_id].name for xfer_id, _ in actions}
        assert now == {name} if options == {"only_rules": (name,)} else name not in now
    file, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    save_model(layers(), file)
    done = in_process(capsys, "optimise", file, "--out", out, "--only-rule", name, "--keep", "t", *QUICK)
    assert done.code == 0 and "t" in {text for node in onnx.load(out).graph.node for text in node.output}
    receipt = tmp_path / "out.run" / "eval" / "receipt.json"
    assert in_process(capsys, "replay", receipt, "--model", file, "--out", tmp_path / "again.onnx").code == 0
    before = sorted(tmp_path.rglob("*"))
    for words, message in (
        (("--skip-rule", name[:-1]), f"no rule is named '{name[:-1]}'; did you mean '{name}'"),
        (("--only-rule", name, "--skip-rule", name), f"no rule of {name} is left"),
        (("--keep", "tt"), "--keep tt: the model has no tensor and no node of this name"),
        (("--method", "x"), "unrecognized"),
    ):
        done = in_process(capsys, "optimise", file, "--out", tmp_path / "no.onnx", *words, *QUICK)
        assert done.code in (1, 2) and message in done.err, done
    assert sorted(tmp_path.rglob("*")) == before  # a refused command leaves nothing behind
