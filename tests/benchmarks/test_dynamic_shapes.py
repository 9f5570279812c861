"""The bars of benchmarks.dynamic_shapes fail when they should: on made-up figures. No exporter is needed."""

import copy

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import bars as words
from benchmarks.dynamic_parts import bound, compared
from benchmarks.dynamic_shapes import bars_of, bars_of_one, table
from benchmarks.exports.dynamic import DYNAMIC, EXPORTERS
from rlflow.common.errors import RLFlowError

SUBJECT = "bert_base-dynamo"


def measured(ratio: float, low: float, high: float) -> dict:
    return {"again": {"ratio": ratio, "interval": [low, high]}, "no_longer_symbols": []}


GOOD = {
    "shapes": {"percent": 100.0},
    "matches": {"percent": 95.0},
    "estimate": {"error_percent": -14.9, "estimated_ms": 85.1, "measured_ms": 100.0},
    "dynamic": measured(0.96, 0.95, 0.97),
    "static": measured(0.95, 0.94, 0.96),
    "fix": measured(0.955, 0.945, 0.965),
    "sizes": {
        "at": {
            "seq = 1": {"original_runs": True, "runs": True, "error": 1e-6},
            "seq = 0": {"original_runs": False, "runs": None},
        },
        "measured": {"slower_at": []},
    },
    "step": {"ratio": 1.4},
}
# What is spoilt → the one bar that falls.
SPOILT = [
    ("shapes", "percent", 94.9, "tensors with a shape"),
    ("matches", "percent", 94.9, "of the static twin's matches"),
    ("estimate", "error_percent", -15.1, "estimate off the latency"),
    ("estimate", "error_percent", 15.1, "estimate off the latency"),
    ("dynamic", "again", None, "ratio above the static twin's"),
    ("fix", "again", None, "ratio with --fix above the static twin's, intervals apart"),
    ("dynamic", "no_longer_symbols", ["seq of input_ids is 128"], "sizes no longer symbols"),
    ("sizes", "measured", {"slower_at": ["seq = 1"]}, "sizes at which it is slower"),
    ("step", "ratio", 1.51, "step of the environment"),
]


def missed(figures: dict) -> list[str]:
    return [bar["name"].removeprefix(f"{SUBJECT}: ") for bar in bars_of_one(SUBJECT, figures) if not bar["holds"]]


def test_what_is_asked_for_is_enough():
    assert missed(GOOD) == []


@pytest.mark.parametrize("job, key, value, what", SPOILT)
def test_a_figure_beyond_its_limit_misses_its_bar_and_no_other(job, key, value, what):
    figures = copy.deepcopy(GOOD)
    figures[job][key] = value
    assert missed(figures) == [what]


def test_one_size_at_which_the_result_errs_or_does_not_run_is_enough():
    figures = copy.deepcopy(GOOD)
    here = figures["sizes"]["at"]["seq = 1"]
    here["error"] = 2e-4
    assert missed(figures) == ["largest error at any size"]
    here |= {"runs": False, "error": None}
    # Where nothing could be compared, nothing is equal.
    assert missed(figures) == ["sizes at which only the original runs", "largest error at any size"]


@pytest.mark.parametrize("job", GOOD)
def test_what_was_not_run_or_failed_is_never_passed(job):
    for figures, says in (
        ({name: one for name, one in GOOD.items() if name != job}, "not run"),
        (GOOD | {job: {"error": "RLFlowError: it"}}, "RLFlowError: it"),
    ):
        bars = [bar for bar in bars_of_one(SUBJECT, figures) if not bar["holds"]]
        assert bars and all(bar["value"] is None and bar["unit"] == says for bar in bars)


def test_every_model_by_every_exporter_is_asked_the_same_and_the_worst_is_told():
    good = {f"{model}-{exporter}": GOOD for model in DYNAMIC for exporter in EXPORTERS}
    assert all(bar["holds"] for bar in bars_of(good))
    one_bad = good | {SUBJECT: GOOD | {"shapes": {"percent": 12.0}}}
    group = words.groups_of(bars_of(one_bad))["tensors with a shape"]
    assert len(group) == len(good) and words.holding(group) == f"**{len(good) - 1} of {len(good)}**"
    assert words.worst(group) == "12 %"
    without = {subject: results for subject, results in good.items() if subject != SUBJECT}
    names = [bar["name"] for bar in bars_of(without) if not bar["holds"]]
    assert len(names) == len(bars_of_one(SUBJECT, {})) and all(name.startswith(SUBJECT) for name in names)


def test_the_table_says_what_was_not_run():
    results = {"shapes": GOOD["shapes"], "sizes": GOOD["sizes"], "fix": {"error": "it"}}
    (line,) = table({SUBJECT: results}).splitlines()[2:]
    assert line == "| bert_base | dynamo | 100.0 % | not run | not run | not run | not run | failed | 1 of 1, 0 |  |"


def test_a_size_that_became_a_number_is_found(tmp_path):
    for name, size in (("original", "seq"), ("same", "seq"), ("bound", 128)):
        given, made = (helper.make_tensor_value_info(t, TensorProto.FLOAT, [1, size]) for t in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [given], [made])
        onnx.save(helper.make_model(graph), tmp_path / f"{name}.onnx")
    assert bound(tmp_path / "original.onnx", tmp_path / "same.onnx") == []
    assert bound(tmp_path / "original.onnx", tmp_path / "bound.onnx") == ["seq of x is 128", "seq of y is 128"]


class Session:
    """Gives these arrays, or refuses."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def run(self, outputs, inputs):
        if not self.arrays:
            raise RLFlowError("no such size")
        return list(self.arrays)


def test_a_size_is_compared_where_the_original_runs():
    one, other = np.array([1.0, 2.0], np.float32), np.array([1.0, 2.5], np.float32)
    assert compared(Session(one), Session(other), {}) == {"original_runs": True, "runs": True, "error": 0.25}
    assert not compared(Session(), Session(one), {})["original_runs"]
    assert compared(Session(one), Session(), {})["runs"] is False
    assert compared(Session(one), Session(one[:1]), {})["runs"] is False
