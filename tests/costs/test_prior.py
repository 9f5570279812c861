"""Test the prior and the posterior.

The prior equals what LightGBM learned. A posterior never changes a timed kernel and is never less certain than the
prior.
"""

import math

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import prior_training
from rlflow.costs.database import TimingDatabase
from rlflow.costs.kernel_features import NUMBERS, Description, baseline_ps
from rlflow.costs.prior import Correlation, Points, Posterior, Prediction, Prior
from rlflow.costs.prior_training import Sample, errors_of, fold, train, trees_of
from rlflow.costs.speeds import Speeds, stored_speeds, vector_bits
from rlflow.graph.onnx_runtime import machine
from tests.commands import printed
from tests.costs.priors import leaf, nearly, roofline_prior, with_speeds

SPEEDS = Speeds(10.0, 12.0, 20.0, 40.0, 60.0, 1e6, 256)


def kernel(kind: str = "Add", flops: int = 10**6, moved: int = 10**6, **numbers: float) -> Description:
    given = {"flops": math.log2(1 + flops), "bytes": math.log2(1 + moved), "written": math.log2(1 + moved)}
    return Description(kind, flops, moved, dict.fromkeys(NUMBERS, 0.0) | given | numbers)


def drawn(count: int, seed: int = 0) -> list[Sample]:
    """Return samples of two kinds of kernels whose latencies follow a law of their sizes with 5 % of noise."""
    rng, result = np.random.default_rng(seed), []
    for k in range(count):
        kind, moved, run = ("Add", "Exp")[k % 2], int(2 ** rng.uniform(12, 24)), float(rng.integers(0, 10))
        what = kernel(kind, moved // 4, moved, run=run, outer=float(rng.integers(0, 12)))
        factor = (1.0 if kind == "Add" else 3.0) * (1 + 2 ** (4 - run) / 4) * math.exp(0.05 * rng.normal())
        result.append(Sample(what, math.log(factor * baseline_ps(what, SPEEDS)), 0.02, SPEEDS, 1))
    return result


@pytest.fixture(scope="module")
def few_rounds():
    pytest.importorskip("lightgbm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior_training, "ROUNDS", 60)
        patch.setattr(prior_training, "ERROR_ROUNDS", 10)
        patch.setattr(prior_training, "MOST_COMPARED", 60)
        yield


@pytest.fixture(scope="module")
def trained(few_rounds) -> Prior:
    return train(drawn(500), {"machines": ["here"]})


def test_the_exported_trees_predict_the_same_as_lightgbm(few_rounds):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 7))
    model = prior_training._fit(x, x[:, 0] * x[:, 1] + np.abs(x[:, 2]), np.ones(300), 40, {})
    trees = trees_of(model)
    fresh = rng.normal(size=(50, 7))
    assert [trees.predict(row) for row in fresh] == pytest.approx(model.predict(fresh).tolist(), abs=1e-9)


def test_a_cost_law_is_learned_and_its_intervals_cover_unseen_kernels(trained):
    fresh = drawn(300, seed=1)
    predicted = [trained.predict(one.what, one.speeds, one.threads) for one in fresh]
    truth = np.array([one.log_ps for one in fresh])
    guessed, deviations = (np.array(column) for column in zip(*predicted, strict=True))
    errors = errors_of(truth, guessed, deviations)
    assert errors["median_relative_error"] < 0.15 and errors["rank_correlation"] > 0.95
    assert 0.65 <= errors["within_80"] <= 0.95
    baseline = [math.log(baseline_ps(one.what, SPEEDS)) for one in fresh]
    assert errors["median_relative_error"] < np.median(np.abs(np.expm1(baseline - truth))) / 2


