"""Searches for a cheaper graph over the states of the real environment, and their options.

A search is a function

    method(search: Search, **options) -> str

It applies rewrites from `search.start` with `search.follow`, reports every state that may be delivered to `search.saw`,
and returns the reason why it stopped. `rlflow.search.base` handles limits, the best state so far and Ctrl-C. A new
search is one function, one line in SEARCHES and one dataclass of options here.

Each search works in one neighbourhood of the graph, because distant rewrites hardly affect each other and a queue of
whole graphs would fill with their permutations. With `search.moves=batched`, one move rewrites all equal matches at
once (rlflow/env/batched.py). Random play and TASO's backtracking are the controls.
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

    max_steps: int = option(60, "rewrites of an episode")
    episodes: int = option(1000, "random episodes from the start")


@dataclass(frozen=True)
class GreedyOptions:
    """Steepest descent."""

    max_steps: int = option(10_000, "rewrites")


@dataclass(frozen=True)
class TasoOptions:
    """TASO's backtracking search."""

    alpha: float = option(1.05, "a graph is kept while it costs less than this times the best")
    budget: int = option(1000, "graphs whose neighbours are all tried")


@dataclass(frozen=True)
class BestFirstOptions:
    """First the graph that could become the cheapest."""

    budget: int = option(1000, "graphs whose neighbours are all tried")


@dataclass(frozen=True)
class BeamOptions:
    """Chains of rewrites at one match; the planner's too."""

    width: int = option(8, "graphs that are kept at each depth")
    depth: int = option(8, "rewrites of a chain")
    radius: int = option(1, "edges between what a chain touched and its next rewrite", at_least=0)


@dataclass(frozen=True)
class AnnealingOptions:
    """Random rewrites, losses accepted less and less; the planner's too."""

    restarts: int = option(1000, "coolings, each from the best graph so far")
    steps: int = option(50, "draws of a cooling")
    hot: float = option(0.5, "first temperature, in mean gains or losses of a rewrite; 0 accepts no loss", at_least=0)
    cold: float = option(0.01, "last temperature")
    focus: float = option(0.9, "share of draws near what was rewritten before", at_least=0, at_most=1)


@dataclass(frozen=True)
class DescentOptions:
    """First-improvement descent."""

    max_steps: int = option(10_000, "rewrites")


@dataclass(frozen=True)
class GraspOptions:
    """Greedy randomised descents."""

    unit: float = option(1e-5, "a gain drawn a few times as often as none; a share of the start's estimate")
    max_steps: int = option(2000, "rewrites of a descent that are drawn")
    patience: int = option(50, "descents in a row that end no cheaper, after which it ends")


@dataclass(frozen=True)
class SearchOptions:
    """`python run.py search`, and the searches of `optimise`."""

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

    seconds: float = option(60.0, "after which a search ends with the best so far; those of `optimise` share its time")
    interactions: int = option(10_000_000, "rewrites after which it ends; a move is carried out whole")
    memory_mb: int = option(4096, "by which it may grow")
    moves: str = option(
        BATCHED,
        "the unit of one search step, as in `env.moves`: batched (the same rewrite at all equal matches) or single "
        "(one rewrite); receipts always list single rewrites",
        choices=MOVES,
    )
