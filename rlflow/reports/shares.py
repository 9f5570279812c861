"""What each group of alike rewrites does, as the pages of a run show it: estimated, and measured where it was."""

from collections.abc import Iterator, Mapping

from rlflow.reports.markup import Safe, join, table, tag, time_text

HEAD = ("rewrites", "estimated gain", "measured: of the latency without them (95 % interval)")
ABOUT = (
    "What the file gains by each group of alike rewrites: beside the same file without the group and what only the "
    "group made possible. Groups that need one another gain together: their gains do not add up to the whole."
)


def shares_table(outcome: Mapping) -> Safe | None:
    rows = [[tag("code", name), *rest] for name, *rest in _rows(outcome)]
    if not rows:
        return None
    return join([tag("p", ABOUT, class_="faint"), table(HEAD, rows, numbers=(1,))])


def shares_markdown(outcome: Mapping) -> str:
    """With an empty line before it; empty where nothing is known."""
    rows = [f"| `{name}` | {' | '.join(rest)} |" for name, *rest in _rows(outcome)]
    return "\n".join(["", "", ABOUT, "", f"| {' | '.join(HEAD)} |", "| --- | ---: | --- |", *rows]) if rows else ""


def _rows(outcome: Mapping) -> Iterator[tuple[str, str, str]]:
    for share in outcome.get("shares", []):  # older results lack them
        off, measured = share["off_ps"], share["measured"]
        estimated = time_text(share["gain_ps"], "+") + (f" ± {time_text(off)}" if off else "")
        low, high = measured["interval"] if measured else (0, 0)
        ratio = f"{measured['ratio']:.3f} ({low:.3f} – {high:.3f})" if measured else "not measured"
        yield f"{share['rule']} ×{share['count']}", estimated, ratio
