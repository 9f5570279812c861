"""What a process needs to make the real environment: plain values, which can be sent to another process or machine."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from rlflow.costs import COSTS
from rlflow.env.rewards import make_reward
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.exactness import only_exact
from rlflow.rules.language import load_rules, only_standard
from rlflow.tasks.base import Reward
from rlflow.zoo import ZOO, load


@dataclass(frozen=True)
class EnvSpec:
    """Everything a process needs to make the real environment; plain values only.

    Attributes:
      model: path of the ONNX file, or a zoo name.  shapes: sizes for symbolic dimensions (see `load_graph`).
      rules: families, empty for all.  exact: only the rules of these that change no rounding.
      standard_operators_only: only those that introduce no operator of another domain than ONNX's.
      cost, threads, database: see rlflow.costs.
      reward, alpha, beta: see rlflow.env.rewards.  max_locations, max_steps: of the environment.
    """

    model: str
    shapes: tuple = ()
    rules: tuple[str, ...] = ()
    cost: str = "analytic"
    threads: int = 1
    database: str | None = None
    reward: str = "relative"
    alpha: float = 0.8
    beta: float = 0.2
    max_locations: int = 200
    max_steps: int = 100
    exact: bool = False
    standard_operators_only: bool = False

    def make_task(self) -> Task:
        cost = COSTS.get(self.cost).open(self.threads, Path(self.database) if self.database else None)
        source = load(self.model) if self.model in ZOO else self.model
        rules = load_rules(list(self.rules))
        rules = only_exact(rules) if self.exact else rules
        rules = only_standard(rules) if self.standard_operators_only else rules
        return Task(load_graph(source, dict(self.shapes)), rules, cost, self.max_locations)

    def make_reward(self) -> Reward:
        return make_reward(self.reward, self.alpha, self.beta)

    def absolute(self) -> "EnvSpec":
        """The same with absolute paths, for a process with another working directory."""
        model = self.model if self.model in ZOO else os.path.abspath(self.model)
        return replace(self, model=model, database=self.database and os.path.abspath(self.database))
