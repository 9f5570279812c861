"""Best-first search in the manner of A*: first the graph that could become the cheapest."""

from heapq import heappop, heappush

from rlflow.search.gains import Position
from rlflow.search.search import Search
from rlflow.tasks.base import Match


def best_first(search: Search, budget: int) -> str:
    """Pops the graph with the lowest cost minus what its matches gain that do not get in each other's way.

    This is A* with a heuristic that is NOT admissible: what rewrites enable later is not in it, so that a
    result is not proved to be the best. An admissible one that says more than "zero" is not known for this problem.

    A neighbour is queued by what its match gains and carried out when it is popped, so that only graphs that are
    expanded (and the gains of new matches) cost anything. No graph is expanded twice (by hash).

    Args:
      budget: graphs that may be expanded.
    """
    start = Position(search, search.start)
    queue, expanded, pushed = [(_promise(start), start.objective, 0, start, None)], set(), 0
    while queue:
        promise, cost, _, position, match = heappop(queue)
        if match is not None:
            position = position.after(match)
            if position.state.hash in expanded:
                continue
            pushed += 1
            heappush(queue, (_promise(position), position.objective, pushed, position, None))
            continue
        if position.state.hash in expanded:
            continue
        if len(expanded) == budget:
            return "budget"
        expanded.add(position.state.hash)
        for match in _branches(position):
            gain = position.lowers(match)
            pushed += 1
            heappush(queue, (promise + max(0, -gain), cost - gain, pushed, position, match))
    return "nothing left to try"


def _branches(position: Position) -> list[Match]:
    """The match that gains most and those that share a node with it: what is elsewhere can be done later.

    All, if none gains.
    """
    best = max(position.matches, key=position.gain, default=None)
    if best is None or position.gain(best) <= 0:
        return position.matches
    return [match for match in position.matches if not set(best.nodes).isdisjoint(match.nodes)]


def _promise(position: Position) -> int:
    """The cost after all matches that gain, the best first, without those that share a node with one before."""
    promise, used = position.objective, set()
    for match in sorted(position.matches, key=lambda match: -position.gain(match)):
        if position.gain(match) <= 0:
            break
        if used.isdisjoint(match.nodes):
            used.update(match.nodes)
            promise -= position.lowers(match)
    return promise
