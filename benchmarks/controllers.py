"""What controllers that learnt in the dream find on real graphs, beside searches, random play and the exact simulator.

    python -m benchmarks.controllers --model bert_base          one model
    python -m benchmarks.controllers --seeds 5 --table          Markdown of docs/RESULTS.md: means, and 95 % intervals

For every model: the four stages of run.py in one run folder (`collect`, `train-wm --rounds` with the planner, then
`train-controller` and `eval` for each controller), with at most 10,000 real interactions in all, those of the controller's own
episodes included. Beside it stand greedy descent and random play of as many interactions (both by `eval`), the same searches that
the planner runs in the dream with 10,000 substitutions of the real graph ("simulator"), and the best that
`python -m benchmarks.searches` found with any number of them (docs/results/searches.json).

Seconds are those of the stages; "acting" is the greedy episode on the real graph, which is the optimisation time of the paper's
Figure 7. Resumable: everything lies in --folder; give other options another one.
"""

import sys
from pathlib import Path
from time import perf_counter

import run
from benchmarks.harness import bar, each, finish, parser
from benchmarks.locations import PAPER
from benchmarks.optimise import LIGHT
from rlflow.comparison import mean_interval
from rlflow.config import load_config
from rlflow.delivery import improvement
from rlflow.errors import RLFlowError
from rlflow.files import read_json
from rlflow.rollouts import EnvSpec
from rlflow.search.search import Limits, run_search

MODELS = (*PAPER, *LIGHT)
CONTROLLERS = ("planner", "ppo", "cma-es")
INTERACTIONS = 10_000
ACTING = 1_000  # of them, for the episodes of `eval`
ROUND_STEPS = 10_000  # that the planner tries in the dream of a round
LONG = {"planner": ("controller.planner.steps=40000",)}  # in the last dream it may take its time
SEARCHES = Path(__file__).parent.parent / "docs" / "results" / "searches.json"
SHARE, ACTING_SECONDS, ACTING_SHARE, MINUTES = 0.98, 5.0, 0.1, 15.0


