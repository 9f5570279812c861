"""The corpus of exports: its declarations fit together, its bars fall when they should, and a tool that fails is a row.

No exporter and no other tool is needed: the tools here are planted.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.exports import corpus, jobs, peers, results
from benchmarks.exports.corpus import (
    APART,
    CORPUS,
    DEVELOPMENT,
    EXPORTERS,
    HALVES,
    JUDGEMENT,
    LOW_PRECISION,
    MADE_FROM,
    REPEATED,
    of_half,
)
from benchmarks.exports.dynamic import DYNAMIC, draw
from benchmarks.exports.jobs import AGAIN, OPENVINO, OURS, THREADS, WIDE, Case, figures_of, jobs_of, measured, narrow
from benchmarks.exports.peers import PEERS, attempted
from benchmarks.exports.results import NAMED, bars_of, bars_of_all, bars_of_one
from benchmarks.exports.together import ORIGINAL, Contestant, Together, together
from benchmarks.judged import judged
from rlflow.common.errors import RLFlowError

# -- the declarations ----------------------------------------------------------------------------------


def test_the_halves_are_of_one_size_and_large_enough():
    sizes = [len(of_half(half)) for half in HALVES]
    assert sizes[0] == sizes[1] >= 15 and sum(sizes) == len(CORPUS)


def test_the_halves_share_no_family_but_by_other_exporters_and_with_a_reason():
    families = {half: {CORPUS[name].family for name in of_half(half)} for half in HALVES}
    assert families[DEVELOPMENT] & families[JUDGEMENT] == set(APART)
    for family in APART:
        exporters = [
            {one.exporter for one in CORPUS.values() if (one.family, one.half) == (family, half)} for half in HALVES
        ]
        assert not exporters[0] & exporters[1] and len(APART[family]) > 20


def test_what_is_known_to_everyone_is_for_development():
    networks = {one.network: one.half for one in CORPUS.values() if one.exporter not in MADE_FROM}
    assert {networks[f"networks.{name}"] for name in DYNAMIC} == {DEVELOPMENT}
    assert {CORPUS[name].half for name in NAMED} == {DEVELOPMENT}


def test_every_exporter_is_there_and_named_and_writes_what_it_writes():
    assert {one.exporter for one in CORPUS.values()} == set(EXPORTERS)
    for name, one in CORPUS.items():
        assert name.endswith(f"-{one.exporter}")
        opsets = {"dynamo": (18, 20), "torchscript": (17,), "keras": (15,), "tf2onnx": (17,)}.get(one.exporter, (None,))
        assert one.opset in opsets
    assert [one.exporter for one in CORPUS.values() if one.exporter in MADE_FROM].count("qdq") == 2


def test_a_file_made_from_another_one_is_in_its_half():
    for one in CORPUS.values():
        if one.exporter in MADE_FROM:
            source = CORPUS[one.network]
            assert (one.half, one.family, one.inputs) == (source.half, source.family, source.inputs)


@pytest.mark.parametrize("name", CORPUS)
def test_inputs_can_be_drawn_and_have_numbers_as_sizes(name):
    drawn = draw(CORPUS[name].inputs, {}, seed=0)
    assert {key: array.shape for key, array in drawn.items()} == {
        key: given.shape for key, given in CORPUS[name].inputs.items()
    }
    if "attention_mask" in drawn:
        assert 0 < drawn["attention_mask"].mean() < 1


def test_a_third_of_each_half_is_optimised_twice():
    assert [len([name for name in REPEATED if CORPUS[name].half == half]) for half in HALVES] == [6, 6]
    for name in CORPUS:
        assert {f"{AGAIN}-1", f"{AGAIN}-2"}.isdisjoint(jobs_of(name, THREADS)) == (name not in REPEATED)


def test_every_optimiser_is_told_families_that_are_there():
    assert set(peers.MODEL_TYPES) <= {one.family for one in CORPUS.values()}


# -- the bars ------------------------------------------------------------------------------------------

MADE = {
    "equal": True, "optimise_seconds": 150.0, "check_seconds": 40.0, "returned_original": False, "shares": ["gelu ×12"],
}  # fmt: skip
ONE = {
    "ms": 9.0, "relative_error": 1e-6, "original": False, "ratio": 0.8, "interval": [0.79, 0.81], "verdict": "faster",
}  # fmt: skip
PEER = ONE | {"ratio": 1.0, "interval": [0.99, 1.01], "ours": {"ratio": 0.8, "interval": [0.79, 0.81]}}
CONTESTANTS = {ORIGINAL: ONE | {"ratio": 1.0}, OURS: ONE, AGAIN: ONE, OPENVINO: ONE, **dict.fromkeys(PEERS, PEER)}
MEASURED = {"turns": [9, 9], "contestants": CONTESTANTS, "seconds": 90.0}
GOOD = {f"{OURS}-{threads}": MADE for threads in THREADS} | {f"measured-{threads}": MEASURED for threads in THREADS}
ALL_GOOD = {name: GOOD for name in CORPUS}
VIT = "vit_base-dynamo"


def missed(bars: list[dict]) -> list[str]:
    return [bar["name"].rpartition(": ")[2] for bar in bars if not bar["holds"]]


def spoilt(job: str, *path, value) -> dict:
    """GOOD, but for one figure."""
    figures = json.loads(json.dumps(GOOD))
    inner = figures[job]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return figures


def test_what_is_asked_for_is_enough():
    assert missed(bars_of(ALL_GOOD)) == []


@pytest.mark.parametrize("job, path, value, what", [
    ("ours-1", ("equal",), False, "not equal"),
    ("ours-1", ("check_seconds",), 29.9, "without its checks"),
    ("ours-1", ("shares",), ["a"] * 26, "groups of rewrites"),
    ("ours-1", ("shares",), None, "groups of rewrites"),
    ("measured-1", ("contestants", OURS, "interval"), [1.011, 1.015], "lower end of the interval"),
    ("measured-1", ("contestants", OURS, "ratio"), 0.881, "ratio of a named one"),
    ("measured-1", ("contestants", "onnxslim", "ours", "interval"), [1.011, 1.02], "behind a peer, lower end"),
])  # fmt: skip
def test_a_figure_beyond_its_limit_misses_its_bar_and_no_other(job, path, value, what):
    figures = {VIT: spoilt(job, *path, value=value)}
    assert missed(bars_of_one(figures, VIT, 1)) == [what]
    assert missed(bars_of_one(figures, VIT, 2)) == []


def test_nobody_is_behind_a_peer_without_a_file_or_with_that_of_another_model():
    figures = {VIT: spoilt("measured-1", "contestants", "onnxslim", value={"failed": "not installed"})}
    peer = figures[VIT]["measured-1"]["contestants"]["onnxsim"]
    peer["ours"] = {"ratio": 2.0, "interval": [1.9, 2.1]}
    assert missed(bars_of_one(figures, VIT, 1)) == ["behind a peer, lower end"]
    peer["relative_error"] = 0.5
    assert missed(bars_of_one(figures, VIT, 1)) == []
    assert "its outputs are off by 0.5" in results.failures_table(figures)


def test_nobody_is_ahead_of_peers_of_which_none_gave_a_file():
    nobody = CONTESTANTS | dict.fromkeys(PEERS, {"failed": "not installed"})
    figures = ALL_GOOD | {VIT: spoilt("measured-1", "contestants", value=nobody)}
    assert missed(bars_of_one(figures, VIT, 1)) == ["behind a peer, lower end"]
    assert bars_of_all(figures, 1)[2]["value"] == pytest.approx(100 * 35 / 36)


def test_a_file_of_low_precision_that_is_not_equal_is_not_through():
    unequal = {LOW_PRECISION[0]: spoilt("ours-1", "equal", value=False)}
    assert [one["holds"] for one in bars_of_all(ALL_GOOD | unequal, 1)] == [True] * 4 + [False]


def test_the_original_is_explained_by_no_groups():
    figures = {VIT: spoilt("ours-1", "returned_original", value=True)}
    figures[VIT]["ours-1"]["shares"] = None
    assert missed(bars_of_one(figures, VIT, 1)) == []


@pytest.mark.parametrize("job", ["ours-1", "measured-1"])
def test_what_was_not_run_or_failed_is_never_passed(job):
    for figures, says in (
        ({key: one for key, one in GOOD.items() if key != job}, "not run"),
        (GOOD | {job: {"error": "RLFlowError: it"}}, "RLFlowError: it"),
    ):
        bars = [bar for bar in bars_of_one({VIT: figures}, VIT, 1) if not bar["holds"]]
        assert bars and all(bar["value"] is None and bar["unit"] == says for bar in bars)


def test_the_mean_is_of_the_judgement_half_and_of_all_of_it():
    bad = {name: spoilt("measured-1", "contestants", OURS, "ratio", value=2.0) for name in of_half(DEVELOPMENT)}
    mean = bars_of_all(ALL_GOOD | bad, 1)[0]
    assert mean["value"] == pytest.approx(0.8) and mean["holds"]
    first, *others = of_half(JUDGEMENT)
    worse = {name: spoilt("measured-1", "contestants", OURS, "ratio", value=0.94) for name in others}
    mean = bars_of_all(ALL_GOOD | worse, 1)[0]
    assert mean["value"] == pytest.approx((0.8 * 0.94 ** len(others)) ** (1 / len(CORPUS) * 2)) and not mean["holds"]
    mean = bars_of_all({name: one for name, one in ALL_GOOD.items() if name != first}, 1)[0]
    assert mean["value"] is None and not mean["holds"] and mean["unit"].startswith("1 of 18 files")


@pytest.mark.parametrize("names, path, value, bar, most", [
    (of_half(JUDGEMENT), (OURS, "verdict"), "no difference shown", 1, 7),
    (list(CORPUS), ("onnxsim", "ours", "ratio"), 1.0, 2, 7),
    (REPEATED, (AGAIN, "ratio"), 0.809, 3, 1),
    (REPEATED, (AGAIN,), {"failed": "it"}, 3, 1),
    (LOW_PRECISION, (OURS, "verdict"), "slower", 4, 0),
])  # fmt: skip
def test_so_many_files_may_miss_and_one_more_misses_the_bar(names, path, value, bar, most):
    for count in (most, most + 1):
        bad = {name: spoilt("measured-2", "contestants", *path, value=value) for name in names[:count]}
        made = bars_of_all(ALL_GOOD | bad, 2)[bar]
        assert made["holds"] == (count == most) and made["value"] == pytest.approx(100 * (1 - count / len(names)))
        assert all(one["holds"] for one in bars_of_all(ALL_GOOD | bad, 1))


# -- the tables ----------------------------------------------------------------------------------------


def test_the_tables_say_what_was_measured_failed_and_not_run():
    figures = {VIT: spoilt("measured-1", "contestants", "onnxsim", value={"failed": "no | module"})}
    figures[VIT]["export"] = {"bytes": 346e6}
    figures[VIT]["ours-2"] = {"error": "it broke"}
    line = next(line for line in results.table(figures).splitlines() if line.startswith(f"| {VIT} "))
    ratio = "0.800 (0.790 – 0.810)"
    assert line == f"| {VIT} | 346 | {ratio} | {ratio} | yes, failed | 150, failed | 40, failed | 9.0 | 9.0 |"
    other = next(line for line in results.table(figures).splitlines() if line.startswith("| t5_small"))
    assert other.count("not run") == 8
    one, two = results.peers_table(figures).splitlines()[2:]
    assert one.startswith(f"| {VIT} | 1 | {ratio} | {ratio} | failed | 1.000 ") and "failed" not in two
    assert set(results.failures_table(figures).splitlines()[2:]) == {
        f"| {VIT} | onnxsim, measured-1 | no \\| module |", f"| {VIT} | ours-2 | it broke |",
    }  # fmt: skip


# -- planted tools and files ---------------------------------------------------------------------------


def save(path: Path, factor: float, repeat: int = 1) -> Path:
    """y = x·factor^repeat, float32 [4, 4]."""
    given, made = (helper.make_tensor_value_info(t, TensorProto.FLOAT, [4, 4]) for t in ("x", f"t{repeat}"))
    names = ["x", *(f"t{number}" for number in range(1, repeat + 1))]
    nodes = [helper.make_node("Mul", [one, "factor"], [two]) for one, two in zip(names, names[1:], strict=False)]
    weights = [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    graph = helper.make_graph(nodes, "one", [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_tool_that_fails_dies_or_writes_nothing_is_a_row_that_says_so(tmp_path, monkeypatch):
    path = tmp_path / "made.onnx"
    for code, says in (
        ("import no_such_tool", "ModuleNotFoundError: No module named 'no_such_tool'"),
        ("raise ValueError('not this file')", "ValueError: not this file"),
        ("import os; os.kill(os.getpid(), 9)", "died of signal 9"),
        ("pass", "wrote nothing"),
    ):
        path.write_bytes(b"of an earlier attempt")
        assert attempted([sys.executable, "-c", code], path) == {"error": says}
    wrote = attempted([sys.executable, "-c", f"open({str(path)!r}, 'w')"], path)
    assert set(wrote) == {"took"} and path.exists()
    monkeypatch.setattr(peers, "PATIENCE", 0.2)
    assert "0.2 s" in attempted([sys.executable, "-c", "import time; time.sleep(9)"], path)["error"]


def by_onnxruntime(path: Path) -> Contestant:
    return Contestant(path, "onnxruntime", sys.executable)


def test_files_are_run_in_turns_and_compared_with_the_original(tmp_path):
    inputs = {"x": np.ones((4, 4), np.float32)}
    contestants = {
        ORIGINAL: by_onnxruntime(save(tmp_path / "original.onnx", 2.0, repeat=2)),
        "equal": by_onnxruntime(save(tmp_path / "equal.onnx", 4.0)),
        "wrong": by_onnxruntime(save(tmp_path / "wrong.onnx", 5.0)),
        "unknown": Contestant(tmp_path / "original.onnx", "no_such_runtime", sys.executable),
    }
    made = together(contestants, inputs, threads=1, seconds=0.1, sessions=2, seed=0, enough=never)
    assert made.errors == {ORIGINAL: 0.0, "equal": 0.0, "wrong": 0.25}
    assert made.failed == {"unknown": "KeyError: 'no_such_runtime'"}
    turns = [len(session) for session in made.seconds[ORIGINAL]]
    assert len(turns) == 2 and min(turns) >= 3
    assert all([len(session) for session in sessions] == turns for sessions in made.seconds.values())
    with pytest.raises(RLFlowError):
        together({ORIGINAL: by_onnxruntime(tmp_path / "gone.onnx")}, inputs, 1, 0.1, 2, 0, never)


def never(made: Together) -> bool:
    return False


@pytest.mark.parametrize("says, most, had", [([True], 20, 6), ([False, True], 20, 8), ([False] * 9, 7, 7)])
def test_measuring_ends_after_the_pair_of_sessions_that_says_enough(says, most, had, monkeypatch):
    """Six sessions at least; an even number, but where no more are allowed."""
    module, answers, sessions = import_module("benchmarks.exports.together"), iter(says), []
    monkeypatch.setattr(module, "started", lambda *_: {})
    monkeypatch.setattr(module, "compare", lambda *_: None)
    monkeypatch.setattr(module, "in_turns", lambda *_: sessions.append(0) or {ORIGINAL: [1.0] * 3})
    made = together({ORIGINAL: by_onnxruntime(Path())}, {}, 1, 0.1, most, 0, lambda made: next(answers))
    assert len(sessions) == len(made.seconds[ORIGINAL]) == had


@pytest.mark.parametrize("wide, wanted", [(None, True), (OPENVINO, True), (OURS, False), ("onnxsim", False)])
def test_intervals_are_narrow_if_all_are_that_bars_ask_for(wide, wanted):
    """Sessions of one contestant differ by 8 %; of others by none."""
    names = (ORIGINAL, OURS, "onnxsim", OPENVINO)
    sessions = {name: [[1.0 + 0.08 * (name == wide) * (k // 2)] * 3 for k in range(6)] for name in names}
    made = Together(sessions, dict.fromkeys(names, 0.0), {})
    assert narrow(made) == wanted and WIDE < 0.08


def test_figures_are_ratios_of_the_same_turns():
    turns = {ORIGINAL: [[1.0, 2.0], [4.0, 8.0]], OURS: [[0.5, 1.0], [2.0, 4.0]], "onnxsim": [[1.0, 2.0], [2.0, 4.0]]}
    result = Together(turns, dict.fromkeys(turns, 1e-6), {"onnxscript": "it"})
    figures = figures_of(result, same=["onnxslim", AGAIN], seed=0)
    assert figures[OURS]["ratio"] == pytest.approx(0.5) and figures[OURS]["verdict"] == "faster"
    assert figures["onnxsim"]["ours"]["ratio"] == pytest.approx(0.5 / 0.5**0.5)
    assert figures["onnxslim"]["ratio"] == 1 and figures["onnxslim"]["ours"]["ratio"] == pytest.approx(0.5)
    assert figures["onnxslim"]["original"] and not figures["onnxsim"]["original"] and figures[AGAIN]["original"]
    assert figures["onnxscript"] == {"failed": "it"}
    assert figures[OURS]["ms"] == pytest.approx(1500)


@pytest.fixture
def case(tmp_path, monkeypatch) -> Case:
    """A file of one input with the results of all jobs that come before measuring it; one tool has failed. No process
    is started: whoever is to run takes a second, ours half of that."""

    def of_second(contestants, *others) -> Together:
        times = {name: [[0.5 if name == OURS else 1.0] * 3] * 2 for name in contestants}
        return Together(times, dict.fromkeys(times, 0.0), {})

    monkeypatch.setattr(jobs, "together", of_second)
    declared = CORPUS[VIT]._replace(inputs={"x": corpus.Given("floats", (4, 4))})
    monkeypatch.setitem(CORPUS, VIT, declared)
    made = Case(
        name=VIT, folder=tmp_path / "rules", seed=0, seconds=None, measure_seconds=0.05, sessions=2, overrides=(),
        exporter_python=sys.executable,
    )  # fmt: skip
    made.file.parent.mkdir(), made.folder.mkdir()
    save(made.file, 2.0, repeat=2)
    for job in ("ours-1", "again-1", *PEERS):
        failed = job == "onnxslim"
        (made.folder / f"{VIT}-{job}.json").write_text(json.dumps({"error": "it"} if failed else {}))
        if not failed:
            save(made.result(job), 2.0, repeat=2) if job == "onnxsim" else save(made.result(job), 4.0)
    return made


def test_a_file_is_measured_with_all_that_was_made_of_it(case):
    result = measured(case, 1)
    assert result["turns"] == [3, 3]
    figures = result["contestants"]
    assert set(figures) == {ORIGINAL, OURS, AGAIN, OPENVINO, *PEERS}
    assert figures["onnxslim"] == {"failed": "it"}
    assert [name for name, one in figures.items() if one.get("original")] == [ORIGINAL, "onnxsim"]
    assert figures[OURS]["ratio"] == figures["onnxsim"]["ours"]["ratio"] == 0.5
    case.result("onnxscript").unlink()
    with pytest.raises(RLFlowError, match="files are gone"):
        measured(case, 1)


def test_what_is_measured_is_made_before():
    names = list(jobs_of(VIT, THREADS))
    for threads in THREADS:
        before = names[: names.index(f"measured-{threads}")]
        assert {"export", *PEERS, f"{OURS}-{threads}", f"{AGAIN}-{threads}"} <= set(before)


def test_a_job_is_done_once_and_none_follows_an_export_that_failed(case, monkeypatch):
    command, done, failing = import_module("benchmarks.exports.__main__"), [], [True]

    def planted(job: str) -> dict:
        done.append(job)
        return {"error": "no exporter"} if failing[0] else {}

    names = ["export", "ours-1", "measured-1", "measured-2"]
    monkeypatch.setattr(command, "jobs_of", lambda name, threads: {job: job for job in names})
    monkeypatch.setattr(command, "tried", lambda job, case: planted(job))
    command.work(case, THREADS)
    command.work(case, THREADS)
    assert done == ["export"] and case.result("ours-1").exists()
    (case.folder / f"{VIT}-export.json").unlink()
    failing[0] = False
    command.work(case, THREADS)
    assert done == ["export", *(name for name in names if name != "ours-1")]  # whose result was there
    assert not case.result("ours-1").exists() and case.file.exists()
    assert list(command.kept(case.folder)[VIT]) == names


def test_what_is_judged_is_there_and_the_page_has_its_tables():
    exports = import_module("benchmarks.exports")
    assert set(judged("exports")) == set(exports.JUDGES)
    assert exports.table is results.table and exports.peers_table is results.peers_table
    assert not hasattr(exports, "no_such_name")
