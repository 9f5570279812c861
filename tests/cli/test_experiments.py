"""Test several experiments in one run, and a second training of the world model."""

import shutil

import pytest

from controllers.linear_scores import LinearScores, LinearScoresConfig
from controllers.stages import learn as stages
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.runs.folder import RunFolder
from tests.commands import ROOT, in_process
from tests.conftest import once

OPTIONS = ("world_model.name=edits", "controller.name=random", "eval.measure_seconds=0", "eval.samples=1")


def opened(folder, *options) -> RunFolder:
    return RunFolder.open(folder, "tiny_squeezenet1_1", [ROOT / "tests" / "tiny.yaml"], OPTIONS + options)


def learn(path) -> None:
    run = opened(path / "run")
    stages.collect(run), stages.train_world_model(run)


@pytest.fixture
def folder(shared_folder, tmp_path):
    """Return a copy of a run folder after train-wm."""
    path = once(shared_folder, "a run with a world model", learn)
    return shutil.copytree(path / "run", tmp_path / "run")


def command(capsys, stage, folder, *options):
    """Run a command in a run folder, check its exit status 0, and return its result."""
    done = in_process(capsys, stage, "--run", folder, *options)
    assert done.code == 0, done.err
    return done


def digest_of(folder, name: str) -> str:
    return read_json(folder / "controller" / name / "training.json")["world_model"]


def test_eval_shows_all_seeds_and_tags_of_a_controller_in_one_table(folder, capsys):
    command(capsys, "train-controller", folder)
    command(capsys, "train-controller", folder, "controller.seed=3")
    more = "controller.tag=more", "controller.random.dreams=9"
    command(capsys, "train-controller", folder, "controller.seed=0", *more)
    command(capsys, "eval", folder, "--only", "random-3,random")
    some = read_json(folder / "eval.json")["experiments"]
    done = command(capsys, "eval", folder)  # without --only no experiment is left out
    outcome = read_json(folder / "eval.json")
    rows = {row["experiment"]: row for row in outcome["experiments"]}
    assert list(rows) == ["random", "random-3", "random-more"]
    assert len({row["trained_return"] for row in rows.values()}) == 3
    page = (folder / "eval" / "report.html").read_text()
    assert all(f"| {name} | 1 |" in done.out and f">{name}</td>" in page for name in rows)
    for row in rows.values():  # training does not change random play, and random play has no prior
        assert row["untrained_cost"] == row["cost"] and row["no_prior_cost"] is None
    best = min(row["cost"] for row in rows.values())
    assert outcome["candidates"]["controller"]["estimated_ms"] == pytest.approx(best)
    trained = {name: read_json(folder / "controller" / f"{name}-1" / "training.json") for name in rows}
    assert [one["options"]["controller"]["random"]["dreams"] for one in trained.values()] == [2, 2, 9]
    assert [without_seconds(row) for row in some] == [without_seconds(rows[name]) for name in ("random", "random-3")]


def without_seconds(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "acting_seconds"}


