"""Gains behind a loss: what searches and learned controllers find in the same number of seconds.

    python -m benchmarks.valleys [--model NAME] [--seconds S] [--seeds N]

Some rewrites pay only after others that cost: a convolution over three axes becomes convolutions of images, whose
transpositions cancel only when its neighbour is rewritten, too. The models are small versions of networks with such
rewrites: a U-Net, a U-Net on volumes, and the decoder of a variational autoencoder. These are the methods:

- the searches of `optimise`, once with single rewrites and once with batched ones (the same rewrite at all equal
  matches);
- *planner*: random episodes train graph-mdn, the planner searches its dream, and the plan and episodes near it are
  played on the real graph;
- *xrlflow*: X-RLflow's agent, which learns on the real graph from estimated costs.

All methods minimise the profiled cost, and all share one database of timings for each model. Every kernel is thus timed
once, and noise cannot decide between methods. The seconds of a method do not include the timing of kernels. The planner
has no time limit; the number of its episodes and training steps is proportional to the seconds, and the second table
states the seconds that it took.

The table *gains* states by how many percent the best graph of each method costs less than the original. The table
*paths* describes the way of the best method. It states the number of steps, the number of steps that raise the cost,
and the depth of the deepest valley: the largest excess over the cheapest graph before, in percent of the original.
"""

import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np
import onnx

from benchmarks.equal_seconds import Actions, cheapest
from benchmarks.irregular import unet
from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import THREADS, number, percent
from benchmarks.world_models import Learning
from controllers.real_env import LimitReached
from rlflow.collect.episodes import Episode, interactions_of
from rlflow.collect.rollouts import play_random
from rlflow.common.errors import RLFlowError
from rlflow.costs.profiled import ProfiledCost
from rlflow.env import BATCHED, SINGLE
from rlflow.env.batched import start_of
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.optimisation.candidates import follow, improvement, states_along
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from rlflow.zoo.builder import Builder

SEARCHES = ("descent", "grasp", "beam", "annealing")
LEARNED = ("planner", "xrlflow")
METHODS = (*(f"{search}, {moves}" for search in SEARCHES for moves in (SINGLE, BATCHED)), *LEARNED)
# For each second of a method: real steps and gradient steps of the world model, and steps of the planner in the dream.
INTERACTIONS, GRADIENT_STEPS, DREAMT = 5, 5, 50
LEAST_EPISODES = 6  # of full length, from which the world model learns however few the seconds
STEPS = 100  # most steps of an episode that a learned controller plays on the real graph


# -- networks ----------------------------------------------------------------------------------------


