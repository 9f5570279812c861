"""How well a latency is learned: on models of which no measurement was shown, beside the estimate and its correction.

    python -m benchmarks.latency_model --measure [--model NAME]      wants a calm machine; 5 to 15 minutes a model
    python -m benchmarks.latency_model [--json FILE]                 judges what was measured, in seconds

Measured are the originals and variants of benchmarks.cost_trust, each beside its original; every kernel is timed first,
so that what is learned from is what `costs learn` sees (`rlflow.costs.measurements`), in a database of its own. Each
model is then judged by what the others say (`rlflow.costs.latency_fit`): the error of its latencies, and how well its
variants are ranked, as a share of the rank correlation that measuring them twice would give. *Chosen* is what a few
measurements come to, of the variants of a model never measured: those of which most improvement is expected, one after
the other (`rlflow.optimisation.contest`), beside those with the lowest estimates.

Resumable: variants and their measurements lie in --folder and --database.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.cost_trust import VARIANTS, make_task, noise_ceiling, variants
from benchmarks.cost_trust import measured as measured_variant
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.locations import PAPER
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.common.messages import say
from rlflow.costs import graph_cost
from rlflow.costs.database import TimingDatabase
from rlflow.costs.latency_fit import COSTS, LeftOut, leave_out
from rlflow.costs.measurements import Known, Measurements
from rlflow.costs.profiled import ProfiledCost
from rlflow.optimisation.candidates import follow
from rlflow.optimisation.contest import NextMeasurement

JUDGES = ("rlflow/costs", "rlflow/optimisation/contest.py", "benchmarks/cost_trust.py")

HARD = ("light_inception_v2", "shufflenet_v2", "vit_base")
MODELS = (
    *PAPER, "shufflenet_v2", "light_inception_v1", "light_inception_v2", "light_densenet121", "light_shufflenet",
    "light_bvlc_alexnet",
)  # fmt: skip
MOST_ERROR, LEAST_OF_CEILING, LEAST_MODELS = 0.05, 0.8, 10
LEAST_CEILING = 0.2
CHOSEN = 5  # measurements
MADE = "variants"  # the file in --folder that says which there are


# -- measuring -------------------------------------------------------------------------------------


def measure_all(name: str, parsed) -> None:
    """Times the kernels of a model and its variants, then measures what has not been."""
    folder, task = folder_of(name, parsed), make_task(name, parsed.seed)
    made = each([MADE], folder, lambda _: {"variants": variants(task, parsed.seed, parsed.variants)})[MADE]["variants"]
    cost = ProfiledCost.open(parsed.threads, parsed.database)
    for graph in (task.graph, *(follow(task, variant["actions"]).graph for variant in made)):
        graph_cost(cost, graph)
    measurements = Measurements(TimingDatabase(parsed.database), parsed.threads)

    def one(number: str) -> dict:
        variant = made[int(number)]
        say(f"{name}: variant {int(number) + 1} of {len(made)}, {variant['how']}")
        result = measured_variant(task, variant, parsed)
        graph, ratio = follow(task, variant["actions"]).graph, (result["ratio"], *result["interval"])
        measurements.keep(task.graph, graph, task.sizes, ratio, result["original_ms"])
        return {"original": task.graph.hash, **result}

    each([str(number) for number in range(len(made))], folder, one)


def folder_of(name: str, parsed) -> Path:
    return parsed.folder / f"threads-{parsed.threads}" / name


def session_ratios(name: str, parsed) -> tuple[str, list[list[float]]]:
    """(the original's hash; of each variant the ratio in each session). Raises RLFlowError if it was not measured."""
    folder = folder_of(name, parsed)
    if not (folder / f"{MADE}.json").exists():
        raise RLFlowError(f"{name} was not measured: python -m benchmarks.latency_model --measure --model {name}")
    count = len(read_json(folder / f"{MADE}.json")["variants"])
    results = [read_json(folder / f"{number}.json") for number in range(count)]
    return results[0]["original"], [result["session_ratios"] for result in results]


# -- judging ---------------------------------------------------------------------------------------


def judge(names: list[str], parsed) -> dict:
    known = Known.of(TimingDatabase(parsed.database), parsed.threads)
    of_original = {one.original: one for one in leave_out(known, parsed.threads)}
    result = {}
    for name in names:
        original, ratios = session_ratios(name, parsed)
        if original in of_original:
            result[name] = judged(of_original[original], noise_ceiling(ratios))
    return {"threads": parsed.threads, "damaged": known.damaged, "unseen": known.unseen, "models": result}


def judged(one: LeftOut, ceiling: float) -> dict:
    """JSON-able."""
    of_costs = {cost: {"error": one.error(cost), "rank_correlation": one.rank_correlation(cost)} for cost in COSTS}
    return {
        "original_ms": float(one.measured_ms[0]),
        "variants": len(one.measured_ms) - 1,
        "noise_ceiling": ceiling,
        **of_costs,
        "within_two_deviations": float(np.mean(np.abs(one.deviations) < 2)),
        "best": float(one.measured_ms.min() / one.measured_ms[0]),
        "chosen": {"expected improvement": by_improvement(one), "lowest estimate": by_estimate(one)},
    }


def by_improvement(one: LeftOut) -> float:
    """The least share of the original's latency among CHOSEN variants, each shown to the model once it is measured."""
    ratios, choice = one.measured_ms / one.measured_ms[0], NextMeasurement(one.model, one.graphs[0], one.graphs[1:])
    for _ in range(min(CHOSEN, len(ratios) - 1)):
        number = choice.next()
        choice.show(number, ratios[number + 1], one.uncertain[number + 1])
    return min([1.0, *choice.measured.values()])


def by_estimate(one: LeftOut) -> float:
    """The same of those with the lowest profiled cost."""
    order = 1 + np.argsort(one.costs["profiled"][1:], kind="stable")
    return float(min([1.0, *(one.measured_ms[order[:CHOSEN]] / one.measured_ms[0])]))


def bars_of(models: dict[str, dict]) -> list[dict]:
    error = float(np.mean([one["learned"]["error"] for one in models.values()])) if models else None
    ranked = [is_ranked(one) for one in models.values()]
    bars = [
        bar("error on models never measured", error, "mean", f"≤ {MOST_ERROR}", models and error <= MOST_ERROR),
        bar(
            f"rank correlation of at least {LEAST_OF_CEILING} of the noise ceiling", sum(ranked), f"of {len(ranked)}",
            f"≥ {LEAST_MODELS} of {len(MODELS)}", sum(ranked) >= LEAST_MODELS,
        ),
    ]  # fmt: skip
    for name in HARD:
        if name in models:
            rank, *others = (models[name][cost]["rank_correlation"] for cost in COSTS)
            best = max(others)
            bars.append(bar(f"{name}: rank correlation", rank, "Spearman", f"> {best:.2f}, of the others", rank > best))
    return bars


def is_ranked(one: dict) -> bool:
    """Not of variants that measuring twice cannot tell apart either: any rank is a share of nothing."""
    rank, ceiling = one["learned"]["rank_correlation"], one["noise_ceiling"]
    return rank is not None and ceiling >= LEAST_CEILING and rank >= LEAST_OF_CEILING * ceiling


def table(figures: dict) -> str:
    """The rows of its page."""
    heads = ["model", "measured, ms", "variants", "noise ceiling", *(f"{cost}: Spearman, error" for cost in COSTS)]
    rows = []
    for name, one in figures["models"].items():
        cells = [f"{one[cost]['rank_correlation']:.2f}, {100 * one[cost]['error']:.1f} %" for cost in COSTS]
        chosen = [f"{ratio:.3f}" for ratio in (one["best"], *one["chosen"].values())]
        known = [name, f"{one['original_ms']:.2f}", one["variants"], f"{one['noise_ceiling']:.2f}"]
        rows.append([*known, *cells, f"{100 * one['within_two_deviations']:.0f} %", *chosen])
    chosen = [f"best of {CHOSEN} by {how}" for how in ("expected improvement", "estimate")]
    return markdown([*heads, "within 2 deviations", "best of all", *chosen], rows)


def main() -> int:
    arguments = parser(__doc__, "runs/latency_model")
    arguments.add_argument("--measure", action="store_true", help="measure what has not been, and judge nothing")
    arguments.add_argument("--model", action="append", help="one model only; repeatable")
    arguments.add_argument("--threads", type=int, default=1, help="of ONNX Runtime")
    arguments.add_argument("--variants", type=int, default=VARIANTS, help="of each model")
    arguments.add_argument("--seconds", type=float, default=3.0, help="for the pairs of one variant, at most")
    arguments.add_argument("--sessions", type=int, default=6, help="pairs of sessions of one variant")
    database = Path("runs/latency_model.sqlite")
    arguments.add_argument("--database", type=Path, default=database, help="of timings and measurements")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    parsed = arguments.parse_args()
    names = parsed.model or list(MODELS)
    if parsed.measure:
        for name in names:
            measure_all(name, parsed)
        return 0
    figures = judge(names, parsed)
    if parsed.table:
        print(table(figures))
        return 0
    return finish("latency_model", parsed, figures, bars_of(figures["models"]))


if __name__ == "__main__":
    sys.exit(main())
