"""Does the pinned set install elsewhere? It is resolved for every system and every Python that RLFlow is for.

For each of them uv resolves the requirements of setup.py (what everybody needs, and the extra `learn`) within
constraints.txt. uv evaluates environment markers (`sys_platform == "win32"`) as they are there, of dependencies of
dependencies too, which pip cannot: it takes those of the machine that it runs on. What comes out, package by package,
pip then has to have a wheel for: `pip install --dry-run --no-deps --only-binary=:all: --platform …` chooses files as
`pip download` would, and reads their metadata without fetching them. The other extras are resolved on top, by uv alone:
together, or one by one where that fails.

Nothing is installed and nothing is run: that a set resolves does not show that it works.

graph_nets has published no wheel. It is pure Python; its wheel is built here, once, and handed to both.

Resumable: with --folder, what each system and Python gave lies there, apart for every setup.py and constraints.txt.
"""

import os
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import SHORT, bar, each, finish, markdown, parser
from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash, read_json, write_text

JUDGES = ("setup.py", "constraints.txt")

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
BUILT = "graph_nets"  # pure Python without a wheel
LEARN = "learn"
MACOS = "14.0"  # the oldest that ONNX Runtime has wheels for


class Target(NamedTuple):
    """A system, as uv names it and as pip does; `tags` are those of wheels that run there, the best first."""

    name: str
    uv: str
    tags: tuple[str, ...]


