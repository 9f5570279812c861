import pytest

from benchmarks.xrlflow_ablations import USUAL, VARIANTS, Estimated, bars_of, table
from tests.toys.tiny import tiny_task


def run(improvement: float) -> dict:
    return {"improvement": improvement, "greedy_episode": 1.0, "interactions": 1000, "measured": 50.0}


def test_each_variant_differs_from_the_usual_one_in_one_thing():
    usual = VARIANTS[USUAL]
    for label, variant in VARIANTS.items():
        assert sum(a != b for a, b in zip(usual, variant, strict=True)) == (label != USUAL)


def test_an_estimate_in_the_place_of_a_measurement_counts_each_graph_once():
    initial = tiny_task().initial
    after, latencies = initial.follow(initial.matches[0]), Estimated()
    assert latencies.of(initial.graph, initial.graph, ()).ratio == 1
    latency = latencies.of(initial.graph, after.graph, ())
    assert latency.ratio == pytest.approx(after.runtime_ms / initial.runtime_ms) and not latency.lost
    latencies.of(initial.graph, after.graph, ())
    assert latencies.seconds == 2


def test_four_seeds_are_too_few():
    assert [bar["holds"] for bar in bars_of({"a": {USUAL: [run(1)] * 5, "N = 1": [run(1)] * 4}})] == [True, False]


def test_variants_are_compared_seed_by_seed():
    rows = table({"a": {USUAL: [run(1), run(5)], "N = 1": [run(2), run(6)]}}).splitlines()
    assert "1.00 ± 0.00" in rows[-1] and "4.00" in rows[-1]
