"""What controllers that learnt in the dream find on real graphs, beside searches, random play and the exact simulator.

    python -m benchmarks.controllers --model bert_base          one model
    python -m benchmarks.controllers --default                  with configs/default.yaml as it is
    python -m benchmarks.controllers --seeds 5 --table          Markdown of its page: means, and 95 % intervals

For every model: the four stages of run.py in one run folder (`collect`, `train-wm --iterations` with the planner, then
`train-controller` and `eval` for each controller), with at most 10,000 real interactions in all, those of the
controller's own episodes included. Beside it stand greedy descent and random play of as many interactions (both by
`eval`), the same searches that the planner runs in the dream with 10,000 rewrites of the real graph ("simulator"), and
for as many seconds as collecting, training and acting took ("same seconds"; what learning timed for the profiled cost
is known to them), and the best that `python -m benchmarks.searches` found with any number of them
(docs/results/searches.json, of the analytic cost).

Six iterations, the analytic cost and a longer last search are not the defaults. --default leaves all options as they
are: the profiled cost, one iteration, no option changed but the controller's name.

Seconds are those of the stages; "acting" is the greedy episode on the real graph, which is the optimisation time of the
paper's Figure 7. Resumable: everything lies in --folder; give other options another one.
"""

import sys
from collections import Counter
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.harness import THREADS, bar, each, finish, markdown, mean_and_half, parser
from benchmarks.locations import PAPER
from benchmarks.optimise import LIGHT
from rlflow.cli.main import main as command_line
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.optimisation.candidates import improvement
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search

JUDGES = ("controllers", "worldmodel")

MODELS = (*PAPER, *LIGHT)
CONTROLLERS = ("planner", "ppo", "cma-es")
INTERACTIONS = 10_000
ACTING = 1_000  # of them, for the episodes of `eval`
ITERATION_STEPS = 10_000  # that the planner tries in the dream of an iteration
LONG = {"planner": ("controller.planner.steps=40000",)}  # in the last dream it may take its time
SEARCHES = Path(__file__).parent.parent / "docs" / "results" / "searches.json"
SEARCHED = {"simulator": "simulator", "same_seconds": "same seconds"}  # in the figures, in the table
ROUNDING = 1e-6  # points: rewards are float32, the sums of an episode's
SHARE, ACTING_SECONDS, ACTING_SHARE, MINUTES = 0.98, 5.0, 0.1, 15.0


