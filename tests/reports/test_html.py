"""Test the HTML page of a run: it draws changes, states the results, and treats names from a model as plain text."""

import json
import re
import threading
from html.parser import HTMLParser
from math import inf, isnan, nan
from pathlib import Path

import numpy as np
import onnx
import pytest

import rlflow.reports.changes as changes
import rlflow.reports.html as html_report
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.reports import charts
from rlflow.reports.changes import change, draw, operators
from rlflow.reports.html import learning_curves, write_html
from rlflow.reports.markup import VOID, Safe, tag
from rlflow.reports.regions import Step, by_rule, groups, opened_gains, regions, shown, trace
from rlflow.search.descents import greedy
from rlflow.zoo import load
from tests.conftest import BLANK
from tests.suite import at_night, slow
from tests.toys.tiny import tiny_task

MODELS = ("tiny_resnet50", "tiny_bert_base", "tiny_inception_v3")


class Page(HTMLParser):
    """The elements of a page, each (name, attributes, all text in it); the constructor fails if a tag stays open."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self._open, self.texts = [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes), []))
        if name not in VOID:
            self._open.append(self.elements[-1])

    def handle_data(self, data):
        for element in self._open:
            element[2].append(data)

    def handle_endtag(self, name):
        assert self._open.pop()[0] == name

    def all(self, name: str, **attributes) -> list[tuple[dict, str]]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [(a, "".join(text)) for n, a, text in self.elements if n == name and wanted.items() <= a.items()]


def walk(task: Task, steps: int, seed: int) -> list[tuple[int, int]]:
    """Return a random sequence of valid actions."""
    rng, state, actions = np.random.default_rng(seed), task.initial, []
    for _ in range(steps):
        valid = state.valid_actions()[:-1]
        actions.append(tuple(map(int, valid[rng.integers(len(valid))])))
        state = state.apply(*actions[-1])
    return actions


def results_of(task: Task, result: dict[str, list[tuple[int, int]]], model: str = "a model") -> dict:
    """Return the results that `eval` writes for these sequences, without measurements."""
    candidates = {}
    for name, actions in result.items():
        end, steps = trace(task, actions)
        before = task.initial.runtime_ms
        candidates[name] = {
            "estimated_ms": end.runtime_ms, "estimated_improvement_percent": 100 * (1 - end.runtime_ms / before),
            "substitutions": len(actions),
            "rules": {step.rule: sum(s.rule == step.rule for s in steps) for step in steps}, "interactions": 123,
            "seconds": 4.5,
            "peak_memory_bytes": 6_780_000, "path_ms": [before, *(step.after_ps / 1e9 for step in steps)],
            "same_as": None, "equal": True,
            "max_relative_error": 0.0,
            "findings": [{"kind": "numerics", "ok": True, "message": "all outputs agree", "value": 0.0}],
            "measured": None,
            "left_out": [],
        }  # fmt: skip
    best = min(candidates, key=lambda name: candidates[name]["estimated_ms"])
    outcome = {
        "original": {"estimated_ms": task.initial.runtime_ms}, "candidates": candidates, "delivered": best,
        "reason": "lowest estimate", "actions": result,
        "optimised": "optimised.onnx", "experiments": [{
            "experiment": "ppo", "training": "ppo-1", "temperature": 1.0, "trained_return": 9.876, "real_return": 5.432,
            "cost": 1.0,
        }],
    }  # fmt: skip
    stages = {"collect": {"seconds": 6.7}, "eval": {"seconds": 8.9}}
    curves = {"ppo-1": {"mean_return": [(0, 1.0), (10, 2.0), (20, float("nan"))]}}
    return {
        "model": model,
        "seed": 7,
        "eval": outcome,
        "stages": stages,
        "machine": "a machine",
        "versions": {"onnx": "1.0"},
        "curves": curves,
        "shapes": {},
        "fix": False,
        "threads": 1,
    }


def page_of(folder: Path, task: Task, result: dict, model: str = "a model") -> tuple[Page, str]:
    text = write_html(folder, results_of(task, result, model), task).read_text()
    return Page(text), text


# -- steps and regions -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_changed_node_lies_in_exactly_one_region(name, seed):
    task = tiny_task(name)
    before = task.initial
    after, steps = trace(task, walk(task, 25, seed))
    result = regions(before, after, steps)
    gone = sorted(n for region in result for n in region.removed)
    new = sorted(n for region in result for n in region.added)
    assert gone == sorted(n for n in before.graph.nodes if shown(before.graph, n) and n not in after.graph.nodes)
    assert new == sorted(n for n in after.graph.nodes if shown(after.graph, n) and n not in before.graph.nodes)
    assert sorted(number for region in result for number in region.steps) == list(range(len(steps)))
    assert sum(region.gain_ps for region in result) == before.cost.runtime_ps - after.cost.runtime_ps


@pytest.mark.parametrize("name", [MODELS[0], *slow(*MODELS[1:])])
def test_a_step_without_dependencies_could_be_the_first(name):
    task = tiny_task(name)
    at_first = {(match.xfer_id, match.nodes) for match in task.initial.table.all_matches()}
    for seed in range(4):
        actions, state = walk(task, 25, seed), task.initial
        _, steps = trace(task, actions)
        assert any(step.needs for step in steps)
        for (xfer_id, location), step in zip(actions, steps, strict=True):
            match = state.table.location(xfer_id, location)
            assert step.needs or (xfer_id, match.nodes) in at_first
            assert {
                number for number, earlier in enumerate(steps) if earlier.added & {*match.nodes, *step.removed}
            } <= step.needs
            state = state.follow(match)


def test_a_step_depends_on_the_steps_that_made_or_joined_its_operators():
    """A step depends on steps that made its operators or brought them together.

    Two Negs cancel once the Identity between them is removed. This brings two other Negs together, although no operator
    is new.
    """
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) {
            a = Neg(x) b = Neg(a) c = Identity(b) d = Neg(c) e = Identity(d) f = Neg(e) y = Relu(f) }""")
    rules = tiny_task().rules
    task = Task(load_graph(model), rules, tiny_task().cost)
    state, actions = task.initial, []
    for rule in ("identity", "identity", "neg-neg", "neg-neg"):
        actions.append((rules.index(rule), 0))
        state = state.apply(*actions[-1])
    steps = trace(task, actions)[1]
    assert [node.op for node in state.graph.nodes.values()] == ["Relu"] and not any(step.added for step in steps)
    assert not steps[0].needs and not steps[1].needs and any(step.needs for step in steps[2:])


