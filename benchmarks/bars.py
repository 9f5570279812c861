"""The bars of results in words: one by one, and grouped where they ask the same of several subjects."""

from collections.abc import Iterable

from benchmarks.harness import markdown

MOST = 4  # rows of one result on docs/RESULTS.md, unless more do not hold


def bars_table(bars: list[dict]) -> str:
    rows = [[bar["name"], with_unit(bar), bar["limit"], holding([bar])] for bar in bars]
    return markdown(["bar", "value", "limit", "holds"], rows)


def groups_table(bars: list[dict]) -> str:
    rows = []
    for what, group in groups_of(bars).items():
        limits = " or ".join(dict.fromkeys(bar["limit"] for bar in group))
        rows.append([what, worst(group), limits, holding(group)])
    return markdown(["bar", "worst value", "limit", "holds"], rows)


def groups_of(bars: list[dict]) -> dict[str, list[dict]]:
    """What is asked → its bars: "SUBJECT: WHAT" of every subject, and a bar without a subject by itself."""
    groups = {}
    for bar in bars:
        groups.setdefault(bar["name"].rpartition(": ")[2], []).append(bar)
    return groups


def alike(bars: list[dict]) -> list[list[dict]]:
    """Those with one limit, in one unit, together."""
    groups = {}
    for bar in bars:
        groups.setdefault((bar["limit"], bar["unit"]), []).append(bar)
    return list(groups.values())


def most_telling(bars: list[dict]) -> tuple[list[list[dict]], list[dict]]:
    """At most MOST groups that are alike, the first ones, with all that do not hold; and the bars of the others."""
    groups = alike(bars)
    if len(groups) <= MOST:
        return groups, []
    missed = [group for group in groups if not all_hold(group)]
    others = [group for group in groups if all_hold(group)]
    room = max(0, MOST - 1 - len(missed))
    shown = [group for group in groups if group in missed + others[:room]]
    return shown, [bar for group in others[room:] for bar in group]


def names_of(bars: list[dict]) -> str:
    return " · ".join(groups_of(bars))


def all_hold(bars: Iterable[dict]) -> bool:
    return all(bar["holds"] for bar in bars)


def holding(bars: list[dict]) -> str:
    """yes, **no**, "4 of 4", "**28 of 40**"."""
    if len(bars) == 1:
        return "yes" if bars[0]["holds"] else "**no**"
    text = f"{sum(bar['holds'] for bar in bars)} of {len(bars)}"
    return text if all_hold(bars) else f"**{text}**"


def worst(bars: list[dict]) -> str:
    """The value of those that do not hold, else of all, that is farthest to the limit's side; "–" where they differ and
    no order is known: the words of the limit have none, or a value was not reached.
    """
    bars = [bar for bar in bars if not bar["holds"]] or bars
    texts = {with_unit(bar) for bar in bars}
    limits = "".join(bar["limit"] for bar in bars)
    if len(texts) == 1:
        return texts.pop()
    if any(isinstance(bar["value"], str | None) for bar in bars) or ("≤" in limits) == ("≥" in limits):
        return "–"
    return with_unit((max if "≤" in limits else min)(bars, key=lambda bar: bar["value"]))


def with_unit(bar: dict) -> str:
    value = bar["value"]
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "–"}[value]
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    else:
        text = value
    return f"{text} {bar['unit']}".rstrip()