def manylinux(machine: str, newest: int, oldest: int) -> tuple[str, ...]:
    """Tags of wheels for glibc 2.`newest` and older, down to the first one that the machine had."""
    older = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # what they were called before
    tags = []
    for minor in range(newest, oldest - 1, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in older:
            tags.append(f"{older[minor]}_{machine}")
    return tuple(tags)


TARGETS = (
    Target("x86-64 Linux, glibc 2.28", "x86_64-manylinux_2_28", manylinux("x86_64", 28, 5)),
    Target("ARM64 Linux, glibc 2.28", "aarch64-manylinux_2_28", manylinux("aarch64", 28, 17)),
    Target("ARM64 Linux, glibc 2.38", "aarch64-manylinux_2_38", manylinux("aarch64", 38, 17)),
    Target(f"ARM64 macOS {MACOS}", "aarch64-apple-darwin", (f"macosx_{MACOS.replace('.', '_')}_arm64",)),
    Target("x86-64 Windows", "x86_64-pc-windows-msvc", ("win_amd64",)),
)


def table(figures: dict) -> str:
    """For each system and Python how many wheels, or why there are none, and which other extras resolve."""
    rows, reasons = [], {}
    for one in figures["resolved"].values():
        missing = ", ".join(f"`{extra}`" for extra in one["extras"])
        count = "**no**" if one["error"] else f"{len(one['wheels'])} wheels"
        rows.append([one["system"], one["python"], count, f"all but {missing}" if missing else "all"])
        reasons |= {reason: None for reason in (one["error"], *one["extras"].values()) if reason}
    heads = ["system", "Python", "base and `learn`", "other extras that resolve"]
    return "\n".join([markdown(heads, rows, words=len(heads)), "", *(f"- {reason}" for reason in reasons)])


def requirements() -> dict[str, list[str]]:
    """Extra ("": what everybody needs) → requirements, as setup.py says."""
    import_module("setuptools")  # brings distutils, which Python 3.12 no longer has
    made = import_module("distutils.core").run_setup(str(ROOT / "setup.py"), stop_after="init")
    return {"": list(made.install_requires), **{name: list(lines) for name, lines in made.extras_require.items()}}


def resolved(wanted: list[str], target: Target, python: str, wheels: Path) -> list[str]:
    """NAME==VERSION of all that the requirements come to there. Raises RLFlowError with the reason if it is nothing."""
    asked = wheels / "asked.in"
    write_text(asked, "\n".join(wanted) + "\n")
    command = [
        "uv", "pip", "compile", str(asked), "--constraint", str(ROOT / "constraints.txt"), "--only-binary", ":all:",
        "--find-links", str(wheels), "--python-platform", target.uv, "--python-version", python, "--quiet",
        "--no-header", "--no-annotate", "--no-config", "--color", "never",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": MACOS},
    )  # fmt: skip
    if done.returncode:
        raise RLFlowError(reason(done.stderr))
    return [line for line in done.stdout.splitlines() if "==" in line]


def reason(said: str) -> str:
    """What uv or pip says is in the way, as one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line for line in lines if line.lower().startswith(("cause:", "error:", "╰─▶"))] or lines
    return " ".join(causes[-1].split()).partition(":")[2].strip() or causes[-1]


def wheels_of(packages: list[str], target: Target, python: str, wheels: Path) -> dict[str, str]:
    """Package → the file that pip takes for it there. Raises RLFlowError if there is none for one of them."""
    asked, report = wheels / "asked.txt", wheels / "report.json"
    write_text(asked, "\n".join(packages) + "\n")
    tags = [word for tag in target.tags for word in ("--platform", tag)]
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
        "--only-binary=:all:", "--python-version", python, *tags, "--target", str(wheels / "nothing"),
        "--find-links", str(wheels), "--report", str(report), "--requirement", str(asked),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RLFlowError(reason(done.stderr))
    chosen = read_json(report)["install"]
    return {one["metadata"]["name"]: one["download_info"]["url"].rpartition("/")[2] for one in chosen}


def pinned() -> set[str]:
    """NAME==VERSION of constraints.txt, with names as uv writes them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {f"{name.lower().replace('_', '-')}=={version}" for name, _, version in (x.partition("==") for x in lines)}


def looked_into(target: Target, python: str, wheels: Path) -> dict:
    """What becomes of base and `learn` for a system and a Python, and which other extras do not resolve with them.

    "error": why base and `learn` do not, or None; "extras": extra → why it does not.
    """
    parts = requirements()
    wanted = parts.pop("") + parts.pop(LEARN)
    result = {"system": target.name, "python": python, "packages": [], "unpinned": [], "wheels": {}, "error": None}
    try:
        result["packages"] = resolved(wanted, target, python, wheels)
        result["unpinned"] = sorted(set(result["packages"]) - pinned())
        result["wheels"] = wheels_of(result["packages"], target, python, wheels)
    except RLFlowError as error:
        result["error"] = str(error)
    return result | {"extras": refused(wanted, parts, target, python, wheels)}


def refused(wanted: list[str], extras: dict[str, list[str]], target: Target, python: str, wheels: Path) -> dict:
    """Extra → why it does not resolve together with what is wanted; those that do are left out."""
    try:
        resolved([*wanted, *(line for lines in extras.values() for line in lines)], target, python, wheels)
        return {}
    except RLFlowError:
        pass  # one of them, or two that do not go together
    result = {}
    for extra, lines in extras.items():
        try:
            resolved(wanted + lines, target, python, wheels)
        except RLFlowError as error:
            result[extra] = str(error)
    return result


def bars_of(results: list[dict]) -> list[dict]:
    bars = []
    for one in results:
        holds = not one["error"] and not one["unpinned"] and len(one["wheels"]) == len(one["packages"]) > 0
        name = f"{one['system']}, Python {one['python']}: the pinned set resolves"
        bars.append(bar(name, len(one["wheels"]), "wheels", "one a package, all pinned", holds))
    return bars


def main() -> int:
    arguments = parser(__doc__, "runs/platforms", seeded=False).parse_args()
    if find_spec("uv") is None:
        raise RLFlowError("the pinned set is resolved by uv: pip install '.[platforms]'")
    (version,) = [pin for pin in pinned() if pin.startswith(f"{BUILT.replace('_', '-')}==")]
    kept = arguments.folder / file_hash(*(ROOT / name for name in JUDGES))[:SHORT]
    wanted = {f"{target.uv}-{python}": (target, python) for target in TARGETS for python in PYTHONS}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, version]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        results = each(list(wanted), kept, lambda name: looked_into(*wanted[name], Path(folder)))
    figures = {"resolved": results, "built here from source, pure Python": version}
    return finish("platforms", arguments, figures, bars_of(list(results.values())), by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
