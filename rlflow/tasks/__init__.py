"""Tasks: the optimisation problems on which RLFlow can search and learn.

To add a task, write one file that implements the contract in rlflow/common/task.py, and add one line to `TASKS`.
"""

from dataclasses import dataclass

from rlflow.common.options import option
from rlflow.common.registry import Registry

TASKS = Registry(
    "task",
    {
        "rewriting": "rlflow.tasks.rewriting:RewritingSpec",
        "ordering": "rlflow.tasks.ordering:OrderingSpec",
        "placement": "rlflow.tasks.placement.task:PlacementSpec",
        "expressions": "rlflow.tasks.expressions.task:ExpressionsSpec",
    },
)


@dataclass(frozen=True)
class TaskOptions:
    """The options `task`, which choose a task; the option `model` names the problem of this task."""

    name: str = option(
        "rewriting",
        "rewriting (an ONNX model, by proved rules), ordering (of its nodes, for less memory), placement (of its "
        "tensors in the memories of a device), expressions (functional programs) or a task of your own "
        "(docs/EXTENDING.md)",
    )
    rules: str = option(
        "ml",
        "the rules of `expressions`: simplify (34), binding (6), both (38), ml (62) or ml-no-bind (58 of ml)",
        choices=("simplify", "binding", "both", "ml", "ml-no-bind"),
        used_if={"name": ("expressions",)},
    )
