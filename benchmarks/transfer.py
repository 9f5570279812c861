"""X-RLflow's agent on models and on sizes that it never saw, beside the untrained agent, plain search and a receipt.

    python -m benchmarks.transfer [--fold K]

*models*: fifteen graphs in three folds. For each fold an agent learns on small graphs of the other folds and acts on
the graphs of its own. It is shown the estimated gain of each candidate, so that it starts near greedy descent, and
imitates beam search there. It acts by a greedy and four sampled episodes; the best graph on the way counts. The
untrained agent does the same.

*sizes*: an agent learns on a model at one size and acts at other sizes. The controls are the untrained agent, beam
search at that size, and the rewrites that beam search made at the learnt size, carried out at the other size as
`optimise --receipt` does.

Costs are estimates, gains percent of the original's.
"""

import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import MODELS, number, percent, search_gain
from rlflow.env.candidates import CandidateEnv
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.step import MultiModelEnv
from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.candidates import improvement
from rlflow.optimisation.receipt import carried_over
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search
from rlflow.zoo.convolutional import inception
from rlflow.zoo.transformers import EncoderSize, bert

FOLDS = (  # graphs of one family lie in different folds, so that one can be learnt from
    ("squeezenet1_1", "resnet18", "light_resnet50", "light_inception_v1", "light_zfnet512"),
    ("light_squeezenet", "resnet50", "inception_v3", "bert_base", "light_vgg19"),
    ("light_inception_v2", "light_densenet121", "light_shufflenet", "vit_base", "light_bvlc_alexnet"),
)
LEARN_ON = (  # the smaller graphs; an agent learns on the smaller graphs of the other folds
    "squeezenet1_1", "light_squeezenet", "resnet18", "resnet50", "light_resnet50", "light_inception_v1",
    "light_shufflenet", "light_vgg19", "light_bvlc_alexnet", "light_zfnet512",
)  # fmt: skip
PASSES, INTERACTIONS, STEPS, SAMPLES = 20, 10_000, 400, 4  # of imitation; of a beam; of an episode; episodes
SIZES = {  # model at a size, the size that the agent learns at, sizes that it never saw
    "inception_v3": (
        lambda image: inception(
            "inception_v3", 0, [32, 64, 64], [128, 160, 160, 192], 2, d=1, image=image, classes=1000
        ),
        299, (203, 267, 427),
    ),
    "bert_base": (
        lambda tokens: bert("bert_base", 0, EncoderSize(), False, vocabulary=30522, positions=512, sequence=tokens),
        128, (32, 96, 384),
    ),
}  # fmt: skip


def agent(seed: int, *also: str):
    """Return an untrained agent that imitates; `also` names further models that it learns on."""
    from controllers.controller_options import XRLflowConfig
    from controllers.xrlflow.agent import XRLflow
    from worldmodel.train_and_load import prepare_tensorflow

    prepare_tensorflow(seed, threads=1)
    return XRLflow(XRLflowConfig(updates=0, imitate=PASSES, also=also, gains=True), seed)


def environment(model: str, config) -> CandidateEnv:
    spec = EnvSpec(model, cost="analytic", reward="relative", threads=1)
    return CandidateEnv(GraphRewriteEnv(spec.make_task(), spec.make_reward(), STEPS), config.layers, config.gains)


def learn(seed: int, models: list[str], folder: Path):
    """Return an agent that has learnt on these models, in turns."""
    from controllers.real_env import train_for_real

    result = agent(seed, *models[1:])
    train_for_real(
        result, lambda: MultiModelEnv([environment(one, result.config) for one in models]), sys.maxsize, seed, folder
    )
    return result


