"""Which candidate is delivered: equality first, then what was measured, then the estimate."""

from types import SimpleNamespace

from rlflow.deliver.candidates import Candidate
from rlflow.deliver.delivery import FAULT_REPORT, _choose


def state(runtime_ps: int):
    return SimpleNamespace(objective=runtime_ps)


def measured(verdict: str) -> dict:
    """At two sizes, at one of which what is slower is slower."""
    return {"verdict": verdict, "slower_at": ["seq = 16"] if verdict == "slower" else []}


def choose(**candidates: tuple[int, bool, str | None]) -> tuple[str, str]:
    """`name=(estimated runtime, equal, verdict)`; the original's runtime is 100."""
    made = [Candidate(name, state(runtime), [], 0, 0.0) for name, (runtime, _, _) in candidates.items()]
    result = {
        name: {"equal": equal, "measured": verdict and measured(verdict), "left_out": []}
        for name, (_, equal, verdict) in candidates.items()
    }
    return _choose(100, made, result)


def test_the_lowest_estimate_wins_and_ties_go_to_the_first():
    assert choose(controller=(90, True, None), greedy=(80, True, None))[0] == "greedy"
    assert choose(controller=(80, True, None), greedy=(80, True, None))[0] == "controller"


def test_what_was_measured_to_be_faster_goes_before_what_is_only_estimated_to_be():
    name, reason = choose(controller=(70, True, "no difference shown"), random=(99, True, "faster"))
    assert name == "random" and "measured to be faster" in reason
    assert choose(controller=(70, True, "faster"), random=(60, True, "faster"))[0] == "random"


def test_what_was_measured_to_be_slower_is_not_delivered():
    assert choose(controller=(90, True, "no difference shown"), greedy=(50, True, "slower"))[0] == "controller"
    name, reason = choose(controller=(90, True, "slower"), greedy=(50, True, "slower"))
    assert name == "original" and reason.endswith("measured to be slower at seq = 16")


def test_no_estimated_gain_gives_the_original_back():
    assert choose(controller=(100, True, None), greedy=(100, True, "faster")) == ("original", "no gain was found")


def test_an_unequal_candidate_is_never_delivered():
    assert choose(controller=(90, True, None), greedy=(50, False, None))[0] == "controller"
    name, reason = choose(controller=(90, False, None))
    assert name == "original" and "equal" in reason and FAULT_REPORT in reason
