"""The task `expressions`: whole programs, from the raw program.

    python -m benchmarks.expression_programs

*programs*: programs of the set blas_test without and with binding rules. Macros are learnt from smaller programs of
blas_train, without GEMM; no sequence of a person is used. With the sketch `inlined`, they are led to a program without
calls and without `let`s of vectors.

*totals*: all programs of blas_test, with the macros of macros.txt and the sketch.

*workloads*: the derivatives of the two workloads of the paper, a Gaussian mixture model and the convolution of a
network for MNIST, with the same macros.

*sharing*: arithmetic without `let`s, which are put back at the end (`rlflow.tasks.expressions.sharing`): the twelve
test expressions with the rules `binding` and `both`, and rev$gelu.

*times*: the generated C of GEMM, raw and optimised, on square matrices of C_SIZES rows.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.expressions import EVALUATIONS, binding_expressions, learnt, searched, task_of
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import number
from rlflow.optimisation.candidates import states_along
from rlflow.search.base import Limits, run_search
from rlflow.search.macros import macro_search
from rlflow.tasks.expressions.c_code import Library
from rlflow.tasks.expressions.evaluate import TOLERANCE, difference, largest_difference
from rlflow.tasks.expressions.recorded import recorded_names, recorded_program, recorded_sequences
from rlflow.tasks.expressions.sharing import sharing_search
from rlflow.tasks.expressions.sketches import inlined, learnt_macros
from rlflow.tasks.expressions.state import ExpressionTask
from rlflow.tasks.expressions.syntax import UNITS, Program

PROGRAMS = ("blas_test/gemm", "blas_test/gemv", "blas_test/ger", "blas_test/syr2", "blas_test/trmv2")
PROGRAM_EVALUATIONS = 20_000
RULES = ("ml-no-bind", "ml")  # without and with binding rules
LARGEST_TO_LEARN = 130  # nodes of a program from which macros are learnt
TOTAL_EVALUATIONS = 4000  # for each program of blas_test
WORKLOAD_EVALUATIONS = 30_000  # for each program of a workload, as in the paper
WORKLOADS = {"gmm_test": -16, "conv1d_rev": -27}  # set of programs → change of the cost in the paper, per cent
PLAIN = ("greedy", "beam", "annealing")
GELU, GELU_EVALUATIONS = "gelu/rev$gelu", 100_000
C_SIZES, C_REPEATS = (1000, 1250, 1500, 1750, 2000), 3


def guides(task: ExpressionTask) -> dict:
    """Return the options of `macro_search` with the macros of macros.txt and the sketch."""
    return {"macros": learnt_macros(task.rules), "sketch": inlined}


def plain_costs(task: ExpressionTask, evaluations: int) -> dict[str, int]:
    """Return name of each plain search → the cost that it finds."""
    return {method: searched(task, method, evaluations) for method in PLAIN}


def peak_along(task: ExpressionTask, actions: Sequence[tuple[int, int]]) -> int:
    """Return the highest cost of the states on a path from the raw program."""
    return max(state.objective for state in states_along(task, actions))


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
    return plain_costs(task, PROGRAM_EVALUATIONS) | {
        "before": task.initial.objective, "sketch": found.state.objective, "peak": peak_along(task, found.actions),
        "macros": searched(task, macro_search, PROGRAM_EVALUATIONS, macros=macros), "recorded": min(known),
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
        before[model] = task.initial.objective
        found[model] = searched(task, macro_search, TOTAL_EVALUATIONS, **guides(task))
    behind = {model: found[model] - recorded[model] for model in recorded}
    worst = max(behind, key=behind.get)
    sums = {"before": before, "found": found, "recorded": recorded}
    return {name: sum(costs.values()) for name, costs in sums.items()} | {
        "programs": len(recorded), "lower": sum(lost < 0 for lost in behind.values()),
        "worst": worst, "worst_loss": behind[worst],
    }  # fmt: skip


def workload(name: str, rules: str) -> list[dict]:
    """Return the costs of each program of a set: initial, of plain searches, of the macros, and whether it is equal."""
    rows = []
    for model in recorded_names(name):
        task = task_of(model, rules)
        found = run_search(macro_search, task.initial, Limits(interactions=WORKLOAD_EVALUATIONS), **guides(task))
        rows.append(plain_costs(task, WORKLOAD_EVALUATIONS) | {
            "model": model, "before": task.initial.objective, "sketch": found.state.objective,
            "peak": peak_along(task, found.actions),
            "equal": largest_difference(task.initial.expr, found.state.expr, seeds=2) < TOLERANCE,
        })  # fmt: skip
    return rows


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
    found = plain_costs(task, limit) | {"macros": searched(task, macro_search, limit, **guides(task))}
    known = min(one.after for one in recorded_sequences() if (one.model, one.rules) == (GELU, "ml"))
    each = [searched(task, sharing_search, limit, seed) for seed in range(seeds)]
    return result | {"gelu": found | {"before": task.initial.objective, "sharing": each, "recorded": known}}


def times(sizes: Sequence[int] = C_SIZES) -> list[dict]:
    """Return the seconds of the C of GEMM for each size: raw, and optimised without and with binding rules.

    Args:
      sizes: numbers of rows of the square matrices.
    """
    raw = recorded_program("blas_test/gemm")
    programs = {"raw": raw}
    for rules in RULES:
        task = task_of("blas_test/gemm", rules)
        found = run_search(macro_search, task.initial, Limits(interactions=PROGRAM_EVALUATIONS), **guides(task))
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
    parsed = parser(__doc__, seeds=5).parse_args()
    record = Record("expression_programs", parsed)
    calls = {"sharing": (sharing, parsed.seeds)}
    calls |= {f"{name}-{rules}": (workload, name, rules) for name in WORKLOADS for rules in RULES}
    calls |= {f"totals-{rules}": (totals, rules) for rules in RULES}
    calls |= {part_of(model, rules): (program, model, rules) for model in PROGRAMS for rules in RULES}
    parts = record.all_parts(calls, at_once=2) | record.all_parts({"times": (times,)})
    note = "Two parts ran side by side, except the C of GEMM, which ran alone."
    record.publish(tables(parts), note)
    return record.status


def part_of(model: str, rules: str) -> str:
    return f"{model.replace('/', '-')}-{rules}"


def tables(parts: dict) -> dict[str, Table]:
    result = {}
    names = ("before", *PLAIN, "macros", "sketch", "peak", "recorded")
    rows = []
    for rules in RULES:
        for model in PROGRAMS:
            if one := parts.get(part_of(model, rules)):
                rows.append([model, rules, *(number(one[name] / UNITS, 1) for name in names)])
    heads = ["initial", *PLAIN, "macros", "with sketch", "its peak", "recorded best"]
    result["programs"] = Table(["program", "rules", *heads], rows, text_columns=2)
    rows = []
    for rules in RULES:
        if one := parts.get(f"totals-{rules}"):
            costs = (number(one[name] / UNITS, 1) for name in ("before", "found", "recorded"))
            worst = f"{one['worst']} by {number(one['worst_loss'] / UNITS, 1)}"
            rows.append([rules, one["programs"], *costs, one["lower"], worst])
    heads = ["rules", "programs", "initial", "macros with sketch", "recorded best"]
    result["totals"] = Table([*heads, "below the record", "furthest above it"], rows)
    rows, names = [], ("before", *PLAIN, "sketch")
    for name, paper in WORKLOADS.items():
        for rules in RULES:
            if found := parts.get(f"{name}-{rules}"):
                sums = {key: sum(one[key] for one in found) for key in names}
                shares = (f"{100 * (sums[key] / sums['before'] - 1):+.1f} %" for key in names[1:])
                peak = max(one["peak"] / one["before"] for one in found)
                equal = f"{sum(one['equal'] for one in found)} of {len(found)}"
                cells = [number(sums["before"] / UNITS, 1), *shares, f"{peak:.2f}", equal, f"{paper:+d} %"]
                rows.append([name, rules, *cells])
    heads = ["initial", *PLAIN, "macros with sketch", "its highest peak, times the initial cost", "equal", "paper"]
    result["workloads"] = Table(["set", "rules", *heads], rows, text_columns=2)
    if one := parts.get("sharing"):
        rows = [[rules, *(number(one[rules][str(limit)], 1) for limit in EVALUATIONS)] for rules in ("binding", "both")]
        result["sharing"] = Table(["rules", *(f"{limit:,} evaluations" for limit in EVALUATIONS)], rows)
        gelu, heads = one["gelu"], ("before", *PLAIN, "macros", "recorded")
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
