"""How far the dream is from reality: every world model on five models, with at most 10,000 real interactions.

    python -m benchmarks.fidelity --model bert_base          one model
    python -m benchmarks.fidelity --controller ppo           with one trained in the dream, and its real episodes
    python -m benchmarks.fidelity --variant untrained-encoder --wm mdn-rnn       an ablation's row; repeatable
    python -m benchmarks.fidelity --variant full --variant scalar --wm edits         told the rewards of steps alone
    python -m benchmarks.fidelity --iterations 3 --controller ppo                    later data come from the controller
    python -m benchmarks.fidelity --table                    Markdown of docs/results/fidelity.md

For every model, seed, world model and variant: random episodes, of which the first fifth of the budget are kept for the
test and never shown to the training, early stopping included; training; `worldmodel.fidelity` on the test, on as many
episodes of the paper's random agent (training has others: `collect.by_rule`), and on the episodes that the controller
plays on the real graph (greedy and sampled), where `improvement` compares what the model says that they gain with what
they gained. In an iteration after the first, the controller trained in the dream so far plays its share of the
interactions. What is played for these other tests is not in the budget: nothing is learnt from it.

Figures are means over the seeds with 95 % intervals (Student's t). Bars are of the best world model of each: the one
with the smallest error of the summed reward after 20 steps. Resumable: what a job found lies in --folder; give other
options another one.
"""

import sys
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.harness import THREADS, bar, each, finish, markdown, parser
from rlflow.collect.episodes import Episode, read_episodes
from rlflow.collect.rollouts import collect
from rlflow.common.files import read_json, write_json
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.runs.config import load_config

JUDGES = ("worldmodel", "rlflow/collect/episodes.py", "rlflow/env/observation")

MODELS = ("squeezenet1_1", "resnet50", "inception_v3", "bert_base", "vit_base")
WORLD_MODELS = ("edits", "graph-mdn", "mdn-rnn")
TEST_SHARE = 0.2  # of the interactions
TRAINING_SECONDS = 900
SAMPLES = 8  # of the controller's test, besides the greedy episode
# iteration k's episodes are drawn from seed + ITERATION_SEED · k, the test's from those after the last iteration
ITERATION_SEED = 1000
PAPERS_SEED = 500  # the test of the paper's agent is drawn from seed + this


@dataclass(frozen=True)
class Variant:
    """Options on top of the defaults and of MEANING; `one_iteration` whatever --iterations says."""

    overrides: tuple[str, ...] = ()
    one_iteration: bool = False


def mdn_rnn(*options: str) -> tuple[str, ...]:
    return tuple(f"world_model.mdn-rnn.{option}" for option in options)


FULL, MEANING = "full", mdn_rnn("action=meaning")
VARIANTS = {
    FULL: Variant(),
    "untrained-encoder": Variant(mdn_rnn("encoder=untrained")),
    "joint-encoder": Variant(mdn_rnn("encoder=joint", "action=numbers")),
    "action-numbers": Variant(mdn_rnn("action=numbers")),
    "no-mask-heads": Variant(mdn_rnn("mask_heads=false")),
    "ensemble": Variant(mdn_rnn("members=3")),
    "paper": Variant((
        "collect.by_rule=0",
        *mdn_rnn("encoder=untrained", "action=numbers", "mask_heads=false", "sigma_temperature=false"),
    )),
    "scalar": Variant(("world_model.edits.supervision=scalar", "world_model.graph-mdn.supervision=scalar")),
    "one-iteration": Variant(one_iteration=True),
}

# What a row of the table says: (heading, where it stands in a job's figures)
COLUMNS = {
    "summed reward error": "random.horizons.20.model.cumulative_reward_relative",
    "of rule mean": "random.horizons.20.rule_mean.cumulative_reward_relative",
    "reward R², 1 step": "random.horizons.1.model.reward_r2",
    "rank correlation": "random.ranks.anywhere.model.correlation",
    "pairs in order": "random.ranks.anywhere.model.concordance",
    "mask F1": "random.horizons.20.model.mask_f1",
    "masks exact": "random.horizons.20.model.mask_exact",
    "counts exact": "random.horizons.20.model.counts_exact",
    "end accuracy": "random.horizons.20.model.termination_accuracy",
    "in doubt": "random.horizons.20.uncertain",
    "summed reward error, no doubt": "random.horizons.20.certain.cumulative_reward_relative",
    "improvement error": "controller.improvement.relative_error",
    "training s": "training_seconds",
    "interactions": "interactions",
    "masks exact, paper's agent": "paper.horizons.20.model.mask_exact",
    "counts exact, paper's agent": "paper.horizons.20.model.counts_exact",
    "summed reward error, paper's agent": "paper.horizons.20.model.cumulative_reward_relative",
}
NONE = {"mean": None, "half": None, "seeds": 0}  # of a column that was not measured


