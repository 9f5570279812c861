"""What searches reach in the same seconds by single rewrites, and by batched rewrites.

For every model, greedy, beam and annealing from the original, each with `search.moves` single and batched: how far the
estimate falls, after how many rewrites carried out, in how many seconds, and when the one is as far as the other ends.

    python -m benchmarks.alike_moves                                       BERT-Base and ViT-Base, analytic cost
    python -m benchmarks.alike_moves --cost profiled --model bert_base     every search times its operators anew
    python -m benchmarks.alike_moves --table                               Markdown of the figures

Besides, by the analytic cost, of how many graphs the steepest descent counts the cost until its local optimum, on a
tiny BERT of 1 and of 12 layers.

With the profiled cost every search has a timing database of its own, empty, so that neither finds what the other timed.
Resumable: every search of every model is a file of --folder.
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import THREADS, bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.batched import start_of
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.optimisation.candidates import improvement
from rlflow.rules.language import load_rules
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from rlflow.zoo.transformers import TINY_BERT, bert

JUDGES = (*ENGINE, "rlflow/env/batched.py", "rlflow/env/batched.py", "rlflow/search", "rlflow/costs/analytic.py")

MODELS = ("bert_base", "vit_base")
METHODS, MOVES = ("greedy", "beam", "annealing"), ("single", "batched")
BLOCKS, LIMIT = 12, 2.0
SLACK = 0.05  # percent of the original by which one may end above the other and count as equal


class Bench:
    def __init__(self, parsed):
        self.parsed = parsed
        self.options = load_config().search

    def result(self, model: str, method: str, moves: str) -> dict:
        """Of one search, from its file if it is there."""
        name = f"{model}-{self.parsed.cost}-{self.parsed.seconds:g}s-{method}-{moves}"
        return each([name], self.parsed.folder, lambda _: self.searched(model, method, moves))[name]

    def searched(self, model: str, method: str, moves: str) -> dict:
        limits = Limits(self.parsed.seconds, memory=self.options.memory_mb * 2**20)
        with TemporaryDirectory() as folder:
            database = str(Path(folder) / "timings.sqlite") if self.parsed.cost == "profiled" else None
            task = EnvSpec(model, cost=self.parsed.cost, threads=THREADS, database=database).make_task()
            start = start_of(task, moves)
            result = run_search(method, start, limits, self.parsed.seed, **self.options[method])
        original = task.initial.objective
        return {
            "improvement_percent": improvement(original, result.state.objective),
            "rewrites": len(result.actions),
            "interactions": result.interactions,
            "seconds": result.seconds,
            "stop": result.stop,
            "trace": [[s, n, improvement(original, ps)] for s, n, ps in result.trace],
        }

    def compared(self, model: str) -> dict[str, dict]:
        """Per method: both results without their traces, and when each was as far as the other ended."""
        result = {}
        for method in METHODS:
            both = {moves: self.result(model, method, moves) for moves in MOVES}
            goal = min(one["improvement_percent"] for one in both.values())
            result[method] = {
                moves: {key: value for key, value in one.items() if key != "trace"} | {"as_far": reached(one, goal)}
                for moves, one in both.items()
            }
        return result


def reached(one: dict, goal: float) -> dict:
    """When a search first was as far as both came: seconds, interactions."""
    seconds, interactions, _ = next(point for point in one["trace"] if point[2] >= goal)
    return {"improvement_percent": goal, "seconds": seconds, "interactions": interactions}


def interactions_of_blocks(layers: int, moves: str) -> int:
    """Graphs whose cost the steepest descent counts; a move's is counted once, for the whole of it."""
    model = bert("blocks", 0, replace(TINY_BERT, layers=layers), fused=True, vocabulary=100, positions=32, sequence=16)
    task = Task(load_graph(model), load_rules(), AnalyticCost())
    result = run_search("greedy", start_of(task, moves), max_steps=10_000)
    return result.interactions - len(result.actions) + len(result.trace) - 1


def table(figures: dict) -> str:
    rows = [
        (
            model, method, moves, f"{one['improvement_percent']:.2f}", one["rewrites"], one["interactions"],
            f"{one['seconds']:.1f}", one["stop"], f"{one['as_far']['seconds']:.1f}", one["as_far"]["interactions"],
        )
        for model, methods in figures["models"].items()
        for method, both in methods.items()
        for moves, one in both.items()
    ]  # fmt: skip
    heads = (
        "model", "search", "moves", "% lower", "rewrites", "carried out", "seconds", "stop", "as far as both: seconds",
        "carried out",
    )  # fmt: skip
    return markdown(heads, rows, words=3)


def bars_of(models: dict[str, dict], blocks: dict[str, int]) -> list[dict]:
    ratio = blocks["batched, 12 blocks"] / blocks["single, 1 block"]
    bars = [bar("costs counted for 12 blocks, of those for one", ratio, "", f"≤ {LIMIT:g}", ratio <= LIMIT)]
    for model, methods in models.items():
        for method, both in methods.items():
            ahead = both["batched"]["improvement_percent"] - both["single"]["improvement_percent"]
            name = f"{model}, {method}: batched ahead of single in the same seconds"
            bars.append(bar(name, ahead, "% of the original", f"≥ -{SLACK:g}", ahead >= -SLACK))
    return bars


def main() -> int:
    made = parser(__doc__, "runs/alike_moves")
    made.add_argument("--model", nargs="+", default=MODELS, metavar="NAME")
    made.add_argument("--cost", default="analytic", choices=("analytic", "profiled"))
    made.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each search")
    made.add_argument("--table", action="store_true", help="print the figures as Markdown")
    parsed = made.parse_args()
    bench = Bench(parsed)
    models = {model: bench.compared(model) for model in parsed.model}
    if parsed.table:
        print(table({"models": models}))
        return 0
    blocks = {
        "single, 1 block": interactions_of_blocks(1, "single"),
        "batched, 12 blocks": interactions_of_blocks(BLOCKS, "batched"),
        "single, 12 blocks": interactions_of_blocks(BLOCKS, "single"),
    }
    return finish("alike_moves", parsed, {"models": models, "costs_counted": blocks}, bars_of(models, blocks))


if __name__ == "__main__":
    sys.exit(main())
