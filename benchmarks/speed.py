"""Speed and memory of the real environment, and speed of dreams, on one core.

    python -m benchmarks.speed [--steps N]

The page has four tables.

- *steps*: random play on four models. A step is one rewrite with the action masks and the estimated cost of the new
  graph. The table also has the times of the arrays that a graph network reads, of `env.step` of the Gymnasium
  environment, and of `env.step` with the successor graphs that X-RLflow's agent reads.
- *growth*: times of loading, the first match, a step, its arrays and a check on models of simple shapes, with the
  exponent e of time ~ nodes^e. A check makes four sessions of ONNX Runtime; the time of one session is listed, too.
- *memory*: resident memory after a tenth of a long random walk and at its end.
- *dreams*: steps per second of many simultaneous dreams, including the PPO policy, and milliseconds of one step of a
  single dream.
"""

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from benchmarks import shapes
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import number, timed
from rlflow.common.system import resident_memory
from rlflow.common.task import location_masks
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import session
from rlflow.optimisation.validate import Comparison
from rlflow.rules.language import load_rules
from rlflow.zoo import load

MODELS = ("resnet50", "bert_base", "inception_v3", "light_densenet121")
SIZES = (100, 300, 1000, 3000, 10000, 30000)  # approximate numbers of nodes of the models of `shapes`
LARGER = 1000  # smallest size from which the growth is computed; below it, constant times dominate
STEP_SECONDS, SLOW_SESSION = 30.0, 20.0
EPISODE, LAYERS = 50, 5  # steps per episode; message-passing steps of X-RLflow's network
MEMORY_STEPS = 20_000  # steps of the random walk of the table "memory"
# Model of the dreams; numbers of simultaneous dreams; seconds of each measurement; first steps that do not count.
DREAMT_MODEL, DREAMS, DREAM_SECONDS, WARM_UPS = "bert_base", (64, 256, 1024), 5.0, 5
DREAM_OPTIONS = (  # short trainings, because the quality of a world model does not change its speed
    "world_model.mdn-rnn.encoder_steps=10", "world_model.mdn-rnn.steps=10", "world_model.graph-mdn.match_steps=200",
    "world_model.graph-mdn.node_steps=200", "controller.name=ppo",
)  # fmt: skip


def milliseconds(seconds: list[float]) -> dict[str, float]:
    return {"median": 1e3 * float(np.median(seconds)), "p99": 1e3 * float(np.percentile(seconds, 99))}


# -- the real environment ----------------------------------------------------------------------------


def walk(task: Task, steps: int, seed: int) -> Iterator[tuple[RewriteState, float]]:
    """Yield (state after a random rewrite, seconds of the rewrite with action masks and cost) for each step.

    The walk returns to the initial state after EPISODE steps, and where no rule applies.
    """
    rng, state = np.random.default_rng(seed), task.initial
    for step in range(steps):
        if step % EPISODE == 0 or not state.counts.any():
            state = task.initial
        counts = state.counts
        drawn = int(rng.integers(counts.sum()))
        rule = int(np.searchsorted(np.cumsum(counts), drawn, side="right"))
        started = time.perf_counter()
        state = state.apply(rule, drawn - int(counts[:rule].sum()))
        location_masks(state.counts, task.encoding_spec)
        assert state.runtime_ms > 0
        yield state, time.perf_counter() - started


