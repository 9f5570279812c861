"""X-RLflow: what it takes to see all candidates of a state, and to judge them.

*candidates*: random play on the paper's graphs, every valid rewrite equally probable. A step is the rewrite, reward,
masks and arrays of the environment, and all candidates; the observation of candidates is timed by itself, too. So is
that of the first state, of which nothing is known before.

*encoding*: in states of such a walk, the network's opinion of all candidates by their patches and by the whole
candidate graphs, rewritten and encoded from end to end: how far they are apart, and how long each takes, without making
the observation. One core.
"""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice

import numpy as np

from benchmarks.environment_step import EPISODE, milliseconds
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from benchmarks.locations import PAPER
from controllers.config import XRLflowConfig
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.candidates import CandidateEnv, CandidateTable
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load

JUDGES = (
    *ENGINE, "rlflow/env/candidates.py", "rlflow/env/candidates.py", "rlflow/env/state.py", "rlflow/env/step.py",
    "controllers/masked.py", "controllers/xrlflow",
)  # fmt: skip

LARGE = "bert_base"  # whose encoding must be faster by FASTER
FASTER = 10
EQUAL = 1e-5
STATES = 3  # of a walk, in which encodings are compared
REPEATS = 5  # of an encoding that is timed


def environment(name: str) -> GraphRewriteEnv:
    return GraphRewriteEnv(Task(load_graph(load(name)), load_rules(), AnalyticCost()), max_steps=EPISODE)


