"""The task `expressions`: replays of the record of Knossos, searches with equal evaluations, macros, and the e-graph.

    python -m benchmarks.expressions

*replays*: every recorded sequence, repeated with the rules here; the result is compared with the original on random
inputs.

*arithmetic*: the twelve test expressions of the paper with the binding rules. Every search gets the same number of
evaluated expressions. Macros are learnt from the 36 training expressions: from solutions of beam search, and
then, twice, from solutions of the search with the macros so far.

*yardstick*: the same expressions with the rules of the set `simplify` in both directions, in an e-graph. The table
states up to which cost, with every `let` inlined, the e-graph is complete, so that its result is proved the cheapest.

*values*: A* and Q* with a learned value, see `benchmarks.expression_values`.

Whole programs have a page of their own, `benchmarks.expression_programs`.
"""

import sys
from collections.abc import Sequence

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import NOTHING, number
from rlflow.optimisation.candidates import states_along
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from rlflow.search.macros import Macro, learn, macro_search
from rlflow.tasks.expressions.evaluate import TOLERANCE, largest_difference
from rlflow.tasks.expressions.recorded import Recorded, recorded_program, recorded_sequences
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import UNITS

LOCATIONS = 200  # largest number of locations of a rule, the default of env.max_locations
EVALUATIONS = (300, 1000, 5000)  # the paper's budget is 5,000
SEEDED = ("annealing", "grasp", "random")  # searches with random choices
SEARCHES = ("greedy", "beam", "best-first", *SEEDED)
TRAINING = 36  # training expressions of the paper, after the twelve test expressions
LEARNING_EVALUATIONS, ITERATIONS = 2000, 3  # evaluations for each solution from which macros are learnt; iterations


def task_of(model: str, rules: str) -> ExpressionTask:
    return ExpressionTask(recorded_program(model), rules_of(rules), LOCATIONS)


def binding_expressions() -> tuple[list[Recorded], list[Recorded]]:
    """Return the paper's test and training expressions, with the best costs that are known."""
    known = [one for one in recorded_sequences("chains") if one.rules == "binding"]
    return known[:12], known[12 : 12 + TRAINING]


def searched(task: ExpressionTask, method, evaluations: int, seed: int = 0, **options) -> int:
    """Return the cost that a search finds, in units of 1e-4."""
    if isinstance(method, str) and not options:
        options = dict(load_config().search[method])
    return run_search(method, task.initial, Limits(interactions=evaluations), seed, **options).state.objective


def learnt(models: Sequence[str], rules: str) -> list[Macro]:
    """Return macros from solutions: at first of beam search, then of searches with the macros learnt before.

    Args:
      models: names of the programs or expressions to solve.
      rules: the rule set.
    """
    limits, tasks = Limits(interactions=LEARNING_EVALUATIONS), [task_of(model, rules) for model in models]
    beam, macros, best = dict(load_config().search.beam), [], {}
    for iteration in range(ITERATIONS):
        for place, task in enumerate(tasks):
            method, options = (macro_search, {"macros": macros}) if iteration else ("beam", beam)
            result = run_search(method, task.initial, limits, **options)
            if place not in best or result.state.objective < best[place][0][-1].objective:
                best[place] = states_along(task, result.actions), result.actions
        macros = learn(best.values())
    return macros


def replays() -> dict:
    """Return, for each file of sequences, how many replay to their recorded cost, and how many results are equal."""
    result = {}
    for file in ("sequences", "chains"):
        counts = {"recorded": 0, "replayed": 0, "equal": 0, "steps": 0}
        for one in recorded_sequences(file):
            task = ExpressionTask(recorded_program(one.model), rules_of(one.rules), 10_000)
            state = task.initial
            for rule, index in one.steps:
                state = state.apply(task.number[rule], index)
            counts["recorded"] += 1
            counts["steps"] += len(one.steps)
            counts["replayed"] += (task.initial.objective, state.objective) == (one.before, one.after)
            counts["equal"] += largest_difference(task.initial.expr, state.expr, seeds=2) < TOLERANCE
        result[file] = counts
    return result


