"""Test models whose weights do not fit into one file: memory never holds all of them, and files are reproducible."""

import hashlib
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.costs import measured
from rlflow.graph import onnx_runtime as runtime
from rlflow.graph import onnx_writer
from rlflow.graph.feeds import Feeds
from rlflow.graph.ir import Constant, Graph
from rlflow.graph.onnx_reader import load_graph, model_files
from rlflow.graph.onnx_writer import copy_model, kept_apart, model_hash, save_graph, to_model
from rlflow.optimisation.receipt import make_receipt, replay
from rlflow.optimisation.validate import validate
from rlflow.optimisation.validate.onnx_model import Model
from rlflow.rules.language import load_rules
from rlflow.runs.folder import RunFolder
from rlflow.search.descents import greedy
from tests.commands import TINY, in_process
from tests.toys.tiny import tiny_task


@pytest.fixture
def limit(monkeypatch):
    """Lower the limit from which weights go to an external file to 1,000 bytes."""
    monkeypatch.setattr(onnx_writer, "EXTERNAL_DATA_THRESHOLD", 1000)


@pytest.fixture(scope="module")
def rewritten() -> tuple[Graph, list]:
    """Return a graph whose weights include results of rules, and the actions that led to it."""
    result = greedy(tiny_task("tiny_resnet18").initial, 500)
    assert any(node.constant and node.made_by_rule for node in result.state.graph.nodes.values())
    return result.state.graph, result.actions


def test_the_written_bytes_are_the_same_every_time_and_under_every_file_name(rewritten, tmp_path, limit):
    graph, _ = rewritten
    for name in ("a/m", "b/m", "a/other"):
        save_graph(graph, tmp_path / f"{name}.onnx")
    assert (tmp_path / "a/m.onnx").read_bytes() == (tmp_path / "b/m.onnx").read_bytes()
    data = (tmp_path / "a/m.onnx.data").read_bytes()
    assert data == (tmp_path / "b/m.onnx.data").read_bytes() == (tmp_path / "a/other.onnx.data").read_bytes()
    assert (tmp_path / "a/other.onnx").stat().st_size < len(data)
    models = [to_model(graph), onnx.load(tmp_path / "a/m.onnx"), onnx.load(tmp_path / "a/other.onnx")]
    for tensor in (tensor for model in models for tensor in model.graph.initializer):
        tensor.ClearField("data_location")  # loading does not clear this field
    assert models[0] == models[1] == models[2]
    assert load_graph(tmp_path / "a/m.onnx").hash == load_graph(to_model(graph)).hash


def test_every_external_weight_is_aligned_to_64_bytes(rewritten, tmp_path, limit):
    save_graph(rewritten[0], tmp_path / "m.onnx")
    outside = [t for t in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer if t.external_data]
    positions = [{entry.key: entry.value for entry in tensor.external_data} for tensor in outside]
    assert len(positions) > 3 and all(int(position["offset"]) % 64 == 0 for position in positions)
    assert {position["location"] for position in positions} == {"m.onnx.data"}


def test_the_model_hash_equals_the_hash_of_the_written_files(rewritten, tmp_path, monkeypatch):
    graph, _ = rewritten
    written = save_graph(graph, tmp_path / "small.onnx")
    assert written == model_hash(graph) == file_hash(tmp_path / "small.onnx")
    monkeypatch.setattr(onnx_writer, "EXTERNAL_DATA_THRESHOLD", 1000)
    written = save_graph(graph, tmp_path / "m.onnx")
    named = (tmp_path / "m.onnx.data").read_bytes()
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "" if entry.key == "location" else entry.value
    wanted = hashlib.sha256(named + model.SerializeToString(deterministic=True)).hexdigest()
    assert written == model_hash(graph) == wanted


