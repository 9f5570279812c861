"""X-RLflow's agent on models that it never saw.

    python -m benchmarks.transfer                      every fold, five seeds; resumable
    python -m benchmarks.transfer --fold 0 --seeds 1   a third of the graphs, one agent

The fifteen graphs are dealt out into folds. For each fold an agent learns on the graphs of the others, each in turn,
and never on its own, on estimated costs: it imitates beam search there (--imitate passes), and then may learn by PPO
over candidates (--updates). It is shown the gain of each candidate (`controller.xrlflow.gains`), and so begins near
greedy descent. Then it acts on every graph of its fold, as `optimise --controller` has it: a greedy episode of what it
learnt and one of what it was before, and eight sampled ones of both in turn, of which the best graph on the way counts.
Beside it stand what it learnt alone (its five of these ten), the agent before it learnt anything (a greedy episode and
eight sampled ones), greedy descent, and beam search (--beam rewrites); what is best known of a graph is the best of all
of these. Costs are estimates, improvements percent of the original's.
"""

import sys
import time
from dataclasses import asdict
from functools import partial

from benchmarks.harness import bar, each, finish, markdown, mean_and_half, parser
from benchmarks.optimise import MODELS
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.step import InTurn
from rlflow.optimisation.candidates import improvement
from rlflow.search import BeamOptions, GreedyOptions
from rlflow.search.base import Limits, run_search

JUDGES = (
    "controllers/actor_critic.py", "controllers/xrlflow", "rlflow/env/candidates.py", "rlflow/env/step.py",
    "rlflow/env/candidates.py", "rlflow/search/beam.py",
)  # fmt: skip

SEARCHES = {"greedy": GreedyOptions(), "beam": BeamOptions()}
FOLDS = (
    ("squeezenet1_1", "resnet18", "light_resnet50", "light_inception_v1", "light_zfnet512"),
    ("light_squeezenet", "resnet50", "inception_v3", "bert_base", "light_vgg19"),
    ("light_inception_v2", "light_densenet121", "light_shufflenet", "vit_base", "light_bvlc_alexnet"),
)
SAMPLES = 8
OF_BEST, AS_GREEDY = 0.90, 12  # of the best known; graphs on which it is not below greedy descent
TIE = 1e-4  # of greedy descent's improvement: less is rounding


def fold_of(name: str) -> int:
    """Relatives are apart, so that one of them can be learnt from, as where a single model is left out."""
    return next(number for number, fold in enumerate(FOLDS) if name in fold)


def environment(name: str, config, parsed) -> CandidateEnv:
    spec = EnvSpec(name, cost=parsed.cost, reward="relative", threads=1)
    env = GraphRewriteEnv(spec.make_task(), spec.make_reward(), parsed.steps)
    return CandidateEnv(env, config.layers, config.gains)


def untrained(fold: int, seed: int, parsed):
    """(the agent of a fold before it learns, the graphs that it is to learn on)."""
    from controllers.config import XRLflowConfig
    from controllers.xrlflow.agent import XRLflow
    from worldmodel.training import prepare_tensorflow

    prepare_tensorflow(seed, threads=1)
    names = [name for name in parsed.learn_on or MODELS if fold_of(name) != fold]
    config = XRLflowConfig(
        updates=parsed.updates, episodes=parsed.episodes, imitate=parsed.imitate, also=tuple(names[1:]),
        gains=not parsed.no_gains,
    )  # fmt: skip
    return XRLflow(config, seed), names


def learnt(fold: int, seed: int, parsed):
    """The agent of a fold; one that was killed goes on."""
    from controllers.real_env import train_for_real

    agent, names = untrained(fold, seed, parsed)

    def several() -> InTurn:
        return InTurn([environment(name, agent.config, parsed) for name in names])

    def shown(done: int, total: int) -> None:
        print(f"fold {fold}, seed {seed}: update {done} of {total}, {agent.best_return:.2f} %", file=sys.stderr)

    results = train_for_real(
        agent, several, parsed.interactions, seed, parsed.folder / f"fold-{fold}-{seed}", progress=shown
    )
    return agent, results


def acts(name: str, seed: int, agents: dict, parsed) -> dict:
    """What the agent of the graph's fold comes to on it. agents: those that were opened so far."""
    fold = fold_of(name)
    if (fold, seed) not in agents:
        agents[fold, seed] = learnt(fold, seed, parsed)
    agent, results = agents[fold, seed]
    before, _ = untrained(fold, seed, parsed)
    return {
        **acted(agent.players(), name, seed, parsed), "untrained": acted([before], name, seed, parsed),
        "training_return": results["best_return"], "interactions": results["env_steps"],
    }  # fmt: skip


