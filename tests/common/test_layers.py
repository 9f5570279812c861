"""Test that a `Layered` dictionary behaves as a dict, and that a change of one copy does not show in another copy."""

import pickle

import numpy as np

from rlflow.common import layers
from rlflow.common.layers import Layered, layered


def test_copies_of_a_layered_dictionary_are_independent(monkeypatch):
    monkeypatch.setattr(layers, "LARGE", 10)
    rng = np.random.default_rng(0)
    first = {key: str(key) for key in range(40)}
    pairs = [(layered(first.copy()), first)]
    assert isinstance(pairs[0][0], Layered)
    for step in range(400):
        result, wanted = (one.copy() for one in pairs[rng.integers(len(pairs))])
        for _ in range(4):
            key = int(rng.integers(60))
            assert (key in result) == (key in wanted) and result.get(key, "none") == wanted.get(key, "none")
            if rng.random() < 0.5:
                assert result.pop(key, None) == wanted.pop(key, None)
            else:
                result[key] = wanted[key] = str(step)
        pairs = [*pairs[-20:], (result, wanted)]
        assert all(dict(a) == b and len(a) == len(b) and set(a) == set(b) for a, b in pairs)
    assert pickle.loads(pickle.dumps(result)) == wanted
    assert len(result._own) ** 2 <= 16 * 60 + 200


def test_small_dictionaries_are_not_layered():
    small = {1: 2}
    assert layered(small) is small
