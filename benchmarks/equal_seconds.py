"""What finds the fastest file in equal seconds of measurement: estimates, annealing, agents, dreams.

    python -m benchmarks.latency_model --measure           first: what a latency is learned from, of other models
    python -m benchmarks.equal_seconds                     wants a calm machine; hours. Resumable
    python -m benchmarks.equal_seconds --model vit_base --measurement-seconds 60 --seeds 1

For every model and seed each method may measure whole graphs for so many seconds, with making their sessions:

- *estimate*: what the searches of `optimise` on the profiled cost came to and its variants, by successive halving, as
  there
- *annealing*: a random walk from the original, which a graph is kept in by its measured latency
- *xrlflow*: the paper's agent on measured rewards: one layer over all candidates, 0.1 for a step that is not measured
- *xrlflow-local*: ours: one head for each candidate, which is shown its estimated gain; nothing for such a step
- *dream*: where a planner in the dream of `edits` led to on the real graph, its latency learned from other models

All but *estimate* and *dream*, which are nothing else, keep the last fifth of their seconds for a contest of the eight
fastest graphs that they measured. Searching, learning and timing of single kernels are not limited; their seconds stand
beside it. What each came to is then measured beside the file of *estimate*, by other runs than those that chose it.
"""

import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.fidelity import FULL, SAMPLES, Job
from benchmarks.harness import THREADS, bar, each, finish, markdown, parser
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.costs.database import TimingDatabase
from rlflow.costs.learned import correction_path, learn
from rlflow.costs.measured import Latency, LostMeasurement, Probe, measure
from rlflow.costs.measurements import Known
from rlflow.env import EnvOptions
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.graph.onnx_writer import save_graph
from rlflow.optimisation.anytime import BEST_SO_FAR_FILE, BestSoFar, search_all
from rlflow.optimisation.candidates import Candidate, follow, states_along
from rlflow.optimisation.contest import Contender, compete, contenders, different
from rlflow.runs.config import load_config

JUDGES = (
    "controllers/real_env.py", "controllers/xrlflow", "rlflow/costs", "rlflow/optimisation/anytime.py",
    "rlflow/optimisation/contest.py", "rlflow/optimisation/contest.py", "rlflow/optimisation/contest.py",
    "rlflow/optimisation/contest.py", "rlflow/env/candidates.py", "rlflow/env/rewards.py", "rlflow/search",
    "worldmodel/edits",
)  # fmt: skip

MODELS = (
    "squeezenet1_1", "resnet50", "inception_v3", "bert_base", "vit_base", "shufflenet_v2", "mobilenet_v2",
    "light_inception_v2", "light_densenet121", "light_shufflenet",
)  # fmt: skip
FIRST = "estimate"
LAST_SHARE, LAST = 0.2, 8  # of the seconds, for a contest of so many
HOT, COLD, REWRITES = 0.02, 0.001, 4  # of annealing: temperatures, of log latencies; rewrites of a proposal, at most
FASTER, LEAST_MODELS = 0.98, 3
STATIC = {"": {}}  # sizes: these models have no symbols
Actions = list[tuple[int, int]]
Met = list[tuple[float, Actions]]  # (share of the original's latency, what leads there)


