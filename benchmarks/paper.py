"""PPO and CMA-ES, trained in dreams alone, on real graphs: how much they improve them, and how long that takes.

    python -m benchmarks.paper --model bert_base          one graph; repeatable
    python -m benchmarks.paper --wm edits                 in the dreams of another world model
    python -m benchmarks.paper --temperatures 0.1,1,3     PPO in dreams of each of these, too
    python -m benchmarks.paper --only-dreams             without PPO that learns on the real graph
    python -m benchmarks.paper --table                    Markdown of its page

The counterparts of the paper's Figures 6 and 7 (improvement, optimisation time) and Table 3 (temperatures). For every
graph and seed: random episodes of at most 10,000 interactions (a fifth of them is the test of `benchmarks.fidelity`,
which shares the folder's format and may have trained the world model there already), a world model that learns from the
others, and for each controller its training in the dream and one greedy and eight sampled episodes on the real graph;
what they found is the best graph on their ways. What the controller dreamt is compared with what its greedy episode
gains on the real graph in as many steps, and what the world model says of its nine real episodes with what they gained.
Nothing of a controller's training asks the real graph.

Beside it stand three controls, each with as many interactions with the real graph as the world model learnt from: PPO
that learns on the real graph and never dreams, with smaller updates, so that there are more of them; beam search, which
takes fewer seconds than the learning; and greedy descent, which needs fewer. Costs are estimates, improvements percent
of the original's. Resumable: what a job gave lies in --folder.
"""

import math
import sys
import time
from functools import partial
from itertools import islice

import numpy as np

from benchmarks.fidelity import FULL, SAMPLES, WORLD_MODELS, Job
from benchmarks.harness import bar, each, finish, markdown, mean_and_half, parser
from benchmarks.optimise import MODELS
from rlflow.collect.episodes import Episode
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.optimisation.candidates import improvement as percent_below
from rlflow.search.base import Limits, run_search
from worldmodel.config import DreamOptions

JUDGES = (
    "controllers/actor_critic.py", "controllers/cma_es.py", "controllers/evolution.py", "controllers/masked.py",
    "controllers/policies.py", "controllers/ppo.py", "controllers/recording.py", "controllers/scores.py",
    "rlflow/search/beam.py", "worldmodel",
)  # fmt: skip

CONTROLLERS = ("ppo", "cma-es")
SEARCHES = ("greedy", "beam")
REAL, USUAL = "ppo-real", DreamOptions.temperatures[0]
NO_DREAM = (  # 15 updates of 512 steps and 4 greedy episodes are within 10,000 interactions
    "controller.ppo.envs=8", "controller.ppo.updates=15", "controller.ppo.evaluation_dreams=1",
)  # fmt: skip
BELOW, OFF = 0.01, 0.05  # of greedy descent's improvement; of what episodes gain
TIE = 1e-4  # of greedy descent's improvement: less is rounding


def learnt(name: str, controller: str, temperature: float, seed: int, parsed) -> dict:
    """One controller: what it dreamt and did."""
    from worldmodel.fidelity import improvement

    options = f"controller.name={controller}", f"dream.temperatures=[{temperature:g}]"
    job = job_of(name, seed, parsed, *options)
    model, results = job.learn(job.random_episodes()[1], 0)
    began = time.perf_counter()
    player, dreamt = job.learn_to_act(model, job.folder / way_of(controller, temperature))
    trained = time.perf_counter() - began
    model, _ = job.learn(job.random_episodes()[1], 0)  # anew, as `eval` has it: without all that was met in dreams
    began = time.perf_counter()
    episodes = list(islice(job.played(player, model, 1), 1 + SAMPLES))
    acting = (time.perf_counter() - began) / len(episodes)
    return {
        "dreamt": dreamt, "training_seconds": trained, "world_model_seconds": results["seconds"],
        "acting_seconds": acting, "interactions": sum(map(len, episodes)), "best": best_met(episodes),
        "real_as_long": float(episodes[0].rewards[: job.config.dream.max_steps].sum()), **improvement(model, episodes),
    }  # fmt: skip


