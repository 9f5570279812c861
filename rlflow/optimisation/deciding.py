"""Time the kernels that decide: those whose timing is most likely to change which candidate is the best.

The predicted cost (`rlflow.costs.predicted`) knows each kernel with an uncertainty. Two candidates differ by a sum of
kernels, and common kernels cancel. Let another candidate cost D more than the best one, and let S be the standard
deviation of this difference. Then full knowledge of the difference is worth the expected improvement

    S · (φ(z) − z · (1 − Φ(z))),  z = D / S

(Jones, Schonlau and Welch 1998, doi 10.1023/A:1008306431147, equation 15). This value is divided among the kernels in
proportion to their shares in the variance of the difference. Kernels are timed in the order of their value per second
of timing, highest first. Errors of different kernels are treated as independent.

A search prefers kernels whose prediction is too low by chance. Therefore the kernels that the best candidate and the
original do not share are timed, too (`unproved`), even if the predictions leave no doubt which graph is faster.
"""

import math
import time
from collections.abc import Mapping, Sequence

from rlflow.common.messages import counted, say
from rlflow.costs import CostModel, TimeIsUp, graph_cost, graph_spread, timing_until
from rlflow.costs.predicted import predicting
from rlflow.costs.timing import Z
from rlflow.graph.ir import Graph
from rlflow.optimisation.anytime import BestSoFar, search_all

LEAST_VALUE = 0.0005  # expected improvement that is worth no timing, as a share of the runtime of the best candidate
AT_ONCE = 8  # number of kernels that are timed before the values are computed again


def expected_improvement(longer: float, deviation: float) -> float:
    """Return the expected improvement by a candidate that costs more than the best one.

    Args:
      longer: the estimated cost of the candidate minus the cost of the best one, at least 0.
      deviation: the standard deviation of this difference, in the same unit.
    """
    if deviation <= 0:
        return 0.0
    z = longer / deviation
    return deviation * (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * math.erfc(z / math.sqrt(2)) / 2)


def values(cost: CostModel, graphs: Sequence[Graph]) -> dict[str, float]:
    """Return the value of timing each predicted kernel in which graphs differ from the cheapest graph, in picoseconds.

    Args:
      cost: a cost model that predicts kernels (`predicting`).
      graphs: the candidates and the original.

    Returns:
      name of a kernel in a `Spread` → value. The values of a pair of graphs add up to their expected improvement.
    """
    model, costs = predicting(cost), [graph_cost(cost, graph).runtime_ps for graph in graphs]
    best = min(range(len(graphs)), key=costs.__getitem__)
    spread, result = graph_spread(cost, graphs[best]), {}
    for graph, runtime in zip(graphs, costs, strict=True):
        difference = graph_spread(cost, graph) - spread
        open_ = {name: off for name, off in difference.items() if model.is_predicted(name)}
        variance = sum(off * off for off in open_.values())
        worth = expected_improvement(runtime - costs[best], math.sqrt(variance) / Z)
        for name, off in open_.items():
            result[name] = result.get(name, 0.0) + worth * off * off / variance
    return result


def unproved(cost: CostModel, graphs: Sequence[Graph]) -> dict[str, int]:
    """Return the uncertainty of each predicted kernel that the cheapest graph and the first graph do not share.

    Args:
      cost: a cost model that predicts kernels (`predicting`).
      graphs: the original and the candidates.

    Returns:
      name of a kernel in a `Spread` → half-width in picoseconds of its 95 % interval in the difference of both graphs.
    """
    cheapest = min(graphs, key=lambda graph: graph_cost(cost, graph).runtime_ps)
    difference = graph_spread(cost, cheapest) - graph_spread(cost, graphs[0])
    return {name: abs(off) for name, off in difference.items() if predicting(cost).is_predicted(name)}


def time_what_decides(best: BestSoFar, seconds: float) -> int:
    """Time kernels in which the best candidates differ, correct the predictions, and compute all costs again.

    Kernels are timed until no timing is worth its time (LEAST_VALUE) or the seconds are over.

    Args:
      best: the candidates of a task with a predicted cost.
      seconds: the time limit.

    Returns:
      the number of kernels that were timed.
    """
    task, end, timed = best.task, time.monotonic() + seconds, set()
    cost, model = task.cost, predicting(task.cost)
    graphs = [task.graph, *(candidate.state.graph for candidate in best.candidates())]
    while time.monotonic() < end:
        least = LEAST_VALUE * min(graph_cost(cost, graph).runtime_ps for graph in graphs)
        worth = values(cost, graphs)
        if sum(worth.values()) < least:
            worth = {name: off for name, off in unproved(cost, graphs).items() if off >= least}
        chosen = sorted(worth, key=lambda name: -worth[name] / model.seconds_to_time(name))[:AT_ONCE]
        if not chosen:
            break
        timed.update(chosen)
        for name in chosen:
            cost.time_again(name)
        try:
            with timing_until(cost, end):
                for graph in graphs:
                    graph_cost(cost, graph)
        except TimeIsUp:
            break
    best.correct_predictions()
    return sum(not model.is_predicted(name) for name in timed)


ROUNDS = 4  # largest number of searches with timings between them
# Share for the searches of the seconds that are left in a round. Timings get half of the seconds left afterwards.
SEARCHES = 1 / 2


def search_in_rounds(
    best: BestSoFar, options: Mapping, seconds: float, seed: int, deadline: float = math.inf, spent: float = 0.0
) -> dict:
    """Search on predictions, time the kernels that decide, and search again with better predictions.

    A later round may find what an earlier one missed. A candidate of an earlier round stays, with its corrected cost.
    After a round in which no timing is worth its time, one more round gives its searches all the time that is left. It
    is left out if all searches ended by themselves. There are at most ROUNDS rounds.

    Args:
      best, options, seconds, seed, deadline, spent: see `rlflow.optimisation.anytime.search_all`.

    Returns:
      the result of the last `search_all`, and "rounds": for each round "rewrites", the number of rewrites that each
      search carried out, and "timed", the number of kernels that were timed after the searches.
    """
    end, rounds, is_last = min(time.monotonic() + seconds - spent, deadline), [], False
    while not is_last:
        left = max(end - time.monotonic(), 0.0)
        is_last = len(rounds) == ROUNDS - 1 or (bool(rounds) and not rounds[-1]["timed"])
        share = 1.0 if is_last else SEARCHES
        before = dict(best.records)
        result = search_all(best, options, seconds, seed + len(rounds), deadline, seconds - share * left)
        ran = {name: record for name, record in best.records.items() if record is not before.get(name)}
        timed = 0 if is_last else time_what_decides(best, (end - time.monotonic()) / 2)
        rounds.append({"rewrites": {name: one["interactions"] for name, one in ran.items()}, "timed": timed})
        if timed:
            say(f"{counted(timed, 'kernel')} timed that may decide: {best}")
        elif all(record["stop"] != "seconds" for record in result["methods"].values()):
            break
    return result | {"rounds": rounds}
