"""Draw the change of a graph: similar regions form one kind, and each kind is drawn once, before and after.

Both pictures of a region share one layered layout, so the same operator has the same position in both. A node that
exists only before may share its position with a node that exists only after. Red operators were removed, green
operators were added, grey operators stayed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import zip_longest
from typing import NamedTuple

from rlflow.env.state import RewriteState
from rlflow.graph.ir import Graph, Node
from rlflow.reports.markup import Safe, short, tag, time_text
from rlflow.reports.regions import Edge, Region, Step, edges, regions, shown

WIDE, HIGH = 136, 36  # pixels of an operator's box
COLUMN, ROW = WIDE + 24, HIGH + 26  # pixels between neighbours
MARGIN = 10
SWEEPS = 4  # passes over the layers that move neighbours above each other
CHARACTERS = 19  # of an operator's name that fit into a box


class Drawing(NamedTuple):
    """The content of a region's pictures.

    Attributes:
      kinds: node id → removed, added, kept, or elsewhere (changed by another region).
      before, after: edges.
      positions: node id → (column, a multiple of one half; row).
    """

    kinds: dict[int, str]
    before: list[Edge]
    after: list[Edge]
    positions: dict[int, tuple[float, int]]

    @property
    def size(self) -> tuple[float, int]:
        """(columns, rows)."""
        columns, rows = (max(position[axis] for position in self.positions.values()) for axis in (0, 1))
        return columns + 1, rows + 1


def draw(before: RewriteState, after: RewriteState, region: Region) -> Drawing:
    """Return the drawing of a region.

    Args:
      before, after: the states before and after all steps.
      region: the region.
    """
    kinds = dict.fromkeys(sorted(region.removed), "removed") | dict.fromkeys(sorted(region.added), "added")
    for node_id in sorted(region.around):
        kinds[node_id] = "kept" if node_id in before.graph.nodes and node_id in after.graph.nodes else "elsewhere"
    members = frozenset(kinds)
    was, now = (edges(state.graph, members) for state in (before, after))
    gone, new = ({n for n in members if n not in state.graph.nodes} for state in (after, before))
    return Drawing(kinds, was, now, layout(members, [*was, *now], gone, new))


def appearance(before: RewriteState, after: RewriteState, drawing: Drawing) -> tuple:
    """Return a key that is equal for two regions whose pictures differ only in costs and names.

    Args:
      before, after: the states before and after all steps.
      drawing: the drawing of the region.
    """
    number = {node_id: k for k, node_id in enumerate(sorted(drawing.kinds))}
    nodes = [
        (kind, _node(before.graph, after.graph, node_id).key()[:2]) for node_id, kind in sorted(drawing.kinds.items())
    ]
    was, now = (
        [(number[e.source], number[e.target], e.folded > 0) for e in links] for links in (drawing.before, drawing.after)
    )
    return tuple(nodes), tuple(was), tuple(now)


def _node(before: Graph, after: Graph, node_id: int) -> Node:
    return before.nodes.get(node_id) or after.nodes[node_id]


# -- layout ----------------------------------------------------------------------------------------


def layout(node_ids: Set[int], links: list[Edge], gone: Set[int], new: Set[int]) -> dict[int, tuple[float, int]]:
    """Return node id → (column, row), with every edge leading down.

    Args:
      node_ids: the nodes.
      links: the edges before and after.
      gone, new: the nodes that exist only before, and only after; one node of each set may share a position.
    """
    row = _rows(node_ids, links)
    near: dict[int, list[int]] = {node_id: [] for node_id in node_ids}
    for edge in links:
        near[edge.source].append(edge.target)
        near[edge.target].append(edge.source)
    layers = [
        _slots([n for n in sorted(node_ids) if row[n] == k], gone, new)
        for k in range(max(row.values(), default=-1) + 1)
    ]
    column = _columns(layers)
    for sweep in range(SWEEPS):
        for k in range(len(layers)) if sweep % 2 == 0 else reversed(range(len(layers))):
            layers[k].sort(key=lambda slot: _mean_or([column[m] for n in slot for m in near[n]], column[slot[0]]))
            column |= _columns([layers[k]])
    left = min(column.values(), default=0.0)
    return {n: (column[n] - left, row[n]) for n in sorted(node_ids)}


def _rows(node_ids, links: list[Edge]) -> dict[int, int]:
    """Return the row of each node: the length of the longest path to it. If there is a cycle, one of its edges leads
    up.
    """
    row, left = {}, {n: {e.source for e in links if e.target == n and e.source != n} for n in sorted(node_ids)}
    while left:
        ready = [n for n, waits in left.items() if not waits & left.keys()] or [min(left)]
        for node_id in ready:
            row[node_id] = 1 + max((row[n] for n in left[node_id] if n in row and n not in ready), default=-1)
        for node_id in ready:
            del left[node_id]
    return row


def _slots(node_ids: list[int], gone: Set[int], new: Set[int]) -> list[list[int]]:
    """Return the nodes of a layer, with a node that exists only before paired with a node that exists only after."""
    was, now = ([n for n in node_ids if n in some] for some in (gone, new))
    pairs = [[n for n in pair if n is not None] for pair in zip_longest(was, now)]
    return [[n] for n in node_ids if n not in gone and n not in new] + pairs


def _columns(layers: list[list[list[int]]]) -> dict[int, float]:
    """Return the column of each node, with every layer centred."""
    return {n: k - (len(layer) - 1) / 2 for layer in layers for k, slot in enumerate(layer) for n in slot}


def _mean_or(values: list[float], otherwise: float) -> float:
    """Return the mean of the values, or `otherwise` if the list is empty."""
    return sum(values) / len(values) if values else otherwise


# -- pictures --------------------------------------------------------------------------------------


def picture(before: RewriteState, after: RewriteState, drawing: Drawing) -> Safe:
    """Return the pictures before and after, side by side.

    Args:
      before, after: the states before and after all steps.
      drawing: of the region.
    """
    columns, rows = drawing.size
    is_bent = any(_has_box_between(drawing.positions, edge) for edge in [*drawing.before, *drawing.after])
    aside = COLUMN // 2 if is_bent else 0
    size = round((columns - 1) * COLUMN) + WIDE + aside + 2 * MARGIN, (rows - 1) * ROW + HIGH + 2 * MARGIN
    panels = [
        tag("div", tag("div", title, class_="faint"), _panel(state, drawing, links, size, title))
        for title, state, links in (("before", before, drawing.before), ("after", after, drawing.after))
    ]
    return tag("div", panels, class_="panels narrow" if columns == 1 else "panels")


def _panel(state: RewriteState, drawing: Drawing, links: list[Edge], size: tuple[int, int], title: str) -> Safe:
    seen = [node_id for node_id in drawing.kinds if node_id in state.graph.nodes]
    boxes = [_box(state, node_id, drawing.kinds[node_id], drawing.positions[node_id]) for node_id in seen]
    width, height = size
    positions = {node_id: drawing.positions[node_id] for node_id in seen}
    arrows = [_arrow(positions, link) for link in links]
    return tag(
        "svg", arrows, boxes, viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", aria_label=title
    )


def _box(state: RewriteState, node_id: int, kind: str, position: tuple[float, int]) -> Safe:
    node, cost = state.graph.nodes[node_id], state.graph_cost.nodes[node_id].runtime_ps
    x, y = _corner(position)
    shapes = [state.graph.types[t].shape for t in node.outputs if t in state.graph.types]
    about = [short(node.name), *("×".join(map(str, shape)) for shape in shapes if shape is not None)]
    cost_text = time_text(cost) if cost else "free"
    label = node.op if len(node.op) <= CHARACTERS else f"{node.op[: CHARACTERS - 1]}…"
    return tag(
        "g", tag("title", " · ".join(filter(None, [short(node.op), *about]))),
        tag("rect", x=x, y=y, width=WIDE, height=HIGH, rx=5),
        tag("text", label, x=x + WIDE // 2, y=y + 15, text_anchor="middle"),
        tag("text", cost_text, x=x + WIDE // 2, y=y + 29, text_anchor="middle", class_="faint"),
        class_=kind,
    )  # fmt: skip


def _corner(position: tuple[float, int]) -> tuple[int, int]:
    return round(MARGIN + position[0] * COLUMN), MARGIN + position[1] * ROW


def _has_box_between(positions: Mapping[int, tuple[float, int]], edge: Edge) -> bool:
    """Return whether a box lies between the ends of an edge."""
    (column, first), (last_column, last) = positions[edge.source], positions[edge.target]
    middle = (column + last_column) / 2
    return any(first < row < last and abs(column - middle) < 0.5 for column, row in positions.values())


def _arrow(positions: Mapping[int, tuple[float, int]], edge: Edge) -> Safe:
    """Return the arrow from the foot of a box to the head of another box, bent around a box between them."""
    (x, y), (end, below) = _corner(positions[edge.source]), _corner(positions[edge.target])
    x, y, end = x + WIDE // 2, y + HIGH, end + WIDE // 2
    aside, bend = (COLUMN, (below - y) // 3) if _has_box_between(positions, edge) else (0, (below - y) // 2)
    drawn = [
        tag(
            "path",
            d=f"M{x} {y}C{x + aside} {y + bend} {end + aside} {below - bend} {end} {below}",
            class_="edge folded" if edge.folded else "edge",
        )
    ]
    if edge.folded:
        drawn.append(
            tag(
                "text", f"⋯ {edge.folded}", x=(x + end) // 2 + 3 * aside // 4, y=(y + below) // 2 + 4,
                text_anchor="middle", class_="faint",
            )
        )  # fmt: skip
    return tag("g", drawn)


BOXES = 2500  # maximum number of operators in all pictures
UNFOLDED = 3  # kinds that are unfolded at first
FIRST_COLUMNS, FIRST_ROWS = 2, 6  # largest drawing that is readable on the first screen
FIRST_BOXES = 36  # largest drawing on the first screen if none is readable at once
NUMBERS = 12  # numbers of steps under a drawing
OPERATORS = 4  # operators with their counts on the first screen


class Kind(NamedTuple):
    """Regions of equal appearance, and the drawing of the first region."""

    regions: list[Region]
    drawing: Drawing

    @property
    def gain_ps(self) -> int:
        return sum(region.gain_ps for region in self.regions)


class Change(NamedTuple):
    """A graph before and after some steps.

    Attributes:
      before, after: the two states.
      steps: the steps between them.
      kinds: of all regions with a removed or added operator, highest gain first.
    """

    before: RewriteState
    after: RewriteState
    steps: Sequence[Step]
    kinds: list[Kind]


def change(before: RewriteState, after: RewriteState, steps: Sequence[Step]) -> Change:
    """Return the change between two states, with regions of equal appearance grouped.

    Args:
      before, after: the two states.
      steps: as `trace` returns them.
    """
    kinds: dict[tuple, Kind] = {}
    for region in regions(before, after, steps):
        if region.removed or region.added:
            drawing = draw(before, after, region)
            kinds.setdefault(appearance(before, after, drawing), Kind([], drawing)).regions.append(region)
    return Change(before, after, steps, sorted(kinds.values(), key=lambda kind: -kind.gain_ps))


def operators(state: RewriteState) -> Counter:
    """Return operator → its number of nodes, without folded nodes."""
    return Counter(node.op for node_id, node in state.graph.nodes.items() if shown(state.graph, node_id))


# -- on the first screen -----------------------------------------------------------------------------


def operators_text(what: Change) -> str:
    """Return the numbers of operators before and after, and the largest differences."""
    before, after = operators(what.before), operators(what.after)
    differences = {op: after[op] - before[op] for op in before | after if after[op] != before[op]}
    most = sorted(differences, key=lambda op: (-abs(differences[op]), op))[:OPERATORS]
    text = f"Operators {before.total()} → {after.total()}"
    counts = ", ".join(f"{short(op)} {differences[op]:+d}".replace("-", "−") for op in most)
    more = ", …" if len(differences) > len(most) else ""
    return f"{text}: {counts}{more}" if counts else text


def first_drawing(what: Change) -> Safe | None:
    """Return the drawing for the first screen: of the kinds that are readable at once, the one with the highest gain.

    If no kind is readable at once, the smallest kind is drawn; if that kind is too large, a sentence replaces the
    drawing.
    """
    if not what.kinds:
        return None
    small = [kind for kind in what.kinds if _fits(kind.drawing)]
    kind = small[0] if small else min(what.kinds, key=lambda kind: len(kind.drawing.kinds))
    boxes = len(kind.drawing.kinds)
    if not small and boxes > FIRST_BOXES:
        regions_of = "one large region" if len(what.kinds) == 1 else f"{len(what.kinds)} large regions"
        text = f"The change consists of {regions_of} with at least {boxes} operators, drawn below."
        return tag("p", text, class_="telling")
    caption = f"{summary(what, kind)}. Red: removed. Green: added. Grey: unchanged."
    return tag(
        "figure", picture(what.before, what.after, kind.drawing), tag("figcaption", caption), class_="telling"
    )


def _fits(drawing: Drawing) -> bool:
    columns, rows = drawing.size
    return columns <= FIRST_COLUMNS and rows <= FIRST_ROWS


# -- below it ----------------------------------------------------------------------------------------


def summary(what: Change, kind: Kind) -> str:
    """Return the rules of a kind, its gain and its number of regions.

    Args:
      what: the change.
      kind: the kind.
    """
    rules = list(dict.fromkeys(what.steps[number].rule for number in kind.regions[0].steps))
    places = f" in {len(kind.regions)} similar regions" if len(kind.regions) > 1 else ""
    return f"{', '.join(rules)}: {time_text(kind.gain_ps, '+')}{places}"


def pictures(what: Change) -> list[Safe]:
    """Return an introduction and one foldable element per kind of region, with its drawing."""
    gone = sum(len(region.removed) for kind in what.kinds for region in kind.regions)
    new = sum(len(region.added) for kind in what.kinds for region in kind.regions)
    about = (
        f"{gone} operators were removed (red), {new} were added (green), {operators(what.before).total() - gone} "
        "stayed. Only neighbours of the change are drawn (grey; with a broken line if another region changes them). "
        "⋯ stands for a chain between two neighbours. Below its name is an operator's estimated cost. An operator is "
        "free if it runs inside another operator's kernel or is folded."
    )
    drawn, left = [], BOXES
    for number, kind in enumerate(what.kinds):
        fits = len(kind.drawing.kinds) <= left
        left -= len(kind.drawing.kinds) if fits else 0
        drawn.append(_unfolding(what, kind, fits, unfolded=number < UNFOLDED))
    return [tag("p", about), *drawn]


def _unfolding(what: Change, kind: Kind, fits: bool, unfolded: bool) -> Safe:
    content = picture(what.before, what.after, kind.drawing) if fits else "Not drawn: the page would be too large."
    first = kind.regions[0]
    where = f", here at {short(what.steps[first.steps[0]].position)}" if fits else ""
    steps = [number + 1 for region in kind.regions for number in region.steps]
    numbers = ", ".join(map(str, steps[:NUMBERS])) + (" …" if len(steps) > NUMBERS else ".")
    hidden = f" {first.hidden} more neighbours are not drawn." if first.hidden else ""
    return tag(
        "details", tag("summary", summary(what, kind), where),
        tag("figure", content, tag("figcaption", f"Steps {numbers}{hidden}")), open="open" if unfolded else None,
    )  # fmt: skip
