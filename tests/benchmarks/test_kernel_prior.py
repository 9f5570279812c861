"""Test the evaluation of the prior: the trees that predict a model were trained without any of its sizes."""

import pytest

from benchmarks import kernel_prior
from benchmarks.kernel_prior import HEAD, cells, judge, kernels_of
from benchmarks.kernel_timings import SOURCES, ZOO, drawn_file
from rlflow.common.files import write_json
from rlflow.costs import graph_cost, prior_training, profiled
from rlflow.costs.prior_training import samples, size_of
from rlflow.costs.profiled import ProfiledCost
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load
from tests.costs.graphs import graph
from tests.costs.priors import timing_of, with_speeds

MODEL = "tiny_squeezenet1_1"


def test_equal_kernels_of_a_graph_are_counted(tmp_path):
    twice = graph("one (float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Exp(y) }")
    (count,) = kernels_of(twice, with_speeds(tmp_path / "costs.sqlite"), 1).values()
    assert count == 2


def test_a_model_is_judged_by_a_prior_trained_without_the_models_own_sizes(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(prior_training, "ROUNDS", 4)
    monkeypatch.setattr(prior_training, "ERROR_ROUNDS", 2)
    monkeypatch.setattr(profiled, "time_model", lambda *_: timing_of(5e6))
    monkeypatch.setattr(kernel_prior, "walk", lambda graph, *_: [graph])
    database = with_speeds(tmp_path / "costs.sqlite")
    graph_cost(ProfiledCost(database.path), load_graph(load(MODEL)))
    own = {size_of(one.what) for one in samples(database, 1).values()}
    for size in range(30, 80):
        kind = f"(1,({size},{size}))"
        database.store(f"((('','Exp',17,(),(({kind},False,None)),({kind}))),())", 1, timing_of(1e5 * size))
    seen = []
    train = kernel_prior.train
    monkeypatch.setattr(kernel_prior, "train", lambda data, facts: seen.extend(data) or train(data, facts))
    errors = judge(MODEL, samples(database, 1), database, 1, load_rules())
    assert len(seen) == 50 and not own & {size_of(one.what) for one in seen}
    assert errors["kernels"] > 5 and 0 <= errors["within_80"] <= 1 and errors["sum"] > 0
    assert len(cells(MODEL, errors)) == len(HEAD)
    assert judge("tiny_bert_base", samples(database, 1), database, 1, load_rules()) is None


def test_the_kernels_of_every_draw_of_a_model_are_left_out(tmp_path, monkeypatch):
    database, seeds = with_speeds(tmp_path / "costs.sqlite"), []
    monkeypatch.setattr(kernel_prior, "walk", lambda graph, rules, number: seeds.append(number) or [])
    monkeypatch.setattr(kernel_prior, "load", lambda name: load(MODEL))
    turn, name = len(SOURCES) * len(ZOO), ZOO[1]
    for draws, wanted in ((0, 1), (turn, 1), (turn + len(SOURCES) + 1, 2), (9 * turn, 9)):
        write_json(drawn_file(database.path, 1), {"next": draws})
        seeds.clear()
        kernel_prior.timed_kernels(name, {}, database, 1, load_rules())
        assert len(seeds) == wanted
        assert {SOURCES[seed % len(SOURCES)] for seed in seeds} == {"zoo"}
        assert {seed // len(SOURCES) % len(ZOO) for seed in seeds} == {1}
