"""Which candidates competed end to end, how they did, and what earlier measurements had a say in that."""

from collections.abc import Mapping

from rlflow.reports.markup import Safe, join, table, tag

HEAD = ("candidate", "sessions", "of the original's latency (median)")
ABOUT = (
    "Candidates that competed end to end: the worse half was dropped after each heat, and what came first was then "
    "checked and measured by other runs, which are those that count."
)


def contest_table(outcome: Mapping) -> Safe | None:
    rows = _rows(outcome)
    if not rows:
        return None
    return join([tag("p", f"{ABOUT}{_earlier(outcome)}", class_="faint"), table(HEAD, rows, numbers=(1, 2))])


def contest_markdown(outcome: Mapping) -> str:
    """With an empty line before it; empty where nothing competed."""
    rows = [f"| {' | '.join(row)} |" for row in _rows(outcome)]
    head = [f"{ABOUT}{_earlier(outcome)}", "", f"| {' | '.join(HEAD)} |", "| --- | ---: | ---: |"]
    return "\n".join(["", "", *head, *rows]) if rows else ""


def _rows(outcome: Mapping) -> list[tuple[str, str, str]]:
    return [(one["name"], str(one["draws"]), f"{one['ratio']:.3f}") for one in outcome.get("contest", [])]


def _earlier(outcome: Mapping) -> str:
    """What was known of families of rules before: the only way in which one run depends on those before it."""
    known = [f"{family} {ratio:.3f}" for family, ratio in outcome.get("known_families", {}).items()]
    if not known:
        return ""
    return (
        " Which of them took part was also decided by what was measured on this machine before: latency with the "
        f"rewrites of a family, of that without them: {', '.join(known)}."
    )
