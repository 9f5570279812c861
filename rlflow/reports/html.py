"""Write the report of a run as one HTML page: the result first, then its reasons, and the conditions last.

The first screen states how much faster the model is, how certain that is, whether the outputs are equal, and what was
changed. The page is one file without scripts, and needs no network.
"""

import shlex
import time
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from rlflow.common.files import write_text
from rlflow.common.messages import program, shape_words
from rlflow.common.spending import spent_text
from rlflow.env.state import Task
from rlflow.optimisation.candidates import measurement_seconds
from rlflow.optimisation.choice import losses
from rlflow.optimisation.validate.findings import checks_text, equal_sizes_text, fixed_text, verdict
from rlflow.reports import charts
from rlflow.reports.changes import Change, change, first_drawing, operators_text, pictures
from rlflow.reports.markup import Safe, join, page, row, short, table, tag, time_text
from rlflow.reports.regions import RuleGain, Step, by_rule, opened_gains, trace
from rlflow.reports.sentences import (
    EXPERIMENTS_HEAD,
    RETURNS_PICTURE,
    SAME,
    at_sizes_text,
    contest_table,
    dequantised_text,
    experiment_rows,
    left_out_text,
    one_thread_text,
    path_figure,
    ratio_text,
    returns_figure,
    rule_figure,
    session_code,
    session_text,
    shares_table,
    verdict_text,
    widened_text,
)
from rlflow.zoo import ZOO

FIRST_RULES = 5  # maximum number of rules that the first screen lists


def answer(model: str, outcome: dict, name: str) -> Safe:
    """Return the head of the page: the gain in one line, and cards for certainty, equality and estimated gain.

    Args:
      model: the name of the model.
      outcome: the result of the stage `eval` (`rlflow.optimisation.delivery.deliver`).
      name: the name of the candidate that the page describes, see `shown_candidate`.
    """
    candidate = outcome["candidates"][name]
    cards = [
        ("How sure", *_certainty_card(candidate)),
        ("Equal", *_equality_card(candidate)),
        (
            "Estimated", f"{candidate['estimated_improvement_percent']:.1f} %",
            "less time, a sum of single-operator costs", None,
        ),
    ]
    drawn = [
        tag("div", title, tag("b", figure, class_=mood), tag("span", text, class_="faint"), class_="card")
        for title, figure, text, mood in cards
    ]
    line, about, mood = _answer_line(outcome, candidate, name)
    return tag(
        "header", tag("h1", short(model)), tag("p", line, class_=f"answer {mood}".strip()), tag("p", about),
        _one_thread_note(outcome), _precision_note(outcome), tag("div", drawn, class_="cards"), id="answer",
    )  # fmt: skip


def _answer_line(outcome: dict, candidate: dict, name: str) -> tuple[str, str, str]:
    """Return (the result in a few words, a sentence with its evidence, its CSS class)."""
    measured = candidate["measured"]
    if outcome["delivered"] == "original":
        whose = f" The figures below belong to {name}, which was not delivered."
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


def _one_thread_note(outcome: dict) -> Safe | None:
    """Return a sentence about the latency of the delivered file with one thread, or None if it was not measured."""
    text = one_thread_text(outcome)
    if text is None:
        return None
    mood = "bad" if losses(outcome["measured_one_thread"]) else "faint"
    return tag("p", f"{text[0].upper()}{text[1:]}.", class_=mood)


def _precision_note(outcome: dict) -> Safe | None:
    """Return a sentence about a model of low precision that computes in float32, or would be faster so, or None."""
    text, offered = widened_text(outcome), dequantised_text(outcome)
    said = f"The file {text}." if text else offered and f"{offered[0].upper()}{offered[1:]}"
    return said and tag("p", said, class_="faint")


def _session(outcome: dict) -> Safe | None:
    """Return the section about session options of the delivered file, or None if none were measured."""
    text, code = session_text(outcome), session_code(outcome)
    if text is None:
        return None
    return _section("Session options", tag("p", f"{text[0].upper()}{text[1:]}"), tag("pre", code) if code else None)


def _certainty_card(candidate: dict) -> tuple[str, str, str | None]:
    """Return (the 95 % interval of the saved time in percent, as text; its explanation; its CSS class or None)."""
    measured = candidate["measured"]
    if not measured:
        return "–", "not measured", None
    low, high = measured["interval"]
    apart = "" if measured["side_by_side"] else "; sessions one after the other: large models"
    return f"{_percent(high)}–{_percent(low)} %", f"less time: 95 % interval, {low:.3f} – {high:.3f}{apart}", None


