"""What of X-RLflow's agent matters: how often it is rewarded, what it is paid between, and its head.

    python -m benchmarks.xrlflow_ablations                                     hours; resumable
    python -m benchmarks.xrlflow_ablations --model tiny_squeezenet1_1 --updates 8 --steps 40     in minutes

Agents learn from rewards of every N-th step (N = 1, 5, 10, or the end alone), with 0 or X-RLflow's 0.1 for the steps
between, with one head for each candidate or the paper's flattened layer; nothing else differs. Rewards are those of
`measured`, but what a graph takes is its estimate: so there is no noise, every measurement of the table costs nothing,
and what differs is what was asked about. An agent then plays a greedy episode and eight sampled ones. Improvements are
percent of the original's estimate, *measured* is how many different graphs it would have had to measure.
"""

import sys
from functools import partial
from typing import NamedTuple

from benchmarks.harness import bar, each, finish, markdown, mean_and_half, parser
from rlflow.costs import graph_cost, runtime_ms
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.measured import Latency
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.rewards import MeasuredReward
from rlflow.optimisation.candidates import improvement

JUDGES = ("controllers/actor_critic.py", "controllers/xrlflow", "rlflow/env/candidates.py", "rlflow/env/candidates.py")


class Variant(NamedTuple):
    """every: steps from one reward to the next; None: at the end alone.  unmeasured: what other steps are paid."""

    every: int | None = 5
    unmeasured: float = 0.0
    head: str = "each"


USUAL = "N = 5"
VARIANTS = {
    USUAL: Variant(), "N = 1": Variant(every=1), "N = 10": Variant(every=10), "the end alone": Variant(every=None),
    "0.1 between": Variant(unmeasured=0.1), "flattened head": Variant(head="flattened"),
}  # fmt: skip
SAMPLES, SEEDS = 8, 5


class Estimated:
    """Estimates in the place of measurements (`rlflow.costs.measurements.Latencies`), each of which takes a second."""

    def __init__(self):
        self.cost, self._known = AnalyticCost(), {}

    @property
    def seconds(self) -> float:
        return float(len(self._known))

    def of(self, original, graph, sizes) -> Latency:
        for one in (original, graph):
            if one.hash not in self._known:
                self._known[one.hash] = runtime_ms(graph_cost(self.cost, one))
        ratio = self._known[graph.hash] / self._known[original.hash]
        return Latency(ratio, ratio, ratio, self._known[original.hash], 1, 1.0)


def learnt(name: str, variant: Variant, seed: int, parsed) -> dict:
    from controllers.config import XRLflowConfig
    from controllers.evaluation import best_of
    from controllers.real_env import train_for_real
    from controllers.xrlflow.agent import XRLflow
    from worldmodel.training import prepare_tensorflow

    prepare_tensorflow(seed, threads=1)
    config = XRLflowConfig(updates=parsed.updates, episodes=parsed.episodes, head=variant.head)
    agent, latencies = XRLflow(config, seed), Estimated()
    reward = MeasuredReward(latencies, variant.every, variant.unmeasured)

    def make() -> CandidateEnv:
        task = EnvSpec(name, cost="analytic", threads=1).make_task()
        return CandidateEnv(GraphRewriteEnv(task, reward, parsed.steps), config.layers)

    folder = parsed.folder / "agents" / f"{name}-{'-'.join(map(str, variant))}-{seed}"
    results, measured = train_for_real(agent, make, sys.maxsize, seed, folder), latencies.seconds
    tried = best_of(agent.players(), make(), SAMPLES, seed)
    costs = tried.trajectories[0].costs
    return {
        "improvement": improvement(costs[0], tried.cost), "greedy_episode": improvement(costs[0], costs[-1]),
        "interactions": results["env_steps"], "measured": measured,
    }  # fmt: skip


def figures_of(parsed) -> dict:
    figures = {}
    for name in parsed.model or ["squeezenet1_1"]:
        work = {}
        for label, variant in VARIANTS.items():
            for seed in range(parsed.seed, parsed.seed + parsed.seeds):
                work[f"{name}-{label}-{seed}"] = partial(learnt, name, variant, seed, parsed)
        runs = list(each(list(work), parsed.folder / "results", lambda key, work=work: work[key]()).values())
        figures[name] = {
            label: runs[k * parsed.seeds :][: parsed.seeds] for k, label in enumerate(VARIANTS)
        }  # fmt: skip
    return figures


def bars_of(figures: dict) -> list[dict]:
    """Whether there is enough to tell; what it says is a finding, not a bar."""
    return [
        bar(f"{name}, {label}: seeds", len(runs), "", f"≥ {SEEDS}", len(runs) >= SEEDS)
        for name, result in figures.items() for label, runs in result.items()
    ]  # fmt: skip


def table(figures: dict) -> str:
    rows = []
    for name, result in figures.items():
        for label, runs in result.items():
            gains = [mean_and_half([run[key] for run in runs]) + " %" for key in ("improvement", "greedy_episode")]
            ahead = [run["improvement"] - usual["improvement"] for run, usual in zip(runs, result[USUAL], strict=True)]
            counts = [f"{sum(run[key] for run in runs) / len(runs):,.0f}" for key in ("measured", "interactions")]
            rows.append([name, label, len(runs), *gains, "" if label == USUAL else mean_and_half(ahead), *counts])
    heads = ["graph", "variant", "seeds", "best of nine", "greedy episode", f"ahead of {USUAL}, points"]
    return markdown([*heads, "measured", "interactions"], rows, words=2)


def main() -> int:
    arguments = parser(__doc__, "runs/xrlflow_ablations")
    arguments.add_argument("--model", action="append", help="of the zoo; repeatable")
    arguments.add_argument("--seeds", type=int, default=SEEDS, help="how many, from --seed on")
    arguments.add_argument("--updates", type=int, default=50, help="of an agent")
    arguments.add_argument("--episodes", type=int, default=10, help="sampled, between two updates")
    arguments.add_argument("--steps", type=int, default=100, help="after which an episode is cut")
    parsed = arguments.parse_args()
    figures = figures_of(parsed)
    return finish("xrlflow_ablations", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
