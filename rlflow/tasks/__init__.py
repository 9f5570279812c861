"""Tasks: the problems that RLFlow can learn on.

A new task is one file that implements the contract in rlflow/common/task.py, and one line in `TASKS`.
"""

from dataclasses import dataclass

from rlflow.common.options import option
from rlflow.common.registry import Registry

TASKS = Registry(
    "task",
    {"rewriting": "rlflow.tasks.rewriting:RewritingSpec", "ordering": "rlflow.tasks.ordering:OrderingSpec"},
)


@dataclass(frozen=True)
class TaskOptions:
    """The options that choose a task; the option `model` names the problem of the task."""

    name: str = option(
        "rewriting",
        "rewriting (an ONNX model, by proved rules), ordering (of its nodes, for less memory) or a task of your own "
        "(docs/EXTENDING.md)",
    )
