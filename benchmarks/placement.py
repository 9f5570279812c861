"""Placements of tensors: the proved optimum, searches, and EGRL, on two simulators of the memories of an NNP-I.

    python -m benchmarks.placement [--model NAME] [--evaluations N] [--seeds N] [--vela PYTHON]

*programs*: for each network the heuristic, greedy-DP and the integer program. On `additive` the program is exact, on
`compiler` it proves a lower bound, and annealing begins at its placement. Two of these parts run side by side.

*methods*: every method with the same number of evaluations, beside CMA-ES and annealing with TIMED_SECONDS, which is
less than a training of EGRL takes. Distances are relative to the bound of the integer program, as means with the
standard deviation over seeds. `seeds_of` says what runs with fewer seeds, and the ablations run on `compiler` only.

*figure3*: the speed-up over our heuristic, and the paper's over the vendor's compiler. The two are different baselines
on different machines: only the order of the methods can be compared.

*zero_shot*: EGRL learns on twelve of the fifteen networks of `benchmarks.shared.MODELS` in turn, and places the other
three without training. FOLDS such trainings place each network once. The share is relative to the integer program's
gain over the heuristic on `additive`. Its placement is the best of 1 + SAMPLES of the policy.

*packing*: MiniMalloc's eleven public instances at 1 MiB, by `packing.pack` in at most about 60 seconds and by OR-Tools
(CP-SAT, one worker) in at most PACKING_SECONDS. benchmarks/minimalloc.zip has the instances of
https://github.com/google/minimalloc (Apache-2.0).

*ranks*: with `--vela`, the rank correlation of both simulators with Vela's performance model (benchmarks.vela_ranks).

Latencies are simulated. BERT is `bert_base_fused`, which has as many operators as the paper's.
"""

import io
import itertools
import os
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, NOTHING, number
from benchmarks.vela_ranks import ranks
from controllers.evolution import Evolution
from rlflow.tasks.placement.packing import pack, section_bound
from rlflow.tasks.placement.searches import Best, Found, all_slowest, anneal, best_placement, greedy_dp
from rlflow.tasks.placement.simulators import ADDITIVE, SIMULATORS
from rlflow.tasks.placement.task import Placements, instance_of
from rlflow.zoo import ZOO, load

DEVICE = "nnp-i"
PAPER = ("resnet50", "resnet101", "bert_base_fused")  # the networks of the paper
ABLATIONS = ("ea", "pg")
LEARNED = ("egrl", *ABLATIONS)
TIMED_SECONDS = 30
TIMED = (f"cma-es, {TIMED_SECONDS} s", f"annealing, {TIMED_SECONDS} s")
METHODS = (*LEARNED, "cma-es", "annealing", "random", "greedy-dp", *TIMED)
PAPER_SECONDS, PROGRAM_SECONDS = 60, 10  # time limits of program and annealing on PAPER's and on other networks
LONG_SECONDS = 600  # time limit of a search that has a number of evaluations
ENDLESS = 10**9  # evaluations
FIGURE_3 = {  # the paper's speed-up over the vendor's compiler: resnet50, resnet101, BERT
    "egrl": (1.28, 1.78, 1.66), "ea": (1.06, 1.47, 1.64), "greedy-dp": (0.72, 1.27, 0.67), "pg": (0.29, 0.23, 0.21),
}  # fmt: skip
SMALL_GAIN = 1e-3  # of the integer program, relative to the heuristic; shares of less are not stated
BATCH = 1000  # placements of the measurement of an evaluation
FOLDS, SAMPLES = 5, 20  # trainings of zero_shot; placements that a network draws for a model that it has not seen
MINIMALLOC = Path(__file__).with_name("minimalloc.zip")
CAPACITY, PACKING_SECONDS, PACKING_NODES = 2**20, 20, 4_000_000  # limits of OR-Tools, and of `pack` (about 60 seconds)
VELA_PLACEMENTS = 300


@cache
def opened(model: str, simulator: str) -> Placements:
    return instance_of(load(model), DEVICE, simulator)


def cma_es(instance: Placements, limit: int, seed: int, seconds: float = LONG_SECONDS) -> Found:
    """Search by CMA-ES over the logits of the memories of every tensor; the highest logit is the memory.

    Args:
        instance: the instance.
        limit: the number of evaluations.
        seed: the seed.
        seconds: time limit.
    """
    shape = (instance.workload.n, 2, instance.memories)
    start = np.zeros(shape)
    start[..., -1] = 1.0
    search = Evolution(start.ravel(), 1.0, 20, 100, 10, seed)
    best = Best(instance, all_slowest(instance), limit, seconds)
    while not best.is_over:
        maps = search.ask().reshape(-1, *shape).argmax(axis=-1)
        result = best.evaluate(instance.memories * maps[..., 0] + maps[..., 1])
        search.tell(-result.objectives / result.objectives.max())
    return best.found()


