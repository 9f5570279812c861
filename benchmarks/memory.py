"""Peak memory of networks after reordering their nodes, with and without rewrites, and peaks of learned orders.

    python -m benchmarks.memory [--network NAME] [--trained DIR]

*orders*: `run.py memory` on irregular and on usual networks, once without and once with `--rewrite`. The peaks assume
an ideal allocator. "proved" means that no order of the same nodes has a lower peak. Added memory is the resident memory
that runs in ONNX Runtime add when memory pattern, arena and reuse are off; the peaks predict this quantity. The command
checks that outputs are equal. If only the order differs, the outputs must be equal bit for bit.

*learned*: with `--trained`, orders that the network of a training of Topoformer finds on layered graphs (its generator)
that are not in its training data. The controls are the same search without learned priorities, beams and random
depth-first orders in the same processor seconds, and a lower bound.
"""

import itertools
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.irregular import NETWORKS
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import NOTHING, number, run_rlflow
from rlflow.common.files import read_json
from rlflow.graph.onnx_writer import save_model
from rlflow.memory.order_search import lower_bound, lowered, probable, walk
from rlflow.memory.problem import Problem, decode, depth_first
from rlflow.zoo import load

USUAL = (
    "light_squeezenet", "light_densenet121", "shufflenet_v2", "inception_v3", "resnet50",
)  # fmt: skip
BARE = "no pattern, arena or reuse"  # the setup for which the peaks predict the added memory
MEASURE_SECONDS, REWRITE_SECONDS = 5, 20  # values of --seconds and --rewrite of `run.py memory`
NODES, GRAPHS = (100, 300, 600), 7  # numbers of nodes of the layered graphs; number of graphs of each size
WIDTH, WIDE = 16, 100  # beam width of the method "beam"; beam width of the methods "search" and "plain"
DRAWN = 10  # number of random orders that are drawn at once
# Method of `learned_orders` → its label in the table.
LEARNED = {"beam": "learned beam", "search": "learned search", "plain": "the search, nothing learned"}


# -- the command -------------------------------------------------------------------------------------


def network(name: str, *options: str) -> dict:
    """Run `run.py memory` on a network.

    Args:
        name: a name of `benchmarks.irregular.NETWORKS`, or else the name of a model of the zoo.
        options: further options of the command.

    Returns:
        "usual", "peak", "bound": bytes of the peak in the usual order, of the peak in the best order found, and of the
            lower bound. "rewrites": number of applied rewrites. "added": resident bytes that runs of the original and
            of the result add with the setup BARE. "latency": latency of the result / latency of the original.
    """
    with TemporaryDirectory() as folder:
        model, result = Path(folder) / "model.onnx", Path(folder) / "result.json"
        save_model(NETWORKS[name]() if name in NETWORKS else load(name), model)
        run_rlflow(
            "memory", model, "--out", model.with_name("smaller.onnx"), "--threads", 1, "--seconds", MEASURE_SECONDS,
            "--slowdown", 2, "--json", result, *options,
        )  # fmt: skip
        said = read_json(result)
    rows = {row["setup"]: row for row in said["rows"]}
    sizes, latency = said["bytes"], rows[said["setup"]]["latency"] or {}
    return {
        "usual": sizes["usual_peak"], "peak": sizes["peak"], "bound": sizes["bound"],
        "rewrites": sum(((said["rewritten"] or {}).get("rules") or {}).values()),
        "added": [rows[BARE]["usual_bytes"], rows[BARE]["bytes"]], "latency": latency.get("ratio", 1.0),
    }  # fmt: skip


# -- learned orders ----------------------------------------------------------------------------------


def timed(work: Callable) -> tuple:
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def learned_orders(trained: str, nodes: int, seed: int) -> dict:
    """Compare ways to order a layered graph, with and without priorities from a trained network.

    Args:
        trained: folder of the training, such as RUN/controller/topoformer.
        nodes: number of nodes of the graph.
        seed: seed of the graph.

    Returns:
        "methods": method → its peak in bytes ("peak"), its processor seconds ("seconds"), and the peaks in bytes that
            plain beams ("beam") and random orders ("random") reach in the same seconds. "bound": a lower bound on the
            peak in bytes.
    """
    from controllers.topoformer.controller import Topoformer
    from rlflow.tasks.ordering import Orders, layered

    def instance(n: int) -> Orders:
        problem = layered(n, seed)
        return Orders(problem, depth_first(problem))

    small, graph = instance(10), instance(nodes)
    controller, problem = Topoformer.trained(trained, small), graph.problem
    controller.priorities(small)  # compiles the network before the clock starts
    priorities, network_seconds = timed(lambda: controller.priorities(graph))
    ways = {
        "beam": (lambda: probable(problem, priorities, WIDTH), network_seconds),
        "search": (lambda: lowered(problem, priorities, WIDE, probable(problem, priorities, WIDTH)), network_seconds),
        "plain": (lambda: lowered(problem, np.zeros(problem.n), WIDE, walk(problem, WIDE).order), 0.0),
    }
    result = {}
    for method, (way, before) in ways.items():
        order, seconds = timed(way)
        result[method] = {"peak": int(problem.peak(order)), "seconds": before + seconds}
    for one in result.values():
        one["beam"] = plain_beam(problem, one["seconds"])
        one["random"] = random_orders(problem, one["seconds"])
    return {"methods": result, "bound": int(lower_bound(problem))}


