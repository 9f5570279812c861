"""What beam search did, as the agent would have seen it: what it can learn from before it learns from rewards.

A search tries thousands of rewrites for each that it keeps; what it keeps can be imitated, on graphs that it never
searched. So the agent is shown beam search's chains on the models that it learns on, one state after another, and made
to think each choice probable (behavioural cloning: Pomerleau 1991).
"""

from dataclasses import asdict
from typing import NamedTuple

import gymnasium
import numpy as np

from rlflow.search import BeamOptions
from rlflow.search.base import Limits, run_search, uninterrupted

INTERACTIONS = 10_000  # rewrites that beam search may try, of each model


class Demonstration(NamedTuple):
    """observation: of `rlflow.env.candidates.CandidateEnv`.  choice: the candidate that beam search took, or NO-OP."""

    observation: dict[str, np.ndarray]
    choice: int


def demonstrations(env: gymnasium.Env, seed: int) -> tuple[list[Demonstration], int]:
    """(of each model of the environment what beam search did; the rewrites that it tried)."""
    result, interactions = [], 0
    for one in env.get_wrapper_attr("envs") if env.has_wrapper_attr("envs") else [env]:
        start, limits = one.unwrapped.task.initial, Limits(interactions=INTERACTIONS)
        search = uninterrupted(run_search("beam", start, limits, seed, **asdict(BeamOptions())))
        interactions += search.interactions
        shown = [Demonstration(*seen) for seen in one.get_wrapper_attr("replayed")(search.actions)]
        result += shown if may_stop(shown[-1].observation) else shown[:-1]
    return result, interactions


def may_stop(observation: dict[str, np.ndarray]) -> bool:
    """Whether NO-OP is a choice: a search that was cut short may have stopped while something gains."""
    return not (observation.get("gains", np.zeros(1)) > 0).any()
