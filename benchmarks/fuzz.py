"""Random valid rewrites on random graphs keep them valid and equal, 20,000 times.

Every graph is drawn from its own seed (`benchmarks.random_models.random_model`), checked and run in ONNX Runtime,
unoptimised, on two sets of inputs; then up to 20 rewrites are made, a rule and a location at random. After each the
model must pass the full ONNX checker, keep its interface and give the same outputs, as ONNX Runtime optimises it, too
(but for graphs that trigger one of its known faults, and where it runs the original wrongly: these are counted); after
the last, the locations and the cost kept along the way must be those of the graph taken anew. A failure gives its seed,
the rule and the shrunk graph.

With --symbolic 5,000 graphs whose sizes are symbols (`benchmarks.random_models.open_model`): they are rewritten as such
and compared with the original at three sizes each, of which no rewrite knew any.

Resumable: what each chunk of graphs gave lies in --folder.
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from onnx import TensorProto

from benchmarks.fuzzing import STEPS, TOLERANCES, fuzz
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE, UNSTATED_RULES
from benchmarks.random_models.open_model import SIZES
from rlflow.common.messages import progress_bar
from rlflow.rules.language import families, load_rules

JUDGES = (
    *ENGINE, *UNSTATED_RULES, "rlflow/graph/onnx_reader.py", "rlflow/graph/onnx_writer.py",
    "benchmarks/fuzzing.py", "benchmarks/random_models",
)  # fmt: skip

GRAPHS, SYMBOLIC_GRAPHS = 20_000, 5_000
CHUNK = 250
WORKERS = 2
ENOUGH = 3  # failures, after which a chunk is not gone on with: shrinking takes long
SHOWN = 10  # failures that are printed, too


def fuzz_chunk(folder: Path, symbolic: bool, first: int, count: int) -> dict:
    """What the graphs of the seeds first … first + count − 1 gave; from the folder, if it is there."""
    name = f"symbolic-{first}-{count}" if symbolic else f"{first}-{count}"
    return each([name], folder, lambda _: fuzz_seeds(symbolic, first, count))[name]


def fuzz_seeds(symbolic: bool, first: int, count: int) -> dict:
    rules, fired, compared, failures, graphs = load_rules(families()), Counter(), Counter(), [], 0
    for seed in range(first, first + count):
        result = fuzz(seed, rules, symbolic=symbolic)
        fired.update(result.rules)
        compared.update(result.compared)
        graphs += 1
        if result.failure is not None:
            failures.append({"seed": seed, "rules": result.failure.rules, "text": str(result.failure)})
            if len(failures) == ENOUGH:
                break
    return {"graphs": graphs, "fired": fired, "compared": compared, "failures": failures}


def table(figures: dict) -> str:
    fired, never = figures["fired"], figures["never_fired"]
    rarest = min((name for name in fired if fired[name]), key=fired.__getitem__)
    return markdown(["what", "found"], [
        ["graphs", f"{figures['graphs']:,}"],
        ["seeds", "{:,} to {:,}".format(*figures["seeds"])],
        ["rewrites", f"{figures['substitutions']:,}"],
        ["rules", len(fired)],
        ["rules that never fired", f"{len(never)}: {', '.join(never)}" if never else 0],
        ["the rarest of the others", f"{rarest}, {fired[rarest]} times"],
        *([f"graphs compared {how}", f"{times:,}"] for how, times in figures.get("compared", {}).items()),
        ["failures", len(figures["failures"])],
    ], words=2)  # fmt: skip


def main() -> int:
    arguments = parser(__doc__, "runs/fuzz")
    arguments.add_argument("--symbolic", action="store_true", help="graphs whose sizes are symbols")
    arguments.add_argument("--graphs", type=int, help=f"how many ({GRAPHS}, or {SYMBOLIC_GRAPHS} symbolic ones)")
    parsed = arguments.parse_args()
    wanted = SYMBOLIC_GRAPHS if parsed.symbolic else GRAPHS
    parsed.graphs = wanted if parsed.graphs is None else parsed.graphs
    first = parsed.seed * parsed.graphs
    starts = range(first, first + parsed.graphs, CHUNK)
    counts = [min(CHUNK, first + parsed.graphs - start) for start in starts]
    chunks = []
    pool, progress = ProcessPoolExecutor(WORKERS, get_context("spawn")), progress_bar(parsed.graphs, "fuzz", "graph")
    with pool, progress:
        for chunk in pool.map(partial(fuzz_chunk, parsed.folder, parsed.symbolic), starts, counts):
            chunks.append(chunk)
            progress.update(chunk["graphs"])
    fired, compared = Counter({rule.name: 0 for rule in load_rules(families())}), Counter()
    for chunk in chunks:
        fired.update(chunk["fired"])
        compared.update(chunk["compared"])
    graphs, failures = sum(chunk["graphs"] for chunk in chunks), [f for chunk in chunks for f in chunk["failures"]]
    for failure in failures[:SHOWN]:
        print(failure["text"], file=sys.stderr)
    never = [name for name, times in fired.items() if not times]
    figures = {
        "graphs": graphs,
        "seeds": [first, first + parsed.graphs - 1],
        "substitutions": fired.total(),
        "substitutions_per_graph_at_most": STEPS,
        "sizes_per_graph": SIZES if parsed.symbolic else 1,
        "tolerances": {TensorProto.DataType.Name(dtype).lower(): limit for dtype, limit in TOLERANCES.items()},
        "fired": dict(sorted(fired.items(), key=lambda item: (-item[1], item[0]))),
        "never_fired": never,
        "compared": dict(sorted(compared.items())),
        "failures": failures,
    }
    bars = [
        bar("graphs", graphs, "", f"≥ {wanted}", graphs >= wanted),
        bar("failures", len(failures), "", "0", not failures),
    ]
    if not parsed.symbolic:  # a rule that is proved up to a bound needs sizes that are numbers
        bars.insert(1, bar("rules that never fired", len(never), "", "0", not never))
    return finish("fuzz", parsed, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
