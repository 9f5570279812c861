"""Test inputs from the user: they are read without pickle, checked against the model, and used before drawn inputs."""

import zipfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlflow.common.errors import RLFlowError
from rlflow.graph import given_inputs
from rlflow.graph.feeds import Feeds, tried_feeds
from rlflow.graph.given_inputs import read_inputs
from tests.costs.graphs import model
from tests.field.inputs_that_fit import EIGHT, SHIFTED, factors

CACHE = model("""g (int64[B,S] ids, float[B,P,2] past, float[B,"P + S"] mask) => (float[B,T,2] y)
  { a = Cast<to=1>(ids) b = Constant<value = int64[1] {2}>() c = Unsqueeze(a, b) d = Concat<axis=2>(c, c)
    e = Concat<axis=1>(past, d) m = Unsqueeze(mask, b) y = Mul(e, m) }""")
GOOD = {"ids": np.zeros((1, 3), int), "past": np.zeros((1, 4, 2), "f"), "mask": np.ones((1, 7), "f")}


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_the_sizes_of_symbols_come_from_the_given_arrays(tmp_path):
    (one,) = read_inputs(CACHE, [saved(tmp_path / "a.npz", **GOOD)])
    assert one.name == "a.npz" and one.sizes == {"B": 1, "S": 3, "P": 4}
    feeds = Feeds.of(CACHE, [tmp_path / "a.npz"])
    assert feeds.named_sizes({"S": (5, 6)}) == {"B": 1, "P": 4, "S": (5, 6)}
    assert feeds.named_sizes({"past": (1, 9, 2)}) == {"S": 3, "past": (1, 9, 2)}


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"ids": GOOD["ids"].astype(np.int32)}, "a.npz: input 'ids' is int32, the model takes int64"),
        ({"ids": np.zeros(3, int)}, r"input 'ids' has the shape \[3\], the model takes 2 dimensions"),
        ({"past": np.zeros((1, 4, 3), "f")}, "axis 2 of input 'past' has size 3, it must be 2"),
        ({"past": np.zeros((2, 4, 2), "f")}, "has size 2, it must be 1|has size 1, it must be 2"),
        ({"mask": np.ones((1, 8), "f")}, "axis 1 of input 'mask' has size 8, it must be 7"),
        ({"ids": np.zeros((1, 0), int), "mask": np.ones((1, 4), "f")}, "'S' has size 0, and .* for sizes from 1"),
        ({"idz": np.zeros(1)}, "the model has no input 'idz'; it has ids, past, mask"),
        ({"mask": None}, "the model's input 'mask' is missing"),
        ({"ids": np.array([["a"]])}, "is <U1, the model takes int64"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_refused_in_one_line(wrong, says, tmp_path):
    arrays = {name: array for name, array in (GOOD | wrong).items() if array is not None}
    with pytest.raises(RLFlowError, match=says) as refused:
        read_inputs(CACHE, [saved(tmp_path / "a.npz", **arrays)])
    assert "\n" not in str(refused.value)


def test_unsafe_and_damaged_files_are_refused(tmp_path, monkeypatch):
    pickled = saved(tmp_path / "pickled.npz", **GOOD | {"ids": np.array([[None]])})
    (tmp_path / "junk.npz").write_bytes(b"junk")
    (tmp_path / "other.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "members.npz", "w") as archive:
        archive.writestr("ids.npy", b"\x93NUMPY\x01\x00")
    for path, says in (
        (pickled, "cannot be read"), (tmp_path / "junk.npz", "cannot be read"),
        (tmp_path / "members.npz", "cannot be read"),
        (tmp_path / "other.txt", "neither an .npz file nor a folder"), (tmp_path / "none.npz", "no such file"),
        (tmp_path / "empty", "holds neither"),
    ):  # fmt: skip
        with pytest.raises(RLFlowError, match=says):
            read_inputs(CACHE, [path])
    np.savez_compressed(tmp_path / "zlib.npz", **GOOD)
    damaged = bytearray((tmp_path / "zlib.npz").read_bytes())
    damaged[60:70] = b"\xff" * 10
    (tmp_path / "zlib.npz").write_bytes(damaged)
    with pytest.raises(RLFlowError, match="cannot be read"):
        read_inputs(CACHE, [tmp_path / "zlib.npz"])
    monkeypatch.setattr(given_inputs, "MAX_BYTES", 100)
    with pytest.raises(RLFlowError, match="pass at most"):
        read_inputs(CACHE, [saved(tmp_path / "a.npz", **GOOD)])


def test_input_folders_hold_npz_files_or_onnx_protobufs(tmp_path):
    for number in range(2):
        folder = tmp_path / "sets" / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        for position, array in enumerate(GOOD.values()):
            (folder / f"input_{position}.pb").write_bytes(numpy_helper.from_array(array + number).SerializeToString())
    (tmp_path / "files").mkdir()
    saved(tmp_path / "files" / "b.npz", **GOOD)
    saved(tmp_path / "files" / "a.npz", **GOOD)
    sets = read_inputs(CACHE, [tmp_path / "files", tmp_path / "sets", tmp_path / "sets" / "test_data_set_1"])
    assert [one.name for one in sets] == ["a.npz", "b.npz", *(f"test_data_set_{k}" for k in (0, 1, 1))]
    assert [one.arrays["ids"].max() for one in sets] == [0, 0, 0, 1, 1]


def test_sequences_and_strings_can_be_given_as_inputs(tmp_path):
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    inputs = [
        helper.make_value_info("xs", helper.make_sequence_type_proto(element)),
        helper.make_tensor_value_info("t", TensorProto.STRING, [2]),
    ]
    nodes = [helper.make_node("SequenceLength", ["xs"], ["n"]), helper.make_node("Identity", ["t"], ["u"])]
    outputs = [helper.make_tensor_value_info("n", TensorProto.INT64, []), helper.make_tensor_value_info("u", 8, [2])]
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=8)
    x = np.ones(2, "f")
    path = saved(tmp_path / "a.npz", **{f"xs.{k}": k * x for k in range(11)}, t=np.array(["b", "c"]))
    outside = onnx.TensorProto(data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="secret.bin")
    sequence = onnx.SequenceProto(elem_type=onnx.SequenceProto.TENSOR, tensor_values=[outside])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "input_0.pb").write_bytes(sequence.SerializeToString())
    with pytest.raises(RLFlowError, match="refers to another file"):
        read_inputs(made, [tmp_path / "folder"])
    (one,) = tried_feeds(made, [path]).given
    assert [array[0] for array in one.arrays["xs"]] == list(range(11)) and one.arrays["t"].tolist() == ["b", "c"]


