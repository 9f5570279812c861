"""Test the display of progress: a bar on a terminal, few lines in a log, and nothing in quiet mode."""

import io
from contextlib import nullcontext

import pytest

from rlflow.common import messages
from rlflow.common.messages import bar_updater, progress_bar, say, silence


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch, stream: io.StringIO, seconds_a_step: float) -> str:
    """Return the standard error after ten steps of `seconds_a_step` seconds each, with a message after each step."""
    clock = [0.0]
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(messages.time, "monotonic", lambda: clock[0])
    with progress_bar(10, "work", "step") as bar:
        for step in range(10):
            clock[0] += seconds_a_step
            bar.update(1)
            bar.refresh()
            say(f"line {step}")
    return stream.getvalue()


def test_a_progress_bar_on_a_terminal_disappears_at_the_end(monkeypatch):
    text = shown(monkeypatch, Terminal(), 0.1)
    assert "\rwork:" in text and "\n" not in text.replace("\n", "", 10) and text.endswith("\r")


def test_a_log_shows_progress_lines_of_long_work_only(monkeypatch):
    lines = [f"line {step}" for step in range(10)]
    assert shown(monkeypatch, io.StringIO(), 0.1).splitlines() == lines
    text = shown(monkeypatch, io.StringIO(), messages.LOG_SECONDS / 2).splitlines()
    progressed = [line for line in text if line not in lines]
    assert [line for line in text if line in lines] == lines
    assert len(progressed) == 5 and all(line.startswith("work:") and "/10" in line for line in progressed)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_silence_shows_nothing_within_its_block_only(monkeypatch, stream):
    with silence():
        assert shown(monkeypatch, stream, messages.LOG_SECONDS) == ""
    say("again")
    assert stream.getvalue() == "again\n"


def test_a_program_without_standard_error_works_and_shows_nothing(monkeypatch, capfd):
    monkeypatch.setattr("sys.stderr", None)
    for quiet in (silence, nullcontext):
        with quiet(), progress_bar(2, "work", "step") as bar:
            bar.set_postfix(operators=3)
            bar_updater(bar)(2, 2)
            say("a line")
    assert capfd.readouterr() == ("", "")
