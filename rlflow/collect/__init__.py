"""Episodes of the real environment for learning: random and exploring play, workers, shards on disk, logged edits.

Episode k depends only on (seed, k), so the number of workers, kills and restarts do not change it. The paper's random
agent draws every valid action with equal probability. Here, half of the steps of random play first draw a rule and then
a location (`CollectOptions.by_rule`): otherwise rules with few locations hardly ever occur, and a world model cannot
learn their effect. An exploring episode restores the states of the first steps of a greedy episode and then explores.
`Episode.copied` counts the restored steps, which are not interactions.
"""

from dataclasses import dataclass

from rlflow.common.options import option


@dataclass(frozen=True)
class CollectOptions:
    """`python run.py collect`.

    Options of the random episodes that the stage `collect` plays and stores.
    """

    episodes: int = option(150, "number of random episodes (offline mode)", at_most=10**7)
    by_rule: float = option(
        0.5,
        "share of the steps of random play that draw a rule first and then one of its locations; with 0, all actions "
        "are equally probable, as in the paper, and rules with few locations are hardly ever seen",
        at_least=0, at_most=1,
    )  # fmt: skip
    executor: str = option("local", "where workers run: local (this machine) or ray (a cluster, see docs/EXTENDING.md)")
    also: tuple[str, ...] = option(
        (),
        "folders of other runs whose random episodes the world model also learns from: one dream for all their models",
    )
