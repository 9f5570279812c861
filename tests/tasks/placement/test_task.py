"""Test the workload of a model, the devices, and the commands of the task."""

import csv

import numpy as np
import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.graph.typical import load_at
from rlflow.runs.folder import RunFolder
from rlflow.tasks.placement.delivery import embedding
from rlflow.tasks.placement.memories import read_device
from rlflow.tasks.placement.task import FS_PER_US, instance_of
from rlflow.tasks.placement.workload import FEATURES, workload_of
from rlflow.zoo import ZOO, load
from rlflow.zoo.convolutional import bottleneck, resnet
from tests.commands import in_process
from tests.tasks.placement.models import TINY_DEVICE


def convolutions() -> onnx.ModelProto:
    """Return conv1 + BatchNormalization + Relu, then conv2 + Add of the first result, then MaxPool, on 2 × 8 × 6
    images."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[1, 2, 8, 6] x) => (float[1, 4, 4, 3] y) {
      a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w1)
      b = BatchNormalization(a, s, s, s, s)
      c = Relu(b)
      d = Conv<kernel_shape = [1, 1], group = 2>(c, w2)
      e = Add(d, c)
      y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w1", (4, 2, 3, 3)), ("s", (4,)), ("w2", (4, 2, 1, 1))):
        array = rng.random(shape, np.float32) + 1
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_a_convolution_absorbs_its_followers_and_has_the_features_of_table_1():
    graph, (sizes, *_) = load_at(convolutions())
    workload = workload_of(graph.at(sizes), 2)
    assert workload.n == 3 and workload.edges.tolist() == [[0, 1], [1, 2]]
    # A node counts `s` once, although it reads it four times.
    assert workload.weights.tolist() == [2 * (72 + 4), 2 * 8, 0]
    assert workload.outputs.tolist() == [2 * 192, 2 * 192, 2 * 48] and workload.given.tolist() == [2 * 96, 0, 0]
    assert workload.reads.tolist() == [2 * 2 * 192, 2 * 192]  # conv2 reads the result as input and as summand.
    assert workload.last.tolist() == [1, 2, 2]
    first = dict(zip(FEATURES, workload.features[0].tolist(), strict=True))
    logs = {name: round(np.expm1(value)) for name, value in first.items()}
    assert (logs["ifmx"], logs["ifmy"], logs["ifmz"], logs["ofmz"], logs["batch"]) == (6, 8, 2, 4, 1)
    assert (first["kernelx"], first["kernely"], first["pad"], logs["groups"], logs["n_ops_left"]) == (3, 3, 1, 1, 2)
    assert logs["n_w_left"] == workload.weights.sum() and logs["ofm_size"] == 192


def test_resnet_50_has_the_operators_of_the_paper():
    """A ResNet-50 has 53 convolutions, two pools, Flatten and Gemm: 57 operators, as the paper counts."""
    narrow = resnet("narrow", 0, bottleneck, [3, 4, 6, 3], width=8, image=32, classes=10)
    assert [node.op_type for node in narrow.graph.node].count("Conv") == 53
    assert instance_of(narrow, "nnp-i", "additive").workload.n == 57


@pytest.mark.parametrize("name", [name for name in ZOO if name.startswith("tiny_")])
def test_every_kind_of_network_is_placed(name):
    one = instance_of(load(name), str(TINY_DEVICE), "compiler")
    workload, result = one.workload, one.evaluate(np.stack([one.control(), np.zeros(one.workload.n, np.int64)]))
    assert one.lower_bound() <= result.objectives.min() and not result.repaired[0]
    assert (workload.sources < workload.edges[:, 1]).all() and (workload.last >= np.arange(workload.n)).all()
    assert workload.weights.sum() and workload.given.sum() and np.isfinite(workload.features).all()


@pytest.mark.parametrize("name", ["nnp-i", "ethos-u55", "edge-tpu"])
def test_shipped_devices_are_read(name):
    device = read_device(name)
    assert len(device.memories) in (2, 3) and device.staging > 0


@pytest.mark.parametrize("change, reason", [
    (("holds: weights", "holds: everything"), None),
    (("gb_per_second: 10}", "gb_per_second: 0.1}"), "from the fastest to the slowest"),
    (("staging_bytes: 1024", "staging_bytes: 8192"), "staging_bytes below"),
    (("tera_ops", "terra_ops"), "needs exactly the keys"),
    (("name: Flash", "name: ../x"), "a name of its own"),
    (("name: Flash", "name: DRAM"), "a name of its own"),
    (("bytes: 8192", "bytes: many"), "bytes are whole numbers, not 'many'"),
    (("element_bytes: 1", "element_bytes: 1.9"), "bytes are whole numbers, not 1.9"),
    (("gb_per_second: 10}", "gb_per_second: fast}"), "not the file of a device"),
    (("holds: weights", "holds: weight"), "a memory holds everything or weights, not 'weight'"),
    (("holds: weights", "hold: weights"), "and perhaps holds"),
    (("0.5}", "0.5, holds: weights}"), "the last are writable"),
])  # fmt: skip
def test_a_wrong_device_is_refused_in_one_line(tmp_path, change, reason):
    path = tmp_path / "device.yaml"
    path.write_text(TINY_DEVICE.read_text().replace(*change))
    if reason is None:
        assert not read_device(str(path)).weights_only.any()
    else:
        with pytest.raises(RLFlowError, match=reason):
            read_device(str(path))
    with pytest.raises(RLFlowError, match="one of edge-tpu, ethos-u55, nnp-i"):
        read_device("npu")


def test_a_run_refuses_to_go_on_with_a_changed_device(tmp_path):
    device = tmp_path / "device.yaml"
    device.write_text(TINY_DEVICE.read_text())
    options = ["task.name=placement", f"placement.device={device}"]
    for _ in range(2):
        RunFolder.open(tmp_path / "run", "tiny_resnet18", overrides=options)
    device.write_text(TINY_DEVICE.read_text().replace("element_bytes: 1", "element_bytes: 2"))
    with pytest.raises(RLFlowError, match="'content of the device file' differs"):
        RunFolder.open(tmp_path / "run", "tiny_resnet18", overrides=options)


@pytest.mark.parametrize("simulator", ["additive", "compiler"])
def test_place_writes_a_consistent_placement(tmp_path, capsys, simulator):
    out = tmp_path / "placed"
    done = in_process(
        capsys,
        "place",
        "tiny_resnet18",
        "--memory",
        TINY_DEVICE,
        "--out",
        out,
        "--simulator",
        simulator,
        "--seconds",
        "2",
    )
    assert done.code == 0, done.err
    assert "simulated" in done.out and "measured on a device" in done.out
    placement = read_json(out / "placement.json")
    times = placement["simulated_us"]
    assert placement["bound_us"] <= times["placement"] <= times["heuristic"]
    assert placement["proved_gap"] == pytest.approx(times["placement"] / placement["bound_us"] - 1)
    rows = {
        name: list(csv.DictReader((out / f"{name}.csv").read_text().splitlines())) for name in ("SRAM", "Flash", "DRAM")
    }
    assert sum(map(len, rows.values())) == len(placement["tensors"])
    for memory in placement["memories"]:
        ends = [int(row["offset"]) + int(row["size"]) for row in rows[memory["name"]]]
        assert memory["used"] == max(ends, default=0)
        assert simulator == "additive" or memory["used"] <= memory["bytes"]
    for tensor in ("weights", "activation"):
        total = sum(one["bytes"] for one in placement["tensors"] if one["tensor"] == tensor)
        assert np.sum(placement["shifted_bytes"][tensor]) == total
    for name in ("timelines", "shift-weights", "shift-activation"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_embedding_keeps_all_distances_of_placements_in_a_plane():
    choices = np.array([[0, 0], [2, 0], [0, 1], [2, 1], [0, 0]])
    maps = np.full((5, 4, 2), 1)
    maps[:, 1, 0], maps[:, 3, 1] = choices.T
    figure = embedding(maps, np.arange(5.0))
    points = np.asarray(figure.axes[0].collections[0].get_offsets())
    hot = np.eye(3)[maps].reshape(5, -1)
    for k in range(5):
        expected, drawn = (np.linalg.norm(rows - rows[k], axis=1) for rows in (hot, points))
        np.testing.assert_allclose(drawn, expected, atol=1e-5)
    assert np.ptp(points[:, 0]) >= np.ptp(points[:, 1])
    assert figure.axes[0].collections[0].get_array().tolist() == [0, 1, 2, 3, 4]


def test_an_unknown_device_or_simulator_is_refused(tmp_path, capsys):
    for arguments, reason in (
        (("--memory", "npu"), "no device 'npu'"),
        (("--simulator", "exact"), "--simulator compiler or additive"),
    ):
        done = in_process(capsys, "place", "tiny_resnet18", "--out", tmp_path / "x", *arguments)
        assert reason in done.error and not (tmp_path / "x").exists()


def test_a_controller_learns_placement_and_its_better_placement_is_written(tmp_path, capsys):
    options = ("--model", "tiny_inception_v3", "task.name=placement", f"placement.device={TINY_DEVICE}",
               "controller.name=linear-scores", "controller.linear-scores.generations=3")  # fmt: skip
    for stage in ("train-controller", "eval"):
        done = in_process(capsys, stage, "--run", tmp_path / "run", *options)
        assert done.code == 0, done.err
    outcome = read_json(tmp_path / "run" / "eval.json")
    assert all(one["equal"] for one in outcome["candidates"].values())
    assert outcome["lower_bound"] <= min(one["objective"] for one in outcome["candidates"].values())
    assert outcome["delivered"] == "controller"
    folder = tmp_path / "run" / "eval"
    placement, receipt = read_json(folder / "placement.json"), read_json(folder / "receipt.json")
    one = instance_of(load("tiny_inception_v3"), str(TINY_DEVICE), "compiler")
    result = one.evaluate(np.stack([one.control(), receipt["actions"]]))
    better, usual = placement["simulated_us"]["placement"], placement["simulated_us"]["heuristic"]
    assert not result.repaired.any() and result.objectives / FS_PER_US == pytest.approx([usual, better])
    assert better * FS_PER_US == pytest.approx(outcome["candidates"]["controller"]["objective"])
    assert better < usual
