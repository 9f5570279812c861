"""Transfer of X-RLflow's agent to models and sizes that its training did not contain, compared with searches.

    python -m benchmarks.transfer [--fold K]

*models*: fifteen graphs in three folds. For each fold, an agent is trained on the small graphs of the other two folds
and acts on the graphs of this fold. The agent observes the estimated gain of each successor graph, so its initial
policy is near greedy descent. The training imitates beam search. The agent acts in one greedy and four sampled
episodes, and the cheapest graph that any of them visits counts. The untrained agent does the same.

*sizes*: an agent is trained on a model at one size and acts at other sizes. The controls are the untrained agent, beam
search at the other size, and the rewrites that beam search found at the training size, applied at the other size as
`optimise --receipt` does.

All costs are estimates. A gain is the reduction of the cost in percent of the original's cost.
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

FOLDS = (  # similar graphs are in different folds, so that the training for a fold contains a similar graph
    ("squeezenet1_1", "resnet18", "light_resnet50", "light_inception_v1", "light_zfnet512"),
    ("light_squeezenet", "resnet50", "inception_v3", "bert_base", "light_vgg19"),
    ("light_inception_v2", "light_densenet121", "light_shufflenet", "vit_base", "light_bvlc_alexnet"),
)
LEARN_ON = (  # the smaller graphs, on which agents are trained
    "squeezenet1_1", "light_squeezenet", "resnet18", "resnet50", "light_resnet50", "light_inception_v1",
    "light_shufflenet", "light_vgg19", "light_bvlc_alexnet", "light_zfnet512",
)  # fmt: skip
# Passes of imitation; interactions of a search; most steps of an episode; sampled episodes of an acting agent.
PASSES, INTERACTIONS, STEPS, SAMPLES = 20, 10_000, 400, 4
SIZES = {  # name → (function from a size to the model, size of the training, sizes at which the agent acts)
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
    """Return an untrained X-RLflow agent that is configured to learn only by imitation of beam search.

    Args:
        seed: seed of the agent.
        also: names or paths of the models, except the first one, on which the agent will be trained.
    """
    from controllers.controller_options import XRLflowConfig
    from controllers.xrlflow.agent import XRLflow
    from worldmodel.train_and_load import prepare_tensorflow

    prepare_tensorflow(seed)
    return XRLflow(XRLflowConfig(updates=0, imitate=PASSES, also=also, gains=True), seed)


def environment(model: str, config) -> CandidateEnv:
    spec = EnvSpec(model, cost="analytic", reward="relative", threads=1)
    env = GraphRewriteEnv(spec.make_task(), spec.make_reward(), STEPS, with_graph=False)
    return CandidateEnv(env, config.layers, config.gains)


def learn(seed: int, models: list[str], folder: Path):
    """Return an agent that has been trained on these models.

    Args:
        seed: seed of the agent and of its training.
        models: names or paths of the models.
        folder: folder of the checkpoints.
    """
    from controllers.real_env import train_for_real

    result = agent(seed, *models[1:])
    train_for_real(
        result, lambda: MultiModelEnv([environment(one, result.config) for one in models]), sys.maxsize, seed, folder
    )
    return result


def acted(player, model: str, seed: int) -> dict:
    """Play one greedy and SAMPLES sampled episodes of an agent on a model.

    Args:
        player: the agent.
        model: name or path of the model.
        seed: seed of the episodes.

    Returns:
        "gain": gain of the cheapest visited graph in percent. "greedy_episode": sum of the rewards of the greedy
            episode. "seconds": duration.
    """
    from controllers.evaluation import best_of

    env, started = environment(model, player.config), time.perf_counter()
    tried = best_of([player], env, SAMPLES, seed)
    first = tried.trajectories[0]
    return {
        "gain": improvement(first.costs[0], tried.cost), "greedy_episode": sum(first.rewards),
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def fold_gains(fold: int, seed: int) -> dict:
    """Train an agent on the small graphs of the other folds and compare its gains on each graph of this fold.

    Args:
        fold: index of the fold in FOLDS.
        seed: seed of the agents.

    Returns:
        model → "learnt" and "untrained": results of `acted`; "greedy", "beam" and "beam_same_seconds" (as long as the
            agent acted): results of `search_gain`.
    """
    learn_on = [name for name in LEARN_ON if name not in FOLDS[fold]]
    result = {}
    with TemporaryDirectory() as folder:
        learnt, untrained = learn(seed, learn_on, Path(folder)), agent(seed)
        for model in FOLDS[fold]:
            spec, limits = EnvSpec(model, cost="analytic", threads=1), Limits(interactions=INTERACTIONS)
            result[model] = {
                "learnt": acted(learnt, model, seed), "untrained": acted(untrained, model, seed),
                "greedy": search_gain(spec, "greedy", limits), "beam": search_gain(spec, "beam", limits),
            }  # fmt: skip
            seconds = Limits(seconds=result[model]["learnt"]["seconds"])
            result[model]["beam_same_seconds"] = search_gain(spec, "beam", seconds)
    return result


def size_gains(model: str, seed: int) -> dict:
    """Train an agent on a model at one size and compare its gains at the other sizes of SIZES.

    Args:
        model: key of SIZES.
        seed: seed of the agents and of beam search at the training size.

    Returns:
        size → "learnt" and "untrained": results of `acted`; "receipt": gain in percent of the rewrites that beam search
            found at the training size; "beam": result of `search_gain` at this size.
    """
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
    """Return the table "models" of unseen models and the table "sizes" of unseen sizes.

    Args:
        folds: for each fold, one result of `fold_gains` per seed.
        sizes: model → one result of `size_gains` per seed.
    """
    models, shapes = [], []
    for runs in folds:
        for model in runs[0] if runs else ():
            of_model = [run[model] for run in runs]

            def gains(who: str, what: str = "gain", of_model=of_model) -> str:
                return percent([one[who][what] for one in of_model])

            every = "learnt", "untrained", "greedy", "beam", "beam_same_seconds"
            best = max(one[who]["gain"] for one in of_model for who in every)
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
    arguments = parser(__doc__, seeds=1)
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
