"""Build HTML and SVG from nested calls, and define the look of pages: light and dark colours, and the style sheet.

`tag` escapes every text that is not `Safe`, since the names of operators come from untrusted models. The
Content-Security-Policy of a page forbids network access and scripts. Nothing on a page is wider than the screen:
drawings scale down, columns move below each other, and on a phone the rows of a wide table become cards.
"""

import html
from collections.abc import Iterable, Mapping, Sequence

SERIES = 6  # number of colours for lines in charts; they are named s0, s1, …
LIGHT = {
    "page": "#ffffff", "text": "#1d2430", "faint": "#667085", "line": "#d7dce3", "card": "#f5f7fa",
    "gone": "#c0362c", "gone-fill": "#fdeceb", "new": "#1a7f43", "new-fill": "#e6f6ec", "kept-fill": "#eceff3",
    "s0": "#2563c7", "s1": "#d9730d", "s2": "#2f9e5f", "s3": "#8b3fc7", "s4": "#b3245f", "s5": "#0b7f8c",
}  # fmt: skip
DARK = {
    "page": "#14181f", "text": "#e3e8ef", "faint": "#98a2b3", "line": "#333b47", "card": "#1c222b",
    "gone": "#ff7d72", "gone-fill": "#3a1d1b", "new": "#55c987", "new-fill": "#15301f", "kept-fill": "#262d38",
    "s0": "#6ea3ff", "s1": "#f5a04d", "s2": "#4fd08a", "s3": "#c58bf5", "s4": "#f277a5", "s5": "#4fc3d0",
}  # fmt: skip


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


SHEET = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
""" + """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.6rem 1.5rem 4rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.1rem; font-weight: 600; margin: 0; } h2 { font-size: 1.2rem; margin: 2.8rem 0 .7rem; }
p, ul { margin: .5rem 0; } p, figcaption { max-width: 60rem; }
.faint, figcaption { color: var(--faint); font-size: .9em; } .good { color: var(--new); } .bad { color: var(--gone); }
code { font-size: .92em; } pre { margin: .3rem 0 1rem; padding: .5rem .8rem; background: var(--card);
  border-radius: 6px; white-space: pre-wrap; }
.answer { font-size: 2.5rem; line-height: 1.2; font-weight: 700; letter-spacing: -.01em; margin: .1rem 0; }
.cards { display: grid; grid-template-columns: repeat(3, 1fr); gap: .9rem; margin: 1.2rem 0 0; }
.card { background: var(--card); border-radius: 8px; padding: .7rem 1rem; min-width: 0; line-height: 1.4; }
.card b { display: block; font-size: 1.35rem; }
.glance { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2.5rem; align-items: start; }
.glance h2 { grid-column: 1 / -1; margin: 1.8rem 0 .4rem; }
.rewrites { list-style: none; padding: 0; margin: .6rem 0; } .rewrites li { display: flex; gap: .8rem;
  padding: .2rem 0; border-bottom: 1px solid var(--line); } .rewrites li > :last-child { margin-left: auto; }
table { border-collapse: collapse; font-size: .9rem; max-width: 100%; } th, td { padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
.long, h1, h3, summary, figcaption, code { overflow-wrap: anywhere; }
tr.worse td { background: var(--gone-fill); }
details { margin: .6rem 0; } summary { cursor: pointer; }
figure { margin: 0 0 1.2rem; } .charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem),
  1fr)); gap: 0 2rem; } h3 { margin: .5rem 0 .2rem; font-size: 1rem; }
svg { display: block; max-width: 100%; height: auto; } svg .faint { fill: var(--faint); }
.panels { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; } .panels > div { min-width: 0; max-width: 100%; }
.narrow { flex-wrap: nowrap; }
.telling { border: 1px solid var(--line); border-radius: 8px; padding: .7rem 1rem; margin: .5rem 0 0; }
.telling .panels { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem; justify-items: center; }
.telling svg { max-height: 21rem; width: auto; }
.panels text { font: 11px system-ui, sans-serif; fill: var(--text); }
.panels text.faint { fill: var(--faint); }
.edge { fill: none; stroke: var(--faint); } .folded { stroke-dasharray: 2 3; }
.kept rect { fill: var(--kept-fill); stroke: var(--line); } .elsewhere rect { fill: var(--page);
  stroke: var(--faint); stroke-dasharray: 3 2; }
.removed rect { fill: var(--gone-fill); stroke: var(--gone); } .added rect { fill: var(--new-fill);
  stroke: var(--new); }