def _percent(ratio: float) -> str:
    return f"{100 * (1 - ratio):.1f}".replace("-", "−")


def _equality_card(candidate: dict) -> tuple[str, str, str]:
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


def at_a_glance(what: Change) -> Safe:
    """Return the section "What was changed": numbers of operators, the rules that gained most, and one drawing."""
    if not what.steps:
        return tag("section", tag("h2", "What was changed"), tag("p", "No rewrite."), class_="glance", id="rewrites")
    groups = by_rule(what.steps)
    more = f" {len(groups) - FIRST_RULES} more rules are below." if len(groups) > FIRST_RULES else ""
    note = tag("p", f"Gains in time are estimated.{more}", class_="faint")
    grouped = [
        tag("p", operators_text(what)),
        tag("ul", map(_rule_item, groups[:FIRST_RULES]), class_="rewrites"),
        note,
    ]
    return tag(
        "section", tag("h2", f"What was changed: {len(what.steps)} rewrites"), tag("div", grouped, id="rewrites"),
        first_drawing(what), class_="glance",
    )  # fmt: skip


def _rule_item(group: RuleGain) -> Safe:
    gain = tag("span", time_text(group.gain_ps, "+"), class_="faint")
    return tag("li", tag("span", tag("code", group.rule), tag("b", f" ×{group.count}")), gain)


MOODS = {"ok": "good", "FAILED": "bad", "not compared": "faint"}
TRACE_SECONDS = 3.0  # time for replaying the rewrites of all candidates, which are thousands in the deepest graphs
STEPS = 1000  # maximum number of rows in a table of steps
NOTE = (
    "Estimated is a sum of single-operator costs, measured is the end-to-end latency in ONNX Runtime. The two are "
    "never mixed."
)


def write_html(folder: Path, results: dict, task: Task) -> Path:
    """Write report.html into the folder and return its path. The file needs no other file, no network and no script.

    The chart of dreamt and real returns is also written alone, as RETURNS_PICTURE, if controllers were trained.

    Args:
      folder: the folder for the files.
      results: a dict of `stages` (name of a stage before eval → its results), `eval` (the result of
        `rlflow.optimisation.delivery.deliver`), `model`, `seed`, `machine`, `versions`, `curves` (name of a training →
        title → list of (step, value)), and `shapes`, `fix` and `threads` for the commands at the end of the page.
      task: the rewriting task, in which the actions of the candidates are replayed.
    """
    outcome, model = results["eval"], Path(results["model"]).name
    best, end = shown_candidate(outcome), time.monotonic() + TRACE_SECONDS
    names = sorted(outcome["actions"], key=lambda name: name != best)  # the shown candidate comes first
    traces = {name: trace(task, outcome["actions"][name], end) for name in names}
    what = change(task.initial, *traces[best])
    rewrites, shown = len(outcome["actions"][best]), len(what.steps)
    others = [_folded_steps(name, steps) for name, (_, steps) in traces.items() if name != best and steps]
    sections = [
        answer(model, outcome, best), at_a_glance(what),
        _section(
            "Where the gains come from", shares_table(outcome), _gains(best, what.steps),
            tag("p", f"This page shows the first {shown:,} of {rewrites:,} rewrites. The receipt lists all of them.")
            if shown < rewrites else None,
        ),
        _section("The graph before and after", *pictures(what)) if what.kinds else None,
        _section("How each candidate did", *_candidates(outcome), contest_table(outcome), others),
        _training(results["curves"], outcome), _session(outcome),
        _section("Time", _times(results["stages"], outcome)),
        _section("Equality", _equality(outcome)), _section("Conditions", _conditions(results)),
        _section("What to do next", _next_commands(results)),
    ]  # fmt: skip
    if outcome["experiments"]:
        charts.save(returns_figure(outcome), folder / RETURNS_PICTURE)
    path = folder / "report.html"
    write_text(path, page(f"RLFlow: {model}", *sections))
    return path


def shown_candidate(outcome: dict) -> str:
    """Return the name of the candidate that the page describes.

    This is the delivered candidate, or the candidate with the lowest estimated runtime if the original is delivered.
    """
    candidates = outcome["candidates"]
    if outcome["delivered"] in candidates:
        return outcome["delivered"]
    return min(candidates, key=lambda name: candidates[name]["estimated_ms"])


def _section(title: str, *content) -> Safe:
    return tag("section", tag("h2", title), content)


# -- steps -----------------------------------------------------------------------------------------


