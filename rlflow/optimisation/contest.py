"""The contest: different candidates are measured end to end against the original and ranked by successive halving.

An estimate is the sum of the timings of single kernels, and its error depends on the rules that were applied.
`contenders` therefore selects candidates with different rewrites. They are the cheapest candidate after pruning, the
cheapest one by the roofline (which needs no timings), the first of them before pruning, and the results of the other
searches. Variants of the first contender each lack the rewrites of one rule family, or the rewrites that introduce
operators of ONNX Runtime's own domains. Variants without a family that slowed down files on this machine come first.

`halve` measures all contenders in a short heat, drops the slower half and repeats until one contender is left
(successive halving; Jamieson and Talwalkar, AISTATS 2016). Most time is thus spent on contenders of similar latency.

`compete` ranks the contenders. The delivery compares the winner with the original and measures it again in other runs.
If the winner is not equal or not faster, the next contender is tried. The measured effects of rule families are stored
with the timings of this machine. They order the variants of later contests and never decide what is delivered.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.costs import TimeIsUp, graph_cost
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.at_sizes import at_sizes
from rlflow.costs.measured import TOGETHER, Ratio, ratio_of, ratios_in_turns
from rlflow.costs.target import target_of
from rlflow.env.state import Task
from rlflow.graph.feeds import Feeds
from rlflow.graph.onnx_reader import file_bytes
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation.ablation import Rewrites, pruned
from rlflow.optimisation.anytime import BestSoFar
from rlflow.optimisation.candidates import Candidate

MAX_PRUNED = 2  # number of cheapest candidates that are pruned, to save time
WHOLE, WITHOUT, STANDARD = "whole", "without", "standard"  # suffixes of contenders' names, as in "beam-without-fusion"


class Contender(NamedTuple):
    """A candidate in a contest.

    Attributes:
      candidate: the candidate.
      without: the rule family whose rewrites were left out to make this variant of the first contender; None for other
        contenders.
    """

    candidate: Candidate
    without: str | None = None


def pruned_candidates(best: BestSoFar, seconds: float) -> list[Candidate]:
    """Return the candidates with different graphs, cheapest first, after pruning the MAX_PRUNED cheapest ones.

    Pruning repeats uncertain timings, so the costs of all states are computed again.

    Args:
      best: the best candidates of all searches.
      seconds: the time limit of pruning.
    """
    task, end = best.task, time.monotonic() + seconds
    result = different(best.candidates())
    several = min(len(result), MAX_PRUNED)
    for number in range(several):
        result[number] = pruned(task, result[number], (end - time.monotonic()) / (several - number))
    if target_of(task.cost) is None and hasattr(task.cost, "time_again"):
        task.forget_costs()
        best.recount()
        result = [replace(one, state=one.state.with_current_cost()) for one in result]
    return sorted(result, key=lambda candidate: candidate.state.objective)


def contenders(
    task: Task, candidates: Sequence[Candidate], whole: Sequence[Candidate], measured: Mapping[str, float],
    end: float = math.inf,
) -> list[Contender]:  # fmt: skip
    """Return the contenders: candidates with different graphs and an estimated gain, most promising first.

    The order is: the first candidate, the cheapest one by the roofline, the first one before pruning, the variants of
    the first one, and the other candidates.

    Args:
      task: the rewriting task.
      candidates: the candidates after pruning, lowest objective first.
      whole: the same candidates before pruning.
      measured: rule family → the mean latency ratio with / without its rewrites that contests measured on this machine.
      end: the value of time.monotonic() after which no variant is made.
    """
    first, second = candidates[0], _cheapest_by_roofline(task, candidates)
    before = next(candidate for candidate in whole if candidate.name == first.name)
    rules = [task.rules[xfer_id] for xfer_id, _ in first.actions]

    def variant(steps: set[int], name: str, family: str | None = None) -> Contender:
        rest = rewrites.without(steps)
        named = replace(first, name=f"{first.name}-{name}", actions=rest.actions, state=rest.state)
        return Contender(named, family)

    left_out = []
    with suppress(TimeIsUp):
        rewrites = Rewrites(task, first.actions, end)
        for family in dict.fromkeys(rule.family for rule in rules):
            steps = {step for step, rule in enumerate(rules) if rule.family == family}
            left_out.append(variant(steps, f"{WITHOUT}-{family}", family))
        fused = {step for step, rule in enumerate(rules) if any(op.domain for op in rule.target_ops)}
        left_out.append(variant(fused, STANDARD))
    left_out.sort(key=lambda one: (-measured.get(one.without, 1.0), one.candidate.state.objective))
    others = [replace(before, name=f"{first.name}-{WHOLE}"), *candidates[1:]]
    every = [Contender(first), Contender(second), Contender(others[0]), *left_out, *map(Contender, others[1:])]
    entered: dict[str, Contender] = {}  # by graph
    for one in every:
        if one.candidate.state.objective < task.original_cost.runtime_ps:
            entered.setdefault(one.candidate.state.hash, one)
    return list(entered.values())


def _cheapest_by_roofline(task: Task, candidates: Sequence[Candidate]) -> Candidate:
    roofline = at_sizes(AnalyticCost(), task.sizes, task.original)
    return min(candidates, key=lambda candidate: graph_cost(roofline, candidate.state.graph).runtime_ps)


def pruned_winner(task: Task, winner: Candidate, seconds: float) -> Candidate:
    """Take back the rewrites of the winner that gain nothing by the known timings.

    In a variant without a rule family, these are for example rewrites that only prepared rewrites of the family. A
    winner whose name ends in "whole" is returned unchanged.

    Args:
      task: the rewriting task.
      winner: the winner of the contest.
      seconds: the time limit.
    """
    if winner.name.endswith(f"-{WHOLE}"):
        return winner
    return pruned(task, winner, seconds, again=False)


def different(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates without repetitions; of candidates with the same graph only the first is kept."""
    of_graph: dict[str, Candidate] = {}
    for candidate in candidates:
        of_graph.setdefault(candidate.state.hash, candidate)
    return list(of_graph.values())


