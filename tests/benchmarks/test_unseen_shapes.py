from types import SimpleNamespace

import pytest

from benchmarks import unseen_shapes
from benchmarks.unseen_shapes import MODELS, bars_of, replayed, searched, table
from rlflow.zoo.convolutional import tiny_resnet18


def figures(elsewhere: float, seconds: float = 5.0) -> dict:
    run = {"improvement": 10.0, "seconds": seconds}
    there, other = [run, run], [run | {"improvement": elsewhere}] * 2
    return {"a at 3": {"replay": {"improvement": 9.0}, "beam": run, "elsewhere": other, "there": there}}


@pytest.mark.parametrize("gain, seconds, holds", [(9.6, 5, [True, True]), (9.4, 11, [False, False])])
def test_bars(gain, seconds, holds):
    assert [bar["holds"] for bar in bars_of(figures(gain, seconds))] == holds


def test_the_table_has_the_replay_beside_both_agents():
    heads, _, row = table(figures(9.5)).splitlines()
    cells = dict(zip(map(str.strip, heads.split("|")), map(str.strip, row.split("|")), strict=True))
    assert cells["learnt elsewhere"] == "9.50 ± 0.00 %" and cells["receipt replayed"] == "9.00 %"


@pytest.mark.parametrize("name", MODELS)
def test_no_unseen_size_is_the_learnt_one(name):
    _, learnt, unseen = MODELS[name]
    assert learnt not in unseen and len(set(unseen)) == 5


def test_a_replay_at_the_same_size_gains_what_the_search_gained_and_leaves_nothing_out(tmp_path, monkeypatch):
    """At another size rewrites that are not valid there are left out, and it is said how many."""
    monkeypatch.setitem(unseen_shapes.MODELS, "toy", (lambda size: tiny_resnet18(0), 1, (2,)))
    monkeypatch.setattr(unseen_shapes, "INTERACTIONS", 500)
    parsed = SimpleNamespace(folder=tmp_path, cost="analytic", seed=0)
    search = searched("toy", 1, parsed)
    again = replayed("toy", 2, search["actions"], parsed)
    assert again == {"improvement": pytest.approx(search["improvement"]), "left_out": 0} and search["improvement"] > 0
    assert replayed("toy", 2, [[0, 199], *search["actions"]], parsed)["left_out"] == 1
