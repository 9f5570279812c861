"""All searches beside each other, on the six graphs of the papers and the nine light models.

For every model and search, with the profiled cost: how far the estimate falls, rewrites carried out, seconds, why it
stopped, how long it took to reach the best of TASO's backtracking, and how far its result is from the best
(rlflow.search.saturation.lower_bound). The best result of all is measured against the original.

    python -m benchmarks.searches --model bert_base          one model
    python -m benchmarks.searches --table                    Markdown of docs/results/searches.md
    python -m benchmarks.searches --only bound               only that step, where the searches are done

Seconds are those of searching: time that the cost model spends on an operator that it has not met before (it is looked
up in the database, or timed) is left out, for all searches alike, and an untimed descent comes first, so that none pays
for what the process loads. TASO has 10 minutes a model (it needs them on all but the smallest), random play as
many rewrites as TASO, the others a minute: up to 14 minutes a model, and the bound's and the measurement's.

Resumable: every step of every model is a file of --folder.
"""

import math
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import THREADS, bar, each, finish, parser
from benchmarks.judged import ENGINE
from benchmarks.locations import PAPER
from benchmarks.optimise import LIGHT
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation.candidates import follow, improvement
from rlflow.optimisation.validate import validate
from rlflow.runs.config import load_config
from rlflow.search import SEARCHES
from rlflow.search.base import Limits, run_search
from rlflow.search.saturation.lower_bound import lower_bound

JUDGES = (*ENGINE, "rlflow/search", "rlflow/costs/analytic.py")

MODELS = (*PAPER, *LIGHT)
METHODS = ("taso", *(name for name in SEARCHES if name != "taso"))  # random play gets as many rewrites as TASO took
STEPS = (*METHODS, "bound", "measured")
SLOW = ("taso", "random")  # they have --taso-seconds; the others --seconds
NEW_SECONDS = 1e-3  # a cost that takes longer than this was looked up or timed; known ones take microseconds
FRACTION, FAST_MODELS, GAP, GAP_SHARE = 0.1, 10, 0.01, 0.8


class Untimed:
    """A cost model, and how long it was busy with operators that it had not met before."""

    def __init__(self, cost):
        self.cost, self.seconds = cost, 0.0
        self.reach, self.passes = cost.reach, cost.passes

    def node_cost(self, graph, node):
        started = time.perf_counter()
        result = self.cost.node_cost(graph, node)
        spent = time.perf_counter() - started
        self.seconds += spent if spent > NEW_SECONDS else 0.0
        return result

    def clock(self) -> float:
        return time.perf_counter() - self.seconds


class Bench:
    """One model's steps."""

    def __init__(self, name: str, parsed):
        self.name, self.parsed = name, parsed
        self.spec = EnvSpec(name, cost=parsed.cost, threads=THREADS)
        self.options = load_config().search

    def step(self, step: str) -> dict:
        """A step's result, from its file if it is there."""
        make = {"bound": self.bound, "measured": self.measured}.get(step, lambda: self.searched(step))
        return each([f"{self.name}-{step}"], self.parsed.folder, lambda _: make())[f"{self.name}-{step}"]

    def searched(self, method: str) -> dict:
        task = self.spec.make_task()
        cost = Untimed(task.cost)
        task = Task(task.graph, task.rules, cost, task.max_locations)
        run_search("greedy", task.initial, max_steps=self.options.greedy.max_steps)
        seconds = self.parsed.taso_seconds if method in SLOW else self.parsed.seconds
        played = self.step("taso")["interactions"] if method == "random" else math.inf
        limits = Limits(seconds, played, self.options.memory_mb * 2**20)
        options = dict(self.options[method])
        if method == "random":
            options["episodes"] = sys.maxsize
        start = Task(task.graph, task.rules, cost, task.max_locations).initial  # with nothing remembered
        result = run_search(method, start, limits, self.parsed.seed, clock=cost.clock, **options)
        return {
            "improvement_percent": improvement(start.cost.runtime_ps, result.state.cost.runtime_ps),
            "start_ps": start.cost.runtime_ps,
            "best_ps": result.state.cost.runtime_ps,
            "substitutions": len(result.actions),
            "interactions": result.interactions,
            "seconds": result.seconds,
            "stop": result.stop,
            "trace": result.trace,
            "actions": result.actions,
        }

    def best(self) -> str:
        """The search that found the cheapest graph; of equal ones the first."""
        return min(METHODS, key=lambda method: self.step(method)["best_ps"])

    def bound(self) -> dict | None:
        """No graph in the scope costs less; None of a cost that is no sum over operators, as the profiled one."""
        task = self.spec.make_task()
        if task.cost.reach:
            return None
        graphs = {
            state.graph.hash: state.graph
            for method in METHODS
            for state in [follow(task, self.step(method)["actions"])]
        }
        result = lower_bound(task, self.parsed.bound_seconds, list(graphs.values()))
        return {
            "lower_bound_ps": result.lower_bound_ps,
            "best_ps": result.best_ps,
            "scope": result.scope,
            "stop": result.stop,
            "seconds": result.seconds,
        }

    def measured(self) -> dict:
        """The best search's result against the original: are they equal, and which is faster."""
        from rlflow.costs.measured import measure

        task, best = self.spec.make_task(), self.best()
        with TemporaryDirectory() as folder:
            original, result = Path(folder) / "original.onnx", Path(folder) / "result.onnx"
            save_graph(task.graph, original)
            save_graph(follow(task, self.step(best)["actions"]).graph, result)
            equal = validate(original, result).ok
            latency = measure(original, result, seconds=self.parsed.measure_seconds, seed=self.parsed.seed)
        return {"method": best, "equal": equal, **latency}

    def figures(self) -> dict:
        """What the steps that were asked for have found."""
        for step in self.parsed.only or STEPS:
            self.step(step)
        done = {step: self.step(step) for step in STEPS if (self.parsed.folder / f"{self.name}-{step}.json").exists()}
        return summary(done)


