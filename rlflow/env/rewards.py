"""Rewards: what one step of the real environment earns.

A reward is a function of the costs before and after a valid step and of the unchanged graph. An invalid
action gets `INVALID_REWARD` whatever the reward function (RLFlow, equations 2 and 3).
"""

from collections.abc import Callable
from functools import partial

from rlflow.common.registry import Registry
from rlflow.costs import NodeCost, runtime_ms

INVALID_REWARD = -100.0

Reward = Callable[[NodeCost, NodeCost, NodeCost], float]

REWARDS = Registry(
    "reward",
    {
        "incremental": "rlflow.env.rewards:incremental",
        "combined": "rlflow.env.rewards:combined",
        "relative": "rlflow.env.rewards:relative",
        "new-runtime": "rlflow.env.rewards:new_runtime",
    },
)


def incremental(before: NodeCost, after: NodeCost, initial: NodeCost) -> float:
    """RT_{t-1} − RT_t in ms (RLFlow, equation 2)."""
    return runtime_ms(before) - runtime_ms(after)


def combined(before: NodeCost, after: NodeCost, initial: NodeCost, alpha: float = 0.8, beta: float = 0.2) -> float:
    """α (RT_{t-1} − RT_t) + β (M_{t-1} − M_t) (RLFlow, equation 3); RT in ms, memory accesses M in MB.

    The defaults are the best of the paper's grid (section 4.3).
    """
    return alpha * incremental(before, after, initial) + beta * (before.bytes - after.bytes) / 1e6


def relative(before: NodeCost, after: NodeCost, initial: NodeCost) -> float:
    """100 (RT_{t-1} − RT_t) / RT_0: percent of the unchanged graph's runtime (X-RLflow, equation 2)."""
    return 100.0 * (before.runtime_ps - after.runtime_ps) / max(initial.runtime_ps, 1)


def new_runtime(before: NodeCost, after: NodeCost, initial: NodeCost) -> float:
    """RT_0 − RT_t in ms: how far the new graph is below the unchanged one, at every step anew.

    The paper compares a "new runtime reward" (R2 in its figure 5) and gives no formula. Taken from RT_0 it is 0 for
    NO-OP, as the others.
    """
    return runtime_ms(initial) - runtime_ms(after)


def make_reward(name: str, alpha: float, beta: float) -> Reward:
    """The reward of a config; `alpha` and `beta` are those of `combined`."""
    reward = REWARDS.get(name)
    return partial(reward, alpha=alpha, beta=beta) if reward is combined else reward