def step(gain: int, needs: tuple = ()) -> Step:
    return Step("rule", "why", "where", 0, -gain, frozenset(), frozenset(), frozenset(needs))


def test_a_loss_opens_the_gains_of_all_steps_that_depend_on_the_loss():
    steps = [step(5), step(-3), step(7, (1,)), step(100), step(11, (0, 2)), step(-1)]
    assert opened_gains(steps) == {1: ([2, 4], 18), 5: ([], 0)}
    assert groups(steps) == [[0, 1, 2, 4], [3], [5]]


def test_groups_of_steps_hold_every_step_once_with_the_greatest_gain_first():
    steps = [step(5), step(-3)._replace(rule="other"), step(7), step(0)._replace(rule="another")]
    assert [(one.rule, one.count, one.gain_ps) for one in by_rule(steps)] == [
        ("rule", 2, 12), ("another", 1, 0), ("other", 1, -3)
    ]  # fmt: skip


def test_exactly_the_changes_of_a_known_rewrite_are_drawn(tmp_path):
    """A BatchNormalization is merged into its convolution: two operators are removed and one replaces them."""
    task = tiny_task("tiny_resnet18")
    action = (task.rules.index("conv-batchnorm"), 1)
    page, _ = page_of(tmp_path, task, {"greedy": [action]})
    labels = [sorted(title for _, title in page.all("g", class_=kind)) for kind in ("removed", "added")]
    assert [len(result) for result in labels] == [4, 2]  # each is drawn in the overview and among all changes
    assert "BatchNormalization" in labels[0][0] and "Conv" in labels[0][2] and "Conv" in labels[1][0]
    assert "2 operators were removed (red), 1 were added (green)" in "".join(text for _, text in page.all("section"))