def play(env: CandidateEnv, seed: int) -> Iterator[tuple[CandidateTable, dict, float]]:
    """(candidates before a random rewrite, the observation after it, the seconds that the step took), without end."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset()
    while True:
        actions, ended = observation["actions"], len(observation["actions"]) == 1
        if not ended:
            before, started = env.table, time.perf_counter()
            observation, _, terminated, truncated, _ = env.step(actions[rng.integers(1, len(actions))])
            yield before, observation, time.perf_counter() - started
            ended = terminated or truncated
        if ended:
            observation, _ = env.reset()


# -- candidates ------------------------------------------------------------------------------------


def candidates(name: str, steps: int, seed: int) -> dict:
    """Milliseconds of steps, of the observation in them, and of the first one; and how much there is to see."""
    reach = XRLflowConfig().layers
    env = CandidateEnv(environment(name), reach)
    stepping, observing, number, rows = [], [], [], []
    for before, observation, seconds in islice(play(env, seed), steps):
        stepping.append(seconds)
        observing.append(timed(lambda before=before: observed(before.after(env.table.state))))
        number.append(len(observation["actions"]) - 1)
        rows.append(len(observation["ops"]))
    initial = env.unwrapped.task.initial
    return {
        "nodes": len(initial.graph.nodes),
        "candidates": {"first": len(initial.matches), "mean": float(np.mean(number))},
        "rows": float(np.mean(rows)),
        "step": milliseconds(stepping),
        "observation": milliseconds(observing),
        "first observation": 1e3 * timed(lambda: observed(CandidateTable.of(initial, reach))),
    }


def observed(table: CandidateTable) -> dict[str, np.ndarray]:
    return table.arrays(table.state.matches)


def timed(work: Callable) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# -- encoding --------------------------------------------------------------------------------------


def encoding(name: str, seed: int) -> dict:
    """Local against whole: the largest difference, the rows and the milliseconds of each."""
    from controllers.xrlflow.meta_graphs import joined
    from controllers.xrlflow.network import Network

    config = XRLflowConfig()
    network, env = Network(config, np.random.default_rng(seed)), environment(name)
    head = network.policy_head.last.w  # begins near 0, which would make all candidates alike
    head.assign(np.random.default_rng(seed).standard_normal(head.shape) / np.sqrt(head.shape[0]))
    seen = {kind: walked(CandidateEnv(env, reach), seed) for kind, reach in (("local", config.layers), ("whole", None))}
    result = {kind: {"rows": float(np.mean([len(o["ops"]) for o in seen[kind]]))} for kind in seen}
    answers: dict[str, list] = {}
    for kind, observations in seen.items():
        graphs = [joined([observation]) for observation in observations]
        answers[kind] = [[part.numpy() for part in network.compiled(graph)] for graph in graphs]
        times = [timed(lambda graph=graph: network.compiled(graph)) for graph in graphs for _ in range(REPEATS)]
        result[kind] |= milliseconds(times)
    pairs = zip(chain(*answers["local"]), chain(*answers["whole"]), strict=True)
    result["difference"] = max(float(np.abs(mine - theirs).max()) for mine, theirs in pairs)
    result["faster"] = result["whole"]["median"] / result["local"]["median"]
    return result


def walked(env: CandidateEnv, seed: int) -> list[dict]:
    """The observations of the first states of a walk."""
    return [env.reset()[0], *(observation for _, observation, _ in islice(play(env, seed), STATES - 1))]


# -- for docs/results ------------------------------------------------------------------------------


def table(figures: dict) -> str:
    """Candidates, in milliseconds."""
    heads = ["model", "nodes", "first candidates", "mean", "step, median", "p99", "observation, median", "p99", "first"]
    rows = []
    for name in PAPER:
        result = figures[f"candidates {name}"]
        times = [result[what][which] for what in ("step", "observation") for which in ("median", "p99")]
        times = [f"{time:.2f}" for time in (*times, result["first observation"])]
        number = result["candidates"]
        rows.append([name, result["nodes"], number["first"], f"{number['mean']:.0f}", *times])
    return markdown(heads, rows)


def encoding_table(figures: dict) -> str:
    """Local against whole, in milliseconds."""
    heads = ["model", "rows, whole", "local", "whole", "local", "times as fast", "largest difference"]
    rows = []
    for name in PAPER:
        result = figures[f"encoding {name}"]
        whole, local = result["whole"], result["local"]
        numbers = [f"{number:,.0f}" for number in (whole["rows"], local["rows"])]
        times = [f"{time:.1f}" for time in (whole["median"], local["median"], result["faster"])]
        rows.append([name, *numbers, *times, f"{result['difference']:.0e}"])
    return markdown(heads, rows)


# -- all of it -------------------------------------------------------------------------------------


def parts_of(steps: int, seed: int) -> dict[str, Callable[[], dict]]:
    parts = {f"candidates {name}": lambda name=name: candidates(name, steps, seed) for name in PAPER}
    return parts | {f"encoding {name}": lambda name=name: encoding(name, seed) for name in PAPER}


def bars_of(figures: dict) -> list[dict]:
    bars = []
    for name in PAPER:
        result = figures[f"candidates {name}"]
        for what, limit in (("observation", 5), ("step", 10)):
            median = result[what]["median"]
            said = f"{name}: {what} with all candidates, median"
            bars.append(bar(said, median, "ms", f"≤ {limit}", median <= limit))
        difference = figures[f"encoding {name}"]["difference"]
        said = f"{name}: local encoding against whole"
        bars.append(bar(said, difference, "", f"≤ {EQUAL:g}", difference <= EQUAL))
    faster = figures[f"encoding {LARGE}"]["faster"]
    return [*bars, bar(f"{LARGE}: local encoding is faster", faster, "times", f"≥ {FASTER}", faster >= FASTER)]


def main() -> int:
    arguments = parser(__doc__, "runs/xrlflow")
    arguments.add_argument("--steps", type=int, default=500, help="timed steps of each model")
    arguments = arguments.parse_args()
    from worldmodel.training import prepare_tensorflow

    prepare_tensorflow(arguments.seed, threads=1)
    parts = parts_of(arguments.steps, arguments.seed)
    figures = each(list(parts), arguments.folder, lambda name: parts[name]())
    return finish("xrlflow", arguments, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
