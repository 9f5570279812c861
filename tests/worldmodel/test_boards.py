"""Test the TensorBoard pages: tags are consistent, important curves come first, and a page explains every curve."""

import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util import tensor_util

from rlflow.common.errors import RLFlowError
from tests.events import always, tags_of
from worldmodel.boards import BOARDS, StageWriter, draw, explain, read_curves, tag_of, training_curves


@pytest.fixture
def about(tmp_path):
    """Return the page and the layout as TensorBoard's own reader loads them."""
    explain(tmp_path)
    explain(tmp_path)  # a restart
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 1
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def content(events: EventAccumulator, plugin: str) -> bytes:
    """Return the content of the only summary of this plugin."""
    ((tag, _),) = events.PluginTagToContent(plugin).items()
    (event,) = events.Tensors(tag)
    return tensor_util.make_ndarray(event.tensor_proto).item()


def first_tags() -> list[str]:
    return [tag_of(stage, name) for stage, board in BOARDS.items() for name in board.first]


def test_the_page_of_curves_explains_every_curve_once(about):
    text = content(about, "text").decode()
    assert text.startswith("# Which curves to look at first\n")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == first_tags()
    assert all(row.count("|") == 4 for row in rows)  # A text with a column separator would break the table.
    for stage, board in BOARDS.items():
        assert text.count(f"## {stage}\n\n{board.about}") == 1
        for name, meaning in board.diagnostics.items():
            assert f"- `{name}`: {meaning}\n" in text


def test_each_custom_chart_shows_exactly_one_first_curve(about):
    layout = layout_pb2.Layout.FromString(content(about, "custom_scalars"))
    assert len(layout.category) == len(BOARDS)
    patterns = [pattern for category in layout.category for chart in category.chart for pattern in chart.multiline.tag]
    matched = [[tag for tag in first_tags() if re.match(pattern, tag)] for pattern in patterns]
    assert matched == [[tag] for tag in first_tags()]


def test_first_curves_sort_before_diagnostics_and_the_return_sorts_first():
    first, rest = set(), set()
    for stage, board in BOARDS.items():
        first |= {tag_of(stage, name).split("/")[0] for name in board.first}
        rest |= {tag_of(stage, f"a part/{name}").split("/")[0] for name in board.diagnostics}
    assert max(first) < min(rest) and min(first_tags()) == "1 dream and reality/return"
    assert len(set(first_tags())) == len(first_tags())


def test_a_curve_that_is_not_declared_is_refused(tmp_path):
    with StageWriter(tmp_path, "train-controller") as writer:
        writer.scalars(3, {"return": 1.0, "entropy": 0.5})
        for name in ("mean_return", "losses", "encoder/return", "held_out_loss"):
            with pytest.raises(RLFlowError, match=rf"'{name}' is no curve of the stage 'train-controller': declare it"):
                writer.scalars(4, {name: 1.0})
    assert tags_of(tmp_path) == {"3 controller/return", "diagnostics of train-controller/entropy"}
    assert tag_of("train-wm", "dynamics-2/loss") == "diagnostics of train-wm/dynamics-2/loss"


def test_a_curve_drawn_again_replaces_the_earlier_one(tmp_path):
    for curve in ([(0, 1.0), (1, 2.0), (2, 3.0)], [(0, 4.0), (1, 5.0)]):
        draw(tmp_path / "a", "eval", {"return": curve})
    assert read_curves(tmp_path) == {"a": {"1 dream and reality/return": curve}}


def test_reports_show_only_the_first_curves_of_trainings(tmp_path):
    explain(tmp_path)
    draw(tmp_path / "eval-real-1", "eval", {"return": [(0, 0.0)]})
    draw(tmp_path / "ppo-1", "train-controller", {"return": [(9, 1.0)], "entropy": [(9, 2.0)]})
    assert read_curves(tmp_path)["about"] == {}  # The texts of the page are no curves.
    assert training_curves(tmp_path) == {"ppo-1": {"return (reward) by environment steps": [(9, 1.0)]}}


def test_an_mdn_rnn_shows_its_losses(trained, shared_folder):
    """The fixture's training shows the tags that `StageWriter` accepted."""
    seen = tags_of(shared_folder / "trained" / "tensorboard")
    parts = {"encoder/loss", "encoder/costs", "dynamics/z", "dynamics/xfer_mask", "dynamics/learning_rate"}
    assert seen >= {"2 world model/loss", *(f"diagnostics of train-wm/{part}" for part in parts)}
    assert "diagnostics of train-wm/dynamics/loss" not in seen


def test_an_optimised_run_draws_the_first_curves_of_every_stage(optimised):
    folder = optimised / "run" / "tensorboard"
    assert tags_of(folder) >= always()
    curves = read_curves(folder)
    dreamt, real = (curves[f"eval-{name}-ppo-1"]["1 dream and reality/return"] for name in ("dream", "real"))
    assert dreamt[0] == real[0] == (0, 0.0) and min(len(dreamt), len(real)) > 1
    model, nothing = (curves[f"fidelity-{name}"]["2 world model/error_by_horizon"] for name in ("model", "no-change"))
    assert [horizon for horizon, _ in model] == [horizon for horizon, _ in nothing] and model[0][0] == 1
    assert all(error == 1 for _, error in nothing)
