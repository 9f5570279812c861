import pytest

from benchmarks.latency_model import LEAST_CEILING, is_ranked


@pytest.mark.parametrize(
    "rank, ceiling, ranked",
    [(0.8, 1.0, True), (0.7, 1.0, False), (0.5, 0.6, True), (None, 1.0, False), (0.9, LEAST_CEILING / 2, False)],
)
def test_a_rank_counts_beside_what_measuring_twice_would_give(rank, ceiling, ranked):
    """What cannot be told apart by measuring is not ranked by anybody."""
    assert is_ranked({"learned": {"rank_correlation": rank}, "noise_ceiling": ceiling}) == ranked