def test_a_session_without_its_large_weights_computes_the_same(rewritten, monkeypatch):
    monkeypatch.setattr(onnx_writer, "LARGE", 2000)
    model = to_model(rewritten[0])
    light, apart = kept_apart(model)
    assert len(apart) > 3 and all(array.nbytes >= 2000 for array in apart.values())
    assert light.ByteSize() < model.ByteSize() - sum(array.nbytes for array in apart.values()) + 100 * len(apart)
    inputs = Feeds.of(model).at({"": {}}, 0)[""]
    for optimise in (False, True):
        kept, whole = runtime.session(light, 1, optimise, apart=apart), runtime.session(model, 1, optimise)
        for one, other in zip(runtime.run(kept, inputs), runtime.run(whole, inputs), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_receipt_replays_to_the_same_bytes(rewritten, tmp_path, limit):
    graph, actions = rewritten
    original = tmp_path / "original.onnx"
    save_graph(tiny_task("tiny_resnet18").graph, original)
    assert len(model_files(original)) == 2
    receipt = make_receipt(load_graph(original), load_rules(), [], actions, graph, {})
    again = replay(receipt, original)
    assert model_hash(again) == model_hash(graph)
    receipt["model_sha256"] = "0" * 64
    with pytest.raises(RLFlowError, match="folded weights differ"):
        replay(receipt, original)


def test_writing_keeps_only_one_large_weight_in_memory_at_a_time(tmp_path, limit):
    graph, loaded, most = tiny_task("tiny_resnet18").graph, [], 0

    def watched(constant: Constant) -> Constant:
        def load():
            nonlocal most
            array = constant.load()
            if constant.type.nbytes >= onnx_writer.SMALLEST_OUTSIDE:
                loaded.append(weakref.ref(array))
            most = max(most, sum(reference() is not None for reference in loaded))
            return array

        return Constant(constant.digest, constant.type, load)

    constants = {tensor: watched(constant) for tensor, constant in graph.constants.items()}
    watched_graph = Graph.build(
        graph.interface, graph.nodes.values(), graph.types, constants, graph.inputs, graph.outputs
    )
    save_graph(watched_graph, tmp_path / "m.onnx")
    assert len(loaded) > 3 and most == 1


# -- sessions --------------------------------------------------------------------------------------


@pytest.fixture
def sessions(monkeypatch) -> list[int]:
    """Return a list; each new session appends the number of sessions that exist, itself included."""
    living, counts, make = weakref.WeakSet(), [], runtime.session

    def counted(*arguments, **options):
        made = make(*arguments, **options)
        living.add(made)
        counts.append(len(living))
        return made

    for module in ("rlflow.costs.measured", "rlflow.optimisation.validate.onnx_model"):
        monkeypatch.setattr(f"{module}.session", counted)
    return counts


def test_large_models_are_measured_one_after_the_other(sessions, monkeypatch, tmp_path):
    model, path = to_model(tiny_task("tiny_resnet18").graph), tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin")
    result = measured.measure(path, path, seconds=0.1, sessions=2)
    assert result["side_by_side"] and max(sessions) == 2 and result["pairs"] >= 6
    sessions.clear()
    monkeypatch.setattr(measured, "TOGETHER", (tmp_path / "w.bin").stat().st_size)  # room for one model, not for both
    result = measured.measure(path, path, seconds=0.1, sessions=2)
    assert not result["side_by_side"] and sessions == [1, 1, 1, 1] and result["pairs"] >= 6
    assert 0.2 < result["ratio"] < 5


def test_two_models_are_compared_one_after_the_other(sessions):
    model = to_model(tiny_task("tiny_resnet18").graph)
    assert validate(model, model).ok
    assert sessions == [1] * 4


# -- files -----------------------------------------------------------------------------------------


def with_weights_outside(
    folder: Path, value: float, name: str = "m", location: str = "w.bin", smallest: int = 0
) -> Path:
    """Write y = x + w and return its path; w has 3,000 elements of `value`.

    Tensors of at least `smallest` bytes lie in the external file `location`.
    """
    w, shape = np.full(3000, value, np.float32), np.array([2, 1500], np.int64)
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Reshape", ["a", "shape"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3000])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(shape, "shape")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / f"{name}.onnx", save_as_external_data=True, location=location, size_threshold=smallest)
    return folder / f"{name}.onnx"


def test_a_shape_stored_as_external_data_is_known(tmp_path):
    graph = load_graph(with_weights_outside(tmp_path, 1.0))
    assert graph.types[graph.outputs[0]].shape == (2, 1500)


def linked_cache(folder: Path, elsewhere: bool = False) -> tuple[Path, Path]:
    """Return (a model, a symbolic link to it); the weights are links, too, as in the cache of the Hugging Face Hub.

    With `elsewhere` the link of the weights leads to another folder than the link of the model.
    """
    made, linked = with_weights_outside(folder, 1.0, smallest=1024), folder / "snapshots" / "main" / "m.onnx"
    target = folder / "blobs" / "123"
    for old, new in ((made, target), (folder / "w.bin", folder / ("other" if elsewhere else "blobs") / "456")):
        new.parent.mkdir(exist_ok=True)
        new.write_bytes(old.read_bytes())
        linked.parent.mkdir(parents=True, exist_ok=True)
        (linked.parent / old.name).symlink_to(new)
    return made, linked


def test_a_model_and_weights_that_are_links_into_one_folder_are_read(tmp_path, capsys):
    made, linked = linked_cache(tmp_path)
    assert load_graph(linked).hash == load_graph(made).hash
    assert Model.read(linked).sha256() == Model.read(made).sha256()
    for command in (["validate", linked, made], ["memory", linked, "--out", tmp_path / "out" / "m.onnx"]):
        done = in_process(capsys, *command)
        assert done.code == 0, done.error
    copy_model(linked, tmp_path / "copy" / "m.onnx", same=False)
    assert load_graph(tmp_path / "copy" / "m.onnx").hash == load_graph(made).hash


def test_weights_that_are_links_out_of_the_folder_of_the_model_are_refused(tmp_path):
    _, linked = linked_cache(tmp_path, elsewhere=True)
    copied = tmp_path / "copied" / "m.onnx"
    copied.parent.mkdir()
    copied.write_bytes(linked.read_bytes())
    (copied.parent / "w.bin").symlink_to((tmp_path / "w.bin").resolve())
    for path in (linked, copied):
        with pytest.raises(RLFlowError, match="it is a symbolic link"):
            load_graph(path)


def test_models_in_one_folder_keep_their_own_weights(tmp_path):
    """Two models that were both called optimised.onnx keep their own weights when they are copied into one folder."""
    for value in (1.0, 2.0):
        made = with_weights_outside(tmp_path / f"{value}", value, "optimised", "optimised.onnx.data")
        copy_model(made, tmp_path / "out" / f"{value}.onnx", same=False)
    for value in (1.0, 2.0):
        weight = onnx.load(tmp_path / "out" / f"{value}.onnx").graph.initializer[0]
        assert set(numpy_helper.to_array(weight)) == {value}


def test_an_original_is_copied_byte_for_byte_but_never_over_another_models_weights(tmp_path):
    one, other = with_weights_outside(tmp_path / "1", 1.0), with_weights_outside(tmp_path / "2", 2.0)
    for _ in range(2):  # the second copy changes nothing
        copy_model(one, tmp_path / "out" / "one.onnx", same=True)
    copied = model_files(tmp_path / "out" / "one.onnx")
    assert [path.read_bytes() for path in copied] == [path.read_bytes() for path in model_files(one)]
    with pytest.raises(RLFlowError, match="w.bin, which is another file already"):
        copy_model(other, tmp_path / "out" / "other.onnx", same=True)
    assert [path.read_bytes() for path in copied] == [path.read_bytes() for path in model_files(one)]
    assert not (tmp_path / "out" / "other.onnx").exists()


def test_a_kill_while_weights_are_replaced_leaves_no_model_with_wrong_weights(tmp_path, rewritten, limit, monkeypatch):
    """A kill between the new weights and the new model leaves no model that reads wrong weights.

    This holds for copied models and for newly written ones.
    """

    def killed(*_):
        raise KeyboardInterrupt

    made = [with_weights_outside(tmp_path / f"{value}", value, "m", "m.onnx.data") for value in (1.0, 2.0)]
    copied, written = tmp_path / "out" / "copied.onnx", tmp_path / "out" / "written.onnx"
    copy_model(made[0], copied, same=False)
    copy_model(made[0], written, same=False)
    old = (tmp_path / "out" / "written.onnx.data").read_bytes()
    monkeypatch.setattr("rlflow.graph.onnx_writer.save_model", killed)
    monkeypatch.setattr(onnx_writer, "save_model", killed)
    for write in (lambda: copy_model(made[1], copied, same=False), lambda: save_graph(rewritten[0], written)):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert (tmp_path / "out" / "copied.onnx.data").read_bytes() == (tmp_path / "2.0" / "m.onnx.data").read_bytes()
    assert (tmp_path / "out" / "written.onnx.data").read_bytes() != old
    assert not copied.exists() and not written.exists()


def test_a_refused_copy_leaves_an_earlier_copy_unchanged(tmp_path):
    old, new = (with_weights_outside(tmp_path / f"{value}", value, "m", "m.onnx.data") for value in (1.0, 2.0))
    model = onnx.load(new, load_external_data=False)
    model.graph.initializer[1].external_data[0].value = "z.bin"  # written after the weights
    onnx.save(model, new)
    copy_model(old, tmp_path / "out" / "m.onnx", same=False)
    for folder, content in (("2.0", bytes(4096)), ("out", b"another's")):
        (tmp_path / folder / "z.bin").write_bytes(content)
    before = [path.read_bytes() for path in model_files(tmp_path / "out" / "m.onnx")]
    with pytest.raises(RLFlowError, match="z.bin, which is another file already"):
        copy_model(new, tmp_path / "out" / "m.onnx", same=False)
    assert [path.read_bytes() for path in model_files(tmp_path / "out" / "m.onnx")] == before


def test_a_run_notices_changed_external_weights(tmp_path):
    source = with_weights_outside(tmp_path / "m", 1.0, smallest=1024)
    for _ in range(2):
        RunFolder.open(tmp_path / "run", str(source), overrides=["cost.name=analytic"])
    with_weights_outside(tmp_path / "m", 2.0, smallest=1024)
    with pytest.raises(RLFlowError, match="has changed since"):
        RunFolder.open(tmp_path / "run", str(source), overrides=["cost.name=analytic"])


@pytest.mark.parametrize("out, lost", [("m.onnx", "m.onnx"), ("b.onnx", "b.onnx.data")])
def test_no_file_of_the_model_itself_is_overwritten(tmp_path, capsys, out, lost):
    source = with_weights_outside(tmp_path / "m", 1.0, location="b.onnx.data", smallest=1024)
    before = [path.read_bytes() for path in model_files(source)]
    (tmp_path / "receipt.json").write_text("{}")
    for command in (["optimise", source, *TINY], ["replay", tmp_path / "receipt.json", "--model", source]):
        done = in_process(capsys, *command, "--out", source.parent / out)
        assert f"{lost} is the model itself" in done.error
    assert [path.read_bytes() for path in model_files(source)] == before