class Bench:
    """One model and seed. parsed: the options of the command."""

    def __init__(self, name: str, seed: int, parsed: argparse.Namespace):
        self.name, self.seed, self.parsed = name, seed, parsed
        self.folder = parsed.folder / f"{name}-{seed}"
        self.spec = EnvSpec(name, cost="profiled", threads=THREADS, database=str(parsed.database))

    @cached_property
    def task(self) -> Task:
        return self.spec.make_task()

    @cached_property
    def original(self) -> Path:
        """The file that everything is measured beside."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_graph(self.task.graph, self.folder / "original.onnx")
        return self.folder / "original.onnx"

    @cached_property
    def measured(self) -> "Measured":
        return Measured(self.task, self.parsed.probe_seconds)

    def contest(self, candidates: Sequence[Contender], seconds: float) -> Candidate:
        """The fastest of some candidates."""
        end = time.monotonic() + seconds
        return compete(self.original, candidates, STATIC, THREADS, self.seed, end).ranked[0]

    def fastest(self, met: Met) -> Actions:
        """What is left of the seconds decides among the fastest graphs that were measured."""
        seconds = self.parsed.measurement_seconds * LAST_SHARE
        best = [self.candidate(actions) for _, actions in sorted(met, key=lambda one: one[0])]
        finalists = [Contender(one) for one in different(best)[:LAST]]
        return list(self.contest(finalists, seconds).actions) if finalists else []

    def candidate(self, actions: Actions) -> Candidate:
        return Candidate("", follow(self.task, actions), actions, len(actions), 0.0)

    @property
    def seconds(self) -> float:
        """Of measurement, before the contest."""
        return self.parsed.measurement_seconds * (1 - LAST_SHARE)

    # -- what is known before anything is measured -------------------------------------------------

    @cached_property
    def pool(self) -> list[Contender]:
        """Different graphs that are estimated to gain: first those that `optimise` would have compete."""
        best = BestSoFar(self.task, self.folder / BEST_SO_FAR_FILE)
        search_all(best, load_config().search, self.parsed.search_seconds, self.seed)
        ends, on_the_way = best.candidates(), []
        for end in ends:
            states = states_along(self.task, end.actions)
            on_the_way += [Candidate(end.name, state, end.actions[:k], k, 0.0) for k, state in enumerate(states)]
        ends = sorted(different(ends), key=lambda one: one.state.objective)
        first = contenders(self.task, ends, ends, {})
        known = {one.candidate.state.hash for one in first}
        limit = self.task.initial.objective
        others = sorted(different(on_the_way), key=lambda one: one.state.objective)
        others = [one for one in others if one.state.hash not in known and one.state.objective < limit]
        return first + [Contender(one) for one in others]

    @cached_property
    def learned_database(self) -> Path:
        """A copy of the timings, and beside it the cost that was learned from all models but this one."""
        database = self.folder / "others.sqlite"
        known = Known.of(TimingDatabase(self.parsed.database), THREADS)
        others = [one for one in known.pairs if self.task.graph.hash not in one.pair[:2]]
        if not others:
            raise RLFlowError("nothing is known of other models: python -m benchmarks.latency_model --measure")
        model = learn(known._replace(pairs=others), THREADS)
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.parsed.database, database)
        model.save(correction_path(THREADS, database))
        return database

    # -- the methods -------------------------------------------------------------------------------

    def estimate(self) -> Actions:
        return list(self.contest(self.pool, self.parsed.measurement_seconds).actions) if self.pool else []

    def annealing(self) -> Actions:
        rng, measured = np.random.default_rng([self.seed, 1]), self.measured
        state, actions, latency, met = self.task.initial, [], 1.0, []
        while measured.seconds < self.seconds:
            after, more = proposed(state, rng)
            if not more:
                break
            reached = measured(after.graph).ratio
            temperature = HOT * (COLD / HOT) ** (measured.seconds / self.seconds)
            if reached > 0 and math.log(reached / latency) < -temperature * math.log(1 - rng.random()):
                state, actions, latency = after, actions + more, reached
                met.append((reached, actions))
        return self.fastest(met)

    def agent(self, head: str, unmeasured: float) -> Actions:
        """X-RLflow's."""
        from controllers.controller_options import XRLflowConfig
        from controllers.real_env import ChargedEnv, train_for_real
        from controllers.xrlflow.agent import XRLflow
        from worldmodel.train_and_load import prepare_tensorflow

        prepare_tensorflow(self.seed, threads=1)
        local = head == "each"
        config = XRLflowConfig(updates=sys.maxsize, head=head, gains=local, episodes=self.parsed.episodes)
        spec = replace(
            self.spec, reward="measured", unmeasured_reward=unmeasured, measure_seconds=self.parsed.probe_seconds
        )
        folder = self.folder / f"agent-{head}"
        measurements = everything_measured(folder / "measurements.json", self.seconds)

        def make() -> CandidateEnv:
            env = GraphRewriteEnv(spec.make_task(), spec.make_reward(), self.parsed.steps)
            return CandidateEnv(ChargedEnv(env, measurements), config.layers, config.gains)

        agent = XRLflow(config, self.seed)
        try:
            results = train_for_real(agent, make, sys.maxsize, self.seed, folder)
            say(f"{self.name}, {head}: {results['iterations']} updates, {results['env_steps']} steps")
        except RLFlowError as error:  # the seconds do not last until its first checkpoint; what it measured counts
            say(f"{self.name}, {head}: {error}")
        self.measured.seconds, self.measured.count = measurements.seconds, len(measurements.all)
        return self.fastest(measurements.all)

    def dream(self) -> Actions:
        parsed = argparse.Namespace(
            folder=self.folder / "dream", cost="learned", controller=None, overrides=["world_model.threads=1"],
            interactions=self.parsed.interactions, workers=1, iterations=1,
        )  # fmt: skip
        job = Job(self.name, "edits", FULL, self.seed, parsed)
        job.spec = replace(job.spec, database=str(self.learned_database))
        model, _ = job.learn(job.random_episodes()[1], 0)
        player, _ = job.learn_to_act(model, parsed.folder / "controller")
        reached = [cheapest(job.task, episode.actions) for episode in islice(job.played(player, model, 1), 1 + SAMPLES)]
        finalists = [Contender(one) for one in different(map(self.candidate, reached)) if one.actions]
        return list(self.contest(finalists, self.parsed.measurement_seconds).actions) if finalists else []

    def run(self, method: str) -> dict:
        """What a method came to, in a file. JSON-able."""
        ways: dict[str, Callable[[], Actions]] = {
            FIRST: self.estimate, "annealing": self.annealing, "dream": self.dream,
            "xrlflow": partial(self.agent, "flattened", 0.1), "xrlflow-local": partial(self.agent, "each", 0.0),
        }  # fmt: skip
        say(f"{self.name}, seed {self.seed}: {method}")
        began = time.monotonic()
        actions = ways[method]()
        state = follow(self.task, actions)
        save_graph(state.graph, self.folder / f"{method}.onnx")
        return {
            "actions": actions, "hash": state.hash, "seconds": time.monotonic() - began,
            "probed": self.measured.count, "probe_seconds": self.measured.seconds,
            "estimate": state.objective / self.task.initial.objective,
        }  # fmt: skip

    def judged(self, method: str, results: dict[str, dict]) -> dict:
        """Its file beside that of the first method; that of the first method beside the original."""
        before = self.original if method == FIRST else self.folder / f"{FIRST}.onnx"
        hash_before = self.task.graph.hash if method == FIRST else results[FIRST]["hash"]
        if results[method]["hash"] == hash_before:
            return {"ratio": 1.0, "interval": [1.0, 1.0], "verdict": "the same file"}
        result = measure(
            before, self.folder / f"{method}.onnx", THREADS, self.parsed.judge_seconds, seed=self.seed, memory=False
        )
        return {key: result[key] for key in ("ratio", "interval", "verdict", "original_ms", "sessions")}


