"""Comparison of the fastest files that methods find if all may measure whole graphs for the same number of seconds.

    python -m benchmarks.equal_seconds [--model NAME] [--measure-seconds S]

Each method has the same number of seconds for measurements in ONNX Runtime, including the creation of sessions:

- *estimate*: searches minimise the profiled cost, and their candidates compete in a contest, as in `optimise`.
- *annealing*: simulated annealing from the original on the measured latency.
- *xrlflow*: X-RLflow's agent with measured rewards, as in its paper. One layer scores all successor graphs together.
  A step that is not measured has the reward 0.1.
- *xrlflow-local*: X-RLflow's agent whose head scores each successor graph alone and observes its estimated gain. A step
  that is not measured has the reward 0.
- *untrained*: the agent of xrlflow-local with a learning rate of almost 0, so that only its policy prior acts.
- *dream*: PPO learns in the dream of graph-mdn, and the best graphs of its real episodes compete in a contest.

All methods except *estimate* and *dream* keep a fifth of their seconds for a contest of the eight fastest graphs that
they measured. Time for searching, learning and the timing of single kernels is not limited; the second table states the
total seconds, in which a kernel counts for the first method alone that asks for it. Finally the file of *estimate* is
measured against the original, and the file of each other method is measured against the file of *estimate*.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import THREADS, number, ratio
from benchmarks.world_models import Learning
from controllers.real_env import ChargedEnv, Measurements, train_for_real
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.costs.measured import measure
from rlflow.costs.probe import Latency, LostMeasurement, Probe
from rlflow.env import EnvOptions
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.graph.feeds import Feeds
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation.anytime import BEST_SO_FAR_FILE, BestSoFar, search_all
from rlflow.optimisation.candidates import Candidate, follow, states_along
from rlflow.optimisation.contest import Contender, compete, contenders, different
from rlflow.reports.run_comparison import mean_interval
from rlflow.runs.config import load_config

MODELS = ("vit_base", "light_densenet121", "shufflenet_v2")
METHODS = ("estimate", "annealing", "xrlflow", "xrlflow-local", "untrained", "dream")
AGENTS = {  # method → (reward of a step that is not measured, options of the agent)
    "xrlflow": (0.1, {"head": "flattened"}),
    "xrlflow-local": (0.0, {"head": "each", "gains": True}),
    "untrained": (0.0, {"head": "each", "gains": True, "learning_rate": 1e-12}),
}
LAST_SHARE, FINALISTS = 0.2, 8  # share of the measurement seconds for the final contest; graphs in this contest
HOT, COLD, REWRITES = 0.02, 0.001, 4  # annealing: first and last temperature of log latency; most rewrites per proposal
# Episodes between two updates of an agent; most steps of an episode; interactions from which the world model learns.
EPISODES, STEPS, INTERACTIONS = 10, 100, 2000
STATIC = {"": {}}  # name of a typical size → sizes of the symbols; these models have no symbols
MOST_STEPS = 100_000  # of an agent or of annealing, whose steps to measured graphs take no seconds
Actions = list[tuple[int, int]]  # (xfer_id, location) pairs, in order from the initial state


@dataclass
class Bench:
    """The methods of this benchmark for one model and one seed.

    Attributes:
        model: name of a model of the zoo.
        seed: seed of searches, agents and inputs.
        folder: folder of the timing database and of all files.
        measure_seconds: seconds that each method may spend on measuring whole graphs.
        search_seconds: time limit of the searches of *estimate* in seconds.
    """

    model: str
    seed: int
    folder: Path
    measure_seconds: float
    search_seconds: float

    @cached_property
    def spec(self) -> EnvSpec:
        return EnvSpec(self.model, cost="profiled", threads=THREADS, database=str(self.folder / "costs.sqlite"))

    @cached_property
    def task(self) -> Task:
        return self.spec.make_task()

    @cached_property
    def original(self) -> Path:
        save_graph(self.task.graph, self.folder / "original.onnx")
        return self.folder / "original.onnx"

    def fastest(self, reached: Sequence[Actions], seconds: float) -> Actions:
        """Measure the graphs that action sequences lead to, and return the actions of the fastest graph.

        Args:
            reached: action sequences from the initial state. Repeated graphs and the original are left out.
            seconds: duration of the contest.

        Returns:
            The actions of the winner; [] if no graph is left.
        """
        candidates = [Candidate("", follow(self.task, actions), actions, len(actions), 0.0) for actions in reached]
        finalists = [Contender(one) for one in different(candidates) if one.actions]
        return self.winner(finalists, seconds)

    def winner(self, finalists: Sequence[Contender], seconds: float) -> Actions:
        if not finalists:
            return []
        end = time.monotonic() + seconds
        contest = compete(self.original, finalists, STATIC, THREADS, self.seed, end, Feeds.of(self.original))
        return list(contest.ranked[0].actions)

    def fastest_measured(self, measured: list[tuple[float, Actions]]) -> Actions:
        """Let the FINALISTS fastest measured graphs compete, and return the actions of the winner.

        Args:
            measured: (latency relative to the original, actions) of each measured graph.
        """
        best = {}  # hash of a graph → the actions that first led to it
        for _, actions in sorted(measured, key=lambda one: one[0]):
            best.setdefault(follow(self.task, actions).hash, actions)
            if len(best) == FINALISTS:
                break
        return self.fastest(list(best.values()), self.measure_seconds * LAST_SHARE)

    # -- methods: each returns (actions of its result, number of graphs that it measured one by one) ---

    def estimate(self) -> tuple[Actions, int]:
        best = BestSoFar(self.task, self.folder / BEST_SO_FAR_FILE)
        search_all(best, load_config().search, self.search_seconds, self.seed)
        ends = sorted(different(best.candidates()), key=lambda one: one.state.objective)
        return self.winner(contenders(self.task, ends, ends, {}), self.measure_seconds), 0

    def annealing(self) -> tuple[Actions, int]:
        rng, limit = np.random.default_rng([self.seed, 1]), self.measure_seconds * (1 - LAST_SHARE)
        probe, spent = Probe(THREADS, EnvOptions.measure_seconds, EnvOptions.measure_limit), 0.0
        state, actions, latency, steps = self.task.initial, [], 1.0, 0
        found, measured = {self.task.graph.hash: 1.0}, []  # found: hash of a graph → its latency
        while spent < limit and steps < MOST_STEPS:
            after, more = proposed(state, rng)
            if not more:  # a graph without rewrites
                state, actions, latency = self.task.initial, [], 1.0
            if after.hash not in found:
                of_graph = self.latency(probe, after.graph)
                found[after.hash], spent = of_graph.ratio, spent + of_graph.seconds
                if math.isfinite(of_graph.ratio):
                    measured.append((of_graph.ratio, actions + more))
            temperature, ratio, steps = HOT * (COLD / HOT) ** min(1, spent / limit), found[after.hash], steps + 1
            if ratio > 0 and math.log(ratio / latency) < -temperature * math.log(1 - rng.random()):
                state, actions, latency = after, actions + more, ratio
        return self.fastest_measured(measured), len(found) - 1

    def latency(self, probe: Probe, graph) -> Latency:
        started = time.monotonic()
        try:
            return probe(self.task.graph, graph, self.task.sizes)
        except LostMeasurement:
            return Latency.lost_after(time.monotonic() - started)

    def agent(self, name: str) -> tuple[Actions, int]:
        from controllers.controller_options import XRLflowConfig
        from controllers.xrlflow.agent import XRLflow
        from worldmodel.train_and_load import prepare_tensorflow

        prepare_tensorflow(self.seed)
        unmeasured_reward, options = AGENTS[name]
        config, folder = XRLflowConfig(updates=sys.maxsize, episodes=EPISODES, **options), self.folder / name
        spec = replace(self.spec, reward="measured", unmeasured_reward=unmeasured_reward)
        measurements = AllMeasurements(folder / "measurements.json", self.measure_seconds * (1 - LAST_SHARE))

        def make() -> CandidateEnv:
            env = GraphRewriteEnv(spec.make_task(), spec.make_reward(), STEPS, with_graph=False)
            return CandidateEnv(ChargedEnv(env, measurements), config.layers, config.gains)

        try:
            train_for_real(XRLflow(config, self.seed), make, MOST_STEPS, self.seed, folder)
        except RLFlowError as error:
            if measurements.seconds <= measurements.limit:
                raise
            say(f"{self.model}, {name}: {error}")  # no checkpoint; what was measured counts
        return self.fastest_measured(measurements.all), len(measurements.hashes)

    def dream(self) -> tuple[Actions, int]:
        options = "cost.name=profiled", f"cost.database={self.spec.database}", "controller.name=ppo"
        learning = Learning(self.model, "graph-mdn", self.seed, self.folder / "dream", INTERACTIONS, *options)
        learning.learn(1, learning.training)
        world_model = learning.model()
        agent = learning.agent(world_model)
        learning.train(agent, world_model, "controller")
        reached = [cheapest(self.task, episode.actions) for episode in learning.played(agent)]
        return self.fastest(reached, self.measure_seconds), 0


def proposed(state, rng: np.random.Generator) -> tuple:
    """Apply one to REWRITES random rewrites and return (new state, actions).

    Each rewrite draws one of the applicable rules and then one of its locations. Without any applicable rule, the
    actions are [].
    """
    actions: Actions = []
    for _ in range(rng.integers(1, REWRITES + 1)):
        valid = state.valid_actions()[:-1]
        if not len(valid):
            break
        of_rule = valid[valid[:, 0] == rng.choice(np.unique(valid[:, 0]))]
        actions.append(tuple(int(part) for part in of_rule[rng.integers(len(of_rule))]))
        state = state.apply(*actions[-1])
    return state, actions


class AllMeasurements(Measurements):
    """Measurements that also list every measured graph.

    Attributes:
        all: (latency relative to the original, actions) of each visit to a measured graph.
        hashes: the hashes of the measured graphs.
    """

    def __init__(self, path: Path, limit: float):
        super().__init__(path, limit)
        self.all: list[tuple[float, Actions]] = []
        self.hashes: set[str] = set()

    def charge(self, measured: Mapping[str, float]) -> None:
        self.hashes |= measured.keys()
        super().charge(measured)

    def met(self, latency: float, actions: Sequence[list[int]]) -> None:
        super().met(latency, actions)
        if math.isfinite(latency):
            self.all.append((latency, [(rule, location) for rule, location in actions]))


def cheapest(task: Task, actions: np.ndarray) -> Actions:
    """Return the leading actions of an episode that lead to its cheapest state.

    Args:
        task: the rewriting task, whose objective is the estimated cost.
        actions: int [T, 2], the (xfer_id, location) pairs of the episode; NO-OP is ignored.
    """
    taken = [(int(rule), int(location)) for rule, location in actions if rule < len(task.rules)]
    objectives = [state.objective for state in states_along(task, taken)]
    return taken[: int(np.argmin(objectives))]


def compare(model: str, seed: int, measure_seconds: float, search_seconds: float, judge_seconds: float) -> dict:
    """Run every method on a model and measure the resulting files.

    Args:
        model: name of a model of the zoo.
        seed: seed of searches, agents and inputs.
        measure_seconds, search_seconds: see `Bench`.
        judge_seconds: duration of the final measurement of each file.

    Returns:
        method → a dict. "ratio" and "interval": latency of the method's file / latency of the file of *estimate*; for
            *estimate* itself / latency of the original. "seconds": duration of the method. "probed": number of graphs
            measured one by one.
    """
    results: dict[str, dict] = {}
    with TemporaryDirectory() as name:
        bench = Bench(model, seed, Path(name), measure_seconds, search_seconds)
        before, before_hash = bench.original, bench.task.graph.hash
        for method in METHODS:
            started = time.monotonic()
            actions, probed = bench.agent(method) if method in AGENTS else getattr(bench, method)()
            seconds, state, file = time.monotonic() - started, follow(bench.task, actions), bench.folder / "file.onnx"
            judged = {"ratio": 1.0, "interval": [1.0, 1.0]}
            if state.hash != before_hash:
                save_graph(state.graph, file)
                judged = measure(before, file, THREADS, judge_seconds, seed=seed, memory=False)
            if method == METHODS[0]:
                before, before_hash = bench.folder / "estimate.onnx", state.hash
                save_graph(state.graph, before)
            kept = {key: judged[key] for key in ("ratio", "interval")}
            results[method] = kept | {"seconds": seconds, "probed": probed}
    return results


def together(runs: list[dict]) -> dict:
    """Return the ratio and interval of one run, or of several seeds the geometric mean and its 95 % interval."""
    if len(runs) == 1:
        return runs[0]
    logs = mean_interval([math.log(run["ratio"]) for run in runs])
    return {"ratio": math.exp(logs["mean"]), "interval": [math.exp(logs["low"]), math.exp(logs["high"])]}


def tables(figures: dict[str, list[dict]]) -> dict[str, Table]:
    """Return the table "latency" of latency ratios and the table "spent" of seconds and measured graphs per method.

    Args:
        figures: model → one result of `compare` for each seed.
    """
    latency, spent = [], []
    for model, runs in figures.items():
        latency.append([model, len(runs), *(ratio(together([run[method] for run in runs])) for method in METHODS)])
        cells = []
        for method in METHODS:
            probed, seconds = (np.mean([run[method][key] for run in runs]) for key in ("probed", "seconds"))
            cells.append(f"{number(seconds, 0)} s, {number(probed, 0)} graphs")
        spent.append([model, *cells])
    heads = [f"{method} / {'original' if method == METHODS[0] else METHODS[0]}" for method in METHODS]
    return {"latency": Table(["model", "seeds", *heads], latency), "spent": Table(["model", *METHODS], spent)}


def main() -> int:
    arguments = parser(__doc__, seeds=1)
    arguments.add_argument("--model", action="append", help="of the zoo, one only; repeatable")
    arguments.add_argument("--measure-seconds", type=float, default=60.0, help="of each method (default 60)")
    arguments.add_argument("--search-seconds", type=float, default=60.0, help="of the searches (default 60)")
    arguments.add_argument("--judge-seconds", type=float, default=15.0, help="of judging each file (default 15)")
    parsed = arguments.parse_args()
    record, models = Record("equal_seconds", parsed), parsed.model or MODELS
    seconds = parsed.measure_seconds, parsed.search_seconds, parsed.judge_seconds
    calls = {f"{model}-{seed}": (compare, model, seed, *seconds) for model in models for seed in range(parsed.seeds)}
    figures: dict[str, list[dict]] = {}
    for key, one in record.all_parts(calls).items():
        figures.setdefault(key.rpartition("-")[0], []).append(one)
    record.publish(tables(figures), f"{parsed.measure_seconds:g} s of measurement for each method.")
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
