"""Test `rlflow.optimise` and `rlflow.load_task` in this process; tests/test_package.py tests the installed ones."""

import threading

import numpy as np
import onnx
import pytest

import rlflow
from rlflow import library
from rlflow.common.files import read_json
from rlflow.common.spending import KERNELS, PARTS, PREDICT, spent_text
from rlflow.costs import profiled
from rlflow.costs.predicted import prior_path
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.receipt import replay
from rlflow.zoo import load
from tests.costs.priors import roofline_prior, timing_of, with_speeds
from tests.suite import at_night, slow
from tests.toys.weights import with_other_weights

QUICK = {
    "cost.name": "analytic", "eval.measure_seconds": 0, "eval.seeds": [0], "search.interactions": 300,
    "search.grasp.patience": 3, "search.beam.width": 2, "search.beam.depth": 2, "search.annealing.restarts": 1,
    "search.annealing.steps": 10,
}  # fmt: skip


def quick(model, **arguments) -> rlflow.Optimised:
    return rlflow.optimise(model, **{"seconds": 600, "options": QUICK, "quiet": True} | arguments)


def symbolic() -> onnx.ModelProto:
    """Return a model with the open dimension `batch` that rules make cheaper."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        symbolic (float[batch, 4] x) => (float[batch, 4] y) { a = Relu(x) b = Relu(a) y = Relu(b) }"""
    return onnx.parser.parse_model(text)


@pytest.fixture(scope="module")
def result() -> rlflow.Optimised:
    return quick("tiny_resnet18")


def test_the_result_holds_the_model_its_receipt_and_its_estimates(result, tmp_path):
    assert result.estimated_gain_percent > 0 and not result.is_original
    assert (result.measured, result.ratio, result.interval, result.verdict) == (None, None, None, "not measured")
    assert result.model == onnx.load(result.path)
    original = tmp_path / "original.onnx"
    onnx.save(load("tiny_resnet18"), original)
    assert to_model(replay(result.receipt, original)) == result.model
    assert result.report.read_text().startswith("<!DOCTYPE html>")


def test_the_seconds_of_a_call_are_reported_by_part(result):
    spent = result.outcome["spent"]
    assert set(spent) == set(PARTS) and {part for part, taken in spent.items() if taken > 0} >= {"search", "checks"}
    assert spent[KERNELS] == 0  # the analytic cost times no kernel
    assert spent_text(spent) in result.report.read_text()


def test_only_deciding_kernels_are_timed_if_kernels_are_predicted(tmp_path, monkeypatch):
    path = tmp_path / "costs.sqlite"
    database = with_speeds(path)
    roofline_prior().save(prior_path(path))
    monkeypatch.setattr(profiled, "time_model", lambda *_: timing_of(5e6))
    text = """<ir_version: 8, opset_import: ["" : 17]>
        model (float[64, 64] x) => (float[64, 64] y) { a = Relu(x) b = Relu(a) c = Relu(b) y = Exp(c) }"""
    options = QUICK | {"cost.name": "predicted", "cost.database": str(path)}
    known = database.timings(1).keys()
    result = quick(onnx.parser.parse_model(text), options=options, threads=1)
    assert [node.op_type for node in result.model.graph.node] == ["Relu", "Exp"]
    rounds = read_json(result.run / "search.json")["rounds"]
    timed = database.timings(1).keys() - known
    assert sum(rounds[0]["rewrites"].values()) > 0 and rounds[0]["timed"] == 1 and rounds[-1]["timed"] == 0
    assert sum(one["timed"] for one in rounds) == len(timed) and any("'Relu'" in name for name in timed)
    assert not any("'Exp'" in name for name in timed)  # every candidate has one Exp, so its timing decides nothing
    assert result.outcome["spent"][PREDICT] > 0


def test_the_text_of_a_result_has_two_lines(result):
    first, second = str(result).splitlines()
    assert f"estimated {result.estimated_gain_percent:.2f} % lower" in first and "not measured" in first
    assert f"{len(result.receipt['actions'])} rewrites by {result.delivered}" in second and result.reason in second
    assert "\n" not in repr(result) and str(result.path) in repr(result)


def test_a_result_shows_its_measured_ratio_with_its_interval(result):
    chosen = result.outcome["candidates"][result.delivered]
    measured = {"ratio": 0.8, "interval": [0.75, 0.9], "verdict": "faster"}
    outcome = result.outcome | {"candidates": {result.delivered: chosen | {"measured": measured}}}
    shown = rlflow.Optimised(result.source, result.run, outcome)
    assert (shown.ratio, shown.interval, shown.verdict) == (0.8, (0.75, 0.9), "faster")
    assert str(shown).startswith("measured 0.800 of the original's latency (0.750 to 0.900): faster;")


