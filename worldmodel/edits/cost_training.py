"""Learning the runtimes of nodes and the gains of rewrites from a training set.

With `supervision=nodes`, the logged runtime of every node is used. With `supervision=scalar`, the model uses only the
total runtime of each initial graph and the runtime saved by each step (its gain), which rewards reveal. The runtime of
a node is then an unknown for each operator signature. Each initial graph gives the equation "sum over its nodes = total
runtime". Each step gives the equation "sum over removed nodes − sum over added nodes = gain". The runtimes are the
least-squares solution with non-negative values. If some nodes are always added and removed together, only the sum of
their runtimes is determined.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.optimize import lsq_linear
from scipy.sparse import coo_array

from worldmodel.edits.cost_model import REACH, CostModel, KeyedMeans, NodeCosts, RewriteGains, learn_match_gains
from worldmodel.edits.dream_states import DreamStates, rewrite
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import Signature
from worldmodel.edits.logged_episodes import NO_OP, UNKNOWN_MATCH, GroundedEpisode
from worldmodel.edits.neighbourhood import Neighbourhoods, changed_neighbourhoods, match_keys, neighbourhoods
from worldmodel.edits.node_values import single_node_costs
from worldmodel.edits.rule_learning import TrainingSet, first_new_state, new_moves


def learn_costs(training: TrainingSet, n_rules: int) -> CostModel:
    """Learn the runtimes of nodes, in their neighbourhoods if runtimes depend on these, and the gains of rewrites.

    Args:
      training: the training set.
      n_rules: N, the number of rules.
    """
    nodes, spread = learn_node_costs(training)
    means, of_matches = _neighbourhood_tables(training, n_rules) if spread > 0 else ([], [])
    return CostModel(nodes, means, learn_gains(training), spread, _usual_gain(training), of_matches)


def learn_node_costs(training: TrainingSet) -> tuple[dict[int, NodeCosts], float]:
    """Learn the runtimes of single nodes.

    Returns:
      ({hash of typical sizes: runtimes of single nodes}, standard deviation in ps of logged runtimes around these
      runtimes). A standard deviation of 0 means that runtimes do not depend on neighbourhoods.
    """
    logged: dict[int, list] = {sizes: [] for sizes in training.sizes}
    for index, nodes, runtimes in _logged_runtimes(training):
        of_sizes = logged[index.grounding.first.sizes]
        for node, runtime in zip(nodes.tolist(), runtimes, strict=True):
            of_sizes.append((*index.grounding.operator_signature(node), runtime))
    costs = {sizes: NodeCosts.learn(logged[sizes], of_tensors) for sizes, of_tensors in training.sizes.items()}
    single = {index: single_node_costs(index, costs[index.grounding.first.sizes]) for index in training.by_grounding}
    residuals = [runtimes - single[index](nodes) for index, nodes, runtimes in _logged_runtimes(training)]
    return costs, float(np.concatenate(residuals).std())


def learn_gains(training: TrainingSet) -> RewriteGains:
    return RewriteGains(np.array(list(_gains(training)), np.float64).reshape(-1, 4))


def _usual_gain(training: TrainingSet) -> float:
    """Return the mean absolute gain of the steps that no earlier episode logged, as a share of the initial runtime."""
    shares = [
        np.abs(episode.gains[new_moves(episode)]) / training.initial_runtime(index)
        for index, episodes in training.groups() for episode in episodes
    ]  # fmt: skip
    every = np.concatenate(shares)
    return float(every.mean()) if len(every) else 0.0


def _logged_runtimes(training: TrainingSet) -> Iterator[tuple[GroundingIndex, np.ndarray, np.ndarray]]:
    """Yield the nodes logged with each state, and their runtimes, for states that no earlier episode logged.

    Yields:
      (grounding, int64 [k] node numbers, float64 [k] runtimes in ps). An initial state logs all its nodes. A later
      state logs the nodes that are new or changed.
    """
    for index, episodes in training.groups():
        for episode in episodes:
            for nodes, runtimes in episode.runtimes[first_new_state(episode) :]:
                yield index, nodes, runtimes


def _gains(training: TrainingSet) -> Iterator[tuple[int, int, int, float]]:
    """Yield the rows of `RewriteGains.samples`, one for each step with a known match that no earlier episode logged."""
    for index, episodes in training.groups():
        grounding, sizes = index.grounding, training.sizes[index.grounding.first.sizes]
        for episode in episodes:
            new = slice(episode.repeated, None)
            for number, gain in zip(episode.matches[new].tolist(), episode.gains[new].tolist(), strict=True):
                if number >= 0:
                    match = grounding.matches[number]
                    size = sizes.get(grounding.signatures[match.operands[-1]], 1)
                    yield int(index.rule.values[number]), match.pattern, max(size, 1), gain


def _neighbourhood_tables(training: TrainingSet, n_rules: int) -> tuple[list[KeyedMeans], list[KeyedMeans]]:
    """Return the runtimes by neighbourhood key for each distance from 1 to REACH edges, and `CostModel.match_gains`."""
    every = []
    for index, episodes in training.groups():
        every.append(_NeighbourhoodSamples(index, episodes, n_rules))
        every[-1].walk()
    keys, match_keys = (
        np.concatenate([part for samples in every for part in getattr(samples, name)], axis=1)
        for name in ("keys", "match_keys")
    )
    runtimes, gains = (
        np.concatenate([part for samples in every for part in getattr(samples, name)]) for name in ("runtimes", "gains")
    )
    means = [KeyedMeans(own, runtimes, wider) for own, wider in zip(keys, [*keys[1:], None], strict=True)]
    return means, learn_match_gains(match_keys, gains) if len(gains) else []


class _NeighbourhoodSamples:
    """Samples of (neighbourhood keys, runtime) of nodes, from a parallel replay of the episodes of one grounding.

    The samples are all nodes of the initial state and, after each step, the nodes whose neighbourhood changed.

    Attributes:
      keys: list of uint32 [REACH, k], the keys of k sampled nodes for each distance.
      runtimes: list of float64 [k], the runtimes of the same nodes (ps).
      match_keys: list of uint32 [MATCH_LEVELS, k], the keys of k rewritten matches before their rewrite.
      gains: list of float64 [k], the gains of the same rewrites (ps).
    """

    def __init__(self, index: GroundingIndex, episodes: list[GroundedEpisode], n_rules: int):
        self.index, self.episodes = index, episodes
        self.states = DreamStates(index, [episode.nodes[0] for episode in episodes], n_rules, REACH)
        self.keys: list[np.ndarray] = []
        self.runtimes: list[np.ndarray] = []
        self.match_keys: list[np.ndarray] = []
        self.gains: list[np.ndarray] = []

    def walk(self) -> None:
        """Replay all episodes step by step and fill the lists.

        An episode ends early at a match of an unknown pattern, or at a match that is absent from the replayed state.
        """
        rows, repeated = np.arange(len(self.episodes)), np.array([episode.repeated for episode in self.episodes])
        self._note_runtimes(rows, 0)
        self._sample(neighbourhoods(self.states, *self.states.cells()), rows == 0)
        for t in range(max(len(episode.matches) for episode in self.episodes)):
            matches = np.array([self._match_at(episode, t) for episode in self.episodes])
            self.states.grow()
            rows = rows[[self._is_there(row, matches[row]) for row in rows]]  # others ended or lack the match
            if not len(rows):
                break
            self._sample_gains(rows[repeated[rows] <= t], matches, t)
            change = rewrite(self.states, rows, matches[rows])
            self._note_runtimes(rows, t + 1)
            self._sample(changed_neighbourhoods(change), repeated <= t)

    @staticmethod
    def _match_at(episode: GroundedEpisode, t: int) -> int:
        return int(episode.matches[t]) if t < len(episode.matches) else UNKNOWN_MATCH

    def _is_there(self, row: int, match: int) -> bool:
        return match >= 0 and self.states.open[row, self.index.representative(match)] == 0

    def _note_runtimes(self, rows: np.ndarray, t: int) -> None:
        """Write the runtimes that the episodes log after t steps to the states with the indices `rows`, int [k]."""
        for row in rows.tolist():
            nodes, runtimes = self.episodes[row].runtimes[t]
            self.states.paid[row, self.index.primary_output.values[nodes]] = runtimes

    def _sample(self, sampled: Neighbourhoods, wanted: np.ndarray) -> None:
        """Add samples of nodes.

        Args:
          sampled: nodes with their neighbourhood keys.
          wanted: bool [n], True for the states whose nodes are added.
        """
        outputs = self.index.primary_output.values[sampled.nodes]
        these = wanted[sampled.rows]
        self.states.keys[sampled.rows, outputs] = sampled.keys.T
        cells = sampled.rows[these], outputs[these]
        self.keys.append(sampled.keys[:, these])
        self.runtimes.append(self.states.paid[cells])


    def _sample_gains(self, rows: np.ndarray, matches: np.ndarray, t: int) -> None:
        """Add samples of the gains of step t.

        Args:
          rows: int [k], the states whose step is sampled.
          matches: int [n], the match that each of all n states rewrites.
          t: the number of steps before.
        """
        if len(rows):
            self.match_keys.append(match_keys(self.states, rows, matches[rows]))
            self.gains.append(np.array([self.episodes[row].gains[t] for row in rows.tolist()], np.float64))


PER_REWARD = 1e9  # gain of a step with the reward 1, if gains are rewards: a reward of 1 ms has the gain 1e9 ps
UNEXPLAINED = 1e-3  # largest relative error (see `_unexplained`) of rewards that count as explained by costs of nodes
TOLERANCE = 1e-14  # tolerance of the least-squares solver, whose default causes relative errors of 1e-4 in rewards

Costed = tuple[int, int, Signature]  # one unknown of the equations: hash of typical sizes, operator, signature


def with_solved_costs(training: TrainingSet, totals: bool = True) -> TrainingSet:
    """Return a copy of the training set with the runtimes of `solved_costs` instead of the logged runtimes of nodes.

    Args:
      training: the training set.
      totals: True if the runtimes of the nodes of an initial graph sum to its logged runtime.
    """
    costs, grounded = solved_costs(training, totals), dict(training.grounded)
    for index, numbers in training.by_grounding.items():
        for k in numbers:
            runtimes = []
            for nodes, _ in grounded[k].runtimes:
                solved = [costs.get(_cost_key(index, node), 0.0) for node in nodes.tolist()]
                runtimes.append((nodes, np.array(solved)))
            grounded[k] = grounded[k]._replace(runtimes=runtimes)
    return replace(training, grounded=grounded)


def with_rewards_as_gains(training: TrainingSet) -> TrainingSet | None:
    """Return a copy of the training set in which the gain of a step is its reward, and costs are solved from rewards.

    A reward may be the difference of any quantity that is a sum over nodes, such as equation 3 of RLFlow, which weighs
    runtime and memory accesses. The unit of gains and costs in the copy is 1 / PER_REWARD of the reward.

    Returns:
      The copy, or None if no costs of nodes explain the rewards, or if a NO-OP has a reward.
    """
    grounded = dict(training.grounded)
    for k, episode in grounded.items():
        rewards = training.episodes[k].rewards.astype(np.float64)
        if rewards[episode.xfer_ids == NO_OP].any():
            return None
        grounded[k] = episode._replace(gains=PER_REWARD * rewards)
    result = with_solved_costs(replace(training, grounded=grounded), totals=False)
    gains = np.abs(np.concatenate([episode.gains for episode in result.grounded.values()]))
    usual = float(np.median(gains[gains > 0])) if gains.any() else 1.0
    return result if _unexplained(list(result.grounded.values()), usual) <= UNEXPLAINED else None


def _unexplained(episodes: list[GroundedEpisode], usual: float) -> float:
    """Return the largest relative error if the gain of a step is computed as the difference of costs of nodes.

    The error is divided by the absolute gain or by `usual`, whichever is larger.

    Args:
      episodes: the episodes.
      usual: the median absolute gain.
    """
    worst = 0.0
    for episode in episodes:
        cost: dict[int, float] = {}
        for t, (nodes, costs) in enumerate(episode.runtimes):
            before = episode.nodes[t - 1] if t else nodes[:0]
            left = sum(cost[node] for node in np.setdiff1d(before, episode.nodes[t]).tolist())
            cost |= zip(nodes.tolist(), costs.tolist(), strict=True)
            came = sum(cost[node] for node in np.setdiff1d(episode.nodes[t], before).tolist())
            if t:
                gain = float(episode.gains[t - 1])
                worst = max(worst, abs(left - came - gain) / max(abs(gain), usual))
    return worst


def solved_costs(training: TrainingSet, totals: bool = True) -> dict[Costed, float]:
    """Solve the runtimes of nodes from the initial runtimes and the gains of steps; see the module's docstring.

    Args:
      training: the training set.
      totals: False to leave out the equations of the initial runtimes.

    Returns:
      {(hash of typical sizes, operator, signature): runtime in ps}.
    """
    unknowns: dict[Costed, int] = {}  # column of each unknown
    cells, known = [], []
    for row, (index, positive, negative, value) in enumerate(_equations(training, totals)):
        known.append(value)
        for nodes, sign in ((positive, 1.0), (negative, -1.0)):
            for node in nodes.tolist():
                cells.append((row, unknowns.setdefault(_cost_key(index, node), len(unknowns)), sign))
    rows, columns, signs = zip(*cells, strict=True)
    equations = coo_array((signs, (rows, columns)), shape=(len(known), len(unknowns))).tocsr()
    unit = max(np.abs(known).max(), 1.0)
    rewards, costs = np.array(known) / unit, (0.0, np.inf)
    solved = lsq_linear(equations, rewards, costs, tol=TOLERANCE, lsmr_tol=TOLERANCE)
    return dict(zip(unknowns, (solved.x * unit).tolist(), strict=True))


def _equations(training: TrainingSet, totals: bool) -> Iterator[tuple[GroundingIndex, np.ndarray, np.ndarray, float]]:
    """Yield the linear equations for the runtimes of nodes.

    Args:
      training: the training set.
      totals: True to yield an equation for the initial runtime of each graph, besides one equation per step.

    Yields:
      (grounding, positive nodes, negative nodes, value in ps). The sum of the runtimes of the positive nodes minus the
      sum of the runtimes of the negative nodes is the value.
    """
    for index, episodes in training.groups():
        nodes = episodes[0].nodes[0]
        if totals:
            yield index, nodes, nodes[:0], float(training.initial_runtime(index))
        for episode in episodes:
            for t in range(episode.repeated, len(episode.matches)):
                before, after = episode.nodes[t], episode.nodes[t + 1]
                yield index, np.setdiff1d(before, after), np.setdiff1d(after, before), float(episode.gains[t])


def _cost_key(index: GroundingIndex, node: int) -> Costed:
    return (index.grounding.first.sizes, *index.grounding.operator_signature(node))
