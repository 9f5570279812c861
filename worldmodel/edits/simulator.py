"""The simulator of imagined rollouts and replays: batches of states, and the gain and uncertainty of their steps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worldmodel.edits.cost_model import REACH, node_costs_at
from worldmodel.edits.dream_states import DreamStates, StateChange, as_named_by_environment, rewrite
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.neighbourhood import Neighbourhoods, changed_neighbourhoods, neighbourhoods
from worldmodel.edits.node_values import costs_unknown, single_node_costs

# The uncertainty of a step in "edits", from the first condition that holds:
#   1     the effect is unknown
#   0.5   the effect is predicted by analogy, and removes or adds nodes whose runtime was never logged
#   0.25  the effect is predicted by analogy, or the data lack these neighbourhoods or runtimes at these typical sizes
#   0     otherwise
# "graph-mdn" uses 0.5 for any effect that its networks are not sure of, and 0.25 for an uncertain gain.
UNKNOWN_EFFECT, BY_ANALOGY, NEW_NEIGHBOURHOOD = 1.0, 0.5, 0.25

Changes = tuple[np.ndarray, np.ndarray, np.ndarray]  # gains of all n states, their spread, bool; see `Simulator._pay`


class Step(NamedTuple):
    """The predicted outcome of a step in k states of a batch.

    Attributes:
      gain: float64 [k], the decrease of the runtime (ps).
      spread: float64 [k], the standard deviation of the gain (ps).
      uncertainty: float32 [k], 0, NEW_NEIGHBOURHOOD, BY_ANALOGY or UNKNOWN_EFFECT.
      change: the nodes that were removed and added; None if no effect is known.
    """

    gain: np.ndarray
    spread: np.ndarray
    uncertainty: np.ndarray
    change: StateChange | None


class Simulator:
    """A batch of states with the runtimes of their nodes, in which matches can be rewritten.

    Attributes:
      states: the current batch; the caller may assign another batch of the same grounding.
    """

    def __init__(self, model, index: GroundingIndex, nodes: Sequence[np.ndarray], costs: Sequence[np.ndarray] = ()):
        """Create a simulator.

        Args:
          model: the world model.
          index: the grounding of the states.
          nodes: for each state, int64 [k], the numbers of its nodes.
          costs: for each state, float64 [k], the real runtimes of its nodes (ps); () to predict them.
        """
        self.model, self.index = model, index
        self.states = DreamStates(index, list(nodes), model.spec.n_rules, model.costs.reach)
        self.node_costs = node_costs_at(index.grounding.first, model.costs.nodes)
        self.single_cost = single_node_costs(index, self.node_costs)
        self.cost_unknown = costs_unknown(index, self.node_costs)
        if model.costs.neighbourhoods:
            rows = np.repeat(np.arange(len(nodes)), [len(there) for there in nodes])
            self._pay(neighbourhoods(self.states, rows, np.concatenate(nodes)))
            self.states.set_costs(nodes, costs)

    def step(self, rows: np.ndarray, matches: np.ndarray) -> Step:
        """Rewrite one match in each of k states.

        A match with unknown effect leaves its state unchanged. Its gain is predicted from the observed gains of its
        pattern or rule. The gain is also predicted in this way if the effect is predicted by analogy and removes or
        adds nodes of unknown runtime.

        Args:
          rows: int [k], different indices of states.
          matches: int [k], a present match of each of these states.
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
        """Return bool [n], True for the states in which the runtimes of all added and removed nodes were logged."""
        unknown = np.zeros(self.states.n)
        for at, nodes in (*change.removed, *change.added):
            np.add.at(unknown, at, self.cost_unknown(nodes))
        return unknown == 0

    def _costs_of(self, change: StateChange) -> Changes:
        if self.model.costs.neighbourhoods:
            return self._pay(changed_neighbourhoods(change), change.removed)
        more = np.zeros(self.states.n)
        change.add_to(more, self.single_cost)
        return -more, np.zeros(self.states.n), np.ones(self.states.n, bool)

    def _pay(self, concerned: Neighbourhoods, removed: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> Changes:
        """Update the runtimes in `states.paid` after a step, and return the changes.

        Args:
          concerned: the nodes whose neighbourhood changed, with their new keys.
          removed: list of (int [m] indices of states, int [m] nodes) that the step removed.

        Returns:
          (float64 [n] decrease of the runtime in ps, float64 [n] its standard deviation in ps, bool [n]: True if the
          widest neighbourhoods of all updated nodes are known).
        """
        states, primary_output, width = self.states, self.index.primary_output.values, self.states.paid.shape[1]
        at = concerned.rows * width + primary_output[concerned.nodes]
        gone = np.concatenate([at[:0], *[rows * width + primary_output[nodes] for rows, nodes in removed]])
        paid, keys = states.paid.reshape(-1), states.keys.reshape(-1, REACH)
        keys[gone], cells = 0, np.unique(np.concatenate([at, gone]))  # key 0: a node that is added again counts as new
        before = paid[cells]
        cost, spread, known = self.model.costs(self.single_cost(concerned.nodes), concerned.keys, paid[at], keys[at].T)
        spread = np.where((keys[at, 0] != 0) & (cost == paid[at]), 0.0, spread)  # only changes are uncertain
        paid[cells] = 0.0
        paid[at], keys[at] = cost, concerned.keys.T
        gain = np.bincount(cells // width, before - paid[cells], states.n)
        spread = np.sqrt(np.bincount(concerned.rows, spread**2, states.n))
        return gain, spread, np.bincount(concerned.rows, ~known, states.n) == 0

    def _gain_by_analogy(self, match: int) -> tuple[float, float]:
        """Return the median and the standard deviation (ps) of observed gains of the match's pattern or rule.

        The observed gains are scaled to the size of the tensor that the match replaces; see `RewriteGains`.
        """
        ground, costs = self.index.grounding.matches[match], self.model.costs
        size = self.node_costs.sizes.get(self.index.grounding.signatures[ground.operands[-1]])
        return costs.gains(int(self.index.rule.values[match]), ground.pattern, size)
