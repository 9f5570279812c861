"""Runtimes of nodes, alone and in their neighbourhood, and gains of rewrites. All costs here are runtimes in ps.

The runtime of a single node is the mean of the logged runtimes for its operator and signature. If the signature was
never logged, the runtime is estimated from nodes of the same operator with other sizes.

A graph with symbolic dimensions has typical sizes, at which its runtimes are computed. The data may contain no episode
at these sizes. The nodes of the initial graph then show how runtimes change between the recorded sizes and these sizes.
A node that the initial graph lacks is estimated at its runtime at the recorded sizes plus a constant time for each
additional element. Steps that need such an estimate are uncertain.

The gain of a step is the decrease of the sum of runtimes over all nodes. The analytic cost is a sum over operators, so
the added and removed nodes determine the gain. A profiled kernel spans several operators, so the runtime of a node also
depends on its neighbourhood. Runtimes are learned for neighbourhoods of up to five edges, and the widest known
neighbourhood of a node predicts its runtime. A step therefore updates all nodes within five edges of its changes. A
node keeps its runtime as long as its widest known neighbourhood is the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import Edit
from worldmodel.edits.learned_rules import Signature, node_signature
from worldmodel.edits.logged_episodes import sizes_of
from worldmodel.train_and_load import checked_array

REACH = 5  # largest distance, in edges, of nodes that affect a node's runtime; wide enough for a layer normalisation
MATCH_LEVELS = 6  # number of keys of a match: rule, pattern, signature, and neighbourhoods of its nodes up to 3 edges
SLOPE_RIDGE = 0.1  # ridge penalty of the slopes of log runtime over log sizes in `NodeCosts`


class NodeCosts:
    """A table of the runtimes (ps) of nodes by operator and signature, which estimates missing entries.

    Attributes:
      known: {operator: {signature (see `node_signature`): mean logged runtime in ps}}.
      sizes: {tensor signature: number of elements}.
    """

    def __init__(self, known: dict[int, dict[Signature, float]], sizes: dict[int, int]):
        self.known, self.sizes = known, sizes

    @classmethod
    def learn(cls, logged: Iterable[tuple[int, Signature, int]], sizes: dict[int, int]) -> "NodeCosts":
        """Return the table of the mean logged runtimes.

        Args:
          logged: (operator, signature, runtime in ps) of each logged node.
          sizes: {tensor signature: number of elements}.
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
        """Return the mean logged runtime of a node, or an estimate from nodes of the same operator, in ps.

        The estimate is 0 if the table has no node of this operator with a positive runtime and a signature of the same
        length.

        Args:
          operator: the operator of the node.
          signature: the signature of the node; see `node_signature`.
        """
        of_operator = self.known.get(operator, {})
        if signature in of_operator:
            return of_operator[signature]
        others = []
        for other, runtime in of_operator.items():
            if runtime > 0 and len(other) == len(signature):
                others.append((other, runtime))
        return self._by_size(signature, others) if others else 0.0

    def _by_size(self, signature: Signature, others: list[tuple[Signature, float]]) -> float:
        """Estimate a runtime (ps) by weighted least squares of the log runtime over the log sizes of the tensors.

        A ridge penalty draws the slopes to `_prior_slope`, mostly ½. With slopes ½, the runtime is proportional to the
        square root of the product of all sizes, like the work of a matrix product.

        Args:
          signature: the signature of the node.
          others: (signature, runtime in ps) of nodes of the same operator; nodes of similar sizes have more weight.
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
        """Return the log numbers of elements of the tensors in signatures.

        Args:
          signature: a signature of S entries.
          others: k signatures of S entries. A tensor of unknown size has the size of the same entry in `signature`.

        Returns:
          (float64 [k, S] for `others`, float64 [S] for `signature`). Columns of unknown size in `signature` are 0.
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
        """Restore the table that `to_json` returned.

        Raises:
          TypeError, ValueError: a value has a wrong type, is not finite or is too large.
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
    """Return the prior slope of the log runtime over each log size, one number for all sizes.

    Tensors of one element are ignored. The slope is ½ in general. If all other tensors have the same size, as in
    elementwise operators, the slope is one over their number, at most ½. Without other tensors the slope is 0.

    Args:
      log_sizes: float64 [S], the logarithms of the numbers of elements.
    """
    large = log_sizes[log_sizes > 0]
    if not len(large):
        return 0.0
    return 1.0 / (max(2, len(large)) if np.ptp(large) < 1e-9 else 2)


# For one node: the number of elements of its tensors at the recorded sizes, the number at this graph's sizes, and its
# runtime at this graph's sizes minus its runtime at the recorded sizes (ps).
Growth = tuple[int, int, float]


def node_costs_at(first: Edit, learnt: Mapping[int, NodeCosts]) -> NodeCosts:
    """Return the runtimes of single nodes at the typical sizes of an initial graph.

    Args:
      first: the first edit of the graph, which contains all its nodes and the hash of its typical sizes.
      learnt: {hash of typical sizes: learned runtimes at these sizes}. If the graph's sizes are missing, the runtimes
        are estimated by `GrownCosts`.
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
    """Runtimes of single nodes at typical sizes for which there are no episodes, estimated from other typical sizes.

    Attributes:
      known, sizes: see `NodeCosts`; they come from the nodes of the initial graph at its typical sizes.
      there: the runtimes learned at other typical sizes.
    """

    def __init__(self, here: NodeCosts, there: NodeCosts):
        super().__init__(here.known, here.sizes)
        self.there = there
        # The signature of a tensor is odd if the tensor's shape contains symbols.
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
        """Return a `Growth` for each node signature of an operator whose runtime is known at both typical sizes."""
        result = []
        for signature, runtime in self.known[operator].items():
            if self.there.knows(operator, signature):
                result.append((*self._elements(signature), runtime - self.there(operator, signature)))
        return result

    def _elements(self, signature: Signature) -> tuple[float, float]:
        """Return the total number of elements of a node's tensors at the recorded sizes and at this graph's sizes.

        A tensor with symbols in its shape that the initial graph lacks grows in the same ratio as the total of all such
        tensors whose size is known at both sizes. Any other tensor that the initial graph lacks keeps its size.
        """
        there = here = 0.0
        for tensor in signature:
            size = self.there.sizes.get(tensor, 0)
            there += size
            here += self.sizes.get(tensor, size * self._ratio if tensor & 1 else size)
        return there, here


