"""Searches for a cheaper graph over the same states that the environment plays with.

A search is a function

    method(search: Search, **options) -> str

that follows rewrites from `search.start` through `search.follow`, gives `search.saw` every state that might
be delivered, and returns why it stopped; its options are those that its dataclass in `rlflow/search/options.py`
declares. Limits, the best so far and what happens at Ctrl-C are the business of `rlflow.search.search`. A new one is
one file, one line here and those options.
"""

from rlflow.common.registry import Registry

SEARCHES = Registry(
    "search",
    {
        "random": "rlflow.search.random_play:random_play",
        "greedy": "rlflow.search.greedy:steepest_descent",
        "taso": "rlflow.search.taso:taso",
        "best-first": "rlflow.search.best_first:best_first",
        "beam": "rlflow.search.beam:beam",
        "annealing": "rlflow.search.annealing:annealing",
        "descent": "rlflow.search.descent:first_improvement",
    },
)
