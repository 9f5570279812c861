"""The options of tasks."""

from dataclasses import dataclass

from rlflow.common.options import option


@dataclass(frozen=True)
class TaskOptions:
    """What is learnt on; which problem of it, `model` says."""

    name: str = option(
        "rewriting",
        "rewriting (an ONNX model by proved rules), ordering (its nodes, for less memory) or yours (docs/EXTENDING.md)",
    )
