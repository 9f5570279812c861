"""Test learning in iterations and from the episodes of several models: the command line on tiny models."""

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

from controllers import recording
from controllers.base import derive_seed
from controllers.iterations import learn_in_iterations
from controllers.random import RandomConfig, RandomController
from controllers.recording import Player, play_iteration, recorded
from controllers.stages import learn as module
from rlflow.cli.main import main
from rlflow.collect.episodes import read_episodes
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.runs.folder import RunFolder
from tests.cli.test_run import files
from tests.commands import EDITS, in_process
from tests.conftest import once
from tests.controllers.test_recording import Backwards, Script, same
from tests.controllers.test_returning import Faithful
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_task
from worldmodel import spaces
from worldmodel.boards import read_curves
from worldmodel.fidelity import fidelity
from worldmodel.train_and_load import load, train
from worldmodel.world_model_options import world_model_config

BUDGET = 84
ITERATIONS = ("--iterations", "3", f"iterations.interactions={BUDGET}")


# -- the iterations alone ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task():
    return tiny_task()


class Steps:
    """An episode of `length` steps; the first `copied` steps were taken over from another episode."""

    def __init__(self, length: int, copied: int = 0):
        self.length, self.interactions = length, length - copied

    def __len__(self) -> int:
        return self.length


class Fake:
    """The functions of an iteration, which record their arguments; episodes have `length` steps, three copied."""

    def __init__(self, length: int):
        self.asked, self.length = [], length

    def learn(self, number, episodes):
        self.asked.append(("learn", number, list(map(len, episodes))))
        return {"interactions": sum(episode.interactions for episode in episodes)}

    def model(self, number):
        return f"model {number}"

    def dream(self, number, model):
        self.asked.append(("dream", number, model))
        return "controller", 1.5

    def play(self, number, controller, model, interactions):
        self.asked.append(("play", number, model, interactions))
        return [Steps(self.length + 3, 3)] * (interactions // self.length)


@pytest.fixture
def judged(monkeypatch):
    """Return a list that records (model, number of episodes) of every judgement."""
    asked = []
    improvement = "controllers.iterations.improvement"
    monkeypatch.setattr(improvement, lambda model, played: asked.append((model, len(played))))
    return asked


def test_the_budget_is_shared_equally_and_every_model_learns_from_all_episodes(judged):
    steps = Fake(7)
    results = learn_in_iterations(steps, [Steps(20)], 3, 80)
    assert steps.asked == [
        ("learn", 1, [20]), ("dream", 2, "model 1"), ("play", 2, "model 1", 40), ("learn", 2, [20, *[10] * 5]),
        ("dream", 3, "model 2"), ("play", 3, "model 2", 45), ("learn", 3, [20, *[10] * 11]),
    ]  # fmt: skip
    assert [result["interactions"] for result in results["iterations"]] == [20, 35, 42] and results[
        "interactions"
    ] == 97


def test_new_episodes_judge_the_world_model_before_and_after_it_learns_from_them(judged):
    learn_in_iterations(Fake(7), [Steps(20)], 3, 80)
    assert judged == [("model 1", 5), ("model 2", 5), ("model 2", 6), ("model 3", 6)]


def test_a_budget_without_a_step_for_each_iteration_is_refused_before_anything_is_learnt():
    steps = Fake(7)
    with pytest.raises(RLFlowError, match=r"iterations.interactions=1 is too small: set at least 2 for 3"):
        learn_in_iterations(steps, [Steps(90)], 3, 1)
    assert not steps.asked


# -- what a controller plays -----------------------------------------------------------------------


def player(task, controller=None) -> Player:
    """Return a player that plays at random unless a controller is given."""
    model = Backwards(task)
    if controller is None:
        controller = RandomController(RandomConfig(), spaces.observation_space(model), spaces.action_space(model.spec))
    return Player(controller, GraphRewriteEnv(task, relative, 6), model)


def test_episodes_are_kept_in_shards_and_never_exceed_the_budget(task, tmp_path):
    result = play_iteration(player(task), tmp_path, 50, 100, (3, 2))
    steps = sum(episode.interactions for episode in result)
    assert steps == 50 and [episode.index for episode in result] == list(range(len(result)))
    assert len(result) > 4 and len({episode.actions.tobytes() for episode in result}) > 4
    for one, other in zip(result, read_episodes(tmp_path), strict=True):
        same(one, other)


def test_a_controller_that_stops_at_once_plays_a_bounded_number_of_episodes(task, tmp_path):
    assert len(play_iteration(player(task, Script([], task.no_op)), tmp_path, 1000, 9, (3, 2))) == 9


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [lambda task: None, Faithful])
def test_an_iteration_killed_between_episodes_resumes_to_the_same_files(task, tmp_path, monkeypatch, kind):
    whole = play_iteration(player(task, kind(task)), tmp_path / "whole", 60, 100, (3, 2))
    for dies in range(1, len(whole)):
        dying, folder, episode = player(task, kind(task)), tmp_path / str(dies), Player.turn
        with monkeypatch.context() as patch:
            def killed(self, k, *arguments, dies=dies, episode=episode):
                if k == dies:
                    raise KeyboardInterrupt
                return episode(self, k, *arguments)

            patch.setattr(Player, "turn", killed)
            with pytest.raises(KeyboardInterrupt):
                play_iteration(dying, folder, 60, 100, (3, 2))
        play_iteration(player(task, kind(task)), folder, 60, 100, (3, 2))
        assert files(folder, "*.npz") == files(tmp_path / "whole", "*.npz")