def test_a_changed_option_of_a_trained_controller_requires_a_tag(folder, capsys):
    command(capsys, "train-controller", folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    for changed, message in (
        ("controller.random.dreams=9", "(dreams 2, not 9)"), ("dream.max_steps=7", "(dream.max_steps 100, not 7)"),
    ):  # fmt: skip
        error = in_process(capsys, "train-controller", "--run", folder, changed).error
        assert message in error and "controller.tag=NAME for another experiment" in error
    assert all(path.read_bytes() == content for path, content in before.items() if "tensorboard" not in path.parts)
    finished = folder / "controller" / "random-1" / "training.json"
    finished.rename(folder / "training.json")  # as if the training had not ended
    assert message in in_process(capsys, "train-controller", "--run", folder, changed).error
    (folder / "training.json").rename(finished)
    command(capsys, "train-controller", folder, "dream.max_steps=7", "controller.tag=short")
    for tag in ("a/b", "..\\x", "x" * 101):
        error = in_process(capsys, "train-controller", "--run", folder, f"controller.tag={tag}").error
        assert "controller.tag has at most 100 letters" in error


@pytest.mark.nightly
def test_a_controller_of_an_older_world_model_is_trained_anew(folder, tmp_path, capsys):
    command(capsys, "train-controller", folder)
    command(capsys, "train-controller", folder, "controller.tag=kept")
    old = digest_of(folder, "random-1")
    command(capsys, "collect", folder, "collect.episodes=8")
    done = command(capsys, "train-controller", folder)
    assert "the world model learnt from 6 episodes, the run has 8 now" in done.err
    assert "train-wm" in done.err and digest_of(folder, "random-kept-1") == old
    assert "has 8 now" not in command(capsys, "train-wm", folder).err

    error = in_process(capsys, "eval", "--run", folder).error
    assert "the world model has changed since all controllers were trained; run `" in error
    shutil.rmtree(shutil.copytree(folder, tmp_path / "fresh") / "controller")
    command(capsys, "train-controller", tmp_path / "fresh", "controller.tag=kept")
    done = command(capsys, "train-controller", folder)  # uses the stored options of the last training
    assert done.err.count("the world model has changed since the training of random-kept-1") == 1
    assert digest_of(folder, "random-kept-1") == digest_of(tmp_path / "fresh", "random-kept-1") != old
    (anew,), (fresh,) = (read_json(one / "train-controller.json")["trainings"] for one in (folder, tmp_path / "fresh"))
    assert anew["best_return"] == fresh["best_return"]
    assert "trained anew" not in command(capsys, "train-controller", folder).err

    done = command(capsys, "eval", folder)
    assert [row["experiment"] for row in read_json(folder / "eval.json")["experiments"]] == ["random-kept"]
    assert "left out: the controller random-1 was trained in another world model; train it anew with `" in done.err
    assert done.err.count("controller.tag=null`") == 1  # the message names the options that differ
    assert "random-1 was trained in another world model" in in_process(
        capsys, "eval", "--run", folder, "--only", "random"
    ).error
    assert set(fidelity_of(folder, capsys)) == {"held-out random", "random-kept-1"}


def fidelity_of(folder, capsys) -> dict:
    command(capsys, "eval", folder, "--what", "world-model")
    return read_json(folder / "eval" / "world-model.json")


ORDERING = ("task.name=ordering", "controller.name=linear-scores", "controller.linear-scores.generations=2")


def test_a_training_in_another_world_model_replaces_the_old_one_at_its_first_checkpoint(tmp_path):
    instance = RunFolder.open(tmp_path / "run", "layered-12-0", overrides=ORDERING).task.initial

    def in_world_model(digest: str, generations: int) -> LinearScores:
        controller = LinearScores(LinearScoresConfig(generations=generations, popsize=4), instance, 0)
        controller.world_model = digest
        return controller

    in_world_model("old", 3).train(instance, 0, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("controller.json", "controller.npz")}
    later, untrained = in_world_model("new", 1), in_world_model("new", 1)
    later.resume(tmp_path, 0)
    assert later.is_outdated(tmp_path) and not later.has_checkpoint(tmp_path)
    assert all((later.arrays()[name] == array).all() for name, array in untrained.arrays().items())
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    assert later.train(instance, 0, tmp_path)["iterations"] == 1
    assert read_json(tmp_path / "controller.json")["world_model"] == "new" and later.has_checkpoint(tmp_path)
    with pytest.raises(RLFlowError, match="holds a training with other options"):
        LinearScores(LinearScoresConfig(generations=1, popsize=8), instance, 0).resume(tmp_path, 0)


def test_experiments_of_a_one_shot_task_are_compared(tmp_path, capsys):
    command(capsys, "train-controller", tmp_path / "run", "--model", "layered-12-0", *ORDERING)
    command(capsys, "train-controller", tmp_path / "run", "controller.seed=5", "controller.tag=b")
    done = command(capsys, "eval", tmp_path / "run")
    outcome = read_json(tmp_path / "run" / "eval.json")
    rows = {row["training"]: row["cost"] for row in outcome["experiments"]}
    assert list(rows) == ["linear-scores", "linear-scores-5-b"] and "| linear-scores-5-b | none |" in done.out
    assert outcome["candidates"]["controller"]["objective"] == min(rows.values())
