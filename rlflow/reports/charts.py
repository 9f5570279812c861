"""Charts as SVG and as tables, without a script."""

from collections.abc import Mapping, Sequence
from math import isfinite

from rlflow.reports.markup import Safe, join, short, table, tag

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 260, 70, 36, 8  # pixels
POINTS = 400  # of a line
COLOURS = 6  # classes s0 … s5


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, marker: bool = False
) -> Safe:
    """A chart of named lines, each a list of (x, y).

    Args:
      marker: whether there is an upright line that a script may move (class `marker`, with the plane's borders as
        data).
    """
    from matplotlib.ticker import MaxNLocator

    series = {name: [point for point in line if isfinite(point[1])] for name, line in series.items()}
    points = [point for line in series.values() for point in line]
    (x_low, x_high), (y_low, y_high) = (_span([point[axis] for point in points]) for axis in (0, 1))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * (value - x_low) / (x_high - x_low)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (y_high - value) / (y_high - y_low)

    drawn = [tag("path", class_="axis", d=f"M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 10}")]
    for value in _inside(MaxNLocator(6).tick_values(x_low, x_high), x_low, x_high):
        drawn.append(
            tag("text", f"{value:g}", x=f"{x(value):.0f}", y=HEIGHT - BOTTOM + 14, text_anchor="middle", class_="faint")
        )
    for value in _inside(MaxNLocator(5).tick_values(y_low, y_high), y_low, y_high):
        drawn.append(tag("path", class_="axis", d=f"M{LEFT} {y(value):.1f}H{WIDTH - 10}"))
        drawn.append(tag("text", f"{value:g}", x=LEFT - 6, y=f"{y(value) + 4:.0f}", text_anchor="end", class_="faint"))
    for position, line in enumerate(series.values()):
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in thinned(line))
        drawn.append(
            tag(
                "path", class_=f"series s{position % COLOURS}", d=path and f"M{path}",
                stroke_dasharray=None if position < COLOURS else "5 3",
            )
        )  # fmt: skip
    drawn.append(tag("text", x_label, x=WIDTH - 10, y=HEIGHT - 4, text_anchor="end"))
    if marker:
        drawn.append(tag(
            "path", class_="marker", d=f"M0 {TOP}V{HEIGHT - BOTTOM}", transform=f"translate({x(0):.1f})",
            data_from=f"{x(0):.1f}", data_step=f"{x(1) - x(0):.4f}",
        ))  # fmt: skip
    chart = tag(
        "svg", drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT, role="img",
        aria_label=f"{y_label} over {x_label}",
    )  # fmt: skip
    return tag(
        "figure", tag("div", y_label, class_="faint"), tag("div", chart, class_="wide"),
        tag("figcaption", legend(series)),
    )  # fmt: skip


def legend(names) -> Safe:
    def sample(position: int) -> Safe:
        line = tag(
            "path", d="M0 5H20", class_=f"series s{position % COLOURS}",
            stroke_dasharray=None if position < COLOURS else "5 3",
        )  # fmt: skip
        return tag("svg", line, width=20, height=10, style="display:inline-block")

    return join([(sample(position), f" {short(name)}   ") for position, name in enumerate(names)])


def thinned(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about POINTS of the points, first and last among them."""
    stride = max(1, -(-len(line) // POINTS))
    kept = list(line[::stride])
    return kept if not line or kept[-1] == line[-1] else [*kept, line[-1]]


def heatmap(rows: Sequence[str], columns: Sequence[str], counts: Mapping[tuple[str, str], float], corner: str) -> Safe:
    """A table of counts ((row, column) → count, none is 0), darker where there are more."""
    most = max(counts.values(), default=0)

    def cell(count: float) -> Safe:
        return tag(
            "td", f"{count:.3g}" if count else "", class_="n",
            style=f"background:rgb(var(--heat) / {0.75 * count / most:.2f})" if count else None,
        )  # fmt: skip

    body = [
        tag("tr", tag("td", short(row)), [cell(counts.get((row, column), 0)) for column in columns]) for row in rows
    ]
    return table([corner, *map(short, columns)], body, numbers=range(1, len(columns) + 1))


def intervals(rows: Sequence[tuple[str, Mapping]], x_label: str) -> Safe:
    """A dot for each mean, a line for its interval; a row for each (name, {mean, low, high}); None is not drawn."""
    from matplotlib.ticker import MaxNLocator

    known = [
        value for _, result in rows for value in (result["mean"], result["low"], result["high"]) if value is not None
    ]
    low, high = _span([0.0, *known])
    left, height = 280, 20 * len(rows) + BOTTOM

    def x(value: float) -> float:
        return left + (WIDTH - left - 20) * (value - low) / (high - low)

    drawn = [tag("path", class_="marker", d=f"M{x(0):.1f} 0V{height - BOTTOM}")]
    for value in _inside(MaxNLocator(5).tick_values(low, high), low, high):
        drawn.append(
            tag("text", f"{value:g}", x=f"{x(value):.0f}", y=height - BOTTOM + 14, text_anchor="middle", class_="faint")
        )
    for position, (name, result) in enumerate(rows):
        y = 20 * position + 10
        drawn.append(tag("text", short(name), x=left - 10, y=y + 4, text_anchor="end"))
        if result["low"] is not None:
            drawn.append(tag("path", class_="series s0", d=f"M{x(result['low']):.1f} {y}H{x(result['high']):.1f}"))
        if result["mean"] is not None:
            drawn.append(tag("circle", class_="s0", cx=f"{x(result['mean']):.1f}", cy=y, r=3))
    drawn.append(tag("text", x_label, x=WIDTH - 10, y=height - 4, text_anchor="end"))
    chart = tag(
        "svg", drawn, viewBox=f"0 0 {WIDTH} {height}", width=WIDTH, height=height, role="img", aria_label=x_label
    )
    return tag("figure", tag("div", chart, class_="wide"))


def bar(value: float, largest: float) -> Safe | None:
    """A bar of that share of the largest; none for what is not above 0."""
    return tag("span", class_="bar", style=f"width:{8 * value / largest:.2f}em") if value > 0 and largest > 0 else None


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = abs(high) or 1.0
    return (low, high) if high > low else (low - margin / 2, high + margin / 2)


def _inside(ticks, low: float, high: float) -> list[float]:
    return [float(tick) for tick in ticks if low <= tick <= high]