def test_stored_episodes_are_not_played_again_except_a_damaged_shard(task, tmp_path, monkeypatch):
    play_iteration(player(task), tmp_path, 60, 100, (3, 2))
    before, played, episode = files(tmp_path, "*.npz"), [], Player.turn
    (tmp_path / "shard-00001.npz").write_bytes(before["shard-00001.npz"][:100])
    monkeypatch.setattr(Player, "turn", lambda self, k, *rest: played.append(k) or episode(self, k, *rest))
    play_iteration(player(task), tmp_path, 60, 100, (3, 2))
    assert played == [4, 5, 6, 7] and files(tmp_path, "*.npz") == before


def test_another_iteration_plays_other_episodes(task, tmp_path):
    one, other = (play_iteration(player(task), tmp_path / str(k), 60, 100, (3, k)) for k in (2, 3))
    assert not {episode.actions.tobytes() for episode in one} & {episode.actions.tobytes() for episode in other}


def test_the_episodes_of_a_controller_do_not_depend_on_earlier_episodes(task):
    """Episode 2, played alone, equals the third of three episodes of the recorder that evaluations use."""
    single = player(task)
    three = list(islice(recorded(single.controller, single.env, Backwards(task), 5), 3))
    assert [episode.index for episode in three] == [0, 1, 2]
    same(single.episode(2, derive_seed(5, 2)), three[2])


# -- the command -----------------------------------------------------------------------------------


def learn(path: Path) -> None:
    assert (
        main(
            [
                "collect",
                "--run",
                str(path / "run"),
                "--model",
                "tiny_resnet18",
                "--seed",
                "7",
                *EDITS,
                "controller.name=random",
            ]
        )
        == 0
    )
    shutil.copytree(path / "run", path / "collected")
    assert main(["train-wm", "--run", str(path / "run"), "--json", str(path / "r.json"), *ITERATIONS]) == 0


@pytest.fixture(scope="session")
def iterations(shared_folder) -> Path:
    """Return a folder with collected/, run/ after three iterations, and results; tests must not change the folder."""
    return once(shared_folder, "iterations", learn)


def own_folder(run: Path) -> Path:
    """Return the only folder of iterations of a run."""
    (folder,) = (run / "iterations").iterdir()
    return folder


PATTERNS = (
    "iterations/*/*/episodes/*.npz",
    "iterations/*/*/controller/*.npz",
    "iterations/*/*/world-model/*",
    "world-model/*",
)


