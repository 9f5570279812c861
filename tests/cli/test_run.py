"""Test the command line from end to end with tiny budgets."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from rlflow.cli.main import main
from rlflow.collect.episodes import read_episodes
from rlflow.collect.rollouts import online_batches
from rlflow.optimisation.validate import validate
from rlflow.runs.folder import RunFolder
from rlflow.zoo import load
from tests.commands import TINY, in_its_own, in_process
from tests.suite import at_night, slow
from worldmodel.train_and_load import split_episodes

pytestmark = pytest.mark.usefixtures("eager")

STAGES = ("collect", "train-wm", "train-controller", "eval")


def files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


def model_of(path: Path) -> onnx.ModelProto:
    return onnx.load(path)


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["", *STAGES, "optimise", "replay", "rules", "zoo", "validate", "search", "bound", "costs", "sweep", "report",
     "measure"],
)
def test_every_command_prints_its_help(capsys, command):
    done = in_process(capsys, *([command] if command else []), "--help")
    assert done.code == 0 and done.out.startswith("usage: ") and not done.err
    wanted = {
        "": ["optimise", "collect", "train-wm", "train-controller", "eval", "replay", "tensorboard"],
        "optimise": ["--out", "--run", "--iterations", "--seconds", "--learn", "--accept", "Ctrl-C", "--seed", "--json",
            "--debug", "--config", "--shape", "--threads", "KEY=VALUE"],
        "replay": ["--model", "--out", "--json"], "rules": ["list", "explain", "prove", "enumerate"], "zoo": ["--json"],
        "validate": ["--receipt", "--tolerance", "--json"], "search": ["--method", "--out", "--measure"],
        "bound": ["--model", "--seconds"],
        "costs": ["show", "explain", "record", "export", "import", "clear", "calibrate", "train"],
        "sweep": ["SWEEP.yaml", "--run", "--json"],
        "report": ["--out", "--json"],
        "measure": ["A.onnx B.onnx", "--threads N", "--seconds S", "--sessions N", "--shape NAME=SIZES", "--json"],
        "train-wm": ["--run", "--iterations N", "before and after", "iterations.interactions",
            "DIR/iterations"],
    }.get(command, ["--run", "--model", "--seed", "--json", "--debug", "--config", "--shape", "KEY=VALUE"])  # fmt: skip
    assert all(text in done.out for text in wanted)


def test_a_separate_process_prints_help():
    done = in_its_own("--help")
    assert done.code == 0 and "run.py optimise MODEL.onnx --out FASTER.onnx " in done.out


def test_unknown_commands_and_arguments_exit_with_status_2(capsys):
    for arguments in (["frobnicate"], [], ["collect"], ["rules", "seed=3"], ["zoo", "--seed", "3"]):
        done = in_process(capsys, *arguments)
        assert done.code == 2 and "usage:" in done.err and "Traceback" not in done.err


def test_the_lists_of_rules_and_zoo_models_are_printed_and_written_as_json(capsys, tmp_path):
    for name, entry in (("rules list", "conv"), ("zoo", "tiny_bert_base")):
        done = in_process(capsys, *name.split(), "--json", tmp_path / "deep" / f"{name}.json")
        assert done.code == 0 and entry in done.out
        assert json.loads((tmp_path / "deep" / f"{name}.json").read_text())


def test_rules_explain_names_the_nodes_of_the_model(capsys, tmp_path):
    arguments = ("rules", "explain", "tiny_resnet18", "--rule", "conv-batchnorm", "--rule", "gelu")
    done = in_process(capsys, *arguments, "--json", tmp_path / "explained.json")
    fires, silent = json.loads((tmp_path / "explained.json").read_text())["rules"]
    assert done.code == 0 and (fires["name"], silent["name"]) == ("conv-batchnorm", "gelu")
    assert [node["op"] for node in fires["locations"][0]] == ["BatchNormalization", "Conv"]
    names = {output for node in load("tiny_resnet18").graph.node for output in node.output}
    assert all(output in names for nodes in fires["locations"] for node in nodes for output in node["outputs"])
    assert silent["locations"] == [] and silent["nearest_miss"] is None
    done = in_process(capsys, "rules", "explain", "tiny_squeezenet1_1", "--rule", "conv-of-blocks")
    assert "not an image, or the strides are 1 or differ" in done.out
    assert in_process(capsys, "rules", "explain", "tiny_resnet18", "--rule", "none").code == 1


# -- one command -----------------------------------------------------------------------------------


def test_optimise_gives_an_equal_model_that_is_estimated_to_be_faster(optimised):
    results = json.loads((optimised / "results.json").read_text())
    assert tuple(results) == ("search", *STAGES)
    outcome = results["eval"]
    untrained = {"untrained", "no-prior"}
    assert set(outcome["candidates"]) == {"controller", "greedy", "random", "grasp", "beam", "annealing"} | untrained
    assert outcome["delivered"] != "original"
    best = outcome["candidates"][outcome["delivered"]]
    assert best["estimated_ms"] <= outcome["original"]["estimated_ms"] and best["estimated_improvement_percent"] > 0
    assert all(result["equal"] for result in outcome["candidates"].values())
    original, faster = optimised / "run" / "model.onnx", optimised / "faster.onnx"
    onnx.checker.check_model(str(faster), full_check=True)
    findings = validate(original, faster)
    assert findings.ok and findings.max_error <= 1e-4
    left, right = model_of(original).graph, model_of(faster).graph
    assert list(left.input) == list(right.input) and list(left.output) == list(right.output)
    assert faster.read_bytes() == Path(outcome["optimised"]).read_bytes() != original.read_bytes()


def test_a_run_stores_its_config_versions_and_results(optimised):
    folder = optimised / "run"
    again = RunFolder.open(folder)
    assert (
        again.config.seed == 7
        and again.config.model == "tiny_resnet18"
        and again.config.world_model["mdn-rnn"].hidden == 8
    )
    versions = json.loads((folder / "versions.json").read_text())
    assert {"python", "numpy", "onnx", "onnxruntime", "gymnasium", "git_commit"} <= versions.keys()
    results = json.loads((optimised / "results.json").read_text())
    for name in ("search", *STAGES):
        stored = json.loads((folder / f"{name}.json").read_text())
        assert stored == results[name] and stored["stage"] == name and stored["seconds"] > 0
    assert results["collect"]["interactions"] == sum(map(len, read_episodes(folder / "episodes", 6)))
    assert results["train-wm"]["interactions"] == results["collect"]["interactions"]


def test_the_report_keeps_estimated_and_measured_apart(optimised):
    text = (optimised / "run" / "eval" / "report.html").read_text()
    assert "Estimated is a sum of single-operator costs, measured is the end-to-end latency" in text
    assert "estimated ms" in text and "latency relative to the original" in text and "not measured" in text
    for wanted in (">controller<", ">greedy<", ">random<", "git_commit", ">7</td>", "numerics"):
        assert wanted in text
    assert (optimised / "run" / "eval" / "returns.png").read_bytes().startswith(b"\x89PNG")


def test_the_receipt_of_a_run_replays_to_the_same_bytes(optimised, tmp_path):
    folder = optimised / "run"
    done = in_its_own(
        "replay", folder / "eval" / "receipt.json", "--model", folder / "model.onnx", "--out",
        tmp_path / "new" / "x.onnx",
        "--json", tmp_path / "x.json", PYTHONHASHSEED="99",
    )  # fmt: skip
    assert done.code == 0 and "byte for byte" in done.out
    assert (tmp_path / "new" / "x.onnx").read_bytes() == (optimised / "faster.onnx").read_bytes()
    receipt = json.loads((folder / "eval" / "receipt.json").read_text())
    assert json.loads((tmp_path / "x.json").read_text())["model_sha256"] == receipt["model_sha256"]


# -- stage by stage --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """Return the run of `optimised`, repeated stage by stage in this process, and the results of its stages."""
    folder = tmp_path_factory.mktemp("by_hand") / "run"
    results = {}
    for name in STAGES:
        arguments = ["--model", "tiny_resnet18", "--seed", "7", *TINY] if name == "collect" else []
        file = folder.parent / f"{name}.json"
        assert main([name, "--run", str(folder), "--json", str(file), *arguments]) == 0
        results[name] = json.loads(file.read_text())
    return folder, results


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_episodes_weights_and_actions(optimised, by_hand):
    """`optimise` in one process and the four stages in another one give equal files."""
    left, (right, results) = optimised / "run", by_hand
    for pattern in (
        "episodes/*.npz",
        "world-model/weights.npz",
        "controller/*/controller.npz",
        "eval/*.onnx",
        "model.onnx",
    ):
        assert files(left, pattern) and files(left, pattern) == files(right, pattern), pattern
    one = json.loads((left / "eval" / "receipt.json").read_text())
    assert one == json.loads((right / "eval" / "receipt.json").read_text()) and one["actions"]
    outcome = json.loads((left / "eval.json").read_text())
    for name, result in results["eval"]["candidates"].items():
        # In `optimise` the candidate `greedy` comes from its searches, which count one rewrite less.
        ignored = ("seconds", "interactions") if name == "greedy" else ("seconds",)
        other = outcome["candidates"][name]
        assert {k: v for k, v in result.items() if k not in ignored} == {
            k: v for k, v in other.items() if k not in ignored
        }


@pytest.mark.nightly
def test_a_finished_stage_can_be_run_again_and_changes_nothing(by_hand, tmp_path, capsys):
    folder = shutil.copytree(by_hand[0], tmp_path / "run")
    patterns = ("episodes/*.npz", "world-model/weights.npz", "controller/*/controller.npz", "eval/optimised.onnx")
    before = [files(folder, pattern) for pattern in patterns]
    for name, following in zip(STAGES, (*STAGES[1:], "validate"), strict=True):
        ending = in_process(capsys, name, "--run", folder).ending
        assert f" {following} " in ending["next"] and len(ending) <= 6
    assert [files(folder, pattern) for pattern in patterns] == before
    assert json.loads((folder / "collect.json").read_text())["new_interactions"] == 0
    assert json.loads((folder / "train-wm.json").read_text())["resumed_from"] == 4


@pytest.mark.parametrize("kind", ["random", *slow("cma-es")])
def test_other_controllers_train_in_the_same_run_folder(optimised, tmp_path, capsys, kind):
    folder = shutil.copytree(optimised / "run", tmp_path / "run")
    done = in_process(
        capsys, "train-controller", "--run", folder, f"controller.name={kind}", "dream.temperatures=[0.5,1.5]"
    )
    assert done.code == 0, done.err
    trainings = json.loads((folder / "train-controller.json").read_text())
    assert trainings["controller"] == kind and [t["temperature"] for t in trainings["trainings"]] == [0.5, 1.5]
    assert {path.name for path in (folder / "controller").iterdir()} == {"ppo-1", f"{kind}-0.5", f"{kind}-1.5"}
    if at_night(True, False):
        assert in_process(capsys, "eval", "--run", folder).code == 0
        outcome = json.loads((folder / "eval.json").read_text())
        rows = [(row["experiment"], row["temperature"]) for row in outcome["experiments"]]
        assert sorted(rows) == sorted([("ppo", 1.0), (kind, 0.5), (kind, 1.5)])


# -- online, no gain, external weights ------------------------------------------------------------


def plain_model(folder: Path, external: bool = False, rewritable: bool = False) -> Path:
    """Write y = x·W, to which no rule applies, or y = -relu(x·W) if `rewritable`, which no rule makes faster."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 40]) for name in "xy")
    w = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32), "w")
    steps = [("MatMul", ["x", "w"], "a"), ("Relu", ["a"], "b"), ("Neg", ["b"], "y")] if rewritable else []
    nodes = [onnx.helper.make_node(op, read, [made]) for op, read, made in steps or [("MatMul", ["x", "w"], "y")]]
    graph = onnx.helper.make_graph(nodes, "plain", [x], [y], [w])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "plain.onnx", save_as_external_data=external, location="weights.bin", size_threshold=0)
    return folder / "plain.onnx"


