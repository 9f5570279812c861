"""Test the masked distribution: probabilities, entropy, mode and samples agree with an enumeration of all actions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from controllers.masked import LIMIT, MaskedCategorical, TwoStage, count_of
from tests.suite import at_night, slow

B, X, L = 3, 5, 4  # X = N + 1


def random_counts(rng):
    """Return random counts: row 0 allows NO-OP alone, and rules with all and with no locations occur."""
    counts = rng.integers(0, L + 1, (B, X)).astype(np.int32)
    counts[0], counts[1, :2], counts[:, -1] = 0, (0, L), 1
    return counts


def two_stage(rng, scale=1.0):
    """Return a distribution whose location logits depend on the rule, and its valid pairs, bool [B, X, L]."""
    counts = random_counts(rng)
    rule_logits = (scale * rng.standard_normal((B, X))).astype(np.float32)
    table = tf.constant(scale * rng.standard_normal((X, L)), tf.float32)
    distribution = TwoStage(
        tf.constant(rule_logits),
        counts > 0,
        lambda xfer_id: (tf.gather(table, xfer_id), count_of(counts, xfer_id)),
    )
    return distribution, np.arange(L) < counts[:, :, None]


def enumerate_pairs(distribution):
    """Return joint log-probabilities and entropy estimates, each [B, X, L]."""
    pairs = [
        distribution.log_prob_and_entropy(tf.tile(tf.constant([[x, k]]), [B, 1]))
        for x, k in itertools.product(range(X), range(L))
    ]
    return (np.stack([p[i].numpy() for p in pairs], axis=1).reshape(B, X, L).astype(np.float64) for i in (0, 1))


@pytest.mark.parametrize("seed", range(5))
def test_probabilities_sum_to_one_over_exactly_the_valid_pairs(seed):
    distribution, valid = two_stage(np.random.default_rng(seed))
    log_probs, _ = enumerate_pairs(distribution)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=(1, 2)), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(np.isfinite(log_probs), valid)


@pytest.mark.parametrize("seed", range(5))
def test_entropy_estimate_has_the_enumerated_entropy_as_its_mean(seed):
    distribution, valid = two_stage(np.random.default_rng(seed))
    log_probs, estimates = enumerate_pairs(distribution)
    probs = np.exp(log_probs)
    entropy = -(probs * np.where(valid, log_probs, 0.0)).sum(axis=(1, 2))
    np.testing.assert_allclose((probs * estimates).sum(axis=(1, 2)), entropy, atol=1e-5)


def test_sampling_frequencies_match_the_probabilities():
    distribution, _ = two_stage(np.random.default_rng(3))
    log_probs, _ = enumerate_pairs(distribution)
    rng, samples, counts = np.random.default_rng(0), at_night(4000, 800), np.zeros((B, X, L))
    sample = tf.function(distribution.sample)
    for _ in range(samples):
        actions = sample(tf.constant(rng.integers(2**31, size=(2, 2)))).numpy()
        counts[np.arange(B), actions[:, 0], actions[:, 1]] += 1
    probs = np.exp(log_probs)
    assert np.all(np.abs(counts / samples - probs) <= 4.5 * np.sqrt(probs * (1 - probs) / samples) + 1e-9)


def test_mode_is_the_best_valid_rule_and_then_its_best_valid_location():
    distribution, valid = two_stage(np.random.default_rng(1))
    log_probs, _ = enumerate_pairs(distribution)
    for b, (xfer_id, location) in enumerate(distribution.mode().numpy()):
        assert valid[b, xfer_id, location]
        assert xfer_id == np.exp(log_probs[b]).sum(axis=1).argmax()
        assert location == log_probs[b, xfer_id].argmax()


def test_a_count_gives_the_distribution_that_a_mask_of_its_locations_gives():
    """A count and a mask of the same locations give equal log-probabilities, bit for bit, and therefore equal
    samples."""
    distribution, valid = two_stage(np.random.default_rng(4))
    xfer_id = tf.constant([X - 1, 1, 1])
    counted, row = distribution.locations(xfer_id), valid[np.arange(B), xfer_id]
    masked = MaskedCategorical(distribution._locations(xfer_id)[0], tf.constant(row))
    np.testing.assert_array_equal(counted.valid, row)
    np.testing.assert_array_equal(counted.log_probs, masked.log_probs)
    np.testing.assert_array_equal(counted.sample(tf.constant([1, 2])), masked.sample(tf.constant([1, 2])))


def test_the_same_seeds_give_the_same_sample():
    distribution, _ = two_stage(np.random.default_rng(2))
    seeds = tf.constant([[1, 2], [3, 4]])
    np.testing.assert_array_equal(distribution.sample(seeds), distribution.sample(seeds))


@pytest.mark.parametrize("worst", [LIMIT, np.inf, *slow(1e9, 3e38)])
def test_extreme_logits_never_give_a_masked_action(worst):
    """Every valid logit has the lowest and every masked logit the highest value."""
    counts = np.array([[0, 1, 0, 1, 1]] * B, np.int32)
    rule_logits = np.where([1, 0, 1, 0, 0], worst, -worst).astype(np.float32)
    location_logits = np.where([0, 1, 1, 1], worst, -worst).astype(np.float32)
    distribution = TwoStage(
        tf.tile(rule_logits[None], [B, 1]),
        counts > 0,
        lambda xfer_id: (tf.tile(location_logits[None], [B, 1]), count_of(counts, xfer_id)),
    )
    allowed = {(1, 0), (3, 0), (4, 0)}
    rng = np.random.default_rng(0)
    samples = [distribution.sample(tf.constant(rng.integers(2**31, size=(2, 2)))).numpy() for _ in range(50)]
    seen = {tuple(action) for actions in [distribution.mode().numpy(), *samples] for action in actions.tolist()}
    assert seen <= allowed
    assert len(seen) == 3  # All three equal logits are drawn.
    log_prob, entropy = distribution.log_prob_and_entropy(tf.constant([[1, 0]] * B))
    np.testing.assert_allclose(log_prob, -np.log(3), rtol=1e-5)
    np.testing.assert_allclose(entropy, np.log(3), rtol=1e-5)


def test_gradients_are_finite_where_logits_are_masked_and_extreme():
    logits = tf.Variable([[0.0, 1.0, 1e30], [-1e30, 5.0, 1e30]])
    valid = tf.constant([[True, True, False], [True, False, False]])
    with tf.GradientTape() as tape:
        distribution = TwoStage(logits, valid, lambda xfer_id: (logits, tf.constant([2, 1])))
        log_prob, entropy = distribution.log_prob_and_entropy(tf.constant([[1, 1], [0, 0]]))
        loss = tf.reduce_sum(log_prob + entropy)
    gradient = tape.gradient(loss, logits).numpy()
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~valid.numpy()], 0.0)
