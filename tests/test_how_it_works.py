"""Tests that recompute the estimates in docs/HOW_IT_WORKS.md and in its pictures."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import RewriteState
from rlflow.rules.language import load_rules
from rlflow.rules.match import Match

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "HOW_IT_WORKS.md").read_text()
PICTURES = {path.stem: path.read_text() for path in (DOCS / "pictures").glob("how-*.svg")}
PS_IN_US = 1e6


def matches(state: RewriteState, rule: str) -> list[Match]:
    xfer_id = state.task.rules.index(rule)
    return [match for match in state.matches if match.xfer_id == xfer_id]


def name(state: RewriteState, match: Match) -> str:
    return state.graph.nodes[match.nodes[0]].name


@pytest.fixture(scope="module")
def squeezenet() -> RewriteState:
    return EnvSpec("squeezenet1_1", cost="analytic").make_task().initial


def test_the_rewrite_in_the_picture_has_the_stated_cost(squeezenet):
    (match,) = matches(squeezenet, "relu-maxpool")
    new, pairs = squeezenet.follow(match), []
    for state, other in ((squeezenet, new), (new, squeezenet)):
        own = [node for key, node in state.graph.nodes.items() if key not in other.graph.nodes]
        pairs.append({node.op: state.task.cost.node_cost(state.graph, node).runtime_ps / PS_IN_US for node in own})
    before, after = (sum(pair.values()) for pair in pairs)
    assert before - after == pytest.approx((squeezenet.objective - new.objective) / PS_IN_US)
    for pair in pairs:
        assert f"Relu {pair['Relu']:.1f}<" in PICTURES["how-rewriting"]
        assert f"MaxPool {pair['MaxPool']:.1f}<" in PICTURES["how-rewriting"]
    assert f">{before:.1f}<" in PICTURES["how-rewriting"] and f">{after:.1f}<" in PICTURES["how-rewriting"]
    assert f"cost {after:.1f} instead of {before:.1f} microseconds" in PAGE


def test_the_second_rewrite_needs_the_first_and_outweighs_its_cost(squeezenet):
    assert not matches(squeezenet, "conv-of-concat")
    gains = {}  # convolution → what the two rewrites there change of the cost, in µs
    for match in matches(squeezenet, "conv-bias-out"):
        first = squeezenet.follow(match)
        for opened in matches(first, "conv-of-concat"):
            costs = [state.objective / PS_IN_US for state in (squeezenet, first, first.follow(opened))]
            gains[name(squeezenet, match).removesuffix("/Conv")] = costs[1] - costs[0], costs[2] - costs[1]
    cost, gain = gains["features.4.squeeze"]
    assert f"| {squeezenet.objective / PS_IN_US:,.1f} µs |" in PAGE
    assert f"| {cost:.1f} µs more |" in PAGE and f"| {-gain:.1f} µs less |" in PAGE
    assert [convolution for convolution, pair in gains.items() if sum(pair) > 0] == ["classifier.1"]
    assert len(gains) == 6 and "gains at five convolutions" in PAGE


def test_rules_are_quoted_verbatim():
    rules = load_rules()
    assert f"{len(rules)} *rules*" in PAGE
    quoted = re.search(r"```\n(relu-maxpool: .*?)\n```", PAGE, flags=re.DOTALL)[1]
    assert quoted in (DOCS.parent / "rlflow/rules/elementwise.rules").read_text()


def test_pictures_are_small_and_have_their_own_background():
    for picture, text in PICTURES.items():
        root = ElementTree.fromstring(text)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        ground = root.find("{*}rect").attrib
        assert len(text.encode()) <= 10_000, picture
        assert float(ground["width"]) >= width - 2 and float(ground["height"]) >= height - 2 and ground["fill"], picture
        assert f"(pictures/{picture}.svg)" in PAGE
