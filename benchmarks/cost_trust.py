"""How far estimated costs can be believed: beside measured latencies, over many rewritten variants of each model.

    python -m benchmarks.cost_trust [--model NAME] [--threads N] [--table] [--plot FILE.png]

For each model its original and 32 variants. They come from random walks, walks by the rules of one family, and points
along greedy descent; of about 80 graphs those are taken whose analytic costs lie farthest apart, as equal ones cannot
be ranked (that cost is the same on every machine, and so are the variants). All variants of a model are estimated
first, so that every operator is profiled before anything is measured; then each is measured beside the original, and
its latency is the ratio times the original's median, so that drift cancels. Stated are the relative error of the
estimates, and how well they rank the variants (Spearman, Kendall), beside the correlation that measuring the same
variants twice would give. *Corrected* is `rlflow.costs.corrected`, fitted without any graph of the model that it is
judged on.

Resumable: estimates and each variant's measurement lie in --folder. A model takes 3 to 15 minutes.
"""

import sys
from collections.abc import Iterator
from itertools import combinations
from math import log
from pathlib import Path

import numpy as np

from benchmarks.correction_errors import leave_one_model_out, leave_variants_out
from benchmarks.harness import bar, each, finish, parser
from benchmarks.locations import PAPER
from benchmarks.optimise import LIGHT
from rlflow.common.messages import say
from rlflow.costs import graph_cost, peak_memory, runtime_ms
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.corrected import Measurement, fit, parts
from rlflow.costs.latency_fit import spearman
from rlflow.costs.measured import SESSION_PAIR, measure
from rlflow.costs.profiled import ProfiledCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.candidates import follow
from rlflow.reports import charts
from rlflow.rules.language import load_rules
from rlflow.search.descents import greedy
from rlflow.zoo import load

JUDGES = ("rlflow/costs", "benchmarks/correction_errors.py")

TRUSTED = (*PAPER, "shufflenet_v2")  # the models with bars of their own
MODELS = [*PAPER, *LIGHT, "shufflenet_v2"]
VARIANTS, LEAST_VARIANTS = 32, 30
RANDOM_WALKS, GREEDY_PARTS = 42, 4  # … that variants are chosen from, beside two walks for each family
LENGTHS = (1, 2, 4, 8, 16, 32, 64)  # rewrites of a random walk
GREEDY_STEPS = 60
RESAMPLES = 1000
ONLY_KEPT = ("actions", "session_ratios")  # in --folder, not in the result: they are long
LEAST_RANK, MOST_ERROR, MOST_CORRECTED = 0.9, 0.10, 0.03

Actions = list[tuple[int, int]]


# -- variants --------------------------------------------------------------------------------------


def make_task(name: str, seed: int) -> Task:
    return Task(load_graph(load(name, seed)), load_rules(), AnalyticCost())


def variants(task: Task, seed: int, count: int = VARIANTS) -> list[dict]:
    """So many different graphs, or as many as there are: how each was found, its actions and its hash."""
    pool, seen = [], {task.graph.hash}
    for how, actions in (*_by_families(task, seed), *_by_greed(task), *_at_random(task, seed)):
        state = follow(task, actions)
        if state.graph.hash not in seen:
            seen.add(state.graph.hash)
            pool.append(({"how": how, "actions": actions, "hash": state.graph.hash}, log(state.runtime_ms)))
    return [pool[k][0] for k in apart([cost for _, cost in pool], count)]


def apart(values: list[float], count: int) -> list[int]:
    """The indices of so many of the values, each the farthest from those before it: equal ones cannot be ranked."""
    chosen = [int(np.argmin(values))] if values else []
    distance = np.full(len(values), np.inf)
    while len(chosen) < min(count, len(values)):
        distance = np.minimum(distance, np.abs(np.subtract(values, values[chosen[-1]])))
        distance[chosen] = -1
        chosen.append(int(np.argmax(distance)))
    return chosen


