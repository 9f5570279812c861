"""Brute-force search for all graphs that the real engine reaches."""

from rlflow.env.state import RewriteState


def reachable(start: RewriteState, steps: int, most: int = 3000) -> tuple[dict[str, RewriteState], bool]:
    """Return (hash → state of all graphs within `steps` rewrites, whether no further graph can be reached)."""
    result, frontier = {start.graph.hash: start}, [start]
    for _ in range(steps):
        following = []
        for state in frontier:
            for match in (match for matches in state.table.locations for match in matches):
                after = state.follow(match)
                if after.graph.hash not in result:
                    result[after.graph.hash] = after
                    following.append(after)
        assert len(result) <= most, "not a toy"
        if not following:
            return result, True
        frontier = following
    return result, False


def reachable_costs(start: RewriteState) -> dict[str, int]:
    """Return hash → cost in picoseconds of every reachable graph; there must be finitely many."""
    states, _ = reachable(start, steps=10**9, most=10**6)
    return {key: state.cost.runtime_ps for key, state in states.items()}
