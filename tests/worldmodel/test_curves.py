"""Test that curves are read back from TensorBoard's event files as they were written."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldmodel.boards import EventWriter, read_curves


def write(folder, values: dict[int, dict[str, float]]):
    with EventWriter(folder) as writer:
        for step, scalars in values.items():
            writer.scalars(step, scalars)


def test_written_curves_are_read_and_a_restart_replaces_repeated_steps(tmp_path):
    write(tmp_path / "ppo-1", {0: {"return": 1.0, "loss": 0.5}, 10: {"return": 2.0}})
    write(tmp_path / "ppo-1", {10: {"return": 3.0}, 20: {"return": 4.0}})
    write(tmp_path / "deep" / "wm", {5: {"x": -1.0}})
    assert read_curves(tmp_path) == {
        "deep/wm": {"x": [(5, -1.0)]}, "ppo-1": {"loss": [(0, 0.5)], "return": [(0, 1.0), (10, 3.0), (20, 4.0)]},
    }  # fmt: skip
    assert read_curves(tmp_path / "none") == {}


def test_files_of_one_second_are_read_in_the_order_in_which_they_were_written(tmp_path):
    for k in range(12):
        write(tmp_path, {0: {"x": float(k)}})
        assert read_curves(tmp_path)["."]["x"] == [(0, k)]


@pytest.mark.parametrize("lost", [1, 20])
def test_a_truncated_event_file_gives_its_complete_entries(tmp_path, lost):
    write(tmp_path / "a", {k: {"x": float(k)} for k in range(5)})
    (file,) = (tmp_path / "a").iterdir()
    file.write_bytes(file.read_bytes()[:-lost])
    assert read_curves(tmp_path)["a"]["x"] == [(k, float(k)) for k in range(4)]


def test_a_resumed_training_replaces_its_repeated_steps_in_tensorboard_too(tmp_path):
    write(tmp_path, {k: {"x": float(k), "y": 0.0} for k in range(6)})
    write(tmp_path, {k: {"x": -float(k)} for k in (3, 4)})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    expected = {"x": [(0, 0.0), (1, 1.0), (2, 2.0), (3, -3.0), (4, -4.0)], "y": [(0, 0.0), (1, 0.0), (2, 0.0)]}
    assert read_curves(tmp_path)["."] == expected
    for tag, curve in expected.items():
        assert [(event.step, event.value) for event in events.Scalars(tag)] == curve


def test_rewritten_curves_replace_the_earlier_curves_at_their_first_point(tmp_path):
    write(tmp_path / "a", {k: {"x": 1.0} for k in range(3)})
    with EventWriter(tmp_path / "a", anew=True) as writer:
        assert len(read_curves(tmp_path)["a"]["x"]) == 3  # Old points stay until a new point is written.
        writer.scalars(1, {"x": 2.0})
        writer.scalars(0, {"x": 3.0})
    assert read_curves(tmp_path) == {"a": {"x": [(0, 3.0), (1, 2.0)]}}
    with EventWriter(tmp_path / "b"):
        pass
    assert not (tmp_path / "b").exists()