class Job:
    """One model and seed."""

    def __init__(self, name: str, seed: int, parsed):
        self.name, self.seed, self.parsed = name, seed, parsed
        self.folder = parsed.folder / "runs" / f"{name}-{seed}"
        self.spec = EnvSpec(name, cost=parsed.cost)

    def work(self) -> dict:
        stages = {"collect": self.stage("collect"), "train-wm": self.stage("train-wm", "planner", "--rounds", str(self.parsed.rounds))}
        return {
            "stages": {stage: found["seconds"] for stage, found in stages.items()},
            "interactions": stages["train-wm"]["interactions"],
            "rounds": [
                {key: found.get(key) for key in ("interactions", "dreamt_return")} | {"improvement": found.get("before", {}).get("improvement")}
                for found in stages["train-wm"]["rounds"]
            ],
            "controllers": {name: self.learnt(name) for name in self.parsed.controllers},
            "simulator": self.simulator(),
        }

    def stage(self, stage: str, controller: str = "planner", *arguments: str) -> dict:
        """What a stage of run.py leaves in the run folder."""
        options = [
            f"cost.name={self.parsed.cost}", f"collect.episodes={self.parsed.episodes}", f"rounds.interactions={INTERACTIONS - ACTING}",
            f"rounds.count={self.parsed.rounds}", f"controller.name={controller}", f"workers={self.parsed.workers}", "eval.samples=1",
            "eval.seeds=[0]", f"eval.measure_seconds={self.parsed.measure_seconds}", f"controller.planner.steps={ROUND_STEPS}", *self.parsed.overrides,
        ]  # fmt: skip
        if run.main([stage, "--run", str(self.folder), "--model", self.name, "--seed", str(self.seed), *options, *arguments]):
            raise RLFlowError(f"'{stage}' failed on {self.name}")
        return read_json(self.folder / f"{stage}.json")

    def learnt(self, name: str) -> dict:
        """One controller, and the controls that `eval` puts beside it."""
        trained, evaluated = (self.stage(stage, name, *LONG.get(name, ())) for stage in ("train-controller", "eval"))
        found = {
            candidate: {
                key: told[key] for key in ("estimated_improvement_percent", "interactions", "seconds", "path_ms", "equal", "measured", "rules")
            }
            for candidate, told in evaluated["candidates"].items()
        }  # fmt: skip
        return {
            "dreamt": evaluated["dreamt"], "candidates": found, "delivered": evaluated["delivered"],
            "seconds": {"train-controller": trained["seconds"], "eval": evaluated["seconds"]},
        }  # fmt: skip

    def simulator(self) -> dict:
        """The planner's searches on the real graph, with as many substitutions as all others may take."""
        options, started, found = load_config().search, perf_counter(), {}
        for method in ("beam", "annealing"):
            found[method] = run_search(method, self.spec.make_task().initial, Limits(interactions=INTERACTIONS // 2), self.seed, **options[method])
        method, best = min(found.items(), key=lambda entry: entry[1].state.cost.runtime_ps)
        start = self.spec.make_task().initial.cost.runtime_ps
        return {
            "improvement_percent": improvement(start, best.state.cost.runtime_ps), "method": method, "seconds": perf_counter() - started,
            "interactions": sum(result.interactions for result in found.values()),
        }  # fmt: skip


# -- figures ---------------------------------------------------------------------------------------


def summary(name: str, seed: int, job: dict, searches: dict) -> dict:
    """One run: improvements in percent of the original's estimated runtime, interactions, seconds."""
    learnt = {
        controller: {
            "improvement": told["candidates"]["controller"]["estimated_improvement_percent"],
            "interactions": told["candidates"]["controller"]["interactions"],
            "dreamt": told["dreamt"][0]["dreamt_return"],
            "real": told["dreamt"][0]["real_return"],
            "acting_seconds": told["dreamt"][0]["acting_seconds"],
            "seconds": sum(told["seconds"].values()),
            "descends_after_a_loss": detour(told["candidates"]["controller"]["path_ms"]),
        }
        for controller, told in job["controllers"].items()
    }
    best = max(learnt, key=lambda controller: learnt[controller]["improvement"])
    controls = job["controllers"][best]["candidates"]
    known = {method: found["improvement_percent"] for method, found in searches.items()} | {"simulator": job["simulator"]["improvement_percent"]}
    return {
        "model": name, "seed": seed, "controllers": learnt, "best": best, "known": known, "best_known": max(known.values()),
        "greedy": controls["greedy"]["estimated_improvement_percent"], "random": controls["random"]["estimated_improvement_percent"],
        "taso_seconds": searches["taso"]["seconds"] if "taso" in searches else None,
        "minutes": (sum(job["stages"].values()) + learnt[best]["seconds"]) / 60, "simulator_seconds": job["simulator"]["seconds"],
        "stages": job["stages"], "rounds": job["rounds"],
    }  # fmt: skip


def detour(path_ms: list[float]) -> dict | None:
    """The deepest loss on the way to the end: {"at": step, "lost_percent": of the original's runtime}; None if there is none."""
    losses = [(after - before, step) for step, (before, after) in enumerate(zip(path_ms, path_ms[1:], strict=False)) if after > before]
    if not losses:
        return None
    lost, step = max(losses)
    return {"at": step, "lost_percent": 100 * lost / path_ms[0]}


def bars_of(row: dict) -> list[dict]:
    learnt, name = row["controllers"][row["best"]], f"{row['model']}, seed {row['seed']}"
    share = learnt["improvement"] / row["best_known"] if row["best_known"] > 0 else 1.0
    found = [
        ("share of the best known", share, "", f"≥ {SHARE}", share >= SHARE),
        ("above greedy", learnt["improvement"] - row["greedy"], "points", "≥ 0", learnt["improvement"] >= row["greedy"] - 1e-9),
        ("above random", learnt["improvement"] - row["random"], "points", "≥ 0", learnt["improvement"] >= row["random"] - 1e-9),
        ("interactions", learnt["interactions"], "", f"≤ {INTERACTIONS}", learnt["interactions"] <= INTERACTIONS),
        ("acting", learnt["acting_seconds"], "s", f"≤ {ACTING_SECONDS}", learnt["acting_seconds"] <= ACTING_SECONDS),
        ("four stages", row["minutes"], "minutes", f"≤ {MINUTES}", row["minutes"] <= MINUTES),
    ]
    if row["taso_seconds"]:
        ratio = learnt["acting_seconds"] / row["taso_seconds"]
        found.append(("acting, of TASO's time", ratio, "", f"≤ {ACTING_SHARE}", ratio <= ACTING_SHARE))
    return [bar(f"{name}, {row['best']}: {what}", *told) for what, *told in found]


def table(models: list[list[dict]], controllers: list[str]) -> str:
    """Markdown for docs/RESULTS.md; models: their runs."""
    heads = [
        "model", *(f"{c}: real (dreamt)" for c in controllers), "best controller, of the best known", "greedy", "random", "simulator", "best known",
        "interactions", "acting s", "TASO s", "four stages, minutes",
    ]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "| --- " + "| ---: " * (len(heads) - 1) + "|"]
    for runs in models:
        first, best = runs[0], [run["controllers"][run["best"]] for run in runs]
        shares = [100 * learnt["improvement"] / run["best_known"] for learnt, run in zip(best, runs, strict=True) if run["best_known"] > 0]
        cells = [
            first["model"],
            *("{} % ({})".format(*[mean([run["controllers"][c][what] for run in runs]) for what in ("improvement", "dreamt")]) for c in controllers),
            f"{'/'.join(dict.fromkeys(run['best'] for run in runs))}, {mean(shares, 1)} %" + (f", least {min(shares):.1f} %" if len(runs) > 1 else ""),
            f"{first['greedy']:.2f} %", f"{mean([run['random'] for run in runs])} %", f"{mean([run['known']['simulator'] for run in runs])} %",
            f"{max(run['best_known'] for run in runs):.2f} %",
            f"{max(learnt['interactions'] for learnt in best)}", f"{max(learnt['acting_seconds'] for learnt in best):.1f}",
            f"{first['taso_seconds']:.0f}" if first["taso_seconds"] else "–", f"{max(run['minutes'] for run in runs):.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rounds_table(models: list[list[dict]]) -> str:
    """What the plan of each round gains on the real graph (percent), and the last one's, of the first run."""
    counts = range(2, max(len(runs[0]["rounds"]) for runs in models) + 1)
    lines = ["| model | " + " | ".join(f"after {n - 1}" for n in counts) + " | the last plan |", "| --- " + "| ---: " * (len(counts) + 1) + "|"]
    for first, *_ in models:
        gains = [told["improvement"]["real"][0] if told["improvement"] else float("nan") for told in first["rounds"][1:]]
        lines.append(f"| {first['model']} | " + " | ".join(f"{gain:.2f}" for gain in (*gains, first["controllers"]["planner"]["improvement"])) + " |")
    return "\n".join(lines)


def mean(values: list[float], digits: int = 2) -> str:
    """With the half-width of the mean's 95 % interval, where there are several."""
    found = mean_interval(values)
    half = f" ± {found['high'] - found['mean']:.{digits}f}" if len(values) > 1 else ""
    return f"{found['mean']:.{digits}f}{half}"


def main() -> int:
    arguments = parser(__doc__, "runs/controllers")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument("--controllers", type=lambda text: text.split(","), default=list(CONTROLLERS), metavar="NAMES", help="with commas between them")
    arguments.add_argument("--rounds", type=int, default=6, help="of collecting and training the world model")
    arguments.add_argument("--episodes", type=int, default=60, help="random ones, with which it begins")
    arguments.add_argument("--workers", type=int, default=2, help="processes that collect")
    arguments.add_argument("--cost", default="analytic", help="the one that docs/results/searches.json is of")
    arguments.add_argument("--measure-seconds", type=float, default=0.0, help="end-to-end timing of each candidate; 0 leaves it out")
    arguments.add_argument("--seeds", type=int, default=1, help="runs of each model: --seed and those after it")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    names, seeds = parsed.model or list(MODELS), range(parsed.seed, parsed.seed + parsed.seeds)
    jobs = each(
        [f"{name}-{seed}" for name in names for seed in seeds], parsed.folder / "results",
        lambda key: Job(key.rpartition("-")[0], int(key.rpartition("-")[2]), parsed).work(),
    )  # fmt: skip
    known = read_json(SEARCHES)["figures"] if SEARCHES.exists() and parsed.cost == "analytic" else {}
    models = [[summary(name, seed, jobs[f"{name}-{seed}"], known.get(name, {}).get("searches", {})) for seed in seeds] for name in names]
    if parsed.table:
        print(table(models, parsed.controllers), rounds_table(models), sep="\n\n")
        return 0
    figures = {runs[0]["model"]: runs for runs in models}
    return finish("controllers", parsed, figures, [b for runs in models for run in runs for b in bars_of(run)])


if __name__ == "__main__":
    sys.exit(main())
