"""Beam search from every match: chains of rewrites that touch each other, and the cheapest few chains at each depth."""

from collections.abc import Iterator, Sequence

from rlflow.common.task import Match
from rlflow.search.base import EXACT_REACH, Position, Search

# (estimated objective after the match, position, ids of the nodes that the chain touched so far, match)
Candidate = tuple[int, Position, set[int], Match]


def beam(search: Search, width: int, depth: int, radius: int) -> str:
    """Descend by chains of rewrites, each of which is near the earlier rewrites of its chain.

    Distant rewrites hardly affect each other, so a beam over whole graphs fills up with the same few rewrites in every
    order. This beam grows from one match. It keeps the `width` cheapest graphs after each further rewrite nearby, so a
    chain may begin with a loss. If the cheapest graph of a chain is cheaper than the graph at its beginning, the search
    continues there. The search ends if no match leads to a cheaper graph.

    The search runs with width and depth 1 (steepest descent), then with 2, 4, … up to the given values. Each run begins
    first at the best graph so far, and then at the start, where choices remain that the best graph has lost.

    Args:
      search: the search.
      width: number of graphs that are kept at each depth.
      depth: number of rewrites of a chain.
      radius: largest distance in edges between the nodes that a chain touched and its next match.

    Returns:
      the reason of the end.
    """
    start = best = Position(search, search.start)
    wide, deep = 1, 1
    while True:
        wide, deep = min(wide, width), min(deep, depth)
        for origin in dict.fromkeys((best, start)):
            best = min(best, _Restart(search, wide, deep, radius).run(origin), key=lambda position: position.objective)
        if (wide, deep) == (width, depth):
            return f"local optimum of chains of {depth}"
        wide, deep = 2 * wide, 2 * deep


class _Restart:
    """The search with one width and depth.

    Attributes:
      begun: ids of the matches of the base position that were already applied.
      failed: id of a match → the match, kept alive, and the nodes that the failure of its chains depends on.
    """

    def __init__(self, search: Search, width: int, depth: int, radius: int):
        self.search, self.width, self.depth, self.radius = search, width, depth, radius
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
        """Return the end of the first chain that gains, with the nodes that it touched; try the most promising matches
        first.
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
        """Return the cheapest position that chains from a match reach, if it is cheaper than the base; else None.

        A match near the first match may replace it as the beginning of a chain.

        Args:
          base: the position at which the chains begin.
          first: the match around which the chains grow.
          seen: hashes of the graphs met so far; updated.

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
        """Return the candidates for the first rewrite of a chain: `first`, then nearby matches that began no chain yet.
        """
        self.begun.add(id(first))
        others = self.candidates([(base, set(first.nodes))]) if self.width > 1 else []
        return [
            (base.objective, base, set(), first),
            *((c, base, set(), m) for c, _, _, m in others if id(m) not in self.begun),
        ]

    def candidates(self, level: list[tuple[Position, set[int]]]) -> list[Candidate]:
        """Return all candidates for the next rewrite of the chains, the cheapest first."""
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
    """Return the matches at which a chain may begin, the most promising first.

    If the objective is a maximum, these are the matches at nodes of the largest strain, which may gain nothing alone.
    """
    strain = position.strain
    if strain is None:
        return sorted(position.matches, key=lambda match: -position.gain(match))
    worst = max(strain.values(), default=0)
    return [match for match in position.matches if any(strain.get(node) == worst for node in match.nodes)]


def first_of_each_rule(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield only the first candidate of each rule.

    If the objective is a maximum, few rewrites gain anything, and a level would fill with equal candidates that lead
    nowhere.
    """
    tried = set()
    for candidate in candidates:
        match = candidate[-1]
        if match.xfer_id not in tried:
            tried.add(match.xfer_id)
            yield candidate
