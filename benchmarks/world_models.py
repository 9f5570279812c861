"""Fidelity of world models, and gains of agents that learn in their dreams, compared with searches on real graphs.

    python -m benchmarks.world_models [--model NAME_OR_PATH] [--seeds N] [--agents NAME ...] [--reward NAME]

For each model and seed, each world model learns from random episodes of the real environment, all of them
(`world_model.holdout=0`). The table *fidelity* has the errors of open-loop predictions (`worldmodel.fidelity`) on other
random episodes, from which nothing is learnt, beside two baselines: *no change* and the mean reward of each rule. The
row of graph-mdn is the last world model of the agents (see below): PPO played a quarter of its steps, and its seconds
are those of collection, both trainings, and the training and play of PPO between them. `--model` also takes the path of
an ONNX file, so that models on which nothing was tuned can be evaluated.

`--reward` chooses another reward, such as `combined`, equation 3 of the RLFlow paper; then only *fidelity* is made,
without the world model edits. `--agents` trains the named agents alone, and leaves out the rows of the world models in
which no agent learns.

*agents*: PPO and CMA-ES learn in the dream of graph-mdn, in two iterations as by default (controllers/iterations.py).
The first RANDOM_SHARE of the interactions are random. PPO learns in the dream of graph-mdn and plays the others,
graph-mdn learns again from all of them, and each agent learns in this dream. The agents then act on the real graph in
one greedy and eight sampled episodes of at most `controller.max_steps` steps, and the cheapest graph that any of them
visits counts. The controls are PPO before its training (the policy prior alone), PPO before its training and without
the prior, greedy descent and beam search. Beam search runs twice: with as many rewrites of the real graph as the world
model learnt from and an agent acted with, and for BEAM_SECONDS, about as long as all learning. *played* is the cheapest
graph of the episodes that the world model learnt from.

*dreams* compares the return of the agent's greedy episode in the dream with its return on the real graph. Figures 6 and
7 and table 3 of the RLFlow paper show the same quantities. All costs are estimates. A gain is the reduction of the cost
in percent of the original's cost.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from omegaconf import OmegaConf

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import NOTHING, THREADS, number, percent, search_gain, timed
from rlflow.collect.episodes import Episode, interactions_of, read_episodes
from rlflow.collect.rollouts import collect
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.runs.config import load_config
from rlflow.runs.folder import iterations_of
from rlflow.search.base import Limits

SHOWN = ("squeezenet1_1", "bert_base")  # models of the published page
WORLD_MODELS = ("graph-mdn", "mdn-rnn", "edits")
ACTING_IN = "graph-mdn"  # the world model in whose dream the agents learn
# Name of an agent in the tables → (name of the controller, options of its dreams, by default τ=1).
Agents = Mapping[str, tuple[str, Mapping]]
AGENTS: Agents = {"ppo": ("ppo", {}), "cma-es": ("cma-es", {})}
CONTROLS = "untrained", "no prior"
TEST_STEPS, TEST_SEED = 2000, 1000  # largest number of held-out steps; what is added to the seed to draw them
SAMPLES = 8  # sampled episodes of an acting agent
RANDOM_SHARE = 0.75  # share of random steps among the interactions of the agents, about as by default
BEAM_SECONDS = 600
COLUMNS = {  # column head of the table "fidelity" → path of the figure in the result of `worldmodel.fidelity.fidelity`
    "masks exact, 1 step": "horizons.1.model.mask_exact",
    "5 steps": "horizons.5.model.mask_exact",
    "20 steps": "horizons.20.model.mask_exact",
    "20 steps of no change": "horizons.20.no_change.mask_exact",
    "20 steps from the original": "first.20.model.mask_exact",
    "counts exact, 20 steps": "horizons.20.model.counts_exact",
    "counts exact, 20 steps from the original": "first.20.model.counts_exact",
    "steps in doubt": "horizons.20.uncertain",
    "error of summed reward, 20 steps": "horizons.20.model.cumulative_reward_relative",
    "the same of rule means": "horizons.20.rule_mean.cumulative_reward_relative",
    "rank correlation": "ranks.anywhere.model.correlation",
}


class Learning:
    """The stages from random episodes to acting agents, for one model, one kind of world model and one seed.

    It implements `controllers.iterations.Steps`.

    Args:
        model: name of a model of the zoo, or the path of an ONNX file.
        world_model: a name of WORLD_MODELS.
        seed: seed of all stages.
        folder: folder of episodes and checkpoints.
        interactions: largest number of steps of all random episodes for training together.
        options: options such as "env.reward=combined" that replace defaults.
    """

    def __init__(self, model: str, world_model: str, seed: int, folder: Path, interactions: int, *options: str):
        self.seed, self.folder, self.interactions = seed, folder, interactions
        defaults = f"world_model.name={world_model}", "world_model.holdout=0", "cost.name=analytic"
        self.config = load_config((), [*defaults, *options])
        env, cost = self.config.env, self.config.cost
        self.spec = EnvSpec(
            model, cost=cost.name, threads=THREADS, database=cost.database, reward=env.reward,
            max_locations=env.max_locations, max_steps=env.max_steps,
        )  # fmt: skip

    @cached_property
    def task(self):
        return self.spec.make_task()

    @cached_property
    def training(self) -> list[Episode]:
        """The random episodes for training."""
        return self._random("episodes", self.interactions, self.seed)

    @cached_property
    def held_out(self) -> list[Episode]:
        """Other random episodes, for the evaluation of the world model."""
        return self._random("held-out", TEST_STEPS, self.seed + TEST_SEED)

    def _random(self, name: str, interactions: int, seed: int) -> list[Episode]:
        """Collect random episodes of at most `interactions` steps in a folder with this name."""
        folder, played, count = self.folder / name, 0, 0
        while more := (interactions - played) // self.spec.max_steps:
            count += more
            played = collect(self.spec, folder, count, 1, seed, by_rule=self.config.collect.by_rule)["interactions"]
        return read_episodes(folder, count)

    def learn(self, number: int, episodes: Sequence[Episode]) -> dict:
        from worldmodel.train_and_load import prepare_tensorflow, train
        from worldmodel.world_model_options import world_model_config

        config = world_model_config(self.config.world_model)
        prepare_tensorflow(self.seed, config.threads)
        self.known = list(episodes)
        return train(config, self.task.encoding_spec, self.known, self.folder / str(number), self.seed)

    def model(self, number: int = 1):
        """Load the world model with this number from its folder."""
        from worldmodel.train_and_load import load

        return load(self.folder / str(number), self.task.encoding_spec)

    def dream(self, number: int, model):
        agent = self.agent(model)
        return agent, self.train(agent, model, f"agent-{number}")["best_return"]

    def play(self, number: int, controller, model, interactions: int) -> list[Episode]:
        from controllers.recording import Player, play_iteration

        player = Player(controller, self.real(), model, self.agent(model))
        folder = self.folder / f"played-{number}"
        return play_iteration(player, folder, interactions, interactions, (self.seed, number))

    def agent(self, model, name: str | None = None):
        """Return a new, untrained controller with this name, or of the kind that the options name."""
        from controllers import CONTROLLERS
        from controllers.controller_options import controller_config
        from worldmodel import spaces

        named = {} if name is None else {"controller": {"name": name}}
        config, observation = OmegaConf.merge(self.config, named), spaces.observation_space(model)
        kind, actions = CONTROLLERS.get(config.controller.name), spaces.action_space(model.spec)
        return kind(controller_config(config), observation, actions, self.seed)

    def dreams(self, model, count: int, **options):
        """Return a vector environment of `count` dreams with these options; each starts from the original graph."""
        from worldmodel.dream import DreamVectorEnv

        own = {key: value for key, value in self.config.dream.items() if key != "temperatures"}
        options = own | {"temperature": self.config.dream.temperatures[0]} | options
        return DreamVectorEnv(model, self.task.initial, count, **options)

    def train(self, agent, model, name: str, **options) -> dict:
        """Train an agent in dreams.

        Args:
            agent: the agent; it may imitate the best real episode first.
            model: the world model.
            name: name of the training.
            options: options of the dreams, such as temperature=2.
        """
        from controllers.recording import demonstrate

        demonstrate(agent, self.known, self.real(), model)
        return agent.train(partial(self.dreams, model, **options), self.seed, self.folder / name)

    def real(self) -> GraphRewriteEnv:
        return GraphRewriteEnv(self.task, self.spec.make_reward(), self.config.controller.max_steps, with_graph=False)

    def played(self, agent, number: int = 1) -> list[Episode]:
        """Return one greedy and then SAMPLES sampled episodes on the real graph.

        Args:
            agent: the agent.
            number: number of the world model whose observations it needs.
        """
        from controllers.recording import recorded

        return list(islice(recorded(agent, self.real(), self.model(number), self.seed + 1), 1 + SAMPLES))

    def acted(self, agent, number: int) -> dict:
        """Let an agent act on the real graph; see `played`.

        Returns:
            "gain": highest cumulative reward of any episode, in percent of the initial cost. "greedy_episode": return
            of the greedy episode, cut to the length of a dream. "interactions": steps of all episodes.
            "acting_seconds": duration.
        """
        started = time.perf_counter()
        episodes = self.played(agent, number)
        greedy = float(episodes[0].rewards[: self.config.dream.max_steps].sum())
        seconds, steps = time.perf_counter() - started, interactions_of(episodes)
        gain = best_of(episodes)
        return {"gain": gain, "greedy_episode": greedy, "interactions": steps, "acting_seconds": seconds}


def best_of(episodes: Sequence[Episode]) -> float:
    """Return the highest cumulative reward in any of some episodes; 0 if none has gained."""
    from controllers.recording import best_part

    return max(best_part(episode)[1] for episode in episodes)


def fidelity_of(model: str, world_model: str, seed: int, interactions: int, *options: str) -> dict:
    """Train a world model on random episodes and evaluate it on others.

    Args:
        model: name of a model of the zoo, or the path of an ONNX file.
        world_model: a name of WORLD_MODELS.
        seed: seed of the episodes and of the training.
        interactions: largest number of steps of the random episodes.
        options: options such as "env.reward=combined" that replace defaults.

    Returns:
        "fidelity": result of `worldmodel.fidelity.fidelity`. "seconds": duration of the training.
    """
    with TemporaryDirectory() as folder:
        return judged(Learning(model, world_model, seed, Path(folder), interactions, *options))


def judged(learning: Learning) -> dict:
    from worldmodel.fidelity import fidelity

    training = learning.training
    seconds = timed(lambda: learning.learn(1, training))
    return {"fidelity": fidelity(learning.model(), learning.held_out, training), "seconds": seconds}


def agents_of(model: str, seed: int, interactions: int, agents: Agents) -> dict:
    """Learn in iterations, train agents in the last dream, and compare their gains with controls.

    Args:
        model: name of a model of the zoo, or the path of an ONNX file.
        seed: seed of all stages.
        interactions: largest number of steps that the world model learns from. Searches may do as many rewrites, and
            as many as the acting of the agent that acts longest.
        agents: the agents to train.

    Returns:
        "agents": name → result of `Learning.acted`. Trained agents also have "dreamt", the return of the best policy
            in the dream, and "seconds" of collection and training. "untrained" is PPO before its training, and "no
            prior" the same without its prior. "played": the gain of the best episode that the world model learnt from.
            "searches": name → result of `search_gain`. "fidelity": result of `fidelity_of` for the last world model.
    """
    from controllers.iterations import learn_in_iterations
    from worldmodel.fidelity import fidelity

    result, count = {}, iterations_of(load_config())
    with TemporaryDirectory() as folder:
        learning = Learning(model, ACTING_IN, seed, Path(folder), round(RANDOM_SHARE * interactions))
        started = time.perf_counter()
        training = learning.training
        learn_in_iterations(learning, training, count, interactions - interactions_of(training))
        seconds, world_model = time.perf_counter() - started, learning.model(count)
        judging = {"fidelity": fidelity(learning.model(count), learning.held_out, learning.known), "seconds": seconds}
        ppo = learning.agent(world_model, "ppo")
        result["untrained"] = learning.acted(ppo, count)
        result["no prior"] = learning.acted(ppo.without_prior(), count)
        for label, (name, options) in agents.items():
            agent, started = learning.agent(world_model, name), time.perf_counter()
            trained = learning.train(agent, world_model, label, **options)
            training_seconds = seconds + time.perf_counter() - started
            more = {"dreamt": float(trained["best_return"]), "seconds": training_seconds}
            result[label] = learning.acted(agent, count) | more
        limit = Limits(interactions=interactions + max(one["interactions"] for one in result.values()))
        searches = {method: search_gain(learning.spec, method, limit, seed) for method in ("beam", "greedy")}
        played = best_of(learning.known)
    return {"agents": result, "searches": searches, "fidelity": judging, "played": played}


def beam_of(model: str) -> dict:
    """Return the result of `search_gain` for beam search of BEAM_SECONDS."""
    spec = Learning(model, ACTING_IN, 0, Path(), 0).spec
    return search_gain(spec, "beam", Limits(seconds=BEAM_SECONDS, memory=4 * 2**30))


# -- tables ------------------------------------------------------------------------------------------


def at(figures: dict | None, path: str) -> float | None:
    """Return the entry at a path, for instance 1 for `at({"a": {"b": 1}}, "a.b")`; None if there is no such entry."""
    for key in path.split("."):
        figures = figures.get(key) if figures else None
    return figures


def tables(
    fidelity: dict[tuple[str, str], list[dict]], agents: dict[str, list[dict]], beams: dict[str, dict]
) -> dict[str, Table]:
    """Return the tables "fidelity", "agents" and "dreams" (see the module docstring).

    Args:
        fidelity: (model, world model) → one result of `fidelity_of` for each seed.
        agents: model → one result of `agents_of` for each seed.
        beams: model → result of `beam_of`.
    """
    played = dict.fromkeys(name for runs in agents.values() for name in runs[0]["agents"])
    trained = [name for name in played if name not in CONTROLS]
    rows = []
    for (model, world_model), runs in fidelity.items():
        cells = []
        for head, path in COLUMNS.items():
            values = [value for run in runs if (value := at(run["fidelity"], path)) is not None]
            mean = float(np.mean(values)) if values else None
            is_share = head != "rank correlation"
            cells.append(percent(100 * mean, 1) if is_share and mean is not None else number(mean))
        rows.append([model, world_model, len(runs), *cells, number(max(run["seconds"] for run in runs), 0)])
    heads = ["model", "world model", "seeds", *COLUMNS, "learning, s"]
    gains, dreams = [], []
    for model, runs in agents.items():
        of = {label: [run["agents"][label] for run in runs] for label in (*trained, *CONTROLS)}
        searches = [[run["searches"][way]["gain"] for run in runs] for way in ("greedy", "beam")]
        searches.append([beams[model]["gain"]] if model in beams else [])
        searches.append([run["played"] for run in runs])
        means = [percent([one["gain"] for one in of[label]]) for label in of]
        seconds = max(one["seconds"] for one in of[trained[0]])
        cells = [percent(values) if values else NOTHING for values in searches]
        gains.append([model, len(runs), *means, *cells, number(seconds, 0)])
        for label in trained:
            dreamt, real = ([one[key] for one in of[label]] for key in ("dreamt", "greedy_episode"))
            off = [a - b for a, b in zip(dreamt, real, strict=True)]
            dreams.append([model, label, percent(dreamt), percent(real), percent(off)])
    agent_heads = ["model", "seeds", *trained, "untrained policy", "no prior", "greedy descent"]
    agent_heads += ["beam, same interactions", f"beam, {BEAM_SECONDS} s", "played", "learning, s"]
    dream_heads = ["model", "agent", "dreamt return", "real return", "dreamt less real"]
    return {
        "fidelity": Table(heads, rows, text_columns=2),
        "agents": Table(agent_heads, gains),
        "dreams": Table(dream_heads, dreams, text_columns=2),
    }


def models_of(arguments, given: Sequence[str]) -> dict[str, str]:
    """Return {name in the tables: zoo name or path}; end with an error of the parser if two names are equal."""
    models = {Path(model).stem: model for model in given}
    if len(models) < len(given):
        arguments.error("two models have the same name")
    return models


def main() -> int:
    arguments = parser(__doc__, seeds=3)
    arguments.add_argument("--model", action="append", help="a zoo name or an ONNX file, only; repeatable")
    arguments.add_argument("--agents", nargs="+", choices=AGENTS, help="agents to train; only their world model's row")
    arguments.add_argument("--reward", default="relative", help="env.reward; another than relative: fidelity alone")
    arguments.add_argument("--interactions", type=int, default=10_000, help="real steps (default 10,000)")
    parsed = arguments.parse_args()
    models = models_of(arguments, parsed.model or SHOWN)
    record, seeds, n = Record("world_models", parsed), range(parsed.seeds), parsed.interactions
    calls, kinds, reward = {}, list(WORLD_MODELS), f"env.reward={parsed.reward}"
    if parsed.reward == "relative":
        agents = {name: AGENTS[name] for name in parsed.agents or AGENTS}
        for seed in seeds:
            calls |= {f"{name}-agents-{seed}": (agents_of, model, seed, n, agents) for name, model in models.items()}
        calls |= {f"{name}-beam": (beam_of, model) for name, model in models.items()}
        kinds.remove(ACTING_IN)  # `agents_of` trains it
    else:
        kinds.remove("edits")
        if parsed.agents:
            arguments.error("agents learn only with --reward relative")
    if parsed.agents:
        kinds.clear()
    for name, model in models.items():
        for kind in kinds:
            of_seed = {seed: (fidelity_of, model, kind, seed, n, reward) for seed in seeds}
            calls |= {f"{name}-{kind}-{seed}": call for seed, call in of_seed.items()}
    figures = record.all_parts(calls, at_once=2)

    def of_seeds(name: str) -> list[dict]:
        return [figures[f"{name}-{seed}"] for seed in seeds if f"{name}-{seed}" in figures]

    agents, fidelity = {model: runs for model in models if (runs := of_seeds(f"{model}-agents"))}, {}
    for model in models:
        fidelity[model, ACTING_IN] = [run["fidelity"] for run in agents.get(model, ())]
        for label in kinds:
            fidelity[model, label] = of_seeds(f"{model}-{label}")
    fidelity = {pair: runs for pair, runs in fidelity.items() if runs}
    note = f"{n:,} interactions with the real environment for each world model. Two parts ran side by side."
    beams = {model: figures[f"{model}-beam"] for model in models if f"{model}-beam" in figures}
    record.publish(tables(fidelity, agents, beams), note)
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
