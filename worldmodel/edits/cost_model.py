"""Costs of nodes, alone and in their neighbourhood, and gains of rewrites.

A single node costs the mean of the logged costs for its signature, or an estimate from nodes of other sizes. At typical
sizes without episodes, the nodes of the initial graph show the change of costs. A node that is not in that graph costs
as much as at other sizes, plus an amount for each further element (a kernel launch and a stream of data). Steps that
need this estimate are uncertain.

A gain is the difference of the costs of nodes in their neighbourhoods. The analytic cost is a sum over operators, so
the added and removed nodes are enough. A profiled kernel spans several operators, so the cost of a node depends on its
neighbourhood. Costs are learned for neighbourhoods up to five edges wide, and the widest known neighbourhood predicts
the cost. A step updates all nodes within five edges. A node keeps its cost while its widest known neighbourhood stays
the same.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import Edit
from worldmodel.edits.learned_rules import Signature, node_signature
from worldmodel.edits.logged_episodes import sizes_of
from worldmodel.train_and_load import checked_array

REACH = 5  # edges within which other nodes may affect a node's cost; the width of a layer normalisation
SLOPE_RIDGE = 0.1  # regularisation of the slopes of runtimes over sizes


class NodeCosts:
    """Runtimes of nodes (ps) by operator signature.

    Attributes:
      known: operator → signature → mean runtime (ps).
      sizes: tensor signature → elements.
    """

    def __init__(self, known: dict[int, dict[Signature, float]], sizes: dict[int, int]):
        self.known, self.sizes = known, sizes

    @classmethod
    def learn(cls, logged: Iterable[tuple[int, Signature, int]], sizes: dict[int, int]) -> "NodeCosts":
        """Average logged runtimes.

        Args:
          logged: (operator, signature, runtime in ps), once per record.
          sizes: tensor signature → elements.
        """
        sums: dict[int, dict[Signature, list]] = {}
        for operator, signature, runtime in logged:
            sum_and_number = sums.setdefault(operator, {}).setdefault(signature, [0, 0])
            sum_and_number[0] += runtime
            sum_and_number[1] += 1
        known: dict[int, dict[Signature, float]] = {}
        for operator, of_operator in sums.items():
            known[operator] = {signature: total / n for signature, (total, n) in of_operator.items()}
        return cls(known, sizes)

    def knows(self, operator: int, signature: Signature) -> bool:
        return signature in self.known.get(operator, ())

    def __call__(self, operator: int, signature: Signature) -> float:
        """Return the runtime (ps) of a node; 0 for an unknown operator."""
        of_operator = self.known.get(operator, {})
        if signature in of_operator:
            return of_operator[signature]
        others = []
        for other, runtime in of_operator.items():
            if runtime > 0 and len(other) == len(signature):
                others.append((other, runtime))
        return self._by_size(signature, others) if others else 0.0

    def _by_size(self, signature: Signature, others: list[tuple[Signature, float]]) -> float:
        """Estimate a runtime by weighted least squares in logarithms of sizes.

        The slopes are regularised towards the root of the product of the sizes: the work of a matrix product grows with
        both operands and the result.
        """
        logs, wanted = self._log_sizes(signature, [other for other, _ in others])
        runtimes = np.log([runtime for _, runtime in others])
        nearness = np.exp(-np.abs(logs - wanted).sum(axis=1))
        weights = (nearness + 1e-9) / (nearness + 1e-9).sum()
        base, level = weights @ logs, weights @ runtimes
        slopes = np.full(len(signature), _prior_slope(base))
        inputs, left = logs - base, runtimes - level - (logs - base) @ slopes
        gram = (inputs * weights[:, None]).T @ inputs + SLOPE_RIDGE * np.eye(len(signature))
        slopes = slopes + np.linalg.solve(gram, (inputs * weights[:, None]).T @ left)
        return float(np.exp(level + (wanted - base) @ slopes))

    def _log_sizes(self, signature: Signature, others: list[Signature]) -> tuple[np.ndarray, np.ndarray]:
        """Return the log sizes of the others, [k, S], and of the signature, [S]; 0 where the signature's own size is
        unknown.
        """
        logs = np.zeros((len(others), len(signature)))
        for row, other in zip(logs, others, strict=True):
            for k, (there, here) in enumerate(zip(other, signature, strict=True)):
                row[k] = max(self.sizes.get(there, self.sizes.get(here, 1)), 1)
        logs = np.log(logs)
        wanted = np.log([max(self.sizes.get(tensor, 1), 1) for tensor in signature])
        unknown = np.array([tensor not in self.sizes for tensor in signature])
        logs[:, unknown], wanted[unknown] = 0.0, 0.0
        return logs, wanted

    def to_json(self) -> dict:
        known = [[operator, list(of_operator.items())] for operator, of_operator in self.known.items()]
        return {"sizes": sorted(self.sizes.items()), "known": known}

    @classmethod
    def from_json(cls, saved: dict) -> "NodeCosts":
        """Restore the result of `to_json`.

        Raises:
          TypeError, ValueError: the values do not fit together.
        """
        known: dict[int, dict[Signature, float]] = {}
        for operator, of_operator in saved["known"]:
            means = {tuple([int(tensor) for tensor in signature]): float(mean) for signature, mean in of_operator}
            if not np.isfinite(list(means.values())).all():
                raise ValueError("a cost is not finite")
            known[int(operator)] = means
        sizes = {int(tensor): int(size) for tensor, size in saved["sizes"]}
        if max(sizes.values(), default=0) >= 2**63:
            raise ValueError("a size is too large")
        return cls(known, sizes)


def _prior_slope(log_sizes: np.ndarray) -> float:
    """Return the prior slope of the log runtime over each log size, float64 [S].

    The slope is ½. If all relevant sizes are equal, it is one over their number, at most ½. Without relevant sizes it
    is 0.
    """
    large = log_sizes[log_sizes > 0]
    if not len(large):
        return 0.0
    return 1.0 / (max(2, len(large)) if np.ptp(large) < 1e-9 else 2)


Growth = tuple[int, int, float]  # elements of a node at the known sizes and here, additional cost here (ps)


def node_costs_at(first: Edit, learnt: Mapping[int, NodeCosts]) -> NodeCosts:
    """Return the costs of single nodes for a graph that starts as `first`.

    Args:
      first: the initial nodes.
      learnt: typical sizes → costs.
    """
    if first.sizes in learnt:
        return learnt[first.sizes]
    signatures = {tensor.id: tensor.signature for tensor in first.tensors}
    logged = []
    for node in first.nodes:
        signature = node_signature(node.inputs, node.outputs, signatures.__getitem__)
        logged.append((node.operator, signature, node.runtime_ps))
    here = NodeCosts.learn(logged, sizes_of(first))
    # Use the typical sizes at which the most nodes of this graph are known.
    return GrownCosts(here, max(learnt.values(), key=lambda there: sum(there.knows(*node[:2]) for node in logged)))


class GrownCosts(NodeCosts):
    """Costs at typical sizes without episodes.

    Attributes:
      known, sizes: of the initial graph, at its typical sizes.
      there: the costs learned at other typical sizes.
    """

    def __init__(self, here: NodeCosts, there: NodeCosts):
        super().__init__(here.known, here.sizes)
        self.there = there
        symbolic = [tensor for tensor in here.sizes if tensor & 1 and tensor in there.sizes]
        elements_there = sum(there.sizes[tensor] for tensor in symbolic)
        self._ratio = sum(here.sizes[tensor] for tensor in symbolic) / elements_there if elements_there else 1.0
        self._of_operator = {operator: _per_element(self._growths(operator)) for operator in here.known}
        self._of_all = _per_element([growth for operator in here.known for growth in self._growths(operator)])

    def __call__(self, operator: int, signature: Signature) -> float:
        if self.knows(operator, signature):
            return super().__call__(operator, signature)
        runtime, (elements_there, elements_here) = self.there(operator, signature), self._elements(signature)
        per_element = self._of_operator.get(operator)
        per_element = self._of_all if per_element is None else per_element
        return max(runtime + (per_element or 0.0) * (elements_here - elements_there), 0.0)

    def _growths(self, operator: int) -> list[Growth]:
        """Return the growth of the initial graph's nodes of an operator whose costs are also known at the other sizes.
        """
        result = []
        for signature, runtime in self.known[operator].items():
            if self.there.knows(operator, signature):
                result.append((*self._elements(signature), runtime - self.there(operator, signature)))
        return result

    def _elements(self, signature: Signature) -> tuple[float, float]:
        """Return (there, here): the elements of all tensors of a node at both typical sizes.

        A symbolic tensor that is absent from the initial graph grows by the mean ratio of the present ones.
        """
        there = here = 0.0
        for tensor in signature:
            size = self.there.sizes.get(tensor, 0)
            there += size
            here += self.sizes.get(tensor, size * self._ratio if tensor & 1 else size)
        return there, here


def _per_element(growths: Iterable[Growth]) -> float | None:
    """Return ps per element by least squares; None if no size differs."""
    products = squares = 0.0
    for there, here, more in growths:
        products += (here - there) * more
        squares += (here - there) ** 2
    return products / squares if squares else None


class KeyedMeans:
    """Mean and spread of values by 32-bit key."""

    def __init__(self, keys: np.ndarray, values: np.ndarray):
        """Average values, float64 [k], by keys, uint32 [k]; keys may repeat."""
        self.keys, inverse, number = np.unique(keys, return_inverse=True, return_counts=True)
        self.mean = np.bincount(inverse, values, len(self.keys)) / number
        self.spread = np.sqrt(np.bincount(inverse, (values - self.mean[inverse]) ** 2, len(self.keys)) / number)

    def __call__(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (mean, spread, whether the key is known); mean and spread are 0 for an unknown key."""
        if not len(self.keys):
            return np.zeros(len(keys)), np.zeros(len(keys)), np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[at] == keys
        return np.where(known, self.mean[at], 0.0), np.where(known, self.spread[at], 0.0), known

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}/{part}": getattr(self, part) for part in ("keys", "mean", "spread")}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], name: str) -> "KeyedMeans":
        result = cls.__new__(cls)
        result.keys = checked_array(arrays, f"{name}/keys", np.uint32, None)
        result.mean = checked_array(arrays, f"{name}/mean", np.float64, len(result.keys))
        result.spread = checked_array(arrays, f"{name}/spread", np.float64, len(result.keys))
        return result


