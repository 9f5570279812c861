"""Beam search from every match over chains of neighbouring rewrites; the cheapest few chains of each depth remain."""

from collections.abc import Iterator, Sequence

from rlflow.common.task import Match
from rlflow.search.base import EXACT_REACH, Position, Search

# (estimated objective after the match, position, ids of the nodes that the chain touched so far, match)
Candidate = tuple[int, Position, set[int], Match]


def beam(search: Search, width: int, depth: int, radius: int) -> str:
    """Descend by chains of rewrites. Each rewrite of a chain is near the earlier rewrites of the chain.

    Distant rewrites hardly affect each other, so a beam over whole graphs fills up with the same few rewrites in every
    order. Here, each beam grows from one match. After each further rewrite nearby, it keeps the `width` cheapest
    graphs, so a chain may begin with a loss. If the cheapest graph of a chain is cheaper than the graph at its
    beginning, the search continues from the cheaper graph. The search ends if no match leads to a cheaper graph.

    The search runs with width and depth 1 (steepest descent), then with 2, 4, … up to the given values. Each run begins
    first at the best graph so far, and then at the start, which may have matches that the best graph has lost.

    Args:
      search: the search.
      width: number of graphs that are kept at each depth.
      depth: largest number of rewrites of a chain.
      radius: largest distance in edges between the nodes that a chain touched and its next match.

    Returns:
      the reason of the end.
    """
    start = best = Position(search, search.start)
    wide, deep = 1, 1
    while True:
        wide, deep = min(wide, width), min(deep, depth)
        for origin in dict.fromkeys((best, start)):
            best = min(best, _Restart(wide, deep, radius).run(origin), key=lambda position: position.objective)
        if (wide, deep) == (width, depth):
            return f"local optimum of chains of {depth}"
        wide, deep = 2 * wide, 2 * deep


class _Restart:
    """The beam search with a fixed width and depth, from one position.

    Attributes:
      begun: id(match) of the matches that have already been the first rewrite of a chain from the present position.
      failed: id(match) → (the match, ids of nodes), for the matches whose chains led to no cheaper graph. As long as no
        rewrite touches these nodes, the chains need not be tried again.
    """

    def __init__(self, width: int, depth: int, radius: int):
        self.width, self.depth, self.radius = width, depth, radius
        self.begun: set[int] = set()
        self.failed: dict[int, tuple[Match, set[int]]] = {}

    def run(self, position: Position) -> Position:
        while (after := self.step(position)) is not None:
            end, touched = after
            near = end.near(1 + EXACT_REACH, touched)
            self.failed = {key: (m, nodes) for key, (m, nodes) in self.failed.items() if near.isdisjoint(nodes)}
            position = end
        return position

    def step(self, position: Position) -> tuple[Position, set[int]] | None:
        """Return (end of a chain that gains, ids of the nodes that the chain touched), or None if no chain gains.

        Matches are tried in the order of `promising`, until chains from a match gain.
        """
        order = promising(position)
        base = position.of_single()
        seen = {base.state.hash}
        self.begun = set()
        for match in order:
            if id(match) not in self.failed:
                result, nodes = self.chain(base, position.choice(match), seen)
                end = position.everywhere(*result) if result is not None else None
                if end is not None:
                    return end
                self.failed[id(match)] = match, nodes
        return None

    def chain(self, base: Position, first: Match, seen: set[str]) -> tuple[tuple[Position, set[int]] | None, set[int]]:
        """Grow chains from a match, and return the cheapest position that they reach if it is cheaper than the base.

        If the width is above 1, chains may also begin with another match near this match.

        Args:
          base: the position at which the chains begin.
          first: the match around which the chains grow.
          seen: hashes of the graphs reached so far; new hashes are added.

        Returns:
          ((position, ids of the nodes that its chain touched) or None, ids of all nodes that the result depends on).
        """
        best, looked_at, level = None, set(first.nodes), []
        for depth in range(self.depth):
            candidates = self.candidates(level) if depth else self.beginnings(base, first)
            if base.strain is not None:
                candidates = first_of_each_rule(candidates)
            level = []
            for _, position, touched, match in candidates:
                after = position.after(match)
                if position is base:
                    self.begun.add(id(match))
                if match is first or after.state.hash not in seen:
                    seen.add(after.state.hash)
                    level.append((after, touched | after.state.touched))
                    looked_at |= after.near(self.radius, touched)
                    if after.objective < (best[0] if best else base).objective:
                        best = level[-1]
                if len(level) == self.width:
                    break
            if not level:
                break
        return best, looked_at

    def beginnings(self, base: Position, first: Match) -> list[Candidate]:
        """Return the candidates for the first rewrite of a chain: `first`, then nearby matches that are not in `begun`.
        """
        self.begun.add(id(first))
        others = self.candidates([(base, set(first.nodes))]) if self.width > 1 else []
        return [
            (base.objective, base, set(), first),
            *((c, base, set(), m) for c, _, _, m in others if id(m) not in self.begun),
        ]

    def candidates(self, level: list[tuple[Position, set[int]]]) -> list[Candidate]:
        """Return all candidates for the next rewrite of the chains, the lowest estimated objective first.

        Args:
          level: (position at the end of a chain, ids of the nodes that the chain touched) pairs.
        """
        result = []
        for position, touched in level:
            near = position.state.near(touched, self.radius)
            result += [
                (position.objective - position.gain(m), position, touched, m)
                for m in position.matches
                if not near.isdisjoint(m.nodes)
            ]
        return sorted(result, key=lambda candidate: candidate[0])


def promising(position: Position) -> list[Match]:
    """Return the matches at which a chain may begin, the largest gain first.

    If the objective is a maximum, these are all matches at nodes of the largest strain, since a single match may gain
    nothing there.
    """
    strain = position.strain
    if strain is None:
        return sorted(position.matches, key=lambda match: -position.gain(match))
    worst = max(strain.values(), default=0)
    return [match for match in position.matches if any(strain.get(node) == worst for node in match.nodes)]


def first_of_each_rule(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield only the first candidate of each rule.

    If the objective is a maximum, few rewrites gain anything. Without this filter, the beam would fill with rewrites by
    one rule that all leave the objective unchanged.
    """
    tried = set()
    for candidate in candidates:
        match = candidate[-1]
        if match.xfer_id not in tried:
            tried.add(match.xfer_id)
            yield candidate