@pytest.mark.parametrize("name", MODELS)
def test_unchanged_nodes_keep_their_position_and_no_two_boxes_overlap(name):
    task = tiny_task(name)
    before = task.initial
    after, steps = trace(task, walk(task, 25, 2))
    compared = 0
    for region in regions(before, after, steps):
        drawing = draw(before, after, region)
        assert drawing.positions.keys() == drawing.kinds.keys() == region.removed | region.added | region.around
        for state, links in ((before, drawing.before), (after, drawing.after)):
            seen = [drawing.positions[n] for n in drawing.kinds if n in state.graph.nodes]
            assert len(set(seen)) == len(seen)
            assert all(
                other == position or other[1] != position[1] or abs(other[0] - position[0]) >= 1
                for other in seen
                for position in seen
            )
            assert all(e.source in state.graph.nodes and e.target in state.graph.nodes for e in links)
            assert all(drawing.positions[e.source][1] < drawing.positions[e.target][1] for e in links)
            compared += len(seen) > 1 and len(links) > 0
    assert compared


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> Task:
    return tiny_task(at_night("tiny_resnet50", "tiny_resnet18"))


@pytest.fixture(scope="module")
def result(task) -> dict:
    return {
        "controller": walk(task, 20, 3),
        "greedy": [tuple(map(int, a)) for a in greedy(task.initial, 100, 60.0).actions],
        "random": [],
    }


@pytest.fixture
def without_charts(monkeypatch):
    """Leave charts blank in tests that look at other parts of many pages."""
    monkeypatch.setattr(charts, "rendered", lambda figure, format, **_: BLANK[format])


@pytest.fixture(scope="module")
def page(tmp_path_factory, task, result) -> tuple[Page, str]:
    """Return (the parsed page of `result`, its text)."""
    return page_of(tmp_path_factory.mktemp("page"), task, result)


def test_all_steps_are_listed_on_the_page_in_foldable_sections(page, task, result):
    page, _ = page
    unfolding = [text for _, text in page.all("details")]
    for name, actions in result.items():
        _, steps = trace(task, actions)
        assert sum(text.startswith(f"The {len(steps)} steps of {name}") for text in unfolding) == (len(steps) > 0)
        for number, step in enumerate(steps):
            cells = (f"{number + 1}{step.rule}{step.why}", f"{step.before_ps / 1e9:.6g}{step.after_ps / 1e9:.6g}")
            assert any(row.startswith(cells[0]) and cells[1] in row for _, row in page.all("tr")), step
    losses = [s for actions in result.values() for s in trace(task, actions)[1] if s.gain_ps < 0]
    assert losses and len(page.all("tr", class_="worse")) == len(losses)
    assert all("slower" in row for _, row in page.all("tr", class_="worse"))


def test_rewrites_are_grouped_and_their_gains_add_up(page, task, result):
    page, _ = page
    after, steps = trace(task, result["greedy"])
    grouped = by_rule(steps)
    rows, items = ([text for _, text in page.all(name)] for name in ("tr", "li"))
    assert sum(one.gain_ps for one in grouped) == task.initial.cost.runtime_ps - after.cost.runtime_ps
    assert sum(one.count for one in grouped) == len(steps) > len(grouped) > 1
    for position, one in enumerate(grouped):
        assert any(row.startswith(f"{one.rule}{one.why}×{one.count}") for row in rows)
        assert any(item.startswith(f"{one.rule} ×{one.count}") for item in items) == (position < len(items))
    before, now = operators(task.initial), operators(after)
    (glance,) = [text for _, text in page.all("div", id="rewrites")]
    assert f"Operators {before.total()} → {now.total()}: " in glance


