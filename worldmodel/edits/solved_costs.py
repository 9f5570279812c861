"""What nodes cost, solved from what steps gained: for a world model that is told rewards alone (supervision=scalar).

A node costs what its operator signature says. Every step is one equation: what the nodes that came cost, less what
those that went cost, is what the graph costs more; the first graph of an episode is another, all its nodes are its
runtime. The solution is that of least squares among costs that are not below zero. Nodes that always come and go
together share what they cost; no reward tells them apart, and no dream needs to, as long as they do so there.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import lsq_linear
from scipy.sparse import coo_array

from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.match_patterns import Signature
from worldmodel.edits.training_set import TrainingSet

TOLERANCE = 1e-14  # of the solver; with its own a reward is off by a ten thousandth

Costed = tuple[int, int, Signature]  # typical sizes, operator, signature


def with_solved_costs(training: TrainingSet) -> TrainingSet:
    """The same episodes, in which nodes cost what is solved."""
    costs, grounded = solved_costs(training), dict(training.grounded)
    for index, numbers in training.by_grounding.items():
        for k in numbers:
            runtimes = []
            for nodes, _ in grounded[k].runtimes:
                solved = [costs.get(_costed(index, node), 0.0) for node in nodes.tolist()]
                runtimes.append((nodes, np.array(solved)))
            grounded[k] = grounded[k]._replace(runtimes=runtimes)
    return replace(training, grounded=grounded)


def solved_costs(training: TrainingSet) -> dict[Costed, float]:
    """ps, by typical sizes and operator signature."""
    equations, known = _Equations(), []
    for index, episodes in training.groups():
        equations.add(index, episodes[0].nodes[0], 1.0)
        known.append(float(training.initial_runtime(index)))
        for episode in episodes:
            for t in range(episode.repeated, len(episode.matches)):
                before, after = episode.nodes[t], episode.nodes[t + 1]
                equations.add(index, np.setdiff1d(before, after), 1.0)
                equations.extend(index, np.setdiff1d(after, before), -1.0)
                known.append(float(episode.gains[t]))
    unit = max(np.abs(known).max(), 1.0)
    rewards, costs = np.array(known) / unit, (0.0, np.inf)
    solved = lsq_linear(equations.matrix(), rewards, costs, tol=TOLERANCE, lsmr_tol=TOLERANCE)
    return dict(zip(equations.unknowns, (solved.x * unit).tolist(), strict=True))


class _Equations:
    """Rows of sums of costs. unknowns: what costs → its column."""

    def __init__(self):
        self.unknowns: dict[Costed, int] = {}
        self._rows = 0
        self._cells: list[tuple[int, int, float]] = []

    def add(self, index: GroundingIndex, nodes: np.ndarray, sign: float) -> None:
        """A row with these nodes."""
        self._rows += 1
        self.extend(index, nodes, sign)

    def extend(self, index: GroundingIndex, nodes: np.ndarray, sign: float) -> None:
        """More nodes of the last row."""
        for node in nodes.tolist():
            column = self.unknowns.setdefault(_costed(index, node), len(self.unknowns))
            self._cells.append((self._rows - 1, column, sign))

    def matrix(self):
        rows, columns, values = zip(*self._cells, strict=True)
        return coo_array((values, (rows, columns)), shape=(self._rows, len(self.unknowns))).tocsr()


def _costed(index: GroundingIndex, node: int) -> Costed:
    return (index.grounding.first.sizes, *index.grounding.operator_signature(node))
