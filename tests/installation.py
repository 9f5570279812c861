"""Installation of the wheel in a virtual environment that has only the packages that setup.py requires."""

import shutil
import subprocess
import sys
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SOURCES = ("setup.py", "pyproject.toml", "LICENSE", "run.py", "rlflow", "worldmodel", "controllers", "configs")
PIP = [sys.executable, "-m", "pip", "--quiet"]
OFFLINE = ["--no-deps", "--no-index"]


def build_wheel(folder: Path) -> Path:
    """Build the wheel and return its path; a copy of the sources is built, without files of earlier builds.

    Args:
        folder: folder of the copy and of the wheel.
    """
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources)
    command = [*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, sources]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def install(wheel: Path, environment: Path) -> Path:
    """Make a virtual environment with the wheel and the packages that it requires, and return its site-packages.

    Packages of extras are not installed. The required packages are symbolic links to the packages of this process, so
    nothing is downloaded.

    Args:
        wheel: the wheel.
        environment: folder of the new virtual environment.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    into = [*PIP, "--python", python, "install", "--no-compile", "--ignore-installed"]  # even if importable
    subprocess.run([*into, *OFFLINE, wheel], check=True)
    site_packages = next(environment.glob("lib/python*/site-packages"))
    for name in required(site_packages):
        for file in distribution(name).files:
            entry = site_packages / file.parts[0]
            if file.parts[0] != ".." and not entry.exists():
                entry.symlink_to(distribution(name).locate_file(file.parts[0]))
    return site_packages


def required(site_packages: Path) -> set[str]:
    """Return the names of all distributions that the distributions in a folder require, directly or indirectly."""
    waiting = [line for one in distributions(path=[str(site_packages)]) for line in one.requires or ()]
    names: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in names:
            names.add(requirement.name)
            waiting += distribution(requirement.name).requires or ()
    return names
