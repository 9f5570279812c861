"""The real environment: states and their successors, rewards, observations, and the Gymnasium interface.

A step updates matches, cost and observation only for the nodes near the rewrite, so most of its work does not grow with
the graph. Only the copying of dictionaries does. No step reads or copies a weight. This module holds the options of the
environment and imports nothing heavy, so that reading a config stays fast.
"""

from dataclasses import dataclass

from rlflow.common.options import option

SINGLE, BATCHED = MOVES = ("single", "batched")


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """The real environment."""

    rules: tuple[str, ...] = option((), "rule families (files in rlflow/rules/); empty for all but `memory`")
    exact: bool = option(
        False, "of those, only the rules that change no rounding; results are compared bit for bit (`optimise --exact`)"
    )
    standard_operators_only: bool = option(
        False, "leave out the rules that introduce operators of other domains, such as com.microsoft"
    )
    max_locations: int = option(200, "locations a rule may have (L of the paper)")
    max_steps: int = option(60, "steps after which a random episode is cut")
    moves: str = option(
        SINGLE,
        "the unit of one action: single (one rewrite) or batched (the same rewrite at all matches of equal match class "
        "and neighbourhood, so that equal blocks are searched once); receipts and episodes always list single rewrites",
        choices=MOVES,
    )
    reward: str = option(
        "relative",
        "incremental (paper, eq. 2), combined (eq. 3), relative (percent of the initial runtime), new-runtime (its "
        "level) or measured (percent of the initial latency, end to end on this machine); the world model `edits` "
        "refuses combined and measured: it knows estimated runtimes alone",
    )
    alpha: float = option(
        0.8, "weight of the runtime in `combined`; the best of the paper's grid (section 4.3)", at_least=0
    )
    beta: float = option(0.2, "weight of the memory accesses in `combined`", at_least=0)
    measure_every: int | None = option(
        5, "steps after which `measured` measures, besides at an episode's end (N of X-RLflow); null: there alone"
    )
    unmeasured_reward: float = option(
        0.0, "what `measured` pays for a step that is not measured (0.1 in X-RLflow's code)", at_least=0
    )
    measure_seconds: float = option(0.5, "seconds that the runs of one measurement take; making sessions comes on top")
    measure_limit: float = option(
        60.0, "seconds after which a measurement that has not ended is given up; its step then earns nothing"
    )