def test_save_writes_the_model_and_its_receipt_and_never_overwrites_the_original(result, tmp_path):
    result.save(tmp_path / "deep" / "faster.onnx")
    assert (tmp_path / "deep" / "faster.onnx").read_bytes() == result.path.read_bytes()
    assert read_json(tmp_path / "deep" / "faster.receipt.json") == result.receipt
    with pytest.raises(rlflow.RLFlowError, match="the model itself, which is never overwritten"):
        result.save(result.source)


def test_a_killed_save_leaves_no_model_beside_an_earlier_receipt(result, tmp_path, monkeypatch):
    (tmp_path / "faster.receipt.json").write_text("{}")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlflow.optimisation.delivery.copy_file", killed)
    with pytest.raises(KeyboardInterrupt):
        result.save(tmp_path / "faster.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["faster.onnx"]


def test_a_temporary_run_lives_as_long_as_its_result():
    result = quick("tiny_squeezenet1_1")
    folder = result.run
    assert result.path.is_relative_to(folder) and folder.is_dir()
    del result
    assert not folder.exists()


def test_a_model_in_memory_stays_unchanged_and_its_result_keeps_its_symbols():
    model = symbolic()
    before = model.SerializeToString()
    given = ({"batch": np.int64(2)}, {"x": (2, np.int32(4))}, {"x": np.array([2, 4])}, {"batch": (2, 8)}, {})
    wanted = ([{"batch": 2}],) * 3 + ([{"batch": 2}, {"batch": 8}], [{"batch": 1}])
    for shapes, sizes in list(zip(given, wanted, strict=True))[:: at_night(1, 3)]:
        result = quick(model, shapes=shapes)
        assert len(result.model.graph.node) < 3 and model.SerializeToString() == before
        assert result.model.graph.input == model.graph.input and result.model.graph.output == model.graph.output
        assert (result.receipt["shapes"], result.receipt["sizes"]) == ({}, sizes)
        assert result.receipt["symbols"] == {"batch": 1}


def test_sizes_are_frozen_on_request():
    receipt = quick(symbolic(), shapes={"batch": 2}, fix=True).receipt
    assert (receipt["shapes"], receipt["sizes"], receipt["symbols"]) == ({"batch": 2}, [{}], {})
    with pytest.raises(rlflow.RLFlowError, match="--fix freezes the sizes that --shape names"):
        quick(symbolic(), fix=True)


def test_a_result_that_runs_only_at_a_frozen_size_is_accepted_with_fix():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch] x) => (float[batch] y) { s = Shape(x) r = Relu(x) y = Reshape(r, s) }""")
    result = quick(model, shapes={"batch": 2}, fix=True)
    (dim,) = result.model.graph.input[0].type.tensor_type.shape.dim
    assert dim.dim_value == 2 and not result.is_original


def test_load_task_binds_the_given_sizes():
    model = symbolic()
    with pytest.raises(rlflow.RLFlowError, match="shapes: 'batch' is a size"):
        rlflow.load_task(model, shapes={"batch": 0})
    state = rlflow.load_task(model, cost="analytic", shapes={"batch": 2}).initial
    assert state.follow(state.matches[0]).runtime_ms < state.runtime_ms


def test_a_kept_run_folder_resumes_and_belongs_to_one_model(tmp_path, monkeypatch):
    first = quick(symbolic(), shapes={"batch": 2}, run=tmp_path / "run")
    monkeypatch.setattr("rlflow.optimisation.anytime.run_search", None)  # a second search would fail
    again = quick(symbolic(), shapes={"batch": 2}, run=tmp_path / "run")
    assert again.model == first.model and again.run == tmp_path / "run"
    with pytest.raises(rlflow.RLFlowError, match="belongs to the model"):
        quick(load("tiny_resnet18"), run=tmp_path / "run")


def test_the_arguments_of_optimise_become_the_options_of_the_run(tmp_path, monkeypatch):
    """The arguments of `rlflow.optimise` become the options of the run; the search itself is replaced."""
    monkeypatch.setenv("HOME", str(tmp_path))  # the default folder of timings
    outcome = {"delivered": "original", "reason": "", "optimised": "x", "candidates": {}, "fault_report": None}
    delivered = lambda run, *_: ({"eval": outcome | {"reason": run.config}}, False)  # noqa: E731
    monkeypatch.setattr(library, "search_and_deliver", delivered)
    monkeypatch.setattr(library, "pages", lambda *_: {})

    def config(**arguments):
        return rlflow.optimise("tiny_resnet18", **arguments).reason

    chosen = config(seconds=7, threads=2, seed=3, exact=True, standard_operators_only=True, accept="equal", receipt="r")
    assert (chosen.optimise.seconds, chosen.cost.threads, chosen.seed) == (7, 2, 3)
    assert chosen.env.exact and chosen.env.standard_operators_only and not chosen.optimise.learn
    assert chosen.optimise.receipt == "r" and config().optimise.receipt is None
    assert chosen.eval.accept == "equal" and config().eval.accept == "faster"
    assert config(learn=True).optimise.learn and config(options={"iterations.count": 2}).optimise.learn
    said = config(options={"search.beam.width": 4, "eval.seeds": (1, 2), "cost.database": tmp_path / "d.db"})
    assert (said.search.beam.width, list(said.eval.seeds)) == (4, [1, 2])
    assert said.cost.database == str(tmp_path / "d.db")
    numbers = config(options={"search.beam.width": np.int64(4), "eval.seeds": np.arange(2), "env.exact": np.True_})
    assert (numbers.search.beam.width, list(numbers.eval.seeds), numbers.env.exact) == (4, [0, 1], True)


@pytest.mark.parametrize(
    "model, arguments, message",
    [
        (3, {}, "a path, a zoo name or an onnx.ModelProto, not a int"),
        ("tiny_resnet19", {}, "did you mean 'tiny_resnet18'"),
        ("none.onnx", {}, "no such file: none.onnx"),
        ("tiny_resnet18", {"accept": "slower"}, "'eval.accept' is one of faster, equal"),
        ("tiny_resnet18", {"seconds": 0}, "'optimise.seconds' must be above 0"),
        ("tiny_resnet18", {"shapes": {"x": "12"}}, "shapes: 'x' is a size such as 128 or"),
        ("tiny_resnet18", {"shapes": {"x": (1, 0)}}, "not \\(1, 0\\)"),
        ("tiny_resnet18", {"shapes": {"x": np.zeros((2, 2), int)}}, "shapes: 'x' is a size"),
        ("tiny_resnet18", {"shapes": {"x": None}}, "not None"),
        ("tiny_resnet18", {"shapes": {"x": 1.5}}, "not 1.5"),
        ("tiny_resnet18", {"shapes": [1, 2]}, "shapes map names to sizes"),
        ("tiny_resnet18", {"receipt": "none.json"}, "none.json"),
        ("tiny_resnet18", {"options": {"search.bem": 1}}, "did you mean 'search.beam'"),
        ("tiny_resnet18", {"options": {"cost.name": "analytik"}}, "did you mean 'analytic'"),
    ],
)
def test_a_wrong_argument_raises_a_one_line_error_and_leaves_no_file(model, arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(rlflow.RLFlowError, match=message) as caught:
        rlflow.optimise(model, **arguments)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_an_earlier_receipt_is_carried_out_first_on_a_model_with_other_weights(result, tmp_path):
    result.save(tmp_path / "faster.onnx")
    retrained = with_other_weights(load("tiny_resnet18"))
    again = quick(retrained, run=tmp_path / "run", receipt=tmp_path / "faster.receipt.json")
    record = read_json(tmp_path / "run" / "best-so-far.json")["receipt"]
    assert record["actions"] == [[one["xfer_id"], one["location"]] for one in result.receipt["actions"]]
    assert record["stop"] == "carried out" and "receipt" in again.outcome["candidates"]
    assert record["estimated_improvement_percent"] == pytest.approx(result.estimated_gain_percent)
    assert again.receipt["original_hash"] != result.receipt["original_hash"]


def test_optimise_works_in_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(quick(symbolic(), shapes={"batch": 2})))
    thread.start()
    thread.join()
    assert results and not results[0].is_original


def test_quiet_mode_prints_nothing_and_progress_goes_to_standard_error(capfd):
    quick(symbolic(), shapes={"batch": 2})
    assert capfd.readouterr() == ("", "")
    quick(symbolic(), shapes={"batch": 2}, quiet=False)
    shown = capfd.readouterr()
    assert not shown.out and "greedy stopped by" in shown.err


def test_only_files_of_a_kept_run_are_named(tmp_path, capfd):
    quick(symbolic(), shapes={"batch": 2}, quiet=False)
    said = capfd.readouterr().err
    assert "result:" in said and "sure:" in said
    assert not any(name in said for name in ("report:", "model:", "next:", "rlflow-"))
    quick(symbolic(), shapes={"batch": 2}, quiet=False, run=tmp_path / "run")
    assert f"report:  {tmp_path / 'run' / 'eval' / 'report.html'}" in capfd.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), *slow(OSError("no space left"))])
def test_a_failed_report_does_not_affect_the_result(monkeypatch, capfd, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("worldmodel.run_pages.write_up", fail)
    result = quick(symbolic(), shapes={"batch": 2}, quiet=False)
    assert not result.is_original and result.model.graph.node and result.report is None
    assert f"there is no report: {str(error) or 'KeyboardInterrupt'}" in capfd.readouterr().err
