"""Errors of a correction on graphs that were left out of its fit: nothing of them is seen."""

import pytest

from benchmarks.correction_errors import leave_one_model_out, leave_variants_out
from tests.costs.measurements import measurements


def test_a_model_that_is_left_out_is_never_seen():
    honest = measurements()
    for name in ("m0", "m3"):
        lied_about = [m._replace(measured_ms=10 * m.measured_ms) if m.model == name else m for m in honest]
        truth, result = leave_one_model_out(honest)[name], leave_one_model_out(lied_about)[name]
        assert result == pytest.approx((1 + truth) / 10 - 1, abs=1e-12)


def test_a_variant_that_is_left_out_is_never_seen():
    honest = measurements()
    lied_about = [m._replace(measured_ms=10 * m.measured_ms) if k == 0 else m for k, m in enumerate(honest)]
    truth, result = leave_variants_out(honest)["m0"][0], leave_variants_out(lied_about)["m0"][0]
    assert result == pytest.approx((1 + truth) / 10 - 1, abs=1e-12)
    assert {name: len(errors) for name, errors in leave_variants_out(honest).items()} == {f"m{k}": 8 for k in range(6)}


def test_a_single_model_has_no_errors():
    assert leave_one_model_out(measurements(models=1)) == {}
