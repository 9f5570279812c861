"""Draw the regions of a graph that rewrites changed, as SVG pictures before and after.

Regions whose pictures would differ only in costs and names form one kind, and only the first region of a kind is drawn.
Both pictures of a region share one layered layout, so an operator has the same position in both. A node that exists
only before may share its position with a node that exists only after. Red operators were removed, green operators were
added, grey operators stayed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import zip_longest
from typing import NamedTuple

from rlflow.env.state import RewriteState
from rlflow.reports.markup import Safe, short, tag, time_text
from rlflow.reports.regions import Edge, Region, Step, edges, regions, shown

WIDE, HIGH = 136, 36  # pixels of an operator's box
COLUMN, ROW = WIDE + 24, HIGH + 26  # pixels from a box to the next one in its row, and in its column
MARGIN = 10
SWEEPS = 4  # passes over the layers, in which each node moves towards the mean column of its neighbours
CHARACTERS = 19  # number of characters that fit into a box


class Drawing(NamedTuple):
    """The content of the two pictures of a region.

    Attributes:
      kinds: node id → "removed", "added", "kept", or "elsewhere" (removed or added by another region).
      before, after: the edges in the picture before, and in the picture after the change.
      positions: node id → (column, row), from 0; a column is a multiple of one half.
    """

    kinds: dict[int, str]
    before: list[Edge]
    after: list[Edge]
    positions: dict[int, tuple[float, int]]

    @property
    def size(self) -> tuple[float, int]:
        """The size of a picture, as (number of columns, number of rows)."""
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
        (kind, (before.graph.nodes.get(node_id) or after.graph.nodes[node_id]).key()[:2])
        for node_id, kind in sorted(drawing.kinds.items())
    ]
    was, now = (
        [(number[e.source], number[e.target], e.folded > 0) for e in links] for links in (drawing.before, drawing.after)
    )
    return tuple(nodes), tuple(was), tuple(now)


# -- layout ----------------------------------------------------------------------------------------


def layout(node_ids: Set[int], links: list[Edge], gone: Set[int], new: Set[int]) -> dict[int, tuple[float, int]]:
    """Return node id → (column, row). Edges lead down, except that at least one edge of a cycle leads up.

    Args:
      node_ids: the nodes to place.
      links: the edges between these nodes, before and after the change.
      gone: the nodes that exist only before the change.
      new: the nodes that exist only after the change; each may share the position of a node in `gone`.
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
    """Return node id → row: the number of edges on the longest path that ends at the node.

    While only nodes in and below cycles remain, the one with the smallest id is placed next; edges into it may lead up.
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
    """Return the slots of a layer: lists of the node ids that share one position.

    A node in `gone` shares its slot with a node in `new` as long as both sets last. Every other node has its own slot.
    """
    was, now = ([n for n in node_ids if n in some] for some in (gone, new))
    pairs = [[n for n in pair if n is not None] for pair in zip_longest(was, now)]
    return [[n] for n in node_ids if n not in gone and n not in new] + pairs


def _columns(layers: list[list[list[int]]]) -> dict[int, float]:
    """Return node id → column. The slots of every layer have successive columns, centred around column 0."""
    return {n: k - (len(layer) - 1) / 2 for layer in layers for k, slot in enumerate(layer) for n in slot}


def _mean_or(values: list[float], otherwise: float) -> float:
    """Return the mean of the values, or `otherwise` if the list is empty."""
    return sum(values) / len(values) if values else otherwise


# -- pictures --------------------------------------------------------------------------------------


def picture(before: RewriteState, after: RewriteState, drawing: Drawing) -> Safe:
    """Return two pictures of a region, before and after the change, side by side.

    Args:
      before, after: the states before and after all steps.
      drawing: the drawing of the region.
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
    """Return whether a straight line for an edge would cross a box in one of the rows between the edge's ends."""
    (column, first), (last_column, last) = positions[edge.source], positions[edge.target]
    middle = (column + last_column) / 2
    return any(first < row < last and abs(column - middle) < 0.5 for column, row in positions.values())


