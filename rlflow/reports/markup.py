"""HTML and SVG from nested calls. Texts are escaped by default: names of operators come from models of strangers."""

import html
from collections.abc import Iterable, Sequence

from rlflow.reports.style import SHEET

VOID = {"meta"}  # elements without an end
LONGEST = 80  # characters of a name that are shown
WORD = 24  # characters of a word that is not broken
NARROW = 3  # columns of a table that has room on a phone


class Safe(str):
    """Markup that may stand in a page as it is; every other text is escaped."""


def tag(name: str, /, *children, **attributes) -> Safe:
    """One element.

    Args:
      children: texts (escaped unless Safe), numbers, or iterables of such; None is nothing.
      attributes: `class_` is class, `stroke_width` is stroke-width; an attribute of None is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Safe(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{join(children)}</{name}>")


def join(children) -> Safe:
    if isinstance(children, Safe):
        return children
    if isinstance(children, Iterable) and not isinstance(children, str):
        return Safe("".join(map(join, children)))
    return Safe("" if children is None else html.escape(str(children)))


def short(text: str, longest: int = LONGEST) -> str:
    """A text that a stranger chose, at a length that a page can bear."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def time_text(picoseconds: int, sign: str = "") -> str:
    """With the unit that suits it. sign: "+" to show that of gains too."""
    milliseconds = abs(picoseconds) >= 10**9
    return f"{picoseconds / 1e9:{sign}.3f} ms" if milliseconds else f"{picoseconds / 1e6:{sign}.3g} µs"


def table(head: Iterable[str], rows: Iterable[Iterable], numbers: Iterable[int] = ()) -> Safe:
    """A table. A row is an iterable of cells, or an element that is one already (`row`).

    Args:
      numbers: columns that are set flush right.
    """
    head, numbers = list(head), set(numbers)
    heads = [tag("th", title, class_="n" if k in numbers else None) for k, title in enumerate(head)]
    body = [one if isinstance(one, Safe) else row(head, one, numbers) for one in rows]
    table_of = tag("table", tag("thead", tag("tr", heads)), tag("tbody", body))
    return tag("div", table_of, class_="wide") if len(head) > NARROW else table_of


def row(head: Sequence[str], cells: Iterable, numbers: Iterable[int] = (), **attributes) -> Safe:
    """One row of a table. Each cell knows its head, which stands before it where a row becomes a card."""
    drawn = []
    for k, (title, cell) in enumerate(zip(head, cells, strict=True)):
        long = not isinstance(cell, Safe) and any(len(word) > WORD for word in str(cell).split())
        drawn.append(tag("td", cell, class_="n" if k in numbers else "long" if long else None, data_head=title))
    return tag("tr", drawn, **attributes)


def page(title: str, *sections) -> str:
    """A whole document that needs nothing else. Its policy forbids the network and every script."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head", tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy), tag("title", title),
        tag("style", Safe(SHEET)),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', tag('main', sections)), lang='en')}\n"