def acted(player, model: str, seed: int) -> dict:
    """Return an agent's gain on a model by the best graph on its way, its greedy episode's return, and seconds."""
    from controllers.evaluation import best_of

    started, env = time.perf_counter(), environment(model, player.config)
    tried = best_of([player], env, SAMPLES, seed)
    first = tried.trajectories[0]
    return {
        "gain": improvement(first.costs[0], tried.cost), "greedy_episode": sum(first.rewards),
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def fold_gains(fold: int, seed: int) -> dict:
    """Return model → gains of the agent, of the untrained agent and of plain searches, for the graphs of a fold."""
    started, learn_on = time.perf_counter(), [name for name in LEARN_ON if name not in FOLDS[fold]]
    result = {}
    with TemporaryDirectory() as folder:
        learnt, untrained = learn(seed, learn_on, Path(folder)), agent(seed)
        learning = time.perf_counter() - started
        for model in FOLDS[fold]:
            spec, limits = EnvSpec(model, cost="analytic", threads=1), Limits(interactions=INTERACTIONS)
            result[model] = {
                "learnt": acted(learnt, model, seed), "untrained": acted(untrained, model, seed),
                "greedy": search_gain(spec, "greedy", limits), "beam": search_gain(spec, "beam", limits),
                "learning_seconds": learning,
            }  # fmt: skip
            seconds = Limits(seconds=result[model]["learnt"]["seconds"])
            result[model]["beam_same_seconds"] = search_gain(spec, "beam", seconds)
    return result


def size_gains(model: str, seed: int) -> dict:
    """Return size → gains at sizes of a model that the agent never saw."""
    make, base, unseen = SIZES[model]
    result = {}
    with TemporaryDirectory() as name:
        folder = Path(name)

        def file(size: int) -> str:
            path = folder / f"{model}-{size}.onnx"
            if not path.exists():
                save_model(make(size), path)
            return str(path)

        learnt, untrained = learn(seed, [file(base)], folder / "agent"), agent(seed)
        spec, limits = partial(EnvSpec, cost="analytic", threads=1), Limits(interactions=INTERACTIONS)
        task = spec(file(base)).make_task()
        found = run_search("beam", task.initial, limits, seed, **load_config().search.beam)
        rewrites = [(task.rules[rule].name, location) for rule, location in found.actions]
        for size in unseen:
            task = spec(file(size)).make_task()
            replayed = carried_over(task, rewrites)
            result[str(size)] = {
                "learnt": acted(learnt, file(size), seed), "untrained": acted(untrained, file(size), seed),
                "receipt": improvement(task.initial.objective, replayed.state.objective),
                "beam": search_gain(spec(file(size)), "beam", limits),
            }  # fmt: skip
    return result


def tables(folds: list[list[dict]], sizes: dict[str, list[dict]]) -> dict[str, Table]:
    """Return the tables of unseen models and of unseen sizes.

    Args:
        folds: for each fold, the results of `fold_gains` of all seeds.
        sizes: model → results of `size_gains` of all seeds.
    """
    models, shapes = [], []
    for runs in folds:
        for model in runs[0] if runs else ():
            of_model = [run[model] for run in runs]

            def gains(who: str, what: str = "gain", of_model=of_model) -> str:
                return percent([one[who][what] for one in of_model])

            best = max(one[who]["gain"] for one in of_model for who in ("learnt", "untrained", "greedy", "beam"))
            models.append([
                model, len(runs), gains("learnt"), gains("learnt", "greedy_episode"), gains("untrained"),
                gains("greedy"), gains("beam"), gains("beam_same_seconds"), percent(best),
                number(max(one["learnt"]["seconds"] for one in of_model), 1),
            ])  # fmt: skip
    for model, runs in sizes.items():
        for size in runs[0] if runs else ():
            cells = [percent([run[size][who]["gain"] for run in runs]) for who in ("learnt", "untrained", "beam")]
            receipt = percent([run[size]["receipt"] for run in runs])
            shapes.append([f"{model} at {size}", len(runs), *cells, receipt])
    heads = ["model", "seeds", "agent", "agent, greedy episode", "untrained agent", "greedy descent"]
    heads += [f"beam, {INTERACTIONS:,} rewrites", "beam, seconds of acting", "best known", "acting, s"]
    heads_of_sizes = ["model at an unseen size", "seeds", "agent", "untrained agent", "beam there", "receipt replayed"]
    return {"models": Table(heads, models), "sizes": Table(heads_of_sizes, shapes)}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--fold", type=int, choices=range(len(FOLDS)), help="the graphs of this fold only")
    parsed = arguments.parse_args()
    record = Record("transfer", parsed)
    folds = range(len(FOLDS)) if parsed.fold is None else [parsed.fold]
    calls = {f"fold-{fold}-{seed}": (fold_gains, fold, seed) for fold in folds for seed in range(parsed.seeds)}
    if parsed.fold is None:
        calls |= {f"{model}-{seed}": (size_gains, model, seed) for model in SIZES for seed in range(parsed.seeds)}
    figures = record.all_parts(calls, at_once=2)

    def of_seeds(name: str) -> list[dict]:
        return [one for key, one in figures.items() if key.rpartition("-")[0] == name]

    result = tables([of_seeds(f"fold-{fold}") for fold in folds], {model: of_seeds(model) for model in SIZES})
    record.publish(result, "Costs are estimates. Two parts ran side by side, each on a core of its own.")
    return record.status


assert sorted(sum(FOLDS, ())) == sorted(MODELS)

if __name__ == "__main__":
    sys.exit(run(main))
