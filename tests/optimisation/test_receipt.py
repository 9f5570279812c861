import copy
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_json
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import RewriteState
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_writer import save_graph, save_model, to_model
from rlflow.optimisation.receipt import check_result, make_receipt, replay, retrace, shapes_of, sizes_of
from rlflow.search.descents import greedy
from rlflow.zoo import load
from tests.suite import slow
from tests.toys.tiny import tiny_task

ROOT = Path(__file__).parents[2]


def receipt_of(name: str, random_steps: int = 0) -> tuple[dict, Graph]:
    """Return the receipt and the final graph of a greedy or random sequence of rewrites of a tiny model."""
    task = tiny_task(name)
    state: RewriteState = task.initial
    actions = list(greedy(state, 500).actions)
    if random_steps:
        actions, rng = [], np.random.default_rng(1)
        for _ in range(random_steps):
            valid = state.valid_actions()[:-1]
            actions.append(tuple(valid[rng.integers(len(valid))].tolist()))
            state = state.apply(*actions[-1])
        state = task.initial
    for action in actions:
        state = state.apply(*action)
    return make_receipt(task.graph, task.rules, [], actions, state.graph, {"estimated": {}}), state.graph


def digest(graph: Graph) -> str:
    return hashlib.sha256(to_model(graph).SerializeToString(deterministic=True)).hexdigest()


