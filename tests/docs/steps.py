"""What a page tells its reader to run: the commands and the Python scripts in its blocks of code, in their order.

A command is a line of a block that begins with one of `PROGRAMS`; of the same block every other line must be one, too.
A script is a block of Python. If its first line is `# NAME.py`, the reader saves it under that name, and later scripts
of the page may import it.
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
    """line: of the page, from 1.  words: of a command, as a shell splits them.  script: the text; of a command ""."""

    page: str
    line: int
    words: tuple[str, ...] = ()
    script: str = ""

    @property
    def text(self) -> str:
        return self.script or " ".join(self.words)

    @property
    def file(self) -> str:
        """The name under which its reader saves the script."""
        named = re.match(r"# (\w+\.py)\n", self.script)
        return named.group(1) if named else "script.py"


def steps_of(page: str, text: str) -> list[Step]:
    """Raises ValueError for what would not be read: another sort of fence, a command with an open quote."""
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
    """The commands that stand in sentences; they are to be read, not to be run."""
    prose = FENCED.sub(lambda block: "\n" * block.group().count("\n"), text)
    return [
        Step(page, prose[: span.start()].count("\n") + 1, words_of(span.group(1))) for span in INLINE.finditer(prose)
    ]


def words_of(line: str) -> tuple[str, ...]:
    """A line as words, without comment and prompt; however the command is called, it is called `rlflow` here."""
    line = line.removeprefix("$ ")
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # no closing quote: a drawing, say
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
    """Whether it begins with one of the programs; variables may be set before."""
    rest = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    return bool(rest) and rest[0] in PROGRAMS
