"""Test that a model accepts the random inputs drawn for it, and that errors are one line."""

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import run, session
from tests.costs.graphs import model

LOOKUP = """g (int64[1,50] ids, int32[50] mask, bool[50] flag, float[2] x) => (float[2] y)
  <float[7,4] table = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28}>
  {a = Cast<to=7>(ids) b = Identity(a) t = Gather(table, b) y = Neg(x)}"""


def test_random_integers_are_rows_of_the_indexed_table_or_bits():
    inputs = random_inputs(model(LOOKUP), seed=0)
    assert set(np.unique(inputs["ids"])) == set(range(7)) and inputs["ids"].dtype == np.int64
    assert set(np.unique(inputs["mask"])) == {0, 1} and inputs["mask"].dtype == np.int32
    assert inputs["flag"].dtype == bool and inputs["x"].dtype == np.float32
    assert list(inputs) == ["ids", "mask", "flag", "x"]


def test_random_inputs_depend_on_the_seed_and_the_names_and_not_on_the_order():
    one = "g (float[3] a, float[3] b) => (float[3] y) {y = Sub(a, b)}"
    other = "g (float[3] b, float[3] a) => (float[3] y) {y = Sub(a, b)}"
    first, second, third = random_inputs(model(one), 5), random_inputs(model(other), 5), random_inputs(model(one), 6)
    for name in "ab":
        np.testing.assert_array_equal(first[name], second[name])
        assert not np.array_equal(first[name], third[name])


def test_symbolic_dimensions_must_be_bound():
    loose = model("g (float[N,2] x) => (float[N,2] y) {y = Neg(x)}")
    with pytest.raises(RLFlowError, match="--shape N=1"):
        random_inputs(loose, 0)
    assert random_inputs(loose, 0, {"N": 3})["x"].shape == (3, 2)


def test_an_input_type_that_cannot_be_drawn_is_refused():
    with pytest.raises(RLFlowError, match="input 'x' of type BFLOAT16.*--inputs"):
        random_inputs(model("g (bfloat16[2] x) => (bfloat16[2] y) {y = Identity(x)}"), 0)


def test_errors_of_onnx_runtime_are_one_line(tmp_path, capfd):
    with pytest.raises(RLFlowError, match="ONNX Runtime rejects the model: .*NoSuchThing") as refused:
        session(model("g (float[2] x) => (float[2] y) {y = com.microsoft.NoSuchThing(x)}"), 1)
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(RLFlowError, match="junk.onnx"):
        session(tmp_path / "junk.onnx", 1)
    good = session(model("g (float[2] x) => (float[2] y) {y = Neg(x)}"), 1)
    with pytest.raises(RLFlowError, match="cannot run") as failed:
        run(good, {"x": np.zeros(3, np.float32)})
    assert "\n" not in str(refused.value) + str(failed.value)
    assert capfd.readouterr() == ("", "")
