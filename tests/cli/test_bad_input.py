"""Test mistakes of users and failures of systems: one line on standard error, a non-zero exit status, no lost file."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from rlflow.common import files
from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_writer import save_model
from rlflow.zoo import load
from tests.commands import EDITS, ROOT, TINY, in_its_own, in_process
from tests.suite import at_night, slow

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def folder(optimised, tmp_path) -> Path:
    """Return a copy of a finished run, which the test may damage."""
    return Path(shutil.copytree(optimised / "run", tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that must not be lost: all except TensorBoard's events."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_file() and "tensorboard" not in path.parts
    }  # fmt: skip


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- models ----------------------------------------------------------------------------------------


def matmul(folder: Path, shape=(2, 8), op="MatMul", after=(), **save) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], 4])
    w = onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    names = ["y", *map(str, range(len(after)))][::-1]
    nodes = [helper.make_node(op, ["x", "w"], names[:1])]
    nodes += [helper.make_node(name, [names[k]], [names[k + 1]]) for k, name in enumerate(after)]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx", **save)
    return folder / "m.onnx"


def broken(folder: Path, kind: str) -> tuple[str, str]:
    """Write a broken model of a kind; return (argument of --model, text that the message must contain)."""
    path = folder / "m.onnx"
    if kind == "not onnx":
        path.write_text("this is a text, not a model\n" * 10)
        return str(path), "is not an ONNX file"
    if kind == "empty":
        path.write_bytes(b"")
        return str(path), "m.onnx"
    if kind == "image":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
        return str(path), "is not an ONNX file"
    if kind == "truncated":
        whole = load("tiny_resnet18").SerializeToString()
        path.write_bytes(whole[: len(whole) // 2])
        return str(path), "is not an ONNX file"
    if kind == "refused by the checker":
        return str(matmul(folder, op="MatMull")), "the ONNX checker refuses"
    if kind == "no weights":
        matmul(folder, save_as_external_data=True, location="weights.bin", size_threshold=0)
        (folder / "weights.bin").unlink()
        return str(path), "weights.bin"
    if kind == "missing file":
        return str(folder / "gone.onnx"), "no such file"
    if kind == "a folder":
        return str(folder), f"{folder} is a folder. Pass the path of an ONNX file, or a name of the zoo"
    assert kind == "misspelt zoo name"
    return "tiny_resnet81", "did you mean 'tiny_resnet18'?"


KINDS = [
    "not onnx", "empty", "image", "truncated", "refused by the checker", "no weights", "missing file",
    "a folder", "misspelt zoo name",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_model_is_refused_and_the_run_folder_stays_usable(tmp_path, capsys, kind):
    model, message = broken(tmp_path, kind)
    run = tmp_path / "run"
    assert message in in_process(capsys, "collect", "--run", run, "--model", model, *TINY).error
    assert not (run / "config.yaml").exists() and not (run / "model.json").exists()
    done = in_process(capsys, "optimise", model, "--out", tmp_path / "out.onnx", "--run", run, *TINY)
    assert message in done.error
    assert not (tmp_path / "out.onnx").exists()
    if kind in at_night(KINDS, KINDS[-1:]):  # the same folder then accepts another model
        taken = in_process(capsys, "collect", "--run", run, "--model", "tiny_squeezenet1_1", *EDITS)
        assert taken.code == 0, taken.err


def test_wrong_sizes_are_refused_and_the_run_folder_stays_usable(tmp_path, capsys):
    model = matmul(tmp_path, ("batch", 8), after=("Identity",))
    base = ["collect", "--run", tmp_path / "run", "--model", model, *TINY, "collect.episodes=1"]
    assert "--shape batch=1" in in_process(capsys, *base, "--fix").error
    assert "--shape batch=SIZE, not batch=1,2" in in_process(capsys, *base, "--fix", "--shape", "batch=1,2").error
    for wrong, message in (
        ("batch=0", "--shape takes"),
        ("other=3", "'other'"),
        ("x=3x9", "fixed size 8"),
        ("x=3", "2 dimensions"),
    ):
        assert message in in_process(capsys, *base, "--shape", wrong).error
    assert in_process(capsys, *base, "--shape", "batch=2").code == 0
    assert "'fix' differs" in in_process(capsys, *base, "--fix").error
    assert "'shapes' differs" in in_process(capsys, *base, "--shape", "batch=3").error


@pytest.mark.nightly
def test_an_error_in_a_separate_process_prints_one_line(tmp_path, capsys):
    model, message = broken(tmp_path, "not onnx")
    done = in_its_own("collect", "--run", tmp_path / "run", "--model", model, *EDITS)
    assert message in done.error and done.out == ""
    assert len(done.err.strip().splitlines()) == 1
    # with --debug the exception passes, so that Python prints a traceback
    with pytest.raises(RLFlowError, match=message):
        in_process(capsys, "collect", "--run", tmp_path / "run", "--model", model, "--debug", *EDITS)


# -- names and numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override, message",
    [
        ("controller.name=pppo", "unknown controller 'pppo'; did you mean 'ppo'?"),
        ("controller.name=cmaes", "unknown controller 'cmaes'; did you mean 'cma-es'?"),
        ("world_model.name=mdnrnn", "unknown world model 'mdnrnn'; did you mean 'mdn-rnn'?"),
        ("cost.name=analitic", "unknown cost 'analitic'; did you mean 'analytic'?"),
        ("env.reward=incremental_", "unknown reward 'incremental_'; did you mean 'incremental'?"),
        ("env.rules=[convolutoin]", "unknown rule family 'convolutoin'"),
        ("world_model.mode=onlin", "'world_model.mode' is one of offline, online, not 'onlin'"),
        ("collect.episodes=0", "'collect.episodes' must be above 0"),
        ("env.max_steps=0", "'env.max_steps' must be above 0"),
        ("workers=0", "'workers' must be above 0"), ("workers=-2", "'workers' must be above 0"),
        ("env.max_locations=0", "'env.max_locations' must be above 0"), ("seed=-1", "'seed' must be 0 or more"),
        ("env.max_stepz=3", "did you mean 'env.max_steps'?"),
        ("world_model.mdn-rnn.hidden=a", "'world_model.mdn-rnn.hidden' is a int"),
    ],
)  # fmt: skip
def test_names_and_numbers_are_checked_before_anything_is_written(tmp_path, capsys, override, message):
    for command in (["collect", "--run", tmp_path / "run", "--model", "tiny_resnet18"],
                    ["optimise", "tiny_resnet18", "--out", tmp_path / "o.onnx", "--run",
                        tmp_path / "run"]):  # fmt: skip
        assert message in in_process(capsys, *command, *TINY, override).error
    assert not (tmp_path / "run" / "config.yaml").exists() and not (tmp_path / "o.onnx").exists()


def test_optimise_checks_the_controllers_options_before_the_long_work(tmp_path, capsys):
    done = in_process(
        capsys, "optimise", "tiny_resnet18", "--out", tmp_path / "o.onnx", "--run", tmp_path / "run", *TINY,
        "controller.ppo.updates=3", "controller.ppo.evaluate_every=2",
    )  # fmt: skip
    assert "evaluate_every to divide updates" in done.error and not (tmp_path / "run" / "episodes").exists()


@pytest.mark.parametrize("option", ["--seed", "--shape", "--config"])
def test_invalid_values_of_command_line_options_are_refused(tmp_path, capsys, option):
    value, message = {
        "--seed": ("-1", "'seed' must be 0 or more"), "--shape": ("x", "--shape takes NAME=128"),
        "--config": (str(tmp_path / "gone.yaml"), "cannot read"),
    }[option]  # fmt: skip
    assert (
        message
        in in_process(
            capsys, "collect", "--run", tmp_path / "run", "--model", "tiny_resnet18", f"{option}={value}"
        ).error
    )


# -- where results go ------------------------------------------------------------------------------


def test_an_unwritable_target_is_noticed_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    run = tmp_path / "run"
    for out in (tmp_path / "file" / "o.onnx", tmp_path):
        done = in_process(capsys, "optimise", "tiny_resnet18", "--out", out, "--run", run, *TINY)
        assert "cannot write" in done.error and not run.exists()
    done = in_process(
        capsys, "collect", "--run", run, "--model", "tiny_resnet18", "--json", tmp_path / "file" / "r.json", *TINY
    )
    assert "cannot write" in done.error and not run.exists()
    done = in_process(capsys, "collect", "--run", tmp_path / "file", "--model", "tiny_resnet18", *TINY)
    assert "cannot write" in done.error and (tmp_path / "file").read_text() == "x"


def test_the_json_option_creates_a_missing_folder(tmp_path, capsys):
    file = tmp_path / "a" / "b" / "r.json"
    arguments = ["collect", "--run", tmp_path / "run", "--model", "tiny_squeezenet1_1", "--json", file, *TINY]
    assert in_process(capsys, *arguments).code == 0
    assert json.loads(file.read_text())["stage"] == "collect"


# -- run folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stage, needs", [("train-wm", "collect"), ("train-controller", "train-wm"), ("eval", "train-controller")]
)
def test_a_stage_without_its_predecessor_names_the_missing_stage(tmp_path, capsys, stage, needs):
    done = in_process(capsys, stage, "--run", tmp_path / "run", "--model", "tiny_squeezenet1_1", *TINY)
    assert f"has no finished '{needs}'; run `" in done.error
    assert done.error.endswith(f" {needs} --run {tmp_path / 'run'}` first")


def test_a_missing_model_is_refused_with_a_hint(tmp_path, capsys):
    assert "pass --model with a zoo name" in in_process(capsys, "collect", "--run", tmp_path / "run").error


def test_a_run_folder_of_another_task_is_refused_and_stays_unchanged(folder, tmp_path, capsys):
    before = contents(folder)
    for arguments, message in (
        (["--model", "tiny_resnet50"], "belongs to the model 'tiny_resnet18'"), (["--seed", "8"], "'seed' differs"),
        (["env.max_steps=7"], "'env' differs"), (["cost.threads=2"], "'cost' differs"),
        (["collect.by_rule=0"], "'by_rule' differs"),
        (["--model", str(folder / "model.onnx")], "belongs to the model 'tiny_resnet18'"),
    ):  # fmt: skip
        for stage in at_night(("collect", "eval"), ("eval",)):
            assert message in in_process(capsys, stage, "--run", folder, *arguments).error
    assert contents(folder) == before


def test_a_changed_or_deleted_model_is_refused(tmp_path, capsys):
    source, run = tmp_path / "m.onnx", tmp_path / "run"
    save_model(load("tiny_squeezenet1_1"), source)
    command = ["collect", "--run", run, "--model", source, *TINY]
    assert in_process(capsys, *command).code == 0
    save_model(load("tiny_squeezenet1_1", seed=1), source)
    assert "has changed since" in in_process(capsys, *command).error
    source.unlink()
    assert "is gone" in in_process(capsys, *command).error


@pytest.mark.parametrize("name", ["config.yaml", "model.json", "world-model/weights.npz",
                                  *slow("collect.json", "world-model/model.json", "train-wm.json",
                                        "controller/ppo-1/controller.json", "controller/ppo-1/controller.npz",
                                        "controller/ppo-1/training.json", "train-controller.json")])  # fmt: skip
@pytest.mark.parametrize("damage", ["half", *slow("garbage")])
def test_a_damaged_file_is_named(folder, capsys, name, damage):
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(
        whole[: len(whole) // 2] + (b": [" if name == "config.yaml" else b"") if damage == "half" else b"\x00\xff{" * 9
    )
    before = contents(folder)
    stage = {"collect.json": "train-wm", "train-wm.json": "train-controller"}.get(name, "eval")
    assert name.split("/")[-1].split(".")[0] in in_process(capsys, stage, "--run", folder).error
    assert contents(folder) == before


@pytest.mark.parametrize("content", ["[]", '{"model": "tiny_resnet18"}', *slow("{}", "3")])
def test_json_of_another_form_is_refused(folder, capsys, content):
    for name in ("model.json", "world-model/model.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_text(content)
        done = in_process(capsys, "eval", "--run", folder)
        assert done.error, name
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize("error", [OSError("no such colour"), *slow(KeyboardInterrupt("stopped"))])
def test_the_stage_eval_is_complete_if_its_plot_fails(folder, capsys, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("controllers.stages.acting.draw_dream_and_reality", fail)
    (folder / "eval.json").unlink()
    done = in_process(capsys, "eval", "--run", folder)
    assert done.code == 0 and f"its plot of dreamt and real rewards failed: {error}" in done.err, done.err
    assert done.ending["model"] and json.loads((folder / "eval.json").read_text())["delivered"]


# -- checkpoints of another shape ------------------------------------------------------------------


@pytest.mark.parametrize(
    "override", ["world_model.mdn-rnn.hidden=16", *slow("world_model.mdn-rnn.latent=6", "world_model.mdn-rnn.steps=3")]
)
def test_a_world_model_trained_with_other_options_is_refused(folder, capsys, override):
    before = contents(folder / "world-model")
    key = override.split("=")[0]
    for stage in at_night(("train-controller", "eval"), ("eval",)):
        message = in_process(capsys, stage, "--run", folder, override).error
        assert f"was trained with {key}=" in message and "another --run" in message
    assert "training with another configuration" in in_process(capsys, "train-wm", "--run", folder, override).error
    assert contents(folder / "world-model") == before


@pytest.mark.nightly
def test_a_controller_for_another_latent_size_is_refused_and_can_be_trained_anew(folder, capsys):
    shutil.rmtree(folder / "world-model")
    assert (
        in_process(capsys, "train-wm", "--run", folder, "world_model.mdn-rnn.latent=6", "world_model.holdout=0").code
        == 0
    )
    before = contents(folder / "controller")
    assert "the world model has changed since" in in_process(capsys, "eval", "--run", folder).error
    assert contents(folder / "controller") == before
    done = in_process(capsys, "train-controller", "--run", folder)
    assert done.code == 0 and "the controller is trained anew" in done.err
    assert in_process(capsys, "eval", "--run", folder).code == 0


def test_a_controller_trained_with_other_options_is_refused(folder, capsys):
    message = in_process(capsys, "train-controller", "--run", folder, "controller.ppo.gamma=0.5").error
    assert "holds a training with other options (gamma 0.995, not 0.5)" in message
    message = in_process(capsys, "eval", "--run", folder, "--only", "random").error
    assert "has no finished experiment 'random'; finished: ppo" in message


def test_a_world_model_trained_on_fewer_episodes_is_refused(folder, capsys):
    assert in_process(capsys, "collect", "--run", folder, "collect.episodes=8").code == 0
    assert "another set of episodes" in in_process(capsys, "train-wm", "--run", folder).error


# -- disks and databases ---------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["collect", *slow("train-wm", "train-controller", "eval")])
def test_a_full_disk_loses_nothing_and_the_stage_can_be_repeated(optimised, folder, capsys, monkeypatch, stage):
    spoilt = {
        "collect": ["episodes/shard-00001.npz", "collect.json"],
        "train-wm": ["world-model/weights.npz", "train-wm.json"],
        "train-controller": ["controller/ppo-1/controller.json", "train-controller.json"],
        "eval": ["eval/optimised.onnx", "eval.json"],
    }[stage]  # fmt: skip
    for name in spoilt:
        (folder / name).unlink()
    before = contents(folder)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full_disk)
        message = in_process(capsys, stage, "--run", folder).error
    assert "No space left on device" in message and "cannot write" in message
    assert contents(folder) == before
    assert in_process(capsys, stage, "--run", folder).code == 0
    for name in spoilt[:1]:
        assert (folder / name).read_bytes() == (optimised / "run" / name).read_bytes()


@pytest.mark.nightly
def test_a_file_size_limit_leaves_no_partial_shard_and_the_stage_can_be_repeated(tmp_path, capsys):
    """Shards do not fit but small files do if the size of files is limited, as on a full disk.

    The command runs in its own process.
    """
    def limit():
        psutil.Process().rlimit(psutil.RLIMIT_FSIZE, (16384, 16384))

    command = [
        sys.executable,
        str(ROOT / "run.py"),
        "collect",
        "--run",
        "run",
        "--model",
        str(tmp_path / "m.onnx"),
        *EDITS,
    ]
    save_model(load("tiny_squeezenet1_1"), tmp_path / "m.onnx")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: cannot write" in done.stderr and "shard-00000.npz: File too large" in done.stderr
    assert not list((tmp_path / "run" / "episodes").iterdir())
    arguments = ("--run", tmp_path / "run", "--model", tmp_path / "m.onnx", *EDITS)
    assert in_process(capsys, "collect", *arguments).code == 0
    assert len(list((tmp_path / "run" / "episodes").iterdir())) == 2


def test_a_damaged_cost_database_is_refused_and_stays_unchanged(tmp_path, capsys):
    database, run = tmp_path / "costs.sqlite", tmp_path / "run"
    database.write_bytes(b"no database at all" * 100)
    command = [
        "collect",
        "--run",
        run,
        "--model",
        "tiny_squeezenet1_1",
        *TINY,
        "collect.episodes=1",
        "cost.name=profiled",
    ]
    message = in_process(capsys, *command, f"cost.database={database}").error
    assert f"cannot use the cost database {database}" in message and "delete it or name another" in message
    assert database.read_bytes() == b"no database at all" * 100
    (tmp_path / "file").write_text("")
    assert (
        "cannot use the cost database"
        in in_process(capsys, *command, f"cost.database={tmp_path / 'file' / 'x.sqlite'}").error
    )
    assert in_process(capsys, *command, f"cost.database={tmp_path / 'new.sqlite'}").code == 0
    assert (tmp_path / "new.sqlite").exists()


# -- replay ----------------------------------------------------------------------------------------


def test_receipts_that_cannot_be_replayed_are_refused(optimised, tmp_path, capsys):
    run, out = optimised / "run", tmp_path / "o.onnx"
    receipt, model = run / "eval" / "receipt.json", run / "model.onnx"
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "half.json").write_text(receipt.read_text()[:100])
    save_model(load("tiny_resnet18", seed=1), tmp_path / "other.onnx")
    for arguments, message in (
        ([tmp_path / "gone.json", "--model", model], "cannot read"),
        ([tmp_path / "list.json", "--model", model], "not a receipt"),
        ([tmp_path / "half.json", "--model", model], "is not valid JSON"),
        ([receipt, "--model", tmp_path / "gone.onnx"], "no such file"),
        ([receipt, "--model", tmp_path / "other.onnx"], "belongs to another model"),
        ([receipt, "--model", receipt], "is not an ONNX file"),
    ):  # fmt: skip
        assert message in in_process(capsys, "replay", *arguments, "--out", out).error
    assert not out.exists()
    done = in_process(capsys, "validate", model, model, "--receipt", tmp_path / "list.json")
    assert "not a receipt" in done.error