class Measured:
    """Latencies beside the original, each asked for anew. seconds, count: of the measurements so far."""

    def __init__(self, task: Task, probe_seconds: float):
        self.task, self.seconds, self.count = task, 0.0, 0
        self._probe = Probe(THREADS, probe_seconds, EnvOptions.measure_limit)

    def __call__(self, graph) -> Latency:
        began = time.monotonic()
        try:
            result = self._probe(self.task.graph, graph, self.task.sizes)
        except LostMeasurement:
            result = Latency.lost_after(time.monotonic() - began)
        self.seconds += time.monotonic() - began
        self.count += 1
        return result


def proposed(state, rng: np.random.Generator) -> tuple:
    """(a state some random rewrites later, what they were): a rule is drawn first, then a location."""
    actions: Actions = []
    for _ in range(rng.integers(1, REWRITES + 1)):
        valid = state.valid_actions()[:-1]
        if not len(valid):
            break
        of_rule = valid[valid[:, 0] == rng.choice(np.unique(valid[:, 0]))]
        action = tuple(int(part) for part in of_rule[rng.integers(len(of_rule))])
        actions.append(action)
        state = state.apply(*action)
    return state, actions


def everything_measured(path: Path, limit: float):
    """`controllers.real_env.Measurements` that also keep all that was met."""
    from controllers.real_env import Measurements

    class Everything(Measurements):
        def __init__(self):
            super().__init__(path, limit)
            self.all: Met = [(self.best["latency"], self.best["actions"])] if self.best else []  # after a kill

        def met(self, latency: float, actions: Sequence[list[int]]) -> None:
            super().met(latency, actions)
            if math.isfinite(latency):
                self.all.append((latency, [(x, k) for x, k in actions]))

    return Everything()


def cheapest(task: Task, actions: np.ndarray) -> Actions:
    """The actions up to the state that costs least on the way. actions: int [T, 2]; NO-OP ends them."""
    taken = [(int(x), int(k)) for x, k in actions if x < len(task.rules)]
    objectives = [state.objective for state in states_along(task, taken)]
    return taken[: int(np.argmin(objectives))]


# -- figures ---------------------------------------------------------------------------------------

