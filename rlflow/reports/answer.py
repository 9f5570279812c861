"""The first screen of a run's page: how much faster, how sure, is it equal, and what was changed."""

from rlflow.deliver.choice import losses
from rlflow.deliver.validate.findings import checks_text, equal_sizes_text, fixed_text
from rlflow.reports.changes import Change, operators_text, telling
from rlflow.reports.markdown import SAME, at_sizes_text, one_thread_text, verdict_text
from rlflow.reports.markup import Safe, short, tag, time_text
from rlflow.reports.steps import RuleGain, by_rule

RULES = 5  # that the first screen names


def answer(model: str, outcome: dict, name: str) -> Safe:
    """name: of the candidate that the page shows: what was delivered, or the best of those that were not."""
    candidate = outcome["candidates"][name]
    cards = [("How sure", *_sure(candidate)), ("Equal", *_equal(candidate)), ("Estimated", *_estimated(candidate))]
    drawn = [
        tag("div", title, tag("b", figure, class_=mood), tag("span", text, class_="faint"), class_="card")
        for title, figure, text, mood in cards
    ]
    line, about, mood = _line(outcome, candidate, name)
    return tag(
        "header", tag("h1", short(model)), tag("p", line, class_=f"answer {mood}".strip()), tag("p", about),
        _one_thread(outcome), tag("div", drawn, class_="cards"), id="answer",
    )  # fmt: skip


def _line(outcome: dict, candidate: dict, name: str) -> tuple[str, str, str]:
    """The answer in a few words, a sentence about it, and its class."""
    measured = candidate["measured"]
    if outcome["delivered"] == "original":
        whose = f" The figures below are those of {name}, which was not delivered."
        beside = whose if candidate["substitutions"] else ""
        return "No gain: the original is returned", f"Why: {outcome['reason']}.{beside}", ""
    if not measured:
        text = f"Estimated: {candidate['estimated_improvement_percent']:.1f} % less time"
        where = f" It is an estimate for {outcome['target']}." if outcome.get("target") else ""
        return text, f"It was not measured.{where} Found by {name}.", ""
    about = (
        f"Measured: {measured['original_ms']:.2f} → {measured['candidate_ms']:.2f} ms end to end in ONNX Runtime, "
        f"{measured['ratio']:.3f} of the original's latency{at_sizes_text(measured)}. Found by {name}."
    )
    if measured["verdict"] == "faster":
        return f"{_percent(measured['ratio'])} % less time", about, "good"
    return verdict_text(measured).capitalize(), f"{about} Delivered for this reason: {outcome['reason']}.", ""


def _one_thread(outcome: dict) -> Safe | None:
    text = one_thread_text(outcome)
    if text is None:
        return None
    mood = "bad" if losses(outcome["measured_one_thread"]) else "faint"
    return tag("p", f"{text[0].upper()}{text[1:]}.", class_=mood)


def _sure(candidate: dict) -> tuple[str, str, str | None]:
    """The 95 % interval, as time that is saved."""
    measured = candidate["measured"]
    if not measured:
        return "–", "not measured", None
    low, high = measured["interval"]
    apart = "" if measured["side_by_side"] else "; sessions one after the other: large models"
    return f"{_percent(high)}–{_percent(low)} %", f"less time: 95 % interval, {low:.3f} – {high:.3f}{apart}", None


def _percent(ratio: float) -> str:
    return f"{100 * (1 - ratio):.1f}".replace("-", "−")


def _equal(candidate: dict) -> tuple[str, str, str]:
    checks = candidate["findings"]
    if not candidate["equal"]:
        failed = sum(not finding["ok"] for finding in checks)
        return "no, dropped", f"{failed} of {len(checks)} checks failed", "bad"
    if candidate["same_as"] == "original":
        return "yes", SAME, "good"
    error = candidate["max_relative_error"]
    known = f", largest relative error {error:.1e}" if isinstance(error, float) else ""
    parts = (checks_text(checks) + known, equal_sizes_text(checks), fixed_text(checks))
    return "yes", "; ".join(filter(None, parts)), "good"


def _estimated(candidate: dict) -> tuple[str, str, None]:
    return f"{candidate['estimated_improvement_percent']:.1f} %", "less time, a sum of single-operator costs", None


def at_a_glance(what: Change) -> Safe:
    """The rewrites, grouped, and one drawing."""
    if not what.steps:
        return tag("section", tag("h2", "What was changed"), tag("p", "No rewrite."), class_="glance", id="rewrites")
    groups = by_rule(what.steps)
    more = f" {len(groups) - RULES} more rules are below." if len(groups) > RULES else ""
    note = tag("p", f"Gains in time are estimated.{more}", class_="faint")
    grouped = [tag("p", operators_text(what)), tag("ul", map(_item, groups[:RULES]), class_="rewrites"), note]
    return tag(
        "section", tag("h2", f"What was changed: {len(what.steps)} rewrites"), tag("div", grouped, id="rewrites"),
        telling(what), class_="glance",
    )  # fmt: skip


def _item(group: RuleGain) -> Safe:
    gain = tag("span", time_text(group.gain_ps, "+"), class_="faint")
    return tag("li", tag("span", tag("code", group.rule), tag("b", f" ×{group.count}")), gain)
