"""How every command ends: what was gained or found, where it lies, what to do next; in one form, so that a person knows
where to look.
"""

from collections.abc import Mapping

from rlflow.common.program import command
from rlflow.common.progress import say

EXAMPLE = ("optimise", "light_squeezenet", "--out", "light_squeezenet.faster.onnx")  # where no model was named


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ending(lines: Mapping[str, object], *following: object) -> None:
    """Says the last lines of a command.

    Args:
      lines: name → text, in order: "result", "sure" (how sure that is) where there is doubt, then files by what they
        hold ("model", "report", …).
      following: the words of the command to go on with, without the program's name.
    """
    say_lines({**lines, "next": command(*following)})


def say_lines(lines: Mapping[str, object]) -> None:
    for name, text in lines.items():
        say(f"{name + ':':8} {text}")