MOST_DRAWS = 8  # largest number of draws in a heat; more draws would be more precise than the later measurement


def halve(count: int, draw: Callable[[list[int]], list[float]], end: float) -> tuple[list[int], list[list[float]]]:
    """Rank contenders by successive halving on the median of their draws.

    All heats get the same share of the time that is left. A draw begins only if, at the speed of the previous draw, it
    ends within its heat. The first draw of a heat need only end before `end`.

    Args:
      count: the number of contenders, which are numbered from 0. Equally good contenders keep this order.
      draw: a function that takes a list of contenders and returns for each the latency ratio contender / original.
      end: the value of time.monotonic() at the end of the contest.

    Returns:
      The contenders, best first, and for each contender, in the order of the numbers, the ratios of its draws.
    """
    results: list[list[float]] = [[] for _ in range(count)]
    left, dropped, side = list(range(count)), [], 0.0
    for later in reversed(range((count - 1).bit_length())):
        now = time.monotonic()
        until = now + (end - now) / (later + 1)
        for number in range(MOST_DRAWS):
            began, sides = time.monotonic(), len(left) + 1
            if began + side * sides > (until if number else end):
                break
            for index, result in zip(left, draw(left), strict=True):
                results[index].append(result)
            side = (time.monotonic() - began) / sides
        if results[left[0]]:
            left.sort(key=lambda index: np.median(results[index]))
        half = (len(left) + 1) // 2
        left, dropped = left[:half], left[half:] + dropped
    return left + dropped, results


DRAW_SECONDS = 0.1  # seconds of runs per file and size in one draw
SIDES_PER_CONTENDER = (
    2.5  # measured files / contenders if each heat has one draw: n + n/2 + … contenders, and the original in each heat
)


class Contest(NamedTuple):
    """The result of a contest.

    Attributes:
      ranked: all candidates, best first; the candidates without a measurement come last.
      families: rule family → the measured ratio latency with its rewrites / latency without its rewrites.
      table: one JSON-able row {"name", "draws" (number), "ratio" (median candidate / original)} per measured candidate.
    """

    ranked: list[Candidate]
    families: dict[str, Ratio]
    table: list[dict]


