"""TensorFlow's own inference beside ONNX Runtime's (Table 2 of the paper): time and memory of a run, one thread each.

Two networks of Keras, with random weights, in three forms that are the same function: the frozen TensorFlow graph, the
ONNX model, and that one optimised by greedy descent on the estimated cost. Times are of interleaved runs: the three run
by turns, in one process; a session is made anew for every part of a round, in one order and then in the other. Memory
is of a process of its own each: what the model adds to the resident memory of the imports, at the fullest moment of its
runs.

Resumable: what each network gave lies in --folder.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.harness import THREADS, bar, each, finish, parser
from benchmarks.keras_models import NETWORKS, export, load_frozen
from rlflow.common.system import peak_memory_during, resident_memory
from rlflow.costs.measured import ratio_of
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.graph.onnx_runtime import session
from rlflow.graph.onnx_writer import save_graph
from rlflow.search.descents import greedy

JUDGES = ("rlflow/search/descents.py", "rlflow/costs/measured.py", "benchmarks/keras_models.py")

SIDES = ("tensorflow", "original", "optimised")
TOLERANCE = 1e-3  # largest difference of an output, in standard deviations of all outputs
FEWEST = 3  # runs of each side in a part of an iteration


def compare(name: str, folder: Path, arguments) -> dict:
    """All figures of one network."""
    paths = {
        "tensorflow": folder / f"{name}.pb",
        "original": folder / f"{name}.onnx",
        "optimised": folder / f"{name}-optimised.onnx",
    }
    result = {"parameters": single(export, name, folder, arguments.seed)}
    result |= single(optimise, paths["original"], paths["optimised"], arguments.cost, arguments.search_seconds)
    pixels = NETWORKS[name][1]
    result |= single(timed, paths, pixels, arguments.pairs, arguments.seconds, arguments.seed)
    result["memory_bytes"] = {side: single(added_memory, side, paths[side], pixels, arguments.seed) for side in SIDES}
    return result


def single(work: Callable, *arguments):
    """work(*arguments) in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def optimise(source: Path, target: Path, cost: str, seconds: float) -> dict:
    task = EnvSpec(str(source), cost=cost, threads=THREADS).make_task()
    result = greedy(task.initial, 1000, seconds)
    save_graph(result.state.graph, target)
    before, after = task.initial.runtime_ms, result.state.runtime_ms
    return {
        "cost": cost,
        "substitutions": len(result.actions),
        "estimated_improvement_percent": 100 * (1 - after / before),
    }


