"""Test low precision: errors as large as the rounding of ONNX Runtime itself pass, larger errors do not."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from rlflow.env.state import Task
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.feeds import Feeds
from rlflow.graph.half_precision import is_half, twin, twin_arrays
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.validate import validate
from rlflow.optimisation.validate.findings import Findings
from rlflow.optimisation.validate.inputs import ordinary_inputs
from rlflow.optimisation.validate.numerics import Expected, relative_error
from rlflow.optimisation.validate.onnx_model import OWN_MARGIN, Model
from rlflow.runs.config import load_config
from rlflow.search.descents import greedy
from rlflow.tasks.rewriting import RewritingSpec
from rlflow.zoo import load
from tests.suite import slow
from tests.toys.half import halved
from tests.toys.quantised import quantised_model
from tests.toys.tiny import tiny_task


@pytest.fixture(scope="module")
def bert() -> onnx.ModelProto:
    return halved("tiny_bert_base")


def test_the_float32_twin_of_a_half_precision_model_differs_only_by_rounding(bert):
    wide = twin(bert, "")
    onnx.checker.check_model(wide, full_check=True)
    assert is_half(bert) and not is_half(wide) and not is_half(load("tiny_bert_base"))
    inputs = random_inputs(bert, 0)
    exact, rounded = run(session(wide, 1, False), twin_arrays(bert, inputs)), run(session(bert, 1, False), inputs)
    for a, b in zip(exact, rounded, strict=True):
        assert a.dtype == np.float32 and b.dtype == np.float16
        assert 0 < np.abs(a - b).max() < 0.02 * np.abs(a).max()


@pytest.mark.parametrize("name", ["tiny_resnet18", *slow("tiny_bert_base", "tiny_vit_base")])
def test_a_greedy_result_in_half_precision_is_accepted_as_equal(name):
    """The candidate is accepted although its error is above 1e-4, the tolerance of float32."""
    model, tiny = halved(name), tiny_task(name)
    task = Task(load_graph(model), tiny.rules, tiny.cost)
    result = greedy(task.initial, 200, 60.0)
    assert result.state.cost.runtime_ps < task.initial.cost.runtime_ps
    findings = validate(model, to_model(result.state.graph), [0, 1])
    assert findings.ok, findings
    assert 1e-4 < findings.max_error < 0.01
    assert any("low precision" in finding.message for finding in findings.findings)


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_an_error_larger_than_rounding_is_caught_in_half_precision(bert, factor):
    damaged = onnx.ModelProto()
    damaged.CopyFrom(bert)
    tensor = next(t for t in damaged.graph.initializer if len(t.dims) == 2 and t.dims[0] == t.dims[1])
    tensor.CopyFrom(
        numpy_helper.from_array((numpy_helper.to_array(tensor) * np.float16(factor)).astype(np.float16), tensor.name)
    )
    failures = [finding for finding in validate(bert, damaged, [0, 1]).failures() if finding.kind == "numerics"]
    assert failures


def test_the_error_limit_is_proportional_to_the_error_of_the_originals_own_sessions(bert):
    """The limit of each output is the error of the original's own sessions times a margin.

    So the limit is no fixed number, and a model with accurate rounding gets a small limit.
    """
    inputs = random_inputs(bert, 0)
    exact = run(session(twin(bert, ""), 1, False), twin_arrays(bert, inputs))
    own = [run(session(bert, 1, optimise), inputs) for optimise in (False, True)]
    errors = [max(float(np.abs(values[k] - a).max() / np.abs(a).max()) for values in own) for k, a in enumerate(exact)]
    limits = [f.message for f in validate(bert, bert, [0]).findings if f.message.startswith("seed 0: output")]
    for error, message in zip(errors, limits, strict=True):
        assert f"(limit {OWN_MARGIN * error:.0e}: low precision" in message


def test_float32_keeps_its_tolerance():
    model = load("tiny_bert_base")
    findings = validate(model, model, [0])
    assert findings.ok and not any("low precision" in finding.message for finding in findings.findings)
    assert any("(limit 1e-04)" in finding.message for finding in findings.findings)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory) -> onnx.ModelProto:
    return quantised_model(tmp_path_factory.mktemp("quantised"))


def test_a_quantised_model_may_differ_by_a_step_that_onnx_runtime_itself_differs_by(quantised):
    """A quantised model may differ by one step of 255 in a few of 16,384 elements.

    The original itself differs by this step between float and integer computation. The test takes the first seed whose
    inputs show the difference; this seed depends on the processor.
    """
    by_floats, by_integers = (session(quantised, 1, optimise) for optimise in (False, True))
    for seed in range(30):
        inputs = random_inputs(quantised, seed)
        floats, integers = run(by_floats, inputs)[1], run(by_integers, inputs)[1]
        if not np.array_equal(floats, integers):
            break
    step = np.abs(floats - integers).max() / np.abs(floats).max()
    assert 0.004 < step < 0.01 and np.count_nonzero(floats != integers) < 20
    findings = validate(quantised, quantised, [seed])
    assert findings.ok and findings.max_error >= 0.99 * step
    beginning = f"seed {seed}: output 'm'"
    limits = [finding.message for finding in findings.findings if finding.message.startswith(beginning)]
    assert limits and all(f"(limit {OWN_MARGIN * step:.0e}: low precision" in message for message in limits)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_quantised_model_with_a_wrong_scale_is_caught(quantised, factor):
    damaged = onnx.ModelProto()
    damaged.CopyFrom(quantised)
    scale = next(tensor for tensor in damaged.graph.initializer if tensor.name == "w_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(factor), scale.name))
    assert [finding for finding in validate(quantised, damaged, [0]).failures() if finding.kind == "numerics"]


@pytest.mark.parametrize("off", [True, False])
def test_nothing_is_compared_if_the_originals_own_error_exceeds_every_limit(off):
    """Nothing is compared if the original itself has an error above every limit, as with saturating 16-bit sums.

    A model still equals itself then. If only another session of the original has such an error, outputs are compared.
    """
    model = Model.read(load("tiny_resnet18"))
    ordinary = ordinary_inputs(Feeds.of(model.proto), [0], {})
    given = Expected(model, ordinary, [], 1e-4, 1, False).sets[0][1]
    beside = [(1.5 * each.value if off else each.value, 0.5) for each in given]
    expected = Expected(model, ordinary, [], 1e-4, 1, False, lambda *_: beside)
    findings = Findings(list(expected.against(model)))
    assert findings.ok and findings.compared is not off
    damaged = onnx.ModelProto()
    damaged.CopyFrom(model.proto)
    for tensor in damaged.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    assert all(finding.ok for finding in expected.against(Model.read(damaged))) is off


@pytest.mark.parametrize(
    ("model", "overrides", "ratio", "widens"),
    [
        ("half", [], 0.8, True), ("half", [], 1.001, True), ("half", [], 1.1, False),
        ("half", ["env.exact=true"], 0.8, False), ("half", ["cost.name=memory"], 0.8, False),
        ("half", ["env.widen=true"], 1.5, True), ("single", [], 0.8, False),
    ],
)  # fmt: skip
def test_a_half_precision_model_is_widened_if_float32_is_not_slower_and_rounding_is_allowed(
    model, overrides, ratio, widens, bert, tmp_path, monkeypatch
):
    monkeypatch.setattr("rlflow.tasks.rewriting.ratios_in_turns", lambda *_: [ratio])
    source = tmp_path / "model.onnx"
    onnx.save(bert if model == "half" else load("tiny_bert_base"), source)
    config = load_config((), [*overrides, "cost.threads=1"], None, {"model": str(source)})
    config = RewritingSpec.settled(config, source)
    task = RewritingSpec.of(config, source).make_task()
    assert config.env.widen is widens is (task.widened is not None)
    assert is_half(to_model(task.original)) is (model == "half")
    assert RewritingSpec.settled(config, source) == config


def test_a_model_is_not_widened_for_timings_of_another_machine(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("rlflow.tasks.rewriting.ratios_in_turns", lambda *_: [0.5])
    source = tmp_path / "model.onnx"
    onnx.save(bert, source)
    spec = RewritingSpec(str(source), threads=1, cost="analytic")
    assert spec.may_be_widened(0)
    monkeypatch.setattr("rlflow.tasks.rewriting.target_of", lambda cost: "another machine")
    assert not spec.may_be_widened(0)


def test_outputs_of_different_shapes_differ_without_a_bound():
    assert relative_error(np.ones(3), np.ones(2)) == np.inf
