"""What single nodes cost, learnt: the mean of what was logged of such a node, else an estimate from others by their
sizes."""

from collections.abc import Iterable

import numpy as np

from worldmodel.edits.match_patterns import Signature

REACH = 5  # edges within which other nodes may change what a node costs; a layer normalisation is as wide
RIDGE = 0.1  # of the slopes of runtimes over sizes


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
        gram = (inputs * weights[:, None]).T @ inputs + RIDGE * np.eye(len(signature))
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
