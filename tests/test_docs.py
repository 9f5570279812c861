"""Tests that paths, module attributes and options exist if documents name them, and files if module docstrings do."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from rlflow.runs.config import GROUPS, all_options

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
PACKAGES = ("rlflow", "worldmodel", "controllers", "benchmarks", "configs", "tests")
OF_A_RUN = {
    "world-model",
    "iterations",
    "eval",
    "tensorboard",
    "episodes",
    "controller",
    "FASTER.run",
}  # folders that commands make
SUFFIXES = (".py", ".md", ".yaml", ".json", ".rules")


def prose(page: str) -> list[str]:
    """Return the lines of a page without code blocks and without the blocks that benchmarks.record writes."""
    text = (ROOT / page).read_text()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!-- begin.*?<!-- end -->", "", text, flags=re.DOTALL).splitlines()


def quoted(line: str) -> list[str]:
    return re.findall(r"`([^`\s]+)`", line)


def links(line: str) -> list[str]:
    return [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", line) if "://" not in target]


def missing_paths(page: str) -> list[str]:
    """Return the links and the paths in backquotes of a page that do not exist.

    A file name without a folder belongs to the folder of the preceding path in its line.
    """
    missing, own = [], (ROOT / page).parent
    for line in prose(page):
        missing += [target for target in links(line) if not (own / target).exists()]
        folder = None
        for name in quoted(line):
            first = name.split("/")[0]
            if not name.endswith((*SUFFIXES, "/")) or first in OF_A_RUN:
                continue
            if first in PACKAGES or first == "docs":
                base = ROOT
                folder = ROOT / (name if name.endswith("/") else Path(name).parent)
            elif name.endswith((".py", "/")):
                base = folder or ROOT / "rlflow"
            else:
                continue  # a file of a run, or of a user
            if (
                not list(base.glob(name.rstrip("/")))
                and not list(base.glob(f"**/{name.rstrip('/')}"))
                and not (ROOT / name).exists()
            ):
                missing.append(name)
    return missing


def missing_names(page: str) -> list[str]:
    """Return the dotted names in backquotes, such as rlflow.common.task.State, that do not occur in their module."""
    missing = []
    for name in [name for line in prose(page) for name in quoted(line)]:
        parts = name.split(".")
        if parts[0] not in PACKAGES or len(parts) == 1 or not all(part.isidentifier() for part in parts):
            continue
        folder = ROOT
        while parts and (folder / parts[0]).is_dir():
            folder /= parts.pop(0)
        file = (
            folder / f"{parts.pop(0)}.py" if parts and (folder / f"{parts[0]}.py").exists() else folder / "__init__.py"
        )
        if not file.exists() or parts and parts[0] not in re.findall(r"\w+", file.read_text()):
            missing.append(name)
    return missing


def missing_options(page: str) -> list[str]:
    """Return the names in backquotes, such as dream.max_step, that begin with a group of options but are no option."""
    known, missing = {"env.step", "env.unwrapped", *all_options()}, []
    groups = {name[: end.start()] for name in known for end in re.finditer(r"\.", name)}
    for name in [name.partition("=")[0].rstrip(".*") for line in prose(page) for name in quoted(line)]:
        if name.partition(".")[0] in GROUPS and "." in name and "/" not in name and not name.endswith(SUFFIXES):
            missing += [name] if name not in known | groups else []
    return missing


@pytest.mark.parametrize("missing", [missing_paths, missing_names, missing_options])
def test_everything_that_a_page_names_exists(missing):
    assert [(page, names) for page in PAGES if (names := missing(page))] == []


def test_every_package_of_rlflow_is_on_the_architecture_page():
    named = {name for line in prose("docs/ARCHITECTURE.md") for name in quoted(line)}
    rooms = {
        f"rlflow/{path.name}/" for path in (ROOT / "rlflow").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert rooms <= named


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def missing_files(path: Path, text: str) -> list[str]:
    """Return the names of .py files in a text that exist neither beside `path` nor relative to the repository's root.

    Args:
        path: the Python file whose docstring is checked.
        text: the docstring.
    """
    names = re.findall(r"[\w./]*\w\.py\b", text)
    return [name for name in names if not (path.parent / name).exists() and not (ROOT / name).exists()]


def test_every_file_named_in_module_docstrings_exists():
    missing = []
    for package in ("rlflow", "worldmodel", "controllers"):
        for path in (ROOT / package).rglob("*.py"):
            missing += [f"{path.relative_to(ROOT)}: {name}" for name in missing_files(path, docstring(path))]
    assert missing == []
    assert missing_files(ROOT / "rlflow/graph/order.py", "As in ir.py, modle.py, rlflow/rules/mtach.py.") == [
        "modle.py",
        "rlflow/rules/mtach.py",
    ]


def test_every_exception_named_in_docstrings_exists():
    raised, classes = set(), {name for name in dir(builtins) if name[0].isupper()}
    for package in ("rlflow", "worldmodel", "controllers", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            classes.update(re.findall(r"^ *class (\w+)", text, flags=re.MULTILINE))
            raised.update((name, path.name) for name in re.findall(r"\bRaises:?\s+([A-Z]\w+)", text))
    assert {name for name, _ in raised} >= {"RLFlowError", "ValueError"}
    assert sorted((name, file) for name, file in raised if name not in classes) == []


def test_missing_names_on_a_page_are_reported(monkeypatch):
    page = (
        "Has `rlflow/graph/modle.py`, [a page](nowhere.md), `rlflow.graph.ir.Grpah`, `dream.doubt` and "
        "`rlflow/cli/main.py`, `mian.py`."
    )
    monkeypatch.setattr("tests.test_docs.prose", lambda _: [page])
    assert missing_paths("page.md") == ["nowhere.md", "rlflow/graph/modle.py", "mian.py"]
    assert missing_names("page.md") == ["rlflow.graph.ir.Grpah"]
    assert missing_options("page.md") == ["dream.doubt"]
