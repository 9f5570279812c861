"""Placements of tensors: the proved optimum, searches, and EGRL, on two simulators of the memories of an NNP-I.

    python -m benchmarks.placement [--model NAME] [--evaluations N] [--seeds N] [--vela PYTHON]

*programs*: for each network the heuristic, greedy-DP and the integer program. On `additive` the program is exact, on
`compiler` it proves a lower bound, and annealing begins at its placement.

*methods*: every method with the same number of evaluations, beside searches in the processor seconds that EGRL took.
Distances are relative to the bound of the integer program, as means with the standard deviation over seeds.

*figure3*: the speed-up over our heuristic, and the paper's over the vendor's compiler. The two are different baselines
on different machines: only the order of the methods can be compared.

*zero_shot*: a network trained on one model places the others without training: the share of the integer program's gain
over the heuristic.

*packing*: MiniMalloc's eleven public instances at 1 MiB, by `packing.pack` and by OR-Tools (CP-SAT, one worker), in at
most 60 seconds each. benchmarks/minimalloc.zip has the instances of https://github.com/google/minimalloc (Apache-2.0).

*ranks*: with `--vela`, the rank correlation of both simulators with Vela's performance model (benchmarks.vela_ranks).

Latencies are simulated. BERT is `bert_base_fused`, which has as many operators as the paper's.
"""

import io
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import NOTHING, number
from benchmarks.vela_ranks import ranks
from controllers.evolution import Evolution
from rlflow.tasks.placement.packing import pack, section_bound
from rlflow.tasks.placement.program import solve
from rlflow.tasks.placement.searches import Best, Found, all_slowest, anneal, best_placement, greedy_dp, random_search
from rlflow.tasks.placement.simulators import COMPILER, SIMULATORS
from rlflow.tasks.placement.task import Placements, instance_of
from rlflow.zoo import ZOO, load

DEVICE = "nnp-i"
PAPER = ("resnet50", "resnet101", "bert_base_fused")  # the networks of the paper
LEARNED = ("egrl", "ea", "pg")
TIMED = ("cma-es", "annealing")  # searches that also run for the processor seconds of EGRL
RATE = 1000  # evaluations that measure the speed of a search
METHODS = (*LEARNED, "cma-es", "annealing", "random", "greedy-dp")
PROGRAM_SECONDS, LONG_SECONDS = 60, 600  # time limits of the integer program, and of annealing
FIGURE_3 = {  # the paper's speed-up over the vendor's compiler: resnet50, resnet101, BERT
    "egrl": (1.28, 1.78, 1.66), "ea": (1.06, 1.47, 1.64), "greedy-dp": (0.72, 1.27, 0.67), "pg": (0.29, 0.23, 0.21),
}  # fmt: skip
BATCH = 1000  # placements of the measurement of an evaluation
SAMPLES = 20  # placements that a network draws for a model that it has not seen
MINIMALLOC = Path(__file__).with_name("minimalloc.zip")
CAPACITY, PACKING_SECONDS, PACKING_NODES = 2**20, 60, 4_000_000  # about 60 seconds of `pack`
VELA_PLACEMENTS = 300


@cache
def opened(model: str, simulator: str) -> Placements:
    return instance_of(load(model), DEVICE, simulator)


def cma_es(instance: Placements, limit: int, seed: int) -> Found:
    """Search by CMA-ES over the logits of the memories of every tensor; the highest logit is the memory.

    Args:
        instance: the instance.
        limit: the number of evaluations.
        seed: the seed.
    """
    shape = (instance.workload.n, 2, instance.memories)
    start = np.zeros(shape)
    start[..., -1] = 1.0
    search = Evolution(start.ravel(), 1.0, 20, 100, 10, seed)
    best = Best(instance, all_slowest(instance), limit, LONG_SECONDS)
    while not best.is_over:
        maps = search.ask().reshape(-1, *shape).argmax(axis=-1)
        result = best.evaluate(instance.memories * maps[..., 0] + maps[..., 1])
        search.tell(-result.objectives / result.objectives.max())
    return best.found()


