"""Measurements that are kept for learning: by whom they are kept, and what damage to the database costs."""

import io
import math
import sqlite3

import numpy as np
import pytest

from rlflow.costs import graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.database import MeasuredPair, Pair, TimingDatabase
from rlflow.costs.measurements import (
    DamagedGraph,
    KernelGraph,
    Known,
    Latencies,
    Measurements,
    from_bytes,
    log_ratio_deviation,
    sizes_text,
    to_bytes,
)
from rlflow.costs.profiled import ProfiledCost
from tests.costs.graphs import graph
from tests.toys.latencies import PlantedProbe
from tests.toys.tiny import tiny_task

PLAIN = graph("g (float[64] x) => (float[64] y) {a = Exp(x) y = Neg(a)}")
OTHER = graph("g (float[64] x) => (float[64] y) {y = Exp(x)}")


@pytest.fixture
def database(tmp_path) -> TimingDatabase:
    """One that holds the timings of PLAIN and OTHER."""
    for one in (PLAIN, OTHER):
        graph_cost(ProfiledCost(tmp_path / "costs.sqlite"), one)
    return TimingDatabase(tmp_path / "costs.sqlite")


def test_a_measurement_is_kept_with_what_is_seen_of_both_graphs(database):
    Measurements(database, 1).keep(PLAIN, OTHER, ({},), (0.5, 0.4, 0.6), 2.0)
    known = Known.of(database, 1)
    (measured,) = known.pairs
    assert measured == ((OTHER.hash, PLAIN.hash, sizes_text(({},))), 0.5, 0.4, 0.6, 2.0)
    (view,) = known.graphs[PLAIN.hash, sizes_text(({},))]
    assert view.kinds == ("Exp", "Neg") and view.launches == 2
    assert round(view.numbers[:, 0].sum()) == graph_cost(ProfiledCost(database.path), PLAIN).runtime_ps
    assert known.original_ms() == {(PLAIN.hash, sizes_text(({},))): 2.0}
    assert Known.of(database, 2).pairs == []  # with other threads


def test_nothing_is_timed_for_it_and_the_measurement_is_kept_all_the_same(database):
    before, never_timed = len(database.rows()), graph("g (float[8] x) => (float[8] y) {y = Tanh(x)}")
    Measurements(database, 1).keep(PLAIN, never_timed, ({},), (0.5, 0.4, 0.6), 2.0)
    known = Known.of(database, 1)
    assert len(database.rows()) == before and (known.pairs, known.unseen) == ([], 1)
    graph_cost(ProfiledCost(database.path), never_timed)
    Measurements(database, 1).keep(PLAIN, never_timed, ({},), (0.5, 0.4, 0.6), 2.0)
    assert len(Known.of(database, 1).pairs) == 2


def test_a_measured_reward_keeps_what_it_measures(database):
    latencies = Latencies(database, 1, PlantedProbe())
    latency = latencies.of(PLAIN, OTHER, ({},))
    latencies.of(PLAIN, OTHER, ({},))
    (measured,) = Known.of(database, 1).pairs
    assert (*measured[1:4], measured.original_ms) == (*latency[:3], latency.original_ms)
    lost = Latencies(database, 1, PlantedProbe({PLAIN.hash}))
    assert lost.of(PLAIN, PLAIN, ({},)).lost and len(Known.of(database, 1).pairs) == 1


def test_a_damaged_graph_costs_what_was_measured_of_it(database):
    measurements = Measurements(database, 1)
    measurements.keep(PLAIN, OTHER, ({},), (0.5, 0.4, 0.6), 2.0)
    measurements.keep(PLAIN, PLAIN, ({},), (1.0, 0.9, 1.1), 2.0)
    whole = database.graphs(1)[OTHER.hash, sizes_text(({},))]
    for damaged in (b"", whole[:50], whole[:-40], b"\x80\x04N."):
        database.keep_graph(OTHER.hash, sizes_text(({},)), 1, damaged)
        known = Known.of(database, 1)
        assert [m.pair.graph for m in known.pairs] == [PLAIN.hash] and (known.damaged, known.unseen) == (1, 1)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_numbers_that_cannot_be_are_refused(value):
    view = KernelGraph.of(AnalyticCost(), PLAIN)
    view.numbers.flat[0] = value
    with pytest.raises(DamagedGraph):
        from_bytes(to_bytes([view]))


def test_graphs_that_earlier_versions_kept_are_read():
    """They also hold edges and two more columns."""
    view = KernelGraph.of(AnalyticCost(), PLAIN)
    with np.load(io.BytesIO(to_bytes([view]))) as archive:
        arrays = dict(archive)
    more = {"0/numbers": np.pad(view.numbers, ((0, 0), (0, 2))), "0/senders": np.zeros(1, np.int32)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays | more)
    (again,) = from_bytes(buffer.getvalue())
    assert again.kinds == view.kinds and np.array_equal(again.numbers, view.numbers)


def test_bytes_give_the_same_graph_at_every_size():
    views = [KernelGraph.of(AnalyticCost(), tiny_task(name).graph) for name in ("tiny_resnet18", "tiny_bert_base")]
    again = from_bytes(to_bytes(views))
    for before, after in zip(views, again, strict=True):
        assert before.kinds == after.kinds and np.array_equal(before.numbers, after.numbers)


def test_what_is_too_large_is_not_kept(monkeypatch):
    monkeypatch.setattr("rlflow.costs.measurements.MOST_NODES", 3)
    view = KernelGraph.of(AnalyticCost(), PLAIN)
    assert to_bytes([view]) is not None and to_bytes([view, view]) is None


def test_a_database_from_before_gets_what_it_lacks_and_keeps_its_timings(database):
    before = database.rows()
    with sqlite3.connect(database.path) as connection:
        connection.execute("DROP TABLE measurements")
        connection.execute("DROP TABLE graphs")
    again = TimingDatabase(database.path)
    Measurements(again, 1).keep(PLAIN, OTHER, ({},), (0.5, 0.4, 0.6), 2.0)
    assert again.rows() == before and len(Known.of(again, 1).pairs) == 1


def test_clear_forgets_them(database):
    Measurements(database, 1).keep(PLAIN, OTHER, ({},), (0.5, 0.4, 0.6), 2.0)
    database.clear(threads=2)
    assert len(Known.of(database, 1).pairs) == 1
    database.clear(threads=1)
    assert Known.of(database, 1) == Known([], {}, 0, 0)


def test_an_interval_that_says_nothing_is_infinitely_uncertain():
    surely = MeasuredPair(Pair("a", "b", "[]"), 1.0, 0.98, 1 / 0.98, 1.0)
    assert log_ratio_deviation(surely) == pytest.approx(0.0103, abs=1e-4)
    for useless in (surely._replace(low=0.0), surely._replace(high=math.inf)):
        assert log_ratio_deviation(useless) == math.inf
