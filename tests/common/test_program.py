"""The program as a person calls it again."""

import sys

import pytest

from rlflow.common.program import command, program


@pytest.mark.parametrize(
    "called, named, typed",
    [
        ("run.py", "python run.py", "{python} run.py"),
        ("there/run.py", "python there/run.py", "{python} there/run.py"),
        ("/opt/bin/rlflow", "rlflow", "/opt/bin/rlflow"),
        ("/x/rlflow/cli/__main__.py", "python -m rlflow.cli", "{python} -m rlflow.cli"),
    ],
)
def test_what_is_typed_is_how_it_was_called(monkeypatch, called, named, typed):
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(sys, "executable", "/opt/bin/python3")
    assert program() == named
    assert command("eval", "--run", "a b") == typed.format(python="/opt/bin/python3") + " eval --run 'a b'"


def test_a_name_is_enough_where_a_shell_finds_the_file_by_it(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "rlflow"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for called, words in (("run.py", "python run.py zoo"), (str(folder / "rlflow"), "rlflow zoo")):
        monkeypatch.setattr(sys, "argv", [called])
        monkeypatch.setenv("PATH", str(folder))
        assert command("zoo") == words
        monkeypatch.setenv("PATH", str(tmp_path))
        assert command("zoo") == f"{folder}/{words}"
        monkeypatch.chdir(tmp_path)
        assert command("zoo") == f"bin/{words}"
        monkeypatch.chdir(folder)
        assert command("zoo") == f"{folder}/{words}"
