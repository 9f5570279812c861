"""Test killed commands: after any number of kills and restarts, a command leaves the files of an undisturbed run.

The moments of the kills are random: just before a stage's file takes its name, just after, or a little later. Every try
runs in its own process, forked from a process that has imported all modules.
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.commands import EDITS
from tests.suite import at_night, eager, few_dreams

FROM_RUN_TO_RUN = {
    "seconds",
    "own_seconds",
    "spent",
    "acting_seconds",
    "new_interactions",
    "resumed_from",
}  # keys of JSON that a restart may change
SEED = int(os.environ.get("KILL_SEED", "0"))  # `make nightly` sets other seeds
LATER = 0.1  # most seconds after a write; short, so that the command does not end before
MODEL = at_night("tiny_resnet18", "tiny_squeezenet1_1")
OPTIONS = (
    *EDITS,
    "eval.samples=1",
    "collect.episodes=10",
    f"controller.ppo.updates={at_night(4, 2)}",
    "controller.cma-es.generations=4",
    "controller.cma-es.evaluate_every=2",
)
OPTIMISE = {  # end of a path → (fewest writes, True if a stage continues to work after the write)
    "config.yaml": (1, True), "best-so-far.json": (3, True), "search.json": (1, True), r"shard-0000\d.npz": (3, True),
    "collect.json": (1, True),
    "world-model/.*": (2, True), "train-wm.json": (1, True), "controller.npz": (2, True), "controller.json": (2, True),
    "train-controller.json": (1, True),
    "optimised.onnx": (1, False), "/eval.json": (1, False), "/x.onnx": (1, False),
}  # fmt: skip
ONE_A_STAGE = ("best-so-far.json", r"shard-0000\d.npz", "world-model/.*", "controller.npz", "optimised.onnx")
MDN_RNN = (
    "world_model.name=mdn-rnn",
    "world_model.checkpoint_seconds=1e-9",
    "world_model.holdout=0",
    "world_model.mdn-rnn.encoder_steps=4",
    "world_model.mdn-rnn.steps=30",
)
PLANNER = ("--iterations", "3", "iterations.interactions=170", "controller.name=planner")
ACTED = ("controller", "train-controller.json", "eval", "eval.json")  # results of the last stages of `optimise`
LEARNT = ("world-model", "train-wm.json", *ACTED)
STAGES = {  # name → (paths to remove first, {command of a stage: moments of the kills})
    "a controller of another kind": (ACTED, {
        ("train-controller", "controller.name=cma-es"): {"controller.npz": (2, False), "controller.json": (2, False),
            "train-controller.json": (1, False)},
    }),
    "a world model of another kind": (LEARNT, {
        ("train-wm", *MDN_RNN): {"checkpoint.npz": (3, False), "world-model/.*": (3, True), "weights.npz": (1, False)},
    }),
    "iterations and a planner": (LEARNT, {
        ("train-wm", *PLANNER): {
            "iterations/[^/]*/1/world-model/.*": (3, False), "iterations/[^/]*/2/controller/.*": (2, False),
            "iterations/[^/]*/2/episodes/.*": (2, False),
            "iterations/[^/]*/2/world-model/.*": (3, False), "iterations/[^/]*/3/episodes/.*": (2, True),
            "iterations/[^/]*/3/world-model/.*": (3, True),
            "[a-z]/world-model/.*": (3, False),
        },
        ("train-controller",): {"controller.json": (1, False)},
        ("eval",): {"candidate-.*": (3, True), "receipt.json": (1, False), "optimised.onnx": (1, False),
            "eval.json": (1, False)},
    }),
}  # fmt: skip


class Death(NamedTuple):
    """A kill at write number n of a file whose path ends with `path`; n = 0 means never.

    The process dies before the write, or `seconds` after it.
    """

    path: str = ""
    n: int = 0
    before: bool = False
    seconds: float = 0.0


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([
        "tests.conftest", "worldmodel", "rlflow.cli.main", "controllers.stages.learn", "rlflow.optimisation.pipeline",
        "controllers.ppo", "controllers.cma_es", "controllers.evaluation", "rlflow.optimisation.delivery",
        "rlflow.reports.html", "rlflow.optimisation.anytime", "rlflow.collect.rollouts", "worldmodel.dream",
        "worldmodel.boards", "matplotlib.figure",
    ])  # fmt: skip
    return context


def command(arguments: tuple[str, ...], death: Death, errors: Path) -> None:
    """Run the command line in a forked process that dies as `death` states."""
    from rlflow.cli.main import main

    replace, writes = os.replace, []

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(source, target):
        writes.extend([target] if re.search(f"{death.path}$", str(target)) else [])
        now = len(writes) == death.n and target is writes[-1]
        if now and death.before:
            die()
        replace(source, target)
        if now and death.seconds:
            threading.Timer(death.seconds, die).start()
        elif now:
            die()

    os.replace = dying if death.n else replace
    sys.stderr = open(errors, "w", encoding="utf-8")
    with eager(), few_dreams():
        sys.exit(main(list(arguments)))


def ends(processes, arguments: tuple[str, ...], errors: Path, death: Death = Death()) -> None:
    process = processes.Process(target=command, args=(arguments, death, errors))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if death.n else 0), (death, errors.read_text(encoding="utf-8"))


def drawn(moments: dict[str, tuple[int, bool]], rng: np.random.Generator) -> list[Death]:
    """Draw a death for each of the paths."""
    result = []
    for path, (writes, later) in moments.items():
        how = rng.integers(3 if later else 2)
        result.append(
            Death(path, int(rng.integers(1, writes + 1)), how == 0, LATER * rng.random() if how == 2 else 0.0)
        )
    return result


def left(folder: Path) -> dict[str, object]:
    """Return the contents of a run folder without times and without files that contain times."""
    result = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if "tensorboard" in path.parts or path.suffix in (".md", ".html") or name == "versions.json":
            continue
        result[name] = (
            timeless(json.loads(path.read_text().replace(str(folder), "RUN")))
            if path.suffix == ".json"
            else path.read_bytes()
        )
    return result


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in FROM_RUN_TO_RUN}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def different(one: Path, other: Path) -> list[str]:
    """Return the files that only one folder has, or that differ between both."""
    one, other = left(one), left(other)
    return [name for name in one | other if name not in one or name not in other or one[name] != other[name]]


def optimise(folder: Path) -> tuple[str, ...]:
    return (
        "optimise",
        MODEL,
        "--learn",
        "--out",
        str(folder / "x.onnx"),
        "--run",
        str(folder),
        "--seed",
        "3",
        *OPTIONS,
    )


@pytest.fixture(scope="module")
def undisturbed(processes, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ends(processes, optimise(folder), folder.parent / "errors.txt")
    return folder


def test_optimise_killed_in_every_stage_ends_with_the_same_files(processes, undisturbed, tmp_path):
    folder, errors = tmp_path / "run", tmp_path / "errors.txt"
    moments = at_night(OPTIMISE, {path: OPTIMISE[path] for path in ONE_A_STAGE})
    for death in drawn(moments, np.random.default_rng([7, SEED])):
        ends(processes, optimise(folder), errors, death)
    ends(processes, optimise(folder), errors)
    assert not different(folder, undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize("missing, stages", STAGES.values(), ids=STAGES)
def test_stages_that_are_killed_end_with_the_same_files(processes, undisturbed, tmp_path, missing, stages):
    errors, rng = tmp_path / "errors.txt", np.random.default_rng([15, SEED])
    for name in ("whole", "killed"):
        run = shutil.copytree(undisturbed, tmp_path / name, ignore=shutil.ignore_patterns(*missing))
        for command, moments in stages.items():
            for death in [*(drawn(moments, rng) if name == "killed" else []), Death()]:
                ends(processes, (*command, "--run", str(run)), errors, death)
    assert not different(tmp_path / "killed", tmp_path / "whole")
