"""TASO's backtracking search (Jia et al., 2019, algorithm 2), the control that every other search is shown beside."""

from heapq import heappop, heappush

from rlflow.search.gains import Position
from rlflow.search.search import Search

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
