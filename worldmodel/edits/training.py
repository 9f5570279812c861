"""The training of the world model "edits", which needs a few passes over the episodes and no gradients."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rlflow.collect.edits import pack
from rlflow.collect.episodes import Episode, interactions_of
from rlflow.common.task import EncodingSpec
from worldmodel.edits.class_rewards import add_dreamt_classes, learn_class_rewards, with_predicted_rewards
from worldmodel.edits.cost_training import learn_costs, with_solved_costs
from worldmodel.edits.model import EditsWorldModel
from worldmodel.edits.node_values import MAX_LATENT_STATES, Latents
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.rule_learning import TrainingSet, evenly_drawn, first_new_state
from worldmodel.train_and_load import Trained, split_episodes
from worldmodel.world_model_options import EditsConfig


def train(
    config: EditsConfig, spec: EncodingSpec, source: Sequence[Episode] | Callable, folder: Path | str, seed: int,
    log=None, progress=None,
) -> Trained:  # fmt: skip
    """Train and save the model; see `worldmodel.train_and_load.train` for the arguments.

    The training takes seconds, so it writes no checkpoint. An interrupted training starts again.
    """
    training, held_out = split_episodes(source, config.holdout, seed)
    model = fit(config, spec, training)
    model.save(folder)
    results = {"interactions": interactions_of(source)} | _knowledge_counts(model)
    if log is not None:
        log(1, {name: float(value) for name, value in results.items()})
    if progress is not None:
        progress.update(1)
    return Trained(model, held_out, results)


def _knowledge_counts(model: EditsWorldModel) -> dict[str, int]:
    """Count what the model has learned.

    Returns:
      {"patterns": number of match patterns, "signatures": number of signatures with which a pattern applied, "effects":
      number of these signatures with an observed rewrite}.
    """
    patterns = model.groundings.rules.patterns
    return {
        "patterns": len(patterns),
        "signatures": sum(len(learned.effects) for learned in patterns),
        "effects": sum(bool(seen) for learned in patterns for seen in learned.effects.values()),
    }


def fit(config: EditsConfig, spec: EncodingSpec, episodes: Sequence[Episode]) -> EditsWorldModel:
    """Learn a world model from episodes.

    Args:
      config: the options of the model.
      spec: the encoding of the episodes.
      episodes: the training episodes; all of them have edits.
    """
    rewards = RewardScales.learn(episodes, spec.n_rules)  # first, because unsupported rewards raise an error
    training = TrainingSet.of(episodes, spec.n_rules)
    if config.supervision == "scalar":
        training = with_solved_costs(training)
    costs = learn_costs(training, spec.n_rules)
    latents = learn_latents(training, config.latent)
    usual_rewards, rewritten = learn_class_rewards(training, rewards)
    rules, best = training.groundings.rules, best_trajectories(training)
    model = EditsWorldModel(spec, config, rules, costs, latents, rewards, usual_rewards, best)
    model.usual_rewards, has_own = with_predicted_rewards(model, training, rewritten)
    add_dreamt_classes(model, training, has_own)
    return model


def best_trajectories(training: TrainingSet) -> dict[int, np.ndarray]:
    """Return, for each initial graph, the edits that lead to its cheapest state in the training set.

    Returns:
      {runtime of the initial graph in ps: packed edits (see `rlflow.collect.edits.unpack`)}.
    """
    result = {}
    for index, numbers in training.by_grounding.items():
        best = min(numbers, key=lambda k: training.episodes[k].costs.min())
        steps, log = int(training.episodes[best].costs.argmin()), training.logs[best]
        result[training.initial_runtime(index)] = pack(log.edits[: steps + 1], log.taken[:steps])
    return result


def learn_latents(training: TrainingSet, latent: int) -> Latents:
    """Fit the latent vectors of operator signatures to states of the training set.

    States that an earlier episode logged too are left out. At most MAX_LATENT_STATES of the other states are used, at
    equal distances.

    Args:
      training: the training set.
      latent: Z, the size of the latent vectors.
    """
    states = []
    for index, numbers in training.by_grounding.items():
        for k in numbers:
            episode = training.grounded[k]
            states += [(index, k, t) for t in range(first_new_state(episode), len(episode.nodes))]
    keys = np.unique(np.concatenate([index.signature_hash.values for index in training.by_grounding]))
    columns = {index: np.searchsorted(keys, index.signature_hash.values) for index in training.by_grounding}
    occurrences, targets = [], []
    for index, k, t in evenly_drawn(states, MAX_LATENT_STATES):
        episode = training.episodes[k]
        occurrences.append(np.bincount(columns[index][training.grounded[k].nodes[t]], minlength=len(keys)))
        targets.append(np.append(episode.counts[t], episode.costs[t] / episode.costs[0]))
    return Latents.learn(keys, np.stack(occurrences).astype(np.float64), np.stack(targets).astype(np.float64), latent)