def _by_families(task: Task, seed: int) -> Iterator[tuple[str, Actions]]:
    """Walks by the rules of one family each."""
    for number, family in enumerate(dict.fromkeys(rule.family for rule in task.rules)):
        allowed = np.array([rule.family == family for rule in task.rules])
        for length in (8, 32):
            yield f"{length} × {family}", walk(task, allowed, length, np.random.default_rng([seed, 1, number, length]))


def _by_greed(task: Task) -> Iterator[tuple[str, Actions]]:
    actions = [(int(x), int(k)) for x, k in greedy(task.initial, GREEDY_STEPS).actions]
    for part in range(GREEDY_PARTS, 0, -1):
        yield f"greedy, {part} of {GREEDY_PARTS} parts", actions[: len(actions) * part // GREEDY_PARTS]


def _at_random(task: Task, seed: int) -> Iterator[tuple[str, Actions]]:
    allowed = np.ones(len(task.rules), bool)
    for number in range(RANDOM_WALKS):
        length = LENGTHS[number % len(LENGTHS)]
        yield f"{length} random", walk(task, allowed, length, np.random.default_rng([seed, 2, number]))


def walk(task: Task, allowed: np.ndarray, length: int, rng: np.random.Generator) -> Actions:
    """So many rewrites by the allowed rules (bool [N]), each equally probable; fewer where there are no more."""
    state, actions = task.initial, []
    for _ in range(length):
        valid = state.valid_actions()[:-1]
        valid = valid[allowed[valid[:, 0]]]
        if not len(valid):
            break
        x, k = (int(part) for part in valid[rng.integers(len(valid))])
        actions.append((x, k))
        state = state.apply(x, k)
    return actions


# -- one model -------------------------------------------------------------------------------------


def estimates(task: Task, seed: int, cost: ProfiledCost) -> dict:
    """The original's estimates and those of its variants."""
    graphs = []
    for variant in ({"how": "original", "actions": [], "hash": task.graph.hash}, *variants(task, seed)):
        graph = follow(task, variant["actions"]).graph
        parts_ps, launches = parts(cost, graph)
        costs = {"profiled_ms": sum(parts_ps.values()) / 1e9, "analytic_ms": runtime_ms(graph_cost(task.cost, graph))}
        size = {
            "nodes": sum(not node.constant for node in graph.nodes.values()),
            "peak_memory_bytes": peak_memory(graph),
        }
        graphs.append({**variant, **costs, "parts_ps": parts_ps, "launches": launches, **size})
    return {"graphs": graphs}


def measured(task: Task, variant: dict, parsed) -> dict:
    graph = follow(task, variant["actions"]).graph
    result = measure(
        to_model(task.graph), to_model(graph), parsed.threads, parsed.seconds, parsed.sessions, parsed.seed,
        memory=False,
    )  # fmt: skip
    return {key: result[key] for key in ("ratio", "interval", "verdict", "session_ratios", "original_ms", "pairs")}


def collect(name: str, parsed) -> list[dict]:
    """All graphs of a model, the original first, with estimates and `measured_ms`."""
    folder = parsed.folder / f"threads-{parsed.threads}" / name
    cost = ProfiledCost.open(parsed.threads, parsed.database)
    tasks: list[Task] = []  # made only if something is left to do

    def task() -> Task:
        if not tasks:
            tasks.append(make_task(name, parsed.seed))
        return tasks[0]

    graphs = each(["estimates"], folder, lambda _: estimates(task(), parsed.seed, cost))["estimates"]["graphs"]

    def one(number: str) -> dict:
        say(f"{name}: variant {number} of {len(graphs) - 1}, {graphs[int(number)]['how']}")
        return measured(task(), graphs[int(number)], parsed)

    result = each([str(number) for number in range(1, len(graphs))], folder, one)
    original_ms = float(np.median([one["original_ms"] for one in result.values()]))
    ratios = [{"ratio": 1.0, "interval": [1.0, 1.0], "session_ratios": []}, *result.values()]
    return [
        graph | one | {"measured_ms": original_ms * one["ratio"]} for graph, one in zip(graphs, ratios, strict=True)
    ]


# -- what is said about it -------------------------------------------------------------------------


def kendall(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's τ-b. 0 if one side is constant."""
    signs = [np.sign(x[:, None] - x[None, :]) for x in (a, b)]
    size = np.prod([np.abs(s).sum() for s in signs]) ** 0.5
    return float((signs[0] * signs[1]).sum() / size) if size else 0.0


def ranked(estimate: np.ndarray, truth: np.ndarray, seed: int) -> dict:
    """Both correlations, Spearman's with a 95 % interval by a bootstrap over variants."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(truth), (RESAMPLES, len(truth)))
    low, high = np.percentile([spearman(estimate[c], truth[c]) for c in chosen], (2.5, 97.5)).tolist()
    return {"spearman": spearman(estimate, truth), "interval": [low, high], "kendall": kendall(estimate, truth)}


def noise_ceiling(session_ratios: list[list[float]]) -> float:
    """Spearman's correlation that measuring the variants twice would give.

    The mean correlation between session pairs of sessions, brought to all session pairs of a measurement by Spearman
    and Brown's formula.
    """
    logs = np.log(session_ratios)
    session_pairs = np.stack(
        [logs[:, k : k + SESSION_PAIR].mean(axis=1) for k in range(0, logs.shape[1], SESSION_PAIR)]
    )
    one = float(np.mean([spearman(a, b) for a, b in combinations(session_pairs, 2)]))
    return len(session_pairs) * one / (1 + (len(session_pairs) - 1) * one) if one > 0 else 0.0


def errors(result: np.ndarray) -> dict:
    """Of estimate / measured − 1, the original's first."""
    return {
        "original": float(result[0]),
        "mean": float(np.mean(np.abs(result))),
        "greatest": float(np.max(np.abs(result))),
    }


def summary(graphs: list[dict], left_out: np.ndarray | None, variants_out: np.ndarray | None, seed: int) -> dict:
    truth = np.array([graph["measured_ms"] for graph in graphs])
    result = {
        "original_ms": float(truth[0]),
        "variants": len(graphs) - 1,
        "measured_range": [float(truth[1:].min() / truth[0]), float(truth[1:].max() / truth[0])],
        "noise_ceiling": noise_ceiling([graph["session_ratios"] for graph in graphs[1:]]),
    }
    for cost in ("profiled", "analytic"):
        estimate = np.array([graph[f"{cost}_ms"] for graph in graphs])
        result[cost] = ranked(estimate[1:], truth[1:], seed) | {"error": errors(estimate / truth - 1)}
        result[cost]["error_of_ratio"] = float(np.mean(np.abs(estimate / estimate[0] / (truth / truth[0]) - 1)))
    if left_out is not None:
        result["corrected"] = ranked(((1 + left_out) * truth)[1:], truth[1:], seed) | {"error": errors(left_out)}
        result["corrected"]["error_of_variants_left_out"] = float(np.mean(np.abs(variants_out)))
    return result


def summaries(models: dict[str, list[dict]], threads: int, seed: int) -> dict:
    measurements = [
        Measurement(name, graph["parts_ps"], graph["launches"], graph["measured_ms"])
        for name, graphs in models.items() for graph in graphs
    ]  # fmt: skip
    unseen, unseen_variants = leave_one_model_out(measurements), leave_variants_out(measurements)
    return {
        "threads": threads,
        "correction": fit(measurements, threads).factors,
        "models": {
            name: summary(graphs, unseen.get(name), unseen_variants.get(name), seed)
            | {"graphs": [{key: value for key, value in graph.items() if key not in ONLY_KEPT} for graph in graphs]}
            for name, graphs in models.items()
        },
    }


def bars_of(models: dict[str, dict]) -> list[dict]:
    bars = []
    for name, result in models.items():
        profiled, corrected = result["profiled"], result.get("corrected")
        bars.append(
            bar(
                f"{name}: variants", result["variants"], "", f"≥ {LEAST_VARIANTS}", result["variants"] >= LEAST_VARIANTS
            )
        )
        if name in TRUSTED:
            rank, error = profiled["spearman"], profiled["error"]["mean"]
            bars.append(
                bar(f"{name}: profiled, rank correlation", rank, "Spearman", f"≥ {LEAST_RANK}", rank >= LEAST_RANK)
            )
            bars.append(
                bar(
                    f"{name}: profiled, relative error", error, "mean of graphs", f"≤ {MOST_ERROR}", error <= MOST_ERROR
                )
            )
        if corrected:
            error = corrected["error"]["mean"]
            bars.append(
                bar(
                    f"{name}: corrected, not having seen it", error, "mean of graphs", f"≤ {MOST_CORRECTED}",
                    error <= MOST_CORRECTED,
                )
            )  # fmt: skip
    return bars


def table(figures: dict) -> str:
    """The rows of its page."""
    lines = [
        "| model | measured, ms | variants, of it | noise ceiling | profiled: Spearman (95 %), Kendall "
        "| error: original, mean, greatest "
        "| error of the ratio | analytic: Spearman | corrected, unseen: Spearman | error: original, mean, greatest |",
        "| --- | ---: | --- | ---: | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for name, result in figures["models"].items():
        profiled, corrected = result["profiled"], result.get("corrected")
        cells = [
            name, f"{result['original_ms']:.2f}",
            f"{result['variants']}: {' – '.join(f'{r:.2f}' for r in result['measured_range'])}",
            f"{result['noise_ceiling']:.2f}",
            f"{profiled['spearman']:.2f} ({' – '.join(f'{r:.2f}' for r in profiled['interval'])}), "
            f"{profiled['kendall']:.2f}",
            _percent(profiled["error"]), f"{100 * profiled['error_of_ratio']:.1f} %",
            f"{result['analytic']['spearman']:.2f}",
            f"{corrected['spearman']:.2f}" if corrected else "–", _percent(corrected["error"]) if corrected else "–",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(error: dict) -> str:
    return f"{100 * error['original']:+.1f} %, {100 * error['mean']:.1f} %, {100 * error['greatest']:.1f} %"


@charts.styled()
def plot(models: dict[str, dict], path: Path) -> None:
    """Measured beside estimated latency, both of the original's; a panel a model."""
    columns = min(4, len(models))
    rows = -(-len(models) // columns)
    figure = charts.new(3.6 * columns, 3.4 * rows)
    for position, (name, result) in enumerate(models.items(), start=1):
        axes = figure.add_subplot(rows, columns, position)
        graphs = result["graphs"]
        truth = np.array([graph["ratio"] for graph in graphs])
        bounds = np.array([graph["interval"] for graph in graphs]).T
        estimate = np.array([graph["profiled_ms"] / graphs[0]["profiled_ms"] for graph in graphs])
        spread = np.abs(bounds - truth)
        axes.errorbar(estimate, truth, spread, fmt="o", markersize=3, linewidth=0.6)
        ends = [min(estimate.min(), truth.min()), max(estimate.max(), truth.max())]
        axes.plot(ends, ends, color="grey", linewidth=0.8)
        axes.set_title(f"{name}: Spearman {result['profiled']['spearman']:.2f}", fontsize=9)
        axes.set_xlabel("profiled, of the original's", fontsize=8)
        axes.set_ylabel("measured, of the original's", fontsize=8)
    charts.save(figure, path)


def main() -> int:
    arguments = parser(__doc__, "runs/cost_trust")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--threads", type=int, default=1, help="of ONNX Runtime")
    arguments.add_argument(
        "--seconds", type=float, default=3.0, help="for the pairs of one variant; making sessions comes on top"
    )
    arguments.add_argument("--sessions", type=int, default=6, help="pairs of sessions of one variant")
    arguments.add_argument("--database", type=Path, help="of profiled operators; the user's own by default")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("--plot", type=Path, metavar="FILE.png", help="draw measured beside estimated latency")
    parsed = arguments.parse_args()
    models = {name: collect(name, parsed) for name in parsed.model or MODELS}
    figures = summaries(models, parsed.threads, parsed.seed)
    if parsed.plot:
        plot(figures["models"], parsed.plot)
    if parsed.table:
        print(table(figures))
        return 0
    return finish("cost_trust", parsed, figures, bars_of(figures["models"]))


if __name__ == "__main__":
    sys.exit(main())
