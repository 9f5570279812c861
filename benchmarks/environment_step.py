"""The real environment: the time of a step, how it grows, and whether memory stays flat. One core.

A step is a rewrite, all masks and the estimated cost after it; the observation's arrays are timed apart. The
agent is random: every valid rewrite is equally probable. The copies of the graph's dictionaries, without which
no immutable graph can do, are timed in the same run as the bound.
"""

import gc
import math
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from rlflow.common.system import resident_memory
from rlflow.common.task import location_masks
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.profiled import ProfiledCost
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, load_rules
from rlflow.zoo import load

JUDGES = (*ENGINE, "rlflow/env", "rlflow/tasks", "rlflow/costs/analytic.py")

MODELS = ("resnet50", "bert_base", "inception_v3", "light_densenet121")
EPISODE = 50  # steps
SIZES = (100, 316, 1000, 3162, 10000)  # nodes
RULE_COUNTS = (40, 80, 160)  # and all
CHANNELS = 8
SHOWN = {
    "step": lambda result: result["step"]["median"],
    "p99": lambda result: result["step"]["p99"],
    "arrays": lambda result: result["arrays"]["median"],
}


# -- playing ---------------------------------------------------------------------------------------


def play(task: Task, steps: int, seed: int) -> Iterator[tuple[RewriteState, RewriteState, float]]:
    """(state, state after a random rewrite, seconds that it and its masks and cost took)."""
    rng = np.random.default_rng(seed)
    state = task.initial
    for step in range(steps):
        if step % EPISODE == 0 or not state.counts.any():
            state = task.initial
        counts = state.counts
        number = int(rng.integers(counts.sum()))
        xfer_id = int(np.searchsorted(np.cumsum(counts), number, side="right"))
        location = number - int(counts[:xfer_id].sum())
        start = time.perf_counter()
        after = state.apply(xfer_id, location)
        masks = location_masks(after.counts, after.task.encoding_spec)
        cost = after.runtime_ms
        seconds = time.perf_counter() - start
        assert len(masks) == len(task.rules) + 1 and cost > 0
        yield state, after, seconds
        state = after


def milliseconds(seconds: list[float]) -> dict[str, float]:
    result = 1e3 * np.array(seconds)
    return {"median": float(np.median(result)), "p99": float(np.percentile(result, 99)), "max": float(result.max())}


def step_times(task: Task, steps: int, seed: int) -> dict:
    """Milliseconds of steps, of the arrays after them, and of copying the dictionaries of the graphs."""
    stepping, arrays, copies = [], [], []
    for before, after, seconds in play(task, steps, seed):
        stepping.append(seconds)
        start = time.perf_counter()
        after.arrays()
        arrays.append(time.perf_counter() - start)
        graph, cost = before.graph, before.graph_cost
        start = time.perf_counter()
        for part in (graph.nodes, graph.types, graph.constants, graph.producers, graph.consumers, cost.nodes):
            part.copy()
        copies.append(time.perf_counter() - start)
    return {"step": milliseconds(stepping), "arrays": milliseconds(arrays), "copies": milliseconds(copies)}


