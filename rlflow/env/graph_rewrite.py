"""The rewriting environment: one ONNX model, rewritten by proved rules (RLFlow, section 3.1).

    import gymnasium, rlflow
    env = gymnasium.make("rlflow/GraphRewrite-v0", model="tiny_resnet18", max_steps=30)

`GraphRewriteEnv` is the Gymnasium environment. `rlflow/GraphRewriteFlat-v0` is the same environment with one number as
the action and one exact mask, for agents of other libraries (rlflow/env/flat.py). `EnvSpec` holds the plain values from
which any process or machine makes the same environment. `make_vector_env` makes a vector environment of several copies,
each in its own process.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import onnx
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlflow.common.errors import RLFlowError, nearest
from rlflow.common.messages import say_once
from rlflow.common.options import check_group, options_of, plain_number, plain_shapes
from rlflow.common.system import usable_cores
from rlflow.common.task import Reward, State
from rlflow.costs import COSTS, CostOptions
from rlflow.costs.database import TimingDatabase
from rlflow.costs.measurements import Latencies
from rlflow.costs.probe import Probe
from rlflow.env import EnvOptions
from rlflow.env.batched import BatchedState, start_of
from rlflow.env.flat import FlatActions
from rlflow.env.rewards import REWARDS, MeasuredReward, make_reward
from rlflow.env.state import Task
from rlflow.env.step import StepEnv
from rlflow.graph import custom_ops
from rlflow.graph.feeds import Feeds, tried_feeds
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.trial import check_runs
from rlflow.graph.typical import input_shapes, load_at
from rlflow.rules.exactness import only_exact
from rlflow.rules.language import chosen, load_rules, only_standard
from rlflow.rules.locations import prepared
from rlflow.zoo import ZOO, zoo_or_path


class GraphRewriteEnv(StepEnv):
    """An environment whose actions rewrite a computation graph (RLFlow, section 3.1).

    See `StepEnv` for the spaces. An action is (xfer_id, location). rlflow/env/observation.py describes the arrays of an
    observation, and rlflow/env/rewards.py describes the rewards. `info` contains `cost` (estimated runtime in ms),
    `flops`, `bytes`, `launches`, `valid`, `rule` (name of the rule that the last action applied, or ""), and the
    entries of the reward. With `env.moves=batched`, an action is (xfer_id, index of a move), and `info["actions"]`
    lists the single rewrites of the last move (rlflow/env/batched.py).
    """

    def start(self) -> State:
        return start_of(self.task)

    def render(self) -> str | None:
        if self.render_mode != "ansi":
            return None
        runtime, initial = self.state.runtime_ms, self.task.initial.runtime_ms
        better = 100 * (1 - runtime / initial) if initial else 0.0  # a graph of views alone costs 0
        lines = [f"step {self._steps}: {runtime:.4f} ms estimated, {better:.2f} % better"]
        lines += [f"  {self.task.rules[x].name}: {n}" for x, n in enumerate(self.state.counts) if n]
        return "\n".join(lines)

    def _task_info(self, taken: int | None) -> dict[str, Any]:
        cost, rule = self.state.cost, self.task.rules[taken].name if taken is not None else ""
        figures = {"flops": cost.flops, "bytes": cost.bytes, "launches": cost.launches, "rule": rule}
        if isinstance(self.state, BatchedState):
            figures["actions"] = self.state.actions if taken is not None else ()
        return figures


@dataclass(frozen=True)
class EnvSpec(EnvOptions):
    """A specification of the real environment in plain values: a model and the options of `env` and `cost`.

    Attributes:
      model: path of the ONNX file, or a zoo name.
      shapes: (name of a symbolic dimension, size or sizes) pairs, the typical sizes (see `typical_sizes`).
      fix: True to replace the symbolic dimensions by these sizes in the model (see `load_at`).
      cost: name of the cost model in `rlflow.costs.COSTS`.
      threads: threads of ONNX Runtime; None becomes the number of cores that this process may use.
      database: path of the timing database; None for the default path.
      inputs: files and folders of inputs that the user gave (`rlflow.graph.given_inputs`).
      custom_ops: libraries of custom operators that the model uses, for all sessions of the process (`custom_ops`).
    """

    model: str
    shapes: tuple = ()
    fix: bool = field(default=False, kw_only=True)
    cost: str = field(default=CostOptions.name, kw_only=True)
    threads: int | None = field(default=CostOptions.threads, kw_only=True)
    database: str | None = field(default=CostOptions.database, kw_only=True)
    inputs: tuple = field(default=(), kw_only=True)
    custom_ops: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_group("env", EnvOptions, vars(self))
        check_group("cost", CostOptions, {"name": self.cost, "threads": self.threads, "database": self.database})
        REWARDS.check(self.reward)
        COSTS.check(self.cost)
        if self.widen and self.exact:
            raise RLFlowError("exact=true keeps every bit of the outputs, and widen=true does not. Choose one of them")
        if not isinstance(self.fix, bool):
            raise RLFlowError(f"'fix' is a bool, not {self.fix!r}")
        for name, declared in options_of(EnvOptions).items():
            if declared.many:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "custom_ops", tuple(map(os.fspath, self.custom_ops)))
        if self.threads is None:
            # The number is set here, so that a process with another number of cores uses the same number of threads.
            object.__setattr__(self, "threads", usable_cores())

    @classmethod
    def of_keywords(cls, model: str | os.PathLike, shapes: Mapping | None, options: Mapping[str, object]) -> Self:
        """Return the specification for the keyword arguments of `gymnasium.make` or `rlflow.load_task`.

        Args:
          model: path of the ONNX file, or a zoo name.
          shapes: name of a symbolic dimension → typical size or sizes.
          options: name of a further field → its value, which may be a number of NumPy or a path.

        Raises:
          RLFlowError: an option is unknown, or a value is not allowed; the messages are those of the command line.
        """
        if not isinstance(model, str | os.PathLike):
            raise RLFlowError(f"a model is a path or a zoo name, not a {type(model).__name__}")
        known = [one.name for one in fields(cls) if one.name not in ("model", "shapes")]
        plain = {}
        for name, value in options.items():
            if name not in known:
                raise RLFlowError(f"unknown option '{name}'{nearest(name, known, cutoff=0.4)}")
            plain[name] = os.fspath(value) if isinstance(value, os.PathLike) else plain_number(value)
        return cls(os.fspath(model), tuple(plain_shapes(shapes).items()), **plain)

    def make_task(self) -> Task:
        return self.open(zoo_or_path(self.model))

    def open(self, source: Path | str | onnx.ModelProto, bodies: bool = True) -> Task:
        """Return the task of a model with the options of this object.

        Args:
          source: a path or a ModelProto, see `load_at`.
          bodies: True to rewrite inside bodies of If, Loop and Scan and inside the model's functions. They always stay
            unchanged under a cost of the whole graph (`memory`), which does not know when a body runs.
        """
        custom_ops.load(self.custom_ops)
        cost = COSTS.get(self.cost).open(self.threads, Path(self.database) if self.database else None)
        rules = load_rules(list(self.rules))
        rules = only_exact(rules) if self.exact else rules
        rules = only_standard(rules) if self.standard_operators_only else rules
        rules = chosen(rules, self.only_rules, self.skip_rules)
        bodies = bodies and not hasattr(cost, "whole")
        loaded, sizes = load_at(source, dict(self.shapes), self.fix, bodies, self.keep)
        if loaded.interface.inlined:
            say_once(f"the model's functions are inlined: {', '.join(loaded.interface.inlined)}")
        widened = None
        if self.widen:
            fixed = dict(self.shapes) if self.fix else {}
            widened = load_graph(source, fixed, bodies, self.keep, widen=True)
        graph, preparation = prepared(widened or loaded, rules)
        return Task(
            graph, rules, cost, self.max_locations, sizes, preparation, None if graph is loaded else loaded, self.moves,
            widened,
        )  # fmt: skip

    def checked_task(self) -> Task:
        """Load the model, run it once in ONNX Runtime, and return the task. Raise RLFlowError if that fails."""
        task = self.make_task()
        self.try_out(task)
        return task

    def try_out(self, task: Task, source: onnx.ModelProto | None = None) -> None:
        """Run the model of a task once in ONNX Runtime, with and without optimisations.

        Args:
          task: the task.
          source: the model, if the task was opened from a model in memory.

        Raises:
          RLFlowError: ONNX Runtime does not run the model.
        """
        if source is None:
            source, feeds = zoo_or_path(self.model), self.feeds
        else:
            feeds = tried_feeds(source, self.inputs, dict(self.shapes), self.threads)
        shapes = input_shapes(task.original.interface, task.sizes[0])
        [arrays] = feeds.at({"": shapes}, 0).values()
        check_runs(source, arrays, self.threads)

    @cached_property
    def feeds(self) -> Feeds:
        """The inputs on which the model is run; the first use runs the model once (`tried_feeds`)."""
        source = zoo_or_path(self.model)
        return tried_feeds(source, self.inputs, dict(self.shapes), self.threads)

    @property
    def measures(self) -> bool:
        """True if the reward comes from measured latencies (`env.reward=measured`)."""
        return REWARDS.get(self.reward) is MeasuredReward

    def make_reward(self) -> Reward:
        if not self.measures:
            return make_reward(self.reward, self.alpha, self.beta)
        return MeasuredReward(self._latencies, self.measure_every, self.unmeasured_reward)

    @cached_property
    def _latencies(self) -> Latencies:
        """The measured latencies, which all rewards that this object makes share, with one measuring process."""
        probe = Probe(self.threads, self.measure_seconds, self.measure_limit, self.feeds)
        return Latencies(TimingDatabase(self.database), self.threads, probe)

    def absolute(self) -> "EnvSpec":
        """Return a copy with absolute paths of all files, for a process with another working directory."""
        model = self.model if self.model in ZOO else os.path.abspath(self.model)
        database = self.database and os.path.abspath(self.database)
        inputs, libraries = (tuple(map(os.path.abspath, paths)) for paths in (self.inputs, self.custom_ops))
        return replace(self, model=model, database=database, inputs=inputs, custom_ops=libraries)


def make_env(spec: EnvSpec, render_mode: str | None = None) -> GraphRewriteEnv:
    """Make the environment of a specification.

    Args:
      spec: the model and the options.
      render_mode: "ansi" or None.
    """
    return GraphRewriteEnv(spec.make_task(), spec.make_reward(), spec.max_steps, render_mode=render_mode)


def make_vector_env(spec: EnvSpec, n: int, processes: bool = True) -> VectorEnv:
    """Make a vector environment of n copies of the environment, each in its own process.

    All copies run in this process if n is 1, if `processes` is False, or if the reward is measured, because only one
    process of a machine may measure at a time.

    A copy whose episode ends is reset in the same step (`AutoresetMode.SAME_STEP`, as in dreams). The last observation
    of the episode is in `infos["final_obs"]`, and `step` returns the first observation of the next episode. Masks are
    part of the batched observation: `xfer_mask` int8 [n, N + 1], `location_masks` int8 [n, N + 1, L].

    The processes are spawned, so a script that calls this function needs `if __name__ == "__main__":`.

    Args:
      spec: the specification of the environment.
      n: number of copies.
      processes: False to run all copies in this process.
    """
    makers = [partial(make_env, spec)] * n
    if n == 1 or not processes or spec.measures:
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    # A forked process would inherit the locks of ONNX Runtime's threads without the threads.
    return AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)


def make_by_name(
    model: str | os.PathLike, shapes: Mapping | None = None, render_mode: str | None = None, **options
) -> GraphRewriteEnv:
    """Make the environment from the keyword arguments of `gymnasium.make`.

    Args:
      model: path of the ONNX file, or a zoo name.
      shapes: name of a symbolic dimension → typical size or sizes.
      render_mode: "ansi" or None.
      **options: further fields of `EnvSpec`, such as rules=["fusion"].

    Raises:
      RLFlowError: an option is unknown, or a value is not allowed.
    """
    return make_env(EnvSpec.of_keywords(model, shapes, options), render_mode)


def make_flat_by_name(
    model: str | os.PathLike, shapes: Mapping | None = None, render_mode: str | None = None, **options
) -> FlatActions:
    """Make the environment with one flat action (`FlatActions`) from the keyword arguments of `gymnasium.make`.

    The function takes the arguments of `make_by_name`.
    """
    return FlatActions(make_by_name(model, shapes, render_mode, **options))
