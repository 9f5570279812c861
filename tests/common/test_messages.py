"""Test how messages call the program: in the way in which the user can call it again."""

import sys

import pytest

from rlflow.common import messages as program_module
from rlflow.common.messages import command, program


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """Simulate a checkout as the working folder, with a Python that has no command `rlflow`."""
    monkeypatch.setattr(program_module, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/bin/python3")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "called, named, typed",
    [
        ("run.py", "python run.py", "{python} run.py"),
        ("../{folder}/run.py", "python ../{folder}/run.py", "{python} ../{folder}/run.py"),
        ("/opt/bin/rlflow", "rlflow", "/opt/bin/rlflow"),
        ("rlflow/cli/__main__.py", "python -m rlflow.cli", "{python} -m rlflow.cli"),
        ("mine/run.py", "python -m rlflow.cli", "{python} -m rlflow.cli"),
        ("mine/__main__.py", "python -m rlflow.cli", "{python} -m rlflow.cli"),
        ("", "python -m rlflow.cli", "{python} -m rlflow.cli"),
    ],
)
def test_messages_name_the_command_as_the_user_called_the_program(tmp_path, monkeypatch, called, named, typed):
    names = {"folder": tmp_path.name, "python": "/opt/bin/python3"}
    monkeypatch.setattr(sys, "argv", [called.format(**names)])
    assert program() == named.format(**names)
    assert command("eval", "--run", "a b") == typed.format(**names) + " eval --run 'a b'"


@pytest.mark.parametrize("called", ["mine/run.py", "mine/__main__.py", "analysis.py"])
def test_a_foreign_script_is_told_the_installed_command(tmp_path, monkeypatch, called):
    (tmp_path / "rlflow").write_text("")
    (tmp_path / "rlflow").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "rlflow" and command("zoo") == "rlflow zoo"


def test_a_command_is_shortened_to_its_name_if_the_shell_finds_the_file(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "bin", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    for name in ("python", "rlflow"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    run = str(tmp_path / "run.py")
    for called, words in ((run, f"python {run} zoo"), (str(folder / "rlflow"), "rlflow zoo")):
        monkeypatch.setattr(sys, "argv", [called])
        monkeypatch.setenv("PATH", str(folder))
        assert command("zoo") == words
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.chdir(elsewhere)
        assert command("zoo") == f"{folder}/{words}"
        monkeypatch.chdir(tmp_path)
        assert command("zoo") == f"bin/{words}"
        monkeypatch.chdir(folder)
        assert command("zoo") == f"{folder}/{words}"
