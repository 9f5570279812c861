"""Test sweeps: the meaning of a sweep file, the runs that it defines, and resumption after a kill. Most runs are
faked."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import onnx
import pytest
import yaml

from controllers.stages.parts import check_names
from rlflow.cli.sweep import end_with, write_parameters
from rlflow.common import system
from rlflow.common.errors import RLFlowError
from rlflow.env.rewards import make_reward
from rlflow.reports.sentences import as_csv
from rlflow.runs.sweeps import runs as sweep_runs
from rlflow.runs.sweeps import trials as sweep_trials
from rlflow.runs.sweeps.definition import Sweep, load_sweep
from rlflow.runs.sweeps.runs import FIGURES, LOG, Run, figures, has_diverged, plan, run_stages
from rlflow.runs.sweeps.tables import best, mean_and_sd, rows, summary, write_tables
from rlflow.runs.sweeps.trials import Trial, play
from rlflow.zoo import load
from tests.commands import ROOT, in_its_own, in_process
from tests.suite import slow
from worldmodel.trainer import Diverged

SHIPPED = ROOT / "configs" / "sweeps"
GRID = {
    "model": "tiny_resnet18",
    "parameters": {"controller.name": ["ppo", "random"], "dream.temperatures": [0.5, 1.0, 2.0]},
}
RANGE = {
    "model": "tiny_resnet18", "sampler": "random", "trials": 8,
    "parameters": {
        "controller.ppo.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
        "controller.ppo.epochs": {"low": 1, "high": 9},
    },
}  # fmt: skip


def sweep_of(tmp_path, content: dict, **changes):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return load_sweep(path)


class Fake:
    """A stand-in that finishes runs at once and records their names. The real return of a run is `score(options)`."""

    def __init__(self, score, dies: int | None = None, fails=lambda options: False):
        self.score, self.dies, self.fails, self.done = score, dies, fails, []

    def __call__(self, runs):
        errors = {}
        for run in runs:
            if not run.finished and not self.fails(run.options):
                if len(self.done) == self.dies:
                    raise KeyboardInterrupt
                self.done.append(run.folder.name)
                write_results(run, self.score(run.options))
            errors[run.folder] = "it failed" if self.fails(run.options) else None
        return errors


def write_results(run: Run, score: float) -> None:
    run.folder.mkdir(parents=True)
    (run.folder / "train-wm.json").write_text(json.dumps({"seconds": 0.0}))
    (run.folder / "train-controller.json").write_text(json.dumps({"seconds": 2.0}))
    candidate = {"objective": 200 - score, "interactions": 7, "seconds": 0.5}
    results = {
        "original": {"objective": 200},
        "experiments": [{"trained_return": 2 * score, "real_return": score}],
        "candidates": {"controller": candidate},
        "seconds": 1.0,
    }
    (run.folder / "eval.json").write_text(json.dumps(results))


def played(sweep, folder, fake, report=lambda trials, study: None) -> list[Trial]:
    """Play a sweep without the creation of configs, which takes time; other tests check the folder of a run."""
    with patch(
        "rlflow.runs.sweeps.trials.plan",
        lambda folder, options: Run(folder / str(sorted(options.items())), ("eval",), options, None),
    ):
        return play(sweep, folder, fake, report)


def values(trials) -> list[dict]:
    return [trial.values for trial in trials]


# -- the file --------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_and_the_last_parameter_changes_fastest(tmp_path):
    sweep = sweep_of(tmp_path, GRID)
    assert sweep.trials == 6
    result = [tuple(sweep.grid(k).values()) for k in range(6)]
    assert result == [("ppo", 0.5), ("ppo", 1.0), ("ppo", 2.0), ("random", 0.5), ("random", 1.0), ("random", 2.0)]


def test_a_run_has_the_options_of_its_values_its_seed_and_the_base(tmp_path):
    sweep = sweep_of(tmp_path, GRID, base={"env.max_steps": 6, "env": {"alpha": 0.5}}, seeds=[4])
    options = sweep.options(sweep.grid(1), 4)
    assert options == {
        "model": "tiny_resnet18", "env": {"max_steps": 6, "alpha": 0.5}, "controller": {"name": "ppo"},
        "dream": {"temperatures": [1.0]}, "seed": 4,
    }  # fmt: skip


def test_a_case_sets_several_options_at_once(tmp_path):
    cases = {"good": {"env.alpha": 0.8, "env.beta": 0.2}, "even": {"env.alpha": 0.5, "env.beta": 0.5}}
    sweep = sweep_of(tmp_path, GRID, parameters={"weights": cases})
    assert sweep.trials == 2 and sweep.options({"weights": "even"}, 0)["env"] == {"alpha": 0.5, "beta": 0.5}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"parameter": {}}, "unknown key 'parameter'; did you mean 'parameters'?"),
        ({"parameters": {}}, "'parameters' maps at least one option"),
        (
            {"parameters": {"dream.temperature": [1.0]}},
            "unknown option 'dream.temperature'; did you mean 'dream.temperatures'?",
        ),
        ({"parameters": {"env.alpha": ["high"]}}, "'env.alpha' is a float, not 'high'"),
        ({"parameters": {"env.alpha": [0.5, -1]}}, "'env.alpha' must be 0 or more, not -1"),
        ({"parameters": {"env.alpha": 0.5}}, "'env.alpha' is a list of numbers or texts, a range"),
        ({"parameters": {"env.alpha": [0.5, 0.5]}}, "'env.alpha' holds a value twice"),
        (
            {"parameters": {"weights": {"good": {"env.alfa": 1}}}},
            "unknown option 'env.alfa'; did you mean 'env.alpha'?",
        ),
        ({"parameters": {"seed": [1]}}, "the key 'seeds' says with which seeds"),
        ({"parameters": {"controller.name": ["pppo"]}}, "unknown controller 'pppo'; did you mean 'ppo'?"),
        ({"parameters": {"env.alpha": {"low": 0, "high": 1}}}, "a grid needs lists or cases"),
        (
            {"parameters": {"env.alpha": {"low": 1, "high": 0}}, "sampler": "tpe", "trials": 2},
            "from a number 'low' to a larger one",
        ),
        (
            {"parameters": {"env.alpha": {"low": 0, "high": 1, "log": True}}, "sampler": "tpe", "trials": 2},
            "needs a 'low' above 0",
        ),
        (
            {"parameters": {"env.alpha": {"low": 0, "high": 1, "lag": True}}, "sampler": "tpe", "trials": 2},
            "did you mean 'log'?",
        ),
        (
            {"parameters": {"controller.ppo.gamma": {"low": 0.5, "high": 2}}, "sampler": "tpe", "trials": 2},
            "must be at most 1, not 2",
        ),
        ({"base": {"env.max_step": 3}}, "unknown option 'env.max_step'; did you mean 'env.max_steps'?"),
        ({"base": {"env": 3, "env.alpha": 1}}, "'env' is both a value and a group"),
        ({"base": {"dream.temperatures": [1, 2]}, "parameters": {"env.alpha": [1.0]}}, "a trial trains one controller"),
        ({"base": {"model": "${oc.env:HOME}"}}, "holds an interpolation"),
        ({"model": None}, "no model: name one with 'model'"),
        ({"sampler": "grit"}, "'sampler' is grid or random or tpe, not 'grit'"),
        ({"sampler": "tpe"}, "'trials' is a whole number of at least 1, not None"),
        ({"trials": 3}, "a grid runs every combination"),
        ({"pruner": "mean"}, "'pruner' is none or median"),
        ({"seeds": [1, 1]}, "'seeds' is a list of different whole numbers"),
        ({"seeds": [-1]}, "'seeds' is a whole number of at least 0, not -1"),
        ({"workers": 0}, "'workers' is a whole number of at least 1, not 0"),
        ({"executor": "cloud"}, "'executor' is local or ray"),
        ({"objective": {"figure": "score"}}, "unknown figure 'score'"),
        ({"objective": {"figure": "real", "direction": "up"}}, "'direction' is maximize or minimize"),
        ({"objective": {"figur": "real"}}, "did you mean 'figure'?"),
        (
            {"parameters": {"controller.name": ["ppo", "xrlflow"]}, "objective": {"figure": "real"}},
            "no world model is learnt for xrlflow: no 'real'",
        ),
    ],
)  # fmt: skip
def test_a_wrong_sweep_file_is_refused_before_any_run(tmp_path, capsys, changes, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(GRID | changes))
    error = in_process(capsys, "sweep", path, "--run", tmp_path / "sweep").error
    assert error.startswith(f"{path}: ") and message in error and not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("name", ["../../outside", "/outside", "cost $x_{$", "two\nlines", ""])
def test_a_parameter_name_that_cannot_be_a_file_name_is_refused(tmp_path, name):
    with pytest.raises(RLFlowError) as refused:
        sweep_of(tmp_path, GRID, parameters={name: {"good": {"env.alpha": 0.8}}})
    assert "is named by letters, digits" in str(refused.value) and "\n" not in str(refused.value)


def test_files_that_are_no_mapping_are_refused(tmp_path, capsys):
    for text in ("- 1\n", "a: [\n", "!!python/object/apply:os.system [true]\n"):
        (tmp_path / "wrong.yaml").write_text(text)
        assert (
            str(tmp_path / "wrong.yaml")
            in in_process(capsys, "sweep", tmp_path / "wrong.yaml", "--run", tmp_path / "sweep").error
        )


def test_the_shipped_sweeps_have_the_values_of_the_paper():
    result = {path.stem: load_sweep(path, check_names) for path in sorted(SHIPPED.glob("*.yaml"))}
    small = result.pop("temperature_small")
    assert set(result) == {"temperature", "rewards", "controllers"}
    (temperature,) = result["temperature"].parameters
    assert temperature.choices == (0.1, 0.5, 0.75, 1.0, 1.2, 1.5, 1.75, 2.0, 2.5, 3.0)  # Table 3
    assert set(small.parameters[0].choices) < set(temperature.choices) and small.base["model"] == "tiny_bert_base"
    assert all(len(sweep.seeds) == 5 and sweep.base["model"] == "bert_base" for sweep in result.values())
    (reward,) = result["rewards"].parameters
    weights = {
        (case["env.alpha"], case["env.beta"]) for case in reward.cases.values() if case["env.reward"] == "combined"
    }
    weights |= {(1.0, 0.0) for case in reward.cases.values() if case["env.reward"] == "incremental"}
    assert weights == {(k / 10, (10 - k) / 10) for k in range(11)}  # See section 4.3 of the paper.
    assert [reward.cases[name]["env.reward"] for name in ("R1", "R2", "R3", "R4", "R5")] == [
        "combined", "new-runtime", "combined", "combined", "incremental",
    ]  # fmt: skip


def test_the_new_runtime_reward_is_the_whole_decrease_since_the_start():
    initial, before, after = (SimpleNamespace(runtime_ms=ms) for ms in (5, 4, 3))
    assert make_reward("new-runtime", 0.8, 0.2)(before, after, initial) == pytest.approx(2.0)
    assert make_reward("incremental", 0.8, 0.2)(before, after, initial) == pytest.approx(1.0)


# -- which runs ------------------------------------------------------------------------------------


def folders(**options) -> list[str]:
    nested = {"model": "tiny_resnet18", "seed": 0}
    for name, value in options.items():
        group, _, key = name.partition("__")
        nested |= {group: {**nested.get(group, {}), key: value}} if key else {group: value}
    return [run.folder.name for run in plan(Path("x"), nested).chain]


@pytest.mark.parametrize(
    "change, shared",
    [
        ({"dream__temperatures": [0.5]}, 2), ({"controller__name": "random"}, 2), ({"eval__samples": 3}, 2),
        ({"world_model__name": "mdn-rnn"}, 1), ({"world_model__holdout": 0.2}, 1),
        ({"env__reward": "incremental"}, 0), ({"cost__name": "analytic"}, 0), ({"seed": 1}, 0),
        ({"model": "tiny_resnet50"}, 0),
        ({"collect__episodes": 7}, 0), ({"workers": 1, "collect__executor": "ray", "world_model__threads": 1}, 3),
    ],
)  # fmt: skip
def test_runs_share_their_stages_up_to_the_first_that_a_different_option_affects(change, shared):
    one, other = folders(iterations__count=1), folders(iterations__count=1, **change)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * shared + [False] * (3 - shared)


def test_runs_of_a_changed_file_are_other_runs(tmp_path):
    model, device, database = (tmp_path / name for name in ("m.onnx", "d.yaml", "t.sqlite"))
    onnx.save(load("tiny_resnet18"), model)
    device.write_text("a")
    database.write_text("a")
    named = {"model": str(model), "iterations__count": 1, "cost__database": str(database)}
    before, placed = folders(**named), folders(**named, placement__device=str(device))
    database.write_text("b")  # runs write to the database
    assert folders(**named) == before
    device.write_text("b")
    assert folders(**named, placement__device=str(device))[-1] != placed[-1]
    onnx.save(load("tiny_resnet18", 1), model)
    assert not set(folders(**named)) & set(before)


def test_a_sweep_goes_on_with_the_threads_with_which_it_was_begun(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sweep_trials, "play", lambda sweep, *_: seen.append(sweep.options({}, 0)["cost"]["threads"]))
    sweep = Sweep({}, (), "grid", 0, "none", 1, (0,), "local", 1, "improvement", "maximize")
    for cores in (8, 4):
        monkeypatch.setattr(sweep_trials, "usable_cores", lambda cores=cores: cores)
        sweep_trials.run_sweep(sweep, tmp_path, (), print)
    assert seen == [8, 8]


def test_world_models_that_learn_in_iterations_are_shared_by_equal_controllers_alone():
    for change, shared in ({"controller__name": "cma-es"}, 1), ({"eval__samples": 3}, 2):
        assert [a == b for a, b in zip(folders(), folders(**change), strict=True)] == [k < shared for k in range(3)]


def test_a_world_model_of_several_iterations_depends_on_its_controllers():
    several = folders(iterations__count=2)
    assert several[0] == folders()[0] and several[1] != folders()[1]
    assert folders(iterations__count=2, controller__name="random")[1] != several[1]


def test_a_world_model_that_learns_online_needs_no_episodes():
    name, own = folders(world_model__name="mdn-rnn", world_model__mode="online")
    assert name.startswith("train-wm-") and own.endswith("-seed-0")


@pytest.mark.parametrize(
    "options",
    [
        {"controller__name": "xrlflow", "controller__train_on": "real"},
        {"task__name": "ordering", "controller__name": "linear-scores"},
        {"task__name": "ordering", "controller__name": "topoformer", "world_model__mode": "online"},
    ],
)
def test_a_controller_without_a_world_model_needs_no_shared_stages(options):
    (own,) = folders(**options)
    assert own.endswith("-seed-0")


def test_a_continued_run_does_not_change_the_folder_that_the_run_was_copied_from(tmp_path):
    (tmp_path / "from" / "deep").mkdir(parents=True)
    for name in ("collect.json", "deep/shard", "config.yaml", "lock", ".hidden"):
        (tmp_path / "from" / name).write_text("old")
    sweep_runs._take_over(tmp_path / "from", tmp_path / "to")
    result = sorted(str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*") if path.is_file())
    assert result == ["collect.json", "deep/shard"]
    sweep_runs.write_text(tmp_path / "to" / "collect.json", "new")
    sweep_runs._take_over(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "collect.json").read_text() == "new" and (
        tmp_path / "from" / "collect.json"
    ).read_text() == "old"


@pytest.mark.parametrize("windows", [system.WINDOWS, *slow(True)])
def test_a_stage_left_running_by_a_killed_sweep_is_awaited_and_not_restarted(tmp_path, monkeypatch, windows):
    """A stage counts as running by its lock, and on Windows, where the lock is not kept, by its arguments."""
    monkeypatch.setattr(system, "WINDOWS", windows)
    run, begun, may_end = Run(tmp_path / "run", ("collect",), {}, None), tmp_path / "begun", tmp_path / "may_end"
    ended = run.folder / "collect.json"
    stage = (
        f"open({str(begun)!r}, 'a').write('x')\nimport os, time\n"
        f"while not os.path.exists({str(may_end)!r}): time.sleep(0.01)\nopen({str(ended)!r}, 'w')"
    )
    command = (sys.executable, "-c", stage)
    sweep = (
        "from pathlib import Path; from rlflow.common import system; "
        "from rlflow.runs.sweeps.runs import Run, run_stages; "
        f"system.WINDOWS = {windows}; "
        f"run_stages(Run(Path({str(run.folder)!r}), ('collect',), {{}}, None), {command!r}, '.')"
    )
    killed = subprocess.Popen([sys.executable, "-c", sweep], cwd=ROOT)
    while not begun.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert not run.finished
    threading.Timer(0.5, may_end.touch).start()  # The stage ends while the second sweep waits for it.
    assert run_stages(run, command, str(tmp_path)) is None
    assert begun.read_text() == "x"


def test_the_last_error_of_a_stage_is_reported_and_dependent_stages_are_not_tried(tmp_path):
    run = Run(tmp_path / "run", ("collect",), {}, None)
    code = "import sys; sys.exit('progress\\nerror: first\\nerror: the disk is full')"
    assert run_stages(run, (sys.executable, "-c", code), str(tmp_path)) == "collect: the disk is full"
    assert "ended with status -9" in run_stages(
        run, (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), str(tmp_path)
    )
    own = Run(tmp_path / "own", ("eval",), {}, run)
    reason = run_stages(own, ("false",), str(tmp_path))
    assert reason == "its 'collect' failed: the disk is full" and not own.folder.exists()


def test_a_log_that_is_a_symbolic_link_is_refused(tmp_path):
    run, elsewhere = Run(tmp_path / "run", ("collect",), {}, None), tmp_path / "elsewhere"
    run.folder.mkdir()
    (run.folder / LOG).symlink_to(elsewhere)
    with pytest.raises(RLFlowError, match="log.txt: it is a symbolic link"):
        run_stages(run, (sys.executable, "-c", "print('x')"), str(tmp_path))
    assert not elsewhere.exists()


# -- which trials ----------------------------------------------------------------------------------


def rate(options) -> float:
    """Return a score that is best at a learning rate of 0.01."""
    return -abs(options["controller"]["ppo"]["learning_rate"] - 0.01)


@pytest.mark.parametrize("sampler", ["tpe", *slow("random")])
def test_the_seed_of_a_sampler_repeats_its_trials_and_more_trials_extend_them(tmp_path, sampler):
    one, again, longer, other = (
        played(
            sweep_of(tmp_path, RANGE, sampler=sampler, trials=trials, sampler_seed=seed), tmp_path / f"{k}", Fake(rate)
        )
        for k, (trials, seed) in enumerate([(12, 5), (12, 5), (14, 5), (12, 6)])
    )
    assert values(one) == values(again) == values(longer)[:12] != values(other)
    rates = [trial.values["controller.ppo.learning_rate"] for trial in one]
    assert len(set(rates)) == 12 and all(1e-4 <= value <= 1e-1 for value in rates)
    assert all(isinstance(trial.values["controller.ppo.epochs"], int) for trial in one)


def test_tpe_learns_from_earlier_trials_and_random_sampling_does_not(tmp_path):
    result = {}
    for sampler in ("random", "tpe"):
        sweep = sweep_of(tmp_path, RANGE, sampler=sampler, trials=16)
        result[sampler] = [
            values(played(sweep, tmp_path / f"{sampler}{sign}", Fake(lambda o, s=sign: s * rate(o))))
            for sign in (1, -1)
        ]
    (one, other), (tpe, reverse) = result["random"], result["tpe"]
    assert one == other and tpe[:10] == reverse[:10] and tpe[10:] != reverse[10:]


def by_learning_rate(tmp_path, scores, **changes):
    """Return a grid of one trial for each score, and a Fake that gives this score in every seed."""
    rates = [float(k + 1) for k in range(len(scores))]
    sweep = sweep_of(tmp_path, GRID, parameters={"controller.ppo.learning_rate": rates}, **changes)
    return sweep, Fake(lambda options: scores[int(options["controller"]["ppo"]["learning_rate"]) - 1])


def test_a_trial_behind_the_median_after_its_first_seed_is_pruned_and_marked(tmp_path):
    sweep, fake = by_learning_rate(
        tmp_path, [1, 2, 3, 4, 5, 2.5, 3.5, 0], pruner="median", seeds=[0, 1, 2], objective={"figure": "real"}
    )
    trials = played(sweep, tmp_path / "sweep", fake)
    assert [trial.number for trial in trials if trial.pruned] == [5, 7]  # The median is 3 at first and 3.25 later.
    assert [len(trial.figures) for trial in trials] == [3, 3, 3, 3, 3, 1, 3, 1] and len(fake.done) == 20
    result = rows(sweep, trials, tmp_path / "sweep")
    assert [row["trial"] for row in result if row["state"] == "pruned"] == [5, 7]
    down, fake = by_learning_rate(
        tmp_path, [1, 2, 3, 4, 5, 2.5, 3.5], pruner="median", seeds=[0, 1],
        objective={"figure": "real", "direction": "minimize"},
    )  # fmt: skip
    assert [trial.number for trial in played(down, tmp_path / "down", fake) if trial.pruned] == [6]


def test_a_trial_with_a_lucky_first_seed_is_judged_by_its_mean_so_far(tmp_path):
    scores = [[k, k, k] for k in (1, 2, 3, 4, 5)] + [[4.5, 0, 9]]
    sweep, _ = by_learning_rate(tmp_path, scores, pruner="median", seeds=[0, 1, 2], objective={"figure": "real"})
    fake = Fake(lambda options: scores[int(options["controller"]["ppo"]["learning_rate"]) - 1][options["seed"]])
    trials = played(sweep, tmp_path / "sweep", fake)
    assert [len(trial.figures) for trial in trials] == [3, 3, 3, 3, 3, 2]


@pytest.mark.parametrize("workers", [3, *slow(1)])
def test_a_sweep_killed_after_any_run_resumes_and_ends_with_the_same_table(tmp_path, workers):
    sweep = sweep_of(
        tmp_path, RANGE, sampler="tpe", pruner="median", trials=13, seeds=[0, 1], workers=workers,
        objective={"figure": "real"},
    )  # fmt: skip
    whole = Fake(rate)
    table = rows(sweep, played(sweep, tmp_path / "whole", whole), tmp_path / "whole")
    assert {row["state"] for row in table} == {"finished", "pruned"}
    for dies in range(0, len(whole.done), 3):
        folder, killed, rest = tmp_path / f"{dies}", Fake(rate, dies), Fake(rate)
        with pytest.raises(KeyboardInterrupt):
            played(sweep, folder, killed)
        assert rows(sweep, played(sweep, folder, rest), folder) == table
        assert killed.done + rest.done == whole.done  # Each run is done exactly once.


def test_a_run_that_failed_is_reported_and_tried_again(tmp_path):
    sweep, _ = by_learning_rate(tmp_path, [1, 2, 3])
    fails = Fake(lambda options: 1.0, fails=lambda options: options["controller"]["ppo"]["learning_rate"] == 2)
    trials = played(sweep, tmp_path / "sweep", fails)
    assert [trial.state for trial in trials] == ["finished", "failed", "finished"]
    table = rows(sweep, trials, tmp_path / "sweep")
    assert [row["error"] for row in table] == [None, "it failed", None] and table[1]["real"] is None
    again = Fake(lambda options: 1.0)
    assert {trial.state for trial in played(sweep, tmp_path / "sweep", again)} == {"finished"} and len(again.done) == 1


def test_the_next_command_reports_every_seed_of_the_best_trial(tmp_path, capsys):
    sweep = sweep_of(tmp_path, RANGE, sampler="random", trials=5, seeds=[0, 1], objective={"figure": "real"})
    folder = tmp_path / "sweep"
    trials = played(sweep, folder, Fake(rate))
    winner = best(sweep, summary(trials))
    end_with(rows(sweep, trials, folder), winner, folder, "x.yaml")
    said = capsys.readouterr().out.splitlines()[-1]
    runs = shlex.split(said.split(" report ")[1].split(" --out ")[0])
    assert [str(path.resolve()) for path in map(Path, runs)] == [
        str(path.resolve()) for path in trials[winner["trial"]].folders.values()
    ]
    end_with([], None, folder, "x.yaml")
    assert " sweep x.yaml --run " in capsys.readouterr().out


def test_optuna_reads_the_same_trials(tmp_path):
    import optuna

    sweep, fake = by_learning_rate(
        tmp_path, [1, 2, 3, 4, 5, 2.5], pruner="median", seeds=[0, 1], objective={"figure": "real"}
    )
    played(sweep, tmp_path, fake, lambda trials, study: len(trials) < 6 or study.save(tmp_path / "optuna.db"))
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path}/optuna.db")
    assert [trial.value for trial in study.trials] == [1, 2, 3, 4, 5, None]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5 + ["PRUNED"]
    assert study.best_params == {"controller.ppo.learning_rate": 5.0}


# -- the tables ------------------------------------------------------------------------------------


def test_mean_and_sd_are_the_mean_and_the_sample_standard_deviation():
    assert mean_and_sd([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == {"mean": 5.0, "sd": pytest.approx((32 / 7) ** 0.5)}
    assert mean_and_sd([3.0]) == {"mean": 3.0, "sd": None} and mean_and_sd([]) == {"mean": None, "sd": None}


def test_tables_of_known_figures_have_the_expected_statistics(tmp_path):
    scores = {(0.5, 0): 2.0, (0.5, 1): 4.0, (1.5, 0): 5.0, (1.5, 1): 6.0}
    sweep = sweep_of(tmp_path, GRID, parameters={"dream.temperatures": [0.5, 1.5]}, seeds=[0, 1])
    trials = played(sweep, tmp_path, Fake(lambda options: scores[options["dream"]["temperatures"][0], options["seed"]]))
    one, other = summary(trials)
    assert (
        one["real"] == {"mean": 3.0, "sd": pytest.approx(2**0.5)}
        and one["dreamt"]["mean"] == 6.0
        and one["gap_percent"] == 100.0
    )
    assert one["seconds"]["mean"] == 3.0 and best(sweep, [one, other]) is other
    result = write_tables(tmp_path, sweep, trials, "name")
    assert json.loads((tmp_path / "trials.json").read_text()) == result
    table = list(csv.DictReader((tmp_path / "trials.csv").open()))
    shown = [(float(row["dream.temperatures"]), int(row["seed"]), float(row["real"]), row["state"]) for row in table]
    assert shown == [(t, s, real, "finished") for (t, s), real in scores.items()] and set(FIGURES) < table[0].keys()
    page = (tmp_path / "report.md").read_text()
    assert "| 0.5 | 2 | 6.00 ± 2.83 | 3.00 ± 1.41 | 1.50 ± 0.71 | 7 ± 0 |" in page
    assert "| **1.5** | **2** | **11.00 ± 1.41** | **5.50 ± 0.71** |" in page
    assert (tmp_path / "plots" / "dream.temperatures.png").read_bytes().startswith(b"\x89PNG")


def test_a_csv_table_quotes_commas_and_leaves_missing_values_empty():
    assert as_csv([{"a": "x,y", "b": None}]) == 'a,b\n"x,y",\n'


def test_damaged_results_are_refused(tmp_path):
    run = Run(tmp_path / "run", ("train-controller", "eval"), {}, None)
    write_results(run, 1.0)
    (run.folder / "eval.json").write_text('{"experiments": []}')
    with pytest.raises(RLFlowError, match="damaged"):
        figures(run)


# -- the command -----------------------------------------------------------------------------------


def test_a_sweep_refuses_the_folder_of_a_run_and_leaves_the_folder_unchanged(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rlflow.runs.sweeps.trials.run_sweep", lambda sweep, folder, command, report: report([]))
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)
    for name in ("model.json", "tensorboard/events"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(GRID))
    before = sorted((tmp_path / "run").rglob("*"))
    error = in_process(capsys, "sweep", tmp_path / "sweep.yaml", "--run", tmp_path / "run").error
    assert "is the folder of a run" in error and sorted((tmp_path / "run").rglob("*")) == before
    (tmp_path / "run" / "model.json").unlink()
    error = in_process(capsys, "sweep", tmp_path / "sweep.yaml", "--run", tmp_path / "run").error
    assert "is of no sweep" in error and (tmp_path / "run" / "tensorboard" / "events").exists()


@pytest.mark.nightly
def test_a_real_sweep_of_orders_learns_without_a_world_model_and_has_no_figures_of_dreams(tmp_path):
    file = tmp_path / "orders.yaml"
    chosen = {"task.name": "ordering", "controller.name": "linear-scores", "controller.linear-scores.popsize": 4}
    parameters = {"controller.linear-scores.generations": [1, 2]}
    file.write_text(yaml.safe_dump({"model": "layered-12-2", "base": chosen, "parameters": parameters}))
    done = in_its_own("sweep", file, "--run", tmp_path / "sweep", "--json", tmp_path / "results.json")
    assert done.code == 0 and not (tmp_path / "sweep" / "shared").exists(), done.err
    for row in json.loads((tmp_path / "results.json").read_text())["rows"]:
        outcome = json.loads((tmp_path / "sweep" / row["folder"] / "eval.json").read_text())
        before, after = outcome["original"]["objective"], outcome["candidates"]["controller"]["objective"]
        assert row["state"] == "finished" and row["dreamt"] is row["real"] is None
        assert row["improvement"] == pytest.approx(100 * (before - after) / before)


@pytest.mark.nightly
def test_a_killed_sweep_resumes_shares_its_stages_and_shows_its_parameters(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    folder, file = tmp_path / "sweep", tmp_path / "two.yaml"
    file.write_text((ROOT / "tests" / "sweep.yaml").read_text().replace("seeds: [3, 4]", "seeds: [3]"))
    command = [sys.executable, str(ROOT / "run.py"), "sweep", str(file), "--run", str(folder)]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while not (collected := list(folder.glob("shared/collect-*/collect.json"))):
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = [os.stat(path).st_mtime_ns for path in collected]
    done = in_its_own("sweep", file, "--run", folder, "--json", tmp_path / "results.json")
    assert done.code == 0 and done.ending["report"].endswith("report.md"), done.err
    results = json.loads((tmp_path / "results.json").read_text())
    assert [os.stat(path).st_mtime_ns for path in collected] == before
    assert Counter(path.name.rpartition("-")[0] for path in folder.glob("shared/*")) == {"collect": 1, "train-wm": 1}
    assert [(row["dream.temperatures"], row["seed"], row["state"]) for row in results["rows"]] == [
        (0.5, 3, "finished"),
        (1.5, 3, "finished"),
    ]
    assert list(folder.glob("shared/*/model.onnx")) and not list(folder.glob("trials/*/eval/*.onnx*"))
    for row in results["rows"]:
        evaluated = json.loads((folder / row["folder"] / "eval.json").read_text())
        (result,) = evaluated["experiments"]
        assert (result["temperature"], result["trained_return"], result["real_return"]) == (
            row["dream.temperatures"],
            row["dreamt"],
            row["real"],
        )
        events = EventAccumulator(str(folder / "tensorboard" / f"trial-{row['trial']:04d}-seed-3"))
        events.Reload()
        logged = parse_session_start_info_plugin_data(
            events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
        )
        assert len(events.Tensors(SESSION_START_INFO_TAG)) == 1
        assert logged.hparams["dream.temperatures"].number_value == row["dream.temperatures"]
        assert events.Scalars("real")[0].value == pytest.approx(row["real"])


def test_a_diverged_trial_is_marked_and_is_never_the_best(tmp_path):
    figures = dict.fromkeys(FIGURES, 1.0)
    trials = [
        Trial(0, {}, {0: dict(figures)}, {}, {0: tmp_path / "a"}),
        Trial(1, {}, {0: dict.fromkeys(FIGURES, 2.0)}, {}, {0: tmp_path / "b"}, diverged={0}),
    ]
    error = "its 'train-wm' failed: " + str(Diverged(3, "loss", float("nan")))
    trials.append(Trial(2, {}, {}, {0: error}, {0: tmp_path / "c"}, diverged={0}))
    assert has_diverged(Run(tmp_path, ("eval",), {}, None), error)
    entries = summary(trials)
    assert [entry["state"] for entry in entries] == ["finished", "diverged", "diverged"]
    sweep = SimpleNamespace(direction="maximize", figure="improvement", seeds=[0])
    assert best(sweep, entries) is entries[0]
    table = rows(sweep, trials, tmp_path)
    assert [row["state"] for row in table] == ["finished", "diverged", "diverged"]
    write_parameters(tmp_path / "tensorboard", SimpleNamespace(parameters=[]), table)
    assert [session_status(tmp_path / "tensorboard" / f"trial-{k:04d}-seed-0") for k in range(3)] == [1, 2, 2]


def session_status(folder: Path) -> int:
    """Return the status of a session in TensorBoard's HParams dashboard: 1 for success, 2 for failure."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG, parse_session_end_info_plugin_data

    events = EventAccumulator(str(folder))
    events.Reload()
    return parse_session_end_info_plugin_data(events.SummaryMetadata(SESSION_END_INFO_TAG).plugin_data.content).status


def test_a_case_does_not_change_the_base_or_the_options_of_other_cases(tmp_path):
    content = {"model": "tiny_resnet18", "base": {"env": {"max_steps": 5}}, "seeds": [0],
               "parameters": {"reward": {"a": {"env.alpha": 0.3}, "b": {"env.beta": 0.9}}}}  # fmt: skip
    sweep = sweep_of(tmp_path, content)
    options = [sweep.options(sweep.grid(number), 0)["env"] for number in (0, 1, 0)]
    assert options == [{"max_steps": 5, "alpha": 0.3}, {"max_steps": 5, "beta": 0.9}, {"max_steps": 5, "alpha": 0.3}]