def random_search(instance: Placements, limit: int, seed: int) -> Found:
    """Evaluate random decisions after their repair.

    Args:
        instance: the instance.
        limit: the number of evaluations.
        seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    best = Best(instance, all_slowest(instance), limit, LONG_SECONDS)
    while not best.is_over:
        best.evaluate(rng.integers(instance.space.nvec, size=(min(256, limit - best.evaluations), instance.workload.n)))
    return best.found()


def agent_of(instance: Placements, variant: str, invalid: str, limit: int, seed: int, **options):
    """Return an untrained controller of EGRL or of an ablation; `options` are further ones of its EGRLConfig."""
    from controllers.controller_options import EGRLConfig
    from controllers.egrl.agent import EGRL

    return EGRL(EGRLConfig(variant=variant, invalid=invalid, evaluations=limit, **options), instance, seed)


def learned(instance: Placements, variant: str, invalid: str, limit: int, seed: int) -> int:
    """Train EGRL or an ablation, and return the objective of the best placement."""
    agent = agent_of(instance, variant, invalid, limit, seed)
    with TemporaryDirectory() as folder:
        agent.train(instance, seed, folder)
    return agent.best_objective


def learned_on_all(instances: list[Placements], invalid: str, limit: int, seed: int):
    """Train EGRL on several instances in turn, one generation each, and return the controller.

    Networks and the gradient learner go from instance to instance. Chromosomes and the replay buffer stay. The champion
    is the network with the highest mean reward over the instances. First policies do not prefer the last memory,
    because the best placement of a small network uses the fastest one for everything.

    Args:
        instances: the instances.
        invalid: `EGRLConfig.invalid`.
        limit: the number of evaluations on all instances together.
        seed: the seed.
    """
    from controllers.egrl.networks import observe

    agents = [agent_of(instance, "egrl", invalid, limit, seed, slowest=0.0) for instance in instances]
    first, seen = agents[0], [observe(instance.arrays()) for instance in instances]
    controls = [int(instance.evaluate(instance.control()[None]).objectives[0]) for instance in instances]
    networks = first.population.networks
    for generation in range(limit // first.per_generation):
        k = generation % len(agents)
        agents[k].sac, agents[k].forward = first.sac, first.forward
        agents[k].population = agents[k].population._replace(networks=networks)
        agents[k].one_generation(instances[k], seen[k], controls[k], np.random.default_rng([seed, generation]))
        networks = agents[k].population.networks
    first.population = first.population._replace(networks=networks)
    networks, rewards = np.concatenate([networks, first.sac.actor.numpy()[None]]), 0.0
    for instance, graph, control in zip(instances, seen, controls, strict=True):
        decisions = first.joined(first.forward(networks, graph).numpy().argmax(axis=-1))
        rewards = rewards + (control / instance.evaluate(decisions).objectives) ** 2
    first.champion = networks[rewards.argmax()]
    return first


# -- parts -------------------------------------------------------------------------------------------


def program(model: str, simulator: str) -> dict:
    """Return the objectives in µs and the seconds of all methods without learning, and the time of an evaluation."""
    instance = opened(model, simulator)
    decisions = np.random.default_rng(0).integers(instance.space.nvec, size=(BATCH, instance.workload.n))
    instance.evaluate(decisions[:1])  # compiles the simulator
    started = time.process_time()
    instance.evaluate(decisions)
    evaluated = time.process_time()
    found, bound = best_placement(instance, PAPER_SECONDS if model in PAPER else PROGRAM_SECONDS, 0)
    seconds = time.process_time() - evaluated
    return {
        "operators": instance.workload.n, "bound": bound / 1e9, "seconds": seconds,
        "best": min(one.objective for one in found.values()) / 1e9, "heuristic": found["heuristic"].objective / 1e9,
        "greedy": greedy_dp(instance, seconds=LONG_SECONDS).objective / 1e9,
        "evaluation_us": 1e6 * (evaluated - started) / BATCH,
    }  # fmt: skip


def method(model: str, simulator: str, name: str, invalid: str, limit: int, seed: int) -> dict:
    """Run a method, and return its simulated µs ("us") and its processor seconds ("seconds")."""
    instance, started = opened(model, simulator), time.process_time()
    if name in LEARNED:
        objective = learned(instance, name, invalid, limit, seed)
    else:
        objective = {
            "cma-es": lambda: cma_es(instance, limit, seed), "annealing": lambda: anneal(instance, limit, seed),
            "random": lambda: random_search(instance, limit, seed), "greedy-dp": lambda: greedy_dp(instance, limit),
            TIMED[0]: lambda: cma_es(instance, ENDLESS, seed, TIMED_SECONDS),
            TIMED[1]: lambda: anneal(instance, ENDLESS, seed, seconds=TIMED_SECONDS),
        }[name]().objective  # fmt: skip
    return {"us": objective / 1e9, "seconds": time.process_time() - started}


def zero_shot(trained: tuple[str, ...], placed: tuple[str, ...], invalid: str, limit: int, seed: int) -> dict:
    """Train on some models, and return model → simulated µs of the best of 1 + SAMPLES placements of the others."""
    agent = learned_on_all([opened(model, ADDITIVE) for model in trained], invalid, limit, seed)
    instances = {model: opened(model, ADDITIVE) for model in placed}
    return {
        model: instance.evaluate(agent.act(instance, SAMPLES, np.random.default_rng(seed))).objectives.min() / 1e9
        for model, instance in instances.items()
    }


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
        shares: model → µs of the placement of a network that has not seen the model.
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
    for simulator, name in itertools.product(SIMULATORS, METHODS):
        cells, ups, seconds = [], [], []
        for model in chosen:
            runs = [one for (m, s, k, _), one in methods.items() if (m, s, k) == (model, simulator, name)]
            known, found = programs.get((model, simulator)), np.array([one["us"] for one in runs])
            seconds += [number(np.mean([one["seconds"] for one in runs]), 0) if runs else NOTHING]
            if not runs or not known:
                cells.append(NOTHING)
                ups.append(NOTHING)
                continue
            over = 100 * (found / known["bound"] - 1)
            spread = f" ± {over.std(ddof=1):.2f}" if len(runs) > 1 else ""
            cells.append(f"{over.mean():+.2f}{spread} % ({len(runs)})")
            ups.append(f"{np.mean(known['heuristic'] / found):.2f}")
        above.append([name, simulator, *cells, " / ".join(seconds)])
        if name in FIGURE_3:
            speed.append([name, simulator, *ups, *(f"{value:.2f}" for value in FIGURE_3[name])])
    heads = [*(f"{model}, above the bound (seeds)" for model in chosen), "seconds"]
    result["methods"] = Table(["method", "simulator", *heads], above, 2)
    heads = [*(f"{model}, ours" for model in chosen), *(f"{model}, paper" for model in PAPER)]
    result["figure3"] = Table(["method", "simulator", *heads], speed, 2)
    rows = []
    for model, placed in shares.items():
        known = programs.get((model, ADDITIVE))
        if known:
            gain, share = known["heuristic"] - known["best"], NOTHING
            if gain > SMALL_GAIN * known["heuristic"]:
                share = f"{100 * (known['heuristic'] - placed) / gain:.0f} %"
            rows.append([model, *(number(us, 1) for us in (known["heuristic"], placed, known["best"])), share])
    heads = ["network", "heuristic, µs", "zero-shot, µs", "integer program, µs", "share of the gain"]
    result["zero_shot"] = Table(heads, rows)
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


def seeds_of(model: str, simulator: str, name: str, seeds: int) -> int:
    """Return the number of seeds of a method, at most `seeds`.

    Trainings on ResNet-101 and BERT take minutes, so they have three seeds or one. The ablations run on `compiler`
    only. Greedy-DP draws no random numbers.
    """
    most = {"greedy-dp": 1, TIMED[0]: 1, TIMED[1]: 1}.get(name, seeds)
    if name in LEARNED and model != "resnet50":
        most = 1 if model == "bert_base_fused" and (name == "pg" or simulator == ADDITIVE) else 3
    return 0 if name in ABLATIONS and simulator == ADDITIVE else min(seeds, most)


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
    os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")  # two parts run side by side
    chosen = tuple(name for name in PAPER if not parsed.model or name in parsed.model)
    keys = [(model, simulator) for model in parsed.model or names for simulator in SIMULATORS]
    programs = record.all_parts({f"program-{m}-{s}": (program, m, s) for m, s in keys}, at_once=2)
    runs = {
        f"{name}-{model}-{simulator}-{seed}".replace(", ", "-").replace(" ", "-"): (model, simulator, name, seed)
        for model in chosen for simulator in SIMULATORS for name in METHODS
        for seed in range(seeds_of(model, simulator, name, parsed.seeds))
    }  # fmt: skip
    methods = record.all_parts(
        {part: (method, *key[:3], parsed.invalid, parsed.evaluations, key[3]) for part, key in runs.items()}, at_once=2
    )
    folds = record.all_parts({
        f"zero-shot-{fold}": (
            zero_shot, tuple(model for model in MODELS if model not in MODELS[fold::FOLDS]), MODELS[fold::FOLDS],
            parsed.invalid, parsed.evaluations, 0,
        )
        for fold in range(0 if parsed.model else FOLDS)
    }, at_once=2)  # fmt: skip
    shares = {model: placed for one in folds.values() for model, placed in one.items()}
    instances = "" if parsed.model else "ABCDEFGHIJK"
    packed = record.all_parts({f"packing-{name}": (packing, name) for name in instances}, at_once=2)
    ranked = record.all_parts({"ranks": (ranks, parsed.vela, VELA_PLACEMENTS)} if parsed.vela else {})
    record.publish(
        tables(
            {key: programs[f"program-{key[0]}-{key[1]}"] for key in keys if f"program-{key[0]}-{key[1]}" in programs},
            {key: methods[part] for part, key in runs.items() if part in methods},
            {model: shares[model] for model in MODELS if model in shares},
            {name.removeprefix("packing-"): one for name, one in packed.items()},
            ranked.get("ranks", {}),
            chosen,
        ),  # fmt: skip
        f"Simulated latencies; {parsed.evaluations} evaluations of each method, rewards of invalid maps: "
        f"{parsed.invalid}. Two parts ran side by side. Some methods have fewer seeds; the tables state them.",
    )
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
