"""The median reward of each match class, from the data or predicted by the model. Controllers start from these rewards.

In ten thousand random steps, about half of the match classes are never rewritten. A controller rarely tries a class
with reward 0 in a dream, although the model can predict the class's gain. Classes without data therefore have the
predicted gain as their reward.

A good sequence of rewrites also reaches matches with signatures that are not in the data. All these matches of a rule
belong to the last class of the rule, whose median reward says little about a single match. The training therefore ends
with imagined rollouts that choose match classes by their median rewards. Matches that appear in these rollouts get
classes of their own, with the predicted gain as their reward. This is repeated until no new match appears, at most
REPEATS times.
"""

from collections import defaultdict

import numpy as np

from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import DreamtMatch
from worldmodel.edits.logged_episodes import ground_episode
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.rule_learning import TrainingSet, evenly_drawn, new_moves
from worldmodel.edits.simulator import UNKNOWN_EFFECT

# Per initial graph, the number of sampled episodes, and of states: the initial one and others at equal distances.
EPISODES_A_GRAPH, STATES_A_GRAPH = 32, 64
MATCHES_A_CLASS = 4  # largest number of matches of a class for which the gain is predicted, per initial graph


def learn_class_rewards(training: TrainingSet, rewards: RewardScales) -> tuple[np.ndarray, np.ndarray]:
    """Return the median reward of each match class in the training set.

    Args:
      training: the training set.
      rewards: the conversion of saved runtime to rewards.

    Returns:
      (float32 [K] median rewards, bool [K] True for the classes with data). The reward of a step counts only the
      runtime that this step saves. A class without data has reward 0.
    """
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


