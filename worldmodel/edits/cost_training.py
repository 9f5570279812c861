"""Learning the costs of nodes and the gains of rewrites from a training set.

With `supervision=nodes` the episodes contain the cost of every node. With `supervision=scalar` the costs are solved
from the rewards. A node's cost is then a function of its operator signature, and every step is one equation: the added
nodes cost as much as the removed nodes, minus the gain. The first graph of an episode gives one more equation. The
result is the least-squares solution with non-negative costs. Nodes that always come and go together share their cost.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.optimize import lsq_linear
from scipy.sparse import coo_array

from worldmodel.edits.cost_model import CostModel, KeyedMeans, NodeCosts, RewriteGains
from worldmodel.edits.dream_states import DreamStates, rewrite
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import Signature
from worldmodel.edits.logged_episodes import UNKNOWN_MATCH, GroundedEpisode
from worldmodel.edits.neighbourhood import Neighbourhoods, changed_neighbourhoods, neighbourhoods
from worldmodel.edits.node_values import single_node_costs
from worldmodel.edits.rule_learning import TrainingSet, first_new_state


def learn_costs(training: TrainingSet, n_rules: int) -> CostModel:
    nodes, spread = learn_node_costs(training)
    means = _neighbourhood_means(training, n_rules) if spread > 0 else []
    return CostModel(nodes, means, learn_gains(training), spread)


def learn_node_costs(training: TrainingSet) -> tuple[dict[int, NodeCosts], float]:
    """Return the costs of single nodes by typical sizes, and the spread (ps) of logged runtimes around these costs.

    A spread of 0 means that the cost of a node does not depend on its neighbourhood.
    """
    nodes = _node_costs(training)
    return nodes, float(_residuals(training, nodes).std())


def learn_gains(training: TrainingSet) -> RewriteGains:
    return RewriteGains(np.array(list(_gains(training)), np.float64).reshape(-1, 4))


def _node_costs(training: TrainingSet) -> dict[int, NodeCosts]:
    """Return the costs of single nodes by typical sizes."""
    logged: dict[int, list] = {sizes: [] for sizes in training.sizes}
    for index, nodes, runtimes in _logged_runtimes(training):
        of_sizes = logged[index.grounding.first.sizes]
        for node, runtime in zip(nodes.tolist(), runtimes, strict=True):
            of_sizes.append((*index.grounding.operator_signature(node), runtime))
    return {sizes: NodeCosts.learn(logged[sizes], of_tensors) for sizes, of_tensors in training.sizes.items()}


def _logged_runtimes(training: TrainingSet) -> Iterator[tuple[GroundingIndex, np.ndarray, np.ndarray]]:
    """Yield (grounding, nodes, their runtimes in ps), once for each state that no earlier episode logged."""
    for index, episodes in training.groups():
        for episode in episodes:
            for nodes, runtimes in episode.runtimes[first_new_state(episode) :]:
                yield index, nodes, runtimes


def _residuals(training: TrainingSet, nodes: dict[int, NodeCosts]) -> np.ndarray:
    """Return the differences of logged runtimes from single-node costs (ps)."""
    single = {index: single_node_costs(index, nodes[index.grounding.first.sizes]) for index in training.by_grounding}
    return np.concatenate([runtimes - single[index](of) for index, of, runtimes in _logged_runtimes(training)])


def _gains(training: TrainingSet) -> Iterator[tuple[int, int, int, float]]:
    """Yield the rows of `RewriteGains`, one for each step that no earlier episode logged."""
    for index, episodes in training.groups():
        grounding, sizes = index.grounding, training.sizes[index.grounding.first.sizes]
        for episode in episodes:
            new = slice(episode.repeated, None)
            for number, gain in zip(episode.matches[new].tolist(), episode.gains[new].tolist(), strict=True):
                if number >= 0:
                    match = grounding.matches[number]
                    size = sizes.get(grounding.signatures[match.operands[-1]], 1)
                    yield int(index.rule.values[number]), match.pattern, max(size, 1), gain


def _neighbourhood_means(training: TrainingSet, n_rules: int) -> list[KeyedMeans]:
    """Return the mean costs for each neighbourhood width from 1 on."""
    keys, runtimes = [], []
    for index, episodes in training.groups():
        samples = _NeighbourhoodSamples(index, episodes, n_rules)
        samples.walk()
        keys += samples.keys
        runtimes += samples.runtimes
    runtimes = np.concatenate(runtimes)
    return [KeyedMeans(np.concatenate(of_width), runtimes) for of_width in zip(*keys, strict=True)]


class _NeighbourhoodSamples:
    """Samples of neighbourhoods and runtimes from the episodes of one grounding, which are replayed side by side.

    All nodes of the first state are sampled, and then the nodes around each change.

    Attributes:
      keys: arrays uint32 [W, k].
      runtimes: arrays float64 [k] (ps).
    """

    def __init__(self, index: GroundingIndex, episodes: list[GroundedEpisode], n_rules: int):
        self.index, self.episodes = index, episodes
        self.states = DreamStates(index, [episode.nodes[0] for episode in episodes], n_rules)
        self.keys: list[np.ndarray] = []
        self.runtimes: list[np.ndarray] = []

    def walk(self) -> None:
        rows, repeated = np.arange(len(self.episodes)), np.array([episode.repeated for episode in self.episodes])
        self._note_runtimes(rows, 0)
        first = self.episodes[0].nodes[0]
        self._sample(neighbourhoods(self.states, np.zeros(len(first), np.int64), first), rows == 0)
        for t in range(max(len(episode.matches) for episode in self.episodes)):
            matches = np.array([self._match_at(episode, t) for episode in self.episodes])
            self.states.grow()
            rows = rows[[self._is_there(row, matches[row]) for row in rows]]  # the rest ended or lost their match
            if not len(rows):
                break
            change = rewrite(self.states, rows, matches[rows])
            self._note_runtimes(rows, t + 1)
            self._sample(changed_neighbourhoods(change), repeated <= t)

    @staticmethod
    def _match_at(episode: GroundedEpisode, t: int) -> int:
        return int(episode.matches[t]) if t < len(episode.matches) else UNKNOWN_MATCH

    def _is_there(self, row: int, match: int) -> bool:
        return match >= 0 and self.states.open[row, self.index.representative(match)] == 0

    def _note_runtimes(self, rows: np.ndarray, t: int) -> None:
        """Store the runtimes of nodes after t steps in the states of these rows."""
        for row in rows.tolist():
            nodes, runtimes = self.episodes[row].runtimes[t]
            self.states.paid[row, self.index.primary_output.values[nodes]] = runtimes

    def _sample(self, sampled: Neighbourhoods, wanted: np.ndarray) -> None:
        """Add samples from the wanted states, bool [n]."""
        these = wanted[sampled.rows]
        cells = sampled.rows[these], self.index.primary_output.values[sampled.nodes[these]]
        self.keys.append(sampled.keys[:, these])
        self.runtimes.append(self.states.paid[cells])


TOLERANCE = 1e-14  # of the solver; its default causes relative errors of 1e-4 in rewards

Costed = tuple[int, int, Signature]  # typical sizes, operator, signature


def with_solved_costs(training: TrainingSet) -> TrainingSet:
    """Return the training set with solved costs instead of logged costs of nodes."""
    costs, grounded = solved_costs(training), dict(training.grounded)
    for index, numbers in training.by_grounding.items():
        for k in numbers:
            runtimes = []
            for nodes, _ in grounded[k].runtimes:
                solved = [costs.get(_cost_key(index, node), 0.0) for node in nodes.tolist()]
                runtimes.append((nodes, np.array(solved)))
            grounded[k] = grounded[k]._replace(runtimes=runtimes)
    return replace(training, grounded=grounded)


def solved_costs(training: TrainingSet) -> dict[Costed, float]:
    """Return the solved costs in ps, by typical sizes and operator signature."""
    equations, known = _Equations(), []
    for index, episodes in training.groups():
        equations.add(index, episodes[0].nodes[0], 1.0)
        known.append(float(training.initial_runtime(index)))
        for episode in episodes:
            for t in range(episode.repeated, len(episode.matches)):
                before, after = episode.nodes[t], episode.nodes[t + 1]
                equations.add(index, np.setdiff1d(before, after), 1.0)
                equations.extend(index, np.setdiff1d(after, before), -1.0)
                known.append(float(episode.gains[t]))
    unit = max(np.abs(known).max(), 1.0)
    rewards, costs = np.array(known) / unit, (0.0, np.inf)
    solved = lsq_linear(equations.matrix(), rewards, costs, tol=TOLERANCE, lsmr_tol=TOLERANCE)
    return dict(zip(equations.unknowns, (solved.x * unit).tolist(), strict=True))


class _Equations:
    """Equations over sums of costs.

    Attributes:
      unknowns: typical sizes, operator and signature → column.
    """

    def __init__(self):
        self.unknowns: dict[Costed, int] = {}
        self._rows = 0
        self._cells: list[tuple[int, int, float]] = []

    def add(self, index: GroundingIndex, nodes: np.ndarray, sign: float) -> None:
        """Start a row with these nodes."""
        self._rows += 1
        self.extend(index, nodes, sign)

    def extend(self, index: GroundingIndex, nodes: np.ndarray, sign: float) -> None:
        """Add nodes to the last row."""
        for node in nodes.tolist():
            column = self.unknowns.setdefault(_cost_key(index, node), len(self.unknowns))
            self._cells.append((self._rows - 1, column, sign))

    def matrix(self):
        rows, columns, values = zip(*self._cells, strict=True)
        return coo_array((values, (rows, columns)), shape=(self._rows, len(self.unknowns))).tocsr()


def _cost_key(index: GroundingIndex, node: int) -> Costed:
    return (index.grounding.first.sizes, *index.grounding.operator_signature(node))
