"""Rewards of match classes that include the later gains that a rewrite makes possible, not only its own gain.

Some rewrites gain nothing and lead to states from which much can be saved. The latent network learns the value of a
state: the share of the initial cost that the rest of an episode saves (`graph_latents.LatentBatches`). For one step of
random play from the latent state z to z',

    reward to go = gain + value(z') − value(z)

estimates the advantage of the step over random play (the temporal difference; Sutton 1988). A rewrite that gains 1 %
and leaves 1 % less to gain has the reward to go 0.
"""

import numpy as np

from worldmodel.edits.rule_learning import TrainingSet, evenly_drawn, new_moves
from worldmodel.graph_mdn.neural_costs import NodeRows

EPISODES_A_GRAPH = 24  # largest number of episodes of an initial graph whose states are valued, at equal distances
AT_ONCE = 64  # states that are encoded in one batch


def with_foresight(model, training: TrainingSet, rewritten: np.ndarray, weight: float) -> np.ndarray:
    """Return the rewards of match classes with the weighted value of the states that their rewrites lead to.

    Args:
      model: a `GraphMDNWorldModel` whose latent network is trained; its `usual_rewards` are the median gains.
      training: the training set of the model.
      rewritten: bool [K], True for the classes with data; all other classes keep their rewards.
      weight: the factor of the median change of value, which is added to the median gain of a class; 0 for the median
        gain alone.

    Returns:
      float32 [K]. A class whose rewrites are in none of the valued episodes keeps its reward.
    """
    earned: list[list[float]] = [[] for _ in range(len(rewritten))]
    for index, numbers in training.by_grounding.items():
        per_ps = model.rewards.of(training.initial_runtime(index)).per_ps
        rows, initial = NodeRows(index, model.table), float(training.initial_runtime(index))
        for k in evenly_drawn(numbers, EPISODES_A_GRAPH):
            episode = training.grounded[k]
            moves = np.flatnonzero(new_moves(episode))
            values = initial * _values(model, index, rows, episode.nodes)
            more = per_ps * weight * np.diff(values)
            for of_class, value in zip(index.match_class.values[episode.matches[moves]], more[moves], strict=True):
                earned[of_class].append(float(value))
    more = np.array([np.median(of_class) if of_class else 0.0 for of_class in earned], np.float32)
    return model.usual_rewards + np.where(rewritten, more, np.float32(0))


def _values(model, index, rows: NodeRows, nodes: list[np.ndarray]) -> np.ndarray:
    """Return float64 [n], the learned value of the states of an episode, as a share of the initial cost.

    Args:
      model: the world model.
      index: the grounding of the states.
      rows: the rows of the grounding's nodes.
      nodes: for each state, int64 [k], the numbers of its nodes; the first state is the initial graph.
    """
    parts = [model.graph_latents.sums(index, rows, nodes[at : at + AT_ONCE]) for at in range(0, len(nodes), AT_ONCE)]
    sums = np.concatenate(parts)
    return -model.latent_network.further((sums - sums[:1]).astype(np.float32)).numpy().astype(np.float64)