def plain_beam(problem: Problem, seconds: float) -> int:
    """Return the lowest peak in bytes that beams without priorities of width 1, 2, 4, … find in the given time.

    Args:
        problem: the ordering problem.
        seconds: processor seconds of all beams together. A beam that ends later does not count, except the first one.
    """
    best, width, started = None, 1, time.process_time()
    while True:
        (_, peak, is_exact, _), _ = timed(lambda: walk(problem, width))
        if best is not None and time.process_time() - started > seconds:
            return int(best)
        best, width = min(peak, best or peak), 2 * width
        if is_exact:
            return int(best)


def random_orders(problem: Problem, seconds: float) -> int:
    """Return the lowest peak in bytes of the random depth-first orders that are drawn in the given time.

    Args:
        problem: the ordering problem.
        seconds: processor seconds; at least DRAWN orders are drawn.
    """
    best, started, draw = None, time.process_time(), 0
    while best is None or time.process_time() - started < seconds:
        peak = problem.peaks(random_depth_first(problem, DRAWN, draw)).min()
        best, draw = min(peak, best or peak), draw + 1
    return int(best)


def random_depth_first(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Return random depth-first orders, int64 [count, n]: the next node is a random one that became ready last.

    Args:
      problem: the ordering problem.
      count: the number of orders.
      seed: the seed of the random numbers.
    """
    rng, steps = np.random.default_rng(seed), itertools.count()
    since = np.full((count, problem.n), -1.0)  # step at which each node became ready, plus a random fraction of a step

    def choose(ready: np.ndarray) -> np.ndarray:
        new = ready & (since < 0)
        since[new] = next(steps) + rng.random(int(new.sum()))
        return np.where(ready, since, -1.0).argmax(axis=1)

    return decode(problem, count, choose)


# -- tables ------------------------------------------------------------------------------------------


def tables(ordered: dict[str, dict], rewritten: dict[str, dict], learned: dict[str, dict]) -> dict[str, Table]:
    """Return the table "orders" of networks and the table "learned" of learned orders on layered graphs.

    Args:
        ordered: network → result of `network` without `--rewrite`.
        rewritten: network → result of `network` with `--rewrite`.
        learned: "NODES-SEED" → result of `learned_orders`.
    """
    rows, shares = [], []
    for name, one in ordered.items():
        other = rewritten.get(name)
        shares.append(one["peak"] / one["usual"])
        added = " → ".join(map(megabytes, one["added"]))
        cells = [NOTHING] * 3
        if other:
            cells = [megabytes(other["peak"]), str(other["rewrites"]), number(other["latency"], 3)]
        proved = "yes" if one["peak"] == one["bound"] else f"≥ {megabytes(one['bound'])}"
        rows.append([
            name, megabytes(one["usual"]), megabytes(one["peak"]), proved, f"{shares[-1]:.3f}", added,
            number(one["latency"], 3), *cells,
        ])  # fmt: skip
    if shares:
        rows.append(["geometric mean", "", "", "", f"{prod(shares) ** (1 / len(shares)):.3f}", *[""] * 5])
    heads = ["network", "peak, MB", "in the best order", "proved", "share", "added memory, MB", "latency, share"]
    heads += ["peak with rewrites, MB", "rewrites", "latency, share"]
    orders = []
    for nodes in NODES:
        of_size = [one for key, one in learned.items() if key.startswith(f"{nodes}-")]
        for method, label in LEARNED.items() if of_size else ():
            runs = [one["methods"][method] for one in of_size]
            beams, randoms = ([run[other] for run in runs] for other in ("beam", "random"))
            above = [mean_percent(runs, other) for other in (beams, randoms, [one["bound"] for one in of_size])]
            seconds = float(np.mean([run["seconds"] for run in runs]))
            orders.append([nodes, label, len(runs), *above, number(seconds, 2)])
    heads_of_orders = ["nodes", "method", "graphs", "above a plain beam, same seconds", "above random depth first"]
    heads_of_orders += ["above the lower bound", "processor seconds"]
    return {"orders": Table(heads, rows), "learned": Table(heads_of_orders, orders, text_columns=2)}


def megabytes(size: int | None) -> str:
    return NOTHING if size is None else f"{size / 1e6:.2f}"


def mean_percent(runs: list[dict], others: list[int]) -> str:
    return f"{100 * np.mean([run['peak'] / other - 1 for run, other in zip(runs, others, strict=True)]):+.2f} %"


def main() -> int:
    arguments = parser(__doc__)
    names = (*NETWORKS, *USUAL)
    arguments.add_argument("--network", action="append", choices=names, help="one network only; repeatable")
    arguments.add_argument("--trained", metavar="DIR", help="folder of a training of Topoformer, for the table learned")
    parsed = arguments.parse_args()
    record, chosen = Record("memory", parsed), parsed.network or names
    ordered = record.all_parts({f"ordered-{name}": (network, name) for name in chosen})
    options = ("--rewrite", REWRITE_SECONDS)
    rewritten = record.all_parts({f"rewritten-{name}": (network, name, *options) for name in chosen})
    graphs = [(nodes, seed) for nodes in NODES for seed in range(GRAPHS)] if parsed.trained else []
    learned = record.all_parts({f"learned-{n}-{seed}": (learned_orders, parsed.trained, n, seed) for n, seed in graphs})

    def without(prefix: str, parts: dict[str, dict]) -> dict[str, dict]:
        return {key.removeprefix(prefix): one for key, one in parts.items()}

    record.publish(
        tables(without("ordered-", ordered), without("rewritten-", rewritten), without("learned-", learned)),
        "Latency is a share of the original's, measured with one thread.",
    )
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
