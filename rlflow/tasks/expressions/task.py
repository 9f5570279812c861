"""The task `expressions`: make a functional program cheaper by rewrite rules (Knossos).

The option `model` names the problem, in one of three ways:

- a file of programs (see `syntax`), or FILE:NAME for one of its definitions. Without a name, it is the last one;
- a recorded program such as `blas_test/gemm` (see `recorded`);
- an expression, such as "(mul (div x x) x)".

The option `task.rules` chooses the rule set. The objective is the cost of `cost` in units of 1e-4. An episode begins at
the program, and the reward of a step is the cost that it saves, in percent of the program's cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from rlflow.common.errors import RLFlowError, nearest
from rlflow.common.files import is_file, write_text
from rlflow.common.task import STEP_BY_STEP
from rlflow.env.rewards import relative
from rlflow.tasks.expressions.recorded import recorded_program
from rlflow.tasks.expressions.state import ExpressionTask, rules_of
from rlflow.tasks.expressions.syntax import Program, parse_expression, parse_programs, program_text
from rlflow.tasks.plain import PlainSpec


def read_program(text: str, name: str = "") -> Program:
    """Return the program of a text.

    Args:
      text: an expression or definitions.
      name: the definition; "" for the last one.

    Raises:
      RLFlowError: the text has an error, or no definition with this name.
    """
    if "(def" not in text:
        return parse_expression(text)
    programs = parse_programs(text)
    if not programs:
        raise RLFlowError("the file defines no function")
    if name and name not in programs:
        raise RLFlowError(f"no definition is named '{name}'{nearest(name, programs)}")
    return programs[name] if name else list(programs.values())[-1]


def named_program(model: str) -> Program:
    """Return the program that the option `model` names, as the module docstring describes.

    Raises:
      RLFlowError: there is no such program.
    """
    path, _, name = model.rpartition(":")
    for file, definition in ((model, ""), (path, name)):
        if file and is_file(file):
            try:
                return read_program(Path(file).read_text(encoding="utf-8"), definition)
            except UnicodeDecodeError as error:
                raise RLFlowError(f"{file} is not a text file") from error
    if "(" in model:
        return parse_expression(model)
    return recorded_program(model)


@dataclass(frozen=True)
class ExpressionsSpec(PlainSpec):
    """The specification of an expression task; see `rlflow.common.task.TaskSpec`.

    Attributes:
      source: a file with an expression, or with definitions; the last definition is the problem.
      max_steps: number of steps after which an episode is truncated.
      rules: name of the rule set.
      max_locations: largest number of locations of one rule.
    """

    shape: ClassVar[str] = STEP_BY_STEP

    rules: str = "ml"
    max_locations: int = 200

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        if is_file(model):
            return Path(model)
        source = folder / "problem.ks"
        write_text(source, program_text(named_program(model)))
        return source

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        return cls(str(source), config.env.max_steps, config.task.rules, config.env.max_locations)

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        return super().depends_on(config) | {
            "rules": config.task.rules, "max_locations": config.env.max_locations
        }  # fmt: skip

    def make_task(self) -> ExpressionTask:
        return ExpressionTask(read_program(self.problem), rules_of(self.rules), self.max_locations)

    def make_reward(self):
        return relative
