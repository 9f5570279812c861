"""The simulator of dreamed states with predictions of the networks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worldmodel.edits.dream_states import DreamStates, StateChange, as_named_by_environment, rewrite
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.neighbourhood import Neighbourhoods, around, changed_neighbourhoods, neighbourhoods
from worldmodel.edits.simulator import BY_ANALOGY, NEW_NEIGHBOURHOOD, UNKNOWN_EFFECT, Step, expected_gains
from worldmodel.graph_mdn.neural_costs import NodeRows

Cells = tuple[np.ndarray, np.ndarray]  # (states, nodes), int [k]


class _Paid(NamedTuple):
    """Cost changes of all n states.

    Attributes:
      gain: float64 [n], reduction of the runtime (ps).
      spread: float64 [n], standard deviation of the gain (ps).
      unsure: float64 [n], number of nodes with uncertain costs.
    """

    gain: np.ndarray
    spread: np.ndarray
    unsure: np.ndarray


class NeuralSimulator:
    """The simulator of a dream; see `worldmodel.edits.simulator.Simulator`.

    The cost of a node is predicted when the node appears or its neighbourhood changes, and then stays. The sum of all
    gains is therefore the difference of two graphs, and errors do not add up.
    """

    def __init__(self, model, index: GroundingIndex, nodes: Sequence[np.ndarray]):
        """Place one state per entry of `nodes`, the numbers of its nodes."""
        self.model, self.index = model, index
        self.states = DreamStates(index, list(nodes), model.spec.n_rules)
        self._rows = NodeRows(index, model.costs.table)
        self._bounds = model.costs.gains.bounds(model.spec.n_rules)
        self._costs: dict[int, tuple[float, float, bool]] = {}  # by node, or by the key of its neighbourhood
        rows = np.repeat(np.arange(len(nodes)), [len(there) for there in nodes])
        self._pay(self._concerned(rows, np.concatenate(nodes)), [])

    def step(self, rows: np.ndarray, matches: np.ndarray) -> Step:
        """Rewrite one match in each selected state.

        An unknown effect changes nothing and has the median gain of such rewrites. The gain of an uncertain effect is
        clipped to the observed gains of its rule. The bounds of a certain effect are wider by the largest gain or loss,
        and grow in proportion for tensors larger than the rule ever replaced. Without these bounds a few wrong effects
        with nodes of enormous size dominated the error of all rewards.

        Args:
          rows: int [k], the states, all different.
          matches: int [k], a present match of each.

        Returns:
          The predicted gains, uncertainties and changes.
        """
        matches = as_named_by_environment(self.states, rows, matches)
        effects = self.index.effects(matches)
        known = effects >= 0
        gain, spread = np.zeros(len(rows)), np.zeros(len(rows))
        gain[~known], spread[~known] = self.expected(self.index.rule.values[matches[~known]])
        uncertainty, change = np.full(len(rows), UNKNOWN_EFFECT, np.float32), None
        if known.any():
            change = rewrite(self.states, rows[known], matches[known])
            paid = self._pay(self._changed(change), change.removed)
            gain[known], spread[known], unsure = (of_states[rows[known]] for of_states in paid)
            seen = self.index.seen.values[effects[known]]
            uncertainty[known] = np.maximum(
                np.where(seen, 0.0, BY_ANALOGY), np.where(unsure > 0, NEW_NEIGHBOURHOOD, 0.0)
            )
            gain[known] = self._bounded(rows[known], matches[known], gain[known], seen, change)
        return Step(gain, spread, uncertainty, change)

    def _bounded(
        self, rows: np.ndarray, matches: np.ndarray, gain: np.ndarray, sure: np.ndarray, change: StateChange
    ) -> np.ndarray:
        """Return the gains clipped to the bounds of their rules, float64 [k], and adjust the costs of the added nodes.
        """
        grounding = self.index.grounding
        replaced = [grounding.signatures[grounding.matches[match].operands[-1]] for match in matches.tolist()]
        sizes = np.where(sure, self.model.table.elements(replaced), 0.0)
        least, most = self._bounds.of(self.index.rule.values[matches], sizes)
        more = np.where(sure, np.maximum(np.abs(least), np.abs(most)), 0.0)
        bounded = np.clip(gain, least - more, most + more)
        paid = self.states.paid
        for k in np.flatnonzero(bounded != gain).tolist():
            came = np.concatenate([nodes[at == rows[k]] for at, nodes in change.added])
            outputs = np.unique(self.index.primary_output.values[came])
            cost = paid[rows[k], outputs].sum()
            if cost > 0:
                paid[rows[k], outputs] *= max(cost + gain[k] - bounded[k], 0.0) / cost
        return bounded

    def expected(self, xfer_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected (gain, spread) in ps of rules, int [k], over all matches."""
        return expected_gains(self.model.costs.gains, xfer_ids)

    def _concerned(self, rows: np.ndarray, nodes: np.ndarray) -> Neighbourhoods:
        if self.model.costs.reach:
            return neighbourhoods(self.states, rows, nodes)
        return Neighbourhoods(rows, nodes, nodes[None])

    def _changed(self, change: StateChange) -> Neighbourhoods:
        if self.model.costs.reach:
            return changed_neighbourhoods(change)
        rows, nodes = (np.concatenate(parts) for parts in zip(*change.added, strict=True))
        there = self.states.producer[rows, self.index.primary_output.values[nodes]] == nodes  # may be removed again
        return self._concerned(rows[there], nodes[there])

    def _pay(self, concerned: Neighbourhoods, removed: Sequence[Cells]) -> _Paid:
        """Update the costs of concerned and removed nodes in all states, and return the changes of cost."""
        states, primary_output, width = self.states, self.index.primary_output.values, self.states.paid.shape[1]
        at = concerned.rows * width + primary_output[concerned.nodes]
        cells = np.unique(np.concatenate([at, *[rows * width + primary_output[nodes] for rows, nodes in removed]]))
        paid = states.paid.reshape(-1)
        before = paid[cells]
        cost, spread, unsure = self._costs_of(concerned)
        paid[cells] = 0.0
        paid[at] = cost
        gain = np.bincount(cells // width, before - paid[cells], states.n)
        spread = np.sqrt(np.bincount(concerned.rows, spread**2, states.n))
        return _Paid(gain, spread, np.bincount(concerned.rows, unsure, states.n))

    def _costs_of(self, concerned: Neighbourhoods) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (cost, its deviation, whether it is uncertain), [k], with one network query per new neighbourhood."""
        keys = concerned.keys[-1]
        _, first = np.unique(keys, return_index=True)
        new = np.array([k for k in first.tolist() if int(keys[k]) not in self._costs], np.int64)
        if len(new):
            self._ask(concerned.rows[new], concerned.nodes[new], keys[new])
        known = [self._costs[key] for key in keys.tolist()]
        costs, deviations, unsure = zip(*known, strict=True) if known else ((), (), ())
        return np.array(costs, np.float64), np.array(deviations, np.float64), np.array(unsure, bool)

    def _ask(self, rows: np.ndarray, nodes: np.ndarray, keys: np.ndarray) -> None:
        walk = around(self.states, rows, nodes, self.model.costs.reach)
        costs, deviations, unsure = self.model.costs(self._rows, *walk)
        for k, key in enumerate(keys.tolist()):
            self._costs[key] = costs[k], deviations[k], unsure[k]
