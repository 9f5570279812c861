"""The task `expressions`: replays of the record of Knossos, searches with equal evaluations, macros, and the e-graph.

    python -m benchmarks.expressions

*replays*: every recorded sequence, repeated with the rules here; the result is compared with the original on random
inputs.

*arithmetic*: the twelve test expressions of the paper with the binding rules. Every search gets the same number of
evaluated expressions. Macros are learnt from the 36 training expressions: from solutions of beam search, and
then, twice, from solutions of the search with the macros so far.

*yardstick*: the same expressions with the rules of the set `simplify` in both directions, in an e-graph. The table
states up to which cost, with every `let` inlined, the e-graph is complete, so that its result is proved the cheapest.

*programs*: programs of the set blas_test without and with binding rules, from the raw program. Macros are learnt from
smaller programs of blas_train, without GEMM; no sequence of a person is used. With the sketch `inlined`, they are led
to a program without calls and without `let`s of vectors.

*totals*: all programs of blas_test, with the macros of macros.txt and the sketch.

*sharing*: arithmetic without `let`s, which are put back at the end (`rlflow.tasks.expressions.sharing`): the twelve
test expressions with the rules `binding` and `both`, and rev$gelu.

*times*: the generated C of GEMM, raw and optimised, on square matrices of C_SIZES rows.

*values*: A* with a learned value, see `benchmarks.expression_values`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import NOTHING, number
from rlflow.optimisation.candidates import states_along
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from rlflow.search.macros import Macro, learn, macro_search
from rlflow.tasks.expressions.c_code import Library
from rlflow.tasks.expressions.evaluate import TOLERANCE, difference, largest_difference
from rlflow.tasks.expressions.recorded import Recorded, recorded_names, recorded_program, recorded_sequences
from rlflow.tasks.expressions.sharing import sharing_search
from rlflow.tasks.expressions.sketches import inlined, learnt_macros
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import UNITS, Program

LOCATIONS = 200  # largest number of locations of a rule, the default of env.max_locations
EVALUATIONS = (300, 1000, 5000)  # the paper's budget is 5,000
SEEDED = ("annealing", "grasp", "random")  # searches with random choices
SEARCHES = ("greedy", "beam", "best-first", *SEEDED)
TRAINING = 36  # training expressions of the paper, after the twelve test expressions
LEARNING_EVALUATIONS, ITERATIONS = 2000, 3  # evaluations for each solution from which macros are learnt; iterations
PROGRAMS = ("blas_test/gemm", "blas_test/gemv", "blas_test/ger", "blas_test/syr2", "blas_test/trmv2")
PROGRAM_EVALUATIONS = 20_000
RULES = ("ml-no-bind", "ml")  # without and with binding rules
LARGEST_TO_LEARN = 130  # nodes of a program from which macros are learnt
TOTAL_EVALUATIONS = 4000  # for each program of blas_test
GELU, GELU_EVALUATIONS = "gelu/rev$gelu", 100_000
C_SIZES, C_REPEATS = (1000, 1250, 1500, 1750, 2000), 3


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


def program(model: str, rules: str) -> dict:
    """Return the costs that searches reach from the raw program, with the peak on the path of the macros."""
    known = [one.after for one in recorded_sequences() if (one.model, one.rules) == (model, rules)]
    small = [
        name for name in recorded_names("blas_train")
        if "gemm" not in name and name.split("/")[1] != model.split("/")[1]
        and recorded_program(name).expr.size <= LARGEST_TO_LEARN
    ]  # fmt: skip
    task = task_of(model, rules)
    limits = Limits(interactions=PROGRAM_EVALUATIONS)
    macros = learnt(small, rules)
    found = run_search(macro_search, task.initial, limits, macros=macros, sketch=inlined)
    peak = max(state.objective for state in states_along(task, found.actions))
    plain = {method: searched(task, method, PROGRAM_EVALUATIONS) for method in ("greedy", "beam", "annealing")}
    plain["macros"] = searched(task, macro_search, PROGRAM_EVALUATIONS, macros=macros)
    return plain | {
        "before": task.initial.objective, "sketch": found.state.objective, "peak": peak, "recorded": min(known)
    }  # fmt: skip


def totals(rules: str) -> dict:
    """Return total costs of blas_test: initial, found, and lowest recorded; and where the record is better."""
    recorded: dict[str, int] = {}
    for one in recorded_sequences():
        if one.rules == rules and one.model.startswith("blas_test"):
            recorded[one.model] = min(one.after, recorded.get(one.model, one.before))
    before, found = {}, {}
    for model in recorded:
        task = task_of(model, rules)
        options = {"macros": learnt_macros(task.rules), "sketch": inlined}
        before[model], found[model] = task.initial.objective, searched(task, macro_search, TOTAL_EVALUATIONS, **options)
    behind = {model: found[model] - recorded[model] for model in recorded}
    worst = max(behind, key=behind.get)
    sums = {"before": before, "found": found, "recorded": recorded}
    return {name: sum(costs.values()) for name, costs in sums.items()} | {
        "programs": len(recorded), "lower": sum(lost < 0 for lost in behind.values()),
        "worst": worst, "worst_loss": behind[worst],
    }  # fmt: skip


def sharing(seeds: int) -> dict:
    """Return the costs of `sharing_search`: {rules: {evaluations: total of the twelve}}, and of all on rev$gelu."""
    test, _ = binding_expressions()
    result: dict = {
        rules: {
            str(limit): sum(searched(task_of(one.model, rules), sharing_search, limit) for one in test) / UNITS
            for limit in EVALUATIONS
        }
        for rules in ("binding", "both")
    }
    task, limit = task_of(GELU, "ml"), GELU_EVALUATIONS
    plain = {method: searched(task, method, limit) for method in ("greedy", "beam", "annealing")}
    plain["macros"] = searched(task, macro_search, limit, macros=learnt_macros(task.rules), sketch=inlined)
    known = min(one.after for one in recorded_sequences() if (one.model, one.rules) == (GELU, "ml"))
    each = [searched(task, sharing_search, limit, seed) for seed in range(seeds)]
    return result | {"gelu": plain | {"before": task.initial.objective, "sharing": each, "recorded": known}}


def times(sizes: Sequence[int] = C_SIZES) -> list[dict]:
    """Return the seconds of the C of GEMM for each size: raw, and optimised without and with binding rules.

    Args:
      sizes: numbers of rows of the square matrices.
    """
    raw = recorded_program("blas_test/gemm")
    programs = {"raw": raw}
    for rules in RULES:
        task = task_of("blas_test/gemm", rules)
        options = {"macros": learnt_macros(task.rules), "sketch": inlined}
        found = run_search(macro_search, task.initial, Limits(interactions=PROGRAM_EVALUATIONS), **options)
        programs[rules] = Program(raw.name, found.state.expr)
    rows = []
    with TemporaryDirectory() as folder:
        libraries = {}
        for name, one in programs.items():
            place = Path(folder) / name
            place.mkdir()
            libraries[name] = Library(one, place)
        for size in sizes:
            rng = np.random.default_rng(size)
            argument = (1.5, rng.random((size, size)), rng.random((size, size)), 0.5, rng.random((size, size)))
            seconds, values = {name: [] for name in programs}, {}
            for _ in range(C_REPEATS):
                for name, library in libraries.items():  # in turns, so that a slow minute hits all
                    values[name], taken = library.timed(argument)
                    seconds[name].append(taken)
            apart = max(difference(values["raw"], values[name]) for name in RULES)
            rows.append({"size": size, "difference": apart} | {name: min(each) for name, each in seconds.items()})
    return rows


def main() -> int:
    from benchmarks import expression_values  # imports this module

    parsed = parser(__doc__, seeds=5).parse_args()
    record = Record("expressions", parsed)
    calls = expression_values.calls(record.folder, parsed.seeds)
    calls |= {f"arithmetic-{method}": (arithmetic, method, parsed.seeds) for method in (*SEARCHES, "macros")}
    calls |= {"replays": (replays,), "yardstick": (yardstick,), "sharing": (sharing, parsed.seeds)}
    calls |= {f"totals-{rules}": (totals, rules) for rules in RULES}
    calls |= {part_of(model, rules): (program, model, rules) for model in PROGRAMS for rules in RULES}
    parts = record.all_parts(calls, at_once=2) | record.all_parts({"times": (times,)})
    note = "Two parts ran side by side, except the C of GEMM, which ran alone."
    record.publish(tables(parts) | expression_values.tables(parts), note)
    return record.status


def part_of(model: str, rules: str) -> str:
    return f"{model.replace('/', '-')}-{rules}"


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
    names = ("before", "greedy", "beam", "annealing", "macros", "sketch", "peak", "recorded")
    rows = []
    for rules in RULES:
        for model in PROGRAMS:
            if one := parts.get(part_of(model, rules)):
                rows.append([model, rules, *(number(one[name] / UNITS, 1) for name in names)])
    heads = ["initial", "greedy", "beam", "annealing", "macros", "with sketch", "its peak", "recorded best"]
    result["programs"] = Table(["program", "rules", *heads], rows, text_columns=2)
    rows = []
    for rules in RULES:
        if one := parts.get(f"totals-{rules}"):
            costs = (number(one[name] / UNITS, 1) for name in ("before", "found", "recorded"))
            worst = f"{one['worst']} by {number(one['worst_loss'] / UNITS, 1)}"
            rows.append([rules, one["programs"], *costs, one["lower"], worst])
    heads = ["rules", "programs", "initial", "macros with sketch", "recorded best"]
    result["totals"] = Table([*heads, "below the record", "furthest above it"], rows)
    if one := parts.get("sharing"):
        rows = [[rules, *(number(one[rules][str(limit)], 1) for limit in EVALUATIONS)] for rules in ("binding", "both")]
        result["sharing"] = Table(["rules", *(f"{limit:,} evaluations" for limit in EVALUATIONS)], rows)
        gelu, heads = one["gelu"], ("before", "greedy", "beam", "annealing", "macros", "recorded")
        costs = [number(gelu[name] / UNITS, 1) for name in heads]
        each = ", ".join(number(cost / UNITS, 1) for cost in gelu["sharing"])
        result["gelu"] = Table(["initial", *heads[1:-1], "recorded best", "sharing, each seed"], [[*costs, each]])
    if "times" in parts:
        rows = [
            [
                one["size"], number(one["raw"], 3),
                *(f"{number(one[rules], 3)} ({number(one[rules] / one['raw'], 2)})" for rules in RULES),
                f"{one['difference']:.0e}",
            ]
            for one in parts["times"]
        ]  # fmt: skip
        heads = ["rows", "raw, s", *(f"{rules}, s (ratio)" for rules in RULES), "largest relative difference"]
        result["times"] = Table(heads, rows)
    return result


if __name__ == "__main__":
    sys.exit(run(main))