def learned(instance: Placements, variant: str, invalid: str, limit: int, seed: int):
    """Train EGRL or an ablation, and return the controller."""
    from controllers.controller_options import EGRLConfig
    from controllers.egrl.agent import EGRL

    agent = EGRL(EGRLConfig(variant=variant, invalid=invalid, evaluations=limit), instance, seed)
    with TemporaryDirectory() as folder:
        agent.train(instance, seed, folder)
    return agent


# -- parts -------------------------------------------------------------------------------------------


def program(model: str, simulator: str) -> dict:
    """Return the objectives in µs and the seconds of all methods without learning, and the time of an evaluation."""
    instance = opened(model, simulator)
    started = time.process_time()
    solved = solve(instance.problem, PROGRAM_SECONDS)
    seconds = time.process_time() - started
    found, bound = best_placement(instance, 2 * PROGRAM_SECONDS, 0)
    decisions = np.random.default_rng(0).integers(instance.space.nvec, size=(BATCH, instance.workload.n))
    instance.evaluate(decisions)  # compiles the simulator
    evaluated = time.process_time()
    instance.evaluate(decisions)
    each = (time.process_time() - evaluated) / BATCH
    return {
        "operators": instance.workload.n, "bound": max(bound, solved.bound) / 1e9, "seconds": seconds,
        "best": min(one.objective for one in found.values()) / 1e9, "heuristic": found["heuristic"].objective / 1e9,
        "greedy": greedy_dp(instance, seconds=LONG_SECONDS).objective / 1e9, "evaluation_us": 1e6 * each,
    }  # fmt: skip


def method(model: str, simulator: str, name: str, invalid: str, limit: int, seed: int) -> dict:
    """Run a method, and the searches of TIMED in the same processor seconds if the method is EGRL.

    Returns:
        "us": simulated µs, "seconds": processor seconds, and "timed": search → µs in these seconds, {} without EGRL.
    """
    instance, started, timed = opened(model, simulator), time.process_time(), {}
    ways = {
        "cma-es": cma_es, "annealing": anneal, "random": random_search,
        "greedy-dp": lambda instance, limit, seed: greedy_dp(instance, limit),
    }  # fmt: skip
    if name in LEARNED:
        objective = learned(instance, name, invalid, limit, seed).best_objective
    else:
        objective = ways[name](instance, limit, seed).objective
    seconds = time.process_time() - started
    for search in TIMED if name == "egrl" else ():
        begun = time.process_time()
        ways[search](instance, RATE, seed)
        evaluations = int(RATE * seconds / (time.process_time() - begun))
        timed[search] = ways[search](instance, max(evaluations, limit), seed).objective / 1e9
    return {"us": objective / 1e9, "seconds": seconds, "timed": timed}


def zero_shot(model: str, simulator: str, invalid: str, limit: int, seed: int, others: tuple[str, ...]) -> dict:
    """Train on one model; return model → share of the integer program's gain over the heuristic, for the others."""
    agent, shares = learned(opened(model, simulator), "egrl", invalid, limit, seed), {}
    for other in others:
        instance = opened(other, simulator)
        decisions = agent.act(instance, SAMPLES, np.random.default_rng(seed))
        usual = int(instance.evaluate(instance.control()[None]).objectives[0])
        bound, placed = solve(instance.problem, PROGRAM_SECONDS).bound, instance.evaluate(decisions).objectives.min()
        shares[other] = float((usual - placed) / max(usual - bound, 1))
    return shares


