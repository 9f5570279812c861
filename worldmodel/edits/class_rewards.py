"""What match classes gain: in the data, or, of those that nobody ever rewrote, what the dream says of their matches.

Controllers begin at usual rewards. In ten thousand random steps about half of the classes that are met are never
rewritten, and one that is taken to gain nothing is hardly tried in a dream either, although the dream knows better.
"""

from collections import defaultdict

import numpy as np

from worldmodel.edits.grounded_episodes import ground_episode
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.training_set import TrainingSet, evenly_drawn, new_moves

EPISODES, STATES = 32, 64  # of a graph, evenly drawn
TRIES = 4  # matches of a class, each in a state of its own


def learn_usual_rewards(training: TrainingSet, rewards: RewardScales) -> tuple[np.ndarray, np.ndarray]:
    """(what each match class gained in the median, as it is rewarded, float32 [K]; which were ever rewritten, bool [K]:
    of the others it is 0)."""
    earned: list[list[float]] = [[] for _ in range(len(training.groundings.match_classes))]
    for index, episodes in training.groups():
        per_ps = rewards.of(training.initial_runtime(index)).per_ps
        for episode in episodes:
            moves = new_moves(episode)
            classes = index.match_class.values[episode.matches[moves]]
            for of_class, gain in zip(classes.tolist(), (per_ps * episode.gains[moves]).tolist(), strict=True):
                earned[of_class].append(gain)
    usual = np.array([np.median(gains) if gains else 0.0 for gains in earned], np.float32)
    return usual, np.array([bool(gains) for gains in earned], bool)


def with_predicted(model, training: TrainingSet, rewritten: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the model's usual rewards, float32 [K]; of classes that were never rewritten the median that it predicts, or, of
    such that no state has that is asked about, that of the rule's other classes; which of them are the class's own,
    bool [K]).

    rewritten: bool [K]; what gained nothing in the median was rewritten all the same.
    """
    usual, said = model.usual_rewards.astype(np.float64), rewritten.copy()
    predicted: dict[int, list[float]] = defaultdict(list)
    for own, numbers in training.by_grounding.items():
        index = model.groundings.of(training.logs[numbers[0]].edits[0])
        states = []
        for k in evenly_drawn(numbers, EPISODES):
            states += evenly_drawn(ground_episode(index, training.logs[k]).nodes, STATES // EPISODES)
        classes, gains = _gains(model, index, states, ~said)
        per_ps = model.rewards.of(training.initial_runtime(own)).per_ps
        for of_class, gain in zip(classes.tolist(), (per_ps * gains).tolist(), strict=True):
            predicted[of_class].append(gain)
    for of_class, gains in predicted.items():
        usual[of_class], said[of_class] = np.median(gains), True
    for xfer_id in np.unique(model.match_classes[~said]).tolist():
        of_rule = model.match_classes == xfer_id
        if said[of_rule].any():
            usual[of_rule & ~said] = np.median(usual[of_rule & said])
    return usual.astype(np.float32), said


def _gains(model, index: GroundingIndex, nodes: list[np.ndarray], wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(classes, gains in ps), [k], of matches of wanted classes in the states of these nodes."""
    simulator = model.simulator(index, nodes)
    rows, matches = np.nonzero(simulator.states.open == 0)
    classes = index.match_class.values[matches]
    order = np.flatnonzero(wanted[classes])
    order = order[np.argsort(classes[order], kind="stable")]
    first = np.searchsorted(classes[order], classes[order])
    chosen = order[np.arange(len(order)) - first < TRIES]
    return classes[chosen], predicted_gains(simulator, rows[chosen], matches[chosen])


def predicted_gains(simulator, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """float64 [k], in ps, of matches int [k], each in a copy of one of the simulator's states, int [k]."""
    states, gains = simulator.states, [np.zeros(0)]
    for first in range(0, len(rows), states.n):
        part = slice(first, first + states.n)
        simulator.states = states.taken(rows[part])
        simulator.states.grow()
        gains.append(simulator.step(np.arange(simulator.states.n), matches[part]).gain)
    simulator.states = states
    return np.concatenate(gains)