def _gains(name: str, steps: Sequence[Step]) -> Safe:
    """Return a table of a candidate's gains by rule, and a foldable table of its steps one by one."""
    if not steps:
        return tag("p", "No rewrite.")
    rows = [
        [[tag("code", one.rule), tag("div", one.why, class_="faint")], f"×{one.count}", time_text(one.gain_ps, "+")]
        for one in by_rule(steps)
    ]
    about = (
        "Estimated gains by rule, which add up to the total. One rule may have made another rule's gain possible."
    )
    grouped = table(("rule and purpose", "rewrites", "gain"), rows, numbers=(1, 2))
    return join([tag("p", about, class_="faint"), grouped, _folded_steps(name, steps)])


def _folded_steps(name: str, steps: Sequence[Step]) -> Safe:
    return tag("details", tag("summary", f"The {len(steps)} steps of {name}, one by one"), _one_by_one(steps))


def _one_by_one(steps: Sequence[Step]) -> Safe:
    head = ("step", "rule", "where", "before, ms", "after, ms", "gain", "in all")
    losses, first, rows = opened_gains(steps), steps[0].before_ps, []
    for number, step in enumerate(steps[:STEPS]):
        loss = _loss(*losses[number]) if number in losses else None
        cells = [
            number + 1, tag("div", step.rule, tag("div", step.why, class_="faint"), loss), short(step.position),
            f"{step.before_ps / 1e9:.6g}", f"{step.after_ps / 1e9:.6g}", time_text(step.gain_ps, "+"),
            f"{100 * (first - step.after_ps) / first:.3f} %" if first else "",
        ]  # fmt: skip
        rows.append(row(head, cells, numbers=(0, 3, 4, 5, 6), class_="worse" if loss else None))
    more = tag("p", f"{len(steps) - STEPS} more are in the receipt.") if len(steps) > STEPS else None
    return join([table(head, rows, numbers=(0, 3, 4, 5, 6)), more])


def _loss(later: list[int], gain_ps: int) -> Safe:
    """Return a sentence about a step that made the graph slower: which later steps needed it, and their total gain.

    Args:
      later: numbers of these later steps, counted from 0.
      gain_ps: the sum of their gains in ps.
    """
    text = "slower, and no later step needed it"
    if later:
        named = ", ".join(str(number + 1) for number in later[:8]) + (" …" if len(later) > 8 else "")
        text = f"slower first; the steps that needed it ({named}) gained {time_text(gain_ps, '+')}"
    return tag("div", text, class_="good" if gain_ps > 0 else "bad")


# -- candidates ------------------------------------------------------------------------------------


def _candidates(outcome: dict) -> list[Safe | None]:
    candidates, head = outcome["candidates"], (
        "found by", "estimated ms", "estimated gain", "measured", "latency relative to the original (95 % interval)",
        "checks", "rewrites", "real interactions", "seconds", "seconds of measured rewards", "activations, MB",
    )  # fmt: skip
    rows = [["original", f"{outcome['original']['estimated_ms']:.4f}", *[""] * (len(head) - 2)]]
    for name, candidate in candidates.items():
        text, mood = ("equal", "good") if candidate["equal"] else ("NOT EQUAL, dropped", "bad")
        rows.append([
            tag("b", name) if name == outcome["delivered"] else name, f"{candidate['estimated_ms']:.4f}",
            f"{candidate['estimated_improvement_percent']:.2f} %", *_measurement_cells(candidate),
            tag("span", text, class_=mood), candidate["substitutions"], candidate["interactions"],
            f"{candidate['seconds']:.1f}", f"{measurement_seconds(candidate):.1f}",
            f"{candidate['peak_memory_bytes'] / 1e6:.3g}",
        ])  # fmt: skip
    about = "estimated runtime after each rewrite of each candidate"
    drawn = [tag("figure", charts.svg(path_figure(candidates), "paths", about))]
    rules = rule_figure(candidates)
    if rules is not None:
        drawn.append(tag("figure", charts.svg(rules, "rules", "how often each candidate applied each rule")))
    return [
        tag("p", f"Delivered: {outcome['delivered']}, for this reason: {outcome['reason']}. {NOTE}"),
        table(head, rows, numbers=(1, 2, 6, 7, 8, 9, 10)), tag("p", _controls_note(candidates), class_="faint"),
        tag("div", drawn, class_="charts"),
    ]  # fmt: skip


def _measurement_cells(candidate: dict) -> tuple[str, str]:
    """Return (the verdict of a candidate's measurement, the latency ratio with its interval), both as text."""
    measured = candidate["measured"]
    if not measured:
        return "the original" if candidate["same_as"] == "original" else "not measured", ""
    return verdict_text(measured), ratio_text(measured)


