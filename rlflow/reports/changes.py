"""What changed in the graph, as kinds: regions that look alike are one kind, with one drawing for all of them."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rlflow.env.state import RewriteState
from rlflow.reports.drawing import Drawing, draw, look, picture
from rlflow.reports.markup import Safe, short, tag, time_text
from rlflow.reports.regions import Region, regions, shown
from rlflow.reports.steps import Step

BOXES = 2500  # operators that are drawn in all pictures
UNFOLDED = 3  # kinds that are shown at once
FIRST_COLUMNS, FIRST_ROWS = 2, 6  # of a drawing that can be read on the first screen
FIRST_BOXES = 36  # of a drawing that is worth its room there, though it cannot be read at once
NUMBERS = 12  # of steps, under a drawing
OPERATORS = 4  # whose numbers the first screen states


class Kind(NamedTuple):
    """Regions that look alike, and the drawing of the first."""

    regions: list[Region]
    drawing: Drawing

    @property
    def gain_ps(self) -> int:
        return sum(region.gain_ps for region in self.regions)


class Change(NamedTuple):
    """A graph before and after some steps.

    Attributes:
      kinds: of all regions in which an operator went or came; those first that gained most.
    """

    before: RewriteState
    after: RewriteState
    steps: Sequence[Step]
    kinds: list[Kind]


def change(before: RewriteState, after: RewriteState, steps: Sequence[Step]) -> Change:
    alike: dict[tuple, Kind] = {}
    for region in regions(before, after, steps):
        if region.removed or region.added:
            drawing = draw(before, after, region)
            alike.setdefault(look(before, after, drawing), Kind([], drawing)).regions.append(region)
    return Change(before, after, steps, sorted(alike.values(), key=lambda kind: -kind.gain_ps))


def operators(state: RewriteState) -> Counter:
    """Operator → how many the graph has, but for those that are folded."""
    return Counter(node.op for node_id, node in state.graph.nodes.items() if shown(state.graph, node_id))


# -- on the first screen -----------------------------------------------------------------------------


def operators_text(what: Change) -> str:
    """How many operators there were and are, and which went and came most."""
    before, after = operators(what.before), operators(what.after)
    differences = {op: after[op] - before[op] for op in before | after if after[op] != before[op]}
    most = sorted(differences, key=lambda op: (-abs(differences[op]), op))[:OPERATORS]
    text = f"Operators {before.total()} → {after.total()}"
    counts = ", ".join(f"{short(op)} {differences[op]:+d}".replace("-", "−") for op in most)
    more = ", …" if len(differences) > len(most) else ""
    return f"{text}: {counts}{more}" if counts else text


def telling(what: Change) -> Safe | None:
    """The drawing of the kind that gained most, of those that are small enough to be read at once.

    Where none is, it is the smallest; where that is large too, a sentence instead.
    """
    if not what.kinds:
        return None
    small = [kind for kind in what.kinds if _fits(kind.drawing)]
    kind = small[0] if small else min(what.kinds, key=lambda kind: len(kind.drawing.kinds))
    boxes = len(kind.drawing.kinds)
    if not small and boxes > FIRST_BOXES:
        regions_of = "one large region" if len(what.kinds) == 1 else f"{len(what.kinds)} large regions"
        text = f"The change is {regions_of}, of no fewer than {boxes} operators; drawn below."
        return tag("p", text, class_="telling")
    caption = f"{summary(what, kind)}. Red went, green came, grey stayed."
    return tag(
        "figure", picture(what.before, what.after, kind.drawing), tag("figcaption", caption), class_="telling"
    )


def _fits(drawing: Drawing) -> bool:
    columns, rows = drawing.size
    return columns <= FIRST_COLUMNS and rows <= FIRST_ROWS


# -- below it ----------------------------------------------------------------------------------------


def summary(what: Change, kind: Kind) -> str:
    """The rules, the gain, and how often."""
    rules = list(dict.fromkeys(what.steps[number].rule for number in kind.regions[0].steps))
    alike = f" in {len(kind.regions)} alike regions" if len(kind.regions) > 1 else ""
    return f"{', '.join(rules)}: {time_text(kind.gain_ps, '+')}{alike}"


def pictures(what: Change) -> list[Safe]:
    """All kinds, as elements that unfold."""
    gone = sum(len(region.removed) for kind in what.kinds for region in kind.regions)
    new = sum(len(region.added) for kind in what.kinds for region in kind.regions)
    about = (
        f"{gone} operators went (red), {new} came (green), {operators(what.before).total() - gone} stayed. Only the "
        "neighbours of what changed are drawn (grey; with a broken line where another region changes them), ⋯ stands "
        "for a chain between them. Below its name is what an operator is estimated to cost; free is what runs within "
        "another one's kernel, or is folded."
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
