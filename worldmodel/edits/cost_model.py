"""What nodes cost, alone and among others, and what rewrites gain.

A single node costs the mean of what was logged for its signature, else an estimate from nodes of other sizes. At a
typical size that no episode was played at, the nodes of the initial graph show what changes. A node that is not among
them costs what it cost at other sizes, plus a share for each further element: the law of a launch and a stream of
data. Steps that need this estimate are uncertain.

A gain is the difference of the costs of nodes in their neighbourhoods. The analytic cost is a sum over operators, so
the nodes that go and come are enough. A profiled kernel spans several operators, so its cost depends on the
neighbourhood. It is learnt for neighbourhoods up to five edges wide, and the widest one that is known predicts it.
After a step the costs of all nodes within five edges are looked up anew. A node keeps its cost while its widest known
neighbourhood stays.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import Edit
from worldmodel.edits.learned_rules import Signature, node_signature
from worldmodel.edits.logged_episodes import sizes_of
from worldmodel.train_and_load import checked_array

REACH = 5  # edges within which other nodes may change what a node costs; a layer normalisation is as wide
SLOPE_RIDGE = 0.1  # of the slopes of runtimes over sizes


class NodeCosts:
    """Runtime (ps) of nodes by operator signature.

    known: operator → signature → mean runtime. sizes: tensor signature → elements.
    """

    def __init__(self, known: dict[int, dict[Signature, float]], sizes: dict[int, int]):
        self.known, self.sizes = known, sizes

    @classmethod
    def learn(cls, logged: Iterable[tuple[int, Signature, int]], sizes: dict[int, int]) -> "NodeCosts":
        """logged: (operator, signature, runtime) as often as they were recorded."""
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
        """0 for an operator that was never seen."""
        of_operator = self.known.get(operator, {})
        if signature in of_operator:
            return of_operator[signature]
        others = []
        for other, runtime in of_operator.items():
            if runtime > 0 and len(other) == len(signature):
                others.append((other, runtime))
        return self._by_size(signature, others) if others else 0.0

    def _by_size(self, signature: Signature, others: list[tuple[Signature, float]]) -> float:
        """Least squares in logarithms, drawn to the root of the product of the sizes: so a matrix product's work grows
        with its two operands and its result."""
        logs, wanted = self._log_sizes(signature, [other for other, _ in others])
        runtimes = np.log([runtime for _, runtime in others])
        nearness = np.exp(-np.abs(logs - wanted).sum(axis=1))
        weights = (nearness + 1e-9) / (nearness + 1e-9).sum()
        base, level = weights @ logs, weights @ runtimes
        slopes = np.full(len(signature), _usual_slope(base))
        inputs, left = logs - base, runtimes - level - (logs - base) @ slopes
        gram = (inputs * weights[:, None]).T @ inputs + SLOPE_RIDGE * np.eye(len(signature))
        slopes = slopes + np.linalg.solve(gram, (inputs * weights[:, None]).T @ left)
        return float(np.exp(level + (wanted - base) @ slopes))

    def _log_sizes(self, signature: Signature, others: list[Signature]) -> tuple[np.ndarray, np.ndarray]:
        """(log sizes of the others, [k, S]; of the signature, [S]); 0 where the signature's own size is not known."""
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
        """Raises TypeError or ValueError for what `to_json` did not give."""
        known: dict[int, dict[Signature, float]] = {}
        for operator, of_operator in saved["known"]:
            means = {tuple([int(tensor) for tensor in signature]): float(mean) for signature, mean in of_operator}
            if not np.isfinite(list(means.values())).all():
                raise ValueError("a cost is no number")
            known[int(operator)] = means
        sizes = {int(tensor): int(size) for tensor, size in saved["sizes"]}
        if max(sizes.values(), default=0) >= 2**63:
            raise ValueError("a size is no number")
        return cls(known, sizes)


def _usual_slope(log_sizes: np.ndarray) -> float:
    """Of log runtimes over each of the log sizes, float64 [S]: ½; if all that matter are of one size, one over how many
    they are, at most ½; 0 if none matters."""
    large = log_sizes[log_sizes > 0]
    if not len(large):
        return 0.0
    return 1.0 / (max(2, len(large)) if np.ptp(large) < 1e-9 else 2)


Growth = tuple[int, int, float]  # of a node: elements there and here, by how much more it costs here (ps)


def node_costs_at(first: Edit, learnt: Mapping[int, NodeCosts]) -> NodeCosts:
    """What single nodes cost in a graph that consists of this at first. learnt: by typical sizes."""
    if first.sizes in learnt:
        return learnt[first.sizes]
    signatures = {tensor.id: tensor.signature for tensor in first.tensors}
    logged = []
    for node in first.nodes:
        signature = node_signature(node.inputs, node.outputs, signatures.__getitem__)
        logged.append((node.operator, signature, node.runtime_ps))
    here = NodeCosts.learn(logged, sizes_of(first))
    # of several sizes those at which most of this graph was met
    return GrownCosts(here, max(learnt.values(), key=lambda there: sum(there.knows(*node[:2]) for node in logged)))