def step_times(model: onnx.ModelProto, steps: int) -> dict:
    """Measure random play on a model.

    Args:
        model: the model.
        steps: number of timed steps; a quarter as many untimed steps run before.

    Returns:
        "nodes": number of nodes. "first": milliseconds until the matches of the initial state are known. "step":
            median and 99 % quantile of the milliseconds of a rewrite with action masks and cost. "arrays": the same
            figures for computing the observation arrays of the new state.
    """
    graph = load_graph(model)
    started = time.perf_counter()
    task = Task(graph, load_rules(), AnalyticCost())
    assert task.initial.counts is not None
    first = 1e3 * (time.perf_counter() - started)
    list(walk(task, steps // 4, 1))  # fills the caches, which are full during most of a long collection
    stepping, arrays = [], []
    for state, seconds in walk(task, steps, 0):
        stepping.append(seconds)
        arrays.append(timed(state.arrays))
    return {"nodes": len(graph.nodes), "first": first, "step": milliseconds(stepping), "arrays": milliseconds(arrays)}


def model_times(name: str, steps: int) -> dict:
    """Return `step_times` of a model of the zoo, with times of two environments and the resident memory of a long walk.

    Args:
        name: name of the model.
        steps: number of timed steps, see `step_times`.

    Returns:
        The result of `step_times` and: "gymnasium", "candidates": `env_times` of `GraphRewriteEnv` and of
            `CandidateEnv`. "memory": resident bytes after MEMORY_STEPS / 10 and after MEMORY_STEPS steps.
    """
    model = load(name)
    task = Task(load_graph(model), load_rules(), AnalyticCost())
    result = step_times(model, steps)
    result["gymnasium"] = env_times(GraphRewriteEnv(task, max_steps=EPISODE), steps // 4)
    candidates = CandidateEnv(GraphRewriteEnv(task, max_steps=EPISODE), LAYERS)
    result["candidates"] = env_times(candidates, steps // 8)
    marks = []
    for step, _ in enumerate(walk(task, MEMORY_STEPS, 2), start=1):
        if step in (MEMORY_STEPS // 10, MEMORY_STEPS):
            gc.collect()
            marks.append(resident_memory())
    return result | {"memory": marks}


def env_times(env, steps: int) -> dict[str, float]:
    """Return median and 99 % quantile of the milliseconds of `env.step` with random rewrites.

    Args:
        env: an environment whose observations have "actions" (`CandidateEnv`) or "location_masks".
        steps: number of calls of `env.step`.
    """
    rng, times = np.random.default_rng(0), []
    observation, _ = env.reset()
    for _ in range(steps):
        if "actions" in observation:
            valid = observation["actions"][1:]
        else:
            valid = np.argwhere(observation["location_masks"][:-1])
        if not len(valid):
            observation, _ = env.reset()
            continue
        action = valid[rng.integers(len(valid))]
        started = time.perf_counter()
        observation, _, terminated, truncated, _ = env.step(action)
        times.append(time.perf_counter() - started)
        if terminated or truncated:
            observation, _ = env.reset()
    return milliseconds(times)


# -- growth ------------------------------------------------------------------------------------------


def size_times(shape: str, nodes: int, steps: int) -> dict:
    """Measure how long it takes to load, match, rewrite and check a model of `benchmarks.shapes`.

    Args:
        shape: a key of `shapes.MODELS`.
        nodes: approximate number of nodes.
        steps: largest number of timed steps; at most STEP_SECONDS are spent on them.

    Returns:
        "nodes": number of nodes. Milliseconds: "load" of the graph; "first", until the matches of the initial state are
            known; "step", median of a rewrite with action masks and cost; "arrays", median of the observation arrays of
            a new state; "session", making one session of ONNX Runtime; "check" of the unchanged model against itself,
            which makes four sessions, or None if a session takes longer than SLOW_SESSION seconds.
    """
    model = shapes.MODELS[shape](nodes)
    result: dict = {"shape": shape}
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        result["load"] = 1e3 * timed(lambda: load_graph(path))
        graph = load_graph(path)
        task = Task(graph, load_rules(), AnalyticCost())
        result |= {"nodes": len(graph.nodes), "first": 1e3 * timed(lambda: task.initial.counts)}
        stepping, arrays, began = [], [], time.perf_counter()
        for state, seconds in walk(task, steps, 0):
            stepping.append(seconds)
            arrays.append(timed(state.arrays))
            if time.perf_counter() - began > STEP_SECONDS:
                break
        result |= {"step": milliseconds(stepping)["median"], "arrays": milliseconds(arrays)["median"]}
        result["session"] = 1e3 * timed(lambda: session(path, 1))
        slow = result["session"] > 1e3 * SLOW_SESSION
        result["check"] = None if slow else 1e3 * timed(lambda: Comparison(path, (0,), 1e-3).against(path))
    return result


# -- dreams ------------------------------------------------------------------------------------------


def dream_times(world_model: str) -> dict:
    """Measure how fast a world model steps its dreams.

    Args:
        world_model: name of the world model, for instance "mdn-rnn".

    Returns:
        "rates": number of simultaneous dreams → steps per second, counted over all dreams. A step includes the PPO
            policy that chooses the action. "single": median and 99 % quantile of the milliseconds that one dream
            needs for one step with a random action, without a policy.
    """
    from benchmarks.world_models import Learning

    with TemporaryDirectory() as folder:
        learning = Learning(DREAMT_MODEL, world_model, 0, Path(folder), 2000, *DREAM_OPTIONS)
        learning.learn(1, learning.training)
        model = learning.model()
        agent = learning.agent(model)
        rates = {str(count): steps_a_second(learning.dreams(model, count), agent) for count in DREAMS}
        return {"rates": rates, "single": single_times(learning.dreams(model, 1))}


def steps_a_second(env, agent) -> float:
    rng, steps, spent = np.random.default_rng(0), -WARM_UPS, 0.0
    observation, _ = env.reset(seed=0)
    while spent < DREAM_SECONDS or steps <= 0:
        started = time.perf_counter()
        observation, *_ = env.step(agent.act(observation, greedy=False, rng=rng))
        spent += time.perf_counter() - started if steps >= 0 else 0.0
        steps += 1
    return steps * env.num_envs / spent


def single_times(env) -> dict[str, float]:
    rng, times = np.random.default_rng(0), []
    observation, _ = env.reset(seed=0)
    while sum(times) < DREAM_SECONDS:
        counts = observation["counts"][0]
        rule = int(rng.choice(np.flatnonzero(counts[:-1]))) if counts[:-1].any() else len(counts) - 1
        action = np.array([[rule, rng.integers(counts[rule])]])
        started = time.perf_counter()
        observation, *_ = env.step(action)
        times.append(time.perf_counter() - started)
    return milliseconds(times[WARM_UPS:])


# -- tables ------------------------------------------------------------------------------------------


def tables(models: dict[str, dict], sizes: dict[str, dict], dreams: dict[str, dict]) -> dict[str, Table]:
    """Return the tables "steps", "growth", "memory" and "dreams" (see the module docstring).

    Args:
        models: model → result of `model_times`.
        sizes: name of a shape and number of nodes, such as "chain-1000" → result of `size_times`.
        dreams: world model → result of `dream_times`.
    """
    steps, memory = [], []
    for name, one in models.items():
        medians = [number(one[what]["median"]) for what in ("arrays", "gymnasium", "candidates")]
        times = number(one["step"]["median"]), number(one["step"]["p99"])
        steps.append([name, one["nodes"], *times, *medians, number(one["first"], 0)])
        early, late = one["memory"]
        memory.append([name, number(early / 1e6, 0), number(late / 1e6, 0), f"{100 * (late / early - 1):+.1f} %"])
    growth = []
    for shape in dict.fromkeys(one["shape"] for one in sizes.values()):
        of_shape = [sizes.get(f"{shape}-{nodes}", {}) for nodes in SIZES]
        for what in ("load", "first", "step", "arrays", "check", "session"):
            times = [(one.get("nodes", 0), one.get(what)) for one in of_shape]
            shown = ["–" if time is None else number(time, 1 if time < 100 else 0) for _, time in times]
            growth.append([shape, what, *shown, growth_exponent(times)])
    rates = []
    for kind, one in dreams.items():
        single = number(one["single"]["median"]), number(one["single"]["p99"])
        rates.append([kind, *(number(rate, 0) for rate in one["rates"].values()), *single])
    return {
        "steps": Table(
            ["model", "nodes", "step, median, ms", "99 %", "arrays", "Gymnasium", "with candidates", "first state, ms"],
            steps,
        ),
        "growth": Table(["model", "ms", *(f"about {nodes:,} nodes" for nodes in SIZES), "exponent"], growth),
        "memory": Table(["model", f"MB after {MEMORY_STEPS // 10:,} steps", f"{MEMORY_STEPS:,}", "growth"], memory),
        "dreams": Table(
            ["world model", *(f"{count} dreams, steps/s" for count in DREAMS), "one step, median, ms", "99 %"], rates
        ),
    }  # fmt: skip


def growth_exponent(times: list[tuple[int, float | None]]) -> str:
    """Return the exponent e of time ~ nodes^e by least squares, on the models of at least LARGER nodes.

    Args:
        times: number of nodes and milliseconds of each model; None for a time that was not measured.
    """
    points = [(np.log(nodes), np.log(time)) for nodes, time in times if time is not None and nodes >= 0.9 * LARGER]
    return number(statistics.linear_regression(*zip(*points, strict=True)).slope) if len(points) > 1 else "–"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=2000, help="timed steps of each measurement (default 2000)")
    parsed = arguments.parse_args()
    record = Record("speed", parsed)
    models = record.all_parts({name: (model_times, name, parsed.steps) for name in MODELS})
    sizes = record.all_parts(
        {f"{shape}-{nodes}": (size_times, shape, nodes, parsed.steps) for shape in shapes.MODELS for nodes in SIZES}
    )
    dreams = record.all_parts({f"dreams-{kind}": (dream_times, kind) for kind in ("graph-mdn", "mdn-rnn", "edits")})
    record.publish(tables(models, sizes, {key.removeprefix("dreams-"): one for key, one in dreams.items()}))
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
