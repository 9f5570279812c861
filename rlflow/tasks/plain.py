"""What a task needs no code of its own for, where `model` says the whole problem and a result is its decisions."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_text
from rlflow.deliver.plain import deliver_decisions, deliver_steps, summary
from rlflow.env.step import StepEnv
from rlflow.tasks.base import ONE_SHOT, Task


@dataclass(frozen=True)
class PlainSpec:
    """Most of `rlflow.tasks.base.TaskSpec`; a subclass states `shape`, `make_task` and, step by step, `make_reward`.

    source: a file that holds the text which names the problem.  max_steps: see `env.max_steps`.
    """

    shape: ClassVar[str]

    source: str
    max_steps: int

    @property
    def problem(self) -> str:
        """What `model` said, or the content of the file that it named."""
        try:
            return Path(self.source).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RLFlowError(f"cannot read {self.source}: {error}") from error

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        if Path(model).is_file():
            return Path(model)
        source = folder / "problem.txt"
        write_text(source, model + "\n")
        return source

    @classmethod
    def files(cls, source: Path) -> Sequence[Path]:
        return [source]

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        return cls(str(source), config.env.max_steps)

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        return {"max_steps": config.env.max_steps}

    def absolute(self) -> Self:
        return replace(self, source=os.path.abspath(self.source))

    def make_env(self, task: Task, max_steps: int) -> StepEnv:
        return StepEnv(task, self.make_reward(), max_steps)

    def deliver(self, task: Task, candidates: Sequence, folder: Path, config: Mapping) -> dict:
        carry_out = deliver_decisions if self.shape == ONE_SHOT else deliver_steps
        return carry_out(self, candidates, folder)

    def report(self, task: Task, results: dict, folder: Path) -> dict[str, str]:
        return {"result": summary(task, results["eval"]), "folder": str(folder)}