class Job:
    """One model, world model, variant and seed. options: on top of all others."""

    def __init__(self, name: str, kind: str, variant: str, seed: int, parsed, options: tuple[str, ...] = ()):
        self.name, self.kind, self.variant, self.seed, self.parsed = name, kind, VARIANTS[variant], seed, parsed
        self.folder = parsed.folder / f"{name}-{kind}-{variant}-{seed}"
        overrides = [*self.overrides(kind, self.variant, parsed.cost), *parsed.overrides]
        if parsed.controller:
            overrides.append(f"controller.name={parsed.controller}")
        self.config = load_config((), [*overrides, *options])
        env = self.config.env
        self.spec = EnvSpec(
            name, cost=parsed.cost, threads=THREADS, reward=env.reward, alpha=env.alpha, beta=env.beta,
            max_locations=env.max_locations, max_steps=env.max_steps,
        )  # fmt: skip

    @staticmethod
    def overrides(kind: str, variant: Variant, cost: str) -> list[str]:
        return [f"world_model.name={kind}", f"cost.name={cost}", *MEANING, *variant.overrides]

    def run(self) -> dict:
        """Trains, iteration by iteration, and measures."""
        from worldmodel.fidelity import fidelity, improvement

        test, training = self.random_episodes()
        iterations = 1 if self.variant.one_iteration or not self.parsed.controller else self.parsed.iterations
        share = (self.parsed.interactions - sum(map(len, test))) / iterations
        training, seconds, model, controller = within(training, share), 0.0, None, None
        for k in range(iterations):
            if k:
                training = training + within(self.played(controller, model, k), share)
            model, results = self.learn(training, k)
            seconds += results["seconds"]
            if self.parsed.controller:
                controller, dreamt = self.learn_to_act(model, self.folder / f"iteration-{k}" / "controller")
        result = {
            "interactions": sum(map(len, test + training)),
            "iterations": iterations,
            "training_seconds": seconds,
            "random": fidelity(model, test, training),
            "paper": fidelity(model, self.papers_episodes(sum(map(len, test))), training),
        }
        if controller is not None:
            episodes = list(islice(self.played(controller, model, iterations), 1 + SAMPLES))
            result["controller"] = {
                "dreamt_return": dreamt, **fidelity(model, episodes, training),
                "improvement": improvement(model, episodes),
            }  # fmt: skip
        return result

    @cached_property
    def task(self) -> Task:
        return self.spec.make_task()

    def random_episodes(self) -> tuple[list[Episode], list[Episode]]:
        """(test, training): as many random episodes as the interactions are enough for, the same for all that learn
        from them."""
        result = self._collected(self.config.collect.by_rule, self.seed, self.parsed.interactions)
        test = within(result, TEST_SHARE * self.parsed.interactions)
        return test, result[len(test) :]

    def papers_episodes(self, interactions: int) -> list[Episode]:
        """As many of the paper's random agent, that nothing learns from."""
        return self._collected(0.0, self.seed + PAPERS_SEED, max(interactions, self.spec.max_steps))

    def _collected(self, by_rule: float, seed: int, interactions: int) -> list[Episode]:
        """As many episodes as so many interactions are enough for."""
        folder = self.parsed.folder / "episodes" / f"{self.name}-{by_rule:g}-{seed}"
        episodes, played = 0, 0
        while more := (interactions - played) // self.spec.max_steps:
            episodes += more
            played = collect(self.spec, folder, episodes, self.parsed.workers, seed, by_rule=by_rule)["interactions"]
        return read_episodes(folder, episodes)

    def learn(self, training: list[Episode], number: int) -> tuple:
        """(world model, what its training says: at least its seconds). One that was trained before is only read."""
        from worldmodel.config import world_model_config
        from worldmodel.training import load, prepare_tensorflow, train

        folder, config = self.folder / f"iteration-{number}", world_model_config(self.config.world_model)
        prepare_tensorflow(self.seed, config.threads)
        seconds, results = folder / "seconds.json", {}
        if not seconds.exists():
            results = train(config, self.task.encoding_spec, training, folder / "world-model", self.seed)
            write_json(seconds, results["seconds"])
        return load(folder / "world-model", self.task.encoding_spec), results | {"seconds": read_json(seconds)}

    def learn_to_act(self, model, folder: Path) -> tuple:
        """(controller, trained in the dream; the return that it dreamt)."""
        controller = self.controller(model)
        return controller, float(controller.train(partial(self.dreams, model), self.seed, folder)["best_return"])

    def controller(self, model):
        """The configured one, untrained."""
        from controllers import CONTROLLERS
        from controllers.config import controller_config
        from worldmodel import spaces

        kind, observation = CONTROLLERS.get(self.config.controller.name), spaces.observation_space(model)
        return kind(controller_config(self.config), observation, spaces.action_space(model.spec), self.seed)

    def dreams(self, model, n: int):
        """n of them side by side, at the first of the configured temperatures."""
        from worldmodel.dream import DreamVectorEnv

        return DreamVectorEnv(model, self.task.initial, n, **self.dream_options())

    def dream(self, model):
        from worldmodel.dream import DreamEnv

        return DreamEnv(model, self.task.initial, **self.dream_options())

    def dream_options(self) -> dict:
        options = {key: value for key, value in self.config.dream.items() if key != "temperatures"}
        return options | {"temperature": self.config.dream.temperatures[0]}

    def played(self, controller, model, number: int):
        """The controller's episodes on the real graph, without end."""
        from controllers.recording import recorded

        env = GraphRewriteEnv(self.task, self.spec.make_reward(), self.config.controller.max_steps)
        return recorded(controller, env, model, self.seed + ITERATION_SEED * number)