def no_dream(name: str, seed: int, parsed) -> dict:
    """PPO that learns on the real graph; the world model, which learnt before, only shows it."""
    from controllers.real_env import train_for_real
    from worldmodel.latent_env import LatentEnv

    job = job_of(name, seed, parsed, "controller.name=ppo", *NO_DREAM)
    model, _ = job.learn(job.random_episodes()[1], 0)
    player, began = job.controller(model), time.perf_counter()

    def real():
        return LatentEnv(GraphRewriteEnv(job.task, job.spec.make_reward(), job.spec.max_steps), model)

    results = train_for_real(player, real, parsed.interactions, seed, job.folder / "ppo-real")
    trained = time.perf_counter() - began
    episodes = list(islice(job.played(player, model, 1), 1 + SAMPLES))
    return {"training_seconds": trained, "interactions": results["env_steps"], "best": best_met(episodes)}


def best_met(episodes: list[Episode]) -> float:
    """How far below the original the best graph on their ways is: what `eval` delivers. Percent."""
    return max(float(np.cumsum(episode.rewards).max(initial=0.0)) for episode in episodes)


def searched(name: str, seed: int, parsed) -> dict:
    """The searches, on the real graph."""
    job = job_of(name, seed, parsed)
    start, result = job.task.initial, {}
    for method in SEARCHES:
        limits = Limits(interactions=parsed.interactions)
        search = run_search(method, start, limits, seed, **job.config.search[method])
        gain = percent_below(start.objective, search.state.objective)
        result[method] = {"improvement": gain, "seconds": search.seconds, "interactions": search.interactions}
    return result


def way_of(controller: str, temperature: float) -> str:
    """How its results are named."""
    return controller if temperature == USUAL else f"{controller}-{temperature:g}"


def job_of(name: str, seed: int, parsed, *options: str) -> Job:
    return Job(name, parsed.wm, FULL, seed, parsed, options)


# -- figures ---------------------------------------------------------------------------------------


def figures_of(parsed) -> dict:
    figures, names = {}, parsed.model or MODELS
    seeds = range(parsed.seed, parsed.seed + parsed.seeds)
    for name in names:
        ways = {controller: partial(learnt, name, controller, USUAL) for controller in CONTROLLERS}
        if not parsed.only_dreams:
            ways[REAL] = partial(no_dream, name)
        ways |= {way_of("ppo", one): partial(learnt, name, "ppo", one) for one in parsed.temperatures}
        keys = {f"{name}-{parsed.wm}-search": partial(searched, name, parsed.seed, parsed)}
        for way, work in ways.items():
            keys |= {f"{name}-{parsed.wm}-{way}-{seed}": partial(work, seed, parsed) for seed in seeds}
        search, *jobs = each(list(keys), parsed.folder / "agents", lambda key, keys=keys: keys[key]()).values()
        by_way = {way: jobs[k * len(seeds) :][: len(seeds)] for k, way in enumerate(ways)}
        figures[name] = {"search": search, "controllers": by_way}
    return figures


def dreamt_off(run: dict) -> float:
    """By what share the return that was dreamt is off from that of the greedy episode."""
    return abs(run["dreamt"] / run["real_as_long"] - 1) if run["real_as_long"] else math.inf


def mean_of(values: list[float]) -> float:
    return sum(values) / len(values)


def bars_of(figures: dict) -> list[dict]:
    bars = []
    for controller in CONTROLLERS:
        above = 0
        for name, result in figures.items():
            greedy, runs = result["search"]["greedy"]["improvement"], result["controllers"][controller]
            share = mean_of([run["best"] for run in runs]) / greedy - 1
            above += share > TIE
            off = mean_of([dreamt_off(run) for run in runs])
            bars += [
                bar(f"{name}, {controller}: against greedy, relative", share, "", f"≥ −{BELOW:g}", share >= -BELOW),
                bar(f"{name}, {controller}: dreamt, off by", off, "", f"≤ {OFF:g}", off <= OFF),
            ]
        half = len(figures) / 2
        bars.append(bar(f"{controller}: graphs above greedy", above, "", f"≥ {half:g}", above >= half))
    return bars


