"""Small tasks for the tests: a tiny zoo model, all rules and the analytic cost."""

from functools import cache
from pathlib import Path

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import save_model
from rlflow.rules.language import load_rules
from rlflow.zoo import load


@cache
def tiny_task(name: str = "tiny_resnet18", max_locations: int = 200, rules: tuple[str, ...] = ()) -> Task:
    return Task(load_graph(load(name)), load_rules(list(rules)), AnalyticCost(), max_locations)


def tiny_spec(folder: Path, name: str = "tiny_resnet18", **options) -> EnvSpec:
    """Return the specification of the same task for another process, with the model in a file."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        save_model(load(name), path)
    return EnvSpec(str(path), **{"cost": "analytic", **options})
