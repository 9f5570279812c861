"""The simulator of dreams and replays: states of one grounding, and the predicted outcome of a step in each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worldmodel.edits.cost_model import REACH, RewriteGains, node_costs_at
from worldmodel.edits.dream_states import DreamStates, StateChange, as_named_by_environment, rewrite
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.neighbourhood import Neighbourhoods, changed_neighbourhoods, neighbourhoods
from worldmodel.edits.node_values import costs_unknown, single_node_costs

# Uncertainty of a step whose effect is unknown; whose effect is predicted by analogy and has nodes of unknown cost; or
# whose effect is known, but not in this neighbourhood or at these typical sizes.
UNKNOWN_EFFECT, BY_ANALOGY, NEW_NEIGHBOURHOOD = 1.0, 0.5, 0.25


class Step(NamedTuple):
    """The predicted outcome of a step in k states.

    Attributes:
      gain: float64 [k], reduction of the runtime (ps).
      spread: float64 [k], standard deviation of the gain (ps).
      uncertainty: float32 [k].
      change: the change of the states; None if no effect is known.
    """

    gain: np.ndarray
    spread: np.ndarray
    uncertainty: np.ndarray
    change: StateChange | None


class _Costs(NamedTuple):
    """Cost changes of all n states.

    Attributes:
      gain: float64 [n], reduction of the runtime (ps).
      spread: float64 [n], standard deviation of the gain (ps).
      familiar: bool [n], whether all neighbourhoods are known.
    """

    gain: np.ndarray
    spread: np.ndarray
    familiar: np.ndarray


class Simulator:
    """A batch of states with the costs of their nodes.

    Attributes:
      states: the current states; the caller may replace them.
    """

    def __init__(self, model, index: GroundingIndex, nodes: Sequence[np.ndarray]):
        """Place one state per entry of `nodes`, the numbers of its nodes."""
        self.model, self.index = model, index
        self.states = DreamStates(index, list(nodes), model.spec.n_rules, model.costs.reach)
        self.node_costs = node_costs_at(index.grounding.first, model.costs.nodes)
        self.single_cost = single_node_costs(index, self.node_costs)
        self.cost_unknown = costs_unknown(index, self.node_costs)
        if model.costs.neighbourhoods:
            rows = np.repeat(np.arange(len(nodes)), [len(there) for there in nodes])
            self._pay(neighbourhoods(self.states, rows, np.concatenate(nodes)))

    def step(self, rows: np.ndarray, matches: np.ndarray) -> Step:
        """Rewrite one match in each selected state.

        An unknown effect changes nothing. Its gain is predicted from other matches of the rule. The same prediction is
        used for an effect by analogy with nodes of unknown runtime.

        Args:
          rows: int [k], the states, all different.
          matches: int [k], a present match of each.

        Returns:
          The predicted gains, uncertainties and changes.
        """
        matches = as_named_by_environment(self.states, rows, matches)
        effects = self.index.effects(matches)
        known = effects >= 0
        seen = known.copy()
        seen[known] = self.index.seen.values[effects[known]]
        gain, spread = np.zeros(len(rows)), np.zeros(len(rows))
        uncertainty = np.where(known, BY_ANALOGY, UNKNOWN_EFFECT).astype(np.float32)
        for k in np.flatnonzero(~seen).tolist():
            gain[k], spread[k] = self._gain_by_analogy(int(matches[k]))
        change = None
        if known.any():
            change = rewrite(self.states, rows[known], matches[known])
            costs_known = self._all_costs_known(change)[rows]
            sure = seen | (known & costs_known)
            gain[sure], spread[sure], familiar = (of_states[rows[sure]] for of_states in self._costs_of(change))
            uncertainty[sure] = np.where(seen[sure] & costs_known[sure] & familiar, 0.0, NEW_NEIGHBOURHOOD)
        return Step(gain, spread, uncertainty, change)

    def _all_costs_known(self, change: StateChange) -> np.ndarray:
        """Return bool [n]: whether the runtimes of all added and removed nodes were logged."""
        unknown = np.zeros(self.states.n)
        for at, nodes in (*change.removed, *change.added):
            np.add.at(unknown, at, self.cost_unknown(nodes))
        return unknown == 0

    def _costs_of(self, change: StateChange) -> _Costs:
        if self.model.costs.neighbourhoods:
            return self._pay(changed_neighbourhoods(change), change.removed)
        more = np.zeros(self.states.n)
        change.add_to(more, self.single_cost)
        return _Costs(-more, np.zeros(self.states.n), np.ones(self.states.n, bool))

    def _pay(self, concerned: Neighbourhoods, removed: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> _Costs:
        """Update the costs of nodes by their neighbourhoods, and subtract the costs of the removed nodes."""
        states, primary_output, width = self.states, self.index.primary_output.values, self.states.paid.shape[1]
        at = concerned.rows * width + primary_output[concerned.nodes]
        cells = np.unique(np.concatenate([at, *[rows * width + primary_output[nodes] for rows, nodes in removed]]))
        paid, keys = states.paid.reshape(-1), states.keys.reshape(-1, REACH)
        before = paid[cells]
        cost, spread, known = self.model.costs(self.single_cost(concerned.nodes), concerned.keys, paid[at], keys[at].T)
        paid[cells], keys[cells] = 0.0, 0  # a node that returns is not a node that stayed
        paid[at], keys[at] = cost, concerned.keys.T
        gain = np.bincount(cells // width, before - paid[cells], states.n)
        spread = np.sqrt(np.bincount(concerned.rows, spread**2, states.n))
        return _Costs(gain, spread, np.bincount(concerned.rows, ~known, states.n) == 0)

    def _gain_by_analogy(self, match: int) -> tuple[float, float]:
        ground, costs = self.index.grounding.matches[match], self.model.costs
        size = self.node_costs.sizes.get(self.index.grounding.signatures[ground.operands[-1]])
        return costs.gains(int(self.index.rule.values[match]), ground.pattern, size)

    def expected(self, xfer_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected (gain, spread) in ps of rules, int [k], over all matches."""
        return expected_gains(self.model.costs.gains, xfer_ids)


def expected_gains(gains: RewriteGains, xfer_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected (gain, spread) in ps of rules, int [k], over all matches."""
    expected = np.array([gains(xfer_id, None, None) for xfer_id in xfer_ids.tolist()]).reshape(-1, 2)
    return expected[:, 0], expected[:, 1]