def acted(players: list, name: str, seed: int, parsed) -> dict:
    """What agents come to together on a graph, and what the first of them does alone."""
    from controllers.evaluation import best_of

    env, began = environment(name, players[0].config, parsed), time.perf_counter()
    tried = best_of(players, env, SAMPLES, seed)
    seconds = (time.perf_counter() - began) / len(tried.trajectories)
    first = tried.trajectories[0]
    of_learnt = min(min(trajectory.costs) for trajectory in tried.trajectories[:: len(players)])
    return {
        "improvement": improvement(first.costs[0], tried.cost), "greedy_episode": sum(first.rewards),
        "of_learnt": improvement(first.costs[0], of_learnt), "seconds": seconds,
    }  # fmt: skip


def searched(name: str, parsed) -> dict:
    """Greedy descent and beam search."""
    spec = EnvSpec(name, cost=parsed.cost, threads=1)
    start, result = spec.make_task().initial, {}
    for method, options in SEARCHES.items():
        search = run_search(method, start, Limits(interactions=parsed.beam), parsed.seed, **asdict(options))
        result[method] = improvement(start.objective, search.state.objective)
    return result


# -- figures ---------------------------------------------------------------------------------------


def figures_of(parsed) -> dict:
    names = [name for name in MODELS if parsed.fold is None or fold_of(name) == parsed.fold]
    agents, figures = {}, {}
    for name in names:
        work = {f"{name}-search": partial(searched, name, parsed)}
        for seed in range(parsed.seed, parsed.seed + parsed.seeds):
            work[f"{name}-{seed}"] = partial(acts, name, seed, agents, parsed)
        search, *runs = each(list(work), parsed.folder / "results", lambda key, work=work: work[key]()).values()
        figures[name] = {"search": search, "runs": runs}
    return figures


def bars_of(figures: dict) -> list[dict]:
    bars, not_below = [], 0
    for name, one in figures.items():
        gain = mean_gain(one)
        agents = [agent for run in one["runs"] for agent in (run, run["untrained"])]
        best = max(*one["search"].values(), *(agent["improvement"] for agent in agents))
        share = gain / best if best > 0 else 1.0
        bars.append(bar(f"{name}: of the best known", share, "", f"≥ {OF_BEST:g}", share >= OF_BEST))
        not_below += gain >= one["search"]["greedy"] * (1 - TIE)
    said = f"graphs on which it is not below greedy descent, of {len(MODELS)}"
    return [*bars, bar(said, not_below, "graphs", f"≥ {AS_GREEDY}", not_below >= AS_GREEDY)]


def mean_gain(one: dict) -> float:
    gains = [run["improvement"] for run in one["runs"]]
    return sum(gains) / len(gains)


def table(figures: dict) -> str:
    heads = ["graph", "seeds", "agent: best of ten", "what it learnt: best of five", "greedy episode"]
    heads += ["untrained: best of nine", "greedy episode", "greedy descent", "beam", "acting s"]
    rows = []
    for name, one in figures.items():
        runs = one["runs"]
        gains = [shown([run[key] for run in runs]) for key in ("improvement", "of_learnt", "greedy_episode")]
        gains += [shown([run["untrained"][key] for run in runs]) for key in ("improvement", "greedy_episode")]
        searches = [f"{one['search'][method]:.2f} %" for method in SEARCHES]
        rows.append([name, len(runs), *gains, *searches, f"{max(run['seconds'] for run in runs):.1f}"])
    return markdown(heads, rows)


def shown(values: list[float]) -> str:
    return f"{mean_and_half(values)} %"


def main() -> int:
    arguments = parser(__doc__, "runs/transfer")
    arguments.add_argument("--fold", type=int, choices=range(len(FOLDS)), help="the graphs of this one only")
    arguments.add_argument("--seeds", type=int, default=5, help="how many agents of each fold, from --seed on")
    arguments.add_argument("--learn-on", action="append", choices=MODELS, help="of these only; repeatable")
    arguments.add_argument("--no-gains", action="store_true", help="the agent is not shown what candidates gain")
    arguments.add_argument("--imitate", type=int, default=30, help="passes over what beam search did")
    arguments.add_argument("--updates", type=int, default=0, help="of an agent by PPO, after that")
    arguments.add_argument("--episodes", type=int, default=10, help="sampled, between two updates")
    arguments.add_argument("--steps", type=int, default=400, help="after which an episode is cut")
    arguments.add_argument("--interactions", type=int, default=10**6, help="of an agent's training, at most")
    arguments.add_argument("--beam", type=int, default=10_000, help="rewrites that the searches may try")
    arguments.add_argument("--cost", default="analytic")
    parsed = arguments.parse_args()
    figures = figures_of(parsed)
    return finish("transfer", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
