"""Searches with a queue of graphs: best-first in the manner of A*, and TASO's backtracking.

`best_first` pops the graph with the lowest cost minus the gains of its matches that do not conflict. `taso` (Jia et
al., 2019, algorithm 2) pops the cheapest graph and queues every graph one rewrite away that costs less than α times the
best cost. It applies every rewrite, and is a control with which other searches are compared.
"""

from heapq import heappop, heappush

from rlflow.common.task import Match
from rlflow.search.base import Position, Search


def best_first(search: Search, budget: int) -> str:
    """Expand the graph with the lowest cost minus the gains of its matches that share no node, again and again.

    This is A* with a heuristic that is NOT admissible: it ignores gains of rewrites that become possible later, so the
    result is not proved to be the best. No admissible heuristic better than zero is known for this problem.

    To expand a graph means to queue the graphs that one of its `_competing_matches` leads to. A graph is queued by the
    gain of this match, and computed only when it is popped. No graph is expanded twice (by hash).

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
    """Return the match with the largest gain, and all matches that share a node with this match.

    The other matches can still be applied later, so they need no branch of their own. If no match gains, all matches
    are returned.
    """
    best = max(position.matches, key=position.gain, default=None)
    if best is None or position.gain(best) <= 0:
        return position.matches
    return [match for match in position.matches if not set(best.nodes).isdisjoint(match.nodes)]


def _optimistic_cost(position: Position) -> int:
    """Return the objective minus the gains of matches that share no node, chosen by decreasing gain."""
    promise, used = position.objective, set()
    for match in sorted(position.matches, key=lambda match: -position.gain(match)):
        if position.gain(match) <= 0:
            break
        if used.isdisjoint(match.nodes):
            used.update(match.nodes)
            promise -= position.total_gain(match)
    return promise


MAX_GROWTH = 2  # largest number of operators of a queued graph, relative to the start, as in TASO's program


def taso(search: Search, alpha: float, budget: int) -> str:
    """Pop the cheapest graph, apply each of its matches, and queue the graphs that cost less than α × the best cost.

    No graph is queued twice (by hash). A queue of whole graphs would not fit into memory. It therefore stores the match
    that leads to a graph, and the graph is computed again when it is popped.

    As in TASO's program, "best" is the cheapest graph before the new graph, so that α = 1 is a descent. For α > 1 this
    equals the paper's algorithm, which queues each cheaper graph in both cases.

    Args:
      search: the search.
      alpha: the factor α; with 1, only graphs cheaper than the best graph are queued.
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
