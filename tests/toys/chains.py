"""Toy systems: chains of unary operators, rules between their names, and a cost for each name.

The two sides of a rule need not be equal.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper

from rlflow.costs import EXACT, FREE, NodeCost, Spread
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, parse

OPS = ("Relu", "Abs", "Neg", "Exp", "Tanh", "Ceil")


@dataclass
class OperatorCosts:
    """A cost model by operator name with a given uncertainty; `asked` lists the operators whose cost was computed."""

    costs: dict[str, int]
    off: dict[str, int] = field(default_factory=dict)
    reach: int = 0
    passes: None = None
    asked: list[str] = field(default_factory=list)

    def node_cost(self, graph, node) -> NodeCost:
        self.asked.append(node.op)
        return NodeCost(self.costs[node.op], 1, 1, 1) if not node.constant else FREE

    def spread(self, graph, node) -> Spread:
        return EXACT.plus({node.op: self.off.get(node.op, 0)}, 1)


class WorstOperator(OperatorCosts):
    """A cost model in which a chain costs as much as its most expensive operator."""

    def whole(self, graph) -> int:
        return max(self.strain(graph).values())

    def strain(self, graph) -> dict[int, int]:
        return {node.id: self.node_cost(graph, node).runtime_ps for node in graph.nodes.values()}


def toy_task(
    chain: list[str], rules: str, costs: dict[str, int], max_locations: int = 200, off: dict[str, int] | None = None
) -> Task:
    """Return the task of a chain of operators. A line of `rules` has the form `Relu(Abs(x)) => Neg(x)`."""
    names = ["x", *(f"t{k}" for k in range(len(chain)))]
    nodes = [helper.make_node(op, [names[k]], [names[k + 1]]) for k, op in enumerate(chain)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "toy", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    text = "\n".join(f"r{k}: a toy\n  {line.strip()}" for k, line in enumerate(rules.strip().splitlines()))
    rule_set = RuleSet(tuple(parse(text, "toy")), text)
    return Task(load_graph(model), rule_set, OperatorCosts(costs, off or {}), max_locations)


def random_task(seed: int, length: int = 5, n_rules: int = 14) -> Task:
    """Return a task whose rules never lengthen a chain, so that finitely many graphs are reachable."""
    rng = np.random.default_rng(seed)
    left = [f"{a}(x)" for a in OPS] + [f"{a}({b}(x))" for a, b in itertools.product(OPS, OPS)]
    lines = []
    while len(lines) < n_rules:
        source, target = left[rng.integers(len(left))], left[rng.integers(len(left))]
        if source != target and source.count("(") >= target.count("("):
            lines.append(f"{source} => {target}")
    costs = dict(zip(OPS, rng.integers(1, 30, len(OPS)).tolist(), strict=True))
    return toy_task(rng.choice(OPS, length).tolist(), "\n".join(lines), costs)


def losing_first(**options) -> Task:
    """Return a task with three matches. Each match gains 7 in total: a first step costs 5 and a second step gains 12.
    Exp is costly and gains nothing."""
    costs = {"Relu": 10, "Abs": 15, "Neg": 3, "Exp": 1000}
    return toy_task(["Relu", "Exp", "Relu", "Exp", "Relu"], "Relu(x) => Abs(x)\nAbs(x) => Neg(x)", costs, **options)
