"""Check a program that `expr` found, and write it with its receipt, its C and a picture; replay receipts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_json, write_text
from rlflow.optimisation.candidates import states_along
from rlflow.optimisation.receipt import reading_receipt, versions
from rlflow.reports.charts import lines, save
from rlflow.tasks.expressions.c_code import Library, c_source, compiler
from rlflow.tasks.expressions.evaluate import (
    TOLERANCE,
    call,
    difference,
    evaluate,
    is_finite,
    largest_difference,
    random_value,
)
from rlflow.tasks.expressions.rules import all_rules
from rlflow.tasks.expressions.state import ExpressionState, ExpressionTask
from rlflow.tasks.expressions.syntax import UNITS, Program, program_text

RECEIPT_FORMAT = 1
SEEDS = 5  # random inputs on which a result is compared with the original


def receipt_of(states: Sequence[ExpressionState], actions: Sequence[tuple[int, int]]) -> dict:
    """Return the receipt of a path: the steps as (rule, location), and the hash and cost that a replay must reach.

    Args:
      states: the states of the path, see `states_along`.
      actions: (action type, index) of each step.
    """
    rules = states[0].task.rules
    return {
        "format": RECEIPT_FORMAT,
        "kind": "expressions",
        "program": states[0].hash,
        "result": states[-1].hash,
        "cost": {"before": states[0].objective / UNITS, "after": states[-1].objective / UNITS},
        "peak": max(state.objective for state in states) / UNITS,
        "steps": [[rules[sort], index] for sort, index in actions],
        "versions": versions(),
    }


def replay(receipt: Mapping, program: Program) -> tuple[list[ExpressionState], list[tuple[int, int]]]:
    """Return the states and the actions of a receipt, applied to a program again.

    Raises:
      RLFlowError: the receipt is malformed or belongs to another program, a step has no such location, or the result
        differs.
    """
    with reading_receipt():
        kind, made_from, result = receipt.get("kind"), receipt.get("program"), receipt.get("result")
        if kind != "expressions" or receipt.get("format") != RECEIPT_FORMAT:
            raise RLFlowError("this is not a receipt of `expr` in the present format")
        steps, after = [(str(rule), int(index)) for rule, index in receipt["steps"]], receipt["cost"]["after"]
        objective = round(float(after) * UNITS)
    task = ExpressionTask(program, tuple(all_rules()), max_locations=10**9)
    if task.initial.hash != made_from:
        raise RLFlowError("the receipt belongs to another program")
    if unknown := {rule for rule, _ in steps} - set(task.rules):
        raise RLFlowError(f"no rule is named '{min(unknown)}'")
    actions = [(task.number[rule], index) for rule, index in steps]
    states = states_along(task, actions)
    if states[-1].hash != result or states[-1].objective != objective:
        raise RLFlowError("the steps of the receipt lead to another result")
    return states, actions


def check(before: Program, after: Program) -> dict:
    """Compare a result with its original on random inputs, in NumPy and, where possible, as compiled C.

    Args:
      before, after: the programs.

    Returns:
      {"difference": largest relative difference, or None, "c": the same for the C of `after`, "reason": why a
      comparison was not possible, or ""}.
    """
    result: dict = {"difference": None, "c": None, "reason": ""}
    try:
        result["difference"] = largest_difference(before.expr, after.expr, SEEDS)
        if after.name and compiler() is not None:
            with TemporaryDirectory() as folder:
                library = Library(after, Path(folder))
                arguments = [random_value(after.expr.type[1], np.random.default_rng(seed)) for seed in range(SEEDS)]
                pairs = [(call(evaluate(after.expr), one), library(one)) for one in arguments]
                result["c"] = max((difference(*pair) for pair in pairs if is_finite(pair[0])), default=None)
    except RLFlowError as error:
        result["reason"] = str(error)
    return result


def is_equal(checked: Mapping) -> bool:
    """Return whether no comparison of `check` shows a difference."""
    return all(checked[key] is None or checked[key] <= TOLERANCE for key in ("difference", "c"))


def write_result(
    states: Sequence[ExpressionState], actions: Sequence[tuple[int, int]], checked: Mapping, out: Path
) -> dict[str, Path]:
    """Write a result and what belongs to it.

    Args:
      states: the states of the path.
      actions: (action type, index) of each step.
      checked: the result of `check`.
      out: the file of the program; the names of the other files begin with its stem.

    Returns:
      Name of a file → its path: "program", "receipt", "picture" and, if the program has a form in C, "c".
    """
    program = replace(states[0].task.program, expr=states[-1].expr)
    files = {"program": out, "receipt": out.with_suffix(".receipt.json"), "picture": out.with_suffix(".png")}
    write_text(out, program_text(program))
    write_json(files["receipt"], receipt_of(states, actions) | {"check": dict(checked)})
    path = [(float(step), state.objective / UNITS) for step, state in enumerate(states)]
    save(lines({"cost": path}, "step", "cost"), files["picture"])
    try:
        text = c_source(program)
    except RLFlowError:
        return files
    files["c"] = out.with_suffix(".c")
    write_text(files["c"], text)
    return files
