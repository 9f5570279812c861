"""Tests of the wheel, installed in a virtual environment outside the checkout.

The environment (tests/installation.py) has the wheel and links to the packages that setup.py requires without extras.
It has no TensorFlow, no cma, no Optuna and no undeclared package. These tests do not show that pip finds the required
packages; `python -m tests.nightly.installation` installs them by pip.
"""

import json
import subprocess
import zipfile
from pathlib import Path

import onnx
import pytest

import rlflow
from rlflow.zoo import load
from tests.conftest import once
from tests.installation import ROOT, build_wheel, install
from tests.suite import slow

PACKAGES = {  # folder of the checkout → its folder in site-packages
    "rlflow": "rlflow", "worldmodel": "worldmodel", "controllers": "controllers", "configs": "rlflow/configs",
}  # fmt: skip
QUICK = (
    "cost.name=analytic", "eval.seeds=[0]", "eval.measure_seconds=0", "search.interactions=300", "search.beam.width=2",
    "search.annealing.restarts=1",
)  # fmt: skip
COLLECT = ("collect", "--run", "r", "--model", "tiny_resnet18")
LIBRARY = """
import json, sys
import gymnasium
import rlflow

quick = {"cost.name": "analytic", "eval.seeds": [0], "eval.measure_seconds": 0, "search.interactions": 300}
result = rlflow.optimise("tiny_resnet18", seconds=600, options=quick, quiet=True)
result.save("library.onnx")
state = rlflow.load_task("tiny_resnet18", cost="analytic").initial
env = gymnasium.make("rlflow/GraphRewrite-v0", model="tiny_resnet18", cost="analytic")
print(json.dumps({
    "gain": result.estimated_gain_percent, "verdict": result.verdict, "actions": len(result.receipt["actions"]),
    "report": result.report.exists(), "matches": len(state.matches), "rules": int(env.action_space.nvec[0]) - 1,
    "version": rlflow.__version__, "where": rlflow.__file__,
}))
"""


class Installed:
    """An installation of the wheel.

    Attributes:
        program: path of the console command `rlflow`.
        python: path of the Python interpreter.
        site_packages: the folder with the packages.
        wheel: path of the wheel.
    """

    def __init__(self, folder: Path):
        self.program, self.python = (folder / "environment" / "bin" / name for name in ("rlflow", "python"))
        self.site_packages = next(folder.glob("environment/lib/python*/site-packages"))
        self.wheel = next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(shared_folder) -> Installed:
    return Installed(once(shared_folder, "installed", lambda path: install(build_wheel(path), path / "environment")))


def called(*command, folder: Path) -> subprocess.CompletedProcess:
    """Run a command in a folder outside the checkout, without environment variables that refer to the checkout."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_wheel_holds_exactly_the_files_of_the_packages(installed):
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    files = set()
    for folder, package in PACKAGES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files.add(f"{package}/{path.relative_to(ROOT / folder)}")
    assert {name for name in names if ".dist-info/" not in name} == files
    assert {"rlflow/rules/fusion.rules", "rlflow/rules/proofs.json", "rlflow/configs/default.yaml"} <= files


def test_installing_rlflow_adds_no_common_name_and_no_learning_library(installed):
    names = {path.name.partition(".")[0].partition("-")[0] for path in installed.site_packages.iterdir()}
    assert {"rlflow", "numpy", "onnxruntime", "scipy"} <= names
    assert not names & {"run", "configs", "benchmarks", "tests", "setup"}
    assert not names & {"tensorflow", "keras", "sonnet", "graph_nets", "cma", "optuna", "ray", "z3", "torch"}


@pytest.mark.nightly
def test_the_installed_command_optimises_a_model_and_shows_its_own_name(installed, tmp_path):
    arguments = ("tiny_squeezenet1_1", "--out", "x.onnx", "--seconds", "600", "--json", "r.json", *QUICK)
    done = called(installed.program, "optimise", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    methods = json.loads((tmp_path / "r.json").read_text())["search"]["methods"]
    assert methods["greedy"]["estimated_improvement_percent"] > 0
    onnx.checker.check_model(str(tmp_path / "x.onnx"))
    assert (tmp_path / "x.run" / "eval" / "report.html").exists()
    text = called(installed.program, "--help", folder=tmp_path).stdout
    assert text.startswith("usage: rlflow ") and "rlflow optimise MODEL.onnx" in text and "run.py" not in text


@pytest.mark.nightly
def test_search_validate_replay_bound_and_the_lists_need_no_tensorflow(installed, tmp_path):
    def succeeds(*arguments) -> str:
        done = called(installed.program, *arguments, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    onnx.save(load("tiny_resnet18"), tmp_path / "a.onnx")
    succeeds("search", "--method", "greedy", "--model", "a.onnx", "--out", "b.onnx", *QUICK)
    succeeds("validate", "a.onnx", "b.onnx", "--receipt", "b.receipt.json")
    succeeds("replay", "b.receipt.json", "--model", "a.onnx", "--out", "c.onnx")
    assert (tmp_path / "c.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert "from the best" in succeeds("bound", "--model", "a.onnx", "--iterations", "1")
    assert "conv-batchnorm" in succeeds("rules", "list") and "tiny_resnet18" in succeeds("zoo")
    succeeds("costs", "show")


@pytest.mark.nightly
def test_a_script_without_a_main_guard_can_call_the_library(installed, tmp_path):
    (tmp_path / "script.py").write_text(LIBRARY)
    done = called(installed.python, "script.py", folder=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    said = json.loads(done.stdout)
    assert said["gain"] > 0 and said["verdict"] == "not measured" and said["actions"] > 0 and said["report"]
    assert said["matches"] > 0 and said["rules"] > 100 and said["version"] == rlflow.__version__
    assert Path(said["where"]).is_relative_to(installed.site_packages)
    onnx.checker.check_model(str(tmp_path / "library.onnx"))
    assert (tmp_path / "library.receipt.json").exists()


@pytest.mark.parametrize(
    "arguments, needs",
    [
        (("optimise", "tiny_resnet18", "--out", "x", "--learn"), "the world model 'graph-mdn' needs tensorflow"),
        *slow(
            ((*COLLECT, "task.name=ordering", "controller.name=linear-scores"), "'linear-scores' needs cma"),
            ((*COLLECT, "world_model.name=edits", "controller.name=ppo"), "the controller 'ppo' needs tensorflow"),
            (COLLECT, "the world model 'graph-mdn' needs tensorflow"),
            (("sweep", "configs/sweeps/temperature.yaml", "--run", "s"), "needs tensorflow"),
        ),
    ],
)
def test_a_missing_learning_dependency_is_reported_in_one_line_with_its_install_command(
    installed, tmp_path, arguments, needs
):
    done = called(installed.program, *arguments, folder=tmp_path)
    assert done.returncode == 1 and needs in done.stderr and "pip install 'rlflow[learn]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