def memory(task: Task, steps: int, seed: int) -> dict:
    """Resident bytes after a tenth of the steps and at the end."""
    marks = []
    for step, _ in enumerate(play(task, steps, seed), start=1):
        if step in (steps // 10, steps):
            gc.collect()
            marks.append(resident_memory())
    return {"steps": steps, "early": marks[0], "late": marks[1], "growth": marks[1] / marks[0] - 1}


# -- one model -------------------------------------------------------------------------------------


def measure_model(name: str, steps: int, memory_steps: int, seed: int) -> dict:
    graph = load_graph(load(name))
    start = time.perf_counter()
    task = Task(graph, load_rules(), AnalyticCost())
    env = GraphRewriteEnv(task, max_steps=EPISODE)
    env.reset()
    reset = time.perf_counter() - start
    list(play(task, steps // 4, seed + 1))  # caches as they are in a collection that runs
    result = {
        "nodes": len(graph.nodes),
        "reset_s": reset,
        **step_times(task, steps, seed),
        "env": env_times(env, steps, seed),
    }
    result["state"] = state_times(env)
    result["memory"] = memory(task, memory_steps, seed + 2)
    return result


def env_times(env: GraphRewriteEnv, steps: int, seed: int) -> dict:
    """Milliseconds of Gymnasium's step: padded observation, reward and info included."""
    rng, times = np.random.default_rng(seed), []
    observation, _ = env.reset()
    for _ in range(steps):
        valid = np.argwhere(observation["location_masks"][:-1])
        action = valid[rng.integers(len(valid))]
        start = time.perf_counter()
        observation, _, terminated, truncated, _ = env.step(action)
        times.append(time.perf_counter() - start)
        if terminated or truncated or not observation["xfer_mask"][:-1].any():
            observation, _ = env.reset()
    return milliseconds(times)


def state_times(env: GraphRewriteEnv, repeats: int = 100) -> dict:
    """Milliseconds to save, to restore and to fork."""
    saved = env.save_state()
    actions = {"save": env.save_state, "restore": lambda: env.restore_state(saved), "fork": env.fork}
    times: dict[str, list[float]] = {name: [] for name in actions}
    for name, action in actions.items():
        for _ in range(repeats):
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: milliseconds(result) for name, result in times.items()}


def profiled_times(name: str, steps: int, seed: int) -> dict:
    """Step times with the profiled cost, on a walk whose operators have all been timed before."""
    task = Task(load_graph(load(name)), load_rules(), ProfiledCost(budget_ms=1))
    list(play(task, steps, seed))
    return milliseconds([seconds for *_, seconds in play(task, steps, seed)])


# -- growth ----------------------------------------------------------------------------------------


def blocks(n_nodes: int) -> onnx.ModelProto:
    """Residual blocks of eight nodes (convolution, normalisation, activation, two branches), one after the other."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"

    def weight(name: str, *shape: int) -> str:
        values = rng.standard_normal(shape).astype(np.float32) * 0.1
        weights.append(helper.make_tensor(name, TensorProto.FLOAT, shape, np.abs(values) + 0.1))
        return name

    for k in range(n_nodes // 8):
        convolution = lambda name, source, k=k: helper.make_node(  # noqa: E731
            "Conv", [source, weight(f"{name}{k}.w", CHANNELS, CHANNELS, 1, 1)], [f"{name}{k}"]
        )
        nodes += [
            convolution("a", x),
            helper.make_node(
                "BatchNormalization", [f"a{k}", *(weight(f"n{k}.{i}", CHANNELS) for i in range(4))], [f"n{k}"]
            ),
            helper.make_node("Relu", [f"n{k}"], [f"r{k}"]),
            convolution("b", f"r{k}"),
            convolution("c", f"r{k}"),
            helper.make_node("Add", [f"b{k}", f"c{k}"], [f"s{k}"]),
            helper.make_node("Add", [f"s{k}", x], [f"t{k}"]),
            helper.make_node("Relu", [f"t{k}"], [f"y{k}"]),
        ]
        x = f"y{k}"
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, CHANNELS, 4, 4])  # noqa: E731
    graph = helper.make_graph(nodes, "blocks", [value("x")], [value(x)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def by_size(n_nodes: int, steps: int, seed: int) -> dict:
    graph = load_graph(blocks(n_nodes))
    task = Task(graph, load_rules(), AnalyticCost())
    list(play(task, steps // 4, seed + 1))
    return {"nodes": len(graph.nodes), **step_times(task, steps, seed)}


def by_rules(n_rules: int, steps: int, seed: int) -> dict:
    """Some of the rules, drawn at random, on Inception-v3: of those that apply there the same share as of all."""
    every, graph, rng = load_rules(), load_graph(load("inception_v3")), np.random.default_rng(seed)
    applies = Task(graph, every, AnalyticCost()).initial.counts > 0
    share = n_rules / len(every)
    chosen = [rng.permutation(np.flatnonzero(kind))[: math.ceil(share * kind.sum())] for kind in (applies, ~applies)]
    task = Task(graph, RuleSet(tuple(every[k] for k in sorted(np.concatenate(chosen)))), AnalyticCost())
    list(play(task, steps // 4, seed + 1))
    return {"rules": n_rules, **step_times(task, steps, seed)}


def slope(points: list[tuple[float, float]]) -> float:
    """The exponent e of time ~ size^e through all points; below 1 is slower than linear."""
    return statistics.linear_regression(*zip(*[(np.log(x), np.log(y)) for x, y in points], strict=True)).slope


# -- for docs/results -------------------------------------------------------------------------------


def table(figures: dict) -> str:
    """The models, in milliseconds."""
    heads = [
        "model", "nodes", "step, median", "p99", "arrays, median", "Gymnasium, median", "copies", "first reset",
        "memory, early and late",
    ]  # fmt: skip
    rows = []
    for name in MODELS:
        result = figures[name]
        step, memory = result["step"], result["memory"]
        times = [
            f"{milliseconds:.2f}"
            for milliseconds in (step["median"], step["p99"], result["arrays"]["median"], result["env"]["median"])
        ]
        sizes = "{:.0f} and {:.0f} MB".format(*(memory[when] / 1e6 for when in ("early", "late")))
        rows.append(
            [
                name, result["nodes"], *times, f"{result['copies']['median']:.3f}", f"{1000 * result['reset_s']:.0f}",
                sizes,
            ]
        )  # fmt: skip
    profiled = figures["profiled resnet50"]
    text = "With the profiled cost, its timings known, a step of ResNet-50 takes {median:.2f} (p99 {p99:.2f})."
    return f"{markdown(heads, rows)}\n\n{text.format(**profiled)}"


def growth_table(figures: dict) -> str:
    """The same with the graph, and with the number of rules (Inception-v3)."""
    parts = []
    for what in ("nodes", "rules"):
        points = [result for name, result in figures.items() if name.endswith(f" {what}")]
        rows = [[label, *(f"{read(point):.2f}" for point in points)] for label, read in SHOWN.items()]
        parts.append(markdown([what, *(str(point[what]) for point in points)], rows))
    return "\n\n".join(parts)


# -- all of it -------------------------------------------------------------------------------------


def main() -> int:
    arguments = parser(__doc__, "runs/environment_step")
    arguments.add_argument("--steps", type=int, default=2000, help="timed steps of each measurement")
    arguments.add_argument("--memory-steps", type=int, default=100_000)
    arguments = arguments.parse_args()
    steps, seed = arguments.steps, arguments.seed
    parts = {name: lambda name=name: measure_model(name, steps, arguments.memory_steps, seed) for name in MODELS}
    parts["profiled resnet50"] = lambda: profiled_times("resnet50", 200, seed)
    parts |= {f"{n} nodes": lambda n=n: by_size(n, steps, seed) for n in SIZES}
    parts |= {f"{n} rules": lambda n=n: by_rules(n, steps, seed) for n in (*RULE_COUNTS, len(load_rules()))}
    result = each(list(parts), arguments.folder, lambda name: parts[name]())
    models = {name: result[name] for name in MODELS}
    sizes = [result[f"{n} nodes"] for n in SIZES]
    rules = [result[f"{n} rules"] for n in (*RULE_COUNTS, len(load_rules()))]
    bars = []
    for name, model in models.items():
        bars += [
            bar(
                f"{name}: step, masks and cost, median", model["step"]["median"], "ms", "≤ 1",
                model["step"]["median"] <= 1,
            ),
            bar(f"{name}: step, masks and cost, p99", model["step"]["p99"], "ms", "≤ 10", model["step"]["p99"] <= 10),
            bar(f"{name}: arrays, median", model["arrays"]["median"], "ms", "≤ 1", model["arrays"]["median"] <= 1),
            bar(f"{name}: first reset", model["reset_s"], "s", "≤ 2", model["reset_s"] <= 2),
            bar(
                f"{name}: growth of memory", model["memory"]["growth"], "", "≤ 0.05", model["memory"]["growth"] <= 0.05,
            ),
            bar(
                f"{name}: save, restore and fork, slowest median", max(t["median"] for t in model["state"].values()),
                "ms", "≤ 1", all(t["median"] <= 1 for t in model["state"].values()),
            ),
        ]  # fmt: skip
    for what, points in (
        ("nodes", [(point["nodes"], point["step"]["median"]) for point in sizes]),
        ("rules", [(point["rules"], point["step"]["median"]) for point in rules]),
    ):
        exponent = slope(points)
        bars.append(bar(f"exponent of the median in the number of {what}", exponent, "", "< 1", exponent < 1))
    return finish("environment_step", arguments, result, bars)


if __name__ == "__main__":
    sys.exit(main())
