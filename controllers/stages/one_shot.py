"""The stages of a one-shot task: train-controller and eval.

A controller learns on the task's instance, or on random instances of the same kind, and then returns decisions for the
task's instance. There are no random episodes and no world model.
"""

import time

import numpy as np

from controllers.stages.parts import controller_and_config
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import bar_updater, progress_bar
from rlflow.common.task import ONE_SHOT, Instance, Observes
from rlflow.optimisation.candidates import Decision
from worldmodel.run_pages import events


def refuse(run, stage: str) -> None:
    """Raise RLFlowError if the run's task is one-shot, since one-shot tasks do not have this stage."""
    if run.spec.shape == ONE_SHOT:
        raise RLFlowError(
            f"the task '{run.config.task.name}' is one-shot: it has no stage '{stage}', train-controller is its first"
        )


def train_controller(run) -> dict:
    """Train the run's controller on the instance and return the results of the stage."""
    config, name = run.config, run.config.controller.name

    def work() -> dict:
        controller, instance = _controller(run), run.task.initial
        with progress_bar(1, "train-controller", "iteration") as bar, events(run, name, "train-controller") as writer:
            folder = run.path / "controller" / name
            results = controller.train(instance, config.seed, folder, writer.scalars, bar_updater(bar))
        return {"controller": name, "trainings": [results]}

    return run.stage("train-controller", work)


def evaluate(run) -> dict:
    """Run the stage `eval`: compare the controller with controls, and deliver the best decision (`TaskSpec.deliver`).

    The controls are `Instance.control` and the best of random decisions. The number of random decisions equals the
    number of decisions that the controller evaluated in training and acting.
    """
    trained, config, instance = run.require("train-controller"), run.config, run.task.initial

    def work() -> dict:
        controller, started = _controller(run), time.monotonic()
        controller.load(run.path / "controller" / config.controller.name)
        decided = controller.act(instance, config.eval.samples, np.random.default_rng(config.seed))
        evaluations = trained["trainings"][0]["env_steps"] + len(decided)
        decisions = [_best("controller", instance, decided, evaluations, started)]
        started = time.monotonic()
        decisions.append(_best("control", instance, instance.control()[None], 1, started))
        started, rng = time.monotonic(), np.random.default_rng(config.seed)
        drawn = rng.integers(instance.space.nvec, size=(evaluations, len(instance.space.nvec)))
        decisions.append(_best("random", instance, drawn, evaluations, started))
        return run.spec.deliver(run.task, decisions, run.path / "eval", config)

    return run.stage("eval", work)


def _controller(run):
    kind, config = controller_and_config(run, Observes.GRAPH, ONE_SHOT)
    return kind(config, run.task.initial, run.config.seed)


def _best(name: str, instance: Instance, decisions: np.ndarray, evaluations: int, started: float) -> Decision:
    """Return the best of several decisions, after any repair by the instance.

    Args:
      name: the name of the result.
      instance: the instance.
      decisions: int64 [B, n].
      evaluations: the number of evaluations to report.
      started: the value of time.monotonic() from which the reported seconds count.
    """
    result = instance.evaluate(decisions)
    best = int(result.objectives.argmin())
    return Decision(name, result.decisions[best], int(result.objectives[best]), evaluations, time.monotonic() - started)
