"""Match classes of what dreams come to and no data had.

A good way leads to matches of signatures that random play never met. All of them would be of their rule's last class,
and what that usually earns says nothing of any one: in DenseNet-121 the rule's median is a tenth of what folding the
first convolution's activation gains, and a controller that begins there takes another way, which forecloses it. So,
when all else is learnt, some dreams are played as controllers begin, by usual rewards; what they come to gets classes
of its own, with what the model says that it gains, and they are played again, until they come to nothing new.
"""

from typing import NamedTuple

import numpy as np

from worldmodel.edits.class_rewards import predicted_gains
from worldmodel.edits.grounded_episodes import ground_episode
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import DreamtMatch
from worldmodel.edits.simulator import UNKNOWN_EFFECT
from worldmodel.edits.training_set import TrainingSet, evenly_drawn

REPEATS, GRAPHS, DREAMS, STEPS = 8, 4, 8, 500  # the first dream of a graph is greedy
MOST = 1000  # classes
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
            rewards |= {match: per_ps * gain for match, gain in _gains(model, index, met).items()}
        room = MOST - len(model.groundings.rules.dreamt)
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


def _gains(model, index: GroundingIndex, met: dict[DreamtMatch, Met]) -> dict[DreamtMatch, float]:
    """What the model says that they gain, in ps."""
    result, several = {}, list(met.items())
    for first in range(0, len(several), STATES_AT_ONCE):
        part = several[first : first + STATES_AT_ONCE]
        simulator, numbers = model.simulator(index, [one.nodes for _, one in part]), [one.number for _, one in part]
        gains = predicted_gains(simulator, np.arange(len(part)), np.array(numbers))
        result |= {match: float(gain) for (match, _), gain in zip(part, gains, strict=True)}
    return result
