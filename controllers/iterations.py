"""Learning a world model in iterations (Dyna, Dreamer), under one budget of real interactions.

Iteration 1 learns from the episodes that are there. In every further one a controller learns in the dream so far and
plays the real graph; the world model learns anew from these episodes too. What a controller does in a dream that
promises too much, it then does in reality, and so the next dream promises it no more. `before` and `after` in the
results show that.

What is left of `iterations.interactions` is shared alike among the iterations; no episode begins that might exceed its
share. Every step of an iteration resumes or repeats to the same bytes. `before` is of a model that had not seen the
episodes, `after` of one that has, so shrinking hallucination is read from `before` over the iterations. A run stays of
one model: `collect.also` names other runs whose random episodes join in, sorted by their models' hashes, so that every
one of these runs learns the same world model.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from worldmodel.base import WorldModel
from worldmodel.fidelity import fidelity, improvement


class Steps(Protocol):
    """What an iteration is made of.

    Each of them goes on where it was stopped, and gives the same when it is asked again.
    """

    def learn(self, number: int, episodes: Sequence[Episode]) -> dict:
        """Lets the world model of the iteration learn from these episodes. What its training has to report."""

    def model(self, number: int) -> WorldModel:
        """The one that was learnt."""

    def dream(self, number: int, model: WorldModel) -> tuple[object, float]:
        """A controller that learnt in the dreams of the model, and the return that it dreamt."""

    def play(self, number: int, controller, model: WorldModel, interactions: int) -> list[Episode]:
        """What it does on the real graph, in at most so many steps."""


def learn_in_iterations(
    steps: Steps, episodes: Sequence[Episode], count: int, interactions: int, shortest: int, seed: int,
    report: Callable[[dict], None] | None = None,
) -> dict:
    """Plays the iterations.

    Args:
      episodes: those of iteration 1.
      count: iterations.
      interactions: real steps in all iterations together, those of `episodes` included; what is left is shared alike.
      shortest: steps that every iteration needs at least.
      seed: of the fidelity.
      report: called with what each iteration has to report.

    Returns:
      what the last training reports, and "iterations": for each {"iteration", "episodes" and
      "interactions": those that were new in it}, and after the first {"dreamt_return", "before", "after": fidelity and
      improvement (see `worldmodel.fidelity`) on the controller's new episodes; before of the model that it learnt in,
      which had not seen them, and after of the model that learnt from them}.

    Raises:
      RLFlowError: the budget leaves less than `shortest` for an iteration.
    """
    played = _interactions(episodes)
    if count > 1 and (interactions - played) // (count - 1) < shortest:
        raise RLFlowError(
            f"{played} of iterations.interactions={interactions} are used by the episodes that are there; "
            f"{count} iterations need {shortest} for each further one: raise it, or collect fewer episodes"
        )
    results = steps.learn(1, episodes)
    iterations = [{"iteration": 1, "episodes": len(episodes), "interactions": played}]
    for number in range(2, count + 1):
        share = (interactions - _interactions(episodes)) // (count + 1 - number)
        model = steps.model(number - 1)
        controller, dreamt = steps.dream(number, model)
        new = steps.play(number, controller, model, share)
        before = _judged(model, new, episodes, seed)
        episodes = [*episodes, *new]
        results = steps.learn(number, episodes)
        iterations.append({
            "iteration": number, "episodes": len(new), "interactions": _interactions(new), "dreamt_return": dreamt,
            "before": before, "after": _judged(steps.model(number), new, episodes, seed),
        })  # fmt: skip
        if report is not None:
            report(iterations[-1])
    return results | {"iterations": iterations}


def _interactions(episodes: Sequence[Episode]) -> int:
    return sum(episode.interactions for episode in episodes)


def _judged(model: WorldModel, played: Sequence[Episode], training: Sequence[Episode], seed: int) -> dict:
    return fidelity(model, played, training, seed=seed) | {"improvement": improvement(model, played)}