def test_three_iterations_share_one_budget(iterations):
    results = json.loads((iterations / "r.json").read_text())
    first, *further = results["iterations"]
    assert first == {
        "iteration": 1,
        "episodes": 6,
        "interactions": json.loads((iterations / "run" / "collect.json").read_text())["interactions"],
    }
    assert [result["iteration"] for result in further] == [2, 3]
    for result in further:
        episodes = read_episodes(own_folder(iterations / "run") / str(result["iteration"]) / "episodes")
        assert (result["episodes"], result["interactions"]) == (
            len(episodes),
            sum(episode.interactions for episode in episodes),
        )
        assert result["before"]["real"] == pytest.approx([e.rewards.sum() for e in episodes], abs=1e-5)
    assert results["interactions"] == sum(result["interactions"] for result in results["iterations"])
    assert sum(result["interactions"] for result in further) <= BUDGET
    assert files(own_folder(iterations / "run") / "3", "world-model/*") == files(iterations / "run", "world-model/*")


def test_tensorboard_shows_dreamt_and_real_returns_over_the_iterations(iterations):
    curves = read_curves(iterations / "run" / "tensorboard")
    further = json.loads((iterations / "r.json").read_text())["iterations"][1:]
    drawn = {name: curves[f"iterations-{name}"] for name in ("dream", "real", "before", "after")}
    assert drawn["dream"] == {"4 iterations/return": of(further, lambda one: one["dreamt_return"])}
    assert drawn["real"] == {"4 iterations/return": of(further, lambda one: one["before"]["real"][0])}
    for name in ("before", "after"):
        errors = of(further, lambda one, name=name: one[name]["relative_error"])
        assert drawn[name] == {"4 iterations/world_model_error": errors}


def of(iterations: list[dict], value) -> list:
    return [(one["iteration"], pytest.approx(value(one), rel=1e-6)) for one in iterations]


def test_a_world_model_is_more_accurate_on_episodes_that_it_learnt_from(iterations):
    folder = own_folder(iterations / "run")
    for result in json.loads((iterations / "r.json").read_text())["iterations"][1:]:
        assert result["after"]["relative_error"] <= result["before"]["relative_error"]
        number = result["iteration"]
        new = read_episodes(folder / str(number) / "episodes")
        before, after = (fidelity(load(folder / str(k) / "world-model"), new) for k in (number - 1, number))
        assert after["horizons"]["1"]["uncertain"] < before["horizons"]["1"]["uncertain"]