def arithmetic(method: str, seeds: int) -> dict:
    """Return evaluations → total costs of the twelve test expressions, one for each seed."""
    test, train = binding_expressions()
    options = {}
    if method == "macros":
        options, method = {"macros": learnt([one.model for one in train], "binding")}, macro_search
    seeds = seeds if method in SEEDED else 1
    return {
        str(limit): [
            sum(searched(task_of(one.model, "binding"), method, limit, seed, **options) for one in test) / UNITS
            for seed in range(seeds)
        ]
        for limit in EVALUATIONS
    }


def yardstick() -> list[dict]:
    """Return the costs of each test expression: initial, of the e-graph, of greedy extraction; and what is proved."""
    from rlflow.tasks.expressions.certificate import cheapest
    from rlflow.tasks.expressions.cost import cost_of

    rows = []
    for one in binding_expressions()[0]:
        expr = recorded_program(one.model).expr
        found = cheapest(expr)
        rows.append({
            "model": one.model, "before": one.before, "binding": one.after, "cost": cost_of(found.expr),
            "greedy": cost_of(found.greedy), "inlined": found.inlined, "limit": found.limit, "nodes": found.nodes,
            "equal": largest_difference(expr, found.expr) < TOLERANCE, "seconds": found.seconds,
        })  # fmt: skip
    return rows


def main() -> int:
    from benchmarks import expression_values  # imports this module

    parsed = parser(__doc__, seeds=5).parse_args()
    record = Record("expressions", parsed)
    calls = expression_values.calls(record.folder, parsed.seeds)
    calls |= {f"arithmetic-{method}": (arithmetic, method, parsed.seeds) for method in (*SEARCHES, "macros")}
    calls |= {"replays": (replays,), "yardstick": (yardstick,)}
    parts = record.all_parts(calls, at_once=2)
    note = "Two parts ran side by side."
    record.publish(tables(parts) | expression_values.tables(parts), note)
    return record.status


def tables(parts: dict) -> dict[str, Table]:
    test, _ = binding_expressions()
    before, best = (sum(costs) / UNITS for costs in zip(*((one.before, one.after) for one in test), strict=True))
    rows = [["initial", *[number(before, 1)] * len(EVALUATIONS)]]
    for method in (*SEARCHES, "macros"):
        if f"arithmetic-{method}" in parts:
            costs = parts[f"arithmetic-{method}"].values()
            rows.append([method, *(number(sum(each) / len(each), 1) for each in costs)])
    rows.append(["recorded best", *[number(best, 1)] * len(EVALUATIONS)])
    result = {"arithmetic": Table(["search", *(f"{limit:,} evaluations" for limit in EVALUATIONS)], rows)}
    if "replays" in parts:
        heads = ["file", "sequences", "steps", "replayed to the recorded cost", "equal on random inputs"]
        names = ("recorded", "steps", "replayed", "equal")
        result["replays"] = Table(
            heads, [[file, *(one[name] for name in names)] for file, one in parts["replays"].items()]
        )
    if "yardstick" in parts:
        rows, names = [], ("before", "binding", "greedy", "cost")
        for one in parts["yardstick"]:
            limit = NOTHING if one["limit"] is None else number(one["limit"] / UNITS, 1)
            costs = (number(one[name] / UNITS, 1) for name in (*names, "inlined"))
            rows.append([one["model"], *costs, limit, one["nodes"], number(one["seconds"], 0)])
        total = [sum(one[name] for one in parts["yardstick"]) / UNITS for name in names]
        rows.append(["total", *(number(each, 1) for each in total), *[NOTHING] * 4])
        heads = ["expression", "initial", "best with binding rules", "e-graph, greedy", "e-graph"]
        result["yardstick"] = Table([*heads, "initial, without lets", "proved up to", "nodes", "s"], rows)
    return result


if __name__ == "__main__":
    sys.exit(run(main))