def test_the_world_model_is_judged_on_random_episodes_and_on_the_controllers(optimised, tmp_path, capsys):
    folder = shutil.copytree(optimised / "run", tmp_path / "run")
    done = in_process(capsys, "eval", "--run", folder, "--what", "world-model", "--json", tmp_path / "r.json")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert list(result) == ["held-out random", "ppo-1"]
    assert done.ending["report"] == str(folder / "eval" / "world-model.md")
    config = RunFolder.open(folder).config
    _, held_out = split_episodes(read_episodes(folder / "episodes", 6), config.world_model.holdout, config.seed)
    assert json.loads((folder / "eval" / "world-model.json").read_text()) == result
    random, controller = result.values()
    assert random["horizons"]["1"]["starts"] == sum(map(len, held_out))
    trained = json.loads((folder / "train-wm.json").read_text())["fidelity"]
    for errors in (random["horizons"]["1"], trained["horizons"]["1"]):
        errors.pop("rule_mean")  # the two files average over different episodes here
    assert random["horizons"]["1"] == trained["horizons"]["1"]
    assert controller["episodes"] == len(controller["improvement"]["real"]) == 1 + config.eval.samples
    outcome = json.loads((folder / "eval.json").read_text())
    assert controller["improvement"]["real"][0] == pytest.approx(
        outcome["experiments"][0]["real_return"]
    )  # both values come from the same greedy episode
    assert f"## ppo-1: {1 + config.eval.samples} episodes" in (folder / "eval" / "world-model.md").read_text()
    assert (folder / "eval" / "world-model.png").exists()
    assert (folder / "eval.json").read_bytes() == (optimised / "run" / "eval.json").read_bytes()


