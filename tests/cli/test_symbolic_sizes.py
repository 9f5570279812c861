"""Test commands on a model with symbolic sizes."""

import onnx
import pytest

from tests.commands import in_process
from tests.toys.shape_arithmetic import MODEL


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ((), " at N = 1, S = 128"),
        (("--shape", "S=16,32"), " at N = 1, S = 16"),
        (("--shape", "S=16", "--fix"), " at N = 1"),
        (("--shape", "x=2x16x4", "--fix"), ""),
    ],
)
def test_the_bound_applies_to_the_typical_size(model, capsys, words, where):
    done = in_process(capsys, "bound", "--model", model, "--seconds", "5", *words)
    assert f"a bound on the analytic cost{where}, nothing was measured" in done.ending["sure"]


def test_rules_are_explained_on_the_prepared_graph(model, capsys):
    done = in_process(capsys, "rules", "explain", model)
    assert "of shape arithmetic applied first; in the remaining graph:" in done.out and "relu-relu" in done.out
    assert "reshape-to-known" not in done.out  # this rule has already been applied
