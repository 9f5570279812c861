"""Draw all charts with matplotlib: as PNG files, and as SVG inside an HTML page.

An SVG chart refers to the colours of the page by CSS variables, so it follows the light and the dark mode. Its labels
stay text and are not converted to outlines. Its elements are rebuilt by `markup.tag`, which escapes the names from
untrusted models. Equal figures give equal bytes.
"""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from math import isfinite, nan
from pathlib import Path
from threading import RLock
from xml.etree import ElementTree

from rlflow.common.files import write_bytes
from rlflow.reports.markup import LIGHT, SERIES, Safe, short, tag

WIDTH = 5.6  # width of a figure in inches of 72 SVG units; letters of 9 units are then readable on a phone
ROW = 0.24  # inches from one bar, interval or row of a heatmap to the next
MAGNIFIED = 1.5  # pixels per SVG unit on a wide screen
POINTS = 400  # number of points to which a line is thinned
NAMES = 12  # maximum number of names in a legend
LONGEST = 40  # maximum number of characters of a name beside an axis
COLOURS = [LIGHT[f"s{number}"] for number in range(SERIES)]
VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.items()}  # colour → CSS variable of the page
DRAWING = RLock()  # One chart is drawn at a time; styled functions may call each other.
DROPPED = {"metadata", "style"}  # SVG elements that are left out: a date, and a style that would affect the whole page


@contextmanager
def styled():
    """Apply this module's matplotlib style inside a `with` block or a decorated function, then restore the old style.

    Matplotlib has one style per process, so a lock lets only one thread draw in this style. Code that draws without
    this lock in another thread may get the style, too.
    """
    import matplotlib

    with DRAWING, matplotlib.rc_context({
        "font.size": 9, "font.sans-serif": ["DejaVu Sans"], "axes.titlesize": 9, "legend.frameon": False,
        "text.color": LIGHT["text"], "axes.labelcolor": LIGHT["text"], "axes.edgecolor": LIGHT["line"],
        "axes.prop_cycle": matplotlib.cycler(color=COLOURS), "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "axes.axisbelow": True, "grid.color": LIGHT["line"], "grid.linewidth": 0.6,
        "xtick.color": LIGHT["faint"], "ytick.color": LIGHT["faint"], "xtick.bottom": False, "ytick.left": False,
        "svg.fonttype": "none",
    }):  # fmt: skip
        yield


def new_figure(width: float, height: float):
    """Return an empty matplotlib figure.

    Args:
      width, height: the size in inches.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    return Figure(figsize=(width, height), layout="constrained")


def label(text: str) -> str:
    """Return a text from an untrusted model as a label of a figure.

    The text is cut to LONGEST characters. Characters that are not printable are replaced, and `$` is escaped, since it
    would begin a formula.
    """
    printed = "".join(character if character.isprintable() else "�" for character in short(text, LONGEST))
    return printed.replace("$", r"\$")


# -- figures -----------------------------------------------------------------------------------------


@styled()
def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str):
    """Return a figure of lines, with a legend if there are several.

    Args:
      series: name of a line → its (x, y) points; points whose y is not finite are left out.
      x_label, y_label: the titles of the axes.
    """
    legend = min(len(series), NAMES + 1) if len(series) > 1 else 0
    figure = new_figure(WIDTH, 2.4 + 0.09 * legend)
    axes = figure.subplots()
    for position, line in enumerate(series.values()):
        known = thinned([point for point in line if isfinite(point[1])])
        style = "-" if position < SERIES else "--"
        axes.plot([x for x, _ in known], [y for _, y in known], style, color=COLOURS[position % SERIES])
    axes.set(xlabel=x_label, ylabel=label(y_label))
    if legend:
        names = [label(name) for name in series]
        shown = names if len(names) <= NAMES else [*names[:NAMES], f"… and {len(names) - NAMES} more"]
        figure.legend(axes.lines[: len(shown)], shown, loc="outside lower left", ncols=2, fontsize=8)
    return figure


def curve(named: Mapping[str, Sequence[tuple[float, float]]], title: str):
    """Return a figure of training curves.

    Args:
      named: name of a curve → its (step, value) points.
      title: the title of the figure, "NAME (UNIT) by X". UNIT becomes the title of the y axis (NAME if there is no
        unit) and X the title of the x axis ("step" if missing). The figure itself does not contain the title.
    """
    name, _, along = title.partition(" by ")
    unit = name.partition(" (")[2].removesuffix(")")
    return lines(named, along or "step", unit or name)


def thinned(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most POINTS of the points of a line at equal strides, and in addition the last point."""
    stride = max(1, -(-len(line) // POINTS))
    kept = list(line[::stride])
    return kept if not line or kept[-1] == line[-1] else [*kept, line[-1]]


@styled()
def bars(values: Mapping[str, float], x_label: str):
    """Return a figure of horizontal bars, each with its name and its value as a number.

    Args:
      values: name of a bar → its value; a value that is not finite has a name and no bar.
      x_label: the title of the axis of values.
    """
    figure = new_figure(WIDTH, ROW * len(values) + 0.7)
    axes = figure.subplots()
    drawn = axes.barh(range(len(values)), [one if isfinite(one) else nan for one in values.values()], height=0.6)
    axes.bar_label(drawn, [f"{value:.3g}" for value in values.values()], padding=3)
    axes.set_yticks(range(len(values)), [label(name) for name in values])
    axes.set(xlabel=x_label)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


@styled()
def intervals(rows: Sequence[tuple[str, Sequence[Mapping]]], x_labels: Sequence[str]):
    """Return a figure of confidence intervals: each is a dot at the mean and a line from `low` to `high`.

    Args:
      rows: (name of the row, results) pairs; `results` holds one {mean, low, high} per panel. A mean or an interval of
        None is not drawn.
      x_labels: the titles of the panels' x axes; each title makes one panel.
    """
    figure = new_figure(1.2 * WIDTH, ROW * len(rows) + 0.8)
    planes = figure.subplots(1, len(x_labels), sharey=True, squeeze=False)[0]
    for column, (axes, x_label) in enumerate(zip(planes, x_labels, strict=True)):
        axes.axvline(0, color=LIGHT["faint"], linewidth=0.8)
        for position, (_, results) in enumerate(rows):
            mean, low, high = (results[column][key] for key in ("mean", "low", "high"))
            if low is not None:
                axes.plot([low, high], [position, position], color=COLOURS[0])
            if mean is not None:
                axes.plot(mean, position, "o", color=COLOURS[0], markersize=4)
        axes.set(xlabel=x_label)
    planes[0].set_yticks(range(len(rows)), [label(name) for name, _ in rows])
    planes[0].invert_yaxis()
    return figure


@styled()
def heatmap(rows: Sequence[str], columns: Sequence[str], counts: Mapping[tuple[str, str], float]):
    """Return a heatmap of counts, in which higher counts are darker.

    Args:
      rows, columns: the names of the rows and of the columns.
      counts: (row, column) → count; a count that is missing or not finite is left out, as 0 is.
    """
    from matplotlib.patches import Rectangle

    names = [label(column) for column in columns]
    slanting = 0.04 * max(map(len, names), default=0)  # inches, for the longest name
    figure = new_figure(max(WIDTH, 0.5 * len(columns) + 2.5), ROW * len(rows) + 0.5 + slanting)
    axes = figure.subplots()
    known = {cell: count for cell, count in counts.items() if isfinite(count)}
    most = max(known.values(), default=0)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            if count := known.get((row, column), 0):
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=COLOURS[0], alpha=0.6 * count / most, lw=0))
                axes.text(x, y, f"{count:.3g}", ha="center", va="center")
    axes.set_xticks(range(len(columns)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), [label(name) for name in rows])
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False)
    return figure


