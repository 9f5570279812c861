"""Beam search from every match: the best few at each depth of what is reachable by moves that belong together."""

from collections.abc import Iterator, Sequence

from rlflow.common.task import Match
from rlflow.search.base import EXACT_REACH, Position, Search

Candidate = tuple[int, Position, set[int], Match]  # cost after it, position, what its chain touched so far, match


def beam(search: Search, width: int, depth: int, radius: int) -> str:
    """Descends by chains of rewrites that touch what the earlier ones of the chain touched.

    Rewrites of different matches hardly concern each other, so a beam over whole graphs fills up with the same few
    rewrites in every order. This one grows from one match: then the `width` cheapest graphs after one
    more rewrite near by, and so on, so that a loss may come first. The cheapest graph on the way, if it is
    cheaper than the one at the beginning, is where the search goes on; where no match leads to one, it has ended.

    It is run with the width and depth 1, which is the steepest descent, then 2, 4, …, each time from the best graph
    so far and then from the start, which has choices that the best graph has lost.

    Args:
      width: graphs that are kept at each depth.  depth: rewrites of a chain.  The last restart has both.
      radius: edges between what a chain touched and its next match, at most.
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
    """The search with one width and depth."""

    def __init__(self, search: Search, width: int, depth: int, radius: int):
        self.search, self.width, self.depth, self.radius = search, width, depth, radius
        self.begun: set[int] = set()  # ids of the matches of the base that were carried out
        self.failed: dict[int, tuple[Match, set[int]]] = {}  # id of a match → it, and the nodes that it depended on

    def run(self, position: Position) -> Position:
        while (after := self.step(position)) is not None:
            end, touched = after
            near = end.near(1 + EXACT_REACH, touched)
            self.failed = {key: (m, nodes) for key, (m, nodes) in self.failed.items() if near.isdisjoint(nodes)}
            position = end
        return position

    def step(self, position: Position) -> tuple[Position, set[int]] | None:
        """The end of a chain that gains, with the nodes that it touched; the matches that promise most come first."""
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
        """(the cheapest position that chains from a match reach, if it is cheaper than the base, and what was touched;
        the nodes that were looked at). A match near the first one may begin the chain in its stead."""
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
        """As `candidates`, the first match first; without those that began a chain before."""
        self.begun.add(id(first))
        others = self.candidates([(base, set(first.nodes))]) if self.width > 1 else []
        return [
            (base.objective, base, set(), first),
            *((c, base, set(), m) for c, _, _, m in others if id(m) not in self.begun),
        ]

    def candidates(self, level: list[tuple[Position, set[int]]]) -> list[Candidate]:
        """All that may go on, the cheapest first."""
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
    """The matches at which a chain may begin, those that promise most first: where the objective is that of the worst
    part, those at the worst part; they may gain nothing by themselves."""
    strain = position.strain
    if strain is None:
        return sorted(position.matches, key=lambda match: -position.gain(match))
    worst = max(strain.values(), default=0)
    return [match for match in position.matches if any(strain.get(node) == worst for node in match.nodes)]


def first_of_each_rule(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Of one level: where few rewrites gain anything, what is alike would fill it with what leads nowhere."""
    tried = set()
    for candidate in candidates:
        match = candidate[-1]
        if match.xfer_id not in tried:
            tried.add(match.xfer_id)
            yield candidate