@pytest.mark.nightly
def test_iterations_killed_in_any_step_resume_to_the_same_result(iterations, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(iterations / "collected", tmp_path / "run")
    steps = (module, "learn_world_model"), (module, "learn_to_act"), (recording, "write_shard")
    for target, name in steps:
        calls, original = [], getattr(target, name)

        def killed(*arguments, calls=calls, original=original):
            calls.append(name)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(target, name, killed)
            assert in_process(capsys, "train-wm", "--run", folder, *ITERATIONS).code == 130
        assert not (folder / "train-wm.json").exists()
    assert in_process(capsys, "train-wm", "--run", folder, *ITERATIONS).code == 0
    for pattern in PATTERNS:
        assert files(folder, pattern) == files(iterations / "run", pattern) != {}, pattern


def test_iterations_with_other_options_begin_anew_and_leave_the_earlier_ones(iterations, tmp_path, capsys):
    folder = shutil.copytree(iterations / "run", tmp_path / "run")
    before = files(folder, "iterations/*/*/*/*")
    assert in_process(capsys, "train-wm", "--run", folder, *ITERATIONS, "controller.random.dreams=3").code == 0
    after, known = files(folder, "iterations/*/*/*/*"), json.loads((folder / "train-wm.json").read_text())
    assert after.items() > before.items() and len(list((folder / "iterations").iterdir())) == 2
    assert known["folder"] != own_folder(iterations / "run").name
    assert in_process(capsys, "train-wm", "--run", folder, *ITERATIONS, "controller.random.dreams=2").code == 0
    assert files(folder, "iterations/*/*/*/*") == after
    assert json.loads((folder / "train-wm.json").read_text())["folder"] == own_folder(iterations / "run").name


def test_iterations_need_stored_episodes(iterations, tmp_path, capsys):
    folder = shutil.copytree(iterations / "run", tmp_path / "run")
    before = [files(folder, pattern) for pattern in PATTERNS]
    online = "world_model.name=mdn-rnn", "world_model.mode=online"
    assert "mode=offline" in in_process(capsys, "train-wm", "--run", folder, *ITERATIONS, *online).error
    assert [files(folder, pattern) for pattern in PATTERNS] == before


def test_later_stages_use_the_result_of_the_iterations(iterations, tmp_path, capsys):
    folder = shutil.copytree(iterations / "run", tmp_path / "run")
    assert in_process(capsys, "train-controller", "--run", folder).code == 0
    done = in_process(capsys, "eval", "--run", folder, "--what", "world-model", "--json", tmp_path / "w.json")
    assert done.code == 0, done.err
    assert in_process(capsys, "eval", "--run", folder, "--json", tmp_path / "e.json").code == 0
    learnt = json.loads((tmp_path / "e.json").read_text())["candidates"]["controller"]["interactions"]
    assert learnt >= json.loads((iterations / "r.json").read_text())["interactions"]


# -- several models --------------------------------------------------------------------------------


EPISODES = at_night(12, 8)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Return the folder of two runs; each run has learned from the episodes of both."""
    base = tmp_path_factory.mktemp("mixed")
    for name in ("tiny_resnet18", "tiny_vit_base"):
        command = ["collect", "--run", str(base / name), "--model", name, *EDITS, f"collect.episodes={EPISODES}"]
        assert main(command) == 0
    for one, other in (("tiny_resnet18", "tiny_vit_base"), ("tiny_vit_base", "tiny_resnet18")):
        assert main(["train-wm", "--run", str(base / one), f"collect.also=[{base / other}]"]) == 0
    return base


def test_a_world_model_of_two_runs_is_the_same_whichever_run_trains_it(mixed):
    assert files(mixed / "tiny_resnet18", "world-model/*") == files(mixed / "tiny_vit_base", "world-model/*") != {}


@pytest.mark.parametrize("name", ["tiny_resnet18", *slow("tiny_vit_base")])
def test_a_shared_world_model_predicts_each_model_as_well_as_a_single_one(mixed, tmp_path, name):
    """A world model of two models predicts the episodes of each at least as well as a world model of this one alone."""
    run = RunFolder.open(mixed / name)
    own, every = run.random_episodes()
    assert len(every) == 2 * len(own) == 2 * EPISODES
    train(world_model_config(run.config.world_model), run.task.encoding_spec, own, tmp_path, 0)
    both, single = (load(folder, run.task.encoding_spec) for folder in (mixed / name / "world-model", tmp_path))
    errors = [fidelity(model, own)["horizons"]["5"]["model"]["cumulative_reward_error"] for model in (both, single)]
    assert errors[0] <= errors[1] + 1e-6


def test_a_controller_in_a_shared_world_model_is_judged_on_its_own_model_alone(mixed, tmp_path, capsys):
    folder = mixed / "tiny_vit_base"
    assert in_process(capsys, "train-controller", "--run", folder, "controller.name=random").code == 0
    done = in_process(
        capsys,
        "eval",
        "--run",
        folder,
        "--what",
        "world-model",
        "--json",
        tmp_path / "w.json",
        "controller.name=random",
    )
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "w.json").read_text())["held-out random"]["episodes"] <= 12


def test_runs_that_do_not_fit_together_are_refused(mixed, tmp_path, capsys):
    folder = mixed / "tiny_vit_base"
    assert (
        "no finished 'collect'"
        in in_process(capsys, "train-wm", "--run", folder, f"collect.also=[{tmp_path / 'none'}]").error
    )
    other = shutil.copytree(mixed / "tiny_resnet18", tmp_path / "other")
    identity = json.loads((other / "model.json").read_text())
    identity["task"]["env"]["max_locations"] = 21
    (other / "model.json").write_text(json.dumps(identity))
    assert (
        "begun with other options ('env' differs)"
        in in_process(capsys, "train-wm", "--run", folder, f"collect.also=[{other}]").error
    )
    identity["task"]["env"]["max_locations"], identity["task"]["rules"] = 20, "of another rule set"
    (other / "model.json").write_text(json.dumps(identity))
    assert (
        "begun with other options ('rules' differs)"
        in in_process(capsys, "train-wm", "--run", folder, f"collect.also=[{other}]").error
    )
    assert "begun with other options ('rules' differs)" in in_process(capsys, "train-wm", "--run", other).error
    (other / "model.json").write_text("{}")
    assert "is damaged" in in_process(capsys, "train-wm", "--run", folder, f"collect.also=[{other}]").error