@pytest.mark.usefixtures("without_charts")
def test_the_first_drawing_shows_the_greatest_gain_that_is_small_enough_to_read(tmp_path, task, result, monkeypatch):
    what = change(task.initial, *trace(task, result["greedy"]))
    assert [kind.gain_ps for kind in what.kinds] == sorted((kind.gain_ps for kind in what.kinds), reverse=True)

    def drawn() -> str:
        (text,) = [text for _, text in page_of(tmp_path, task, result)[0].all("figure", class_="telling")]
        return text

    columns, rows = zip(*(kind.drawing.size for kind in what.kinds), strict=True)
    assert min(rows) < max(rows)
    for limit in (max(rows), min(rows)):
        monkeypatch.setattr(changes, "FIRST_COLUMNS", max(columns))
        monkeypatch.setattr(changes, "FIRST_ROWS", limit)
        assert changes.summary(what, next(kind for kind in what.kinds if kind.drawing.size[1] <= limit)) in drawn()
    monkeypatch.setattr(changes, "FIRST_ROWS", 0)  # no drawing is small enough, so the smallest one is shown
    assert changes.summary(what, min(what.kinds, key=lambda kind: len(kind.drawing.kinds))) in drawn()
    monkeypatch.setattr(changes, "FIRST_BOXES", 0)  # now the smallest drawing is also too large
    page, _ = page_of(tmp_path, task, result)
    ((_, said),) = page.all("p", class_="telling")
    assert "drawn below" in said and f"{len(what.kinds)} large regions" in said
    assert not page.all("figure", class_="telling")


def test_the_page_states_the_results(page, task, result):
    page, _ = page
    rows = [text for _, text in page.all("tr")]
    outcome = results_of(task, result)["eval"]
    for name, candidate in outcome["candidates"].items():
        wanted = f"{name}{candidate['estimated_ms']:.4f}{candidate['estimated_improvement_percent']:.2f} %"
        wanted += f"not measuredequal{candidate['substitutions']}1234.50.06.78"
        assert wanted in rows
    charts_of = {attributes["aria-label"]: text for attributes, text in page.all("svg")}
    counts = charts_of["how often each candidate applied each rule"]
    for candidate in outcome["candidates"].values():
        assert all(rule in counts and str(count) in counts for rule, count in candidate["rules"].items())
    times = charts_of["seconds of each stage and search"]
    assert all(text in times for text in ("stage collect", "6.7", "stage eval", "8.9", "finding the graph: greedy"))
    assert all(row in rows for row in ("ppo19.8765.4321–––", "seed7", "onnx1.0", "numericsokall outputs agree"))


@pytest.mark.usefixtures("without_charts")
def test_rewrites_that_were_left_out_are_counted(tmp_path, task, result):
    results = results_of(task, result)
    assert "left out" not in write_html(tmp_path, results, task).read_text()
    name, candidate = next(iter(results["eval"]["candidates"].items()))
    candidate["left_out"] = [{"step": 3, "rule": "a-rule", "location": 0, "blame": "rule", "message": "a message"}] * 2
    for delivered in (results["eval"]["delivered"], "original"):
        results["eval"]["delivered"] = delivered
        assert f"2 of {name}; see fault-report.md" in write_html(tmp_path, results, task).read_text()


MEASURED = {
    "ratio": 0.875, "interval": [0.861, 0.889], "verdict": "faster", "original_ms": 2.0, "candidate_ms": 1.75,
    "side_by_side": True,
}  # fmt: skip


def answer_of(folder: Path, results: dict, task: Task) -> tuple[str, list[str]]:
    """Return (the line with the answer, the texts of its cards)."""
    page = Page(write_html(folder, results, task).read_text())
    (line,) = [text for attributes, text in page.all("p") if attributes.get("class", "").startswith("answer")]
    return line, [text for _, text in page.all("div", class_="card")]


@pytest.mark.usefixtures("without_charts")
def test_estimates_and_measurements_are_shown_separately(tmp_path, task, result):
    results = results_of(task, result)
    delivered = results["eval"]["candidates"][results["eval"]["delivered"]]
    gain = f"{delivered['estimated_improvement_percent']:.1f} %"
    line, cards = answer_of(tmp_path, results, task)
    assert line == f"Estimated: {gain} less time" and "not measured" in cards[0]
    delivered |= {"measured": MEASURED, "max_relative_error": 3.25e-7}
    line, (sure, equal, estimated) = answer_of(tmp_path, results, task)
    assert line == "12.5 % less time"
    assert sure.startswith("How sure11.1–13.9 %") and "0.861 – 0.889" in sure
    assert equal == "Equalyes1 checks passed, largest relative error 3.3e-07"
    assert estimated.startswith(f"Estimated{gain}") and "12.5" not in estimated