@pytest.mark.nightly
@pytest.mark.parametrize("name, steps", [("tiny_bert_base", 15), *slow(("tiny_inception_v3", 0))])
def test_replay_in_another_process_with_another_hash_seed_gives_the_same_bytes(tmp_path, name, steps):
    receipt, result = receipt_of(name, steps)
    assert len(receipt["actions"]) > 5
    save_graph(result, tmp_path / "result.onnx")
    save_model(load(name), tmp_path / "original.onnx")
    write_json(tmp_path / "receipt.json", receipt)
    for hash_seed in ("1", "4711"):
        out = tmp_path / f"replayed-{hash_seed}.onnx"
        done = subprocess.run(
            [
                sys.executable, str(ROOT / "run.py"), "replay", "receipt.json", "--model", "original.onnx", "--out",
                str(out),
            ],
            cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert out.read_bytes() == (tmp_path / "result.onnx").read_bytes()


def test_a_receipt_survives_json_and_says_what_was_done(tmp_path):
    receipt, result = receipt_of("tiny_resnet18")
    assert json.loads(json.dumps(receipt)) == receipt
    assert receipt["model_sha256"] == digest(result)
    assert receipt["versions"].keys() == {"numpy", "onnx", "onnxruntime"}
    names = [rule.name for rule in tiny_task().rules]
    assert all(names[action["xfer_id"]] == action["rule"] for action in receipt["actions"])
    again = replay(receipt, load("tiny_resnet18"))
    assert again.hash == receipt["result_hash"] and digest(again) == digest(result)


def test_every_intermediate_graph_of_a_receipt_can_be_retraced():
    receipt, result = receipt_of("tiny_resnet18")
    graphs = list(retrace(receipt, load("tiny_resnet18")))
    state, hashes = tiny_task("tiny_resnet18").initial, []
    for action in receipt["actions"]:
        hashes.append(state.graph.hash)
        state = state.apply(action["xfer_id"], action["location"])
    assert [graph.hash for graph in graphs] == [*hashes, result.hash]
    check_result(receipt, graphs[-1])
    with pytest.raises(RLFlowError, match="ends at another graph"):
        check_result(receipt, graphs[-2])


def test_an_empty_receipt_replays_to_the_exported_original():
    task = tiny_task()
    receipt = make_receipt(task.graph, task.rules, [], [], task.graph, {})
    assert digest(replay(receipt, load("tiny_resnet18"))) == digest(task.graph)


def test_a_receipt_replays_with_only_its_named_rule_families():
    task = tiny_task("tiny_resnet18", rules=("convolution",))
    result = greedy(task.initial, 500)
    receipt = make_receipt(task.graph, task.rules, ["convolution"], result.actions, result.state.graph, {})
    assert result.actions and digest(replay(receipt, load("tiny_resnet18"))) == digest(result.state.graph)


def open_model(batch: object) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{batch},4] x) => (float[{batch},4] y)
        {{ a = Relu(x) b = Relu(a) y = Relu(b) }}"""
    )


def greedy_receipt(model: onnx.ModelProto, **sizes) -> tuple[dict, Graph]:
    task = EnvSpec("", cost="analytic", **sizes).open(model)
    read = greedy(task.initial, 10)
    shapes = dict(sizes["shapes"]) if sizes.get("fix") else {}
    made = make_receipt(task.graph, task.rules, [], read.actions, read.state.graph, {}, shapes, sizes=task.sizes)
    return made, read.state.graph


def test_a_receipt_of_a_symbolic_model_replays_to_a_symbolic_model():
    receipt, result = greedy_receipt(open_model("batch"), shapes=(("batch", (2, 8)),))
    assert receipt["symbols"] == {"batch": 1} and receipt["shapes"] == {} and len(receipt["actions"]) == 2
    assert sizes_of(json.loads(json.dumps(receipt))) == {"batch": (2, 8)}
    again = replay(receipt, open_model("batch"))
    assert digest(again) == digest(result)
    (dim, _) = to_model(again).graph.input[0].type.tensor_type.shape.dim
    assert dim.dim_param == "batch"
    with pytest.raises(RLFlowError, match="belongs to another model"):
        replay(receipt, open_model(2))


def test_receipts_of_the_first_format_bind_all_symbolic_sizes():
    """Receipts of the first format have neither symbols nor typical sizes; they bind all open sizes."""
    receipt, result = greedy_receipt(open_model("batch"), shapes=(("batch", 2),), fix=True)
    assert receipt["format"] == 3 and receipt["shapes"] == {"batch": 2} and receipt["symbols"] == {}
    first = {key: value for key, value in receipt.items() if key not in ("symbols", "sizes")} | {"format": 1}
    assert digest(replay(first, open_model("batch"))) == digest(result)
    assert (shapes_of(first), sizes_of(first)) == ({"batch": 2}, {})
    with pytest.raises(RLFlowError, match="belongs to another model"):
        replay(first | {"shapes": {}}, open_model("batch"))


@pytest.mark.parametrize("sizes", [3, [3], [{"batch": 0}], [{"batch": "2"}], None])
def test_malformed_typical_sizes_of_a_receipt_are_refused(sizes):
    with pytest.raises(RLFlowError, match="not a receipt"):
        sizes_of({"format": 3, "sizes": sizes})


CHANGES = {
    "rules": (lambda r: r.update(rules_hash="0" * 64), "was made with another rule set"),
    "families": (lambda r: r.update(rule_families=["elementwise"]), "was made with another rule set"),
    "unknown family": (lambda r: r.update(rule_families=["fuson"]), "unknown rule family 'fuson'.*fusion"),
    "location": (lambda r: r["actions"][1].update(location=999), "step 1 of the receipt: rule .* has no location 999"),
    "negative": (lambda r: r["actions"][0].update(location=-1), "step 0 of the receipt: rule .* has no location -1"),
    "unknown rule": (lambda r: r["actions"][0].update(rule="magic"), "no rule is named 'magic'"),
    "result": (lambda r: r.update(result_hash="0" * 64), "ends at another graph"),
    "an action less": (lambda r: r["actions"].pop(), "ends at another graph"),
    "bytes": (lambda r: r.update(model_sha256="0" * 64), "folded weights differ. Use the versions of the receipt"),
    "format": (lambda r: r.update(format=99), "has format 99; this version reads 1 to 3"),
    "shapes": (lambda r: r.update(shapes={"nothing": 3}), "names 'nothing'"),
    "symbols": (lambda r: r.update(symbols={"batch": 1}), "belongs to another model"),
    "symbols of another type": (lambda r: r.update(symbols=3), "not a receipt"),
    "location of another type": (lambda r: r["actions"][0].update(location="first"), "not a receipt"),
    "actions of another type": (lambda r: r.update(actions=3), "not a receipt"),
    "no rule in an action": (lambda r: r["actions"][0].pop("rule"), "not a receipt: .*rule"),
}


@pytest.fixture(scope="module")
def receipt():
    return receipt_of("tiny_resnet18")[0]


@pytest.mark.parametrize("change", CHANGES)
def test_tampered_receipts_are_refused_in_one_line(receipt, change):
    edit, message = CHANGES[change]
    forged = copy.deepcopy(receipt)
    edit(forged)
    with pytest.raises(RLFlowError, match=message) as caught:
        replay(forged, load("tiny_resnet18"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "format", "original_hash", "rules_hash", "rule_families", "shapes", "symbols", "actions", "result_hash",
        "model_sha256",
    ],
)
def test_a_missing_key_is_named(receipt, key):
    forged = {name: value for name, value in receipt.items() if name != key}
    with pytest.raises(RLFlowError, match=f"not a receipt: .*{key}"):
        replay(forged, load("tiny_resnet18"))


@pytest.mark.parametrize("value", [[], 3, "text", None])
def test_a_receipt_that_is_not_a_mapping_is_refused(value):
    with pytest.raises(RLFlowError, match="not a receipt"):
        replay(value, load("tiny_resnet18"))


def test_a_receipt_of_another_model_is_refused(receipt):
    with pytest.raises(RLFlowError, match="belongs to another model"):
        replay(receipt, load("tiny_resnet50"))
    with pytest.raises(RLFlowError, match="belongs to another model"):
        replay(receipt, load("tiny_resnet18", seed=1))  # a model with other weights is another model
