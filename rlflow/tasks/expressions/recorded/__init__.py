"""Programs of the Knossos repository, and the best rewrite sequences that it records for them.

The files `*.ks` hold the programs of `rlo/src/rlo/ksc/` of microsoft/knossos-ksc (commit df0ddb3, MIT licence, see
LICENSE), written by `syntax.program_text`. `sequences.txt` and `chains.txt` hold the recorded sequences. Each sequence
was repeated with the rules and costs of `rlflow.tasks.expressions`. A line has these columns, separated by tabs:

    SET/NAME  RULES  SOURCE  COST BEFORE  COST AFTER  STEPS

Costs are in units of 1e-4. STEPS has for every step one letter, the rule in the list of the first line, and the index
of the rule's location: a0b12 is rule a at location 0, then rule b at location 12. `chains.txt` holds the sequences of
the module `best_results`; its first column is an expression.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rlflow.common.errors import RLFlowError, nearest
from rlflow.tasks.expressions.syntax import Program, parse_expression, parse_programs

FOLDER = Path(__file__).parent
_STEP = re.compile(r"([A-Za-z])(\d+)")


class Recorded(NamedTuple):
    """A recorded sequence.

    Attributes:
      model: name of the program, such as blas_test/gemm, or an expression.
      rules: the rule set.
      source: who found the sequence: `expert` (a program), `user` (a person) or `rlo` (a learner). The sequences of
        `chains.txt` have other labels: `optimal`, `steps`, `0.0` and `0.2`.
      before, after: the costs in units of 1e-4.
      steps: (rule, index of its location) of each step.
    """

    model: str
    rules: str
    source: str
    before: int
    after: int
    steps: tuple[tuple[str, int], ...]


@cache
def _programs(name: str) -> dict[str, Program]:
    return parse_programs((FOLDER / f"{name}.ks").read_text(encoding="utf-8"))


def recorded_sets() -> list[str]:
    """Return the names of the sets of programs."""
    return sorted(path.stem for path in FOLDER.glob("*.ks"))


def recorded_names(name: str) -> list[str]:
    """Return the names of the programs of a set, such as blas_test/gemm."""
    return [f"{name}/{each}" for each in _programs(name)]


def recorded_program(model: str) -> Program:
    """Return a recorded program.

    Args:
      model: SET/NAME, or an expression of `chains.txt`.

    Raises:
      RLFlowError: no program has this name.
    """
    if "(" in model:
        return parse_expression(model)
    group, _, name = model.partition("/")
    if group not in recorded_sets():
        raise RLFlowError(f"no file, recorded program or expression is '{model}'{nearest(group, recorded_sets())}")
    programs = _programs(group)
    if name not in programs:
        raise RLFlowError(f"the set {group} has no program '{name}'{nearest(name, programs)}")
    return programs[name]


def recorded_sequences(file: str = "sequences") -> list[Recorded]:
    """Return the sequences of a file, `sequences` or `chains`."""
    header, *lines = (FOLDER / f"{file}.txt").read_text(encoding="utf-8").splitlines()
    letters = dict(pair.split("=") for pair in header.split())
    result = []
    for line in lines:
        model, rules, source, before, after, steps = line.split("\t")
        moves = tuple((letters[letter], int(index)) for letter, index in _STEP.findall(steps))
        result.append(Recorded(model, rules, source, int(before), int(after), moves))
    return result