@pytest.mark.usefixtures("without_charts")
def test_the_card_lists_uncompared_outputs_separately_and_states_fixed_sizes(tmp_path, task, result):
    results = results_of(task, result)
    delivered = results["eval"]["candidates"][results["eval"]["delivered"]]
    left = {"kind": "numerics", "ok": True, "message": "a message", "compared": False, "fixed": ["batch = 1"]}
    delivered["findings"].append(left)
    said = "1 checks passed, 1 could not be compared, largest relative error 0.0e+00; accepts only batch = 1"
    assert answer_of(tmp_path, results, task)[1][1] == f"Equalyes{said}"
    rows = [text for _, text in Page((tmp_path / "report.html").read_text()).all("tr")]
    assert "numericsnot compareda message" in rows
    delivered |= {"findings": [], "same_as": "original"}
    assert answer_of(tmp_path, results, task)[1][1] == "Equalyesit is the original: nothing to compare"


@pytest.mark.usefixtures("without_charts")
def test_the_answer_claims_no_more_than_was_measured(tmp_path, task, result):
    results = results_of(task, result)
    delivered = results["eval"]["candidates"][results["eval"]["delivered"]]
    delivered |= {"measured": MEASURED | {"ratio": 1.001, "interval": [0.99, 1.012], "verdict": "no difference shown"}}
    line, cards = answer_of(tmp_path, results, task)
    assert line == "No difference shown" and cards[0].startswith("How sure−1.2–1.0 %")
    delivered |= {"equal": False}
    delivered["findings"][0]["ok"] = False
    assert answer_of(tmp_path, results, task)[1][1] == "Equalno, dropped1 of 1 checks failed"


@pytest.mark.parametrize(
    "model, named", [("a folder/" + 90 * "x" + ".onnx", "ORIGINAL.onnx"), *slow(("light_vgg19", "light_vgg19"))]
)
def test_the_next_commands_can_be_run_as_they_stand(tmp_path, task, result, model, named):
    """The commands have the sizes and threads of the run and are not abbreviated; only the original's path is open."""
    results = results_of(task, result, model) | {"shapes": {"ids": (1, 128), "batch": 2}, "fix": True, "threads": 4}
    commands = [text for _, text in Page(write_html(tmp_path, results, task).read_text()).all("pre")]
    assert len(commands) == 4 and not any("…" in command for command in commands)
    # a zoo model depends on the seed, so its file is named
    assert "replay receipt.json --model ORIGINAL.onnx" in commands[0]
    sizes = "--shape ids=1,128 --shape batch=2 --fix"
    assert all(f"optimise {named} --out FASTER.onnx --threads 4 {sizes}" in command for command in commands[1:3])
    assert commands[3].endswith(f"bound --model {named} {sizes}")


@pytest.mark.usefixtures("without_charts")
def test_the_page_says_why_the_original_is_delivered(tmp_path, task, result):
    for actions in ({"controller": [], "greedy": []}, {"greedy": result["greedy"]}):
        results = results_of(task, actions)
        results["eval"] |= {"delivered": "original", "reason": "a reason"}
        assert answer_of(tmp_path, results, task)[0] == "No gain: the original is returned"
        text = (tmp_path / "report.html").read_text()
        assert "Why: a reason." in text and "The original is returned unchanged." in text
        assert "run.py replay" not in text
        assert ("No rewrite." in text) == ("was not delivered" not in text) == ("controller" in actions)


