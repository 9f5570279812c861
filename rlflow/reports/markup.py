"""HTML and SVG from nested calls. Texts are escaped by default: names of operators come from models of strangers."""

import base64
import hashlib
import html
from collections.abc import Iterable

VOID = {"meta", "input"}  # elements without an end
LONGEST = 80  # characters of a name that are shown

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1d2430; --faint: #667085; --line: #d7dce3; --card: #f5f7fa;
  --heat: 37 99 199;
  --gone: #c0362c; --gone-fill: #fdeceb; --new: #1a7f43; --new-fill: #e6f6ec; --kept-fill: #eceff3;
  --s0: #2563c7; --s1: #d9730d; --s2: #1a7f43; --s3: #8b3fc7; --s4: #b3245f; --s5: #0b7f8c; }
@media (prefers-color-scheme: dark) { :root { --page: #14181f; --text: #e3e8ef; --faint: #98a2b3; --line: #333b47;
  --card: #1c222b; --heat: 77 140 240;
  --gone: #ff7d72; --gone-fill: #3a1d1b; --new: #55c987; --new-fill: #15301f; --kept-fill: #262d38;
  --s0: #6ea3ff; --s1: #f5a04d; --s2: #55c987; --s3: #c58bf5; --s4: #f277a5; --s5: #4fc3d0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem;
  border-bottom: 1px solid var(--line); }
p, figcaption { max-width: 60rem; } .faint, figcaption { color: var(--faint); font-size: .9em; }
figure { margin: 1rem 0; }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.2rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1.2rem;
  flex: 1 1 14rem; }
.card b { display: block; font-size: 1.6rem; }
.scroll { overflow: auto; max-height: 80vh; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; } th, td { padding: .25rem .6rem;
  border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--faint); font-weight: 600; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.bar { display: inline-block; height: .6em; background: var(--s0); border-radius: 2px; vertical-align: baseline; }
tr.worse td { background: var(--gone-fill); } tr.now td { outline: 1px solid var(--s0); } .good { color: var(--new); }
.bad { color: var(--gone); }
details { margin: .6rem 0; } summary { cursor: pointer; } code { font-size: .9em; overflow-wrap: anywhere; }
input[type=range] { width: 100%; }
svg { max-width: none; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--text); }
svg .faint { fill: var(--faint); }
svg circle { fill: var(--page); } svg .axis { stroke: var(--line); fill: none; } svg .series { fill: none;
  stroke-width: 1.6; } svg .marker { stroke: var(--faint); stroke-dasharray: 3 3; }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }
.s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); }
svg .edge { fill: none; stroke: var(--faint); } svg .folded { stroke-dasharray: 2 3; }
svg .kept rect { fill: var(--kept-fill); stroke: var(--line); } svg .elsewhere rect { fill: var(--page);
  stroke: var(--faint); stroke-dasharray: 3 2; }
svg .removed rect { fill: var(--gone-fill); stroke: var(--gone); } svg .added rect { fill: var(--new-fill);
  stroke: var(--new); }
.panels { display: flex; flex-wrap: wrap; gap: 1.5rem; } .panels > div { min-width: 0; max-width: 100%;
  overflow-x: auto; }
"""


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


def short(text: str) -> str:
    """A text that a stranger chose, at a length that a page can bear."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def time_text(picoseconds: int, sign: str = "") -> str:
    """With the unit that suits it. sign: "+" to show that of gains too."""
    milliseconds = abs(picoseconds) >= 10**9
    return f"{picoseconds / 1e9:{sign}.3f} ms" if milliseconds else f"{picoseconds / 1e6:{sign}.3g} µs"


def table(head: Iterable, rows: Iterable[Iterable], numbers: Iterable[int] = (), **attributes) -> Safe:
    """A table. A row is an iterable of cells, or an element that is one already.

    Args:
      numbers: columns that are set flush right.
    """
    right = set(numbers)

    def cells(kind: str, row) -> list[Safe]:
        return [tag(kind, cell, class_="n" if k in right else None) for k, cell in enumerate(row)]

    body = [row if isinstance(row, Safe) else tag("tr", cells("td", row)) for row in rows]
    return tag(
        "div", tag("table", tag("thead", tag("tr", cells("th", head))), tag("tbody", body), **attributes), class_="wide"
    )


def page(title: str, *sections, script: str = "") -> str:
    """A whole document that needs nothing else. Its policy forbids the network, and every script but the given one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head", tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy), tag("title", title),
        tag("style", Safe(STYLE)),
    )  # fmt: skip
    body = tag("body", tag("main", sections), tag("script", Safe(script)) if script else None)
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"
