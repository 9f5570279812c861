"""Test the explanations for people: they show the nearest miss and a limited number of lines."""

from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.explain import MAX_SHOWN, as_text, explain_rules
from rlflow.rules.language import load_rules
from rlflow.zoo import load
from tests.rules.test_look_alikes import model

RULES = load_rules()
# Two products have a factor that is not constant; the third varies along more than the channels.
MISSES = """(double[1,1,3] x, double k) => (double[1,1,3] y, double[1,1,3] z, double[1,1,3] u)
            <double[1,1,1] w = {2}, double[3] c = {1, 2, 3}>
            { a = Conv(x, w) y = Mul(a, k) b = Conv(y, w) z = Mul(b, k) d = Conv(z, w) u = Mul(d, c) }"""


def test_the_nearest_miss_is_the_one_for_which_most_conditions_hold():
    (entry,) = explain_rules(load_graph(model(MISSES)), RULES, ["conv-mul"])
    assert entry["reasons"] == {
        "weight or factor is not constant": 2,
        "the factor varies along more than the channels": 1,
    }
    assert entry["nearest_miss"]["reason"] == "the factor varies along more than the channels"
    assert [node["outputs"] for node in entry["nearest_miss"]["nodes"]] == [["u"], ["d"]]
    text = as_text([entry])
    assert "near: Mul → u · Conv → d" in text and "but:  the factor varies" in text
    assert "does not fit 2 near matches: weight or factor is not constant" in as_text([entry], whole=True)


def test_few_matches_are_shown_but_all_are_counted_and_can_be_seen():
    graph = load_graph(load("tiny_shufflenet_v2"))
    entries = explain_rules(graph, RULES)
    (result,) = [entry for entry in entries if entry["name"] == "conv-batchnorm"]
    matches = len(result["locations"])
    page, whole = as_text(entries), as_text([result], whole=True)
    assert f"conv-batchnorm, {matches} matches" in page and f"and {matches - MAX_SHOWN} more" in page
    assert page.count("BatchNormalization conv1.1/BatchNormalization · Conv conv1.0/Conv") == 1
    assert whole.count(" · Conv ") == matches and " => " in whole
    fitting = sum(bool(entry["locations"]) for entry in entries)
    assert page.startswith(f"{fitting} rules of {len(RULES)} can be applied")
