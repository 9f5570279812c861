"""How many rules apply to each model of the zoo, and at how many locations (the paper's Table 1 counts 40 to 288).

    python -m benchmarks.locations
"""

import sys

from benchmarks.harness import bar, finish, markdown, parser
from benchmarks.judged import ENGINE
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, load_rules
from rlflow.rules.locations import MatchTable
from rlflow.zoo import ZOO, load

JUDGES = (*ENGINE, "rlflow/graph/onnx_reader.py")

PAPER = ("squeezenet1_1", "resnet18", "resnet50", "inception_v3", "bert_base", "vit_base")
LEAST_RULES, LEAST_LOCATIONS = 5, 40


def count(name: str, rules: RuleSet, seed: int) -> dict:
    """Nodes, applicable rules and (rule, location) pairs of one model, and the locations of each rule."""
    graph = load_graph(load(name, seed))
    counts = {rule.name: n for rule, n in zip(rules, MatchTable(rules, graph).counts.tolist(), strict=True) if n}
    nodes = sum(not node.constant for node in graph.nodes.values())
    return {
        "opset": graph.opset(""),
        "nodes": nodes,
        "rules": len(counts),
        "locations": sum(counts.values()),
        "by_rule": counts,
    }


def table(figures: dict) -> str:
    rows = [
        [name, *(result[key] for key in ("opset", "nodes", "rules", "locations"))]
        for name, result in figures["models"].items()
    ]
    return markdown(["model", "opset", "operators", "applicable rules", "locations"], rows)


def main() -> int:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    rules = load_rules()
    names = [*PAPER, *(name for name in ZOO if name.startswith("light_"))]
    models = {name: count(name, rules, arguments.seed) for name in names}
    bars = [
        bar(f"{name}: applicable {key}", result[key], key, f"≥ {least}", result[key] >= least)
        for name, result in models.items() for key, least in (("rules", LEAST_RULES), ("locations", LEAST_LOCATIONS))
    ]  # fmt: skip
    return finish("locations", arguments, {"rules": len(rules), "models": models}, bars)


if __name__ == "__main__":
    sys.exit(main())
