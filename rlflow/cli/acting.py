"""A controller that learnt on other models acts on this one: a greedy episode, and as many further ones as time is
left for."""

import time

from controllers.evaluation import best_of
from rlflow.cli.wiring import controller_from, controllers_environment, with_candidates
from rlflow.optimisation.candidates import Candidate, follow
from worldmodel.train_and_load import prepare_tensorflow


def acted(run, folder: str, seconds: float) -> Candidate:
    """The best graph on the ways of its episodes.

    folder: of the controller, one that sees candidates. seconds: after which no further episode begins; the first one,
      a greedy one, is always played.
    """
    started = time.monotonic()
    prepare_tensorflow(run.config.seed, run.config.world_model.threads)
    controller = controller_from(folder, run.config.seed)
    env = with_candidates(controllers_environment(run), controller.config)
    tried = best_of(controller.players(), env, run.config.eval.samples, run.config.seed, started + seconds)
    interactions = sum(len(trajectory.actions) for trajectory in tried.trajectories)
    return Candidate(
        "transfer", follow(run.task, tried.actions), tried.actions, interactions, time.monotonic() - started
    )
