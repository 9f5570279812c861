"""The report of a run as one HTML page: the gain, the steps, and the graph before and after where it changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlflow.common.files import write_text
from rlflow.env.state import RewriteState, Task
from rlflow.reports.charts import bar, heatmap, lines
from rlflow.reports.drawing import Drawing, draw, look, picture
from rlflow.reports.markdown import left_out_text, measured_text, summary_line
from rlflow.reports.markup import Safe, join, page, short, table, tag, time_text
from rlflow.reports.regions import Region, regions
from rlflow.reports.steps import Step, opened, trace

STEPS = 1000  # rows of a table of steps
BOXES = 2500  # operators that are drawn in all pictures
NOTE = (
    "Estimated is a sum of single-operator costs, measured is the end-to-end latency in ONNX Runtime. The two are "
    "never mixed."
)

SCRIPT = """
for (const slider of document.querySelectorAll('input[type=range]')) {
  const part = slider.closest('section'), rows = part.querySelectorAll('tbody tr');
  const marker = part.querySelector('.marker');
  const text = part.querySelector('output'), start = marker.dataset;
  slider.closest('label').hidden = false;
  slider.oninput = () => {
    rows.forEach((row, k) => row.classList.toggle('now', k + 1 == slider.value));
    const first = cell => cell.firstChild ? cell.firstChild.textContent : '';
    const cells = slider.value > 0 ? [...rows[slider.value - 1].cells].map(first) : null;
    text.textContent = cells
      ? `step ${cells[0]}: ${cells[1]} at ${cells[2]}, ${cells[3]} → ${cells[4]} ms` : 'the original';
    marker.setAttribute('transform', `translate(${+start.from + start.step * slider.value})`);
  };
}
"""


def write_html(folder: Path, results: dict, task: Task) -> Path:
    """Writes report.html into the folder: one file that needs no other and no network, and reads without scripts.

    Args:
      results: as `rlflow.reports.markdown.write_report` takes them, and `curves`: name → title → list of (step, value),
        of the trainings.
        The `eval` of them holds `actions`: candidate → (xfer_id, location) pairs.
      task: what these actions are of.
    """
    outcome = results["eval"]
    traces = {name: trace(task, actions) for name, actions in outcome["actions"].items()}
    best = shown_candidate(outcome)
    sections = [
        _headline(results["model"], outcome), _section("Candidates", _candidates(outcome)),
        _section(
            "What each step gained", _paths(outcome), _walk(best, traces[best][1], outcome["delivered"] == best),
            _others(traces, best),
        ),
        _section("The graph before and after", *_graph(task.initial, *traces[best])),
        _section("Rules applied", _rules(outcome)), _training(results["curves"]), _dream(outcome["dreamt"]),
        _section("Time", _times(results["stages"], outcome)),
        _section("Equality and receipt", _equality(outcome)), _section("Conditions", _conditions(results)),
    ]  # fmt: skip
    path = folder / "report.html"
    write_text(path, page(f"RLFlow: {results['model']}", *sections, script=SCRIPT))
    return path


def shown_candidate(outcome: dict) -> str:
    """Whose steps are shown first: what was delivered, else what had the lowest estimate."""
    candidates = outcome["candidates"]
    if outcome["delivered"] in candidates:
        return outcome["delivered"]
    return min(candidates, key=lambda name: candidates[name]["estimated_ms"])


def _section(title: str, *content) -> Safe:
    return tag("section", tag("h2", title), content)


def _headline(model: str, outcome: dict) -> Safe:
    delivered = outcome["candidates"].get(outcome["delivered"])
    measured = delivered and delivered["measured"]
    gain = f"{delivered['estimated_improvement_percent']:.2f} %" if delivered else "no gain"
    cards = [
        ("Estimated", gain, "lower sum of single-operator costs"),
        (
            "Measured",
            f"{100 * (1 - measured['ratio']):.2f} %" if measured else "–",
            measured_text(measured) if measured else "not measured",
        ),
        ("Delivered", short(outcome["delivered"]), outcome["reason"]),
    ]
    drawn = []
    for title, figure, text in cards:
        drawn.append(tag("div", title, tag("b", figure), tag("span", text, class_="faint"), class_="card"))
    return tag(
        "header", tag("h1", short(model)), tag("p", summary_line(outcome)), tag("div", drawn, class_="cards"),
        tag("p", NOTE, class_="faint"),
    )  # fmt: skip


def _candidates(outcome: dict) -> Safe:
    candidates = outcome["candidates"]
    gains = [candidate["estimated_improvement_percent"] for candidate in candidates.values()]
    largest = max(gains, default=0.0)
    rows = [["original", f"{outcome['original']['estimated_ms']:.4f}", "", "", "", "", "", "", "", ""]]
    for name, candidate in candidates.items():
        measured, gain = candidate["measured"], candidate["estimated_improvement_percent"]
        verdict = "the original" if candidate["same_as"] == "original" else "not measured"
        if measured:
            low, high = measured["interval"]
            verdict = f"{measured['verdict']}: {measured['ratio']:.3f} ({low:.3f} – {high:.3f})"
        equal = (
            tag("span", "equal", class_="good")
            if candidate["equal"]
            else tag("span", "NOT EQUAL, dropped", class_="bad")
        )
        rows.append([
            tag("b", name) if name == outcome["delivered"] else name, f"{candidate['estimated_ms']:.4f}",
            f"{gain:.2f} %", bar(gain, largest), verdict, equal,
            candidate["substitutions"], candidate["interactions"], f"{candidate['seconds']:.1f}",
            f"{candidate['peak_memory_bytes'] / 1e6:.3g}",
        ])  # fmt: skip
    head = (
        "found by", "estimated ms", "estimated gain", "", "measured, of the original's latency (95 % interval)",
        "checks", "rewrites",
        "real interactions", "seconds", "activations, MB",
    )  # fmt: skip
    learned, notes = candidates.get("controller"), ["Seconds are of acting or searching."]
    if learned:
        notes.append(
            "random is the best graph that random play of as many interactions met; greedy is steepest descent."
        )
        better = [name for name in candidates if candidates[name]["estimated_ms"] < learned["estimated_ms"]]
        notes += [f"Better than the learned controller here: {', '.join(better)}."] if better else []
    return join([table(head, rows, numbers=(1, 2, 6, 7, 8, 9)), tag("p", " ".join(notes), class_="faint")])


# -- steps -----------------------------------------------------------------------------------------


def _paths(outcome: dict) -> Safe:
    """The estimated runtime along the way of each candidate; the one whose steps follow comes first."""
    best = shown_candidate(outcome)
    names = [best, *(name for name in outcome["candidates"] if name != best)]
    series = {name: list(enumerate(outcome["candidates"][name]["path_ms"])) for name in names}
    return lines(series, "rewrites", "estimated runtime (ms)", marker=True)


def _walk(name: str, steps: Sequence[Step], delivered: bool) -> Safe:
    slider = tag("input", type="range", min=0, max=min(len(steps), STEPS), value=0, aria_label="step")
    label = tag("label", slider, tag("output", "the original"), hidden="hidden") if steps else None
    return join(
        [tag("p", f"The steps of {name}{', which is what was delivered' if delivered else ''}:"), label, _table(steps)]
    )


def _others(traces: dict[str, tuple[RewriteState, list[Step]]], best: str) -> list[Safe]:
    details = []
    for name, (_, steps) in traces.items():
        if name != best and steps:
            details.append(tag("details", tag("summary", f"The {len(steps)} steps of {name}"), _table(steps)))
    return details


def _table(steps: Sequence[Step]) -> Safe:
    if not steps:
        return tag("p", "No rewrite.")
    losses, first, rows = opened(steps), steps[0].before_ps, []
    for number, step in enumerate(steps[:STEPS]):
        rule = [step.rule, tag("div", step.why, class_="faint"), _loss(*losses[number]) if number in losses else None]
        cells = [
            number + 1, rule, short(step.position), f"{step.before_ps / 1e9:.6g}", f"{step.after_ps / 1e9:.6g}",
            time_text(step.gain_ps, "+"),
            f"{100 * (first - step.after_ps) / first:.3f} %" if first else "",
        ]  # fmt: skip
        rows.append(
            tag(
                "tr",
                [tag("td", cell, class_="n" if k in (0, 3, 4, 5, 6) else None) for k, cell in enumerate(cells)],
                class_="worse" if number in losses else None,
            )
        )
    head = ("step", "rule", "where", "before, ms", "after, ms", "gain", "in all")
    more = f"{len(steps) - STEPS} more are in the receipt." if len(steps) > STEPS else None
    return join(
        [tag("div", table(head, rows, numbers=(0, 3, 4, 5, 6)), class_="scroll"), tag("p", more) if more else None]
    )


def _loss(later: list[int], gain_ps: int) -> Safe:
    """What a step that made the graph slower led to."""
    named = ", ".join(str(number + 1) for number in later[:8]) + (" …" if len(later) > 8 else "")
    text = (
        f"slower first; the steps that needed it ({named}) gained {time_text(gain_ps, '+')}"
        if later
        else "slower, and no later step needed it"
    )
    return tag("div", text, class_="good" if gain_ps > 0 else "bad")


# -- the graph -------------------------------------------------------------------------------------


def _graph(before: RewriteState, after: RewriteState, steps: Sequence[Step]) -> list[Safe]:
    changed = regions(before, after, steps)
    gone, new = sum(len(region.removed) for region in changed), sum(len(region.added) for region in changed)
    kept = sum(not node.constant for node in before.graph.nodes.values()) - gone
    about = (
        f"{gone} operators went (red), {new} came (green), {kept} stayed. Only the neighbours of what changed are "
        "drawn (grey; with a broken line where another region changes them), ⋯ stands for a chain between them. Below "
        "its name is what an operator is estimated to cost; free is what runs within another one's kernel, or is "
        "folded."
    )
    drawings = [(region, draw(before, after, region)) for region in changed if region.removed or region.added]
    pictures, left = [], BOXES
    for alike in _alike(before, after, drawings):
        size = len(alike[0][1].kinds)
        drawn = size <= left
        left -= size if drawn else 0
        pictures.append(_details(before, after, alike, steps, drawn, unfolded=len(pictures) < 3))
    return [tag("p", about), *pictures]


def _alike(
    before: RewriteState, after: RewriteState, drawings: list[tuple[Region, Drawing]]
) -> list[list[tuple[Region, Drawing]]]:
    """The regions, those together that look the same; those first that gain most together."""
    result: dict[tuple, list] = {}
    for region, drawing in drawings:
        result.setdefault(look(before, after, drawing), []).append((region, drawing))
    return sorted(result.values(), key=lambda alike: -sum(region.gain_ps for region, _ in alike))


def _details(
    before: RewriteState, after: RewriteState, alike: list, steps: Sequence[Step], drawn: bool, unfolded: bool
) -> Safe:
    region, drawing = alike[0]
    rules = list(dict.fromkeys(steps[number].rule for number in region.steps))
    gain = sum(one.gain_ps for one, _ in alike)
    where = f"{len(alike)} alike regions, here the one at" if len(alike) > 1 else "at"
    summary = f"{', '.join(rules)}: {time_text(gain, '+')}, {where} {short(steps[region.steps[0]].position)}"
    numbers = ", ".join(str(number + 1) for one, _ in alike for number in one.steps)
    hidden = f" {region.hidden} more neighbours are not drawn." if region.hidden else ""
    content = (
        tag("div", picture(before, after, drawing), class_="scroll")
        if drawn
        else tag("p", "Not drawn: the page would be too large.")
    )
    caption = tag("figcaption", f"Steps {numbers}.{hidden}")
    return tag("details", tag("summary", summary), tag("figure", content, caption), open="open" if unfolded else None)


# -- the rest --------------------------------------------------------------------------------------


def _rules(outcome: dict) -> Safe:
    counts = {
        (rule, name): count for name, result in outcome["candidates"].items() for rule, count in result["rules"].items()
    }
    return (
        heatmap(sorted({rule for rule, _ in counts}), list(outcome["candidates"]), counts, "rule")
        if counts
        else tag("p", "None.")
    )


def learning_curves(curves: Mapping[str, Mapping[str, list]]) -> list[tuple[str, str, list]]:
    """(name, title, curve) of those that are longer than a point."""
    return [(name, title, curve) for name, of in curves.items() for title, curve in of.items() if len(curve) > 1]


def _training(curves: dict) -> Safe | None:
    charts: dict[str, dict[str, list]] = {}
    for name, title, curve in learning_curves(curves):
        charts.setdefault(title, {})[name] = curve
    drawn = [lines(named, "step", title) for title, named in charts.items()]
    return _section("Training", drawn) if drawn else None


def _dream(dreamt: list[dict]) -> Safe | None:
    rows = [[f"{one['temperature']:g}", f"{one['dreamt_return']:.3f}", f"{one['real_return']:.3f}"] for one in dreamt]
    head = ("temperature", "dreamt return", "real return of the greedy episode, over as many steps")
    return _section("Dream and reality", table(head, rows, numbers=(0, 1, 2))) if rows else None


def _times(stages: dict, outcome: dict) -> Safe:
    seconds = {f"stage {name}": stage["seconds"] for name, stage in stages.items()}
    seconds |= {f"finding the graph: {name}": result["seconds"] for name, result in outcome["candidates"].items()}
    largest = max(seconds.values(), default=0.0)
    return table(
        ("", "seconds", ""),
        [[name, f"{value:.1f}", bar(value, largest)] for name, value in seconds.items()],
        numbers=(1,),
    )


def _equality(outcome: dict) -> Safe:
    text = left_out_text(outcome)
    left_out = tag("p", text) if text else None
    if outcome["delivered"] == "original":
        return join([tag("p", "The original is returned unchanged."), left_out])
    findings = outcome["candidates"][outcome["delivered"]]["findings"]
    rows = [
        [f["kind"], tag("span", "ok", class_="good") if f["ok"] else tag("span", "FAILED", class_="bad"), f["message"]]
        for f in findings
    ]
    repeat = "python run.py replay receipt.json --model ORIGINAL.onnx --out AGAIN.onnx"
    note = tag("p", "receipt.json, beside this page, makes the same file again, byte for byte: ", tag("code", repeat))
    return join([table(("check", "result", ""), rows), left_out, note])


def _conditions(results: dict) -> Safe:
    rows = [["seed", results["seed"]], ["machine", results["machine"]], *results["versions"].items()]
    return table(("", ""), rows)


