import pytest

from benchmarks.optimise import MODELS
from benchmarks.transfer import FOLDS, bars_of, fold_of, table


def figures(*gains: float, greedy: float = 10.0, beam: float = 12.0) -> dict:
    """Graphs on which two agents gained that, and a little less in the greedy episode."""
    result = {}
    for number, gain in enumerate(gains):
        run = {"improvement": gain, "of_learnt": gain - 0.5, "greedy_episode": gain - 1, "seconds": 0.5}
        run["untrained"] = run | {"improvement": gain - 2}
        result[MODELS[number]] = {"search": {"greedy": greedy, "beam": beam}, "runs": [run, run]}
    return result


def test_every_graph_is_in_one_fold_and_folds_are_alike():
    assert sorted(name for fold in FOLDS for name in fold) == sorted(MODELS)
    assert len({len(fold) for fold in FOLDS}) == 1 and all(name in FOLDS[fold_of(name)] for name in MODELS)


@pytest.mark.parametrize("gain, holds", [(10.9, True), (10.7, False)])
def test_nine_tenths_of_the_best_known_are_wanted(gain, holds):
    first, *_ = bars_of(figures(gain))
    assert first["holds"] == holds


def test_what_the_agent_itself_found_counts_as_known():
    first, *_ = bars_of(figures(20.0))
    assert first["value"] == 1


def test_what_it_found_before_it_learnt_counts_as_known_too():
    of = figures(10.0)
    for run in of[MODELS[0]]["runs"]:
        run["untrained"]["improvement"] = 20.0
    assert bars_of(of)[0]["value"] == 0.5


def test_greedy_descent_is_to_be_met_on_twelve_graphs():
    assert bars_of(figures(*[10.0] * 12, *[9.0] * 3))[-1]["holds"]
    assert not bars_of(figures(*[10.0] * 11, *[9.9] * 4))[-1]["holds"]


def test_the_table_has_both_searches_beside_the_agent():
    heads, _, row = table(figures(11.0)).splitlines()
    cells = dict(zip(map(str.strip, heads.split("|")), map(str.strip, row.split("|")), strict=True))
    assert cells["agent: best of ten"] == "11.00 ± 0.00 %" and cells["greedy episode"] == "10.00 ± 0.00 %"
    assert cells["what it learnt: best of five"] == "10.50 ± 0.00 %"
    assert cells["untrained: best of nine"] == "9.00 ± 0.00 %"
    assert cells["greedy descent"] == "10.00 %" and cells["beam"] == "12.00 %" and cells["seeds"] == "2"
