"""Random play: the control that any search has to beat with as many interactions."""

from rlflow.search.search import Search
from rlflow.tasks.base import valid_actions


def random_play(search: Search, max_steps: int, episodes: int) -> str:
    """Episodes of the paper's random agent from the start: every valid action, NO-OP included, is equally probable.

    Args:
      max_steps: steps after which an episode is cut.
      episodes: how many are played.
    """
    spec = search.start.task.encoding_spec
    for _ in range(episodes):
        state, path = search.start, None
        for _ in range(max_steps):
            valid = valid_actions(state.counts, spec.stop)
            if not len(valid):
                break
            xfer_id, location = (int(part) for part in valid[search.rng.integers(len(valid))])
            if xfer_id == spec.n_rules:
                break
            match = state.match(xfer_id, location)
            state, path = search.follow(state, match), (match, path)
            search.saw(state, path)
    return "episodes"