@styled()
def scatter(points: Sequence[tuple[float, float]], values: Sequence[float], labels: tuple[str, str, str]):
    """Return a figure of points whose colour is a value.

    Args:
      points: (x, y) of each point.
      values: the value of each point.
      labels: of the x axis, of the y axis and of the values.
    """
    figure = new_figure(WIDTH, 0.75 * WIDTH)
    axes = figure.subplots()
    x, y = zip(*points, strict=True)
    drawn = axes.scatter(x, y, c=values, s=4, cmap="viridis", linewidths=0)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    figure.colorbar(drawn, label=labels[2])
    return figure


# -- files and pages ---------------------------------------------------------------------------------


def rendered(figure, **options) -> bytes:
    """Return the content of the image file that `figure.savefig(file, **options)` writes."""
    image = io.BytesIO()
    figure.savefig(image, **options)
    return image.getvalue()


@styled()
def save(figure, path: Path) -> Path:
    """Write a figure as PNG and return the path.

    Args:
      figure: a matplotlib figure.
      path: the file to write.
    """
    write_bytes(path, rendered(figure, dpi=120, format="png", metadata={"Software": None}))
    return path


@styled()
def svg(figure, name: str, about: str) -> Safe:
    """Return a figure as an SVG element of a page.

    Args:
      figure: a matplotlib figure.
      name: a name that no other chart of the page has; the ids in the SVG depend on it.
      about: a description for people who cannot see the chart.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": name}):  # makes ids reproducible and unique to this chart
        root = ElementTree.fromstring(rendered(figure, format="svg", transparent=True, metadata={"Date": None}))
    width = round(MAGNIFIED * float(root.get("viewBox").split()[2]))
    drawn = [_element(child) for child in root]
    return tag("svg", drawn, viewBox=root.get("viewBox"), width=width, role="img", aria_label=about)


def _element(node) -> Safe | None:
    """Return an SVG element of matplotlib, rebuilt by `tag` without the ids of groups; None for an element in DROPPED.
    """
    name = _local(node.tag)
    if name in DROPPED:
        return None
    attributes = {_local(key): value for key, value in node.attrib.items()}
    if name == "g":
        attributes.pop("id", None)
    if "style" in attributes:
        attributes["style"] = _in_page_colours(attributes["style"])
    content = node.text if name == "text" else [_element(child) for child in node]
    return tag(name, content, **attributes)


def _local(name: str) -> str:
    """Return a name without its XML namespace."""
    return name.rpartition("}")[2]


def _in_page_colours(style: str) -> str:
    """Return an inline CSS style in which colours are replaced by the page's variables, and the font by the page's."""
    named = re.sub(r"#[0-9a-f]{6}", lambda colour: VARIABLES.get(colour.group(), colour.group()), style)
    return named.replace("'DejaVu Sans'", "system-ui")