def compete(
    source: Path, contenders: Sequence[Contender], sizes: Mapping[str, Mapping], threads: int, seed: int, end: float,
    feeds: Feeds,
) -> Contest:  # fmt: skip
    """Measure as many contenders as the time allows end to end, and rank them.

    Args:
      source: the file of the original.
      contenders: the contenders, most promising first. A contender with `without` is a variant of the first one.
      sizes: name of a typical size → input shapes, see `rlflow.costs.measured.measure`.
      threads: the number of threads of ONNX Runtime.
      seed: the seed of the random inputs and of the bootstrap.
      end: the value of time.monotonic() at the end of the contest.
      feeds: the inputs of the original.
    """
    if len(contenders) < 2 or time.monotonic() >= end:
        return Contest([contender.candidate for contender in contenders], {}, [])
    inputs = list(feeds.at(sizes, seed).values())
    competing = list(contenders)[: affordable_contenders(source, inputs, threads, end)]
    order, ratios = list(range(len(competing))), [[] for _ in competing]
    if len(competing) > 1:
        try:
            order, ratios = _ranked_by_halving(source, competing, inputs, threads, end)
            order[:2] = _smaller_first(order[:2], competing, ratios, seed)
        except RLFlowError as error:  # the checks of the delivery find the candidate that ONNX Runtime refuses
            say(f"the contest is skipped, because a candidate cannot be run: {error}")
    ranked = [competing[index].candidate for index in order]
    ranked += [contender.candidate for contender in contenders[len(competing) :]]
    table = [
        {"name": competing[k].candidate.name, "draws": len(ratios[k]), "ratio": float(np.median(ratios[k]))}
        for k in order if ratios[k]
    ]  # fmt: skip
    return Contest(ranked, _family_ratios(competing, ratios, seed), table)


def affordable_contenders(source: Path, inputs: list, threads: int, end: float) -> int:
    """Return how many contenders can be measured until a deadline and have sessions at once within TOGETHER bytes.

    A session of the original is made and run briefly to estimate the seconds that each contender needs.

    Args:
      source: the file of the original.
      inputs: for each size, the input arrays by name.
      threads: the number of threads of ONNX Runtime.
      end: the value of time.monotonic() at the deadline.
    """
    began = time.monotonic()
    ratios_in_turns(source, [], inputs, threads, 0.0, 0)
    now = time.monotonic()
    side = now - began + DRAW_SECONDS * len(inputs)
    return max(min(int((end - now) / (SIDES_PER_CONTENDER * side)), TOGETHER // file_bytes(source) - 1), 0)


def _ranked_by_halving(
    source: Path, competing: Sequence[Contender], inputs: list, threads: int, end: float
) -> tuple[list[int], list[list[float]]]:
    """Write a file for each contender, measure the files in heats, and return the result of `halve`."""
    draws = 0

    def draw(left: list[int]) -> list[float]:
        nonlocal draws
        draws += 1
        return ratios_in_turns(source, [files[k] for k in left], inputs, threads, DRAW_SECONDS * (len(left) + 1), draws)

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.onnx") for number in range(len(competing))]
        for contender, file in zip(competing, files, strict=True):
            save_graph(contender.candidate.state.graph, file)
        return halve(len(competing), draw, end)


def _smaller_first(finalists: list[int], competing: Sequence[Contender], ratios: list, seed: int) -> list[int]:
    """Order the two best contenders: the one with fewer rewrites comes first unless the other is shown to be faster."""
    better, other = finalists
    pairs = [[a / b] for a, b in zip(ratios[better], ratios[other], strict=True)]
    shown = len(pairs) > 1 and ratio_of(pairs, seed).high < 1
    sizes = [len(competing[index].candidate.actions) for index in finalists]
    return [other, better] if sizes[1] < sizes[0] and not shown else finalists


def _family_ratios(competing: Sequence[Contender], ratios: list[list[float]], seed: int) -> dict[str, Ratio]:
    """Return rule family → latency of the first contender / latency of the variant without the family.

    A family is left out if its variant was measured in fewer than two draws.
    """
    result = {}
    for contender, without in zip(competing, ratios, strict=True):
        pairs = [[a / b] for a, b in zip(ratios[0], without, strict=False)]
        if contender.without is not None and len(pairs) > 1:
            result[contender.without] = ratio_of(pairs, seed)
    return result