def _arrow(positions: Mapping[int, tuple[float, int]], edge: Edge) -> Safe:
    """Return the arrow of an edge, from the bottom of its source's box to the top of its target's box.

    The arrow is bent around a box between them. An edge with hidden operators is dotted and shows their number.
    """
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


BOXES = 2500  # maximum number of operators in all drawings of a page
UNFOLDED = 3  # number of kinds whose drawings are visible when the page is opened
FIRST_COLUMNS, FIRST_ROWS = 2, 6  # size of the largest drawing that is readable on the first screen
FIRST_BOXES = 36  # maximum number of operators in the drawing of the first screen if no drawing is readable there
NUMBERS = 12  # maximum number of step numbers listed under a drawing
OPERATORS = 4  # maximum number of operators that the first screen lists with the change of their number


class Kind(NamedTuple):
    """Regions whose pictures differ only in costs and names, and the drawing of the first of these regions."""

    regions: list[Region]
    drawing: Drawing

    @property
    def gain_ps(self) -> int:
        """The sum of the gains of all regions, in ps."""
        return sum(region.gain_ps for region in self.regions)


class Change(NamedTuple):
    """The change of a graph by a sequence of steps.

    Attributes:
      before, after: the states before the first step and after the last step.
      steps: the steps.
      kinds: the kinds of all regions that removed or added an operator, with the highest gain first.
    """

    before: RewriteState
    after: RewriteState
    steps: Sequence[Step]
    kinds: list[Kind]


def change(before: RewriteState, after: RewriteState, steps: Sequence[Step]) -> Change:
    """Return the change of a graph, with its regions grouped by appearance.

    Args:
      before, after: the states before the first step and after the last step.
      steps: the steps from `before` to `after`, as `trace` returns them.
    """
    kinds: dict[tuple, Kind] = {}
    for region in regions(before, after, steps):
        if region.removed or region.added:
            drawing = draw(before, after, region)
            kinds.setdefault(appearance(before, after, drawing), Kind([], drawing)).regions.append(region)
    return Change(before, after, steps, sorted(kinds.values(), key=lambda kind: -kind.gain_ps))


def operators(state: RewriteState) -> Counter:
    """Return operator → number of its nodes in the state's graph, without constant nodes."""
    return Counter(node.op for node_id, node in state.graph.nodes.items() if shown(state.graph, node_id))


# -- on the first screen -----------------------------------------------------------------------------


def operators_text(what: Change) -> str:
    """Return the numbers of operators before and after a change, such as "Operators 120 → 98: Add −12, Mul −10".

    The operators whose numbers changed most are listed, at most OPERATORS of them.
    """
    before, after = operators(what.before), operators(what.after)
    differences = {op: after[op] - before[op] for op in before | after if after[op] != before[op]}
    most = sorted(differences, key=lambda op: (-abs(differences[op]), op))[:OPERATORS]
    text = f"Operators {before.total()} → {after.total()}"
    counts = ", ".join(f"{short(op)} {differences[op]:+d}".replace("-", "−") for op in most)
    more = ", …" if len(differences) > len(most) else ""
    return f"{text}: {counts}{more}" if counts else text


def first_drawing(what: Change) -> Safe | None:
    """Return the drawing for the first screen, or None if no operator was removed or added.

    The drawing shows the kind with the highest gain among the kinds whose drawings have at most FIRST_COLUMNS columns
    and FIRST_ROWS rows. If no kind is that small, the drawing shows the kind with the fewest operators. If this kind
    has more than FIRST_BOXES operators, a sentence takes the place of the drawing.
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
    """Return one line about a kind of regions: its rules, its total gain and, if above 1, its number of regions.

    Args:
      what: the change that the kind belongs to.
      kind: the kind of regions.
    """
    rules = list(dict.fromkeys(what.steps[number].rule for number in kind.regions[0].steps))
    places = f" in {len(kind.regions)} similar regions" if len(kind.regions) > 1 else ""
    return f"{', '.join(rules)}: {time_text(kind.gain_ps, '+')}{places}"


def pictures(what: Change) -> list[Safe]:
    """Return a paragraph that explains the drawings, then one foldable element with a drawing per kind of regions."""
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