def test_markup_in_names_appears_as_text(tmp_path):
    """Markup in the names of nodes and of the model, and a very long name, appear as text."""
    evil = "</title></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&"
    model = load("tiny_resnet18")
    for position, node in enumerate(model.graph.node):
        node.name = f"{evil}{position}" if position % 2 else "x" * 10**6
    graph = load_graph(onnx.ModelProto.FromString(model.SerializeToString()))
    task = Task(graph, tiny_task("tiny_resnet18").rules, tiny_task("tiny_resnet18").cost)
    actions = [tuple(map(int, a)) for a in greedy(task.initial, 100, 60.0).actions]
    page, text = page_of(tmp_path, task, {"greedy": actions}, model=evil)
    assert len(actions) > 5 and "&lt;script&gt;alert(1)" in text and len(text) < 200_000
    assert not page.all("script") and not page.all("img") and not any(
        key.startswith("on") for _, attributes, _ in page.elements for key in attributes
    )
    assert any(evil[:60] in content for _, content in page.all("title"))


def test_the_page_loads_nothing_from_elsewhere(page):
    page, text = page
    keys = ("src", "href", "action")
    links = [attributes[key] for _, attributes, _ in page.elements for key in keys if key in attributes]
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert all(link.startswith("#") and link[1:] in ids for link in [*links, *re.findall(r"url\((.*?)\)", text)])
    assert len(set(ids)) == len(ids)
    assert "@import" not in text and "http" not in text.replace("http-equiv", "")
    (policy,) = [
        attributes["content"] for attributes, _ in page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    ]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'" and not page.all("script")


def test_the_page_stays_small(page, tmp_path, task, result, monkeypatch):
    whole, _ = page
    monkeypatch.setattr(changes, "BOXES", 12)
    monkeypatch.setattr(html_report, "STEPS", 5)
    cut, text = page_of(tmp_path, task, result)

    def boxes(page: Page) -> int:
        return sum(len(page.all("g", class_=kind)) for kind in ("removed", "added", "kept", "elsewhere"))

    assert boxes(whole) > 2 * 12 >= boxes(cut) > 0
    assert (
        "Not drawn: the page would be too large." in text
        and f"{len(result['greedy']) - 5} more are in the receipt." in text
    )


def test_equal_results_give_equal_bytes(page, tmp_path, task, result):
    assert page_of(tmp_path, task, result)[1] == page[1]


def test_a_run_writes_a_report_page_with_all_candidates(optimised):
    folder, outcome = optimised / "run" / "eval", json.loads((optimised / "run" / "eval.json").read_text())
    text = (folder / "report.html").read_text()
    assert Page(text) and all(f"{result['estimated_ms']:.4f}" in text for result in outcome["candidates"].values())
    assert all(
        len(outcome["actions"][name]) == result["substitutions"] for name, result in outcome["candidates"].items()
    )


# -- pieces ----------------------------------------------------------------------------------------


def test_every_text_is_escaped_unless_it_is_markup():
    assert (
        tag("p", "<b>", Safe("<i></i>"), [1, None, "&"], class_='"') == '<p class="&quot;">&lt;b&gt;<i></i>1&amp;</p>'
    )
    assert (
        tag("meta", charset="utf-8") == '<meta charset="utf-8">'
        and tag("path", stroke_width=2, d=None) == '<path stroke-width="2"></path>'
    )


def svg_of(figure, name: str = "a") -> str:
    return charts.svg(figure, name, "about")


def test_thinned_curves_keep_their_ends_and_charts_accept_non_finite_values():
    line, thinned = [(k, k * k) for k in range(10_001)], charts.thinned
    assert (
        thinned(line)[0] == line[0] and thinned(line)[-1] == line[-1] and len(thinned(line)) < 500 and thinned([]) == []
    )
    for series in ({}, {"empty": []}, {"one": [(3, 3.0)]}, {"bad": [(0, float("inf")), (1, float("nan"))]}):
        chart = svg_of(charts.lines(series, "x", "y"))
        assert "nan" not in chart and "inf" not in chart and Page(chart)


def test_larger_values_are_darker_and_longer():
    figure = charts.heatmap(["a"], ["x", "y", "z"], {("a", "x"): 1, ("a", "y"): 4})
    assert [cell.get_alpha() for cell in figure.axes[0].patches] == pytest.approx([0.15, 0.6])
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "4"]
    figure = charts.bars({"one": 1.0, "two": 2.0}, "seconds")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [1.0, 2.0]