def test_given_inputs_come_first_and_suffice_if_drawn_inputs_do_not_run(tmp_path):
    path = saved(tmp_path / "a.npz", **EIGHT)
    with pytest.raises(RLFlowError, match="'a', 'b' on which the model runs.*Reshape.*--inputs DATA.npz"):
        tried_feeds(factors())
    feeds = tried_feeds(factors(), [path])
    assert feeds.refused and len(feeds.sets({}, (0, 1, 2))) == 1
    assert feeds.at({"": {}}, 0)[""]["a"] == 8
    both = tried_feeds(SHIFTED(), [saved(tmp_path / "b.npz", ids=np.full((2, 3), 1004))])
    assert both.refused is None
    given, *drawn = both.sets({"b": 2, "s": 3}, (0, 1))
    assert given["ids"].max() == 1004 and len(drawn) == 2
    points = both.at({"first": {"b": 2, "s": 3}, "second": {"b": 1, "s": 300}}, 0)
    assert points["first"] is given and points["second"]["ids"].shape == (1, 300)


def test_an_input_with_a_default_cannot_be_given(tmp_path):
    made = onnx.ModelProto()
    made.CopyFrom(model("g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }"))
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [2]))
    x = np.ones(2, "f")
    with pytest.raises(RLFlowError, match="'c' has a default"):
        read_inputs(made, [saved(tmp_path / "a.npz", x=x, c=x)])
