"""Test the random kernels to be timed: they are valid, reproducible, and continue after a stop."""

import sys
from collections import Counter

import numpy as np
import onnxruntime
import pytest

from benchmarks import kernel_timings
from benchmarks.kernel_timings import FAMILIES, MOST_ELEMENTS, of_random_sizes, walk
from rlflow.costs import profiled
from rlflow.costs.database import TimingDatabase
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load
from tests.costs.priors import timing_of, with_speeds


@pytest.mark.parametrize("source", FAMILIES)
def test_models_of_random_sizes_are_valid_and_the_same_each_time(source):
    models = [of_random_sizes(number, source) for number in range(60)]
    assert sum(model is None for model in models) < 20
    for number, model in enumerate(models):
        if model is None:
            continue
        assert of_random_sizes(number, source) == model
        graph = load_graph(model)
        kinds = [graph.types[tensor] for node in graph.nodes.values() for tensor in node.outputs]
        assert all(kind.shape is not None for kind in kinds)
        assert all(len(weight.dims) == 0 or np.prod(weight.dims) <= MOST_ELEMENTS for weight in model.graph.initializer)
    small = [model for model in models if model is not None and model.ByteSize() < 10**6][:12]
    for model in small:
        onnxruntime.InferenceSession(model.SerializeToString())
    operators = Counter(node.op_type for model in models if model is not None for node in model.graph.node)
    assert len(operators) > 2 * len(set(FAMILIES[source]))


def test_a_walk_is_the_same_each_time_and_leads_through_different_graphs():
    graph, rules = load_graph(load("tiny_resnet18")), load_rules()
    one, other = walk(graph, rules, 3), walk(graph, rules, 3)
    assert [each.hash for each in one] == [each.hash for each in other]
    assert len({each.hash for each in one}) == len(one) > 1


def test_a_stopped_run_of_kernel_timings_resumes_with_new_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(profiled, "time_model", lambda *_: timing_of(5e6))
    monkeypatch.setattr(kernel_timings, "SOURCES", ("frequent",))
    path = with_speeds(tmp_path / "kernels.sqlite").path
    before = len(TimingDatabase(path).timings(1))

    def run(kernels: int) -> set[str]:
        words = ["--database", str(path), "--kernels", str(before + kernels)]
        monkeypatch.setattr(sys, "argv", ["kernel_timings", *words])
        assert kernel_timings.main() == 0
        return set(TimingDatabase(path).timings(1))

    first = run(4)
    drawn = []
    draws = kernel_timings.of_random_sizes
    monkeypatch.setattr(kernel_timings, "of_random_sizes", lambda *draw: drawn.append(draw[0]) or draws(*draw))
    second = run(8)
    assert first < second and len(second) >= before + 8 and drawn and min(drawn) > 0


@pytest.mark.parametrize("seconds", ["0"])
def test_a_run_of_kernel_timings_times_nothing_after_its_seconds(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(profiled, "time_model", lambda *_: pytest.fail("timed"))
    path = with_speeds(tmp_path / "kernels.sqlite").path
    monkeypatch.setattr(sys, "argv", ["kernel_timings", "--database", str(path), "--seconds", seconds])
    assert kernel_timings.main() == 0
