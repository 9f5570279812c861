"""What GRASP adds to the searches of `optimise`, and what it takes from them, in the same seconds.

    python -m benchmarks.grasp                      fifteen graphs, three seeds, the analytic cost; resumable
    python -m benchmarks.grasp --model vit_base     one graph; repeatable
    python -m benchmarks.grasp --table              Markdown of its page

For every graph and seed the searches of `optimise` share so many seconds, once with GRASP among them and once without;
what counts is the best that any of them comes to. GRASP was written on the graphs LOOKED_AT; the bars are on the
others.
"""

import sys
import time
from functools import partial

from benchmarks.harness import bar, each, finish, markdown, mean_and_half, parser
from benchmarks.optimise import MODELS
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.batched import start_of
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.optimisation.anytime import methods
from rlflow.optimisation.candidates import improvement
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search

JUDGES = "rlflow/optimisation/anytime.py", "rlflow/env/batched.py", "rlflow/env/batched.py", "rlflow/search"

LOOKED_AT = "vit_base", "squeezenet1_1", "light_shufflenet"
WITH, WITHOUT = "with", "without"
SLACK = 0.05  # percent of the original


def searched(name: str, with_it: bool, seed: int, seconds: float) -> dict:
    """What the searches came to within so many seconds, each of which gets an equal share of what is left."""
    task, options = EnvSpec(name, cost="analytic", threads=1).make_task(), load_config().search
    start, end, best = start_of(task, options.moves), time.monotonic() + seconds, {}
    names = [one for one in methods(AnalyticCost()) if with_it or one != "grasp"]
    for k, method in enumerate(names):
        share = (end - time.monotonic()) / (len(names) - k)
        result = run_search(method, start, Limits(share), seed, **options[method])
        best[method] = improvement(task.initial.objective, result.state.objective)
    return {"improvement": max(best.values()), "of": best}


def figures_of(parsed) -> dict:
    figures, seeds = {}, range(parsed.seed, parsed.seed + parsed.seeds)
    for name in parsed.model or MODELS:
        figures[name] = {WITH: [], WITHOUT: []}
        for seed in seeds:
            work = {
                f"{name}-{seed}-{who}-{parsed.seconds:g}s": partial(searched, name, who == WITH, seed, parsed.seconds)
                for who in (WITH, WITHOUT)
            }
            done = each(list(work), parsed.folder / "results", lambda key, work=work: work[key]())
            for who, result in zip((WITH, WITHOUT), done.values(), strict=True):
                figures[name][who].append(result)
    return figures


def mean_gain(runs: list[dict]) -> float:
    return sum(run["improvement"] for run in runs) / len(runs)


def bars_of(figures: dict) -> list[dict]:
    bars = []
    for name, both in figures.items():
        if name not in LOOKED_AT:
            ahead = mean_gain(both[WITH]) - mean_gain(both[WITHOUT])
            bars.append(bar(f"{name}: ahead with it", ahead, "% of the original", f"≥ -{SLACK:g}", ahead >= -SLACK))
    return bars


def table(figures: dict) -> str:
    rows = []
    for name, both in figures.items():
        gains = [mean_and_half([run["improvement"] for run in both[who]]) + " %" for who in (WITH, WITHOUT)]
        own = mean_and_half([run["of"]["grasp"] for run in both[WITH]]) + " %"
        rows.append([name, "yes" if name in LOOKED_AT else "", len(both[WITH]), own, *gains])
    return markdown(["graph", "looked at", "seeds", "GRASP alone", "with it", "without it"], rows, words=2)


def main() -> int:
    arguments = parser(__doc__, "runs/grasp")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one graph only; repeatable")
    arguments.add_argument("--seeds", type=int, default=3, help="how many, from --seed on")
    arguments.add_argument("--seconds", type=float, default=60.0, help="that the searches share")
    arguments.add_argument("--table", action="store_true", help="print the figures as Markdown")
    parsed = arguments.parse_args()
    figures = figures_of(parsed)
    if parsed.table:
        print(table(figures))
        return 0
    return finish("grasp", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