def runner(side: str, path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """A function of an image, float32 [1, pixels, pixels, 3]; `given` makes ONNX's layout of it."""
    if side == "tensorflow":
        return load_frozen(path)
    running = session(path, threads=1)
    name = running.get_inputs()[0].name
    return lambda image: running.run(None, {name: image})[0]


def given(side: str, pixels: int, seed: int) -> np.ndarray:
    image = np.random.default_rng(seed).standard_normal((1, pixels, pixels, 3), np.float32)
    return image if side == "tensorflow" else np.ascontiguousarray(image.transpose(0, 3, 1, 2))


def timed(paths: dict[str, Path], pixels: int, pairs: int, seconds: float, seed: int) -> dict:
    """milliseconds (median of each side), ratios with their 95 % intervals, and how far the outputs are apart."""
    images = {side: given(side, pixels, seed) for side in SIDES}
    frozen = runner("tensorflow", paths["tensorflow"])
    parts: list[np.ndarray] = []  # seconds [runs, sides]
    for part in range(2 * pairs):  # `ratio_of` takes two of them for a pair
        order = SIDES if part % 2 == 0 else SIDES[::-1]
        run = {side: frozen if side == "tensorflow" else runner(side, paths[side]) for side in order}
        outputs = {side: [run[side](images[side]) for _ in range(2)][-1] for side in order}  # the first run allocates
        parts.append(_by_turns(run, images, order, seconds / (2 * pairs)))
    times = dict(zip(SIDES, np.concatenate(parts).T, strict=True))
    return {
        "difference": {
            side: float(np.abs(outputs[side] - outputs["tensorflow"]).max() / outputs["tensorflow"].std())
            for side in SIDES[1:]
        },
        "rounds": pairs, "runs": len(times["tensorflow"]),
        "milliseconds": {side: _spread(1e3 * values) for side, values in times.items()},
        "ratios": {
            f"{a} / {b}": _ratio(parts, a, b, seed)
            for a, b in (("original", "tensorflow"), ("optimised", "tensorflow"), ("optimised", "original"))
        },
    }  # fmt: skip


def _by_turns(
    run: dict[str, Callable], images: dict[str, np.ndarray], order: tuple[str, ...], seconds: float
) -> np.ndarray:
    """Seconds of the runs, [runs, sides], the sides as in SIDES."""
    rows, end = [], time.perf_counter() + seconds
    while len(rows) < FEWEST or time.perf_counter() < end:
        row = {}
        for side in order:
            started = time.perf_counter()  # not the caller's own time: TensorFlow computes in a thread of its own
            run[side](images[side])
            row[side] = time.perf_counter() - started
        rows.append([row[side] for side in SIDES])
    return np.array(rows)


def _spread(milliseconds: np.ndarray) -> dict:
    """The median, and between which values the middle 95 % of the runs lie."""
    low, median, high = np.percentile(milliseconds, (2.5, 50, 97.5)).tolist()
    return {"median": median, "runs_between": [low, high]}


def _ratio(parts: list[np.ndarray], numerator: str, denominator: str, seed: int) -> dict:
    result = ratio_of([part[:, SIDES.index(numerator)] / part[:, SIDES.index(denominator)] for part in parts], seed)
    return {"ratio": result.ratio, "interval": [result.low, result.high], "verdict": result.verdict}


def added_memory(side: str, path: Path, pixels: int, seed: int) -> int | None:
    """In a fresh process: bytes of resident memory above the imports, at most, in three runs; None if nobody counts."""
    if side == "tensorflow":
        import tensorflow  # noqa: F401  before what it takes is counted
    image = given(side, pixels, seed)
    before = resident_memory()
    run = runner(side, path)
    if side == "tensorflow":
        run(image)  # its first run reads the graph and optimises it: what that leaves free is not the model's

    def runs() -> None:
        for _ in range(3):
            run(image)

    most = peak_memory_during(runs)
    return None if most is None else most - before


def bars_of(name: str, result: dict) -> list[dict]:
    worst, slowest = max(result["difference"].values()), result["ratios"]["optimised / original"]
    return [
        bar(
            f"{name}: all three are the same function", worst, "standard deviations of the outputs", f"≤ {TOLERANCE}",
            worst <= TOLERANCE,
        ),
        bar(
            f"{name}: optimised not slower than the original", slowest["ratio"], "of its time", "no regression shown",
            slowest["verdict"] != "slower",
        ),
    ]  # fmt: skip


def main() -> int:
    made = parser(__doc__, "runs/tensorflow_inference")
    made.add_argument("--model", action="append", choices=list(NETWORKS), help="one network only; repeatable")
    made.add_argument("--cost", default="profiled", help="what greedy descent lowers (default: profiled)")
    made.add_argument("--search-seconds", type=float, default=60.0, help="for greedy descent")
    made.add_argument("--pairs", type=int, default=5, help="session pairs of timing")
    made.add_argument("--seconds", type=float, default=60.0, help="for all pairs of a network together")
    arguments = made.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    names = arguments.model or list(NETWORKS)
    figures = each(names, arguments.folder, lambda name: compare(name, arguments.folder, arguments))
    return finish(
        "tensorflow_inference", arguments, figures, [b for name in names for b in bars_of(name, figures[name])]
    )


if __name__ == "__main__":
    sys.exit(main())