def within(episodes, interactions: float) -> list[Episode]:
    """The first episodes that have no more steps than that altogether."""
    result, steps = [], 0
    for episode in episodes:
        steps += len(episode)
        if steps > interactions:
            break
        result.append(episode)
    return result


# -- figures ---------------------------------------------------------------------------------------


def at(figures: dict, path: str):
    """`at({"a": {"b": 1}}, "a.b")` is 1; None where there is no such thing."""
    for key in path.split("."):
        figures = figures.get(key) if figures else None
    return figures


def over_seeds(jobs: list[dict], path: str) -> dict:
    """Mean and half of the 95 % interval (None of fewer than two), over the seeds that have the figure."""
    from scipy.stats import t

    values = [value for job in jobs if (value := at(job, path)) is not None]
    n = len(values)
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else None
    return {"mean": float(np.mean(values)) if values else None, "half": half, "seeds": n}


def summary(jobs: list[dict]) -> dict:
    """A row's columns, and the errors over the horizon."""
    horizons = jobs[0]["random"]["horizons"]
    errors = ("cumulative_reward_relative", "mask_f1", "mask_exact", "counts_exact")
    return {"columns": {column: over_seeds(jobs, path) for column, path in COLUMNS.items()}} | {
        "horizons": {k: {e: over_seeds(jobs, f"random.horizons.{k}.model.{e}") for e in errors} for k in horizons},
        "dreamt_return": over_seeds(jobs, "controller.dreamt_return"),
        "real_improvement": [at(job, "controller.improvement.real") for job in jobs],
        "predicted_improvement": [at(job, "controller.improvement.predicted") for job in jobs],
    }


def best_row(rows: dict[str, dict]) -> str:
    """The one with the smallest error of the summed reward, ablations aside."""
    means = {key: row["columns"]["summed reward error"]["mean"] for key, row in rows.items()}
    full = [key for key in rows if key.endswith(f" {FULL}")] or list(rows)
    return min(full, key=lambda key: np.inf if means[key] is None else means[key])


def bars_of(name: str, rows: dict[str, dict]) -> list[dict]:
    """The requirements of one model, for the best world model."""
    best = best_row(rows)
    columns = rows[best]["columns"]
    limits = [("mask F1", "≥ 0.99", lambda v: v >= 0.99)]
    for episodes in ("", ", paper's agent"):
        limits += [
            (f"masks exact{episodes}", "≥ 0.95", lambda v: v >= 0.95),
            (f"counts exact{episodes}", "≥ 0.9", lambda v: v >= 0.9),
            (f"summed reward error{episodes}", "≤ 0.05", lambda v: v <= 0.05),
        ]
    limits += [
        ("rank correlation", "≥ 0.95", lambda v: v >= 0.95),
        ("training s", f"≤ {TRAINING_SECONDS}", lambda v: v <= TRAINING_SECONDS),
        ("interactions", "≤ 10000", lambda v: v <= 10_000),
    ]  # fmt: skip
    if columns["improvement error"]["seeds"]:
        limits.append(("improvement error", "≤ 0.05", lambda v: v <= 0.05))
    values = [(column, columns[column]["mean"], limit, holds) for column, limit, holds in limits]
    return [
        bar(f"{name}, {best}: {column}", value, "", limit, value is not None and holds(value))
        for column, value, limit, holds in values
    ]