def _controls_note(candidates: dict) -> str:
    notes, learned = ["Seconds count acting or searching."], candidates.get("controller")
    if learned:
        notes.append("random is the best graph of random play with as many interactions; greedy is steepest descent.")
        better = [name for name in candidates if candidates[name]["estimated_ms"] < learned["estimated_ms"]]
        notes += [f"Better than the learned controller here: {', '.join(better)}."] if better else []
    return " ".join(notes)


# -- the rest --------------------------------------------------------------------------------------


def learning_curves(curves: Mapping[str, Mapping[str, list]]) -> list[tuple[str, str, list]]:
    """Return (name of the training, title, points with finite values) for each curve with at least two such points.

    Args:
      curves: name of a training → title → curve, a list of (step, value).
    """
    every = [(name, title, curve) for name, of in curves.items() for title, curve in of.items()]
    known = [(name, title, [point for point in curve if isfinite(point[1])]) for name, title, curve in every]
    return [one for one in known if len(one[2]) > 1]


def _training(curves: dict, outcome: dict) -> Safe | None:
    trained = outcome["experiments"]
    named: dict[str, dict[str, list]] = {}
    for name, title, curve in learning_curves(curves):
        named.setdefault(title, {})[name] = curve
    drawn = []
    for number, (title, of) in enumerate(named.items()):
        drawn.append(tag("figure", tag("h3", title), charts.svg(charts.curve(of, title), f"curve-{number}", title)))
    experiments = None
    if trained:
        experiments = table(EXPERIMENTS_HEAD, experiment_rows(outcome), numbers=range(1, len(EXPERIMENTS_HEAD)))
        about = "return of one episode: dreamt, real, and of the controls"
        picture = charts.svg(returns_figure(outcome), "returns", about)
        drawn.insert(0, tag("figure", tag("h3", "Dreamt and real returns"), picture))
    content = [tag("div", drawn, class_="charts") if drawn else None, experiments]
    return _section("Training: dream and reality", *content) if drawn or trained else None


def _times(stages: dict, outcome: dict) -> Safe:
    seconds = {f"stage {name}": stage["seconds"] for name, stage in stages.items()}
    seconds |= {f"finding the graph: {name}": result["seconds"] for name, result in outcome["candidates"].items()}
    figure = tag("figure", charts.svg(charts.bars(seconds, "seconds"), "seconds", "seconds of each stage and search"))
    spent = outcome.get("spent")  # older results and other commands lack it
    if not spent:
        return figure
    return join([tag("p", f"Where the seconds of the command went until this report: {spent_text(spent)}."), figure])


def _equality(outcome: dict) -> Safe:
    text = left_out_text(outcome)
    left_out = tag("p", text) if text else None
    if outcome["delivered"] == "original":
        return join([tag("p", "The original is returned unchanged."), left_out])
    rows = []
    for finding in outcome["candidates"][outcome["delivered"]]["findings"]:
        result = verdict(finding)
        rows.append([finding["kind"], tag("span", result, class_=MOODS[result]), finding["message"]])
    return join([table(("check", "result", "finding"), rows), left_out])


def _conditions(results: dict) -> Safe:
    rows = [[name, results[name]] for name in ("seed", "threads", "machine")] + list(results["versions"].items())
    return table(("what", "which"), rows)


def _next_commands(results: dict) -> list[Safe]:
    """Return the suggested next commands, each with a heading.

    ORIGINAL.onnx replaces the path of a model that is not in the zoo, since the page may be read on another machine.
    """
    name = results["model"] if results["model"] in ZOO else "ORIGINAL.onnx"
    sizes = shape_words(results["shapes"], results["fix"])
    model = shlex.join([name, *sizes])
    again = shlex.join(["optimise", name, "--out", "FASTER.onnx", "--threads", str(results["threads"]), *sizes])
    commands = {
        "Search longer:": f"{program()} {again} --seconds 600",
        "Let a controller learn in the dream, too:": f"{program()} {again} --learn",
        "Bound the distance from the best graph (small graphs):": f"{program()} bound --model {model}",
    }
    if results["eval"]["delivered"] != "original":
        made = "Make the same file again, byte for byte, from receipt.json beside this page:"
        replay = {made: f"{program()} replay receipt.json --model ORIGINAL.onnx --out AGAIN.onnx"}
        commands = replay | commands
    return [join([tag("div", why), tag("pre", tag("code", command))]) for why, command in commands.items()]
