"""The options of collecting."""

from dataclasses import dataclass

from rlflow.common.options import option


@dataclass(frozen=True)
class CollectOptions:
    """`python run.py collect`."""

    episodes: int = option(96, "random episodes to play (offline mode)", at_most=10**7)
    executor: str = option("local", "where the workers run: local (this machine) or ray (a cluster: docs/EXTENDING.md)")
    also: tuple[str, ...] = option(
        (),
        "folders of other runs, from whose random episodes the world model learns too: one dream for all their models",
    )
