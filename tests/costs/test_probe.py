"""Test fast measurements: their statistics on planted runs, and real runs with a worker that may die or hang."""

import os
import threading

import numpy as np
import psutil
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import measured
from rlflow.costs.database import TimingDatabase
from rlflow.costs.measured import MIN_PAIRS, Run
from rlflow.costs.measurements import Latencies
from rlflow.costs.probe import Latency, LostMeasurement, Probe
from rlflow.graph import custom_ops
from rlflow.graph.feeds import Feeds
from tests.costs.graphs import graph, model
from tests.suite import slow
from tests.toys.tiny import tiny_task

LIMIT = 120.0  # seconds; a free machine takes about one

# -- what runs say ---------------------------------------------------------------------------------


def test_the_latency_ratio_is_the_median_of_the_pairs_and_unaffected_by_drift():
    """Drift slows both sides of a pair equally, so it does not change the ratio."""
    drift = np.linspace(1.0, 2.0, 50)
    latency = Latency.of([np.stack([drift, 0.8 * drift], axis=1)], 1.5)
    assert latency.ratio == pytest.approx(0.8) and latency.low < 0.8 < latency.high
    assert latency.original_ms == pytest.approx(1500.0) and (latency.pairs, latency.seconds) == (50, 1.5)


def test_an_interval_is_never_narrower_than_the_difference_between_sessions():
    latency = Latency.of([np.ones((1000, 2))], 1.0)
    assert latency.low == pytest.approx(0.97) and latency.high == pytest.approx(1.03)


def test_the_latency_ratio_over_several_sizes_is_the_geometric_mean():
    times = [np.tile([1.0, ratio], (10, 1)) for ratio in (0.5, 2.0)]
    latency = Latency.of(times, 1.0)
    assert latency.ratio == pytest.approx(1.0) and latency.pairs == 20
    assert latency.low == pytest.approx(0.97) and latency.high == pytest.approx(1.03)


def test_a_kept_session_and_a_new_session_run_alternately(monkeypatch):
    order = []

    def run(running, inputs, threads):
        order.append(running)
        return Run(2.0 if running == "kept" else 1.0, True)

    monkeypatch.setattr(measured, "warm_session", lambda model, inputs, threads: f"of {model}")
    monkeypatch.setattr(measured, "_run", run)
    (pairs,) = measured.pairs_beside("kept", "graph", [{}], 1, 0.0)
    assert pairs.tolist() == [[2.0, 1.0]] * MIN_PAIRS
    assert [set(turn) for turn in zip(order[::2], order[1::2], strict=True)] == [{"kept", "of graph"}] * MIN_PAIRS
    assert order[0] != order[2]  # neither side is always first


def test_the_conditions_of_a_measurement_hold_its_inputs_sizes_seconds_and_libraries(tmp_path, monkeypatch):
    product = model("g (float[N,64] x, float[64,64] w) => (float[N,64] y) {y = MatMul(x, w)}")
    rng, library = np.random.default_rng(0), tmp_path / "library.so"
    for name in ("given", "other"):
        arrays = {"x": rng.random((8, 64), np.float32), "w": rng.random((64, 64), np.float32)}
        np.savez(tmp_path / f"{name}.npz", **arrays)

    def conditions(given=(), seconds=0.5, size=8):
        feeds = Feeds.of(product, [tmp_path / f"{name}.npz" for name in given])
        return Probe(1, seconds, LIMIT, feeds).conditions(({"N": size},))

    assert conditions() == conditions() and conditions(["given"]) == conditions(["given"])
    different = [conditions(), conditions(["given"]), conditions(["other"]), conditions(seconds=1), conditions(size=9)]
    for content in ("one", "two"):
        library.write_text(content)
        monkeypatch.setattr(custom_ops, "_libraries", (str(library),))
        different.append(conditions())
    assert len(set(different)) == len(different)


# -- on this machine -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probe():
    return Probe(1, 0.1, LIMIT)


@pytest.fixture
def worker(probe):
    """Return the process in which the probe measures."""
    probe(tiny_task().graph, tiny_task().graph, ({},))
    return psutil.Process(probe._worker.run(os.getpid, limit=LIMIT))


def rewritten(steps=1):
    state = tiny_task().initial
    for _ in range(steps):
        state = state.apply(*map(int, state.valid_actions()[0]))
    return state.graph


def test_a_graph_is_measured_beside_a_kept_session_of_the_original(probe, worker, monkeypatch):
    jobs, run = [], probe._worker.run
    monkeypatch.setattr(probe._worker, "run", lambda job, *rest, **limit: jobs.append(job) or run(job, *rest, **limit))
    latency = probe(tiny_task().graph, rewritten(), ({},))
    assert 0 < latency.low <= latency.ratio <= latency.high and latency.original_ms > 0
    assert latency.pairs >= MIN_PAIRS and latency.seconds > 0
    assert worker.is_running() and [job.__name__ for job in jobs] == ["_run_beside_original"]


def test_a_symbolic_graph_is_measured_at_its_sizes(probe):
    body = "g (float[N,64] x, float[64,64] w) => (float[N,64] y) {a = MatMul(x, w) y = Relu(a)}"
    symbolic = graph(body)
    assert probe(symbolic, symbolic, ({"N": 8}, {"N": 16})).pairs >= 2 * MIN_PAIRS


def test_a_refused_candidate_is_a_lost_measurement_and_a_refused_original_an_error(probe):
    refused, plain = graph("g (float[4] x) => (float[4] y) {y = elsewhere.Twice(x)}"), tiny_task().graph
    with pytest.raises(LostMeasurement, match="ONNX Runtime rejects"):
        probe(plain, refused, ({},))
    with pytest.raises(RLFlowError, match="ONNX Runtime rejects"):
        probe(refused, plain, ({},))
    assert probe(plain, plain, ({},)).pairs >= MIN_PAIRS


@pytest.mark.parametrize("killed", [True, *slow(False)])
def test_a_killed_or_hanging_worker_loses_only_one_measurement(probe, worker, tmp_path, monkeypatch, capsys, killed):
    latencies, original = Latencies(TimingDatabase(tmp_path / "costs.sqlite"), 1, probe), tiny_task().graph
    worker.suspend()  # it hangs during its next job
    if killed:
        threading.Timer(0.2, worker.kill).start()
    monkeypatch.setattr(probe, "limit", LIMIT if killed else 0.5)
    assert latencies.of(original, rewritten(), ({},)).lost
    assert "a measurement was lost" in capsys.readouterr().err and not worker.is_running()
    monkeypatch.setattr(probe, "limit", LIMIT)
    assert latencies.seconds > (0 if killed else 0.5)
    assert latencies.of(original, rewritten(2), ({},)).pairs >= MIN_PAIRS
    assert latencies.of(original, rewritten(), ({},)).lost  # lost for this run only; the next run measures it again
    assert Latencies(latencies.database, 1, probe).of(original, rewritten(), ({},)).pairs >= MIN_PAIRS
