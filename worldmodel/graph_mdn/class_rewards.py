"""What match classes gain that nobody ever rewrote: what the networks say of some of their matches.

Controllers begin at mean rewards. In ten thousand random steps most classes that are met are never rewritten, and one
that is taken to gain nothing is hardly tried in a dream either, although the dream knows better.
"""

import numpy as np

from worldmodel.edits.grounded_episodes import ground_episode
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.training_set import TrainingSet

EPISODES, STATES = 32, 64  # of a graph, evenly drawn
TRIES = 4  # matches of a class, each in a state of its own


def with_predicted(model, training: TrainingSet) -> np.ndarray:
    """The model's mean rewards, float32 [K]; of classes that were never rewritten those that it predicts, or, of such
    that no state has that is asked about, those of the rule's other classes."""
    known, total, times = model.mean_rewards != 0, np.zeros(len(model.mean_rewards)), np.zeros(len(model.mean_rewards))
    for own, numbers in training.by_grounding.items():
        index = model.groundings.of(training.logs[numbers[0]].edits[0])
        states = []
        for k in _evenly(numbers, EPISODES):
            states += _evenly(ground_episode(index, training.logs[k]).nodes, STATES // EPISODES)
        classes, gains = _gains(model, index, states, ~known)
        per_ps = model.rewards.of(training.initial_runtime(own)).per_ps
        np.add.at(total, classes, per_ps * gains)
        np.add.at(times, classes, 1)
    predicted = np.where(known, model.mean_rewards, total / np.maximum(times, 1))
    said = known | (times > 0)
    n, rules = int(model.match_classes.max()) + 1, model.match_classes
    usual = np.bincount(rules, predicted * said, n) / np.maximum(np.bincount(rules, said, n), 1)
    return np.where(said, predicted, usual[rules]).astype(np.float32)


def _evenly(items: list, count: int) -> list:
    drawn = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).astype(int))
    return [items[k] for k in drawn.tolist()]


def _gains(model, index: GroundingIndex, nodes: list[np.ndarray], wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(classes, gains in ps), [k], of matches of wanted classes in the states of these nodes."""
    simulator = model.simulator(index, nodes)
    states = simulator.states
    rows, matches = np.nonzero(states.open == 0)
    classes = index.match_class.values[matches]
    order = np.flatnonzero(wanted[classes])
    order = order[np.argsort(classes[order], kind="stable")]
    first = np.searchsorted(classes[order], classes[order])
    chosen = order[np.arange(len(order)) - first < TRIES]
    gains = []
    for part in np.split(chosen, range(len(nodes), len(chosen), len(nodes))):
        simulator.states = states.taken(rows[part])
        simulator.states.grow()
        gains.append(simulator.step(np.arange(len(part)), matches[part]).gain)
    return classes[chosen], np.concatenate(gains)
