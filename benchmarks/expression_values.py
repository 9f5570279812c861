"""The learned values of A* and Q* on the expressions of the paper: parts and tables of `benchmarks.expressions`.

*generalisation*: the value learns from the paper's 36 training expressions with the binding rules, and guides searches
of the paper's twelve test expressions. *wide*: the same test, but the value learns from the 343 other recorded
expressions. *bootstrap*: the value learns from eight expressions with the rules `both`, and guides searches of the same
expressions. The options were chosen on twelve further expressions, see `DEVELOPMENT`.

Each training has a folder, so that an interrupted training continues from its last epoch. A value is one of choices,
which guides Q*, or one of states as in the paper, which guides A* and Monte Carlo tree search. The variants are the
whole network, the network without messages (the paper's "without GNN"), and no training, where the value is 0 and the
searches follow the cost. All trainings may try equally many rewrites.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.expressions import EVALUATIONS, binding_expressions, task_of
from benchmarks.record import Table
from benchmarks.shared import NOTHING, number
from rlflow.tasks.expressions.recorded import recorded_sequences
from rlflow.tasks.expressions.state import ExpressionTask
from rlflow.tasks.expressions.syntax import UNITS

BOOTSTRAP = (
    "(div (div 1.0 x) (add 1.0 (div 1.0 x)))", "(add (div (div 1.0 x) (add (div 1.0 x) 1.0)) (div 1.0 x))",
    "(add (div (div 1.0 x) (add (div 1.0 x) 2.0)) (div 1.0 x))", "(mul (div x y) (div x y))",
    "(div (mul (div x y) x) y)", "(add (div (mul x y) (add 1.0 (mul x y))) (mul x y))",
    "(add (div 1.0 (add 1.0 (mul x y))) (mul x y))", "(div (mul x y) (add 1.0 (mul x y)))",
)  # fmt: skip
SETS = ("generalisation", "wide", "bootstrap")
DEVELOPMENT = slice(48, 60)  # of the recorded expressions with binding rules; those before are the paper's
OPTIONS = {
    "width": 32, "hidden": 64, "propagations": 4, "dropout": 0.0, "learning_rate": 0.003, "batch": 32, "passes": 3,
    "problems": 12,
}  # fmt: skip
OF_SET = {  # further options of a set
    "generalisation": {"epochs": 8, "evaluations": 2000, "patience": 2000, "examples": 300, "alpha": 3.0},
    "wide": {"epochs": 12, "problems": 16, "evaluations": 1000, "patience": 1000, "examples": 150, "alpha": 3.0},
    "bootstrap": {
        "epochs": 6, "evaluations": 4000, "patience": 4000, "examples": 150, "alpha": 1.0, "horizon": 12
    },
}  # fmt: skip
VARIANTS: dict[str, dict] = {  # {what differs: options}; each once with each kind of value
    "learned": {}, "without graph network": {"propagations": 0}, "untrained": {"epochs": 0}
}  # fmt: skip
METHODS = {"qstar": "Q*", "astar": "A*", "mcts": "MCTS"}
VALUES = {"choices": ("qstar",), "states": ("astar", "mcts")}  # kind of value → searches that it guides
FIRST, FEW_SEEDS = ("choices", "learned"), 1  # the value with all seeds, which comes first; seeds of the others
PAPERS = ("initial", "its oracle", "A* with its value", "A* without graph network", "greedy", "random")
# total costs of PAPERS within 5,000 evaluations
PAPER = {"generalisation": (161, 125.2, 125.4, 139.7, 132.1, 161), "bootstrap": (64, 40.6, 40.6, 40.8, 44.7, 56)}


def problems(name: str) -> tuple[list[ExpressionTask], list[ExpressionTask]]:
    """Return the test and the training problems of a set."""
    if name == "bootstrap":
        both = [task_of(text, "both") for text in BOOTSTRAP]
        return both, both
    test, train = binding_expressions()
    if name == "wide":
        known = [one for one in recorded_sequences("chains") if one.rules == "binding"]
        train = [*train, *known[DEVELOPMENT.stop :]]
    return tuple([task_of(one.model, "binding") for one in part] for part in (test, train))


def values(name: str, kind: str, variant: str, seed: int, folder: Path) -> dict:
    """Train a value and return the total costs of the test problems that searches with the value reach.

    Args:
      name: the set of problems.
      kind: a key of VALUES.
      variant: a key of VARIANTS.
      seed: the seed of the training and of MCTS.
      folder: the folder of the checkpoint.

    Returns:
      {"evaluations": number of rewrites of the training, "costs": {method: {limit: total cost}}}.
    """
    from controllers.astar.agent import AStar
    from controllers.controller_options import AStarConfig
    from rlflow.env.states import StateEnv
    from rlflow.env.step import MultiModelEnv, StepEnv
    from worldmodel.train_and_load import prepare_tensorflow

    prepare_tensorflow(seed)
    test, train = problems(name)
    options = OPTIONS | OF_SET[name] | VARIANTS[variant] | {"search": VALUES[kind][0]}
    agent = AStar(AStarConfig(**options), test[0].encoding_spec, seed)
    agent.train(lambda: MultiModelEnv([StateEnv(StepEnv(task, with_graph=False)) for task in train]), seed, folder)
    costs = {
        method: {
            str(limit): sum(agent.searched(task.initial, limit, seed, method)[0].state.objective for task in test)
            for limit in EVALUATIONS
        }
        for method in VALUES[kind]
    }
    return {"evaluations": agent.env_steps, "costs": costs}


def calls(folder: Path, seeds: int) -> dict[str, Sequence]:
    """Return name of a part → (function, *arguments)."""
    result = {}
    ordered = sorted(product(SETS, VALUES, VARIANTS), key=lambda one: one[1:] != FIRST)
    for name, kind, variant in ordered:
        for seed in range(seeds if (kind, variant) == FIRST else min(seeds, FEW_SEEDS)):
            part = f"{_prefix(name, kind, variant)}{seed}"
            result[part] = values, name, kind, variant, seed, folder / "training" / part
    return result


def _prefix(name: str, kind: str, variant: str) -> str:
    return f"{name}-{kind}-{variant.replace(' ', '-')}-"


def tables(parts: Mapping[str, dict]) -> dict[str, Table]:
    """Return one table for each set: the mean total costs, and the lowest and highest of all seeds."""
    result = {}
    for name in SETS:
        rows = []
        for kind, variant in product(VALUES, VARIANTS):
            found = [part for key, part in parts.items() if key.startswith(_prefix(name, kind, variant))]
            for method in VALUES[kind] if found else ():
                cells = [[one["costs"][method][str(limit)] / UNITS for one in found] for limit in EVALUATIONS]
                trained = max(one["evaluations"] for one in found)
                rows.append([f"{METHODS[method]}, {variant}", len(found), trained, *map(_mean_and_range, cells)])
        for title, cost in zip(PAPERS, PAPER.get(name, ()), strict=False) if rows else ():
            rows.append([f"paper: {title}", *[NOTHING] * (1 + len(EVALUATIONS)), number(cost, 1)])
        heads = ["seeds", "evaluations of a training", *(f"{limit:,} evaluations" for limit in EVALUATIONS)]
        result[name] = Table(["search", *heads], rows)
    return result


def _mean_and_range(costs: Sequence[float]) -> str:
    mean = number(sum(costs) / len(costs), 1)
    return mean if min(costs) == max(costs) else f"{mean} ({number(min(costs), 1)} to {number(max(costs), 1)})"
