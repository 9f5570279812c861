"""Searches with a queue of graphs: best-first in the manner of A*, and TASO's backtracking.

`best_first` pops the graph with the lowest cost minus the gains of its matches that do not conflict. `taso` (Jia et
al., 2019, algorithm 2) pops the cheapest graph and queues every neighbour below α times the best cost. It applies every
rewrite, and is the control that results show beside every other search.
"""

from heapq import heappop, heappush

from rlflow.common.task import Match
from rlflow.search.base import Position, Search


def best_first(search: Search, budget: int) -> str:
    """Pop the graph with the lowest cost minus the gains of its matches that do not conflict, and queue its neighbours.

    This is A* with a heuristic that is NOT admissible: it ignores gains of rewrites that become possible later, so the
    result is not proved to be the best. No admissible heuristic better than zero is known for this problem.

    A neighbour is queued by the gain of its match and computed when it is popped. Thus only expanded graphs and the
    gains of new matches cost time. No graph is expanded twice (by hash).

    Args:
      search: the search.
      budget: number of graphs that may be expanded.

    Returns:
      the reason of the end.
    """
    start = Position(search, search.start)
    queue, expanded, pushed = [(_optimistic_cost(start), start.objective, 0, start, None)], set(), 0
    while queue:
        promise, cost, _, position, match = heappop(queue)
        if match is not None:
            position = position.after(match)
            if position.state.hash in expanded:
                continue
            pushed += 1
            heappush(queue, (_optimistic_cost(position), position.objective, pushed, position, None))
            continue
        if position.state.hash in expanded:
            continue
        if len(expanded) == budget:
            return "budget"
        expanded.add(position.state.hash)
        for match in _competing_matches(position):
            gain = position.total_gain(match)
            pushed += 1
            heappush(queue, (promise + max(0, -gain), cost - gain, pushed, position, match))
    return "nothing left to try"


def _competing_matches(position: Position) -> list[Match]:
    """Return the match of the largest gain and the matches that share a node with it; return all matches if none gains.

    Rewrites elsewhere can follow later, so they need no branch of their own.
    """
    best = max(position.matches, key=position.gain, default=None)
    if best is None or position.gain(best) <= 0:
        return position.matches
    return [match for match in position.matches if not set(best.nodes).isdisjoint(match.nodes)]


def _optimistic_cost(position: Position) -> int:
    """Return the objective after all matches that gain, the largest gain first, without matches that share a node."""
    promise, used = position.objective, set()
    for match in sorted(position.matches, key=lambda match: -position.gain(match)):
        if position.gain(match) <= 0:
            break
        if used.isdisjoint(match.nodes):
            used.update(match.nodes)
            promise -= position.total_gain(match)
    return promise


MAX_GROWTH = 2  # times the operators of the start; TASO's program queues no larger graph either


def taso(search: Search, alpha: float, budget: int) -> str:
    """Pop the cheapest graph, apply the rewrite of every match, and queue each result that costs less than α × best.

    The queue contains no graph twice (by hash). It stores the match that leads to a graph, and the graph is computed
    again when it is popped: a queue of whole graphs would not fit into memory.

    As in TASO's program, "best" is the cheapest graph before the new graph, so that α = 1 is a descent. For α > 1 this
    equals the paper's algorithm, which queues each cheaper graph in both cases.

    Args:
      search: the search.
      alpha: relaxation α; 1 accepts only cheaper graphs.
      budget: number of graphs that may be popped.

    Returns:
      the reason of the end.
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