def with_predicted_rewards(model, training: TrainingSet, rewritten: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict the rewards of match classes without data.

    The reward of such a class is the median of the predicted rewards of its matches in sampled states of the training
    set. If no sampled state has a match of the class, its reward is the median over the other classes of its rule.

    Args:
      model: the world model; its `usual_rewards` are correct for the classes with data.
      training: the training set.
      rewritten: bool [K], True for the classes with data.

    Returns:
      (rewards, has_own): float32 [K], the rewards of all classes; bool [K], False for the classes whose reward is the
      median over other classes or is missing.
    """
    usual, has_own = model.usual_rewards.astype(np.float64), rewritten.copy()
    predicted: dict[int, list[float]] = defaultdict(list)
    for own, numbers in training.by_grounding.items():
        index = model.groundings.of(training.logs[numbers[0]].edits[0])
        episodes = [ground_episode(index, training.logs[k]).nodes for k in evenly_drawn(numbers, EPISODES_A_GRAPH)]
        later = [state for states in episodes for state in states[1:]]
        states = [episodes[0][0], *evenly_drawn(later, STATES_A_GRAPH - 1)]
        classes, gains = _gains_of_classes(model, index, states, ~has_own)
        per_ps = model.rewards.of(training.initial_runtime(own)).per_ps
        for of_class, gain in zip(classes.tolist(), (per_ps * gains).tolist(), strict=True):
            predicted[of_class].append(gain)
    for of_class, gains in predicted.items():
        usual[of_class], has_own[of_class] = np.median(gains), True
    for xfer_id in np.unique(model.match_classes[~has_own]).tolist():
        of_rule = model.match_classes == xfer_id
        if has_own[of_rule].any():
            usual[of_rule & ~has_own] = np.median(usual[of_rule & has_own])
    return usual.astype(np.float32), has_own


def _gains_of_classes(
    model, index: GroundingIndex, nodes: list[np.ndarray], wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predict the gains of matches of some match classes, at most MATCHES_A_CLASS matches of each class.

    Args:
      model: the world model.
      index: the grounding of the states.
      nodes: for each state, the numbers of its nodes.
      wanted: bool [K], True for the match classes to evaluate.

    Returns:
      (int [k], the class of each evaluated match; float64 [k], its predicted gain in ps).
    """
    simulator = model.simulator(index, nodes)
    rows, matches = np.nonzero(simulator.states.open == 0)
    classes = index.match_class.values[matches]
    order = np.flatnonzero(wanted[classes])
    order = order[np.argsort(classes[order], kind="stable")]
    first = np.searchsorted(classes[order], classes[order])
    chosen = order[np.arange(len(order)) - first < MATCHES_A_CLASS]
    return classes[chosen], predicted_gains(simulator, rows[chosen], matches[chosen])


def predicted_gains(simulator, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Return float64 [k], the predicted runtime saved by rewriting each of k matches, in ps.

    Args:
      simulator: the simulator; every match is rewritten in its own copy of a state of the simulator.
      rows: int [k], the index of the state of each match.
      matches: int [k], matches that are present in these states.
    """
    states, gains = simulator.states, [np.zeros(0)]
    for first in range(0, len(rows), states.n):
        part = slice(first, first + states.n)
        simulator.states = states.taken(rows[part])
        simulator.states.grow()
        gains.append(simulator.step(np.arange(simulator.states.n), matches[part]).gain)
    simulator.states = states
    return np.concatenate(gains)


# Largest number of repetitions; initial graphs, rollouts per graph (the first is greedy) and steps per rollout.
REPEATS, GRAPHS, DREAMS, STEPS = 8, 4, 8, 500
MAX_DREAMT_CLASSES = 1000  # largest number of match classes that are added
SHARPNESS = 5.0  # factor of the logits asinh(reward of the class / median positive reward) of the rollouts
STATES_AT_ONCE = 64  # states per batch of a simulator

# (number of a match in the grounding; int64 [n], the numbers of the nodes of a state that contains the match)
Met = tuple[int, np.ndarray]


def add_dreamt_classes(model, training: TrainingSet, has_own: np.ndarray) -> None:
    """Add match classes that first appear in imagined rollouts to a world model, with their predicted rewards.

    Args:
      model: the world model; modified.
      training: the training set; the rollouts start from at most GRAPHS of its initial graphs.
      has_own: bool [K], False for classes whose reward is a median over other classes or is missing. Their matches get
        new classes too.
    """
    table = model.groundings.match_classes.table
    own = {of_class for of_class, is_own in zip(table, has_own.tolist(), strict=True) if is_own}
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
    """A batch of DREAMS imagined rollouts from one graph, which choose match classes by their median rewards.

    The constructor plays the rollouts and fills `met`.

    Args:
      model: the world model.
      index: the grounding of the graph.
      nodes: int64 [n], the numbers of the nodes of the graph.
      own: the entries of `MatchClasses.table` that have a reward of their own; see `add_dreamt_classes`.
      seed: the seed of the random choices.

    Attributes:
      met: {(pattern number, signature): the first match with this pattern and signature that appeared}, for matches
        whose class is not in `own` or is the last class of their rule.
    """

    def __init__(self, model, index: GroundingIndex, nodes: np.ndarray, own: set[tuple], seed: int):
        self.index, self.simulator = index, model.simulator(index, [nodes] * DREAMS)
        self.met: dict[DreamtMatch, Met] = {}
        others = [of_class not in own for of_class in index.match_classes.table]
        self._is_unknown_class = others | index.match_classes.is_last(np.arange(len(others)))
        self._seen, self._waiting = 0, np.zeros(0, np.int64)
        usual = model.usual_rewards[model.usual_rewards > 0]
        self._logits = SHARPNESS * np.arcsinh(model.usual_rewards / (np.median(usual) if len(usual) else 1.0))
        self._known = np.ones((DREAMS, len(model.match_classes)), bool)  # False after an unknown effect
        random, rows = np.random.default_rng(seed), np.arange(DREAMS)
        for _ in range(STEPS):
            self._note()
            rows = self._step(rows, random)
            if not len(rows):
                return

    def _note(self) -> None:
        """Add the matches to `met` that are present for the first time and have no class with a reward of its own."""
        index, states = self.index, self.simulator.states
        states.grow()
        new = np.arange(self._seen, index.rule.size)
        new = new[self._is_unknown_class[index.match_class.values[new]]]
        self._seen, waiting = index.rule.size, np.concatenate([self._waiting, new])
        there = states.open[:, waiting] == 0
        for k in np.flatnonzero(there.any(axis=0)).tolist():
            match, producers = int(waiting[k]), states.producer[there[:, k].argmax()]
            ground = index.grounding.matches[match]
            named = ground.pattern, index.grounding.match_signature(ground)
            self.met.setdefault(named, (match, producers[producers >= 0].astype(np.int64)))
        self._waiting = waiting[~there.any(axis=0)]

    def _step(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Advance some rollouts by one step, and return the rollouts that did not choose NO-OP.

        A rollout draws a match class from a softmax over the classes that are present, in which NO-OP has the logit 0.
        Of a class, the rollout rewrites the match with the smallest number.

        Args:
          rows: int [k], the indices of the rollouts to advance.
          random: the random generator; rollout 0 chooses greedily.
        """
        states, classes = self.simulator.states, self.index.match_class.values
        logits = np.where((states.class_counts > 0) & self._known, self._logits, -np.inf)[rows]
        noise = random.gumbel(size=(DREAMS, logits.shape[1] + 1))[rows] * (rows > 0)[:, None]  # last column: NO-OP
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
    """Return the predicted runtime saved by rewriting each match, in ps.

    Args:
      model: the world model.
      index: the grounding of the matches.
      met: {(pattern number, signature): the match and a state that contains the match}.
    """
    result, several = {}, list(met.items())
    for first in range(0, len(several), STATES_AT_ONCE):
        part = several[first : first + STATES_AT_ONCE]
        simulator = model.simulator(index, [nodes for _, (_, nodes) in part])
        numbers = np.array([number for _, (number, _) in part])
        gains = predicted_gains(simulator, np.arange(len(part)), numbers)
        result |= {match: float(gain) for (match, _), gain in zip(part, gains, strict=True)}
    return result
