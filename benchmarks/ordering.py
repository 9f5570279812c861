"""Orders and their memory: the paper's graphs and baselines, proved optima, and the simulation against sessions.

    python -m benchmarks.ordering                            whatever is not there yet, as far as the limits below go
    python -m benchmarks.ordering --graphs 40 --wide 0       fewer of the paper's graphs: their bars then do not hold
    python -m benchmarks.ordering --only models              one part

Resumable: every graph is a file of --folder. A beam of 10,000 takes some ten seconds of one core for a graph of 500
nodes, one of 100,000 some minutes. Parts: `layered` (gaps to the beam), `wide` (the same, a wider beam), `proofs`
(optima of layered graphs of 100 nodes), `models` (optima of models; what sessions really do). Exports are those of the
corpus's development half that lie in --exports.
"""

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.exports.corpus import CORPUS, DEVELOPMENT
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.sessions import MODES, observe
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.graph.onnx_reader import load_graph, read_model
from rlflow.graph.onnx_writer import save_model
from rlflow.tasks.ordering.beam import walk
from rlflow.tasks.ordering.layered import layered
from rlflow.tasks.ordering.models import problem_of
from rlflow.tasks.ordering.optimum import optimum
from rlflow.tasks.ordering.runtime import default_order, plan, priority_order
from rlflow.tasks.ordering.sorting import breadth_first, depth_first, random_orders
from rlflow.zoo import ZOO, load

JUDGES = ("rlflow/tasks/ordering", "benchmarks/sessions.py")

PAPER = {"random-100": 6.86, "depth first": 12.9, "breadth first": 20.94}  # Table 1: % above its beam of 100,000
NODES, GRAPHS, NEAR = 500, 300, 1.5
WIDTH, WIDER, WIDE_GRAPHS = 10_000, 100_000, 30
PROVED_NODES, PROVED_GRAPHS, SECONDS = 100, 50, 60.0
PROVED_MODELS, PROVED_LAYERED = 95.0, 80.0  # % of them at least
ORDERS = {"default": default_order, "priority": priority_order}
PARTS = ("layered", "wide", "proofs", "models")


def compared(seed: int, width: int) -> dict:
    """The peaks of all methods on one of the paper's graphs."""
    problem, started = layered(NODES, seed), time.process_time()
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
    parts = {
        "models": (list(files), lambda name: model(files[name])),
        "proofs": (range(arguments.proofs), lambda seed: proof(int(seed))),
        "layered": (range(arguments.graphs), lambda seed: compared(int(seed), WIDTH)),
        "wide": (range(arguments.wide), lambda seed: compared(int(seed), WIDER)),
    }
    for part, (names, work) in parts.items():
        if arguments.only in (None, part):
            each(list(map(str, names)), folder / part, work)
    figures = {part: done(folder / part) for part in parts}
    return finish("ordering", arguments, figures, bars(figures), by_rules=False)


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
    return result


def sessions(results: dict[str, dict]) -> list[dict]:
    """Of all models, those that ran."""
    return [one[mode] for one in results.values() for mode in MODES if "error" not in one[mode]]


def mean_gap(results: dict[str, dict], name: str) -> float | None:
    """By how many percent a method lies above the beam, on average."""
    gaps = [one[name] / one["beam"] - 1 for one in results.values()]
    return round(100 * float(np.mean(gaps)), 2) if gaps else None


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


def options(argv: list[str] | None):
    made = parser(__doc__.splitlines()[0], seeded=False)
    made.add_argument("--folder", type=Path, default=Path("runs/ordering"), help="where finished parts are kept")
    made.add_argument("--exports", type=Path, default=Path("runs/exports/models"), help="where exports lie")
    made.add_argument("--graphs", type=int, default=GRAPHS, help="of the paper's, with a beam of 10,000")
    made.add_argument("--wide", type=int, default=WIDE_GRAPHS, help="of them, with a beam of 100,000")
    made.add_argument("--proofs", type=int, default=PROVED_GRAPHS, help="layered graphs of 100 nodes")
    made.add_argument("--only", choices=PARTS, help="one part; of the others what is there already")
    return made.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
