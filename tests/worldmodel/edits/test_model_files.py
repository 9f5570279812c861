"""Test that a saved model loads as the same model, and that a damaged file is refused with a message of one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, read_json, write_arrays, write_json
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    random_episodes,
    said,
    signs_and_products,
    task_of,
)
from worldmodel.edits.model import EditsWorldModel
from worldmodel.train_and_load import load

FILES = ("model.json", "learnt.json", "tables.npz")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return (model, folder, held-out episodes); tests do not write to the folder."""
    task, folder = task_of(signs_and_products(), SIGNS_AND_PRODUCTS), tmp_path_factory.mktemp("saved")
    model = fitted(random_episodes(task, 30, 8), task)
    model.save(folder)
    return model, folder, random_episodes(task, 10, 8, seed=1)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_loaded_model_predicts_the_same_and_writes_the_same_bytes(saved, tmp_path):
    model, folder, episodes = saved
    assert set(contents(folder)) == set(FILES)
    back = load(folder, model.spec)
    assert isinstance(back, EditsWorldModel) and back.config == model.config
    for one, other in zip(said(model, episodes), said(back, episodes), strict=True):
        assert np.array_equal(one, other)
    assert back.calibration(episodes) == model.calibration(episodes)
    back.save(tmp_path / "again")
    model.save(tmp_path / "after dreams")
    assert contents(tmp_path / "again") == contents(tmp_path / "after dreams") == contents(folder)


def test_the_same_episodes_give_the_same_bytes(saved, tmp_path):
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    fitted(random_episodes(task, 30, 8), task).save(tmp_path)
    assert contents(tmp_path) == contents(saved[1])


def is_refused(folder: Path) -> bool:
    """Return whether loading the model of a folder fails with a message of one line of fewer than 400 characters."""
    with pytest.raises(RLFlowError) as error:
        EditsWorldModel.load(folder)
    return "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("name", FILES)
def test_a_missing_empty_or_cut_file_is_refused(saved, tmp_path, name):
    folder = Path(shutil.copytree(saved[1], tmp_path / "copy"))
    whole = (folder / name).read_bytes()
    for content in (None, b"", whole[: len(whole) // 2], whole[:-20], b"[" * 100_000):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
        assert is_refused(folder)


def parts(value, path=()):
    """Yield the path to every value of a JSON document."""
    yield path
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from parts(part, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def test_a_replaced_value_in_learnt_json_is_refused_or_harmless(saved, tmp_path):
    """Replace one value at a time, at about 150 places. A model that still loads must replay; otherwise the refusal has
    one line."""
    model, folder, episodes = saved
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    learnt, rng, refusals = read_json(copy / "learnt.json"), np.random.default_rng(0), 0
    everywhere = list(parts(learnt))
    for k in range(0, len(everywhere), max(1, len(everywhere) // 150)):
        wrong = [None, "x", -7, 10**6, 2**70, 1.5, [], [[]], {}][rng.integers(9)]
        (copy / "learnt.json").write_text(json.dumps(replaced(learnt, everywhere[k], wrong)))
        try:
            loaded = EditsWorldModel.load(copy)
        except RLFlowError as error:
            refusals += 1
            assert "\n" not in str(error)
            continue
        said(loaded, episodes[:2])
    assert refusals > 75


@pytest.mark.parametrize("wrong", [
    lambda a: np.zeros(0), lambda a: a[..., None], lambda a: a.astype("U8"),
    lambda a: a[..., :-1] if a.ndim else np.zeros(3),
])  # fmt: skip
def test_an_array_of_another_shape_or_kind_is_refused(saved, tmp_path, wrong):
    folder = Path(shutil.copytree(saved[1], tmp_path / "copy"))
    arrays = read_arrays(folder / "tables.npz")
    for name in arrays:
        write_arrays(folder / "tables.npz", {**arrays, name: wrong(arrays[name])})
        assert is_refused(folder)
        write_arrays(folder / "tables.npz", {other: values for other, values in arrays.items() if other != name})
        assert is_refused(folder)


@pytest.mark.parametrize("column, wrong", [(0, 0), (0, -1e6), (0, np.inf), (1, np.nan), (1, -np.inf)])
def test_a_runtime_that_is_not_positive_or_a_scale_that_is_not_finite_is_refused(saved, tmp_path, column, wrong):
    folder = Path(shutil.copytree(saved[1], tmp_path / "copy"))
    arrays = read_arrays(folder / "tables.npz")
    arrays["scales"][0, column] = wrong
    write_arrays(folder / "tables.npz", arrays)
    with pytest.raises(RLFlowError, match="'scales' has a runtime that is not positive, or a number that is not fin"):
        EditsWorldModel.load(folder)


def test_a_model_of_a_graph_without_rewrites_has_a_scale_of_zero_and_loads(tmp_path):
    task = task_of(onnx_model("a = Abs(x)", {"x": (2,)}, "a"), SIGNS_AND_PRODUCTS)
    model = fitted(random_episodes(task, 3, 5), task)
    model.save(tmp_path)
    assert list(EditsWorldModel.load(tmp_path).rewards.scales.values()) == [0.0]


def test_a_model_of_another_encoding_is_refused(saved):
    model, folder, _ = saved
    with pytest.raises(RLFlowError, match="n_rules is 3, not 4"):
        load(folder, type(model.spec)(**{**model.spec.to_dict(), "n_rules": 4}))


def test_an_unknown_symmetric_rule_in_a_model_file_is_harmless(saved, tmp_path):
    folder = Path(shutil.copytree(saved[1], tmp_path / "copy"))
    learnt = read_json(folder / "learnt.json")
    learnt["rules"]["symmetric"] = [999]
    write_json(folder / "learnt.json", learnt)
    assert said(EditsWorldModel.load(folder), saved[2]).exact == 1


@pytest.mark.parametrize("older", [{"files": 4}, {"format": 0}])
def test_a_file_of_another_format_is_refused_with_both_format_numbers(saved, tmp_path, older):
    folder = Path(shutil.copytree(saved[1], tmp_path / "copy"))
    write_json(folder / "learnt.json", read_json(folder / "learnt.json") | older)
    with pytest.raises(RLFlowError, match=r"of format \d+, not \d+. Train it again"):
        EditsWorldModel.load(folder)