def test_optimise_without_learning_returns_a_model_without_gain_with_its_weights(tmp_path, capsys):
    """The original comes back byte for byte, with its external weights."""
    source, out = plain_model(tmp_path / "in", external=True), tmp_path / "out" / "same.onnx"
    options = "cost.name=analytic", "eval.measure_seconds=0"
    done = in_process(capsys, "optimise", source, "--out", out, "--run", tmp_path / "run", *options)
    assert done.code == 0 and "No gain: no gain was found; the original is returned" in done.out, done.err
    assert out.read_bytes() == source.read_bytes()
    assert (out.parent / "weights.bin").read_bytes() == (source.parent / "weights.bin").read_bytes()


def test_a_model_without_rewrites_has_nothing_to_learn(tmp_path, capsys):
    """Every stage reports it and leaves no result; `optimise --learn` returns the original without any training."""
    source, out, folder = plain_model(tmp_path), tmp_path / "out.onnx", tmp_path / "run"
    for stage, *more in (["collect"], ["train-wm"], ["train-wm", "world_model.mode=online"], ["train-controller"]):
        done = in_process(capsys, stage, "--run", folder, "--model", source, *TINY, *more)
        assert done.error == (
            f"nothing to learn: no rewrite applies to {source}. Use another model or other rules (env.rules)"
        )
        assert not folder.exists()
    done = in_process(
        capsys, "optimise", source, "--out", out, "--run", tmp_path / "other", "--json", tmp_path / "r.json", "--learn",
        *TINY,
    )  # fmt: skip
    assert done.code == 0 and done.err.count("nothing to learn: no rewrite applies to the model") == 1, done.err
    assert json.loads((tmp_path / "r.json").read_text()).keys() == {"search", "eval"}
    assert out.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    "options, words",
    [
        (["controller.name=planner"], "the planner follows the most likely outcomes"),
        (["controller.train_on=real"], "the real graph has no temperature"),
    ],
)
def test_temperatures_that_would_train_equal_controllers_are_refused(tmp_path, capsys, options, words):
    common = *TINY, *options, "dream.temperatures=[0.5,1,2]"
    for command in (
        ["train-controller", "--run", tmp_path / "run", "--model", "tiny_squeezenet1_1"],
        ["optimise", "tiny_squeezenet1_1", "--out", tmp_path / "out.onnx", "--learn"],  # stops before the searches
    ):
        done = in_process(capsys, *command, *common)
        assert re.search(words, done.error) and "beam" not in done.err


