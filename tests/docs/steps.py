"""The commands and the Python scripts in the code blocks of a page, in their order.

A command is a line of a code block that begins with one of `PROGRAMS`. Every other line of this block must be a
command, too. A script is a block of Python. If its first line is `# NAME.py`, the reader saves the script under that
name, and later scripts of the page may import it.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("rlflow", "run.py", "python", "tensorboard", "make", "pip", "ray")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *(?:```|~~~)", re.MULTILINE)
INLINE = re.compile(rf"`((?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}) [^`]+)`")


class Step(NamedTuple):
    """A command or a script of a page.

    Attributes:
        page: path of the page.
        line: line of the page, counted from 1.
        words: words of the command, split as by a shell; () for a script.
        script: text of the script; "" for a command.
    """

    page: str
    line: int
    words: tuple[str, ...] = ()
    script: str = ""

    @property
    def text(self) -> str:
        return self.script or " ".join(self.words)

    @property
    def file(self) -> str:
        """The name under which the reader saves the script."""
        named = re.match(r"# (\w+\.py)\n", self.script)
        return named.group(1) if named else "script.py"


def steps_of(page: str, text: str) -> list[Step]:
    """Return the commands and scripts of a page.

    Raises:
        ValueError: a code block has another kind of fence, or a command has an open quote.
    """
    if len(FENCE.findall(text)) != 2 * len(FENCED.findall(text)):
        raise ValueError(f"{page}: a block of code whose fence is not ``` at the beginning of a line")
    result = []
    for block in FENCED.finditer(text):
        language, body, line = block.group(1), block.group(2), text[: block.start(2)].count("\n") + 1
        if language == "python":
            result.append(Step(page, line, script=body))
            continue
        lines = [(line + k, words_of(said)) for k, said in enumerate(body.replace("\\\n", "").splitlines())]
        if any(is_command(words) for _, words in lines):
            result += [Step(page, at, words) for at, words in lines if words]
    return result


def inline_of(page: str, text: str) -> list[Step]:
    """Return the commands within sentences, which are for reading and not for running."""
    prose = FENCED.sub(lambda block: "\n" * block.group().count("\n"), text)
    return [
        Step(page, prose[: span.start()].count("\n") + 1, words_of(span.group(1))) for span in INLINE.finditer(prose)
    ]


def words_of(line: str) -> tuple[str, ...]:
    """Return the words of a line without comment and prompt; every way to call the program becomes `rlflow`."""
    line = line.removeprefix("$ ")
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # no closing quote, for example in a drawing
        if is_command(tuple(line.split())):
            raise
        return ()
    if words and words[0].startswith(".venv/bin/"):
        words[0] = words[0].removeprefix(".venv/bin/")
    if words[:2] == ["python", "run.py"]:
        words = words[1:]
    if words[:1] == ["run.py"]:
        words = ["rlflow", *words[1:]]
    return tuple(words)


def is_command(words: tuple[str, ...]) -> bool:
    """Return True if the words begin with one of the programs, possibly after assignments of variables."""
    rest = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    return bool(rest) and rest[0] in PROGRAMS