def summary(done: dict[str, dict]) -> dict:
    """One model's figures; what a step that is not done would say is None."""
    bound, taso = done.get("bound"), done.get("taso")
    searches = {}
    for method in (m for m in METHODS if m in done):
        result = done[method]
        lower = min(bound["lower_bound_ps"], result["best_ps"]) if bound else None
        searches[method] = {key: value for key, value in result.items() if key not in ("trace", "actions")} | {
            "seconds_to_own_best": result["trace"][-1][0],
            "seconds_to_taso_best": reached(result["trace"], taso["best_ps"]) if taso else None,
            "gap": 1 - lower / result["best_ps"] if bound else None,
        }
    return {"searches": searches, "bound": bound, "measured": done.get("measured")}


def reached(trace: list, best_ps: int) -> float | None:
    """Seconds until a search had a graph that costs no more than this; None if it never had."""
    return next((seconds for seconds, _, cost_ps in trace if cost_ps <= best_ps), None)


def speed(result: dict, taso_time: str) -> float | None:
    """Time in which the faster of beam and annealing reached TASO's best, as a share of TASO's own `taso_time`."""
    searches = result["searches"]
    times = [searches[m]["seconds_to_taso_best"] for m in ("beam", "annealing") if m in searches]
    times = [seconds for seconds in times if seconds is not None]
    return min(times) / searches["taso"][taso_time] if times and searches["taso"][taso_time] else None


def gap(result: dict) -> float | None:
    """The smallest gap of all results."""
    return min((s["gap"] for s in result["searches"].values() if s["gap"] is not None), default=None)


def bars_of(figures: dict) -> list[dict]:
    gaps = [gap(result) for result in figures.values()]
    close = sum(share is not None and share <= GAP for share in gaps)
    needed = math.ceil(GAP_SHARE * len(figures))
    result = [
        bar("the best result is proved to be within 1 % of the best", close, "models", f"≥ {needed}", close >= needed)
    ]
    for taso_time, words in (
        ("seconds", "of TASO's time"),
        ("seconds_to_own_best", "of the time after which TASO had it"),
    ):
        shares = [speed(f, taso_time) for f in figures.values()]
        fast = sum(share is not None and share <= FRACTION for share in shares)
        result.append(
            bar(
                f"beam or annealing has TASO's best in a tenth {words}", fast, "models", f"≥ {FAST_MODELS}",
                fast >= FAST_MODELS,
            )
        )  # fmt: skip
    for name, measured in ((name, f["measured"]) for name, f in figures.items() if f["measured"]):
        result.append(
            bar(f"{name}: the best result is equal to the original", measured["equal"], "", "true", measured["equal"])
        )
    return result


def table(figures: dict) -> str:
    """The rows of its page."""
    lines = [
        "| model | search | estimated gain | gap to the bound | rewrites tried | seconds | of which until TASO's best "
        "| stop | measured ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for name, result in figures.items():
        measured = result["measured"]
        for method, search in result["searches"].items():
            ratio = ""
            if measured and measured["method"] == method:
                ratio = "{:.3f} ({:.3f} – {:.3f}), {}".format(
                    measured["ratio"], *measured["interval"], measured["verdict"]
                )
            cells = [
                name, method, f"{search['improvement_percent']:.2f} %", shown(search["gap"], "{:.2%}"),
                str(search["interactions"]),
                f"{search['seconds']:.1f}", shown(search["seconds_to_taso_best"], "{:.2f}"), search["stop"], ratio,
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def main() -> int:
    arguments = parser(__doc__, "runs/searches")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument(
        "--only", action="append", choices=STEPS, help="one step only, and those that it needs; repeatable"
    )
    arguments.add_argument("--seconds", type=float, default=60.0, help="of greedy, best-first, beam and annealing")
    arguments.add_argument(
        "--taso-seconds", type=float, default=600.0, help="of TASO's backtracking, and of random play"
    )
    arguments.add_argument("--bound-seconds", type=float, default=600.0, help="of the lower bound")
    arguments.add_argument("--measure-seconds", type=float, default=20.0, help="of the measurement of the best result")
    arguments.add_argument("--cost", default="profiled", help="analytic for a try")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    parsed = arguments.parse_args()
    figures = {name: Bench(name, parsed).figures() for name in parsed.model or MODELS}
    if parsed.table:
        print(table(figures))
        return 0
    return finish("searches", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
