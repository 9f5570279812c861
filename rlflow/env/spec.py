"""What a process needs to make the real environment: plain values, which can be sent to another process or machine."""

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import onnx

from rlflow.common.system import usable_cores
from rlflow.costs import COSTS
from rlflow.costs.database import TimingDatabase
from rlflow.costs.latencies import Latencies
from rlflow.costs.options import CostOptions
from rlflow.costs.probe import Probe
from rlflow.env.measured_reward import MeasuredReward
from rlflow.env.options import EnvOptions
from rlflow.env.rewards import REWARDS, make_reward
from rlflow.env.state import Task
from rlflow.graph.typical import load_at
from rlflow.rules.exactness import only_exact
from rlflow.rules.language import load_rules, only_standard
from rlflow.rules.locations import prepared
from rlflow.tasks.base import Reward
from rlflow.zoo import ZOO, load


@dataclass(frozen=True)
class EnvSpec(EnvOptions):
    """Everything a process needs to make the real environment; plain values only. Its options are those of `env` and
    `cost`.

    Attributes:
      model: path of the ONNX file, or a zoo name.
      shapes: (name, size or sizes) pairs: the typical sizes of symbolic dimensions (see `typical_sizes`).
      fix: whether these sizes are frozen (see `load_at`).
      cost, threads, database: see rlflow.costs.
    """

    model: str
    shapes: tuple = ()
    fix: bool = field(default=False, kw_only=True)
    cost: str = field(default=CostOptions.name, kw_only=True)
    threads: int | None = field(default=CostOptions.threads, kw_only=True)
    database: str | None = field(default=CostOptions.database, kw_only=True)

    def __post_init__(self) -> None:
        if self.threads is None:
            object.__setattr__(self, "threads", usable_cores())  # of this process; another takes as many

    def make_task(self) -> Task:
        return self.open(load(self.model) if self.model in ZOO else self.model)

    def open(self, source: Path | str | onnx.ModelProto) -> Task:
        """The task of another model (see `load_at`) with the same options."""
        cost = COSTS.get(self.cost).open(self.threads, Path(self.database) if self.database else None)
        rules = load_rules(list(self.rules))
        rules = only_exact(rules) if self.exact else rules
        rules = only_standard(rules) if self.standard_operators_only else rules
        loaded, sizes = load_at(source, dict(self.shapes), self.fix)
        graph, preparation = prepared(loaded, rules)
        return Task(
            graph, rules, cost, self.max_locations, sizes, preparation, loaded if preparation else None, self.moves
        )

    @property
    def measures(self) -> bool:
        """Whether steps are rewarded by measurements."""
        return REWARDS.get(self.reward) is MeasuredReward

    def make_reward(self) -> Reward:
        if not self.measures:
            return make_reward(self.reward, self.alpha, self.beta)
        return MeasuredReward(self._latencies, self.measure_every, self.unmeasured_reward)

    @cached_property
    def _latencies(self) -> Latencies:
        """All rewards of this object measure in one process, and what one has measured the others know."""
        probe = Probe(self.threads, self.measure_seconds, self.measure_limit)
        return Latencies(TimingDatabase(self.database), self.threads, probe)

    def absolute(self) -> "EnvSpec":
        """The same with absolute paths, for a process with another working directory."""
        model = self.model if self.model in ZOO else os.path.abspath(self.model)
        return replace(self, model=model, database=self.database and os.path.abspath(self.database))
