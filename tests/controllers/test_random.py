import numpy as np

from controllers.random import RandomConfig, RandomController
from tests.toys.latent import latent_spaces


def observation(counts):
    n = len(counts)
    z, h = np.zeros((n, 1), np.float32), np.zeros((n, 3), np.float32)
    return {"z": z, "h": h, "counts": np.asarray(counts, np.int32)}


def test_every_valid_pair_is_equally_probable():
    """χ² with 5 degrees of freedom stays below its 99.9 % quantile (20.5)."""
    n, counts = 12_000, [3, 0, 2, 1]
    valid = {(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0)}
    controller = RandomController(RandomConfig(), *latent_spaces(1, 3, 4), seed=0)
    pairs, result = np.unique(controller.act(observation([counts] * n)), axis=0, return_counts=True)
    assert {tuple(pair) for pair in pairs.tolist()} == valid
    expected = n / len(valid)
    assert ((result - expected) ** 2 / expected).sum() < 20.5


def test_the_generator_draws_an_index_into_the_list_of_valid_pairs():
    """The pairs are ordered by rule, then by location, and the generator draws one index into this list."""
    counts = np.random.default_rng(0).integers(0, 5, (50, 4))
    counts[:, -1] = 1
    pairs = [[(xfer_id, location) for xfer_id in range(4) for location in range(row[xfer_id])] for row in counts]
    picks = np.random.default_rng(1).integers([len(row) for row in pairs])
    controller = RandomController(RandomConfig(), *latent_spaces(1, 3, 4))
    actions = controller.act(observation(counts), rng=np.random.default_rng(1))
    assert [tuple(action) for action in actions.tolist()] == [row[pick] for row, pick in zip(pairs, picks, strict=True)]
