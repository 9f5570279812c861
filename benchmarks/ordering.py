"""Orders and their memory: the paper's graphs and baselines, proved optima, and the simulation against sessions.

    python -m benchmarks.ordering                            whatever is not there yet, as far as the limits below go
    python -m benchmarks.ordering --graphs 40 --wide 0       fewer of the paper's graphs: their bars then do not hold
    python -m benchmarks.ordering --only models              one part
    python -m benchmarks.ordering --only learned --checkpoint runs/learnt/controller/topoformer    another one's

Resumable: every graph is a file of --folder. A beam of 10,000 takes some ten seconds of one core for a graph of 500
nodes, one of 100,000 some minutes. Parts: `layered` (gaps to the beam), `wide` (the same, a wider beam), `proofs`
(optima of layered graphs of 100 nodes), `models` (optima of models; what sessions really do), `learned` (learned orders
beside the plain beam in the same seconds; without --checkpoint of the network that comes with RLFlow), `drawn` (random
depth-first orders in the seconds of those that are there), `inside`
(learned priorities in wider and wider beams), `ablations` (networks that attend otherwise, each trained --trainings
times for --epochs: the paper's Table 3), `autoregressive` (the same with a decoder that asks the network anew for every
node: its Table 4), `trainings` (networks of several trainings beside the plain beam in the same seconds). Exports are
those of the corpus's development half that lie in --exports.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.exports.corpus import CORPUS, DEVELOPMENT
from benchmarks.harness import bar, each, finish, markdown, mean_and_half, parser
from benchmarks.learned_orders import (
    ABLATED,
    CONTROL,
    DECODED,
    FULL,
    METHODS,
    NETWORKS,
    NODES,
    ablation,
    beside_beams,
    decoded,
    depth_first_beside,
    digest,
    inside,
    instance_of,
    opened,
)
from benchmarks.sessions import MODES, observe
from controllers.topoformer import SHIPPED
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.graph.onnx_reader import load_graph, read_model
from rlflow.graph.onnx_writer import save_model
from rlflow.memory.allocation import default_order, plan, priority_order, problem_of
from rlflow.memory.order_search import optimum, walk
from rlflow.memory.problem import breadth_first, depth_first, random_orders
from rlflow.tasks.ordering import layered
from rlflow.zoo import ZOO, load

JUDGES = (
    "rlflow/costs/memory", "rlflow/tasks/ordering", "controllers/topoformer", "benchmarks/sessions.py",
    "benchmarks/learned_orders.py", "benchmarks/autoregressive.py",
)  # fmt: skip

PAPER = {"random-100": 6.86, "depth first": 12.9, "breadth first": 20.94}  # Table 1: % above its beam of 100,000
PAPERS_NODES, GRAPHS, NEAR = 500, 300, 1.5
WIDTH, WIDER, WIDE_GRAPHS = 10_000, 100_000, 30
PROVED_NODES, PROVED_GRAPHS, SECONDS = 100, 50, 60.0
PROVED_MODELS, PROVED_LAYERED = 95.0, 80.0  # % of them at least
ORDERS = {"default": default_order, "priority": priority_order}
LARGE, BELOW = (1000, 2000), -1.0  # nodes; % above the beam at most, of what is learnt on no more than 200
INSIDE_SECONDS = 10.0
LEARNED_GRAPHS, EPOCHS, TRAININGS = 20, 40, 5
ENCODERS = {"both-ways": "GNN encoder", FULL: "Topoformer"}  # of autoregressive decoders
TRAINED = ((FULL, 10), ("none", 10), ("none", 200))  # networks, and the epochs of their trainings
DECODED_AT = (500, *LARGE)  # nodes
PARTS = (
    "layered", "wide", "proofs", "models", "learned", "drawn", "inside", "ablations", "autoregressive", "trainings",
)  # fmt: skip


def compared(seed: int, width: int) -> dict:
    """The peaks of all methods on one of the paper's graphs."""
    problem, started = layered(PAPERS_NODES, seed), time.process_time()
    beam = walk(problem, width).peak
    seconds = time.process_time() - started
    peaks = {
        "random-100": problem.peaks(random_orders(problem, 100, seed)).min(),
        "depth first": problem.peak(depth_first(problem)),
        "breadth first": problem.peak(breadth_first(problem)),
    }
    return {"beam": beam, "cpu_seconds": seconds} | {name: int(peak) for name, peak in peaks.items()}


def proof(seed: int) -> dict:
    problem, started = layered(PROVED_NODES, seed), time.monotonic()
    best = optimum(problem, SECONDS)
    return {"peak": best.peak, "bound": best.bound, "seconds": time.monotonic() - started}