@media (max-width: 760px) {
  body { padding: .7rem 1rem 3rem; }
  .answer { font-size: 1.75rem; } h2 { font-size: 1.1rem; } header p { font-size: .88rem; margin: .3rem 0; }
  .cards { gap: .5rem; margin-top: .6rem; } .card { padding: .4rem .5rem; font-size: .78rem; line-height: 1.3; }
  .card b { font-size: .84rem; }
  .glance { grid-template-columns: minmax(0, 1fr); } .glance h2 { margin: .8rem 0 0; } .glance p { margin: .3rem 0; }
  .rewrites { margin: .1rem 0; font-size: .85rem; } .glance p, .glance figcaption { font-size: .8rem; }
  .telling { padding: .3rem .6rem; } .telling svg { max-height: 12.5rem; }
  .wide thead { display: none; } .wide tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); }
  .wide td { display: flex; gap: 1rem; justify-content: space-between; text-align: right; padding: .1rem 0; border: 0;
    overflow-wrap: anywhere; } .wide td::before { content: attr(data-head); color: var(--faint); text-align: left; }
  .wide td:empty { display: none; }
}
"""


VOID = {"meta"}  # elements without an end tag
LONGEST = 80  # maximum number of characters of a displayed name
WORD = 24  # number of characters above which a word in a table may be broken
NARROW = 3  # maximum number of columns of a table that fits on a phone


class Safe(str):
    """Text that is HTML or SVG markup; `tag` and `join` insert it unchanged, and escape every other text."""


def tag(name: str, /, *children, **attributes) -> Safe:
    """Return one HTML or SVG element.

    Args:
      name: the element's name.
      *children: texts (escaped unless Safe), numbers, or iterables of these; None is skipped.
      **attributes: the element's attributes, in which `class_` stands for class and `stroke_width` for stroke-width; an
        attribute of None is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Safe(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{join(children)}</{name}>")


def join(children) -> Safe:
    """Return children as one markup text.

    Args:
      children: a text (escaped unless Safe), a number, an iterable of children, or None for an empty text.
    """
    if isinstance(children, Safe):
        return children
    if isinstance(children, Iterable) and not isinstance(children, str):
        return Safe("".join(map(join, children)))
    return Safe("" if children is None else html.escape(str(children)))


def short(text: str, longest: int = LONGEST) -> str:
    """Return a text, cut to a maximum length; names in an untrusted model can be arbitrarily long.

    Args:
      text: the text.
      longest: the maximum number of characters.
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def time_text(picoseconds: int, sign: str = "") -> str:
    """Return a time as text, in ms from 1 ms on and otherwise in µs.

    Args:
      picoseconds: the time.
      sign: "+" to write a plus sign before positive times.
    """
    milliseconds = abs(picoseconds) >= 10**9
    return f"{picoseconds / 1e9:{sign}.3f} ms" if milliseconds else f"{picoseconds / 1e6:{sign}.3g} µs"


def table(head: Iterable[str], rows: Iterable[Iterable], numbers: Iterable[int] = ()) -> Safe:
    """Return a table.

    Args:
      head: the titles of the columns.
      rows: the rows, each an iterable of cells or a result of `row`.
      numbers: positions of the columns that are aligned right.
    """
    head, numbers = list(head), set(numbers)
    heads = [tag("th", title, class_="n" if k in numbers else None) for k, title in enumerate(head)]
    body = [one if isinstance(one, Safe) else row(head, one, numbers) for one in rows]
    table_of = tag("table", tag("thead", tag("tr", heads)), tag("tbody", body))
    return tag("div", table_of, class_="wide") if len(head) > NARROW else table_of


def row(head: Sequence[str], cells: Iterable, numbers: Iterable[int] = (), **attributes) -> Safe:
    """Return one row of a table.

    Each cell also stores the title of its column. A phone shows the rows of wide tables as cards, with this title
    before each cell.

    Args:
      head: the titles of the columns.
      cells: the contents of the cells.
      numbers: positions of the columns that are aligned right.
      **attributes: attributes of the `tr` element.
    """
    drawn = []
    for k, (title, cell) in enumerate(zip(head, cells, strict=True)):
        long = not isinstance(cell, Safe) and any(len(word) > WORD for word in str(cell).split())
        drawn.append(tag("td", cell, class_="n" if k in numbers else "long" if long else None, data_head=title))
    return tag("tr", drawn, **attributes)


def page(title: str, *sections) -> str:
    """Return a whole HTML document that needs no other file.

    Its Content-Security-Policy forbids network access and scripts.

    Args:
      title: the title of the document.
      *sections: the elements of the page's body.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head", tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy), tag("title", title),
        tag("style", Safe(SHEET)),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', tag('main', sections)), lang='en')}\n"
