"""The stages of a one-shot task: train-controller and eval.

A controller learns on the task's instance, or on random instances of the same kind, and then returns decisions for the
task's instance. There are no random episodes and no world model.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from controllers.stages.experiments import finished_trainings, store_training
from controllers.stages.parts import controller_and_config, controller_seed, experiment_name
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import bar_updater, progress_bar
from rlflow.common.task import ONE_SHOT, Instance, Observes
from rlflow.optimisation.candidates import Decision
from worldmodel.run_pages import events

AT_ONCE = 1000  # random decisions that are evaluated in one call


def refuse(run, stage: str) -> None:
    """Raise RLFlowError if the run's task is one-shot, since one-shot tasks do not have this stage."""
    if run.spec.shape == ONE_SHOT:
        raise RLFlowError(
            f"the task '{run.config.task.name}' is one-shot: it has no stage '{stage}', train-controller is its first"
        )


def train_controller(run) -> dict:
    """Train the run's controller on the instance and return the results of the stage."""
    name, seed = experiment_name(run.config), controller_seed(run.config)

    def work() -> dict:
        controller, instance, started = _controller(run), run.task.initial, time.monotonic()
        with progress_bar(1, "train-controller", "iteration") as bar, events(run, name, "train-controller") as writer:
            folder = run.path / "controller" / name
            results = controller.train(instance, seed, folder, writer.scalars, bar_updater(bar))
        training = store_training(run, folder, results | {"seconds": time.monotonic() - started})
        return {"controller": run.config.controller.name, "trainings": [training]}

    return run.stage("train-controller", work)


def evaluate(run, only: Sequence[str] = ()) -> dict:
    """Run the stage `eval`: compare the controllers with controls, and deliver the best decision (`TaskSpec.deliver`).

    The controls are `Instance.control` and the best of random decisions. The number of random decisions equals the
    number of decisions that the controllers evaluated in training and acting.

    Args:
      run: the run folder.
      only: names of the experiments whose controllers act; () for all of them.

    Returns:
      The outcome of `TaskSpec.deliver` with the entry "experiments", one row for each controller.
    """
    config, instance, trainings = run.config, run.task.initial, finished_trainings(run, only)

    def work() -> dict:
        evaluations, started, decided, rows = 0, time.monotonic(), [], []
        for training in trainings:
            controller = _controller(training.run)
            controller.load(training.folder)
            own = controller.act(instance, config.eval.samples, np.random.default_rng(config.seed))
            evaluations += training.results["env_steps"] + len(own)
            decided.append(own)
            rows.append({
                "experiment": training.experiment, "training": training.name, "temperature": None,
                "trained_return": training.results["best_return"], "real_return": None,
                "cost": int(instance.evaluate(own).objectives.min()),
            })  # fmt: skip
        decisions = [_best("controller", instance, decided, evaluations, started)]
        started = time.monotonic()
        decisions.append(_best("control", instance, [instance.control()[None]], 1, started))
        started = time.monotonic()
        decisions.append(_best("random", instance, _drawn(instance, evaluations, config.seed), evaluations, started))
        return run.spec.deliver(run.task, decisions, run.path / "eval", config) | {"experiments": rows}

    return run.stage("eval", work)


def _controller(run):
    kind, config = controller_and_config(run, Observes.GRAPH, ONE_SHOT)
    return kind(config, run.task.initial, controller_seed(run.config))


def _drawn(instance: Instance, count: int, seed: int) -> Iterator[np.ndarray]:
    """Yield `count` random decisions in parts int64 [B, n] of at most AT_ONCE decisions, which limits the memory."""
    rng, nvec = np.random.default_rng(seed), instance.space.nvec
    for first in range(0, count, AT_ONCE):
        yield rng.integers(nvec, size=(min(AT_ONCE, count - first), len(nvec)))


def _best(name: str, instance: Instance, parts: Iterable[np.ndarray], evaluations: int, started: float) -> Decision:
    """Return the best of several decisions, after any repair by the instance; of equal ones, the first.

    Args:
      name: the name of the result.
      instance: the instance.
      parts: decisions, int64 [B, n] each.
      evaluations: the number of evaluations to report.
      started: the value of time.monotonic() from which the reported seconds count.
    """
    lowest, best = None, None
    for part in parts:
        result = instance.evaluate(part)
        k = int(result.objectives.argmin())
        if lowest is None or result.objectives[k] < lowest:
            lowest, best = int(result.objectives[k]), result.decisions[k]
    return Decision(name, best, lowest, evaluations, time.monotonic() - started)