def test_equal_data_give_equal_bytes_and_a_saved_prior_gives_the_same_predictions(trained, few_rounds, tmp_path):
    again = train(drawn(500), {"machines": ["here"]})
    trained.save(tmp_path / "one.npz")
    again.save(tmp_path / "other.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
    read, what = Prior.load(tmp_path / "one.npz"), kernel("Exp", run=3.0)
    assert read.predict(what, SPEEDS, 1) == trained.predict(what, SPEEDS, 1)
    assert (read.facts, read.correlation, read.kinds) == (trained.facts, trained.correlation, trained.kinds)


def test_too_few_kernels_are_refused():
    with pytest.raises(RLFlowError, match="3 timed kernels are too few"):
        train(drawn(3), {})


def test_kernels_of_one_kind_and_result_are_in_one_fold():
    assert fold(kernel(rows=3.0)) == fold(kernel(rows=3.0, flops=10**9, inner=7.0))
    assert len({fold(kernel(rows=float(k))) for k in range(40)}) > 1


@pytest.mark.parametrize("damage", ["a node outside", "a feature outside", "no numbers", "another version", "no file"])
def test_a_damaged_prior_is_refused_in_one_line(tmp_path, damage):
    path, prior = tmp_path / "prior.npz", roofline_prior()
    match damage:
        case "a node outside":
            prior.mean.left[:] = 7
        case "a feature outside":
            prior.error.feature[:] = 999
        case "no numbers":
            prior.mean.value[:] = np.nan
        case "another version":
            prior = prior._replace(kinds=("Add", "Add"))._replace(mean=leaf(0.0))
    prior.save(path)
    if damage == "another version":
        with np.load(path) as archive:
            arrays = dict(archive)
        arrays["about"] = np.frombuffer(arrays["about"].tobytes().replace(b'"flops"', b'"flips"'), np.uint8)
        np.savez(path, **arrays)
    if damage == "no file":
        path.write_bytes(b"not a zip")
    with pytest.raises(RLFlowError, match="holds no prior of kernels") as refused:
        Prior.load(path)
    assert "\n" not in str(refused.value)


# -- posterior -------------------------------------------------------------------------------------

SHARED = Correlation(0.1, 0.2, 0.5, 1.0)
APART = Correlation(0.0, 0.2, 0.5, 1.0)
KERNELS = [kernel(kind, moved=2**size) for kind in ("Add", "Exp") for size in range(12, 24, 2)]


def guess(what: Description, deviation: float = 0.3) -> Prediction:
    return Prediction(math.log(baseline_ps(what, SPEEDS)), deviation)


def posterior(correlation: Correlation, known: dict[int, float], noise: float = 1e-6) -> Posterior:
    """Return the posterior after timings of some kernels: index in KERNELS → error of its prediction (logarithm)."""
    what = [KERNELS[k] for k in known]
    predicted = [guess(one) for one in what]
    truth = [one.log_ps + error for one, error in zip(predicted, known.values(), strict=True)]
    return Posterior(correlation, what, predicted, truth, [noise] * len(what))


def test_a_posterior_without_timings_corrects_nothing():
    empty = posterior(SHARED, {})
    assert all(empty.corrected(one, guess(one)) == guess(one) for one in KERNELS)


def test_no_further_timing_raises_the_uncertainty_of_a_prediction():
    before = [guess(one).deviation for one in KERNELS]
    for count in range(1, len(KERNELS)):
        after = posterior(SHARED, dict.fromkeys(range(count), 0.2))
        now = [after.corrected(one, guess(one)).deviation for one in KERNELS]
        assert all(b <= a + 1e-9 for a, b in zip(before, now, strict=True))
        before = now


def test_timings_shift_untimed_predictions_less_the_more_distant_the_kernels_are():
    slower = posterior(SHARED, {0: 0.4, 1: 0.4})
    moved = [slower.corrected(one, guess(one)).log_ps - guess(one).log_ps for one in KERNELS]
    assert all(shift > 0 for shift in moved)
    add, exp = moved[2:6], moved[6:]
    assert add == sorted(add, reverse=True) and min(add) > max(exp)


def test_the_keys_of_kernels_are_the_same_in_every_process():
    """A cost model that was pickled for another process recognises its timed kernels there."""
    program = (
        "from tests.costs.test_prior import KERNELS, Points; print(Points.of(KERNELS).keys.tolist())"
    )
    assert printed(program, "1") == printed(program, "2") == f"{Points.of(KERNELS).keys.tolist()}\n"


def test_kernels_of_other_kinds_stay_unchanged_if_kinds_share_nothing():
    slower = posterior(APART, {0: 0.4, 1: 0.4})
    assert all(nearly(slower.corrected(one, guess(one)).log_ps, guess(one).log_ps) for one in KERNELS[6:])


def test_the_posterior_of_two_kernels_equals_the_closed_form():
    known = posterior(APART, {0: 0.3}, noise=0.15)
    (shared,) = APART.between(Points.of([KERNELS[1]]), Points.of([KERNELS[0]]))[0]
    gain = shared / (1 + (0.15 / 0.3) ** 2)
    result = known.corrected(KERNELS[1], guess(KERNELS[1]))
    assert nearly(result.log_ps - guess(KERNELS[1]).log_ps, gain * 0.3)
    assert nearly(result.deviation, 0.3 * math.sqrt(1 - gain * shared))


@pytest.mark.parametrize("name, bits", [("AMX", 512), ("AVX-512 VNNI", 512), ("AVX2", 256), ("SSE4.2", 128)])
def test_the_vector_width_is_read_from_the_name_of_the_machine(name, bits):
    assert vector_bits(f"AMD EPYC ({name}), 2 cores") == bits


def test_the_stored_speeds_equal_the_database_values_without_rounding(tmp_path):
    speeds = stored_speeds(with_speeds(tmp_path / "costs.sqlite"), 1)
    assert speeds._asdict() == pytest.approx(
        {"product": 10, "convolution": 20, "near": 10, "cached": 20, "far": 50, "launch": 1e6,
         "vector_bits": vector_bits(machine())}
    )  # fmt: skip
    assert stored_speeds(TimingDatabase(tmp_path / "costs.sqlite"), 2) is None


def test_the_rank_correlation_averages_ties_and_is_zero_for_constant_values():
    def correlation(truth, predicted) -> float:
        return errors_of(truth, predicted, np.ones(4))["rank_correlation"]

    # The ranks are 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    a, b = np.array([1.0, 2, 2, 4]), np.array([10.0, 20, 30, 40])
    assert correlation(a, b) == pytest.approx(0.9487, abs=1e-4)
    assert correlation(a, -np.exp(a)) == pytest.approx(-1)
    assert correlation(a, np.ones(4)) == correlation(np.ones(4), a) == 0
