"""Tests of what runs the tests.

`.ci/run` keeps no state between runs, the Makefile chooses the newest working Python, and the slow tests of the night
say how far they came.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.nightly.slow_tests import outcome, shortened_files

ROOT = Path(__file__).parent.parent
FRESH = ("HOME", "TMPDIR", "XDG_CACHE_HOME")
FAKE_MAKE = f"""#!/bin/sh
for folder in {" ".join(f'"${name}"' for name in FRESH)}; do echo $folder $(ls -d "$folder") $(ls -A "$folder"); done
echo "make $*, pip: $PIP_CONFIG_FILE"
exit 7
"""
PYTHONS = ("python3.13", "python3.12", "python3.11", "python3")


def called(*command, programs: dict[str, str], folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run a command in a folder.

    Args:
        command: program and arguments.
        programs: name → text of scripts that come first on PATH.
        folder: the working folder.
        environment: all environment variables except PATH.
    """
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    environment["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("pip", [{}, {"PIP_CONFIG_FILE": "/somewhere/pip.conf"}, {"XDG_CONFIG_HOME": "/elsewhere"}])
def test_the_tests_run_without_any_remembered_state_of_the_machine(tmp_path, pip):
    callers = {name: str(tmp_path / name) for name in FRESH}
    for folder in callers.values():
        Path(folder).mkdir()
        Path(folder, "remembered").touch()
    done = called(ROOT / ".ci" / "run", programs={"make": FAKE_MAKE}, folder=tmp_path, **callers, **pip)
    *folders, command = done.stdout.splitlines()
    configuration = (
        pip.get("PIP_CONFIG_FILE") or f"{pip.get('XDG_CONFIG_HOME') or callers['HOME'] + '/.config'}/pip/pip.conf"
    )
    assert (done.returncode, done.stderr, command) == (7, "", f"make test, pip: {configuration}")
    assert len(set(folders)) == 3
    for line in folders:
        folder, *listed = line.split()
        assert listed == [folder] and folder not in callers.values()  # it is there, and nothing is in it
        assert not Path(folder).exists()
    assert os.listdir(callers["TMPDIR"]) == ["remembered"]


def made(
    folder: Path, *arguments: str, working: tuple[str, ...], target: str = ".venv/bin/pip"
) -> subprocess.CompletedProcess:
    """Run `make` with fake Python interpreters; only some of them work.

    Args:
        folder: the working folder.
        arguments: arguments of make.
        working: names of the interpreters that succeed; the other ones in PYTHONS exit with status 1.
        target: the target.
    """
    shutil.copy(ROOT / "Makefile", folder)
    programs = {name: f"#!/bin/sh\nexit {int(name not in working)}\n" for name in PYTHONS}
    return called("make", *arguments, target, programs=programs, folder=folder)


@pytest.mark.parametrize("newest", range(len(PYTHONS)))
def test_make_takes_the_newest_python_that_works(tmp_path, newest):
    done = made(tmp_path, working=PYTHONS[newest:])
    assert (done.returncode, done.stdout) == (0, f'"{PYTHONS[newest]}" -m venv .venv\n')


def test_make_takes_the_python_that_is_named(tmp_path):
    assert made(tmp_path, "PYTHON=python3.11", working=PYTHONS).stdout == '"python3.11" -m venv .venv\n'


@pytest.mark.parametrize(("arguments", "working"), [((), ()), (("PYTHON=python3.12",), ("python3.13",))])
def test_make_says_which_python_it_needs(tmp_path, arguments, working):
    done = made(tmp_path, *arguments, working=working)
    assert done.returncode == 2 and done.stdout.splitlines() == [
        "RLFlow needs Python 3.11, 3.12 or 3.13 with venv and pip; name it with: make PYTHON=..."
    ]


def test_make_keeps_an_existing_environment(tmp_path):
    """Whichever Python it has: a newer setup.py is installed into it."""
    pip = tmp_path / ".venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    for file in (pip, tmp_path / ".venv" / "ready", tmp_path / "constraints.txt", tmp_path / "setup.py"):
        file.touch()
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    os.utime(tmp_path / ".venv" / "ready", (0, 0))
    done = made(tmp_path, working=PYTHONS, target=".venv/ready")
    assert (done.returncode, done.stdout) == (
        0,
        ".venv/bin/pip install --quiet --no-compile --constraint constraints.txt --editable '.[learn]'\n",
    )


def test_all_files_state_the_same_python_versions():
    setup, makefile, readme = ((ROOT / name).read_text() for name in ("setup.py", "Makefile", "README.md"))
    low, high = map(int, re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', setup).groups())
    *others, newest = [f"3.{minor}" for minor in range(low, high)]
    assert f"(3, {low}) <= sys.version_info < (3, {high})" in makefile
    assert all(f"Python {', '.join(others)} or {newest}" in text for text in (makefile, readme))
    assert [f"python{version}" for version in (newest, *reversed(others))] == list(PYTHONS[:-1])


def test_slow_tests_that_are_stopped_are_named(capsys):
    lines = [
        "=== test session starts ===", "2 workers [3 items]", "tests/a.py::test_b[1 2] ", "tests/a.py::test_c ",
        "[gw0] [ 33%] PASSED tests/a.py::test_b[1 2] ", "[gw1] [ 66%] PASSED tests/a.py::test_c ",
        "tests/d.py::test_e ",
    ]  # fmt: skip
    lines, summary = ([f"{line}\n" for line in part] for part in (lines, ["=== warnings ===", "tests/d.py::test_e"]))
    passed, failed = (f"[gw0] [100%] {result} tests/d.py::test_e \n" for result in ("PASSED", "FAILED"))
    assert outcome([*lines, passed, *summary]) == ("3 of 3 tests pass with all of their cases, 0 fail", True)
    assert capsys.readouterr().err == "".join([*lines, passed, *summary])
    assert outcome([*lines, failed, *summary]) == ("2 of 3 tests pass with all of their cases, 1 fail", False)
    text = "2 of 3 tests pass with all of their cases, 0 fail; stopped at tests/d.py::test_e"
    assert outcome([*lines, *summary]) == (text, False)


def test_slow_tests_that_are_skipped_are_named_and_a_file_without_a_test_that_ran_fails():
    lines = [
        "2 workers [2 items]", "tests/a.py::test_b ", "[gw0] [ 50%] PASSED tests/a.py::test_b ",
        "tests/a.py::test_c ", "[gw0] [100%] SKIPPED tests/a.py::test_c ", "=== short test summary info ===",
        "SKIPPED [1] tests/a.py:7: no such system",
    ]  # fmt: skip
    text = "1 of 2 tests pass with all of their cases, 0 fail, 1 skipped: tests/a.py::test_c"
    assert outcome(f"{line}\n" for line in lines) == (text, True)
    of_a_file = [*lines, "SKIPPED [1] tests/d.py:3: torch is not installed"]
    text = text.replace("1 skipped", "2 skipped") + ", tests/d.py (torch is not installed); nothing ran of tests/d.py"
    assert outcome(f"{line}\n" for line in of_a_file) == (text, False)


def test_all_files_with_a_fixture_or_options_that_are_smaller_by_day_run_at_night():
    files = {str(Path(path).relative_to(ROOT / "tests")) for path in shortened_files()}
    dream, encoder = (f"worldmodel/{name}.py" for name in ("test_dream", "mdn_rnn/test_encoder"))
    assert {dream, encoder, "reports/test_screens.py", "env/test_third_party.py"} <= files
    assert "test_imports.py" not in files
