"""Steps of dreamt states as the networks predict them."""

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
    """Of every state: gain: ps by which it costs less; spread: of that (ps); unsure: nodes whose cost is."""

    gain: np.ndarray
    spread: np.ndarray
    unsure: np.ndarray


class NeuralSimulator:
    """See `worldmodel.edits.simulator.Simulator`.

    What a node costs is predicted when it comes, or when what is around it changes, and it costs that until it goes: so
    what all steps gained together is the difference of two graphs, and errors do not add up.
    """

    def __init__(self, model, index: GroundingIndex, nodes: Sequence[np.ndarray]):
        """nodes: of each state, those that are there."""
        self.model, self.index = model, index
        self.states = DreamStates(index, list(nodes), model.spec.n_rules)
        self._rows = NodeRows(index, model.costs.table)
        self._bounds = model.costs.gains.bounds(model.spec.n_rules)
        self._costs: dict[int, tuple[float, float, bool]] = {}  # by node, or by the key of its neighbourhood
        rows = np.repeat(np.arange(len(nodes)), [len(there) for there in nodes])
        self._pay(self._concerned(rows, np.concatenate(nodes)), [])

    def step(self, rows: np.ndarray, matches: np.ndarray) -> Step:
        """Rewrites matches, int [k], that are there in the (different) states rows. An effect that nobody knows changes
        nothing, and gains what such a rewrite gains in the median. One that is not sure gains no less and no more than
        its rule ever did, a sure one at most as much again, and in proportion more where it replaces larger tensors
        than the rule ever did: one that is wrong makes nodes of sizes that cost a hundred times as much, and a few of
        these were most of the error of all rewards."""
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
        """float64 [k]: the gains within the bounds of their rules; the nodes that came cost as much more or less."""
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
        """(gain, spread) in ps of rules, int [k], whatever they match."""
        return expected_gains(self.model.costs.gains, xfer_ids)

    def _concerned(self, rows: np.ndarray, nodes: np.ndarray) -> Neighbourhoods:
        if self.model.costs.reach:
            return neighbourhoods(self.states, rows, nodes)
        return Neighbourhoods(rows, nodes, nodes[None])

    def _changed(self, change: StateChange) -> Neighbourhoods:
        if self.model.costs.reach:
            return changed_neighbourhoods(change)
        rows, nodes = (np.concatenate(parts) for parts in zip(*change.added, strict=True))
        there = self.states.producer[rows, self.index.primary_output.values[nodes]] == nodes  # it may have gone again
        return self._concerned(rows[there], nodes[there])

    def _pay(self, concerned: Neighbourhoods, removed: Sequence[Cells]) -> _Paid:
        """Counts the costs of nodes anew, and takes off the costs of those that were removed."""
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
        """(cost, its deviation, whether it is not known well), [k]; the network is asked once a neighbourhood."""
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
