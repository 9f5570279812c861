"""X-RLflow's agent on shapes that it never saw, beside the control that the paper lacks: a receipt replayed there.

    python -m benchmarks.unseen_shapes                     both models, five unseen sizes, five seeds; resumable
    python -m benchmarks.unseen_shapes --model bert_base --seeds 1

An agent learns on a model at one size (as `benchmarks.transfer` has it: shown gains, imitating beam search) and acts on
it at five others: a greedy episode, and sampled ones as long as --seconds last, of which the best graph on the way
counts. Beside it stand an agent that learnt at that very size, and what costs nothing: the rewrites that beam search
made at the learnt size, carried out at the unseen one, as `optimise --receipt` does. Costs are estimates, improvements
percent of the original's at that size. BERT-Base takes the place of the paper's DALL-E, which is no model of the zoo.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import onnx

from benchmarks.harness import bar, each, finish, markdown, mean_and_half, parser
from benchmarks.transfer import environment
from controllers.xrlflow.imitation import INTERACTIONS
from rlflow.env.state import Task
from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.candidates import improvement
from rlflow.optimisation.receipt import carried_over
from rlflow.search import BeamOptions
from rlflow.search.base import Limits, run_search
from rlflow.zoo.convolutional import inception
from rlflow.zoo.transformers import EncoderSize, bert

JUDGES = (
    "benchmarks/transfer.py", "controllers/xrlflow", "rlflow/optimisation/receipt.py",
    "rlflow/env/candidates.py", "rlflow/env/candidates.py",
)  # fmt: skip

SAMPLES = 8
OF_TRAINED_THERE, MOST_SECONDS = 0.95, 10.0


def bert_base(tokens: int) -> onnx.ModelProto:
    return bert("bert_base", 0, EncoderSize(), False, vocabulary=30522, positions=512, sequence=tokens)


def inception_v3(image: int) -> onnx.ModelProto:
    widths = [32, 64, 64], [128, 160, 160, 192]
    return inception("inception_v3", 0, *widths, 2, d=1, image=image, classes=1000)


MODELS: dict[str, tuple[Callable[[int], onnx.ModelProto], int, tuple[int, ...]]] = {  # what makes it, learnt, unseen
    "inception_v3": (inception_v3, 299, (203, 235, 267, 363, 427)),
    "bert_base": (bert_base, 128, (32, 64, 96, 256, 384)),
}


def file_of(name: str, size: int, parsed) -> Path:
    """The model at a size."""
    path = parsed.folder / f"{name}-{size}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(MODELS[name][0](size), path)
    return path


def learnt(name: str, size: int, seed: int, parsed):
    """The agent that learns at a size; one that has learnt is opened."""
    from controllers.config import XRLflowConfig
    from controllers.real_env import train_for_real
    from controllers.xrlflow.agent import XRLflow
    from worldmodel.training import prepare_tensorflow

    prepare_tensorflow(seed, threads=1)
    agent = XRLflow(XRLflowConfig(updates=0, imitate=parsed.imitate, gains=True), seed)
    make = partial(environment, str(file_of(name, size, parsed)), agent.config, parsed)
    train_for_real(agent, make, sys.maxsize, seed, parsed.folder / f"agent-{name}-{size}-{seed}")
    return agent


def acts(name: str, learnt_at: int, size: int, seed: int, parsed) -> dict:
    """What an agent that learnt at one size comes to at another."""
    from controllers.evaluation import best_of

    agent = learnt(name, learnt_at, seed, parsed)
    began = time.monotonic()
    env = environment(str(file_of(name, size, parsed)), agent.config, parsed)
    opened = time.monotonic()
    tried = best_of(agent.players(), env, SAMPLES, seed, opened + parsed.seconds / 2)
    first = tried.trajectories[0].costs[0]
    return {
        "improvement": improvement(first, tried.cost), "episodes": len(tried.trajectories),
        "opening_seconds": opened - began, "seconds": time.monotonic() - opened,
    }  # fmt: skip


def searched(name: str, size: int, parsed) -> dict:
    """Beam search at a size. JSON-able."""
    start = task_of(name, size, parsed).initial
    result = run_search("beam", start, Limits(interactions=INTERACTIONS), parsed.seed, **asdict(BeamOptions()))
    gain = improvement(start.objective, result.state.objective)
    return {"improvement": gain, "seconds": result.seconds, "actions": [list(map(int, one)) for one in result.actions]}


def replayed(name: str, size: int, actions: list[list[int]], parsed) -> dict:
    """The same rewrites at another size, as `optimise --receipt` carries them out."""
    task = task_of(name, size, parsed)
    result = carried_over(task, [(task.rules[xfer_id].name, location) for xfer_id, location in actions])
    gain = improvement(task.initial.objective, result.state.objective)
    return {"improvement": gain, "left_out": result.left_out}


def task_of(name: str, size: int, parsed) -> Task:
    from rlflow.env.graph_rewrite import EnvSpec

    return EnvSpec(str(file_of(name, size, parsed)), cost=parsed.cost, threads=1).make_task()


# -- figures ---------------------------------------------------------------------------------------


def figures_of(parsed) -> dict:
    figures = {}
    seeds = range(parsed.seed, parsed.seed + parsed.seeds)
    for name in parsed.model or MODELS:
        _, base, unseen = MODELS[name]
        folder = parsed.folder / "results"
        search = partial(searched, name, base, parsed)
        receipt = each([f"{name}-search"], folder, lambda _, search=search: search())[f"{name}-search"]["actions"]
        for size in unseen:
            work = {"replay": partial(replayed, name, size, receipt, parsed)}
            work |= {"beam": partial(searched, name, size, parsed)}
            work |= {f"elsewhere-{seed}": partial(acts, name, base, size, seed, parsed) for seed in seeds}
            work |= {f"there-{seed}": partial(acts, name, size, size, seed, parsed) for seed in seeds}
            keys = {f"{name}-{size}-{key}": job for key, job in work.items()}
            replay, beam, *runs = each(list(keys), folder, lambda key, keys=keys: keys[key]()).values()
            figures[f"{name} at {size}"] = {
                "replay": replay, "beam": beam, "elsewhere": runs[: len(seeds)], "there": runs[len(seeds) :]
            }  # fmt: skip
    return figures


def mean_gain(runs: list[dict]) -> float:
    return sum(run["improvement"] for run in runs) / len(runs)


def bars_of(figures: dict) -> list[dict]:
    bars = []
    for name, one in figures.items():
        there = mean_gain(one["there"])
        share = mean_gain(one["elsewhere"]) / there if there > 0 else math.inf
        seconds = max(run["seconds"] for run in one["elsewhere"])
        bars += [
            bar(f"{name}: of an agent that learnt there", share, "", f"≥ {OF_TRAINED_THERE:g}",
                share >= OF_TRAINED_THERE),
            bar(f"{name}: acting", seconds, "s", f"≤ {MOST_SECONDS:g}", seconds <= MOST_SECONDS),
        ]  # fmt: skip
    return bars


def table(figures: dict) -> str:
    heads = ["model", "seeds", "learnt elsewhere", "learnt there", "receipt replayed", "beam there"]
    heads += ["acting s", "beam s"]
    rows = []
    for name, one in figures.items():
        gains = [mean_and_half([run["improvement"] for run in one[who]]) + " %" for who in ("elsewhere", "there")]
        gains += [f"{one[who]['improvement']:.2f} %" for who in ("replay", "beam")]
        seconds = max(run["seconds"] for run in one["elsewhere"])
        rows.append([name, len(one["there"]), *gains, f"{seconds:.1f}", f"{one['beam']['seconds']:.1f}"])
    return markdown(heads, rows)


def main() -> int:
    arguments = parser(__doc__, "runs/unseen_shapes")
    arguments.add_argument("--model", action="append", choices=list(MODELS), help="one model only; repeatable")
    arguments.add_argument("--seeds", type=int, default=5, help="how many agents, from --seed on")
    arguments.add_argument("--imitate", type=int, default=30, help="passes over what beam search did")
    arguments.add_argument("--steps", type=int, default=250, help="after which an episode is cut")
    arguments.add_argument("--seconds", type=float, default=MOST_SECONDS, help="of acting; after half none begins")
    arguments.add_argument("--cost", default="analytic")
    parsed = arguments.parse_args()
    figures = figures_of(parsed)
    return finish("unseen_shapes", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