class GrownCosts(NodeCosts):
    """known, sizes: of the initial graph, at its typical sizes. there: what was learnt at others."""

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
        """Of the initial graph's nodes of an operator that were met there."""
        result = []
        for signature, runtime in self.known[operator].items():
            if self.there.knows(operator, signature):
                result.append((*self._elements(signature), runtime - self.there(operator, signature)))
        return result

    def _elements(self, signature: Signature) -> tuple[float, float]:
        """(there, here), of all tensors of a node. One that no node of the initial graph has is as much larger here as
        those are on average, if it is symbolic."""
        there = here = 0.0
        for tensor in signature:
            size = self.there.sizes.get(tensor, 0)
            there += size
            here += self.sizes.get(tensor, size * self._ratio if tensor & 1 else size)
        return there, here


def _per_element(growths: Iterable[Growth]) -> float | None:
    """ps per element, by least squares; None where nothing grew."""
    products = squares = 0.0
    for there, here, more in growths:
        products += (here - there) * more
        squares += (here - there) ** 2
    return products / squares if squares else None


class KeyedMeans:
    """Mean and spread of values by 32-bit keys."""

    def __init__(self, keys: np.ndarray, values: np.ndarray):
        """keys: uint32 [k]; values: float64 [k]; keys may repeat."""
        self.keys, inverse, number = np.unique(keys, return_inverse=True, return_counts=True)
        self.mean = np.bincount(inverse, values, len(self.keys)) / number
        self.spread = np.sqrt(np.bincount(inverse, (values - self.mean[inverse]) ** 2, len(self.keys)) / number)

    def __call__(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(mean, spread, whether the key is known); 0 where it is not."""
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
    """Of each rule, float64 [N]: the least and the most that it gained (ps), 0 if it was never carried out, and how
    many elements the largest tensor had that it replaced."""

    least: np.ndarray
    most: np.ndarray
    largest: np.ndarray

    def of(self, xfer_ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the least, the most) of rewrites that replace tensors of so many elements, float64 [k] in ps: where these
        are larger than any that was replaced, in proportion."""
        larger = np.maximum(sizes / self.largest[xfer_ids], 1.0)
        return self.least[xfer_ids] * larger, self.most[xfer_ids] * larger


class RewriteGains:
    """What rewrites gained of which little is known: by pattern, by rule, and how large the replaced tensor was."""

    def __init__(self, samples: np.ndarray):
        """samples: float64 [k, 4]: xfer_id, pattern, elements of the replaced tensor, gain (ps)."""
        self.samples = samples
        self._of: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, xfer_id: int, pattern: int | None, size: float | None) -> tuple[float, float]:
        """(expected gain, its spread) in ps: of the pattern's others, else the rule's, in proportion to the size where
        it is known."""
        others = self._others(1, pattern) if pattern is not None else ()
        others = others if len(others) else self._others(0, xfer_id)
        if not len(others):
            return 0.0, 0.0
        gains = others[:, 3] * (size / others[:, 2] if size else 1.0)
        return float(np.median(gains)), float(gains.std())

    def bounds(self, n_rules: int) -> GainBounds:
        """What each rule ever gained."""
        least, most, largest = np.full(n_rules, np.inf), np.full(n_rules, -np.inf), np.full(n_rules, np.inf)
        rules = self.samples[:, 0].astype(np.int64)
        np.minimum.at(least, rules, self.samples[:, 3])
        np.maximum.at(most, rules, self.samples[:, 3])
        largest[rules] = 0.0
        np.maximum.at(largest, rules, self.samples[:, 2])
        never = most < least
        return GainBounds(np.where(never, 0.0, least), np.where(never, 0.0, most), largest)

    def _others(self, column: int, number: int) -> np.ndarray:
        if (column, number) not in self._of:
            self._of[column, number] = self.samples[self.samples[:, column] == number]
        return self._of[column, number]


class CostModel:
    """nodes: of single nodes, by typical sizes (see `rlflow.collect.edits.Edit`). neighbourhoods: by the key of a
    node's neighbourhood, for each width from 1; [] where those do not matter. spread: what runtimes vary by where
    they do (ps). gains: of rewrites of which too little is known."""

    def __init__(
        self, nodes: dict[int, NodeCosts], neighbourhoods: list[KeyedMeans], gains: RewriteGains, spread: float
    ):
        self.nodes, self.neighbourhoods, self.gains, self.spread = nodes, neighbourhoods, gains, spread

    @property
    def reach(self) -> int:
        """How far a cost looks, in edges."""
        return len(self.neighbourhoods)

    def __call__(
        self, single: np.ndarray, keys: np.ndarray, paid: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(runtime, its spread (ps), whether the widest neighbourhoods are known) of nodes, float64 [k] each and bool
        [k].

        single: float64 [k], what they cost by their operator signatures. keys: uint32 [W, k]. Where the widest
        neighbourhood that is known is still that of `before`, uint32 [W, k], a node costs what was `paid`, float64 [k].
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
        """widths: how many there are where neighbourhoods matter."""
        if checked_array(arrays, "widths", np.int64) not in (0, widths):
            raise ValueError(f"it knows neighbourhoods of {arrays['widths']} widths, not {widths}")
        neighbourhoods = [KeyedMeans.of(arrays, f"neighbourhood{width}") for width in range(1, arrays["widths"] + 1)]
        gains = RewriteGains(checked_array(arrays, "gains", np.float64, None, 4))
        return cls(nodes, neighbourhoods, gains, float(checked_array(arrays, "spread", np.float64)))
