"""The median reward of each match class, where controllers begin: from the data, or predicted by the model.

In ten thousand random steps about half of the classes that are met are never rewritten. A class with a reward of 0 is
hardly tried in a dream, although the dream can predict its gain. The prediction therefore fills the gap.

A good sequence also leads to matches with signatures that no data had. All of them would fall into the last class of
their rule, whose median says nothing about a single one. In DenseNet-121 that median is a tenth of what folding the
activation of the first convolution gains, and a controller that starts with it takes a way that forecloses the better
one. When all else is learnt, dreams are therefore played as controllers begin. New matches get classes of their own
with the predicted gain, and the dreams are played again until they meet nothing new.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import DreamtMatch
from worldmodel.edits.logged_episodes import ground_episode
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.rule_learning import TrainingSet, evenly_drawn, new_moves
from worldmodel.edits.simulator import UNKNOWN_EFFECT

EPISODES_A_GRAPH, STATES_A_GRAPH = 32, 64  # of a graph, evenly drawn
MATCHES_A_CLASS = 4  # matches of a class, each in a state of its own


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
        for k in evenly_drawn(numbers, EPISODES_A_GRAPH):
            states += evenly_drawn(ground_episode(index, training.logs[k]).nodes, STATES_A_GRAPH // EPISODES_A_GRAPH)
        classes, gains = _gains_of_classes(model, index, states, ~said)
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


def _gains_of_classes(
    model, index: GroundingIndex, nodes: list[np.ndarray], wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(classes, gains in ps), [k], of matches of wanted classes in the states of these nodes."""
    simulator = model.simulator(index, nodes)
    rows, matches = np.nonzero(simulator.states.open == 0)
    classes = index.match_class.values[matches]
    order = np.flatnonzero(wanted[classes])
    order = order[np.argsort(classes[order], kind="stable")]
    first = np.searchsorted(classes[order], classes[order])
    chosen = order[np.arange(len(order)) - first < MATCHES_A_CLASS]
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


REPEATS, GRAPHS, DREAMS, STEPS = 8, 4, 8, 500  # the first dream of a graph is greedy
MAX_DREAMT_CLASSES = 1000  # classes
SHARPNESS = 5.0  # of what is sampled, in logits for a class of middling gain
STATES_AT_ONCE = 64


class Met(NamedTuple):
    """A match that a dream came to. nodes: int64 [n], those of the state."""

    number: int
    nodes: np.ndarray


def meet_classes(model, training: TrainingSet, said: np.ndarray) -> None:
    """Plays dreams from GRAPHS initial graphs, and gives the model the classes that they come to, and what those earn.

    said: bool [K], of the model's classes, those whose usual reward is their own.
    """
    table = model.groundings.match_classes.table
    own = {of_class for of_class, is_own in zip(table, said.tolist(), strict=True) if is_own}
    for number in range(REPEATS):
        rewards: dict[DreamtMatch, float] = {}
        for first, episodes in evenly_drawn(list(training.by_grounding.items()), GRAPHS):
            log = training.logs[episodes[0]]
            index = model.groundings.of(log.edits[0])
            met = _Walk(model, index, ground_episode(index, log).nodes[0], own, number).met
            per_ps = model.rewards.of(training.initial_runtime(first)).per_ps
            rewards |= {match: per_ps * gain for match, gain in _gains_of_met_matches(model, index, met).items()}
        room = MAX_DREAMT_CLASSES - len(model.groundings.rules.dreamt)
        if not rewards or room <= 0:
            break
        rewards = dict(list(rewards.items())[:room])
        model.add_classes(rewards)
        patterns = model.groundings.rules.patterns
        own |= {(patterns[pattern].pattern.xfer_id, pattern, signature) for pattern, signature in rewards}


class _Walk:
    """DREAMS of one graph, from these nodes, by usual rewards. met: what they came to that is of none of the classes
    `own`."""

    def __init__(self, model, index: GroundingIndex, nodes: np.ndarray, own: set[tuple], seed: int):
        self.index, self.simulator = index, model.simulator(index, [nodes] * DREAMS)
        self.met: dict[DreamtMatch, Met] = {}
        others = [of_class not in own for of_class in index.match_classes.table]
        self._unsaid = others | index.match_classes.is_last(np.arange(len(others)))
        self._seen, self._waiting = 0, np.zeros(0, np.int64)
        usual = model.usual_rewards[model.usual_rewards > 0]
        self._logits = SHARPNESS * np.arcsinh(model.usual_rewards / (np.median(usual) if len(usual) else 1.0))
        self._known = np.ones((DREAMS, len(model.match_classes)), bool)  # False: nobody knows what such a match does
        random, rows = np.random.default_rng(seed), np.arange(DREAMS)
        for _ in range(STEPS):
            self._note()
            rows = self._step(rows, random)
            if not len(rows):
                return

    def _note(self) -> None:
        """Keeps the matches of such classes that are there for the first time."""
        index, states = self.index, self.simulator.states
        states.grow()
        new = np.arange(self._seen, index.rule.size)
        new = new[self._unsaid[index.match_class.values[new]]]
        self._seen, waiting = index.rule.size, np.concatenate([self._waiting, new])
        there = states.open[:, waiting] == 0
        for k in np.flatnonzero(there.any(axis=0)).tolist():
            match, producers = int(waiting[k]), states.producer[there[:, k].argmax()]
            ground = index.grounding.matches[match]
            named = ground.pattern, index.grounding.match_signature(ground)
            self.met.setdefault(named, Met(match, producers[producers >= 0].astype(np.int64)))
        self._waiting = waiting[~there.any(axis=0)]

    def _step(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """The dreams of these that go on."""
        states, classes = self.simulator.states, self.index.match_class.values
        logits = np.where((states.class_counts > 0) & self._known, self._logits, -np.inf)[rows]
        noise = random.gumbel(size=(DREAMS, logits.shape[1] + 1))[rows] * (rows > 0)[:, None]  # of NO-OP last
        chosen = (logits + noise[:, :-1]).argmax(axis=1)
        on = logits[np.arange(len(rows)), chosen] + noise[np.arange(len(rows)), chosen] > noise[:, -1]
        rows, chosen = rows[on], chosen[on]
        if not len(rows):
            return rows
        of_class = (states.open[rows][:, : len(classes)] == 0) & (classes == chosen[:, None])
        step = self.simulator.step(rows, of_class.argmax(axis=1))
        unknown = step.uncertainty >= UNKNOWN_EFFECT
        self._known[rows[unknown], chosen[unknown]] = False
        return rows


def _gains_of_met_matches(model, index: GroundingIndex, met: dict[DreamtMatch, Met]) -> dict[DreamtMatch, float]:
    """What the model says that they gain, in ps."""
    result, several = {}, list(met.items())
    for first in range(0, len(several), STATES_AT_ONCE):
        part = several[first : first + STATES_AT_ONCE]
        simulator, numbers = model.simulator(index, [one.nodes for _, one in part]), [one.number for _, one in part]
        gains = predicted_gains(simulator, np.arange(len(part)), np.array(numbers))
        result |= {match: float(gain) for (match, _), gain in zip(part, gains, strict=True)}
    return result