def minimalloc(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first step, the step after the last one, and the size of each buffer of an instance, int64 [n]."""
    with ZipFile(MINIMALLOC) as archive:
        rows = np.loadtxt(io.BytesIO(archive.read(f"{name}.csv")), np.int64, delimiter=",", skiprows=1)
    return rows[:, 1], rows[:, 2], rows[:, 3]


def packing(name: str) -> dict:
    """Pack an instance of MiniMalloc; "seconds" and "cp_sat" are processor seconds, None if no packing was found."""
    buffers = minimalloc(name)
    pack(*(part[:2] for part in buffers), CAPACITY)  # compiles the search
    result = {"buffers": len(buffers[0]), "bound": section_bound(*buffers)}
    for name, way, limit in (("seconds", pack, PACKING_NODES), ("cp_sat", cp_sat, PACKING_SECONDS)):
        started = time.process_time()
        offsets = way(*buffers, CAPACITY, limit)
        result[name] = None if offsets is None else time.process_time() - started
    return result


def cp_sat(lower, upper, sizes, capacity: int, seconds: float) -> np.ndarray | None:
    """Return addresses by OR-Tools' CP-SAT with rectangles that do not overlap; arguments are as in `pack`."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    offsets = [model.new_int_var(0, capacity - size, "") for size in sizes.tolist()]
    steps = [
        model.new_fixed_size_interval_var(a, b - a, "") for a, b in zip(lower.tolist(), upper.tolist(), strict=True)
    ]
    model.add_no_overlap_2d(
        steps, [model.new_fixed_size_interval_var(x, s, "") for x, s in zip(offsets, sizes.tolist(), strict=True)]
    )
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 1
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.array([solver.value(offset) for offset in offsets])


# -- tables ------------------------------------------------------------------------------------------


def tables(
    programs: dict, methods: dict, shares: dict, packed: dict, ranked: dict, chosen: tuple[str, ...]
) -> dict[str, Table]:
    """Return the tables of the module docstring.

    Args:
        programs: (model, simulator) → result of `program`.
        methods: (model, simulator, method, seed) → result of `method`.
        shares: model → result of `zero_shot`.
        packed: name → result of `packing`.
        ranked: result of `benchmarks.vela_ranks.ranks`, or {}.
        chosen: the models of the tables of methods.
    """
    rows = []
    for (model, simulator), one in programs.items():
        rows.append([
            model, simulator, one["operators"], number(one["heuristic"], 1), number(one["greedy"], 1),
            number(one["best"], 1), f"{100 * (one['best'] / one['bound'] - 1):.3f} %", number(one["seconds"], 1),
            number(one["evaluation_us"], 1),
        ])  # fmt: skip
    heads = ["network", "simulator", "operators", "heuristic, µs", "greedy-DP, µs", "best, µs", "proved gap"]
    result = {"programs": Table([*heads, "program, s", "evaluation, µs"], rows, text_columns=2)}
    above, speed = [], []
    for simulator in SIMULATORS:
        rows = {name: (name, lambda one: one["us"]) for name in METHODS}
        rows |= {f"{name}, EGRL's seconds": ("egrl", lambda one, name=name: one["timed"][name]) for name in TIMED}
        for name, (kind, value) in rows.items():
            cells, ups = [], []
            for model in chosen:
                runs = [value(one) for (m, s, k, _), one in methods.items() if (m, s, k) == (model, simulator, kind)]
                known = programs.get((model, simulator))
                if not runs or not known:
                    cells.append(NOTHING)
                    ups.append(NOTHING)
                    continue
                over = 100 * (np.array(runs) / known["bound"] - 1)
                cells.append(f"{over.mean():+.2f} ± {over.std():.2f} %")
                ups.append(f"{np.mean(known['heuristic'] / np.array(runs)):.2f}")
            above.append([name, simulator, *cells])
            if name in FIGURE_3:
                speed.append([name, simulator, *ups, *(f"{value:.2f}" for value in FIGURE_3[name])])
    result["methods"] = Table(["method", "simulator", *(f"{model}, above the bound" for model in chosen)], above, 2)
    heads = [*(f"{model}, ours" for model in chosen), *(f"{model}, paper" for model in PAPER)]
    result["figure3"] = Table(["method", "simulator", *heads], speed, 2)
    result["zero_shot"] = Table(
        ["trained on", "placed", "share of the gain"],
        [[model, other, f"{100 * share:.0f} %"] for model, one in shares.items() for other, share in one.items()], 2,
    )  # fmt: skip
    rows = []
    for name, one in packed.items():
        seconds = [NOTHING if one[key] is None else number(one[key], 1) for key in ("seconds", "cp_sat")]
        rows.append([name, one["buffers"], one["bound"], *seconds])
    heads = ["instance", "buffers", "section bound, bytes", "search, s", "OR-Tools, s"]
    result["packing"] = Table(heads, rows)
    rows = [[name, f"{one['rank']:.3f}", *(f"{ratio:.2f}" for ratio in one["ratio"])] for name, one in ranked.items()]
    heads = ["simulator", "rank correlation", "Vela's latency / ours: least", "median", "most"]
    result["ranks"] = Table(heads, rows)
    return result


def main() -> int:
    arguments = parser(__doc__, seeds=5)
    names = tuple(name for name in ZOO if not name.startswith("tiny_"))
    arguments.add_argument("--model", action="append", choices=names, help="one network only; repeatable")
    arguments.add_argument("--evaluations", type=int, default=4000, metavar="N", help="of each method (default 4000)")
    invalid = "reward of invalid maps (controller.egrl.invalid, default rectified)"
    arguments.add_argument("--invalid", default="rectified", metavar="KIND", help=invalid)
    vela = "interpreter of an environment with ethos-u-vela, for the table of ranks"
    arguments.add_argument("--vela", metavar="PYTHON", help=vela)
    parsed = arguments.parse_args()
    record = Record("placement", parsed)
    chosen = tuple(name for name in PAPER if not parsed.model or name in parsed.model)
    keys = [(model, simulator) for model in parsed.model or names for simulator in SIMULATORS]
    programs = record.all_parts({f"program-{m}-{s}": (program, m, s) for m, s in keys})
    runs = [
        (model, simulator, name, seed)
        for model in chosen for simulator in SIMULATORS for name in METHODS
        for seed in range(1 if name == "greedy-dp" else parsed.seeds)
    ]  # fmt: skip
    methods = record.all_parts({
        f"{name}-{model}-{simulator}-{seed}": (
            method, model, simulator, name, parsed.invalid, parsed.evaluations, seed
        )
        for model, simulator, name, seed in runs
    })  # fmt: skip
    trained = [model for model in ("resnet50", "bert_base_fused") if model in chosen]
    shares = record.all_parts({
        f"zero-shot-{model}": (
            zero_shot, model, COMPILER, parsed.invalid, parsed.evaluations, 0,
            tuple(other for other in parsed.model or names if other != model),
        )
        for model in trained
    })  # fmt: skip
    packed = record.all_parts({f"packing-{name}": (packing, name) for name in "ABCDEFGHIJK" if not parsed.model})
    ranked = record.all_parts({"ranks": (ranks, parsed.vela, VELA_PLACEMENTS)} if parsed.vela else {})
    record.publish(
        tables(
            {key: programs[f"program-{key[0]}-{key[1]}"] for key in keys if f"program-{key[0]}-{key[1]}" in programs},
            {key: methods[name] for key in runs if (name := "{2}-{0}-{1}-{3}".format(*key)) in methods},
            {model: shares[f"zero-shot-{model}"] for model in trained if f"zero-shot-{model}" in shares},
            {name.removeprefix("packing-"): one for name, one in packed.items()},
            ranked.get("ranks", {}),
            chosen,
        ),  # fmt: skip
        f"Simulated latencies; {parsed.evaluations} evaluations of each method, rewards of invalid maps: "
        f"{parsed.invalid}.",
    )
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