def table(figures: dict) -> str:
    heads = ["graph", "seeds"]
    for controller in CONTROLLERS:
        heads += [f"{controller}: best of nine", "greedy episode", "dreamt, off by", "said of real episodes, off by"]
    heads += ["ppo, no dream", "greedy descent", "beam", "learning s", "acting s", "beam s"]
    rows = []
    for name, result in figures.items():
        search, runs = result["search"], result["controllers"]
        row = [name, len(runs[CONTROLLERS[0]])]
        for controller in CONTROLLERS:
            of = runs[controller]
            row += [shown([run["best"] for run in of]), shown([run["real"][0] for run in of])]
            for share in (mean_of([dreamt_off(run) for run in of]), mean_of([run["relative_error"] for run in of])):
                row.append(f"{100 * share:.1f} %")
        dreamt = [run for controller in CONTROLLERS for run in runs[controller]]
        learning = [run["world_model_seconds"] + run["training_seconds"] for run in dreamt]
        row.append(shown([run["best"] for run in runs[REAL]]) if REAL in runs else "–")
        row += [f"{search[method]['improvement']:.2f} %" for method in SEARCHES]
        row += [f"{max(learning):.0f}", f"{max(run['acting_seconds'] for run in dreamt):.2f}"]
        rows.append([*row, f"{search['beam']['seconds']:.0f}"])
    return markdown(heads, rows)


def temperatures_table(figures: dict) -> str:
    """Of PPO, and what the best temperature is ahead of the worst, seed by seed."""
    rows = []
    for name, result in figures.items():
        by_temperature = {}
        for way, runs in result["controllers"].items():
            if way == "ppo" or way.startswith("ppo-") and way != REAL:
                by_temperature[float(way[4:] or USUAL)] = runs
        if len(by_temperature) < 2:
            continue
        for temperature, runs in sorted(by_temperature.items()):
            returns = [shown([run["real"][0] for run in runs]), shown([run["best"] for run in runs])]
            rows.append([name, f"{temperature:g}", len(runs), shown([run["dreamt"] for run in runs]), *returns])
        worst, *_, best = sorted(by_temperature.values(), key=lambda runs: mean_of([run["real"][0] for run in runs]))
        ahead = [one["real"][0] - other["real"][0] for one, other in zip(best, worst, strict=True)]
        rows.append([name, "best less worst", len(ahead), "", shown(ahead), ""])
    return markdown(["graph", "temperature", "seeds", "dreamt", "greedy episode", "best of nine"], rows)


def shown(values: list[float]) -> str:
    return f"{mean_and_half(values)} %"


def main() -> int:
    arguments = parser(__doc__, "runs/fidelity")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one graph only; repeatable")
    arguments.add_argument("--seeds", type=int, default=5, help="how many, from --seed on")
    arguments.add_argument("--wm", default="graph-mdn", choices=WORLD_MODELS, help="the world model")
    arguments.add_argument(
        "--temperatures", type=lambda text: [float(one) for one in text.split(",")], default=[], metavar="NUMBERS",
        help="PPO in dreams of these temperatures, too; with commas between them",
    )  # fmt: skip
    arguments.add_argument("--only-dreams", action="store_true", help="without PPO that learns on the real graph")
    arguments.add_argument("--interactions", type=int, default=10_000, help="of the real graph, at most")
    arguments.add_argument("--workers", type=int, default=2, help="processes that collect")
    arguments.add_argument("--cost", default="analytic")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    parsed.controller, parsed.iterations = None, 1  # `benchmarks.fidelity`'s
    figures = figures_of(parsed)
    if parsed.table:
        print(table(figures), temperatures_table(figures), sep="\n\n")
        return 0
    return finish("paper", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