def _per_element(growths: Iterable[Growth]) -> float | None:
    """Return the additional runtime per additional element (ps), by least squares; None if no size differs."""
    products = squares = 0.0
    for there, here, more in growths:
        products += (here - there) * more
        squares += (here - there) ** 2
    return products / squares if squares else None


class KeyedMeans:
    """A table of the mean and the standard deviation of runtimes (ps) by 32-bit neighbourhood key.

    Attributes:
      keys: uint32 [K], ascending.
      mean: float64 [K].
      spread: float64 [K], the standard deviation. In a table whose keys do not have the largest distance, this is the
        standard deviation of a node whose neighbourhood of the next larger distance is not in the data.
    """

    def __init__(self, keys: np.ndarray, values: np.ndarray, wider: np.ndarray | None = None):
        """Build the table from samples.

        Args:
          keys: uint32 [k], the key of each sample; keys may repeat.
          values: float64 [k], the runtime of each sample (ps).
          wider: uint32 [k], the key of each sample for the next larger distance; None for the largest distance.
        """
        self.keys, inverse, number = np.unique(keys, return_inverse=True, return_counts=True)
        self.mean = np.bincount(inverse, values, len(self.keys)) / number
        self.spread = np.sqrt(np.bincount(inverse, (values - self.mean[inverse]) ** 2, len(self.keys)) / number)
        if wider is not None:
            self.spread = _spread_among(inverse, wider, values)

    def __call__(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Look up keys, uint32 [k].

        Returns:
          (mean float64 [k], spread float64 [k], known bool [k]). Mean and spread are 0 for an unknown key.
        """
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


def _spread_among(inverse: np.ndarray, wider: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the standard deviation of the runtime in a wider neighbourhood that the data lack, float64 [K] in ps.

    The variance of a key is estimated from the mean runtimes of its m different wider neighbourhoods. If m is small,
    this estimate is poor. The variance relative to the squared mean is therefore pooled over all keys, and the pooled
    value counts as much as one wider neighbourhood (empirical Bayes; Robbins 1956). The factor 1 + 1/m adds the error
    of the key's mean.

    Args:
      inverse: int [k], the number of the key of each sample.
      wider: uint32 [k], the key of each sample for the next larger distance.
      values: float64 [k], the runtime of each sample (ps).
    """
    mean, m, squares = _among(inverse, wider, values)
    shared = squares.sum() / max(((m - 1) * mean**2).sum(), 1.0)
    return np.sqrt((squares + shared * mean**2) / m * (1 + 1 / m))


def _among(inverse: np.ndarray, wider: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Summarise, for each key, the mean values of the wider contexts in which the data contain the key.

    Every wider context of a key counts once, however many samples the context has.

    Args:
      inverse: int [k], the number of the key of each sample.
      wider: int [k], the wider context of each sample; each context belongs to one key.
      values: float64 [k], the value of each sample.

    Returns:
      (mean of the means, number m of wider contexts, sum of squared deviations of the means), [K] each.
    """
    _, first, number = np.unique(wider, return_index=True, return_inverse=True)
    of_wider, key = np.bincount(number, values) / np.bincount(number), inverse[first]
    m = np.maximum(np.bincount(key, minlength=inverse.max() + 1), 1)
    mean = np.bincount(key, of_wider, len(m)) / m
    return mean, m, np.bincount(key, (of_wider - mean[key]) ** 2, len(m))


def learn_match_gains(keys: np.ndarray, gains: np.ndarray) -> list[KeyedMeans]:
    """Return the gains of rewrites by the key of their match, one table for each level of `match_keys`.

    The keys of each level distinguish more than the keys of the level before. The spread of a key is the standard
    deviation of the gain of a match that has this key and a key of the next level that the data lack. The variance of
    the level before counts as much as one key of the next level, so a key with few keys of the next level is not
    certain.

    Args:
      keys: uint32 [levels, k], the keys of k rewritten matches.
      gains: float64 [k], the gain of each rewrite (ps).

    Returns:
      One table of gains (ps) per level.
    """
    result, variance = [], np.full(len(gains), gains.var())
    for own, wider in zip(keys, [*keys[1:], np.arange(len(gains))], strict=True):
        table = KeyedMeans(own, gains)
        number = np.searchsorted(table.keys, own)
        m, squares = _among(number, wider, gains)[1:]
        before = np.bincount(number, variance) / np.bincount(number)
        table.spread = np.sqrt((squares + before) / m * (1 + 1 / m))
        variance = table.spread[number] ** 2
        result.append(table)
    return result


class GainBounds(NamedTuple):
    """Bounds of the gains of each of N rules, from the observed rewrites.

    Attributes:
      least, most: float64 [N], the smallest and the largest observed gain (ps); 0 for a rule without observed rewrites.
      largest: float64 [N], elements of the largest tensor that the rule replaced; infinity without observed rewrites.
    """

    least: np.ndarray
    most: np.ndarray
    largest: np.ndarray

    def of(self, xfer_ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest plausible gain of k rewrites, both float64 [k] in ps.

        If the replaced tensor is larger than all tensors that the rule replaced in the data, the bounds grow in
        proportion.

        Args:
          xfer_ids: int [k], the rule of each rewrite.
          sizes: float64 [k], elements of the tensor that each rewrite replaces.
        """
        larger = np.maximum(sizes / self.largest[xfer_ids], 1.0)
        return self.least[xfer_ids] * larger, self.most[xfer_ids] * larger


class RewriteGains:
    """The observed gains of rewrites, which predict a gain if the effect or the runtime of a node is unknown."""

    def __init__(self, samples: np.ndarray):
        """Store the observed rewrites.

        Args:
          samples: float64 [k, 4], rows of xfer_id, pattern number, elements of the replaced tensor, and gain (ps).
        """
        self.samples = samples
        self._of: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, xfer_id: int, pattern: int | None, size: float | None) -> tuple[float, float]:
        """Return the median and the standard deviation (ps) of observed gains of a pattern, or else of its rule.

        Both are 0 if the data contain no rewrite of the rule.

        Args:
          xfer_id: the rule.
          pattern: the number of the pattern; None to use all rewrites of the rule.
          size: elements of the replaced tensor, to which observed gains are scaled in proportion; None for no scaling.
        """
        others = self._samples_of(1, pattern) if pattern is not None else ()
        others = others if len(others) else self._samples_of(0, xfer_id)
        if not len(others):
            return 0.0, 0.0
        gains = others[:, 3] * (size / others[:, 2] if size else 1.0)
        return float(np.median(gains)), float(gains.std())

    def expected(self, xfer_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the median and the standard deviation of all observed gains of rules, both float64 [k] in ps.

        Args:
          xfer_ids: int [k], the rules.
        """
        rules, of_each = np.unique(xfer_ids, return_inverse=True)
        expected = np.array([self(xfer_id, None, None) for xfer_id in rules.tolist()]).reshape(-1, 2)[of_each]
        return expected[:, 0], expected[:, 1]

    def bounds(self, n_rules: int) -> GainBounds:
        """Return the bounds of the gains of the rules 0 … n_rules − 1."""
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
    """The learned runtimes of nodes in their neighbourhoods, and the observed gains of rewrites.

    Attributes:
      nodes: {hash of typical sizes (see `rlflow.collect.edits.Edit`): runtimes of single nodes at these sizes}.
      neighbourhoods: for each distance from 1 to W edges, the runtimes by the neighbourhood key of this distance; [] if
        runtimes do not depend on neighbourhoods.
      spread: standard deviation (ps) of the runtime of a node whose neighbourhoods are all unknown.
      gains: the observed gains of rewrites.
      usual_gain: the mean absolute gain of a rewrite, as a share of the initial runtime.
      match_gains: the gains by each key of `match_keys`; [] if runtimes do not depend on neighbourhoods.
    """

    def __init__(
        self, nodes: dict[int, NodeCosts], neighbourhoods: list[KeyedMeans], gains: RewriteGains, spread: float,
        usual_gain: float = 0.0, match_gains: Sequence[KeyedMeans] = (),
    ):  # fmt: skip
        self.nodes, self.neighbourhoods, self.gains, self.spread = nodes, neighbourhoods, gains, spread
        self.usual_gain, self.match_gains = usual_gain, list(match_gains)

    @property
    def reach(self) -> int:
        """The largest distance, in edges, of nodes that affect a node's runtime; 0 if only its signature matters."""
        return len(self.neighbourhoods)

    def __call__(
        self, single: np.ndarray, keys: np.ndarray, paid: np.ndarray, before: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Predict the runtimes of k nodes after a step, each from the widest neighbourhood that the data contain.

        A node keeps its runtime from before the step if the key of its widest known neighbourhood is unchanged, or if
        none of its neighbourhoods is known.

        Args:
          single: float64 [k], runtimes by operator signature alone (ps), used if all neighbourhoods are unknown.
          keys: uint32 [W, k], the neighbourhood keys of each distance after the step.
          paid: float64 [k], the runtimes before the step (ps).
          before: uint32 [W, k], the neighbourhood keys before the step; 0 for a new node.

        Returns:
          (runtimes float64 [k] in ps, their standard deviations float64 [k] in ps, bool [k]: True if the neighbourhood
          of distance W is known).
        """
        runtime, spread, stays = single, np.full(len(single), self.spread), before[0] != 0
        for means, now, then in zip(self.neighbourhoods, keys, before, strict=True):
            mean, deviation, known = means(now)
            runtime, spread = np.where(known, mean, runtime), np.where(known, deviation, spread)
            stays = np.where(known, now == then, stays)
        return np.where(stays, paid, runtime), spread, known

    def gain_of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected gains of k rewrites and their standard deviations, float64 [k] each in ps.

        The most specific key of a match that the data contain determines both. Without such a key, the gain is 0 and
        its standard deviation is infinite.

        Args:
          keys: uint32 [levels, k], the result of `match_keys`.
        """
        gain, spread = np.zeros(keys.shape[1]), np.full(keys.shape[1], np.inf)
        for table, of_level in zip(self.match_gains, keys, strict=True):
            mean, deviation, known = table(of_level)
            gain, spread = np.where(known, mean, gain), np.where(known, deviation, spread)
        return gain, spread

    def arrays(self) -> dict[str, np.ndarray]:
        widths = len(self.neighbourhoods)
        result = {"gains": self.gains.samples, "spread": np.float64(self.spread), "widths": np.int64(widths)}
        result["usual_gain"] = np.float64(self.usual_gain)
        for width, means in enumerate(self.neighbourhoods, 1):
            result |= means.arrays(f"neighbourhood{width}")
        for level, table in enumerate(self.match_gains):
            result |= table.arrays(f"match_gains{level}")
        return result

    @classmethod
    def of(cls, nodes: dict[int, NodeCosts], arrays: dict[str, np.ndarray], widths: int) -> "CostModel":
        """Restore a cost model from saved arrays.

        Args:
          nodes: {hash of typical sizes: runtimes of single nodes}.
          arrays: {name: array}, which `arrays` returned.
          widths: the expected W; the saved W may also be 0.

        Raises:
          KeyError, ValueError: the arrays are damaged or have another W.
        """
        if checked_array(arrays, "widths", np.int64) not in (0, widths):
            raise ValueError(f"it has costs for {arrays['widths']} widths of neighbourhoods, not {widths}")
        neighbourhoods = [KeyedMeans.of(arrays, f"neighbourhood{width}") for width in range(1, arrays["widths"] + 1)]
        gains = RewriteGains(checked_array(arrays, "gains", np.float64, None, 4))
        spread, usual_gain = (float(checked_array(arrays, name, np.float64)) for name in ("spread", "usual_gain"))
        names = [f"match_gains{level}" for level in range(MATCH_LEVELS if neighbourhoods else 0)]
        of_matches = [KeyedMeans.of(arrays, name) for name in names]
        return cls(nodes, neighbourhoods, gains, spread, usual_gain, of_matches)
