"""Searches with a queue of graphs: best-first in the manner of A*, and TASO's backtracking.

`best_first` pops the graph with the lowest cost minus the gains of its matches that do not conflict. `taso` (Jia et
al., 2019, algorithm 2) pops the cheapest graph and queues every neighbour below α times the best cost. It carries out
every rewrite, and is the control that results show beside every other search.
"""

from heapq import heappop, heappush

from rlflow.common.task import Match
from rlflow.search.base import Position, Search


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


MAX_GROWTH = 2  # times the operators of the start: TASO's program queues no larger graph


def taso(search: Search, alpha: float, budget: int) -> str:
    """Pops the cheapest graph, carries out the rewrite of every match, and queues what costs < α × best.

    The queue holds no graph twice (by hash). It keeps the match that leads to a graph rather than the graph,
    which is made again when it is popped: a queue of whole graphs would not fit into memory.

    As in TASO's program, best is the cheapest graph before the new one, so that α = 1 is a descent; for α > 1 this is
    the algorithm of the paper, which has each cheaper graph queued either way.

    Args:
      alpha: relaxation; 1 only goes down.
      budget: graphs that may be popped.
    """
    largest = MAX_GROWTH * len(search.start.graph.nodes)
    queue, queued = [(search.start.objective, 0, search.start, None, None)], {search.start.hash}
    for _ in range(budget):
        if not queue:
            return "nothing left to try"
        _, _, state, path, match = heappop(queue)
        if match is not None:
            state, path = search.follow(state, match), (match, path)
        for match in Position(search, state).matches:
            after = search.follow(state, match)
            cost, bound = after.objective, alpha * search.best.objective
            search.saw(after, (match, path))
            if cost < bound and len(after.graph.nodes) <= largest and after.hash not in queued:
                queued.add(after.hash)
                heappush(queue, (cost, len(queued), state, path, match))
    return "budget"
