"""Tasks: what RLFlow can learn on. A new one is one file (the contract is rlflow/tasks/base.py) and one line here."""

from rlflow.common.registry import Registry

TASKS = Registry(
    "task",
    {"rewriting": "rlflow.tasks.rewriting:RewritingSpec", "ordering": "rlflow.tasks.ordering.task:OrderingSpec"},
)