def model(path: Path) -> dict:
    """The proved best of a model beside the default order; both orders and blocks as simulated and as they really are.
    """
    graph = load_graph(path)
    problem, nodes = problem_of(graph)
    position, started = {node: k for k, node in enumerate(nodes)}, time.monotonic()
    best = optimum(problem, SECONDS)
    result = {
        "nodes": problem.n, "usual": problem.peak(np.array([position[node] for node in default_order(graph)])),
        "peak": best.peak, "bound": best.bound, "seconds": time.monotonic() - started,
    }  # fmt: skip
    kept = [at for at, node in enumerate(read_model(path).graph.node) if node.op_type != "Constant"]
    for mode in MODES:
        try:
            seen = observe(path, mode)
        except RLFlowError as error:
            result[mode] = {"error": str(error)}
            continue
        simulated = ORDERS[mode](graph)
        result[mode] = {
            "order": [kept[position[node]] for node in simulated] == seen.order,
            "simulated": plan(graph, simulated).peak, "block": seen.block,
        }  # fmt: skip
    return result


def models(folder: Path, exports: Path) -> dict[str, Path]:
    """Name → file: the zoo, built where they are missing, and the development exports that are there."""
    files = {}
    for name in ZOO:
        files[name] = folder / f"{name}.onnx"
        if not files[name].exists():
            save_model(load(name), files[name])
    chosen = [name for name, export in CORPUS.items() if export.half == DEVELOPMENT]
    return files | {name: exports / f"{name}.onnx" for name in chosen if (exports / f"{name}.onnx").exists()}


def main(argv: list[str] | None = None) -> int:
    arguments = options(argv)
    folder = arguments.folder
    files = models(folder / "files", arguments.exports) if arguments.only in (None, "models") else {}
    checkpoints = {digest(one): one for one in arguments.checkpoint}
    parts = {
        "models": (list(files), lambda name: model(files[name])),
        "proofs": (range(arguments.proofs), lambda seed: proof(int(seed))),
        "layered": (range(arguments.graphs), lambda seed: compared(int(seed), WIDTH)),
        "wide": (range(arguments.wide), lambda seed: compared(int(seed), WIDER)),
    } | learned_parts(arguments, checkpoints)
    for part, (names, work) in parts.items():
        if arguments.only in (None, part):
            each(list(map(str, names)), folder / part, work)
    figures = {part: done(folder / part) for part in parts}
    for part in ("learned", "drawn", "inside"):
        figures[part] = {name: one for name, one in figures[part].items() if name.split("-")[0] in checkpoints}
    return finish("ordering", arguments, figures, bars(figures), by_rules=False)


def learned_parts(arguments, checkpoints: dict[str, Path]) -> dict[str, tuple]:
    """The parts, as `main` has them. A name says of what: "CHECKPOINT-NODES-SEED", "NODES-SEED-TRAINING-NETWORK"."""
    networks = arguments.folder / "networks"

    def learned(name: str) -> dict:
        checkpoint, n, seed = name.split("-")
        return beside_beams(opened(checkpoints[checkpoint]), int(n), int(seed))

    def drawn(name: str) -> dict:
        _, n, seed = name.split("-")
        results = read_json(arguments.folder / "learned" / f"{name}.json")
        return depth_first_beside(int(n), int(seed), {method: one["seconds"] for method, one in results.items()})

    def within_beams(name: str) -> dict:
        checkpoint, n, seed = name.split("-")
        return inside(opened(checkpoints[checkpoint]), int(n), int(seed), INSIDE_SECONDS)

    def ablated(name: str) -> dict:
        n, seed, training, attends = name.split("-", 3)
        return ablation(networks, attends, arguments.epochs, int(training), int(n), int(seed))

    def autoregressive(name: str) -> dict:
        from benchmarks.autoregressive import learnt, peaks

        n, seed, training, encoder = name.split("-", 3)
        folder = networks / f"autoregressive-{encoder}-{arguments.epochs}-{training}"
        controller = learnt(folder, encoder, arguments.epochs, int(training))
        return peaks(controller.networks.best, instance_of(int(n), int(seed)), int(seed))

    def trainings(name: str) -> dict:
        n, seed, training, epochs, attends = name.split("-", 4)
        return decoded(networks, attends, int(epochs), int(training), int(n), int(seed))

    def ablated_names(kinds: Iterable[str]) -> list[str]:
        trained = [f"{training}-{kind}" for training in range(arguments.trainings) for kind in kinds]
        return [f"{n}-{seed}-{one}" for one in trained for n in ABLATED for seed in seeds]

    seeds, trainings_names = range(arguments.learned), []
    for attends, epochs in TRAINED:
        for training in range(arguments.trainings if epochs == arguments.epochs else 1):
            trainings_names += [f"{n}-{seed}-{training}-{epochs}-{attends}" for n in DECODED_AT for seed in seeds]
    names = [f"{one}-{n}-{seed}" for one in checkpoints for n in NODES for seed in seeds]
    return {
        "learned": (names, learned),
        "drawn": (names, drawn),
        "inside": ([f"{one}-{PAPERS_NODES}-{seed}" for one in checkpoints for seed in seeds], within_beams),
        "ablations": (ablated_names(NETWORKS), ablated),
        "autoregressive": (ablated_names(ENCODERS), autoregressive),
        "trainings": (trainings_names, trainings),
    }


