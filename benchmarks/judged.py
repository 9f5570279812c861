"""Which code a result judges, and what that code was: a result is stale as soon as it is another.

A benchmark names it, JUDGES = ("rlflow/search", "rlflow/costs/analytic.py", …): files, and folders for the Python files
in them. Named is what is measured, not all that is imported on the way; the rule set is not named (a result states it
by itself, but for the families that are had by name alone), nor the benchmark's own module, which is always judged.

Of Python code the syntax tree counts, without docstrings: no comment, no docstring and no formatting ages a result. In
benchmarks, JUDGES and the functions named `table` or `…_table`, which only word the figures, do not count either.
"""

import ast
import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path

from rlflow.rules.language import ONLY_BY_NAME

ROOT = Path(__file__).parent.parent
DIGITS = 16
ENGINE = (  # what makes a rewrite, for the JUDGES of others
    "rlflow/graph/ir.py", "rlflow/graph/onnx_writer.py", "rlflow/graph/order.py", "rlflow/graph/shapes.py",
    "rlflow/rules/apply.py", "rlflow/rules/expressions.py", "rlflow/rules/locations.py", "rlflow/rules/locations.py",
    "rlflow/rules/match.py", "rlflow/rules/patterns.py", "rlflow/rules/rule.py", "rlflow/rules/language.py",
)  # fmt: skip

UNSTATED_RULES = tuple(f"rlflow/rules/{family}.rules" for family in sorted(ONLY_BY_NAME))  # not in the stated rule set


def judged(benchmark: str, root: Path = ROOT) -> dict[str, str]:
    """{path: digest} of what a benchmark judges, as it stands under `root`; what is not there is left out."""
    paths = (f"benchmarks/{benchmark}.py", *import_module(f"benchmarks.{benchmark}").JUDGES)
    return {path: digest(path, root) for path in paths if (root / path).exists()}


@cache
def digest(path: str, root: Path = ROOT) -> str:
    """Of a file, or of all Python files under a folder."""
    files = sorted((root / path).rglob("*.py")) if (root / path).is_dir() else [root / path]
    texts = [f"{file.relative_to(root).as_posix()}\n{content(file, root)}" for file in files]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:DIGITS]


def content(file: Path, root: Path) -> str:
    """What of a file counts."""
    if file.suffix != ".py":
        return file.read_text(encoding="utf-8")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if file.is_relative_to(root / "benchmarks"):
        tree.body = [statement for statement in tree.body if not only_words(statement)]
    return canonical(tree)


def only_words(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name == "table" or statement.name.endswith("_table")
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "JUDGES"


def canonical(value) -> str:
    """A syntax tree as text, without docstrings. What is empty is left out: newer Pythons have more fields."""
    if isinstance(value, ast.AST):
        fields = [(name, field) for name, field in ast.iter_fields(value) if field is not None and field != []]
        return f"{type(value).__name__}({', '.join(f'{name}={canonical(field)}' for name, field in fields)})"
    if isinstance(value, list):
        return f"[{', '.join(canonical(entry) for entry in value if not is_text(entry))}]"
    return repr(value)


def is_text(statement) -> bool:
    """A string that stands as a statement: a docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
