"""Walks over a model and its disguise: pairs of graphs with equal observations must have equal masks.

A disguise is the same graph with other weights, other ids and literals that are not shared. From the last state of a
walk, graphs are made that differ in one thing that a condition can read. If this change alters a mask, it must alter
the observation, too. Nodes of different graphs with equal neighbourhoods must have the same matches of every rule,
because a network that passes messages sees nothing else of a node.
"""

from collections import Counter

import numpy as np

from rlflow.env.state import RewriteState
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.rule import RuleSet
from tests.env.look_alikes import changes, disguised, equal, matches_by_row, refined, seen, state_of

DISTANCES = (0, 1, 2, 3, 4, 6)  # edges
EVERY = 4  # Nodes are compared in every fourth state of a walk.


class Tally:
    """Counts of comparisons so far.

    Attributes:
        graphs: pairs of different graphs, pairs with equal observations, and such pairs with different masks.
        changes: kind of change → graphs, graphs with other masks, and such graphs with equal observations.
        nodes: distance → pairs of alike nodes of different graphs, and such pairs with different matches.
        rules: names of rules whose matches differed at the greatest distance.
    """

    def __init__(self, rules: RuleSet, rng: np.random.Generator):
        self.all_rules, self.rng = rules, rng
        self.graphs, self.rules = Counter(), Counter()
        self.changes: dict[str, Counter] = {}
        self.nodes = {distance: Counter() for distance in DISTANCES}
        # Distance → number of a neighbourhood → (number of a graph, matches) of one node with this neighbourhood.
        self._known: dict[int, dict[int, tuple[int, Counter]]] = {distance: {} for distance in DISTANCES}
        self._n_graphs, self._none = 0, Counter()

    def add_pair(self, one: RewriteState, other: RewriteState) -> None:
        alike = equal(one.arrays(), other.arrays())
        self.graphs["pairs"] += 1
        self.graphs["seen equal"] += alike and one.graph.hash != other.graph.hash
        self.graphs["masks differ"] += alike and not np.array_equal(one.counts, other.counts)

    def add_change(self, what: str, before: RewriteState, after: RewriteState) -> None:
        kind, differ = self.changes.setdefault(what, Counter()), not np.array_equal(before.counts, after.counts)
        kind["graphs"] += 1
        kind["masks differ"] += differ
        kind["not seen"] += differ and equal(before.arrays(), after.arrays())

    def add_nodes(self, state: RewriteState) -> None:
        self._n_graphs += 1
        arrays, matches, none = state.arrays(), matches_by_row(state), self._none
        for distance, known in self._known.items():
            for row, neighbourhood in enumerate(refined(arrays, distance)):
                own = self._n_graphs, matches.get(row, none)
                graph, others = known.setdefault(neighbourhood, own)
                if graph != self._n_graphs:
                    self.nodes[distance]["pairs"] += 1
                    self.nodes[distance]["matches differ"] += others != own[1]
                    if others != own[1] and distance == DISTANCES[-1]:
                        self.rules.update(self.all_rules[k].name for k in (others - own[1]) + (own[1] - others))
                    # A neighbourhood is kept at random, so that it is compared with many graphs.
                    if self.rng.random() < 0.5:
                        known[neighbourhood] = own

    def figures(self) -> dict:
        return {
            "graphs": dict(self.graphs),
            "changes": {what: dict(kind) for what, kind in sorted(self.changes.items())},
            "nodes": {str(distance): dict(count) for distance, count in self.nodes.items()},
            "rules": dict(self.rules),
        }


def compare(model, sizes: dict[str, int], steps: int, n_changes: int, tally: Tally) -> None:
    """Walk over one model beside its disguise and add all comparisons to the tally."""
    rng, rules, graph = tally.rng, tally.all_rules, load_graph(model)
    one, other = state_of(graph, rules, sizes), state_of(disguised(graph, rng), rules, sizes)
    for step in range(steps):
        tally.add_pair(one, other)
        if step % EVERY == 0:
            tally.add_nodes(one)
        if not one.counts.any() or not np.array_equal(one.counts, other.counts):
            break
        xfer_id = int(rng.choice(np.flatnonzero(one.counts)))
        location = int(rng.integers(one.counts[xfer_id]))
        one, other = one.apply(xfer_id, location), other.apply(xfer_id, location)
    last = state_of(one.graph, rules, sizes)
    all_changes = list(changes(one.graph, rng))
    for k in rng.permutation(len(all_changes))[:n_changes]:
        after = seen(all_changes[k], rules, sizes)
        if after is not None:
            tally.add_change(all_changes[k].what, last, after)
            tally.add_nodes(after)