class Job:
    """One model and seed."""

    def __init__(self, name: str, seed: int, parsed):
        self.name, self.seed, self.parsed = name, seed, parsed
        self.folder = parsed.folder / "runs" / f"{name}-{seed}"
        cost = load_config((), self.options()).cost
        self.spec = EnvSpec(name, cost=cost.name, threads=cost.threads, database=cost.database)

    def options(self) -> list[str]:
        """What is not as in configs/default.yaml."""
        parsed = self.parsed
        if parsed.default:
            return [f"cost.threads={THREADS}", *parsed.overrides]
        return [
            f"cost.threads={THREADS}", f"cost.name={parsed.cost}", f"collect.episodes={parsed.episodes}",
            f"iterations.interactions={INTERACTIONS - ACTING}",
            f"iterations.count={parsed.iterations}", "eval.samples=1", "eval.seeds=[0]",
            f"eval.measure_seconds={parsed.measure_seconds}",
            f"controller.planner.steps={ITERATION_STEPS}", *parsed.overrides,
        ]  # fmt: skip

    def work(self) -> dict:
        stages = {stage: self.stage(stage) for stage in ("collect", "train-wm")}
        controllers = {name: self.learnt(name) for name in self.parsed.controllers}
        training = max(
            one["seconds"]["train-controller"] + one["dreamt"][0]["acting_seconds"] for one in controllers.values()
        )
        seconds = sum(stage["seconds"] for stage in stages.values()) + training
        return {
            "stages": {name: stage["seconds"] for name, stage in stages.items()},
            "interactions": stages["train-wm"]["interactions"],
            "iterations": [self.iteration(one) for one in stages["train-wm"].get("iterations", [])],
            "controllers": controllers,
            "simulator": self.searched(Limits(interactions=INTERACTIONS // 2)),
            "same_seconds": self.searched(
                Limits(seconds=seconds / 2, memory=load_config((), self.options()).search.memory_mb * 2**20)
            ),
        }

    def iteration(self, logged: dict) -> dict:
        kept = {key: logged.get(key) for key in ("interactions", "dreamt_return")}
        return kept | {"improvement": logged.get("before", {}).get("improvement")}

    def stage(self, stage: str, controller: str = "planner", *more: str) -> dict:
        """What a stage of run.py leaves in the run folder."""
        options = [f"controller.name={controller}", f"workers={self.parsed.workers}", *self.options(), *more]
        if command_line([stage, "--run", str(self.folder), "--model", self.name, "--seed", str(self.seed), *options]):
            raise RLFlowError(f"'{stage}' failed on {self.name}")
        return read_json(self.folder / f"{stage}.json")

    def learnt(self, name: str) -> dict:
        """One controller, and the controls that `eval` puts beside it."""
        longer = () if self.parsed.default else LONG.get(name, ())
        trained, evaluated = (self.stage(stage, name, *longer) for stage in ("train-controller", "eval"))
        keys = (
            "estimated_improvement_percent", "interactions", "seconds", "path_ms", "equal", "measured", "rules",
        )  # fmt: skip
        candidates = {name: {key: one[key] for key in keys} for name, one in evaluated["candidates"].items()}
        return {
            "dreamt": evaluated["dreamt"], "candidates": candidates, "delivered": evaluated["delivered"],
            "seconds": {"train-controller": trained["seconds"], "eval": evaluated["seconds"]},
        }  # fmt: skip

    def searched(self, limits: Limits) -> dict:
        """The planner's searches on the real graph, each within these limits."""
        options, started, results = load_config((), self.options()).search, perf_counter(), {}
        for method in ("beam", "annealing"):
            results[method] = run_search(method, self.spec.make_task().initial, limits, self.seed, **options[method])
        method, best = min(results.items(), key=lambda entry: entry[1].state.cost.runtime_ps)
        start = self.spec.make_task().initial.cost.runtime_ps
        return {
            "improvement_percent": improvement(start, best.state.cost.runtime_ps), "method": method,
            "seconds": perf_counter() - started,
            "interactions": sum(result.interactions for result in results.values()),
        }  # fmt: skip


# -- figures ---------------------------------------------------------------------------------------


def summary(name: str, seed: int, job: dict, searches: dict) -> dict:
    """One run: improvements in percent of the original's estimated runtime, interactions, seconds."""
    learnt = {
        controller: {
            "improvement": one["candidates"]["controller"]["estimated_improvement_percent"],
            "interactions": one["candidates"]["controller"]["interactions"],
            "dreamt": one["dreamt"][0]["dreamt_return"],
            "real": one["dreamt"][0]["real_return"],
            "acting_seconds": one["dreamt"][0]["acting_seconds"],
            "seconds": sum(one["seconds"].values()),
            "descends_after_a_loss": detour(one["candidates"]["controller"]["path_ms"]),
        }
        for controller, one in job["controllers"].items()
    }
    best = max(learnt, key=lambda controller: learnt[controller]["improvement"])
    controls = job["controllers"][best]["candidates"]
    known = {
        method: result["improvement_percent"]
        for method, result in (*searches.items(), *((key, job[key]) for key in SEARCHED))
    }
    return {
        "model": name, "seed": seed, "controllers": learnt, "best": best, "known": known,
        "best_known": max(known.values()),
        "greedy": controls["greedy"]["estimated_improvement_percent"],
        "random": controls["random"]["estimated_improvement_percent"],
        "taso_seconds": searches["taso"]["seconds"] if "taso" in searches else None,
        "minutes": (sum(job["stages"].values()) + learnt[best]["seconds"]) / 60,
        "simulator_seconds": job["simulator"]["seconds"], "same_seconds": job["same_seconds"]["seconds"],
        "stages": job["stages"], "rounds": job["iterations"],
    }  # fmt: skip


def detour(path_ms: list[float]) -> dict | None:
    """The deepest loss on the way to the end: {"at": step, "lost_percent": of the original's runtime}; or None"""
    losses = [
        (after - before, step)
        for step, (before, after) in enumerate(zip(path_ms, path_ms[1:], strict=False))
        if after > before
    ]
    if not losses:
        return None
    lost, step = max(losses)
    return {"at": step, "lost_percent": 100 * lost / path_ms[0]}


def bars_of(row: dict) -> list[dict]:
    learnt, name = row["controllers"][row["best"]], f"{row['model']}, seed {row['seed']}"
    share = learnt["improvement"] / row["best_known"] if row["best_known"] > 0 else 1.0
    bars = [
        ("share of the best known", share, "", f"≥ {SHARE}", share >= SHARE),
        (
            "above greedy", learnt["improvement"] - row["greedy"], "points", "≥ 0",
            learnt["improvement"] >= row["greedy"] - 1e-9,
        ),
        (
            "above random", learnt["improvement"] - row["random"], "points", "≥ 0",
            learnt["improvement"] >= row["random"] - 1e-9,
        ),
        ("interactions", learnt["interactions"], "", f"≤ {INTERACTIONS}", learnt["interactions"] <= INTERACTIONS),
        ("acting", learnt["acting_seconds"], "s", f"≤ {ACTING_SECONDS}", learnt["acting_seconds"] <= ACTING_SECONDS),
        ("four stages", row["minutes"], "minutes", f"≤ {MINUTES}", row["minutes"] <= MINUTES),
    ]  # fmt: skip
    if row["taso_seconds"]:
        ratio = learnt["acting_seconds"] / row["taso_seconds"]
        bars.append(("acting, of TASO's time", ratio, "", f"≤ {ACTING_SHARE}", ratio <= ACTING_SHARE))
    return [bar(f"{name}, {row['best']}: {what}", *others) for what, *others in bars]


def table(figures: dict) -> str:
    """The best controller of each model beside searches and random play."""
    models = list(figures.values())
    controllers = list(models[0][0]["controllers"])
    heads = [
        "model", *(f"{c}: real (dreamt)" for c in controllers), "best controller, of the best known", "greedy",
        "random", *SEARCHED.values(), "best known",
        "interactions", "acting s", "TASO s", "four stages, minutes",
    ]  # fmt: skip
    rows = []
    for runs in models:
        first, best = runs[0], [run["controllers"][run["best"]] for run in runs]
        shares = [
            100 * learnt["improvement"] / run["best_known"]
            for learnt, run in zip(best, runs, strict=True)
            if run["best_known"] > 0
        ]
        cells = [
            first["model"],
            *(gain_and_dream([run["controllers"][name] for run in runs]) for name in controllers),
            f"{'/'.join(dict.fromkeys(run['best'] for run in runs))}, {mean_and_half(shares, 1)} %"
            + (f", least {min(shares):.1f} %" if len(runs) > 1 else ""),
            f"{first['greedy']:.2f} %", f"{mean_and_half([run['random'] for run in runs])} %",
            *(known_by(key, runs) for key in SEARCHED),
            f"{max(run['best_known'] for run in runs):.2f} %",
            f"{max(learnt['interactions'] for learnt in best)}",
            f"{max(learnt['acting_seconds'] for learnt in best):.1f}",
            f"{first['taso_seconds']:.0f}" if first["taso_seconds"] else "–",
            f"{max(run['minutes'] for run in runs):.1f}",
        ]  # fmt: skip
        rows.append(cells)
    return markdown(heads, rows)


def known_by(search: str, runs: list[dict]) -> str:
    """What a search found; means over runs."""
    gains = [run["known"][search] for run in runs if search in run["known"]]
    return f"{mean_and_half(gains)} %" if gains else "–"


def gain_and_dream(runs: list[dict]) -> str:
    """The improvement of a controller, and in brackets the one that it dreamt; means over runs."""
    improvement, dreamt = (mean_and_half([run[what] for run in runs]) for what in ("improvement", "dreamt"))
    return f"{improvement} % ({dreamt})"


def iterations_table(figures: dict) -> str:
    """What the plan of each iteration gains on the real graph (percent), the last one's, and greedy descent; of the
    first run."""
    rows, below = [], Counter()
    for first, *_ in figures.values():
        gains = {f"after {n}": one["improvement"]["real"][0] for n, one in enumerate(first["rounds"][1:], start=1)}
        gains["the last plan"] = first["controllers"]["planner"]["improvement"]
        below.update(when for when, gain in gains.items() if gain < first["greedy"] - ROUNDING)
        rows.append([first["model"], *(f"{gain:.2f}" for gain in (*gains.values(), first["greedy"]))])
    rows.append(["**below greedy**", *(f"{below[when]} of {len(figures)}" for when in gains), ""])
    return markdown(["model", *gains, "greedy"], rows)


def errors_table(figures: dict) -> str:
    """What the world model says of whole episodes that it had not seen, beside what they gained: the mean error of an
    iteration's episodes, in units of their mean gain or loss. Those that explore are in it."""
    rows, errors = [], []
    for first, *_ in figures.values():
        of_model = [one["improvement"]["relative_error"] for one in first["rounds"][1:]]
        errors += of_model
        rows.append([first["model"], *(f"{100 * error:.1f} %" for error in of_model)])
    played = [one["improvement"] for first, *_ in figures.values() for one in first["rounds"][1:]]
    plans = [abs(one["predicted"][0] / one["real"][0] - 1) for one in played if one["real"][0]]
    text = f"All {len(errors)}: median {100 * median(errors):.1f} %, greatest {100 * max(errors):.1f} %. "
    text += f"Of the plans only, the first episode of each iteration: greatest {100 * max(plans):.0e} %."
    return markdown(["model", *(f"after {n}" for n in range(1, len(of_model) + 1))], rows) + f"\n\n{text}"


def losses_table(figures: dict) -> str:
    """The deepest loss on the way to each best graph, percent of the original's runtime, and after how many steps."""
    rows = []
    for first, *_ in figures.values():
        loss = first["controllers"][first["best"]]["descends_after_a_loss"]
        rows.append([first["model"], loss["at"], f"{loss['lost_percent']:.3f}"] if loss else [first["model"], "–", "–"])
    return markdown(["model", "step", "lost, percent"], rows)


def main() -> int:
    arguments = parser(__doc__, "runs/controllers")
    arguments.add_argument("--model", action="append", choices=MODELS, help="one model only; repeatable")
    arguments.add_argument(
        "--controllers", type=lambda text: text.split(","), default=list(CONTROLLERS), metavar="NAMES",
        help="with commas between them",
    )  # fmt: skip
    arguments.add_argument(
        "--default",
        action="store_true",
        help="configs/default.yaml as it is: --iterations, --episodes, --cost and --measure-seconds say nothing",
    )
    arguments.add_argument("--iterations", type=int, default=6, help="of collecting and training the world model")
    arguments.add_argument("--episodes", type=int, default=60, help="random ones, with which it begins")
    arguments.add_argument("--workers", type=int, default=2, help="processes that collect")
    arguments.add_argument("--cost", default="analytic", help="the one that docs/results/searches.json is of")
    arguments.add_argument(
        "--measure-seconds", type=float, default=0.0, help="end-to-end timing of each candidate; 0 leaves it out"
    )
    arguments.add_argument("--seeds", type=int, default=1, help="runs of each model: --seed and those after it")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    if parsed.default:
        parsed.cost, parsed.folder = load_config((), parsed.overrides).cost.name, parsed.folder / "default"
    names, seeds = parsed.model or list(MODELS), range(parsed.seed, parsed.seed + parsed.seeds)
    jobs = each(
        [f"{name}-{seed}" for name in names for seed in seeds], parsed.folder / "results",
        lambda key: Job(key.rpartition("-")[0], int(key.rpartition("-")[2]), parsed).work(),
    )  # fmt: skip
    known = read_json(SEARCHES)["figures"] if SEARCHES.exists() and parsed.cost == "analytic" else {}
    figures = {
        name: [summary(name, seed, jobs[f"{name}-{seed}"], known.get(name, {}).get("searches", {})) for seed in seeds]
        for name in names
    }
    if parsed.table:
        print(table(figures), *([] if parsed.default else [iterations_table(figures)]), sep="\n\n")
        return 0
    return finish(
        "controllers", parsed, figures, [b for runs in figures.values() for run in runs for b in bars_of(run)]
    )


if __name__ == "__main__":
    sys.exit(main())