class GainBounds(NamedTuple):
    """Bounds of the observed gains of each rule, float64 [N] each.

    Attributes:
      least, most: smallest and largest gain (ps); 0 if the rule was never carried out.
      largest: elements of the largest tensor that the rule replaced.
    """

    least: np.ndarray
    most: np.ndarray
    largest: np.ndarray

    def of(self, xfer_ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (smallest, largest) plausible gains, float64 [k] in ps.

        Bounds grow in proportion where a tensor is larger than any replaced one.

        Args:
          xfer_ids: int [k], the rules.
          sizes: float64 [k], elements of the replaced tensors.
        """
        larger = np.maximum(sizes / self.largest[xfer_ids], 1.0)
        return self.least[xfer_ids] * larger, self.most[xfer_ids] * larger


class RewriteGains:
    """Observed gains of rewrites, as a fallback where the effect or a cost is unknown."""

    def __init__(self, samples: np.ndarray):
        """Store samples, float64 [k, 4]: xfer_id, pattern, elements of the replaced tensor, gain (ps)."""
        self.samples = samples
        self._of: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, xfer_id: int, pattern: int | None, size: float | None) -> tuple[float, float]:
        """Return (expected gain, its spread) in ps, from the pattern's samples or else the rule's.

        Args:
          xfer_id: the rule.
          pattern: the number of the pattern; None if unknown.
          size: elements of the replaced tensor, which scale the gain; None if unknown.
        """
        others = self._samples_of(1, pattern) if pattern is not None else ()
        others = others if len(others) else self._samples_of(0, xfer_id)
        if not len(others):
            return 0.0, 0.0
        gains = others[:, 3] * (size / others[:, 2] if size else 1.0)
        return float(np.median(gains)), float(gains.std())

    def bounds(self, n_rules: int) -> GainBounds:
        """Return the bounds of the gains of each of n_rules rules."""
        least, most, largest = np.full(n_rules, np.inf), np.full(n_rules, -np.inf), np.full(n_rules, np.inf)
        rules = self.samples[:, 0].astype(np.int64)
        np.minimum.at(least, rules, self.samples[:, 3])
        np.maximum.at(most, rules, self.samples[:, 3])
        largest[rules] = 0.0
        np.maximum.at(largest, rules, self.samples[:, 2])
        never = most < least
        return GainBounds(np.where(never, 0.0, least), np.where(never, 0.0, most), largest)

    def _samples_of(self, column: int, number: int) -> np.ndarray:
        if (column, number) not in self._of:
            self._of[column, number] = self.samples[self.samples[:, column] == number]
        return self._of[column, number]


class CostModel:
    """The costs of nodes in their neighbourhoods.

    Attributes:
      nodes: costs of single nodes, by typical sizes (see `rlflow.collect.edits.Edit`).
      neighbourhoods: means by neighbourhood key, for each width from 1; [] if neighbourhoods do not matter.
      spread: spread of runtimes for unknown neighbourhoods (ps).
      gains: observed gains of rewrites.
    """

    def __init__(
        self, nodes: dict[int, NodeCosts], neighbourhoods: list[KeyedMeans], gains: RewriteGains, spread: float
    ):
        self.nodes, self.neighbourhoods, self.gains, self.spread = nodes, neighbourhoods, gains, spread

    @property
    def reach(self) -> int:
        """The distance to which a cost depends on neighbours, in edges."""
        return len(self.neighbourhoods)

    def __call__(
        self, single: np.ndarray, keys: np.ndarray, paid: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the costs of k nodes.

        A node keeps the cost in `paid` while its widest known neighbourhood equals the one in `before`.

        Args:
          single: float64 [k], costs by operator signature (ps).
          keys: uint32 [W, k], present neighbourhood keys.
          paid: float64 [k], earlier costs (ps).
          before: uint32 [W, k], earlier keys.

        Returns:
          The runtimes (ps) and their spreads (ps), float64 [k], and whether the widest neighbourhoods are known, bool
            [k].
        """
        runtime, spread, stays = single, np.full(len(single), self.spread), np.zeros(len(single), bool)
        for means, now, then in zip(self.neighbourhoods, keys, before, strict=True):
            mean, deviation, known = means(now)
            runtime, spread = np.where(known, mean, runtime), np.where(known, deviation, spread)
            stays = np.where(known, now == then, stays)
        return np.where(stays, paid, runtime), np.where(stays, 0.0, spread), known

    def arrays(self) -> dict[str, np.ndarray]:
        widths = len(self.neighbourhoods)
        result = {"gains": self.gains.samples, "spread": np.float64(self.spread), "widths": np.int64(widths)}
        for width, means in enumerate(self.neighbourhoods, 1):
            result |= means.arrays(f"neighbourhood{width}")
        return result

    @classmethod
    def of(cls, nodes: dict[int, NodeCosts], arrays: dict[str, np.ndarray], widths: int) -> "CostModel":
        """Restore a cost model.

        Args:
          nodes: costs of single nodes.
          arrays: the saved arrays.
          widths: the expected number of neighbourhood widths, if neighbourhoods matter.

        Raises:
          KeyError, ValueError: the arrays are damaged.
        """
        if checked_array(arrays, "widths", np.int64) not in (0, widths):
            raise ValueError(f"it has costs for {arrays['widths']} widths of neighbourhoods, not {widths}")
        neighbourhoods = [KeyedMeans.of(arrays, f"neighbourhood{width}") for width in range(1, arrays["widths"] + 1)]
        gains = RewriteGains(checked_array(arrays, "gains", np.float64, None, 4))
        return cls(nodes, neighbourhoods, gains, float(checked_array(arrays, "spread", np.float64)))
