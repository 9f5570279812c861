"""Test which candidate is delivered: equality decides first, then the measurement, then the estimate.

In doubt the original is delivered.
"""

from types import SimpleNamespace

import pytest

from rlflow.costs.measured import Ratio
from rlflow.optimisation.candidates import Candidate
from rlflow.optimisation.choice import EQUAL, FASTER, FAULT_REPORT, choose, losses

MB = 10**6
LIKELY = {"faster": (0.8, 0.75, 0.85), "slower": (1.2, 1.15, 1.25), "same": (1.0, 0.99, 1.01)}
LOSS = (1.013, 1.002, 1.020)  # measured on an EfficientNet-B0; a margin of 0.01 did not show this loss


def measured(*at: str | tuple[float, float, float], memory: tuple[int, int] = (60 * MB, 60 * MB)) -> dict:
    """Return a measurement with the given latency ratios, one for each size.

    Args:
        at: the ratios, each as (ratio, low, high) or as a key of LIKELY; if there are several, the first one is
            the ratio over all sizes.
        memory: bytes of the original and of the candidate.
    """
    figures = []
    for one in at:
        ratio = Ratio(*LIKELY.get(one, one))
        figures.append({"ratio": ratio.ratio, "interval": [ratio.low, ratio.high], "verdict": ratio.verdict})
    sizes = {f"seq = {16 * k}": one for k, one in enumerate(figures) if k} or {"": figures[0]}
    bytes_before, bytes_after = memory
    return figures[0] | {
        "at": sizes, "pairs": 24, "original_memory_bytes": bytes_before, "candidate_memory_bytes": bytes_after,
    }  # fmt: skip


def choose_of(candidates: dict[str, tuple], accept: str = FASTER, file_bytes: int = 10 * MB) -> tuple[str, str]:
    """Return the chosen name and the reason among candidates; the original has runtime 100 and a file of 10 MB.

    Args:
        candidates: name → (estimated runtime, equal, measured).
        accept: the option `accept`.
        file_bytes: size of the file of each candidate.
    """
    made = [
        Candidate(name, SimpleNamespace(objective=runtime), [], 0, 0.0) for name, (runtime, *_) in candidates.items()
    ]
    result = {
        name: {"equal": equal, "measured": measurement, "left_out": [], "file_bytes": file_bytes}
        for name, (_, equal, measurement) in candidates.items()
    }
    return choose({"objective": 100, "file_bytes": 10 * MB}, made, result, accept)


def chosen(accept: str = FASTER, **candidates: tuple[int, bool, str | None]) -> tuple[str, str]:
    return choose_of({n: (t, ok, word and measured(word)) for n, (t, ok, word) in candidates.items()}, accept)


def test_the_lowest_estimate_wins_and_ties_go_to_the_first():
    assert chosen(controller=(90, True, "faster"), greedy=(80, True, "faster"))[0] == "greedy"
    assert chosen(controller=(80, True, "faster"), greedy=(80, True, "faster"))[0] == "controller"


def test_the_estimate_decides_and_the_reason_says_so_if_nothing_was_measured():
    name, reason = chosen(controller=(90, True, None), greedy=(80, True, None))
    assert name == "greedy" and reason.endswith("not measured")


def test_a_candidate_measured_faster_is_preferred_to_a_lower_estimate():
    for accept in (FASTER, EQUAL):
        name, reason = chosen(accept, controller=(70, True, "same"), random=(99, True, "faster"))
        assert name == "random" and "measured to be faster" in reason
    assert chosen(controller=(70, True, "faster"), random=(60, True, "faster"))[0] == "random"


def test_a_candidate_not_shown_to_be_faster_is_delivered_only_with_accept_equal():
    name, reason = chosen(controller=(70, True, "same"), greedy=(60, True, "slower"))
    assert name == "original" and "no difference in speed is shown in 24 pairs" in reason
    assert reason.endswith("(--accept equal would deliver controller)")
    name, reason = chosen(EQUAL, controller=(70, True, "same"), greedy=(60, True, "slower"))
    assert name == "controller" and "--accept equal" in reason


@pytest.mark.parametrize("accept", [FASTER, EQUAL])
def test_a_loss_within_the_margin_is_never_delivered(accept):
    assert Ratio(*LOSS).verdict == "no difference shown"
    assert losses(measured(LOSS)) == [""]
    memory = (60 * MB, 30 * MB)  # the smaller memory does not compensate for the longer latency
    name, reason = choose_of({"greedy": (50, True, measured(LOSS, memory=memory))}, accept)
    assert name == "original" and reason.endswith("measured to be slower")


@pytest.mark.parametrize("there", ["slower", LOSS])
@pytest.mark.parametrize("accept", [FASTER, EQUAL])
def test_a_candidate_slower_at_one_size_is_not_delivered(accept, there):
    name, reason = choose_of({"greedy": (50, True, measured("faster", there, "faster"))}, accept)
    assert name == "original" and reason.endswith("measured to be slower at seq = 16")
    assert choose_of({"greedy": (50, True, measured("faster", "same", "faster"))}, accept)[0] == "greedy"


@pytest.mark.parametrize(
    "memory, file_mb, said",
    [
        ((60, 50), 10, ["less memory while it runs (60.0 → 50.0 MB)"]),
        ((60, 60), 9, ["a smaller file (10.0 → 9.0 MB)"]),
        ((60, 50), 9, ["less memory while it runs (60.0 → 50.0 MB) and a smaller file (10.0 → 9.0 MB)"]),
        ((60, 58), 9.9, None),  # below the smallest saving that counts
        ((10, 7), 10, None),  # below the difference between two processes that run one file
        ((60, 50), 11, None),  # less memory, but a larger file
        ((60, 70), 9, None),  # a smaller file, but more memory
        ((None, None), 9, ["a smaller file (10.0 → 9.0 MB)"]),
        ((None, None), 10, None),
    ],
)
def test_less_memory_or_a_smaller_file_is_a_stated_reason_for_delivery(memory, file_mb, said):
    memory = tuple(each and each * MB for each in memory)
    candidates = {"greedy": (50, True, measured("same", memory=memory))}
    name, reason = choose_of(candidates, file_bytes=round(file_mb * MB))
    assert name == ("greedy" if said else "original")
    assert reason.startswith("no difference in speed is shown") and all(text in reason for text in said or [])


def test_a_saving_does_not_compensate_for_a_loss_that_a_short_measurement_does_not_show():
    """With one pair of sessions, a file that is 30 % slower has an interval that contains 1."""
    for ratio, name in ((1.3, "original"), (1.005, "greedy")):
        short = measured((ratio, 0.913, 1.849), memory=(60 * MB, 30 * MB))
        assert choose_of({"greedy": (50, True, short)})[0] == name


def test_no_estimated_gain_gives_the_original_back():
    assert chosen(controller=(100, True, None), greedy=(100, True, "faster")) == ("original", "no gain was found")


def test_an_unequal_candidate_is_never_delivered():
    assert chosen(controller=(90, True, None), greedy=(50, False, None))[0] == "controller"
    name, reason = chosen(controller=(90, False, None))
    assert name == "original" and "equal" in reason and FAULT_REPORT in reason
