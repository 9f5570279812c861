"""Learning of a world model in iterations (Dyna, Dreamer) under one budget of real interactions.

Iteration 1 learns from the existing episodes. In each further iteration a controller trains in the current dream and
plays the real graph, and the world model is trained again with these episodes added. A controller exploits predictions
that are too optimistic; its real episodes then correct the predictions.

The results compare the returns that the world model predicts for the controller's new episodes with the real ones,
`before` and `after` training on them. The model of `before` has not seen these episodes, so its errors over the
iterations show whether false predictions become rarer. The budget `iterations.interactions` is divided equally among
the further iterations. The last episode of an iteration is truncated when the share is used up. Every step can be
resumed or repeated with identical bytes.

A run optimises one ONNX model. `collect.also` names runs of other ONNX models whose random episodes are added. The
episodes are sorted by the hashes of the ONNX models, so all these runs learn the same world model.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from rlflow.collect.episodes import Episode, interactions_of
from rlflow.common.errors import RLFlowError
from worldmodel.base import WorldModel
from worldmodel.fidelity import improvement


class Steps(Protocol):
    """The steps of iteration `number`. A stopped step is resumed by a new call; a repeated step gives the same result.
    """

    def learn(self, number: int, episodes: Sequence[Episode]) -> dict:
        """Train the world model of iteration `number` on these episodes and return the results of the training."""

    def model(self, number: int) -> WorldModel:
        """Return the world model that `learn` trained in iteration `number`."""

    def dream(self, number: int, model: WorldModel) -> tuple[object, float]:
        """Train a controller in the dreams of the model; return the controller and its best mean return there."""

    def play(self, number: int, controller, model: WorldModel, interactions: int) -> list[Episode]:
        """Play the controller on the real graph for at most `interactions` steps and return the episodes."""


def learn_in_iterations(
    steps: Steps, episodes: Sequence[Episode], count: int, interactions: int,
    report: Callable[[dict], None] | None = None,
) -> dict:
    """Train a world model in iterations, each on the real episodes of a controller that exploits the model's errors.

    Args:
      steps: the implementation of the steps.
      episodes: the episodes of iteration 1.
      count: the number of iterations.
      interactions: the budget of real steps for all iterations after the first.
      report: receives the entry of each iteration after the first.

    Returns:
      The results of the last training, and "iterations", a list of entries with "iteration", "episodes" and
      "interactions" (new ones only). Entries after the first also have "dreamt_return", "before" and "after": the
      result of `worldmodel.fidelity.improvement` on the new episodes. "before" is measured with the model of the
      controller's dreams, "after" with the model that was trained on the new episodes as well.

    Raises:
      RLFlowError: the budget is smaller than the number of iterations after the first.
    """
    if interactions < count - 1:
        raise RLFlowError(
            f"iterations.interactions={interactions} is too small: set at least {count - 1} for {count} iterations"
        )
    results, given = steps.learn(1, episodes), interactions_of(episodes)
    iterations = [{"iteration": 1, "episodes": len(episodes), "interactions": given}]
    for number in range(2, count + 1):
        share = (given + interactions - interactions_of(episodes)) // (count + 1 - number)
        model = steps.model(number - 1)
        controller, dreamt = steps.dream(number, model)
        new = steps.play(number, controller, model, share)
        before = improvement(model, new)
        episodes = [*episodes, *new]
        results = steps.learn(number, episodes)
        iterations.append({
            "iteration": number, "episodes": len(new), "interactions": interactions_of(new), "dreamt_return": dreamt,
            "before": before, "after": improvement(steps.model(number), new),
        })  # fmt: skip
        if report is not None:
            report(iterations[-1])
    return results | {"iterations": iterations}