def done(folder: Path) -> dict[str, dict]:
    """All results of a part that are there."""
    paths = sorted(folder.glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    return {path.stem: read_json(path) for path in paths}


def bars(figures: dict) -> list[dict]:
    result = []
    for name, wanted in PAPER.items():
        gap = mean_gap(figures["layered"], name)
        near = gap is not None and abs(gap - wanted) <= NEAR and len(figures["layered"]) >= GRAPHS
        result.append(bar(f"{name}: gap to a beam of 10,000", gap, "%", f"{wanted} ± {NEAR}, {GRAPHS} graphs", near))
    for part, least, width in (("layered", GRAPHS, WIDTH), ("wide", WIDE_GRAPHS, WIDER)):
        count = len(figures[part])
        result.append(bar(f"graphs with a beam of {width:,}", count, "graphs", f"≥ {least}", count >= least))
    for part, limit in (("models", PROVED_MODELS), ("proofs", PROVED_LAYERED)):
        share = percent([one["peak"] == one["bound"] for one in figures[part].values()])
        result.append(bar(f"{part}: proved in {SECONDS:g} s", share, "%", f"≥ {limit:g}", (share or 0) >= limit))
    seen = sessions(figures["models"])
    for what, same in (
        ("every node runs when it is simulated", [one["order"] for one in seen]),
        ("the block has the simulated bytes", [one["simulated"] == one["block"] for one in seen]),
    ):
        share = percent(same)
        result.append(bar(f"sessions: {what}", share, "%", "100", share == 100))
    return result + learned_bars(figures)


def learned_bars(figures: dict) -> list[dict]:
    result = []
    for n in LARGE:
        for gap_of, plain in ((learned_gap, "the beam"), (drawn_gap, "random depth-first orders")):
            gaps = [gap for method in METHODS if (gap := gap_of(figures, n, method)) is not None]
            best = min(gaps, default=None)
            name = f"learned, {n:,} nodes: best method above {plain} in the same seconds"
            result.append(bar(name, best, "%", f"≤ {BELOW:g}", best is not None and best <= BELOW))
    for n, (attends, epochs) in product(LARGE, TRAINED):
        by_method = [training_gaps(figures, n, f"{epochs}-{attends}", method) for method in DECODED]
        best = min((float(np.mean(gaps)) for gaps in by_method if gaps), default=None)
        network = f"{NETWORKS[attends]}, {epochs} epochs, mean of trainings ({len(by_method[0])})"
        name = f"{network}, {n:,} nodes: best method above the beam in the same seconds"
        result.append(bar(name, best, "%", f"≤ {BELOW:g}", best is not None and best <= BELOW))
    gap = inside_gap(figures)
    name = f"inside the beam, {PAPERS_NODES} nodes, {INSIDE_SECONDS:g} s: above a beam of {WIDER:,}"
    return [*result, bar(name, gap, "%", "≤ 0", gap is not None and gap <= 0)]


def learned_gap(figures: dict, n: int, method: str) -> float | None:
    """By how many percent a learned method lies above the beam in the same seconds, on average."""
    chosen = [one[method] for name, one in figures["learned"].items() if name.split("-")[1] == str(n)]
    return mean_percent([one["peak"] / one["beam"] - 1 for one in chosen])


def drawn_gap(figures: dict, n: int, method: str, of: str = "peak") -> float | None:
    """The same above random depth-first orders; of "beam": of the plain beam in the seconds of the method."""
    ratios = []
    for name, plain in figures["drawn"].items():
        if name.split("-")[1] == str(n) and name in figures["learned"]:
            ratios.append(figures["learned"][name][method][of] / plain[method] - 1)
    return mean_percent(ratios)


def inside_gap(figures: dict) -> float | None:
    """The same of beams with learned priorities, above the widest beam, on the graphs that both have."""
    widest, ratios = figures["wide"], []
    for name, one in figures["inside"].items():
        if (seed := name.split("-")[2]) in widest:
            ratios.append(one["peak"] / widest[seed]["beam"] - 1)
    return mean_percent(ratios)


def ablated_gaps(figures: dict, n: int, attends: str, method: str, part: str = "ablations") -> list[float]:
    """By how many percent a network of the part lies above the full one, which is the mean of its trainings; one for
    each training, on average over the graphs."""
    full, ratios = defaultdict(list), defaultdict(list)
    for _, seed, one in trained(figures["ablations"], n, FULL):
        full[seed].append(one[method]["peak"])
    for training, seed, one in trained(figures.get(part, {}), n, attends):
        if seed in full:
            ratios[training].append(one[method]["peak"] / np.mean(full[seed]) - 1)
    return [100 * float(np.mean(of)) for _, of in sorted(ratios.items())]


def ablated_seconds(figures: dict, n: int, attends: str, method: str, part: str = "ablations") -> float | None:
    """That an order takes, on average."""
    seconds = [one[method]["seconds"] for _, _, one in trained(figures.get(part, {}), n, attends)]
    return round(float(np.mean(seconds)), 2) if seconds else None


def trained(results: dict[str, dict], n: int, attends: str) -> list[tuple[str, str, dict]]:
    """(training, seed of the graph, result) of one sort of networks, on graphs of so many nodes."""
    named = [(*name.split("-", 3), one) for name, one in results.items()]
    return [(training, seed, one) for size, seed, training, kind, one in named if (size, kind) == (str(n), attends)]


def sessions(results: dict[str, dict]) -> list[dict]:
    """Of all models, those that ran."""
    return [one[mode] for one in results.values() for mode in MODES if "error" not in one[mode]]


def mean_gap(results: dict[str, dict], name: str) -> float | None:
    """By how many percent a method lies above the beam, on average."""
    return mean_percent([one[name] / one["beam"] - 1 for one in results.values()])


def mean_percent(shares: list[float]) -> float | None:
    return round(100 * float(np.mean(shares)), 2) if shares else None


def percent(outcomes: list[bool]) -> float | None:
    return round(100 * sum(outcomes) / len(outcomes), 1) if outcomes else None


def gaps_table(figures: dict) -> str:
    rows = []
    for name, paper in PAPER.items():
        rows.append([name, *(mean_gap(figures[part], name) or "–" for part in ("layered", "wide")), paper])
    counts = [f"above a beam of {width:,}, {len(figures[part])} graphs, %" for part, width in
              (("layered", WIDTH), ("wide", WIDER))]
    return markdown(["method", *counts, "paper, above its beam of 100,000, %"], rows)


def models_table(figures: dict) -> str:
    rows = []
    for name, one in figures["models"].items():
        above = 100 * (one["usual"] / one["peak"] - 1)
        proved = "yes" if one["peak"] == one["bound"] else f"≥ {one['bound'] / 1e6:.2f}"
        ran = [one[mode] for mode in MODES]
        blocks = ["error" if "error" in one else one["simulated"] - one["block"] for one in ran]
        rows.append([name, one["nodes"], f"{one['usual'] / 1e6:.3f}", f"{one['peak'] / 1e6:.3f}", f"{above:.1f}",
                     proved, f"{one['seconds']:.1f}", *blocks])
    heads = ["model", "nodes", "default order, MB", "best, MB", "default above it, %", "proved", "s",
             "block, simulated less real: default, bytes", "by priority"]
    return markdown(heads, rows)


def learned_table(figures: dict) -> str:
    rows = []
    for method in (*METHODS, CONTROL):
        gaps = [learned_gap(figures, n, method) for n in NODES]
        rows.append([method, *("–" if gap is None else gap for gap in gaps)])
    return markdown(["above the beam in the same seconds, %", *(f"{n:,} nodes" for n in NODES)], rows)


def drawn_table(figures: dict) -> str:
    rows = []
    for method in (*METHODS, CONTROL):
        gaps = [drawn_gap(figures, n, method) for n in NODES]
        rows.append([method, *("–" if gap is None else gap for gap in gaps)])
    beams = [drawn_gap(figures, n, METHODS[-1], "beam") for n in NODES]
    rows.append([f"plain beam, in the seconds of {METHODS[-1]}", *("–" if gap is None else gap for gap in beams)])
    return markdown(["above random depth-first orders in the same seconds, %", *(f"{n:,} nodes" for n in NODES)], rows)


def ablations_table(figures: dict) -> str:
    columns = [(n, method) for n in ABLATED for method in DECODED]
    heads = ["above the full network, %", "trainings", *(f"{method}, {n:,} nodes" for n, method in columns)]
    rows = []
    for attends, words in NETWORKS.items():
        gaps = [ablated_gaps(figures, n, attends, method) for n, method in columns]
        rows.append([words, len(gaps[0]), *map(mean_and_half, gaps)])
    return markdown(heads, rows)


def trainings_table(figures: dict) -> str:
    columns = [(n, method) for n in DECODED_AT for method in DECODED]
    heads = ["above the beam in the same seconds, %", "epochs", "trainings"]
    rows = []
    for attends, epochs in TRAINED:
        gaps = [training_gaps(figures, n, f"{epochs}-{attends}", method) for n, method in columns]
        rows.append([NETWORKS[attends], epochs, len(gaps[0]), *map(mean_and_half, gaps)])
    attends, epochs = TRAINED[-1]
    gaps = [above_shipped(figures, n, f"{epochs}-{attends}", method) for n, method in columns]
    what = f"{NETWORKS[attends]}, above the network that comes with RLFlow"
    rows.append([what, epochs, len(gaps[0]), *map(mean_and_half, gaps)])
    return markdown([*heads, *(f"{method}, {n:,} nodes" for n, method in columns)], rows)


def above_shipped(figures: dict, n: int, kind: str, method: str) -> list[float]:
    """By how many percent a network lies above the one of the part `learned`, on the graphs that both have, on average.
    """
    shipped = {name.split("-", 1)[1]: one for name, one in figures["learned"].items()}
    ratios = []
    for _, seed, one in trained(figures.get("trainings", {}), n, kind):
        if f"{n}-{seed}" in shipped:
            ratios.append(one[method]["peak"] / shipped[f"{n}-{seed}"][method]["peak"] - 1)
    return [100 * float(np.mean(ratios))] if ratios else []


def training_gaps(figures: dict, n: int, kind: str, method: str) -> list[float]:
    """By how many percent each training's network lies above the beam in the same seconds, on average over the graphs.
    """
    ratios = defaultdict(list)
    for training, _, one in trained(figures.get("trainings", {}), n, kind):
        ratios[training].append(one[method]["peak"] / one[method]["beam"] - 1)
    return [100 * float(np.mean(of_training)) for of_training in ratios.values()]


def autoregressive_table(figures: dict) -> str:
    columns, largest = [(n, method) for n in ABLATED for method in DECODED[:2]], max(ABLATED)
    heads = ["above the full network, %", "trainings", *(f"{method}, {n:,} nodes" for n, method in columns),
             f"s, greedy, {largest:,} nodes"]
    kinds = [(f"{words}, autoregressive", encoder, "autoregressive") for encoder, words in ENCODERS.items()]
    rows = []
    for words, encoder, part in [*kinds, (f"{ENCODERS[FULL]}, priorities: full", FULL, "ablations")]:
        gaps = [ablated_gaps(figures, n, encoder, method, part) for n, method in columns]
        seconds = ablated_seconds(figures, largest, encoder, "greedy", part)
        rows.append([words, len(gaps[0]), *map(mean_and_half, gaps), "–" if seconds is None else seconds])
    return markdown(heads, rows)


def options(argv: list[str] | None):
    made = parser(__doc__.splitlines()[0], seeded=False)
    made.add_argument("--folder", type=Path, default=Path("runs/ordering"), help="where finished parts are kept")
    made.add_argument("--exports", type=Path, default=Path("runs/exports/models"), help="where exports lie")
    made.add_argument("--graphs", type=int, default=GRAPHS, help="of the paper's, with a beam of 10,000")
    made.add_argument("--wide", type=int, default=WIDE_GRAPHS, help="of them, with a beam of 100,000")
    made.add_argument("--proofs", type=int, default=PROVED_GRAPHS, help="layered graphs of 100 nodes")
    made.add_argument("--checkpoint", type=Path, nargs="+", default=[SHIPPED], help="folders of trained controllers")
    made.add_argument("--learned", type=int, default=LEARNED_GRAPHS, help="graphs of each size, for what is learned")
    made.add_argument("--epochs", type=int, default=EPOCHS, help="that each network of the ablations learns for")
    made.add_argument("--trainings", type=int, default=TRAININGS, help="of each of them, with seeds of its own")
    made.add_argument("--only", choices=PARTS, help="one part; of the others what is there already")
    return made.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