def volumes(seed: int, width: int = 16, levels: int = 2, size: int = 32) -> onnx.ModelProto:
    """Return a U-Net on volumes [1, 1, size / 2, size, size] (Çiçek et al. 2016)."""
    b, skips = Builder("volumes", seed), []
    x = b.input("x", [1, 1, size // 2, size, size])

    def twice(x: str, name: str, channels: int) -> str:
        for part in ("first", "second"):
            weight = b.weights.scaled([channels, b.channels[x], 3, 3, 3], fan_in=27 * b.channels[x])
            named = b.parameter(f"{name}.{part}", weight), b.parameter(f"{name}.{part}.bias", b.weights.bias(channels))
            x = b.op("Conv", x, *named, kernel_shape=[3] * 3, pads=[1] * 6)
            b.channels[x] = channels
            x = b.relu(x)
        return x

    for level in range(levels):
        x = twice(x, f"down{level}", width << level)
        skips.append(x)
        x = b.op("MaxPool", x, kernel_shape=[2] * 3, strides=[2] * 3)
    x = twice(x, "middle", width << levels)
    for level in reversed(range(levels)):
        weight = b.weights.scaled([b.channels[x], width << level, 2, 2, 2], fan_in=b.channels[x], gain=1.0)
        x = b.op("ConvTranspose", x, b.parameter(f"up{level}.weight", weight), kernel_shape=[2] * 3, strides=[2] * 3)
        b.channels[x] = width << level
        x = twice(b.concat(skips[level], x), f"up{level}", width << level)
    b.output(x, "y", [1, width, size // 2, size, size])
    return b.model()


def decoder(seed: int, widths: tuple[int, ...] = (128, 64), size: int = 16, groups: int = 16) -> onnx.ModelProto:
    """Return the decoder of a variational autoencoder, as in latent diffusion (Rombach et al. 2022).

    Args:
        seed: seed of the weights.
        widths: number of channels of each level, the coarsest first.
        size: height and width of the latent image.
        groups: groups of the normalisations, which are written with InstanceNormalization, as exporters do.
    """
    b = Builder("decoder", seed)
    x = b.conv(b.input("x", [1, 4, size, size]), "enter", widths[0], 3, pad=1, bias=True)

    def activated(x: str, name: str, side: int) -> str:
        channels = b.channels[x]
        parts = b.reshape(x, 0, groups, -1)
        ones, zeros = b.constant(np.ones(groups)), b.constant(np.zeros(groups))
        y = b.reshape(b.op("InstanceNormalization", parts, ones, zeros, epsilon=1e-6), 1, channels, side, side)
        y = b.op("Mul", y, b.parameter(f"{name}.scale", b.weights.scale(channels)[:, None, None]))
        y = b.op("Add", y, b.parameter(f"{name}.offset", b.weights.bias(channels)[:, None, None]))
        y = b.op("Mul", y, b.op("Sigmoid", y))
        b.channels[y] = channels
        return y

    for level, channels in enumerate(widths):
        side = size << level
        for block in range(2):
            name = f"level{level}.{block}"
            y = b.conv(activated(x, f"{name}.norm1", side), f"{name}.conv1", channels, 3, pad=1, bias=True)
            y = b.conv(activated(y, f"{name}.norm2", side), f"{name}.conv2", channels, 3, pad=1, bias=True)
            if b.channels[x] != channels:
                x = b.conv(x, f"{name}.skip", channels, 1, bias=True)
            x = b.op("Add", x, y)
            b.channels[x] = channels
        if level < len(widths) - 1:
            x = b.op("Resize", x, "", b.constant([1, 1, 2, 2]), mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric")  # fmt: skip
            b.channels[x] = channels
            x = b.conv(x, f"grow{level}", channels, 3, pad=1, bias=True)
    x = b.conv(activated(x, "leave.norm", side), "leave", 3, 3, pad=1, bias=True)
    b.output(x, "y", [1, 3, side, side])
    return b.model()


NETWORKS = {"U-Net": partial(unet, width=64, depth=3), "3-D U-Net": volumes, "VAE decoder": decoder}


# -- one method --------------------------------------------------------------------------------------


class Cell:
    """One method on one model, with a clock that stands still while kernels are timed.

    Attributes:
        task: the rewriting task.
        seed: seed of the method.
        seconds: time limit of the method.
        folder: folder of all files of the method.
    """

    def __init__(self, model: str, seed: int, seconds: float, database: str, folder: Path):
        self.seed, self.seconds, self.folder = seed, seconds, folder
        file = folder / "model.onnx"
        onnx.save(NETWORKS[model](0), file)
        self.spec = EnvSpec(str(file), cost="profiled", threads=THREADS, database=database)
        self.task: Task = self.spec.make_task()
        _ = self.task.initial.objective  # times the kernels of the original
        self.start_clock()

    @property
    def timing_seconds(self) -> float:
        assert isinstance(self.task.cost, ProfiledCost)
        return self.task.cost.timing_seconds

    def start_clock(self) -> None:
        """Set the clock to 0."""
        self._started, self._timed = time.monotonic(), self.timing_seconds

    def clock(self) -> float:
        """Return the seconds since `start_clock`, without the seconds in which kernels were timed."""
        return time.monotonic() - self._started - (self.timing_seconds - self._timed)

    def search(self, method: str, moves: str) -> Actions:
        options = load_config((), [f"search.moves={moves}"]).search
        limits = Limits(self.seconds, memory=options.memory_mb * 2**20)
        start = start_of(self.task, moves)
        return run_search(method, start, limits, self.seed, clock=self.clock, **options[method]).actions

    def planner(self) -> Actions:
        from worldmodel.train_and_load import prepare_tensorflow

        prepare_tensorflow(self.seed)
        self.start_clock()  # importing TensorFlow does not count
        names = {
            "controller.name": "planner", "controller.planner.steps": int(DREAMT * self.seconds),
            "controller.max_steps": STEPS,
            "world_model.graph-mdn.match_steps": int(GRADIENT_STEPS * self.seconds / 4),
            "world_model.graph-mdn.node_steps": int(GRADIENT_STEPS * self.seconds / 2),
            "cost.name": "profiled", "cost.database": self.spec.database,
        }  # fmt: skip
        interactions = max(int(INTERACTIONS * self.seconds), LEAST_EPISODES * self.spec.max_steps)
        options = [f"{name}={value}" for name, value in names.items()]
        learning = Learning(self.spec.model, "graph-mdn", self.seed, self.folder, interactions, *options)
        learning.__dict__["task"] = self.task  # the cached properties, so that the clock sees all timings
        learning.__dict__["training"] = self._random(interactions, learning.config.collect.by_rule)
        learning.learn(1, learning.training)
        world_model = learning.model()
        agent = learning.agent(world_model)
        learning.train(agent, world_model, "controller")
        reached = [cheapest(self.task, episode.actions) for episode in learning.played(agent)]
        return min(reached, key=lambda actions: follow(self.task, actions).objective)

    def _random(self, interactions: int, by_rule: float) -> list[Episode]:
        """Play random episodes of at most `interactions` steps together."""
        reward, steps, result = self.spec.make_reward(), self.spec.max_steps, []
        while interactions_of(result) + steps <= interactions:
            k = len(result)
            result.append(play_random(self.task, reward, steps, np.random.default_rng([self.seed, k]), k, by_rule))
        return result

    def xrlflow(self) -> Actions:
        from controllers.controller_options import XRLflowConfig
        from controllers.real_env import train_for_real
        from controllers.xrlflow.agent import XRLflow
        from rlflow.env.candidates import CandidateEnv
        from worldmodel.train_and_load import prepare_tensorflow

        prepare_tensorflow(self.seed)
        config, found = XRLflowConfig(updates=sys.maxsize), [[]]
        self.start_clock()  # importing TensorFlow does not count

        def make() -> CandidateEnv:
            env = GraphRewriteEnv(self.task, self.spec.make_reward(), STEPS, with_graph=False)
            return CandidateEnv(TimedEnv(env, self, found), config.layers, config.gains)

        try:
            train_for_real(XRLflow(config, self.seed), make, sys.maxsize, self.seed, self.folder / "agent")
        except RLFlowError:
            if self.clock() <= self.seconds:
                raise  # else the seconds ended before the first checkpoint, and the graphs so far count
        return found[-1]


class TimedEnv(gymnasium.Wrapper):
    """A wrapper of the real environment that raises LimitReached after the seconds of a cell.

    Args:
        env: the environment.
        cell: the cell.
        found: receives the actions of each state that is cheaper than all before.
    """

    def __init__(self, env: gymnasium.Env, cell: Cell, found: list[Actions]):
        super().__init__(env)
        self._cell, self._found, self._actions, self._least = cell, found, [], cell.task.initial.objective

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        if self._cell.clock() > self._cell.seconds:
            raise LimitReached(f"{self._cell.seconds:g} seconds", "--seconds")
        before = self.env.unwrapped.state
        result = self.env.step(action)
        state = self.env.unwrapped.state
        if state is not before:
            self._actions.append((int(action[0]), int(action[1])))
        if state.objective < self._least:
            self._least = state.objective
            self._found.append(list(self._actions))
        return result


def measure(model: str, method: str, seed: int, seconds: float, database: str) -> dict:
    """Run a method on a model.

    Args:
        model: a key of NETWORKS.
        method: a name of METHODS.
        seed: seed of the method.
        seconds: time limit of the method.
        database: file of the timings, which all methods on the model share.

    Returns:
        "gain": reduction of the estimated cost in percent. "seconds": duration without the timing of kernels.
            "path": result of `valley_of` for the best graph.
    """
    with TemporaryDirectory() as folder:
        cell = Cell(model, seed, seconds, database, Path(folder))
        if method in LEARNED:
            actions = getattr(cell, method)()
        else:
            search, moves = method.split(", ")
            actions = cell.search(search, moves)
        spent = cell.clock()
        objectives = [state.objective for state in states_along(cell.task, actions)]
    gain = improvement(objectives[0], objectives[-1])
    return {"gain": gain, "seconds": spent, "path": valley_of(objectives)}


def valley_of(objectives: list[int]) -> dict:
    """Return the number of steps of a path, the number of steps that raise the cost, and the depth of its valleys.

    Args:
        objectives: the costs of the original and of the graph after each step.

    Returns:
        "steps"; "losses"; "depth": the largest excess of a cost over the lowest cost before, in percent of the first
            cost.
    """
    costs = np.asarray(objectives, float)
    excess = costs - np.minimum.accumulate(costs)
    depth = 100 * float(excess.max()) / costs[0]
    return {"steps": len(costs) - 1, "losses": int((np.diff(costs) > 0).sum()), "depth": depth}


# -- tables ------------------------------------------------------------------------------------------


def tables(figures: dict[str, dict[str, list[dict]]]) -> dict[str, Table]:
    """Return the tables "gains", "seconds" and "paths" (see the module docstring).

    Args:
        figures: model → method → one result of `measure` for each seed.
    """
    models = list(figures)
    gains, seconds, paths = [], [], []
    for method in METHODS:
        runs = [figures[model].get(method, []) for model in models]
        gains.append([method, *(percent([run["gain"] for run in of]) for of in runs)])
        means = [float(np.mean([run["seconds"] for run in of])) if of else None for of in runs]
        seconds.append([method, *(number(mean, 0) for mean in means)])
    for model, methods in figures.items():
        name, best = max(((name, run) for name, of in methods.items() for run in of), key=lambda one: one[1]["gain"])
        path = best["path"]
        paths.append([model, name, percent(best["gain"]), path["steps"], path["losses"], percent(path["depth"])])
    return {
        "gains": Table(["method", *models], gains),
        "seconds": Table(["method", *(f"{model}, s" for model in models)], seconds),
        "paths": Table(["model", "best method", "gain", "steps", "losses", "deepest valley"], paths, text_columns=2),
    }


def main() -> int:
    arguments = parser(__doc__, seeds=1)
    arguments.add_argument("--model", action="append", choices=NETWORKS, help="one model only; repeatable")
    arguments.add_argument("--method", action="append", choices=METHODS, help="one method only; repeatable")
    arguments.add_argument("--seconds", type=float, default=120.0, help="of each method (default 120)")
    parsed = arguments.parse_args()
    record, models, methods = Record("valleys", parsed), parsed.model or NETWORKS, parsed.method or METHODS
    calls = {}
    for model in models:
        database = str(record.folder / f"{model}.sqlite")
        for seed in range(parsed.seeds):
            for method in methods:
                calls[f"{model}-{method}-{seed}"] = (measure, model, method, seed, parsed.seconds, database)
    figures: dict[str, dict[str, list[dict]]] = {}
    for key, result in record.all_parts(calls).items():
        _, model, method, *_ = calls[key]
        figures.setdefault(model, {}).setdefault(method, []).append(result)
    record.publish(tables(figures), f"{parsed.seconds:g} s for each method, without the timing of kernels.")
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