def test_unknown_values_are_not_drawn():
    known, none = {"mean": 1.0, "low": 0.5, "high": 2.0}, {"mean": None, "low": None, "high": None}
    (plane,) = charts.intervals([("a", [known]), ("b", [none]), ("c", [known | {"low": None}])], ["x"]).axes
    zero, interval, *dots = [line.get_xydata().tolist() for line in plane.lines]
    assert interval == [[0.5, 0.0], [2.0, 0.0]] and dots == [[[1.0, 0.0]], [[1.0, 2.0]]]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_values_that_are_not_finite_are_left_out_of_bars_and_heatmaps(bad):
    figure = charts.heatmap(["a"], ["x", "y"], {("a", "x"): bad, ("a", "y"): 4})
    assert [cell.get_alpha() for cell in figure.axes[0].patches] == [0.6] and Page(svg_of(figure))
    figure = charts.bars({"one": 1.0, "diverged": bad}, "return")
    one, none = (bar.get_width() for bar in figure.axes[0].patches)
    assert one == 1.0 and isnan(none) and Page(svg_of(figure))


def test_a_curve_with_fewer_than_two_finite_values_is_not_drawn():
    curves = {"diverged": [(0, 1.0), (1, nan), (2, inf)], "interrupted": [(0, 1.0), (1, nan), (2, 3.0)]}
    assert learning_curves({"ppo-1": curves}) == [("ppo-1", "interrupted", [(0, 1.0), (2, 3.0)])]


@pytest.mark.parametrize(
    "name", [r"$\frac{$", "<script>&\"'", *slow("$x_1$", "_x", "a\x00\x1b\ud800b", "x" * 10**5)]
)
def test_any_name_appears_as_text_in_every_chart(name):
    """A name in a chart is never read as formula or markup, and the SVG stays valid."""
    result = {"mean": 1.0, "low": 0.5, "high": 2.0}
    figures = [
        charts.lines({name: [(0, 1.0), (1, 2.0)], "other": [(0, 2.0)]}, "x", name), charts.bars({name: 1.0}, "x"),
        charts.intervals([(name, [result])], ["x"]), charts.heatmap([name], [name], {(name, name): 2}),
    ]  # fmt: skip
    shown = name if len(name) < 30 and name.isprintable() else None
    for figure in figures:
        page = Page(svg_of(figure))
        texts = [text for _, text in page.all("text")]
        assert not page.all("script") and all(len(text) < 50 for text in texts)
        assert shown in texts if shown else any("a��" in text or "xxx…" in text for text in texts)


def test_a_chart_is_reproducible_uses_the_colours_of_its_page_and_shares_no_ids():
    rows = [("a", [{"mean": 1.0, "low": 0.5, "high": 2.0}])]
    one, again, other = (svg_of(charts.intervals(rows, ["x"]), name) for name in "aab")
    assert one == again and "var(--s0)" in one and "var(--text)" in one
    assert not re.findall("#[0-9a-f]{6};", one) and "<style" not in one and "metadata" not in one
    ids = [{a["id"] for _, a, _ in Page(text).elements if "id" in a} for text in (one, other)]
    assert ids[0] and not ids[0] & ids[1]


def test_drawing_leaves_the_style_of_matplotlib_unchanged():
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg_of(charts.bars({"a": 1.0}, "x"))
    assert dict(matplotlib.rcParams) == before


def test_threads_draw_one_after_the_other():
    """Threads draw one after the other; otherwise styles would be restored in the wrong order, and one would remain."""
    import matplotlib

    before, inside, go_on = dict(matplotlib.rcParams), threading.Event(), threading.Event()

    def slow():
        with charts.styled():
            inside.set()
            go_on.wait(10)

    def second():
        with charts.styled():
            entered.set()

    entered = threading.Event()
    threads = [threading.Thread(target=slow), threading.Thread(target=second)]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    assert not entered.wait(0.1)
    go_on.set()
    for thread in threads:
        thread.join()
    assert entered.is_set() and dict(matplotlib.rcParams) == before
