"""Comparison of all searches with a proved lower bound of the cost, on six graphs of the papers and nine light models.

    python -m benchmarks.searches [--model NAME] [--seconds S]

All searches minimise the analytic cost with the same time limit; only TASO's backtracking has twice the time. The lower
bound is computed by equality saturation and an integer program (`rlflow.search.saturation`): no graph in the scope of
the bound costs less. The gap is (cost of the result - bound) / cost of the result.
"""

import sys

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, THREADS, number, percent
from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.optimisation.candidates import follow, improvement
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from rlflow.search.saturation.lower_bound import lower_bound

METHODS = ("greedy", "descent", "best-first", "beam", "annealing", "grasp", "taso")
TOLERANCE = 1e-5  # relative; the integer program is solved to about 1e-6
TASO_SHARE = 2  # time limit of TASO's backtracking, as a multiple of the time limit of the other searches


def searched(model: str, seconds: float, bound_seconds: float) -> dict:
    """Run every search on a model and compute the lower bound of the cost.

    Args:
        model: name of a model of the zoo.
        seconds: time limit of each search; TASO's backtracking gets TASO_SHARE times as long.
        bound_seconds: time for the lower bound. Its scope includes the graphs that the searches found.

    Returns:
        "searches": search → costs of the first and of the best graph in picoseconds ("start_ps", "best_ps"), "seconds"
            and "interactions". "bound_ps": the lower bound in picoseconds. "scope": the scope of the bound.
    """
    spec, options = EnvSpec(model, cost="analytic", threads=THREADS), load_config().search
    results, graphs = {}, {}
    for method in METHODS:
        task = spec.make_task()  # a new task, because a task keeps results that would save the next search time
        limits = Limits(seconds * (TASO_SHARE if method == "taso" else 1), memory=options.memory_mb * 2**20)
        result = run_search(method, task.initial, limits, **options[method])
        results[method] = {
            "start_ps": task.initial.cost.runtime_ps,
            "best_ps": result.state.cost.runtime_ps,
            "seconds": result.seconds,
            "interactions": result.interactions,
        }
        graphs[result.state.graph.hash] = result.actions
    task = spec.make_task()
    bound = lower_bound(task, bound_seconds, [follow(task, actions).graph for actions in graphs.values()])
    return {"searches": results, "bound_ps": bound.lower_bound_ps, "scope": bound.scope}


def tables(figures: dict[str, dict]) -> dict[str, Table]:
    """Return the table "gaps" of gains and gaps, and the table "effort" of interactions and seconds.

    Args:
        figures: model → result of `searched`.
    """
    gaps, effort = [], []
    for model, one in figures.items():
        cells = []
        for method in METHODS:
            search = one["searches"][method]
            gain = improvement(search["start_ps"], search["best_ps"])
            if one["bound_ps"] > search["best_ps"] * (1 + TOLERANCE):
                raise RLFlowError(f"{model}: {method} found a cost below the lower bound, so the bound is wrong")
            gap = max(0.0, 100 * (1 - one["bound_ps"] / search["best_ps"]))
            cells.append(f"{percent(gain)}, gap {percent(gap)}")
        start = next(iter(one["searches"].values()))["start_ps"]
        gaps.append([model, percent(improvement(start, min(one["bound_ps"], start))), *cells])
        searches = one["searches"].values()
        effort.append([model, *(f"{number(s['interactions'], 0)} in {number(s['seconds'], 1)} s" for s in searches)])
    return {"gaps": Table(["model", "bound of the gain", *METHODS], gaps), "effort": Table(["model", *METHODS], effort)}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--seconds", type=float, default=10.0, help="of each search (default 10)")
    arguments.add_argument("--bound-seconds", type=float, default=60.0, help="of each lower bound (default 60)")
    parsed = arguments.parse_args()
    record = Record("searches", parsed)
    models = parsed.model or MODELS
    calls = {model: (searched, model, parsed.seconds, parsed.bound_seconds) for model in models}
    figures = record.all_parts(calls, at_once=2)
    record.publish(tables(figures), "Two models ran side by side, each on a core of its own.")
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
