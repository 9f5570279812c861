"""Tests of the direction of imports between packages (docs/ARCHITECTURE.md), including imports inside functions."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from controllers import CONTROLLERS
from rlflow.collect.executors import EXECUTORS
from rlflow.costs import COSTS
from rlflow.env.rewards import REWARDS
from rlflow.zoo import ZOO
from worldmodel import WORLD_MODELS

ROOT = Path(__file__).parent.parent
LEARNING = {"tensorflow", "sonnet", "graph_nets", "tensorboard", "keras", "torch", "cma"}
HEAVY = LEARNING | {"numpy", "tqdm", "gymnasium", "onnx", "onnxruntime", "matplotlib", "scipy", "omegaconf", "optuna"}
ROOF = "rlflow.cli"  # the only package that may import all packages; no package imports it
STAGES = "controllers.stages"  # trains controllers in the dream; no controller imports it
FRONT_DOOR = [ROOT / "rlflow" / name for name in ("__init__.py", "library.py")]
ABOVE = {ROOF, "rlflow.library", "run", "benchmarks", "tests"}
FORBIDDEN = {  # package → modules that none of its files may import, at the top or inside a function
    "rlflow": {"worldmodel", "controllers", *ABOVE, *LEARNING},
    "worldmodel": {"controllers", *ABOVE},
    "controllers": {"worldmodel.dream", STAGES, *ABOVE},
    STAGES: {*ABOVE, *LEARNING},
    ROOF: {*ABOVE - {ROOF, "rlflow.library"}, *LEARNING},
}


@cache
def imported(path: Path) -> set[str]:
    """Return the full names of all modules and attributes that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            names.update(a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
    return names


def files_of(package: str) -> list[Path]:
    """Return the files of a package, without the files of ROOF, FRONT_DOOR and STAGES.

    The files of FRONT_DOOR count as files of ROOF.
    """
    inner = [ROOT.joinpath(*name.split(".")) for name in (ROOF, STAGES) if name != package]
    paths = sorted(ROOT.joinpath(*package.split(".")).rglob("*.py"))
    own = [path for path in paths if path not in FRONT_DOOR and not any(folder in path.parents for folder in inner)]
    return [*FRONT_DOOR, *own] if package == ROOF else own


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_between_packages_go_one_way(package):
    assert files_of(package)
    for path in files_of(package):
        for name in imported(path):
            for forbidden in FORBIDDEN[package]:
                assert name != forbidden and not name.startswith(f"{forbidden}."), f"{path.relative_to(ROOT)}: {name}"


# The floors (layers) inside rlflow, lowest first. A package imports only packages of lower floors.
FLOORS = (
    ("common",), ("graph", "zoo"), ("rules",), ("costs", "proving"), ("env",), ("search", "collect"), ("optimisation",),
    ("memory",), ("reports",), ("tasks",), ("runs",), ("cli",),
)  # fmt: skip


def floor_of(module: str) -> tuple[int, str] | None:
    """Return (index in FLOORS, full name of the package) for a module of rlflow, or None for any other module."""
    rooms = {f"rlflow.{room}": (number, room) for number, rooms in enumerate(FLOORS) for room in rooms}
    inside = [name for name in rooms if module == name or module.startswith(f"{name}.")]
    return rooms[max(inside, key=len)] if inside else None


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_every_package_of_rlflow_belongs_to_a_layer():
    rooms = {path.name for path in (ROOT / "rlflow").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {room for floor in FLOORS for room in floor}
    assert sorted([path.name for path in (ROOT / "rlflow").glob("*.py")]) == ["__init__.py", "library.py"]


def test_only_the_command_line_imports_the_prover():
    for package in ("rlflow", "worldmodel", "controllers"):
        for path in files_of(package):
            if not module_of(path).startswith("rlflow.proving"):
                assert not any(name.startswith("rlflow.proving") for name in imported(path)), path


def test_imports_inside_rlflow_go_down_the_layers():
    for path in files_of("rlflow") + files_of(ROOF):
        own = floor_of(module_of(path))
        for name in imported(path):
            other = floor_of(name)
            if own and other and other[1] != own[1]:
                assert other[0] < own[0], f"{module_of(path)} imports {name}, of the same floor or a higher one"


def test_no_module_imports_in_a_circle():
    files = {module_of(path): path for package in FORBIDDEN for path in files_of(package)}
    needs = {name: imported(path) & files.keys() - {name} for name, path in files.items()}
    for (
        name,
        path,
    ) in files.items():  # `from package import module` needs the module, and not what else the package imports
        needs[name] -= {
            other
            for other in needs[name]
            if files[other].name == "__init__.py" and not names_of(path, other) - files.keys()
        }
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs


def names_of(path: Path, package: str) -> set[str]:
    """Return the full names of the attributes and submodules that a file imports from a package."""
    return {name for name in imported(path) if name.rpartition(".")[0] == package}


def test_the_search_for_imports_sees_lazy_imports(tmp_path):
    file = tmp_path / "lazy.py"
    file.write_text(
        "def f():\n    from worldmodel import dream\n    import importlib\n    importlib.import_module('cma')\n"
    )
    assert {"worldmodel.dream", "cma"} <= imported(file)


def test_run_py_only_calls_the_command_line():
    text = (ROOT / "run.py").read_text()
    assert imported(ROOT / "run.py") == {"sys", f"{ROOF}.main", f"{ROOF}.main.main"} and len(text.splitlines()) <= 15


IMPORTS = "import sys\n{}\nprint(*sorted(sys.modules))"  # a program that prints the names of all imported modules


def imported_by(statement: str) -> set[str]:
    """Return the names of all modules that a new process has imported after executing the statement."""
    command = [sys.executable, "-c", IMPORTS.format(statement)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def of_rlflow(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] in ("rlflow", "worldmodel", "controllers")}


def test_importing_rlflow_loads_none_of_the_modules_behind_its_names():
    modules = imported_by("import rlflow")
    assert of_rlflow(modules) == {
        "rlflow", "rlflow.common", "rlflow.common.errors", "rlflow.common.options", "rlflow.env",
        "rlflow.env.registration",
    }  # fmt: skip
    assert not modules & HEAVY
    offered = imported_by("import rlflow\nfor name in rlflow.__all__: getattr(rlflow, name)")
    assert "rlflow.library" in offered and not offered & LEARNING


def test_the_help_imports_nothing_that_only_commands_need():
    ended = "\n".join(["from rlflow.cli.main import main", "try: main(['--help'])", "except SystemExit: pass"])
    modules = imported_by(ended)
    assert "rlflow.cli.optimise" in modules
    assert not modules & HEAVY
    assert {name for name in of_rlflow(modules) if not name.startswith((ROOF, "rlflow.common"))} == {
        "rlflow", "rlflow.env", "rlflow.env.registration",
    }  # fmt: skip


def test_importing_rlflow_and_all_shared_modules_loads_no_tensorflow():
    modules = [module_of(path) for package in ("rlflow", ROOF, STAGES) for path in files_of(package)]
    generic = [
        f"worldmodel.{name}"
        for name in (
            "base",
            "world_model_options",
            "spaces",
            "dream",
            "latent_env",
            "trainer",
            "train_and_load",
            "mdn_rnn",
        )
    ]
    names = [*modules, *generic, "worldmodel.mdn_rnn", "controllers", "run"]
    assert not imported_by(f"import importlib\nfor name in {names!r}: importlib.import_module(name)") & LEARNING


@pytest.mark.parametrize("registry", [COSTS, EXECUTORS, REWARDS, ZOO, WORLD_MODELS, CONTROLLERS], ids=lambda r: r.kind)
def test_every_entry_of_a_registry_can_be_imported(registry):
    assert list(registry)
    for name in registry:
        assert callable(registry.get(name)), name