def table(figures: dict) -> str:
    """The tables of its page: the rows after 20 steps, and the errors over the horizon."""
    lines = [
        "| model | world model | variant | " + " | ".join(COLUMNS) + " |",
        "| --- | --- | --- " + "| ---: " * len(COLUMNS) + "|",
    ]
    for name, rows in figures.items():
        for key, row in rows.items():
            cells = [shown(row["columns"].get(column, NONE)) for column in COLUMNS]
            lines.append(f"| {name} | {key.replace(' ', ' | ')} | " + " | ".join(cells) + " |")
    headings = ("summed reward error", "mask F1", "masks exact", "counts exact")
    lines += [
        "",
        "| model | world model | variant | steps | " + " | ".join(headings) + " |",
        "| --- " * 4 + "| ---: " * len(headings) + "|",
    ]
    for name, rows in figures.items():
        for key, row in rows.items():
            for steps, errors in row["horizons"].items():
                lines.append(
                    f"| {name} | {key.replace(' ', ' | ')} | {steps} | "
                    + " | ".join(map(shown, errors.values()))
                    + " |"
                )
    return "\n".join(lines)


def beside_rule_mean_table(figures: dict) -> str:
    """The errors after 20 steps, each beside that of the rule's mean on the same seeds."""
    columns = (
        "summed reward error", "of rule mean", "rank correlation", "mask F1", "masks exact", "counts exact",
        "masks exact, paper's agent", "counts exact, paper's agent", "training s",
    )  # fmt: skip
    numbers = ("rank correlation", "mask F1", "training s")
    rows = []
    for name, variants in figures.items():
        for key, row in variants.items():
            cells = []
            for column in columns:
                mean = row["columns"].get(column, NONE)["mean"]
                share = "–" if mean is None else f"{100 * mean:.1f} %"
                cells.append(f"{mean:.3g}" if column in numbers else share)
            rows.append([name, key, row["columns"][columns[0]]["seeds"], *cells])
    return markdown(["model", "world model", "seeds", *columns], rows, words=2)


def shown(figure: dict) -> str:
    if figure["mean"] is None:
        return "–"
    return f"{figure['mean']:.4g}" + (f" ± {figure['half']:.2g}" if figure["half"] is not None else "")


def main() -> int:
    arguments = parser(__doc__, "runs/fidelity")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--seeds", type=int, default=5, help="how many, from --seed on")
    arguments.add_argument(
        "--wm", type=lambda text: text.split(","), default=list(WORLD_MODELS), metavar="NAMES",
        help="world models, with commas between them",
    )  # fmt: skip
    arguments.add_argument("--variant", action="append", choices=VARIANTS, help="repeatable; full by default")
    arguments.add_argument("--controller", metavar="NAME", help="train it in the dream, and test on its episodes too")
    arguments.add_argument("--iterations", type=int, default=1, help="of collecting and training, with a controller")
    arguments.add_argument(
        "--interactions", type=int, default=10_000, help="of the real environment, at most, the random test included"
    )
    arguments.add_argument("--workers", type=int, default=2, help="processes that collect")
    arguments.add_argument("--cost", default="profiled", help="analytic for a try")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    figures = {}
    for name in parsed.model or MODELS:
        figures[name] = {}
        for kind, variant in ((kind, variant) for kind in parsed.wm for variant in parsed.variant or [FULL]):
            jobs = {
                f"{name}-{kind}-{variant}-{seed}": Job(name, kind, variant, seed, parsed)
                for seed in range(parsed.seed, parsed.seed + parsed.seeds)
            }
            result = each(list(jobs), parsed.folder / "results", lambda job: jobs[job].run())
            figures[name][f"{kind} {variant}"] = summary(list(result.values()))
    if parsed.table:
        print(table(figures))
        return 0
    return finish("fidelity", parsed, figures, [b for name, rows in figures.items() for b in bars_of(name, rows)])


if __name__ == "__main__":
    sys.exit(main())
