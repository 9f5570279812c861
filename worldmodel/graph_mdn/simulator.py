"""The simulator of dreams of "graph-mdn": batches of states, and steps whose outcomes the networks predict."""

from collections.abc import Sequence

import numpy as np

from worldmodel.edits.dream_states import DreamStates, StateChange, as_named_by_environment, rewrite
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.logged_episodes import initial_runtime
from worldmodel.edits.neighbourhood import (
    Neighbourhoods,
    around,
    changed_neighbourhoods,
    match_keys,
    neighbourhoods,
)
from worldmodel.edits.simulator import BY_ANALOGY, NEW_NEIGHBOURHOOD, UNKNOWN_EFFECT, Step

Cells = tuple[np.ndarray, np.ndarray]  # (int [k] indices of states, int [k] nodes)
OFFSET = 2.0  # largest offset of the cost of a graph, in standard deviations of the sum of the costs of its nodes
SURE_GAIN = 0.5  # a gain is uncertain if its standard deviation exceeds this share of the usual gain


def _combined(
    first: np.ndarray, deviation: np.ndarray, second: np.ndarray, other: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and standard deviations of the products of two Gaussians, float64 [k] each.

    Args:
      first, deviation: float64 [k], the means and the standard deviations of the first Gaussians, all finite.
      second, other: float64 [k], the same of the second Gaussians. If a standard deviation in `other` is infinite, the
        result is the first Gaussian.
    """
    ratio = np.divide(other, deviation, out=np.full(len(first), np.inf), where=deviation > 0)
    weight = 1 / (1 + ratio**2)
    return first + weight * (second - first), deviation * np.sqrt(1 - weight)


class NeuralSimulator:
    """A batch of dreamt states with the costs of their nodes; see `worldmodel.edits.simulator.Simulator`.

    The cost of a node is predicted when the node appears or its neighbourhood changes, and then stays. The sum of all
    gains is therefore the difference between the costs of two graphs, so the errors of single gains do not add up.

    The cost of a graph is the sum of these costs plus an offset, the last column of `states.totals`. The offset moves
    if similar rewrites in the data had another gain than the costs of nodes predict. `_limited` limits the offset by
    the uncertainty of the costs of the present nodes, so the offset is 0 in a graph of certain costs. A dream that
    comes back to such a graph has therefore gained nothing.

    After `encode`, the last column of `states.keys` contains the index of each node's vector in `GraphLatents.vectors`.
    The other columns of `states.totals` contain the sum of these vectors, from which `GraphLatents` makes z.
    """

    def __init__(self, model, index: GroundingIndex, nodes: Sequence[np.ndarray], costs: Sequence[np.ndarray] = ()):
        """Create one state for each array in `nodes`; `model` is a `GraphMDNWorldModel`.

        See `worldmodel.edits.simulator.Simulator` for the arguments.
        """
        self.model, self.index = model, index
        self.states = DreamStates(index, list(nodes), model.spec.n_rules, model.costs.reach + 1, model.latent + 1)
        self._encodes = False
        self._rows = model.node_rows(index)
        self._recalled = model.costs.recalled(index)
        self._bounds = model.costs.gains.bounds(model.spec.n_rules)
        self._sure = SURE_GAIN * model.costs.memory.usual_gain * initial_runtime(index.grounding.first)
        self._costs: dict[int, tuple[float, float]] = {}  # key → (cost, standard deviation) in ps
        rows = np.repeat(np.arange(len(nodes)), [len(there) for there in nodes])
        self._pay(self._concerned(rows, np.concatenate(nodes)), [])
        self.states.set_costs(nodes, costs)

    def encode(self) -> None:
        """Encode all nodes of the current states, and from now on also the nodes that each step changes."""
        self._encodes = True
        rounds = self.model.graph_latents.rounds
        self._encode(neighbourhoods(self.states, *self.states.cells(), rounds), [])

    def step(self, rows: np.ndarray, matches: np.ndarray) -> Step:
        """Rewrite one match in each selected state.

        If costs depend on neighbourhoods, the gain has two estimates with standard deviations: the costs of the nodes,
        and the gains that rewrites of such matches had in the data (`CostModel.gain_of`). The prediction is the mean of
        both, weighted by their inverse variances.

        A match with an unknown effect changes nothing, and its gain is the median observed gain of its rule. The gain
        of an uncertain effect is clipped to the range of the observed gains of its rule. The range for a certain effect
        is extended on both sides by the largest observed gain or loss. If the replaced tensor is larger than all
        tensors that the rule replaced in the data, the range for a certain effect also grows in proportion to the size.
        Without the clipping, a few wrong effects with enormous tensors dominated the error of all rewards.

        Args:
          rows: int [k], the indices of the states, all different.
          matches: int [k], a match of each of these states.

        Returns:
          The predicted gains, uncertainties and changes.
        """
        matches = as_named_by_environment(self.states, rows, matches)
        effects = self.index.effects(matches)
        known = effects >= 0
        gain, spread = np.zeros(len(rows)), np.zeros(len(rows))
        gain[~known], spread[~known] = self.model.costs.gains.expected(self.index.rule.values[matches[~known]])
        uncertainty, change = np.full(len(rows), UNKNOWN_EFFECT, np.float32), None
        if known.any():
            likely = self._gains_of_matches(rows[known], matches[known])
            change = rewrite(self.states, rows[known], matches[known])
            near = self._changed(change)
            paid = self._pay(near, change.removed)
            if self._encodes:
                rounds = self.model.graph_latents.rounds
                near = near if self.model.costs.reach else changed_neighbourhoods(change, rounds)
                self._encode(near, change.removed)
            summed, deviation = (of_states[rows[known]] for of_states in paid)
            before = self.states.totals[rows[known], -1]
            # The node costs give the gain `summed`. The offset falls by the rest of the combined gain `mean`.
            mean, spread[known] = _combined(summed, deviation, *likely)
            gain[known] = summed + before - self._limited(rows[known], before - (mean - summed))
            seen = self.index.seen.values[effects[known]]
            unsure = spread[known] > self._sure
            uncertainty[known] = np.maximum(np.where(seen, 0.0, BY_ANALOGY), np.where(unsure, NEW_NEIGHBOURHOOD, 0.0))
            bounded = self._bounded(rows[known], matches[known], gain[known], seen)
            self._settle(rows[known], bounded - gain[known], change)
            gain[known] = bounded
        return Step(gain, spread, uncertainty, change)

    def _gains_of_matches(self, rows: np.ndarray, matches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predict gains from similar rewrites in the data; see `CostModel.gain_of`.

        Args:
          rows: int [k], the states.
          matches: int [k], a match of each state, which is not rewritten yet.

        Returns:
          (gains, standard deviations), float64 [k] each in ps. The standard deviations are infinite if costs do not
          depend on neighbourhoods or nothing is recalled.
        """
        if not self.model.costs.reach or not self.model.costs.recalls:
            return np.zeros(len(rows)), np.full(len(rows), np.inf)
        return self.model.costs.memory.gain_of(match_keys(self.states, rows, matches))

    def _limited(self, rows: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Limit the offsets of the costs of states, write them to `states.totals` and return them, float64 [k] in ps.

        The limit is OFFSET standard deviations of the costs of all present nodes.

        Args:
          rows: int [k], the states after a step.
          offset: float64 [k], the offsets that follow from the gains of the step (ps).
        """
        most = OFFSET * np.sqrt(self.states.variances[rows].sum(axis=1))
        result = self.states.totals[rows, -1] = np.clip(offset, -most, most)
        return result

    def _bounded(self, rows: np.ndarray, matches: np.ndarray, gain: np.ndarray, sure: np.ndarray) -> np.ndarray:
        """Clip gains to the bounds of their rules; see `step`.

        Args:
          rows: int [k], the states.
          matches: int [k], the rewritten match of each state.
          gain: float64 [k], the predicted gains (ps).
          sure: bool [k], True where the effect is certain.

        Returns:
          float64 [k], the clipped gains (ps).
        """
        grounding = self.index.grounding
        replaced = [grounding.signatures[grounding.matches[match].operands[-1]] for match in matches.tolist()]
        sizes = np.where(sure, self.model.table.elements(replaced), 0.0)
        least, most = self._bounds.of(self.index.rule.values[matches], sizes)
        more = np.where(sure, np.maximum(np.abs(least), np.abs(most)), 0.0)
        return np.clip(gain, least - more, most + more)

    def _settle(self, rows: np.ndarray, more: np.ndarray, change: StateChange) -> None:
        """Scale the costs of the added nodes, so that the costs of all nodes agree with clipped gains.

        Args:
          rows: int [k], the states.
          more: float64 [k], how much the clipping has added to the gain of each state (ps).
          change: the change of the states.
        """
        paid = self.states.paid
        for k in np.flatnonzero(more).tolist():
            came = np.concatenate([nodes[at == rows[k]] for at, nodes in change.added])
            outputs = np.unique(self.index.primary_output.values[came])
            cost = paid[rows[k], outputs].sum()
            if cost > 0:
                paid[rows[k], outputs] *= max(cost - more[k], 0.0) / cost

    def _concerned(self, rows: np.ndarray, nodes: np.ndarray) -> Neighbourhoods:
        """Return the nodes whose cost depends on the given nodes, with keys that determine their cost.

        If costs do not depend on neighbourhoods, these are the given nodes, and the number of a node is its key.

        Args:
          rows: int [k], the index of the state of each given node.
          nodes: int [k], the given nodes.
        """
        if self.model.costs.reach:
            return neighbourhoods(self.states, rows, nodes)
        return Neighbourhoods(rows, nodes, nodes[None])

    def _changed(self, change: StateChange) -> Neighbourhoods:
        if self.model.costs.reach:
            return changed_neighbourhoods(change)
        rows, nodes = (np.concatenate(parts) for parts in zip(*change.added, strict=True))
        there = self.states.producer[rows, self.index.primary_output.values[nodes]] == nodes  # may be removed again
        return self._concerned(rows[there], nodes[there])

    def _pay(self, concerned: Neighbourhoods, removed: Sequence[Cells]) -> tuple[np.ndarray, np.ndarray]:
        """Predict the costs of nodes, set the costs of removed nodes to 0, and return the changes of cost per state.

        Args:
          concerned: the nodes whose cost is predicted, with the keys of their neighbourhoods.
          removed: the removed nodes, as pairs (states, nodes).

        Returns:
          (reduction of the runtime in ps, its standard deviation in ps), float64 [n] each, for all n states.
        """
        states, primary_output, width = self.states, self.index.primary_output.values, self.states.paid.shape[1]
        at = concerned.rows * width + primary_output[concerned.nodes]
        gone = np.concatenate([at[:0], *[rows * width + primary_output[nodes] for rows, nodes in removed]])
        paid, keys = states.paid.reshape(-1), states.keys.reshape(len(states.paid) * width, -1)[:, :-1]
        keys[gone], cells = 0, np.unique(np.concatenate([at, gone]))  # a new node may be in the cell of a removed one
        before = paid[cells]
        cost, spread = self._costs_of(concerned, paid[at], keys[at].T)
        variances = states.variances.reshape(-1)
        paid[cells] = variances[cells] = 0.0
        paid[at], variances[at] = cost, spread**2
        if self.model.costs.reach:
            keys[at] = concerned.keys.T
        gain = np.bincount(cells // width, before - paid[cells], states.n)
        return gain, np.sqrt(np.bincount(concerned.rows, spread**2, states.n))

    def _encode(self, near: Neighbourhoods, removed: Sequence[Cells]) -> None:
        """Update the indices of vectors in `states.keys` and the sums of vectors in `states.totals` after a step.

        Args:
          near: the nodes whose neighbourhood changed, with their new keys.
          removed: the removed nodes, as pairs (states, nodes).
        """
        states, primary_output, latents = self.states, self.index.primary_output.values, self.model.graph_latents
        width, keys = states.keys.shape[1], states.keys.reshape(-1, states.keys.shape[2])[:, -1]
        at = near.rows * width + primary_output[near.nodes]
        cells = np.unique(np.concatenate([at, *[rows * width + primary_output[nodes] for rows, nodes in removed]]))
        numbers, before = latents.numbers(states, self._rows, near), keys[cells]
        keys[cells] = 0
        keys[at] = numbers
        np.add.at(states.totals[:, :-1], cells // width, latents.vectors[keys[cells]] - latents.vectors[before])

    def _costs_of(
        self, concerned: Neighbourhoods, paid: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (costs in ps, standard deviations in ps) of k nodes, [k] each.

        The network is asked once about each neighbourhood of a node whose signature the data lack.

        Args:
          concerned: the nodes.
          paid: float64 [k], their costs before the step (ps).
          before: uint32 [W, k], their neighbourhood keys before the step.
        """
        costs, deviations, known = self._recalled(concerned.nodes, concerned.keys, paid, before)
        keys = concerned.keys[-1]
        lacking = np.flatnonzero(~known)
        _, first = np.unique(keys[lacking], return_index=True)
        new = [k for k in lacking[first].tolist() if int(keys[k]) not in self._costs]
        if new:
            self._ask(concerned.rows[new], concerned.nodes[new], keys[new])
        for k in lacking.tolist():
            costs[k], deviations[k] = self._costs[int(keys[k])]
        return costs, deviations

    def _ask(self, rows: np.ndarray, nodes: np.ndarray, keys: np.ndarray) -> None:
        """Predict the costs of nodes by law and network, and store them in `_costs`.

        Args:
          rows: int [k], the index of the state of each node.
          nodes: int [k], the nodes.
          keys: int [k], the key of each node's widest neighbourhood.
        """
        walk = around(self.states, rows, nodes, self.model.costs.reach)
        costs, deviations = self.model.costs(self._rows, *walk)
        for k, key in enumerate(keys.tolist()):
            self._costs[key] = costs[k], deviations[k]
