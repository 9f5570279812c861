"""Small rewriting systems, and the comparison of a model's predictions with real episodes."""

from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rlflow.collect.episodes import Episode
from rlflow.collect.rollouts import play_random, record
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import make_reward
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, parse
from worldmodel.edits.model import EditsWorldModel
from worldmodel.edits.training import fit
from worldmodel.world_model_options import EditsConfig

REWARD = make_reward("relative", 0, 0)


def rule_set(text: str) -> RuleSet:
    return RuleSet(tuple(parse(text, "toy")), "toy")


def onnx_model(
    lines: str, inputs: dict[str, tuple], outputs: str, weights: dict[str, tuple] | None = None, **attributes
) -> onnx.ModelProto:
    """Return the ONNX model of `lines` such as "y = Conv(x, w)", one operator each.

    weights: names and shapes of constants.  attributes: by the operator's first output.
    """
    nodes = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        made, _, call = line.partition(" = ")
        op, _, read = call.removesuffix(")").partition("(")
        made = made.split(", ")
        nodes.append(helper.make_node(op, read.split(", "), made, **attributes.get(made[0], {})))
    constants = [
        numpy_helper.from_array((np.arange(np.prod(shape)) % 7 - 3).reshape(shape).astype(np.float32), name)
        for name, shape in (weights or {}).items()
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "toy", values, results, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def task_of(model: onnx.ModelProto, rules: RuleSet | str, max_locations: int = 200) -> Task:
    return Task(load_graph(model), rule_set(rules) if isinstance(rules, str) else rules, AnalyticCost(), max_locations)


def random_episodes(task: Task, n: int, max_steps: int, seed: int = 0) -> list[Episode]:
    return [play_random(task, REWARD, max_steps, np.random.default_rng([seed, k]), k) for k in range(n)]


def played(task: Task, actions: list[tuple[int, int]]) -> Episode:
    """Return the episode of these actions, with NO-OP as its last action."""
    states = [task.initial]
    for action in actions:
        states.append(states[-1].apply(*action))
    return record(task, REWARD, [*states, states[-1]], [*actions, (task.no_op, 0)])


def fitted(episodes: list[Episode], task: Task, latent: int = 8) -> EditsWorldModel:
    return fit(EditsConfig(latent=latent), task.encoding_spec, episodes)


def real_env(task: Task, max_steps: int) -> GraphRewriteEnv:
    return GraphRewriteEnv(task, REWARD, max_steps)


class Said(NamedTuple):
    """The predictions and real values of all steps of all replays within an episode: float64 or bool [k], counts int
    [k, N]."""

    rewards: np.ndarray
    real_rewards: np.ndarray
    counts: np.ndarray
    real_counts: np.ndarray
    terminated: np.ndarray
    real_terminated: np.ndarray
    uncertainty: np.ndarray

    @property
    def reward_error(self) -> float:
        return np.abs(self.rewards - self.real_rewards).max()

    @property
    def exact(self) -> float:
        """Return the share of steps for which all counts are right."""
        return (self.counts == self.real_counts).all(axis=1).mean()


def said(model, episodes: list[Episode], horizon: int = 10**9) -> Said:
    """Return the open-loop predictions from every step of every episode."""
    lengths = [len(episode) for episode in episodes]
    rows, starts = np.repeat(np.arange(len(episodes)), lengths), np.concatenate([np.arange(n) for n in lengths])
    horizon = min(horizon, max(lengths))
    replay = model.replay(episodes, rows, starts, horizon)
    at, real = [], []
    for s, (row, start) in enumerate(zip(rows, starts, strict=True)):
        for t in range(min(horizon, lengths[row] - start)):
            episode, step = episodes[row], start + t
            at.append((s, t))
            real.append((episode.rewards[step], episode.counts[step + 1], episode.terminated[step]))
    s, t = np.array(at).T
    rewards, counts, ends = (np.array(values) for values in zip(*real, strict=True))
    return Said(
        rewards=replay.rewards[s, t],
        real_rewards=rewards,
        counts=replay.counts[s, t],
        real_counts=counts,
        terminated=replay.terminated[s, t],
        real_terminated=ends,
        uncertainty=replay.uncertainty[s, t],
    )


SIGNS_AND_PRODUCTS = """
apart: two products instead of one
  Mul(x, Add(y, z)) => Add(Mul(x, y), Mul(x, z))

common-factor: one product instead of two
  Add(Mul(x, y), Mul(x, z)) => Mul(x, Add(y, z))

neg-neg: signs cancel
  Neg(Neg(x)) => x
"""


def signs_and_products() -> onnx.ModelProto:
    return onnx_model(
        """
        a = Mul(x, y)
        b = Mul(x, z)
        c = Add(a, b)
        d = Neg(c)
        e = Neg(d)
        f = Mul(e, y)
        g = Mul(e, z)
        h = Add(f, g)
        k = Neg(h)
        o = Neg(k)
        """, {name: (4, 8) for name in "xyz"}, "o",
    )  # fmt: skip
