import numpy as np

from controllers.random import RandomConfig, RandomController
from tests.controllers.toy import latent_spaces


def test_every_valid_pair_is_equally_probable():
    """χ² with 5 degrees of freedom stays under its 99.9 % quantile (20.5); masks need not be prefixes."""
    location_masks = np.array([[[1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]]], np.int8)
    xfer_mask = np.array([[1, 0, 1, 1]], np.int8)  # the second xfer is masked though it has locations
    valid = {(0, 0), (0, 2), (0, 3), (2, 1), (2, 3), (3, 0)}
    n = 12_000
    observation = {
        "z": np.zeros((n, 1), np.float32),
        "h": np.zeros((n, 3), np.float32),
        "xfer_mask": np.repeat(xfer_mask, n, axis=0),
        "location_masks": np.repeat(location_masks, n, axis=0),
    }
    controller = RandomController(RandomConfig(), *latent_spaces(1, 3, 4), seed=0)
    pairs, counts = np.unique(controller.act(observation), axis=0, return_counts=True)
    assert {tuple(pair) for pair in pairs.tolist()} == valid
    expected = n / len(valid)
    assert ((counts - expected) ** 2 / expected).sum() < 20.5