METHODS = (FIRST, "annealing", "xrlflow", "xrlflow-local", "dream")


def of_seed(name: str, seed: int, parsed) -> Iterator[tuple[str, dict]]:
    """(method, what it came to and how that was judged)."""
    bench = Bench(name, seed, parsed)
    folder, results = bench.folder / "results", {}
    for method in parsed.method or METHODS:
        results |= each([method], folder, lambda method: Bench(name, seed, parsed).run(method))
        judged = each([f"{method}-judged"], folder, lambda _, method=method: bench.judged(method, results))
        yield method, results[method] | judged[f"{method}-judged"]


def figures_of(parsed) -> dict:
    figures = {}
    for name in parsed.model or MODELS:
        runs = [dict(of_seed(name, seed, parsed)) for seed in range(parsed.seed, parsed.seed + parsed.seeds)]
        figures[name] = {method: [run[method] for run in runs] for method in runs[0]}
    return figures


def together(runs: list[dict]) -> tuple[float, float, float]:
    """(ratio, lower end, upper end): geometric means over seeds."""
    logs = np.log([[run["ratio"], *run["interval"]] for run in runs])
    ratio, low, high = np.exp(logs.mean(axis=0)).tolist()
    return ratio, low, high


def bars_of(figures: dict) -> list[dict]:
    bars = []
    methods = [method for method in next(iter(figures.values())) if method != FIRST]
    for method in methods:
        ratios = [together(result[method]) for result in figures.values()]
        faster = sum(ratio <= FASTER and high < 1 for ratio, _, high in ratios)
        slower = sum(low > 1 for _, low, _ in ratios)
        bars += [
            bar(f"{method}: clearly 2 % faster than {FIRST}", faster, "models", f"≥ {LEAST_MODELS}",
                faster >= LEAST_MODELS),
            bar(f"{method}: clearly slower than {FIRST}", slower, "models", "≤ 0", slower == 0),
        ]  # fmt: skip
    return bars


def table(figures: dict) -> str:
    """Latencies: of the first method as a share of the original's, of the others as a share of the first one's."""
    methods = list(next(iter(figures.values())))
    rows = []
    for name, result in figures.items():
        cells = ["{:.3f} [{:.3f}, {:.3f}]".format(*together(result[method])) for method in methods]
        rows.append([name, len(result[FIRST]), *cells])
    heads = [f"{method} / {'original' if method == FIRST else FIRST}" for method in methods]
    return markdown(["model", "seeds", *heads], rows)


def spent_table(figures: dict) -> str:
    """Graphs that were measured one by one, and seconds of all that a method did, beside those of measurement."""
    methods = list(next(iter(figures.values())))
    rows = []
    for name, result in figures.items():
        cells = []
        for method in methods:
            runs = result[method]
            graphs, seconds = (np.mean([run[key] for run in runs]) for key in ("probed", "seconds"))
            cells.append(f"{graphs:.0f}, {seconds:.0f} s")
        rows.append([name, *cells])
    return markdown(["model", *methods], rows)


def main() -> int:
    arguments = parser(__doc__, "runs/equal_seconds")
    arguments.add_argument("--model", action="append", help="of the zoo, one only; repeatable")
    arguments.add_argument("--method", action="append", choices=METHODS, help=f"{FIRST} and this one; repeatable")
    arguments.add_argument("--seeds", type=int, default=5, help="how many, from --seed on")
    arguments.add_argument("--measurement-seconds", type=float, default=900.0, help="of each method")
    arguments.add_argument("--search-seconds", type=float, default=60.0, help="of the searches on the profiled cost")
    arguments.add_argument("--judge-seconds", type=float, default=20.0, help="of measuring what a method came to")
    seconds = EnvOptions.measure_seconds
    arguments.add_argument("--probe-seconds", type=float, default=seconds, help="of the runs of one measurement")
    arguments.add_argument("--episodes", type=int, default=10, help="of the agents, between two updates")
    arguments.add_argument("--steps", type=int, default=100, help="of the agents, after which an episode is cut")
    arguments.add_argument("--interactions", type=int, default=5000, help="that the dream is learnt from")
    database = Path("runs/latency_model.sqlite")
    arguments.add_argument("--database", type=Path, default=database, help="of timings and measurements")
    parsed = arguments.parse_args()
    if parsed.method:
        parsed.method = [FIRST, *(method for method in METHODS[1:] if method in parsed.method)]
    figures = figures_of(parsed)
    return finish("equal_seconds", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
