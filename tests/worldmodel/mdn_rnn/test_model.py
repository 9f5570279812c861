import dataclasses

import numpy as np
import pytest

from rlflow.errors import RLFlowError
from rlflow.files import read_arrays, write_arrays
from tests.worldmodel import toy
from worldmodel import WORLD_MODELS
from worldmodel.world_model import WorldModel


def test_every_registered_world_model_imports():
    assert all(WORLD_MODELS.get(name) for name in WORLD_MODELS)


def test_save_and_load_change_nothing(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path / "a")
    again = WorldModel.load(tmp_path / "a", toy.SPEC)
    again.save(tmp_path / "b")
    for name in ("model.json", "weights.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    graphs = toy.episode(0).graphs
    np.testing.assert_array_equal(model.encode(graphs), again.encode(graphs))


def test_another_encoding_is_refused_with_one_clear_line(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path)
    other = dataclasses.replace(toy.SPEC, n_xfers=7)
    with pytest.raises(RLFlowError, match=r"made for another encoding: n_xfers is 3, not 7$") as error:
        WorldModel.load(tmp_path, other)
    assert "\n" not in str(error.value)


def test_weights_of_another_shape_are_refused(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path)
    arrays = read_arrays(tmp_path / "weights.npz")
    name = next(name for name in arrays if arrays[name].ndim == 2)
    write_arrays(tmp_path / "weights.npz", arrays | {name: np.zeros((2, 2))})
    with pytest.raises(RLFlowError, match=f"'{name}' has shape"):
        WorldModel.load(tmp_path)
    del arrays[name]
    write_arrays(tmp_path / "weights.npz", arrays)
    with pytest.raises(RLFlowError, match=f"lacks '{name}'"):
        WorldModel.load(tmp_path)


def test_a_missing_or_damaged_folder_is_a_clear_error(trained, tmp_path):
    with pytest.raises(RLFlowError, match="cannot read"):
        WorldModel.load(tmp_path)
    trained[0].save(tmp_path)
    (tmp_path / "weights.npz").write_bytes((tmp_path / "weights.npz").read_bytes()[:1000])
    with pytest.raises(RLFlowError, match="cannot read"):
        WorldModel.load(tmp_path)
