"""Search the states of the real environment for a cheaper graph. This package also defines the options of all searches.

A search is a function

    method(search: Search, **options) -> str

It applies rewrites from `search.start` with `search.follow`, passes every state that may become the result to
`search.saw`, and returns the reason why it stopped. `rlflow.search.base` handles limits, the best state so far and
Ctrl-C. A new search is one function, one line in SEARCHES, and one dataclass of options with a line in
`SearchOptions.groups`.

Most searches try rewrites in one neighbourhood of the graph at a time. Distant rewrites hardly affect each other, so a
queue of whole graphs would fill with the same rewrites in different orders. With `search.moves=batched`, one move
rewrites all equal matches at once (rlflow/env/batched.py). The other searches are compared with random play and TASO's
backtracking.
"""

from dataclasses import dataclass
from typing import ClassVar

from rlflow.common.options import option
from rlflow.common.registry import Registry
from rlflow.env import BATCHED, MOVES

SEARCHES = Registry(
    "search",
    {
        "random": "rlflow.search.random_walks:random_play",
        "greedy": "rlflow.search.descents:steepest_descent",
        "taso": "rlflow.search.best_first:taso",
        "best-first": "rlflow.search.best_first:best_first",
        "beam": "rlflow.search.beam:beam",
        "annealing": "rlflow.search.random_walks:annealing",
        "descent": "rlflow.search.descents:first_improvement",
        "grasp": "rlflow.search.descents:grasp",
    },
)


@dataclass(frozen=True)
class RandomOptions:
    """The paper's random agent."""

    max_steps: int = option(60, "largest number of rewrites of an episode")
    episodes: int = option(1000, "number of random episodes")


@dataclass(frozen=True)
class GreedyOptions:
    """Steepest descent."""

    max_steps: int = option(10_000, "largest number of rewrites")


@dataclass(frozen=True)
class TasoOptions:
    """TASO's backtracking search."""

    alpha: float = option(1.05, "a graph is queued if it costs less than this times the best")
    budget: int = option(1000, "number of graphs whose neighbours are all tried")


@dataclass(frozen=True)
class BestFirstOptions:
    """Best-first search by the cost after all independent gains."""

    budget: int = option(1000, "number of graphs whose neighbours are all tried")


@dataclass(frozen=True)
class BeamOptions:
    """Beam search over chains of neighbouring rewrites; also for the planner.

    Options of the search `beam`, which the controller `planner` runs in a world model, too.
    """

    width: int = option(8, "number of graphs kept at each depth")
    depth: int = option(8, "largest number of rewrites of a chain")
    radius: int = option(1, "largest distance in edges between a chain's next rewrite and its earlier ones", at_least=0)


@dataclass(frozen=True)
class AnnealingOptions:
    """Simulated annealing with restarts; also for the planner.

    Options of the search `annealing`, which the controller `planner` runs in a world model, too.
    """

    restarts: int = option(1000, "number of coolings, each from the best graph so far")
    steps: int = option(50, "number of draws of a cooling")
    hot: float = option(0.5, "first temperature, in mean absolute gains of a rewrite; 0 accepts no loss", at_least=0)
    cold: float = option(0.01, "last temperature, in the same unit")
    focus: float = option(0.9, "share of draws near the rewrites that this cooling has accepted", at_least=0, at_most=1)


@dataclass(frozen=True)
class DescentOptions:
    """First-improvement descent."""

    max_steps: int = option(10_000, "largest number of rewrites")


@dataclass(frozen=True)
class GraspOptions:
    """Greedy randomised descents."""

    unit: float = option(1e-5, "share of the start's estimate; this gain is drawn a few times as often as no gain")
    max_steps: int = option(2000, "largest number of random rewrites of a descent")
    patience: int = option(50, "number of successive descents without improvement after which the search ends")


@dataclass(frozen=True)
class SearchOptions:
    """`python run.py search`, and the searches of `optimise`.

    Limits and options that apply to every search, and the options of each search.
    """

    groups: ClassVar = {
        "random": RandomOptions,
        "greedy": GreedyOptions,
        "taso": TasoOptions,
        "best-first": BestFirstOptions,
        "beam": BeamOptions,
        "annealing": AnnealingOptions,
        "descent": DescentOptions,
        "grasp": GraspOptions,
    }

    seconds: float = option(60.0, "time limit of a search; the searches of `optimise` share its time")
    interactions: int = option(10_000_000, "largest number of rewrites of a search; a move that has begun is completed")
    memory_mb: int = option(4096, "largest growth of the memory of the process, in MiB")
    moves: str = option(
        BATCHED,
        "the unit of one search step, as in `env.moves`: batched (the same rewrite at all equal matches) or single "
        "(one rewrite); receipts always list single rewrites",
        choices=MOVES,
    )