@pytest.mark.nightly
def test_online_mode_without_gain_returns_the_original_with_its_weights(tmp_path, capsys):
    """Online mode works without `collect`, and the original comes back byte for byte with its external weights."""
    source, out = plain_model(tmp_path / "in", True, rewritable=True), tmp_path / "out" / "same.onnx"
    done = in_process(
        capsys, "optimise", source, "--out", out, "--run", tmp_path / "run", "--json", tmp_path / "r.json", *TINY,
        "world_model.mode=online", "controller.name=random",
    )  # fmt: skip
    assert done.code == 0, done.err
    results = json.loads((tmp_path / "r.json").read_text())
    assert "collect" not in results and results["train-wm"]["mode"] == "online"
    assert results["eval"]["delivered"] == "original" and "no gain" in results["eval"]["reason"]
    assert "No gain: no gain was found; the original is returned" in done.out
    assert out.read_bytes() == source.read_bytes()
    assert (out.parent / "weights.bin").read_bytes() == (source.parent / "weights.bin").read_bytes()
    assert validate(source, out).ok
    judged = in_process(
        capsys, "eval", "--run", tmp_path / "run", "--what", "world-model", "--json", tmp_path / "w.json"
    )
    assert judged.code == 0 and json.loads((tmp_path / "w.json").read_text())["held-out random"]["episodes"] == 32
    report = (tmp_path / "run" / "eval" / "report.html").read_text()
    assert "No gain" in report and "The original is returned unchanged." in report
    # Two steps of two episodes each, and the held-out batch: every episode was played for this training alone.
    spec = RunFolder.open(tmp_path / "run").spec
    batches = online_batches(spec, 2, 1, seed=0)
    assert results["train-wm"]["interactions"] == sum(len(e) for _ in range(3) for e in next(batches))


def test_the_model_itself_is_never_overwritten(tmp_path, capsys):
    source = plain_model(tmp_path)
    before = source.read_bytes()
    done = in_process(capsys, "optimise", source, "--out", source, *TINY)
    assert "is the model itself" in done.error and source.read_bytes() == before
