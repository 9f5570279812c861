"""Which way imports go (docs/ARCHITECTURE.md), lazily imported modules included."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from controllers import CONTROLLERS
from rlflow.costs import COSTS
from rlflow.executors import EXECUTORS
from rlflow.rewards import REWARDS
from rlflow.zoo import ZOO
from worldmodel import WORLD_MODELS

ROOT = Path(__file__).parent.parent
LEARNING = {"tensorflow", "sonnet", "graph_nets", "tensorboard", "keras", "torch", "cma"}
FORBIDDEN = {  # package: what none of its files may import, at the top or inside a function
    "rlflow": {"worldmodel", "controllers", "benchmarks", "tests", "run", *LEARNING},
    "worldmodel": {"controllers", "benchmarks", "tests", "run"},
    "controllers": {"worldmodel.dream", "benchmarks", "tests", "run"},
}


def imported(path: Path) -> set[str]:
    """Full names of everything that a file imports, wherever the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package):
    assert files_of(package)
    for path in files_of(package):
        for name in imported(path):
            for forbidden in FORBIDDEN[package]:
                assert name != forbidden and not name.startswith(f"{forbidden}."), f"{path.relative_to(ROOT)}: {name}"


def test_the_search_for_imports_sees_lazy_ones(tmp_path):
    file = tmp_path / "lazy.py"
    file.write_text("def f():\n    from worldmodel import dream\n    import importlib\n    importlib.import_module('cma')\n")
    assert {"worldmodel.dream", "cma"} <= imported(file)


def test_importing_all_of_rlflow_the_registries_and_what_serves_every_world_model_brings_no_tensorflow():
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in files_of("rlflow")]
    generic = [f"worldmodel.{name}" for name in ("base", "config", "description", "spaces", "dream", "latent_env", "training", "mdn_rnn")]
    code = (
        f"import importlib, sys\nfor name in {[*modules, *generic, 'controllers', 'run']!r}:\n"
        f"    importlib.import_module(name)\nprint(sorted(set(sys.modules) & {LEARNING!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize("registry", [COSTS, EXECUTORS, REWARDS, ZOO, WORLD_MODELS, CONTROLLERS], ids=lambda r: r.kind)
def test_every_entry_of_a_registry_can_be_imported(registry):
    assert list(registry)
    for name in registry:
        assert callable(registry.get(name)), name
