import pytest

from benchmarks.grasp import LOOKED_AT, WITH, WITHOUT, bars_of, searched, table


def figures(ahead: float, name: str = "bert_base") -> dict:
    def runs(gain: float) -> list[dict]:
        return [{"improvement": gain, "of": {"grasp": 1.0}}, {"improvement": gain + 0.5, "of": {"grasp": 2.0}}]

    return {name: {WITH: runs(7.0 + ahead), WITHOUT: runs(7.0)}}


@pytest.mark.parametrize("ahead, holds", [(0.3, True), (0.0, True), (-0.04, True), (-0.06, False)])
def test_it_may_take_next_to_nothing_from_the_others(ahead, holds):
    (bar,) = bars_of(figures(ahead))
    assert bar["value"] == pytest.approx(ahead) and bar["holds"] is holds


def test_graphs_that_it_was_written_on_are_shown_and_not_judged():
    shown = figures(1.0, LOOKED_AT[0])
    assert bars_of(shown) == [] and f"| {LOOKED_AT[0]} | yes | 2 |" in table(shown)
    assert "| bert_base |  | 2 |" in table(figures(1.0))


def test_the_searches_differ_by_it_alone():
    both = [searched("tiny_squeezenet1_1", with_it, 0, 1.0) for with_it in (True, False)]
    assert set(both[0]["of"]) - set(both[1]["of"]) == {"grasp"}
    assert all(one["improvement"] == max(one["of"].values()) > 0 for one in both)
